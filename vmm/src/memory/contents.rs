//! The contents of guest memory as part of the state of a machine.

use serde::{Deserialize, Serialize};
use thiserror::Error;
use vm_memory::{Bytes, GuestAddress};

use super::{GuestMemory, PAGE, ZEROS, ranges};

/// The contents of guest memory, without its pages of zeros.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryContents {
    /// RAM as (guest-physical start, length), lowest first.
    ranges: Vec<(u64, u64)>,
    /// Disjoint, lowest first.
    runs: Vec<Run>,
}

/// Consecutive pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Run {
    /// Guest-physical.
    start: u64,
    #[serde(with = "serde_bytes")]
    bytes: Vec<u8>,
}

impl Run {
    fn end(&self) -> Option<u64> {
        self.start.checked_add(self.bytes.len() as u64)
    }
}

/// Why contents do not fit a guest memory.
#[derive(Debug, Error)]
pub enum ContentsError {
    /// The memory has another size or other holes.
    #[error("the saved machine had {saved} bytes of memory, and this one has {present}")]
    OtherMemory {
        /// Size of the saved memory in bytes.
        saved: u128,
        /// Size of the present memory in bytes.
        present: u128,
    },
    /// Pages are not in memory, not whole, or not in order.
    #[error("the saved pages at {0:#x} are not pages of guest memory in order")]
    Pages(u64),
    /// The memory cannot be accessed.
    #[error("Cannot access guest memory")]
    Access(#[from] vm_memory::GuestMemoryError),
}

impl MemoryContents {
    /// Copies the contents of `memory`, which no processor or device may change meanwhile.
    ///
    /// # Errors
    /// The memory cannot be read.
    pub fn save(memory: &GuestMemory) -> Result<Self, ContentsError> {
        let ranges = ranges(memory);
        let mut runs: Vec<Run> = Vec::new();
        let mut page = ZEROS;
        for address in pages(&ranges) {
            memory.read_slice(&mut page, GuestAddress(address))?;
            if page == ZEROS {
                continue;
            }
            match runs.last_mut() {
                Some(run) if run.end() == Some(address) => run.bytes.extend_from_slice(&page),
                _ => runs.push(Run {
                    start: address,
                    bytes: page.to_vec(),
                }),
            }
        }
        Ok(Self { ranges, runs })
    }

    /// Makes `memory` have these contents. Pages that have them already are not written.
    ///
    /// # Errors
    /// The contents are those of another memory, or the memory cannot be accessed. It is unchanged
    /// if the contents do not fit.
    pub fn restore(&self, memory: &GuestMemory) -> Result<(), ContentsError> {
        self.check(memory)?;
        let mut runs = self.runs.iter().peekable();
        let mut present = ZEROS;
        for address in pages(&self.ranges) {
            while runs.next_if(|run| run.end() <= Some(address)).is_some() {}
            let saved = runs.peek().and_then(|run| {
                let at = usize::try_from(address.checked_sub(run.start)?).ok()?;
                run.bytes.get(at..at + ZEROS.len())
            });
            let saved = saved.unwrap_or(&ZEROS);
            memory.read_slice(&mut present, GuestAddress(address))?;
            if saved != present {
                memory.write_slice(saved, GuestAddress(address))?;
            }
        }
        Ok(())
    }

    /// Checks that the contents fit `memory`.
    fn check(&self, memory: &GuestMemory) -> Result<(), ContentsError> {
        let present = ranges(memory);
        if self.ranges != present {
            let size = |ranges: &[(u64, u64)]| ranges.iter().map(|(_, len)| u128::from(*len)).sum();
            return Err(ContentsError::OtherMemory {
                saved: size(&self.ranges),
                present: size(&present),
            });
        }
        let mut lowest = 0;
        for run in &self.runs {
            let whole =
                run.start.is_multiple_of(PAGE) && run.bytes.len().is_multiple_of(ZEROS.len());
            let within = |end| {
                let range = |&(start, len): &(u64, u64)| run.start >= start && end <= start + len;
                present.iter().any(range)
            };
            match run.end() {
                Some(end) if whole && run.start >= lowest && within(end) => lowest = end,
                _ => return Err(ContentsError::Pages(run.start)),
            }
        }
        Ok(())
    }
}

/// The addresses of all pages in `ranges`.
pub(super) fn pages(ranges: &[(u64, u64)]) -> impl Iterator<Item = u64> {
    let pages = |&(start, len): &(u64, u64)| (start..start + len).step_by(ZEROS.len());
    ranges.iter().flat_map(pages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Size, allocate};

    fn memory() -> GuestMemory {
        allocate(Size(16 << 20)).unwrap()
    }

    #[test]
    fn contents_are_restored() {
        let saved = memory();
        for address in [0x1FFF, 0x2000, 0x5000, (16 << 20) - 1] {
            saved.write_obj(7u8, GuestAddress(address)).unwrap();
        }
        let contents = MemoryContents::save(&saved).unwrap();
        let starts: Vec<_> = contents.runs.iter().map(|run| run.start).collect();
        assert_eq!(starts, [0x1000, 0x5000, (16 << 20) - 0x1000]);
        assert_eq!(contents.runs[0].bytes.len(), 0x2000);

        let restored = memory();
        restored.write_obj(9u8, GuestAddress(0x3000)).unwrap();
        contents.restore(&restored).unwrap();
        assert_eq!(MemoryContents::save(&restored).unwrap(), contents);
        assert_eq!(restored.read_obj::<u8>(GuestAddress(0x3000)).unwrap(), 0);
    }

    #[test]
    fn other_memory_is_refused() {
        let contents = MemoryContents::save(&memory()).unwrap();
        let larger = allocate(Size(32 << 20)).unwrap();
        let error = contents.restore(&larger).unwrap_err().to_string();
        assert!(
            error.contains("16777216") && error.contains("33554432"),
            "{error}"
        );
    }

    #[test]
    fn impossible_pages_are_refused() {
        let run = |start, len| Run {
            start,
            bytes: vec![1; len],
        };
        for runs in [
            vec![run(1, 4096)],
            vec![run(0, 4095)],
            vec![run((16 << 20) - 4096, 8192)],
            vec![run(16 << 20, 4096)],
            vec![run(u64::MAX - 4095, 4096)],
            vec![run(0x1000, 8192), run(0x2000, 4096)],
            vec![run(0x2000, 4096), run(0x1000, 4096)],
        ] {
            let memory = memory();
            let contents = MemoryContents {
                runs,
                ..MemoryContents::save(&memory).unwrap()
            };
            let error = contents.restore(&memory).unwrap_err();
            assert!(matches!(error, ContentsError::Pages(_)), "{error}");
        }
    }
}
