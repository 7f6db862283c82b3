//! Reads a kept trace and prints the branches that are taken most often:
//! `cargo run --release --example longest_loop -- FILE.btrace`

use std::collections::HashMap;
use std::error::Error;

use vbts::{Item, Trace};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os()
        .nth(1)
        .ok_or("usage: longest_loop FILE.btrace")?;
    let mut reader = Trace::open(path)?.reader()?;
    let mut counts = HashMap::new();
    while let Some(item) = reader.next_item()? {
        if let Item::Branches { branches, .. } = item {
            for branch in branches {
                *counts.entry(*branch).or_insert(0_u64) += 1;
            }
        }
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(branch, count)| (u64::MAX - count, branch.from, branch.to));
    for (branch, count) in counts.iter().take(10) {
        println!("{count:>12} {:x} -> {:x}", branch.from, branch.to);
    }
    Ok(())
}
