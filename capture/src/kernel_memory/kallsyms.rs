//! The symbols that a running kernel has of itself (kernel/kallsyms.c of Linux).
//!
//! A name is a sequence of tokens, the type of the symbol is the first character of it.

use vbts_symbols::{KernelFunction, is_function_type};

/// Number of tokens.
const TOKENS: usize = 256;
/// Length of a name at most, with its type (`KSYM_NAME_LEN`).
pub(super) const MAX_NAME: usize = 512;

/// A symbol: its type, as nm has it, its name and its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Symbol<'a> {
    pub kind: u8,
    pub name: &'a [u8],
    pub address: u64,
}

impl Symbol<'_> {
    /// The function that the symbol is of.
    pub(super) fn function(&self) -> Option<KernelFunction> {
        let is_function = is_function_type(self.kind) && !self.name.is_empty();
        is_function.then(|| KernelFunction {
            address: self.address,
            name: self.name.to_vec(),
        })
    }
}

/// The tables of a kernel. Each is followed by bytes that do not belong to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tables<'a> {
    /// The names, each with its length in tokens before it.
    pub names: &'a [u8],
    /// The tokens, each with a zero at its end.
    pub tokens: &'a [u8],
    /// Position of each token in `tokens`, as numbers of 16 bits.
    pub token_index: &'a [u8],
    /// The distance of each symbol from `base`, as numbers of 32 bits.
    pub offsets: &'a [u8],
    /// The address of the first symbol.
    pub base: u64,
    /// Number of symbols.
    pub count: usize,
}

impl Tables<'_> {
    /// Passes each symbol to `visit`. `None` if the tables do not fit each other.
    pub(super) fn symbols(&self, mut visit: impl FnMut(Symbol<'_>)) -> Option<()> {
        let tokens = self.tokens()?;
        let offsets = self.offsets.get(..self.count.checked_mul(4)?)?;
        let offsets: Vec<i32> = offsets
            .chunks_exact(4)
            .map(|bytes| i32::from_le_bytes(bytes.try_into().unwrap_or_default()))
            .collect();
        // With CONFIG_KALLSYMS_ABSOLUTE_PERCPU, an offset that is not negative is the address of
        // a variable of each processor.
        let is_signed = offsets.iter().any(|offset| *offset < 0);
        let mut names = self.names;
        for offset in offsets {
            let name = next_name(&mut names, &tokens)?;
            let Some((kind, name)) = name.split_first() else {
                continue;
            };
            let address = match is_signed {
                true if offset >= 0 => continue,
                true => self.base.wrapping_sub(1).wrapping_sub(offset as i64 as u64),
                false => self.base.wrapping_add(offset as u64),
            };
            visit(Symbol {
                kind: *kind,
                name,
                address,
            });
        }
        Some(())
    }

    fn tokens(&self) -> Option<Vec<&[u8]>> {
        let index = self.token_index.get(..2 * TOKENS)?;
        let starts = index.chunks_exact(2).map(|bytes| match bytes {
            [low, high] => usize::from(u16::from_le_bytes([*low, *high])),
            _ => 0,
        });
        starts
            .map(|start| self.tokens.get(start..)?.split(|byte| *byte == 0).next())
            .collect()
    }
}

/// Takes the next name from `names`, with its type.
fn next_name(names: &mut &[u8], tokens: &[&[u8]]) -> Option<Vec<u8>> {
    let mut take = |len: usize| {
        let (taken, rest) = names.split_at_checked(len)?;
        *names = rest;
        Some(taken)
    };
    let &[low] = take(1)? else {
        return None;
    };
    // Since Linux 6.1, a length of more than 127 has two bytes.
    let mut len = usize::from(low);
    if low & 0x80 != 0
        && let &[high] = take(1)?
    {
        len = usize::from(low & 0x7F) | usize::from(high) << 7;
    }
    let mut name = Vec::new();
    for token in take(len)? {
        let token = tokens.get(usize::from(*token))?;
        if name.len() + token.len() > MAX_NAME {
            return None;
        }
        name.extend_from_slice(token);
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables with a token for each printable character, and `"do_"` as token 1.
    fn tables(symbols: &[(i32, &[u8])]) -> (Vec<u8>, Vec<u8>, Vec<u8>, Vec<u8>) {
        let (mut tokens, mut index) = (Vec::new(), Vec::new());
        for token in 0..=255_u8 {
            index.extend_from_slice(&(tokens.len() as u16).to_le_bytes());
            match token {
                1 => tokens.extend_from_slice(b"do_"),
                _ if token.is_ascii_graphic() => tokens.push(token),
                _ => {}
            }
            tokens.push(0);
        }
        let (mut names, mut offsets) = (Vec::new(), Vec::new());
        for (offset, name) in symbols {
            offsets.extend_from_slice(&offset.to_le_bytes());
            match name.len() {
                len @ ..=127 => names.push(len as u8),
                len => names.extend_from_slice(&[len as u8 & 0x7F | 0x80, (len >> 7) as u8]),
            }
            names.extend_from_slice(name);
        }
        (names, tokens, index, offsets)
    }

    fn functions(base: u64, symbols: &[(i32, &[u8])]) -> Option<Vec<(u64, String)>> {
        let (names, tokens, token_index, offsets) = tables(symbols);
        let tables = Tables {
            names: &names,
            tokens: &tokens,
            token_index: &token_index,
            offsets: &offsets,
            base,
            count: symbols.len(),
        };
        let mut functions = Vec::new();
        tables.symbols(|symbol| functions.extend(symbol.function()))?;
        let functions = functions.into_iter();
        Some(
            functions
                .map(|f| (f.address, String::from_utf8(f.name).unwrap()))
                .collect(),
        )
    }

    #[test]
    fn names_are_sequences_of_tokens() {
        let long = [&b"t"[..], &[b'x'; 200]].concat();
        let found = functions(0x1000, &[(0, b"T\x01exit"), (8, b"Dvariable"), (16, &long)]);
        let expected = [(0x1000, "do_exit".into()), (0x1010, "x".repeat(200))];
        assert_eq!(found.unwrap(), expected);
    }

    #[test]
    fn offsets_below_zero_are_of_code_if_there_are_some() {
        let symbols: [(i32, &[u8]); 3] = [(-1, b"Tfirst"), (0x20, b"Aper_cpu"), (-0x41, b"tnext")];
        let expected = [(0x1000, "first".into()), (0x1040, "next".into())];
        assert_eq!(functions(0x1000, &symbols).unwrap(), expected);
    }

    #[test]
    fn tables_that_do_not_fit_have_no_symbols() {
        let (names, tokens, token_index, offsets) = tables(&[(0, b"Tname")]);
        let tables = Tables {
            names: &names,
            tokens: &tokens,
            token_index: &token_index,
            offsets: &offsets,
            base: 0,
            count: 1,
        };
        assert!(tables.symbols(|_| ()).is_some());
        for damaged in [
            Tables { count: 2, ..tables },
            Tables {
                count: usize::MAX,
                ..tables
            },
            Tables {
                names: &[200, 200],
                ..tables
            },
            Tables {
                tokens: &[],
                ..tables
            },
            Tables {
                token_index: &token_index[1..],
                ..tables
            },
        ] {
            assert!(damaged.symbols(|_| ()).is_none(), "{damaged:?}");
        }
    }
}
