//! The format of a trace for people.

use std::io::Write as _;

use super::format::{Format, Record, Records, Summary, push_decimal, push_hex_digits};
use super::symbols::Symbolizer;

/// Hexadecimal digits of a user-mode address.
const ADDRESS_DIGITS: u32 = 12;

/// One branch a line: from and to, each with an address and a label.
#[derive(Debug)]
pub struct Text {
    symbols: Symbolizer,
    /// The process of the last records.
    pid: Option<u32>,
}

impl Text {
    /// An empty trace, with the labels of `symbols`.
    pub fn new(symbols: Symbolizer) -> Self {
        Self { symbols, pid: None }
    }

    fn place(&mut self, pid: u32, address: u64, out: &mut Vec<u8>) {
        let digits = if address >> (ADDRESS_DIGITS * 4) == 0 {
            ADDRESS_DIGITS
        } else {
            16
        };
        push_hex_digits(out, address, digits);
        let label = self.symbols.label(pid, address);
        if !label.is_empty() {
            out.push(b' ');
            out.extend_from_slice(label.as_bytes());
        }
    }
}

impl Format for Text {
    fn records(&mut self, pid: u32, records: Records<'_>, out: &mut Vec<u8>) {
        if self.pid.is_some_and(|last| last != pid) {
            out.extend_from_slice(b"[process ");
            push_decimal(out, pid.into());
            out.extend_from_slice(b"]\n");
        }
        self.pid = Some(pid);
        for record in records.iter() {
            match record {
                Record::Branch { from, to } => {
                    self.place(pid, from, out);
                    out.extend_from_slice(b" -> ");
                    self.place(pid, to, out);
                }
                Record::Arrive { jiffies } => {
                    out.extend_from_slice(b"arrives at jiffy ");
                    push_decimal(out, jiffies);
                }
                Record::Depart { jiffies } => {
                    out.extend_from_slice(b"departs at jiffy ");
                    push_decimal(out, jiffies);
                }
                Record::Invalid => continue,
            }
            out.push(b'\n');
        }
    }

    fn maps(&mut self, pid: u32, text: &[u8]) {
        self.symbols.set_maps(pid, text);
    }

    fn summary(&mut self, s: &Summary, out: &mut Vec<u8>) {
        // Writing to a `Vec` does not fail.
        let _ = writeln!(out, "{s}");
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let least = if self.lost_more { "at least " } else { "" };
        write!(
            f,
            "records: {}, lost: {least}{}, exit: {}",
            self.records, self.lost, self.exit
        )?;
        match self.untraced {
            0 => Ok(()),
            n => write!(f, ", processes and threads not traced: {n}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Root;
    use crate::trace::format::tests::records;
    use std::path::Path;
    use vbts_protocol::Scope;

    #[test]
    fn a_branch_is_a_line() {
        let root = Root::open(Path::new("/")).unwrap();
        let mut text = Text::new(Symbolizer::new(root, Path::new("/")));
        text.maps(
            1,
            b"401000-402000 r-xp 00001000 00:00 0 /nonexistent/prog\n",
        );
        let mut out = Vec::new();
        text.records(
            1,
            Records::new(
                &records(&[[1, 0x40_1000, 0x5000], [3, 42, 0], [0, 0, 0]]),
                Scope::User,
            ),
            &mut out,
        );
        text.records(
            2,
            Records::new(
                &records(&[[1, u64::MAX, 0x40_1000], [1, 0x6000, u64::MAX]]),
                Scope::User,
            ),
            &mut out,
        );
        text.summary(
            &Summary {
                records: 2,
                exit: 3,
                ..Summary::default()
            },
            &mut out,
        );
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "000000401000 prog+0x1000 -> 000000005000\n\
             departs at jiffy 42\n\
             [process 2]\n\
             000000006000 -> ffffffffffffffff [kernel]\n\
             records: 2, lost: 0, exit: 3\n"
        );
    }

    #[test]
    fn kernel_addresses_are_labelled() {
        let root = Root::open(Path::new("/")).unwrap();
        let mut text = Text::new(Symbolizer::new(root, Path::new("/")));
        let (user, kernel) = (0x40_1000, 0xFFFF_FFFF_8100_0000);
        let mut out = Vec::new();
        text.records(
            1,
            Records::new(
                &records(&[[1, user, kernel], [1, kernel, kernel], [1, kernel, user]]),
                Scope::All,
            ),
            &mut out,
        );
        text.summary(
            &Summary {
                lost: 1,
                lost_more: true,
                untraced: 3,
                ..Summary::default()
            },
            &mut out,
        );
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "000000401000 -> ffffffff81000000 [kernel]\n\
             ffffffff81000000 [kernel] -> ffffffff81000000 [kernel]\n\
             ffffffff81000000 [kernel] -> 000000401000\n\
             records: 0, lost: at least 1, exit: 0, processes and threads not traced: 3\n"
        );
    }
}
