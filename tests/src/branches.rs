//! Sequences of branches: reading them from a raw trace, and saying where two of them part.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use object::{Object, ObjectSymbol, SymbolKind};

/// A taken branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    /// Address of the branch instruction.
    pub from: u64,
    /// Address of its target.
    pub to: u64,
}

impl Branch {
    /// Whether both ends are user addresses.
    #[must_use]
    pub const fn is_user(&self) -> bool {
        (self.from | self.to) >> 63 == 0
    }
}

/// Size of a record of `--format raw`: from, to, flags.
const RAW_RECORD: usize = 24;

/// Reads the output of `--format raw`.
///
/// # Errors
/// If it is not a whole number of records.
pub fn parse_raw(bytes: &[u8]) -> Result<Vec<Branch>> {
    let (records, rest) = bytes.as_chunks::<RAW_RECORD>();
    ensure!(
        rest.is_empty(),
        "{} bytes are not a multiple of {RAW_RECORD}",
        bytes.len()
    );
    let word = |record: &[u8; RAW_RECORD], at: usize| {
        record
            .iter()
            .skip(at)
            .take(8)
            .rev()
            .fold(0, |word, &byte| word << 8 | u64::from(byte))
    };
    Ok(records
        .iter()
        .map(|record| Branch {
            from: word(record, 0),
            to: word(record, 8),
        })
        .collect())
}

/// Writes what [`parse_raw`] reads.
#[must_use]
pub fn to_raw(branches: &[Branch]) -> Vec<u8> {
    branches
        .iter()
        .flat_map(|branch| [branch.from, branch.to, 0])
        .flat_map(u64::to_le_bytes)
        .collect()
}

/// The address of the symbol `name` of the ELF file at `path`.
///
/// # Errors
/// If the file cannot be read, is no object file or has no such symbol.
pub fn symbol(path: &Path, name: &str) -> Result<u64> {
    let data = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
    let file = object::File::parse(&*data)?;
    let symbol = file.symbol_by_name(name);
    Ok(symbol.with_context(|| format!("no {name}"))?.address())
}

/// The functions of a program, to name addresses.
#[derive(Debug, Default)]
pub struct Symbols {
    /// By address.
    functions: Vec<(u64, String)>,
}

impl Symbols {
    /// Reads the symbol table of an ELF file.
    ///
    /// # Errors
    /// If the file cannot be read or is not an object file.
    pub fn read(path: &Path) -> Result<Self> {
        let data =
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let file = object::File::parse(&*data)
            .with_context(|| format!("{} is no object file", path.display()))?;
        let mut functions: Vec<_> = file
            .symbols()
            .filter(|symbol| symbol.kind() == SymbolKind::Text)
            .filter_map(|symbol| Some((symbol.address(), symbol.name().ok()?.to_owned())))
            .collect();
        functions.sort();
        Ok(Self { functions })
    }

    /// `function+0xoffset`, or the bare address.
    #[must_use]
    pub fn name(&self, address: u64) -> String {
        let after = self
            .functions
            .partition_point(|&(start, _)| start <= address);
        match after.checked_sub(1).and_then(|at| self.functions.get(at)) {
            Some((start, name)) if address - start < 0x1_0000 => {
                format!("{address:#x} {name}+{:#x}", address - start)
            }
            _ => format!("{address:#x}"),
        }
    }
}

/// Branches shown on each side of the first difference.
const CONTEXT: usize = 5;

/// Where two traces part, with the branches around, or `None` if they are equal.
#[must_use]
pub fn first_difference(expected: &[Branch], got: &[Branch], symbols: &Symbols) -> Option<String> {
    if expected == got {
        return None;
    }
    let at = expected.iter().zip(got).take_while(|(a, b)| a == b).count();
    let mut text = format!(
        "the traces differ from record {at} on ({} expected, {} got)\n",
        expected.len(),
        got.len()
    );
    let show = |branch: &Branch| {
        format!(
            "{} -> {}",
            symbols.name(branch.from),
            symbols.name(branch.to)
        )
    };
    for (n, branch) in expected
        .iter()
        .enumerate()
        .take(at)
        .skip(at.saturating_sub(CONTEXT))
    {
        let _ = writeln!(text, "  {n:6} both      {}", show(branch));
    }
    for (who, branches) in [("expected", expected), ("got     ", got)] {
        for n in at..at + CONTEXT {
            let shown = branches
                .get(n)
                .map_or_else(|| "(end of the trace)".to_owned(), show);
            let _ = writeln!(text, "  {n:6} {who}  {shown}");
            if n >= branches.len() {
                break;
            }
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn branch(from: u64, to: u64) -> Branch {
        Branch { from, to }
    }

    #[test]
    fn raw_records() {
        let mut bytes = Vec::new();
        for word in [1u64, 2, 16, 0xFFFF_FFFF_8100_0000, 4, 0] {
            bytes.extend(word.to_le_bytes());
        }
        let branches = parse_raw(&bytes).unwrap();
        assert_eq!(branches, [branch(1, 2), branch(0xFFFF_FFFF_8100_0000, 4)]);
        assert!(branches[0].is_user() && !branches[1].is_user());
        assert!(parse_raw(&bytes[1..]).is_err());
    }

    #[test]
    fn difference_names_the_place() {
        let symbols = Symbols {
            functions: vec![(0x1000, "main".into()), (0x1100, "loop".into())],
        };
        let expected: Vec<Branch> = (0..20).map(|n| branch(0x1000 + n, 0x1100)).collect();
        assert_eq!(first_difference(&expected, &expected, &symbols), None);

        let mut got = expected.clone();
        got[10].to = 0x1104;
        let text = first_difference(&expected, &got, &symbols).unwrap();
        assert!(
            text.starts_with("the traces differ from record 10 on (20 expected, 20 got)"),
            "{text}"
        );
        assert!(
            text.contains("10 expected  0x100a main+0xa -> 0x1100 loop+0x0"),
            "{text}"
        );
        assert!(
            text.contains("10 got       0x100a main+0xa -> 0x1104 loop+0x4"),
            "{text}"
        );

        got.truncate(10);
        let text = first_difference(&expected, &got, &symbols).unwrap();
        assert!(text.contains("10 got       (end of the trace)"), "{text}");
    }
}
