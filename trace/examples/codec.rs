//! Measures the codec on a raw trace: `codec FILE`, in which each record has 24 bytes.

#![allow(clippy::print_stdout, reason = "it is a program")]

use std::io::Cursor;
use std::time::Instant;

use vbts_trace::{Branch, Error, Item, Reader, Run, Summary, Writer};

fn main() -> Result<(), Error> {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("usage: codec FILE");
        std::process::exit(2);
    };
    let bytes = std::fs::read(path)?;
    let word = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
    let branches: Vec<Branch> = bytes
        .as_chunks::<24>()
        .0
        .iter()
        .map(|record| record.as_chunks::<8>().0)
        .filter_map(|words| match words {
            [from, to, _] => Some((word(from), word(to))),
            _ => None,
        })
        .map(|(from, to)| Branch { from, to })
        .collect();
    let count = branches.len() as f64;

    let start = Instant::now();
    let mut writer = Writer::new(Vec::new(), &Run::default())?;
    writer.branches(0, &branches)?;
    writer.finish(&Summary::default())?;
    let encoding = start.elapsed();
    let file = std::mem::take(writer.output());

    let start = Instant::now();
    let mut reader = Reader::new(Cursor::new(&file))?;
    let mut same = branches.as_slice();
    let mut decoding = start.elapsed();
    loop {
        let start = Instant::now();
        let item = reader.next_item()?;
        decoding += start.elapsed();
        let Some(item) = item else { break };
        if let Item::Branches { branches, .. } = item {
            same = same.strip_prefix(branches).ok_or(Error::Damaged)?;
        }
    }
    if !same.is_empty() {
        return Err(Error::Damaged);
    }
    println!(
        "{count} records, {:.4} bytes each, encoded in {:.2} ns, decoded in {:.2} ns",
        file.len() as f64 / count,
        encoding.as_nanos() as f64 / count,
        decoding.as_nanos() as f64 / count
    );
    Ok(())
}
