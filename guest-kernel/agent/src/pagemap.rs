//! The guest-physical addresses of the agent's memory
//! (Documentation/admin-guide/mm/pagemap.rst).

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;

use vbts_protocol::{ErrorKind, Extent, Extents};

use crate::failure::Failure;

const PATH: &str = "/proc/self/pagemap";
/// Bytes of a page.
pub const PAGE: usize = 4096;
/// The page is in memory, and its frame number is in the low bits.
const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;

/// The page frames of consecutive pages: runs of adjacent ones, because there are few of those and
/// many pages.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Frames(Vec<Run>);

/// Pages in adjacent page frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    /// Offset in bytes of the first page from the first page of all.
    start: usize,
    /// Offset in bytes of what follows.
    end: usize,
    /// Guest-physical address of the first page.
    address: u64,
}

impl FromIterator<u64> for Frames {
    fn from_iter<T: IntoIterator<Item = u64>>(frames: T) -> Self {
        let mut runs: Vec<Run> = Vec::new();
        for (n, frame) in frames.into_iter().enumerate() {
            let (start, address) = (n * PAGE, frame * PAGE as u64);
            match runs.last_mut() {
                Some(run) if run.address + (run.end - run.start) as u64 == address => {
                    run.end += PAGE;
                }
                _ => runs.push(Run {
                    start,
                    end: start + PAGE,
                    address,
                }),
            }
        }
        Self(runs)
    }
}

/// `/proc/self/pagemap`.
#[derive(Debug)]
pub struct PageMap(File);

impl PageMap {
    /// Opens the file.
    pub fn open() -> Result<Self, Failure> {
        File::open(PATH).map(Self).map_err(|error| {
            Failure::os(
                ErrorKind::Trace,
                format_args!("{PATH} (the guest's kernel needs CONFIG_PROC_PAGE_MONITOR)"),
                error,
            )
        })
    }

    /// Brings all pages of `bytes` into memory and returns the page frame of each.
    pub fn frames(&self, bytes: &[u8]) -> Result<Frames, Failure> {
        let start = bytes.as_ptr().addr();
        let (first, end) = (start / PAGE, (start + bytes.len()).div_ceil(PAGE));
        let mut words = vec![0; (end - first) * size_of::<u64>()];
        loop {
            self.0
                .read_exact_at(&mut words, (first * size_of::<u64>()) as u64)
                .map_err(|error| Failure::os(ErrorKind::Internal, PATH, error))?;
            let words = words
                .as_chunks()
                .0
                .iter()
                .map(|word| u64::from_le_bytes(*word));
            if words.clone().all(|word| word & PRESENT != 0) {
                return Ok(words.map(|word| word & FRAME).collect());
            }
            bytes.iter().step_by(PAGE).for_each(|byte| {
                black_box(*byte);
            });
            black_box(bytes.last());
        }
    }
}

/// Returns the extents, in the form of [`Extents`], of `left` bytes from offset `at` on in pages
/// with these `frames`.
pub fn extents(frames: &Frames, mut at: usize, mut left: usize) -> Vec<u8> {
    let mut list = Vec::new();
    let first = frames.0.partition_point(|run| run.end <= at);
    for run in &frames.0[first..] {
        if left == 0 {
            break;
        }
        let len = left.min(run.end - at);
        let extent = Extent {
            address: run.address + (at - run.start) as u64,
            len: len as u64,
        };
        Extents::push(&mut list, extent);
        (at, left) = (run.end, left - len);
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_pages_are_one_extent() {
        let page = PAGE as u64;
        let frames = Frames::from_iter([7, 8, 3, 4, 5]);
        for (start, left, expected) in [
            // 16384 is not a multiple of the size of a record.
            (100, 4 * PAGE, vec![]),
            (
                100,
                4 * PAGE - 16,
                vec![(7 * page + 100, 2 * page - 100), (3 * page, 2 * page + 84)],
            ),
            (2 * PAGE, 48, vec![(3 * page, 48)]),
            (5 * PAGE, 0, vec![]),
        ] {
            let list = extents(&frames, start, left);
            let found: Vec<(u64, u64)> = Extents::new(&list)
                .map(|list| list.iter().map(|e| (e.address, e.len)).collect())
                .unwrap_or_default();
            assert_eq!(found, expected);
        }
    }
}
