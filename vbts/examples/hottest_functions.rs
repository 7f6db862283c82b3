//! Traces a program and prints its hottest functions:
//! `cargo run --release --example hottest_functions -- /bin/ls /`

use std::error::Error;

use vbts::{Tracer, child_main};

fn main() -> Result<(), Box<dyn Error>> {
    child_main();
    let mut args = std::env::args_os().skip(1);
    let program = args
        .next()
        .ok_or("usage: hottest_functions PROGRAM [ARGUMENT...]")?;
    let trace = Tracer::new(program).args(args).run()?;
    println!(
        "{:?} after {} branches",
        trace.end(),
        trace.summary().records
    );
    for function in trace.functions(10)? {
        println!(
            "{:>12} {:>8} {}",
            function.instructions, function.calls, function.name
        );
    }
    Ok(())
}
