//! The code in the file of the guest's kernel.

use object::{File, Object as _, ObjectSection as _, SectionKind};

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
}
