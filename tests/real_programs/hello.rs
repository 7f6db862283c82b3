use std::thread;

fn main() {
    let threads: Vec<_> = (0..4u32).map(|i| thread::spawn(move || i.pow(3))).collect();
    let sum: u32 = threads.into_iter().map(|thread| thread.join().unwrap_or(0)).sum();
    println!("Hello from Rust: {sum}");
}

#[test]
fn powers() {
    assert_eq!(2u32.pow(3), 8);
}
