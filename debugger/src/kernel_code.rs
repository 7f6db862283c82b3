//! The code in the file of the guest's kernel.

use object::{File, Object as _, ObjectSection as _, SectionKind};

/// The INT3 instruction. The kernel fills memory of code that it has freed with it
/// (POISON_FREE_INITMEM), and writes it into code that it changes or traces.
const INT3: u8 = 0xCC;

/// The sections of the file with code.
#[derive(Debug, Default)]
pub(crate) struct KernelCode(Vec<(u64, Vec<u8>)>);

impl KernelCode {
    /// The code of the kernel `image`. There is none if that is no ELF file.
    pub(crate) fn of(image: &[u8]) -> Self {
        let Ok(file) = File::parse(image) else {
            return Self::default();
        };
        let sections = file.sections().filter(|section| {
            let is_loaded = section.address() != 0;
            is_loaded && section.kind() == SectionKind::Text
        });
        let code = sections.filter_map(|section| {
            let data = section.data().ok()?;
            Some((section.address(), data.to_vec()))
        });
        Self(code.collect())
    }

    /// The code from `address` on; empty if there is none.
    pub(crate) fn at(&self, address: u64) -> &[u8] {
        let mut sections = self.0.iter();
        let found = sections.find_map(|(start, code)| {
            let offset = usize::try_from(address.checked_sub(*start)?).ok()?;
            code.get(offset..).filter(|code| !code.is_empty())
        });
        found.unwrap_or_default()
    }

    /// Replaces each INT3 in `memory`, which was read at `address`, by the byte of the file: GDB
    /// takes a breakpoint at an INT3 for one of the program, and does not let it execute.
    pub(crate) fn hide_int3(&self, address: u64, memory: &mut [u8]) {
        for (start, code) in &self.0 {
            // The parts of both that are at the same addresses.
            let skipped = usize::try_from(start.saturating_sub(address));
            let offset = usize::try_from(address.saturating_sub(*start));
            let memory = skipped.ok().and_then(|skipped| memory.get_mut(skipped..));
            let code = offset.ok().and_then(|offset| code.get(offset..));
            let pairs = memory.into_iter().flatten().zip(code.into_iter().flatten());
            for (byte, code) in pairs.filter(|(byte, _)| **byte == INT3) {
                *byte = *code;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_found_by_its_address() {
        let code = KernelCode(vec![(0x1000, vec![1, 2]), (0x3000, vec![3])]);
        assert_eq!(code.at(0x1001), [2]);
        assert_eq!(code.at(0x3000), [3]);
        for none in [0xFFF, 0x1002, 0x3001] {
            assert!(code.at(none).is_empty());
        }
        assert!(KernelCode::of(b"other").0.is_empty());
    }

    #[test]
    fn int3_in_code_is_hidden() {
        let code = KernelCode(vec![(0x1000, vec![1, 2, 3]), (0x1004, vec![4])]);
        let read = |address| {
            let mut memory = [INT3, 9, INT3, INT3, INT3];
            code.hide_int3(address, &mut memory);
            memory
        };
        assert_eq!(read(0x1000), [1, 9, 3, INT3, 4]);
        assert_eq!(read(0xFFE), [INT3, 9, 1, 2, 3]);
        assert_eq!(read(0x1002), [3, 9, 4, INT3, INT3]);
        for address in [0, 0x1005, u64::MAX] {
            assert_eq!(read(address), [INT3, 9, INT3, INT3, INT3]);
        }
    }
}
