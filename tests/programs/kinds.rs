// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Closures, trait objects and panics, in numbers that are easy to know.

use std::hint::black_box;

trait Shape {
    fn area(&self, size: u64) -> u64;
}

struct Square;
struct Line;

impl Shape for Square {
    #[inline(never)]
    fn area(&self, size: u64) -> u64 {
        black_box(size) * size
    }
}

impl Shape for Line {
    #[inline(never)]
    fn area(&self, _: u64) -> u64 {
        black_box(0)
    }
}

#[inline(never)]
fn refuse_odd(number: u32) {
    if number % 2 == 1 {
        panic!("odd");
    }
}

#[inline(never)]
fn is_odd(number: u32) -> u64 {
    u64::from(std::panic::catch_unwind(|| refuse_odd(black_box(number))).is_err())
}

fn main() {
    std::panic::set_hook(Box::new(|_| {}));
    let shapes: [&dyn Shape; 3] = [&Square, &Line, &Square];
    let mut sum: u64 = (0..30).map(|i| black_box(shapes[i % 3]).area(i as u64)).sum();
    sum += (0..10).map(is_odd).sum::<u64>();
    sum += std::thread::spawn(|| Square.area(7)).join().unwrap_or_default();
    println!("{sum}");
}
