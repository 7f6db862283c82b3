//! The guest-physical addresses of the agent's memory, and the pages of files that a process has
//! written (Documentation/admin-guide/mm/pagemap.rst).

use std::fs::File;
use std::hint::black_box;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use vbts_protocol::{ErrorKind, Extent, Extents};

use crate::failure::Failure;

const PATH: &str = "/proc/self/pagemap";
/// Bytes of a page.
pub const PAGE: usize = 4096;
/// The page is in memory, and its frame number is in the low bits.
const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;
/// The page is on a swap device.
const SWAPPED: u64 = 1 << 62;
/// The page is that of a file, or shared.
const OF_FILE: u64 = 1 << 61;
/// Pages of a mapping that are looked at, at most. A sparse file can have any number.
const MAX_PAGES: usize = 1 << 18;

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

/// The private copies of pages that a process has made by writing to them, at `addresses` of a
/// mapping of a file. `map` is the process's `/proc/PID/pagemap`.
pub fn written_pages(map: &File, addresses: Range<u64>) -> Vec<Range<u64>> {
    let page = PAGE as u64;
    let pages = (addresses.end - addresses.start) / page;
    let pages = usize::try_from(pages).map_or(MAX_PAGES, |pages| pages.min(MAX_PAGES));
    let mut words = vec![0; pages * size_of::<u64>()];
    let at = addresses.start / page * size_of::<u64>() as u64;
    if map.read_exact_at(&mut words, at).is_err() {
        return Vec::new();
    }
    let words = words.as_chunks().0.iter();
    let mut written: Vec<Range<u64>> = Vec::new();
    for (start, word) in (addresses.start..).step_by(PAGE).zip(words) {
        let word = u64::from_le_bytes(*word);
        if word & (PRESENT | SWAPPED) == 0 || word & OF_FILE != 0 {
            continue;
        }
        match written.last_mut() {
            Some(last) if last.end == start => last.end += page,
            _ => written.push(start..start + page),
        }
    }
    written
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
    fn written_pages_of_a_file_are_found() {
        use std::io::{Seek as _, Write as _};

        let page = PAGE as u64;
        let file = std::env::temp_dir().join(format!("vbts-agent-pagemap-{}", std::process::id()));
        let mut map = File::options()
            .create_new(true)
            .read(true)
            .write(true)
            .open(&file)
            .unwrap();
        std::fs::remove_file(&file).unwrap();
        map.seek(std::io::SeekFrom::Start(3 * 8)).unwrap();
        // Nothing, of the file, private, private and swapped, of the file, private.
        for word in [
            0,
            PRESENT | OF_FILE,
            PRESENT,
            SWAPPED,
            OF_FILE | SWAPPED,
            PRESENT | 7,
        ] {
            map.write_all(&word.to_le_bytes()).unwrap();
        }
        let found = written_pages(&map, 3 * page..9 * page);
        assert_eq!(found, [5 * page..7 * page, 8 * page..9 * page]);
        assert_eq!(written_pages(&map, 3 * page..10 * page), []);
    }

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
