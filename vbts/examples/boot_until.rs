//! Boots a kernel, stops it at a function, and prints what has taken longest until then:
//! `cargo run --release --example boot_until -- target/guest/vmlinux start_kernel`

use std::error::Error;

use vbts::{Machine, child_main};

fn main() -> Result<(), Box<dyn Error>> {
    child_main();
    let mut args = std::env::args_os().skip(1);
    let (Some(kernel), Some(point)) = (args.next(), args.next()) else {
        return Err("usage: boot_until VMLINUX FUNCTION".into());
    };
    let trace = Machine::new(kernel).record_until(point).run()?;
    println!(
        "{:?} after {} branches",
        trace.end(),
        trace.summary().records
    );
    for function in trace.functions(10)? {
        println!("{:>12} {}", function.instructions, function.name);
    }
    Ok(())
}
