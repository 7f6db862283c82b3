//! Measures the codec on a raw trace: `codec FILE [RECORDS]`, in which each record has 24 bytes.
//! The fastest pass counts: the first one also gets memory from the system. Beside it, zstd
//! compresses raw records.

#![allow(clippy::print_stdout, reason = "it is a program")]

use std::io::{Cursor, Read};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use vbts_trace::{Branch, Error, Item, Reader, Run, Summary, Writer};

/// Times that all branches are encoded and decoded.
const PASSES: usize = 5;
/// Raw records that zstd compresses.
const RECORDS_FAST: usize = 2_000_000;
const RECORDS_SLOW: usize = 500_000;

/// Time for which this thread has been on a processor.
fn now() -> Result<Duration, Error> {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).map_err(|_| Error::Damaged)
}

/// Encodes and decodes branches. Returns the file, and the times that it took.
fn pass(branches: &[Branch]) -> Result<(Vec<u8>, Duration, Duration), Error> {
    let start = now()?;
    let mut writer = Writer::new(Vec::new(), &Run::default())?;
    writer.branches(0, branches)?;
    writer.finish(&Summary::default())?;
    let encoding = now()? - start;
    let file = std::mem::take(writer.output());

    let start = now()?;
    let mut reader = Reader::new(Cursor::new(&file))?;
    let mut decoded = 0;
    while let Some(item) = reader.next_item()? {
        if let Item::Branches { branches, .. } = item {
            decoded += branches.len();
        }
    }
    let decoding = now()? - start;
    if decoded != branches.len() {
        return Err(Error::Damaged);
    }
    Ok((file, encoding, decoding))
}

fn main() -> Result<(), Error> {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("usage: codec FILE [RECORDS]");
        std::process::exit(2);
    };
    let most = std::env::args()
        .nth(2)
        .and_then(|records| records.parse().ok());
    let mut bytes = Vec::new();
    let most = most.unwrap_or(u64::MAX).saturating_mul(24);
    std::fs::File::open(path)?
        .take(most)
        .read_to_end(&mut bytes)?;
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

    let (file, mut encoding, mut decoding) = pass(&branches)?;
    for _ in 1..PASSES {
        let times = pass(&branches)?;
        (encoding, decoding) = (encoding.min(times.1), decoding.min(times.2));
    }
    let mut reader = Reader::new(Cursor::new(&file))?;
    let mut same = branches.as_slice();
    while let Some(item) = reader.next_item()? {
        if let Item::Branches { branches, .. } = item {
            same = same.strip_prefix(branches).ok_or(Error::Damaged)?;
        }
    }
    if !same.is_empty() {
        return Err(Error::Damaged);
    }
    let show = |way: &str, records: f64, size: usize, encoding: Duration, decoding: Duration| {
        println!(
            "{way}: {:.4} bytes a record, encoded in {:.2} ns, decoded in {:.2} ns",
            size as f64 / records,
            encoding.as_nanos() as f64 / records,
            decoding.as_nanos() as f64 / records
        );
    };
    show("btrace", count, file.len(), encoding, decoding);
    for (level, records) in [(1, RECORDS_FAST), (19, RECORDS_SLOW)] {
        // From the middle: a program begins with what it does only once.
        let begin = (bytes.len() / 24).saturating_sub(records) / 2 * 24;
        let end = bytes.len().min(begin + records * 24);
        let part = bytes.get(begin..end).unwrap_or_default();
        let start = now()?;
        let packed = zstd::bulk::compress(part, level)?;
        let encoded = now()?;
        let unpacked = zstd::bulk::decompress(&packed, part.len())?;
        let (encoding, decoding) = (encoded - start, now()? - encoded);
        let count = (unpacked.len() / 24) as f64;
        let way = format!("zstd -{level}");
        show(&way, count, packed.len(), encoding, decoding);
    }
    Ok(())
}
