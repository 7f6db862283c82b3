//! Lists of a kernel's symbols as text: `System.map`, which a kernel's build makes, and
//! `/proc/kallsyms`.

use thiserror::Error;

use crate::kernel_image::{KernelFunction, KernelImage, is_function_type};

/// Addresses of 64-bit kernels are higher than this one.
const MAX_32: u64 = u32::MAX as u64;

/// Why a list of symbols cannot be used.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum SystemMapError {
    /// A line is no symbol.
    #[error("line {0} is not an address, a type and a name")]
    Line(usize),
    /// No symbol is code.
    #[error("it has no function")]
    Empty,
    /// The kernel has hidden the addresses from the reader of its file.
    #[error("all addresses are 0: root reads /proc/kallsyms with addresses")]
    Hidden,
}

/// The kernel whose symbols `text` lists, without its code.
///
/// # Errors
/// The text is no such list.
pub fn parse(text: &[u8]) -> Result<KernelImage, SystemMapError> {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let mut functions = Vec::new();
    for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let (address, kind, name) = symbol(line).ok_or(SystemMapError::Line(number + 1))?;
        if matches!(kind.as_bytes(), [kind] if is_function_type(*kind)) {
            functions.push(KernelFunction {
                address,
                name: name.into(),
            });
        }
    }
    let start = functions.iter().map(|function| function.address).min();
    match functions.iter().map(|function| function.address).max() {
        None => Err(SystemMapError::Empty),
        Some(0) => Err(SystemMapError::Hidden),
        Some(last) => Ok(KernelImage {
            is_64_bit: last > MAX_32,
            functions,
            code: vec![(start.unwrap_or_default(), Vec::new())],
        }),
    }
}

/// Address, type and name of a line. The name of a module that may follow is left out.
fn symbol(line: &[u8]) -> Option<(u64, &str, &str)> {
    let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    Some((address, words.next()?, words.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_both_lists_are_found() {
        let text = b"0000000000000000 A fixed_percpu_data\n\
            ffffffff81000000 T _stext\n\
            ffffffff82000000 D data\n\
            ffffffffc0000010 t helper\t[module]\n";
        let image = parse(text).unwrap();
        assert!(image.is_64_bit);
        let found: Vec<_> = image
            .functions
            .iter()
            .map(|f| (f.address, &f.name[..]))
            .collect();
        let expected: [(u64, &[u8]); 2] = [
            (0xFFFF_FFFF_8100_0000, b"_stext"),
            (0xFFFF_FFFF_C000_0010, b"helper"),
        ];
        assert_eq!(found, expected);
        assert!(!parse(b"c1000000 T _stext").unwrap().is_64_bit);
    }

    #[test]
    fn other_texts_are_refused() {
        let cases: [(&[u8], _); 4] = [
            (b"", SystemMapError::Line(1)),
            (b"c1000000 T a\nELF\n", SystemMapError::Line(2)),
            (b"c1000000 D data\n", SystemMapError::Empty),
            (b"0000000000000000 T _stext\n", SystemMapError::Hidden),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text).unwrap_err(), expected);
        }
    }
}
