//! Records, and the formats of a trace that machines read.

use crate::accel::Accel;
use vbts_protocol::{RECORD_SIZE, Scope};

/// `enum bts_qualifier` of the kernel's `struct bts_struct`.
mod qualifier {
    pub const BRANCH: u64 = 1;
    pub const ARRIVES: u64 = 2;
    pub const DEPARTS: u64 = 3;
}

/// One record of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// A taken branch.
    Branch {
        /// Address of the branch instruction.
        from: u64,
        /// Address of its target.
        to: u64,
    },
    /// The task was scheduled on a processor.
    Arrive {
        /// The kernel's time in jiffies.
        jiffies: u64,
    },
    /// The task was descheduled.
    Depart {
        /// The kernel's time in jiffies.
        jiffies: u64,
    },
    /// The kernel has marked the record invalid.
    Invalid,
}

/// Returns whether a record is a return from the kernel to the program.
///
/// The processor filters by the privilege level after the branch, so it records returns. They are
/// no branches of the program, and their number depends on interrupts, page faults and the size of
/// the trace buffer.
fn is_return_from_kernel(record: &[u8; RECORD_SIZE]) -> bool {
    // The second word is `from`; it is in the upper half of the address space.
    record[15] >= 0x80 && record[..8] == qualifier::BRANCH.to_le_bytes()
}

/// Records in the format of the guest's kernel.
#[derive(Debug, Clone, Copy)]
pub struct Records<'a> {
    records: &'a [[u8; RECORD_SIZE]],
    /// Returns from the kernel are left out.
    program_only: bool,
}

impl<'a> Records<'a> {
    /// The complete records in `bytes` that belong to `scope`.
    pub fn new(bytes: &'a [u8], scope: Scope) -> Self {
        Self {
            records: bytes.as_chunks().0,
            program_only: scope == Scope::User,
        }
    }

    /// The records, oldest first.
    pub fn iter(self) -> impl Iterator<Item = Record> + 'a {
        let records = self.records.iter();
        records
            .filter(move |record| !(self.program_only && is_return_from_kernel(record)))
            .map(|record| {
                let word = |i: usize| {
                    let mut bytes = [0; 8];
                    bytes.copy_from_slice(&record[i * 8..i * 8 + 8]);
                    u64::from_le_bytes(bytes)
                };
                match word(0) {
                    qualifier::BRANCH => Record::Branch {
                        from: word(1),
                        to: word(2),
                    },
                    qualifier::ARRIVES => Record::Arrive { jiffies: word(1) },
                    qualifier::DEPARTS => Record::Depart { jiffies: word(1) },
                    _ => Record::Invalid,
                }
            })
    }
}

/// The numbers at the end of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Number of branches.
    pub records: u64,
    /// Number of records that are missing.
    pub lost: u64,
    /// More than `lost` may be missing: the guest's kernel does not count them.
    pub lost_more: bool,
    /// Number of processes and threads that the program's task has started. They are not traced.
    pub untraced: u64,
    /// Exit status of the program, 128+n if signal n killed it.
    pub exit: u8,
}

/// Formats records.
pub trait Format: Send {
    /// Appends the records of process `pid` to `out`. They take at most [`PIECE`] bytes.
    fn records(&mut self, pid: u32, records: Records<'_>, out: &mut Vec<u8>);
    /// Sets the mappings of process `pid` for the records that follow; `text` is that of
    /// `/proc/PID/maps`.
    fn maps(&mut self, pid: u32, text: &[u8]) {
        let _ = (pid, text);
    }
    /// Appends the end of the trace to `out`.
    fn summary(&mut self, _summary: &Summary, _out: &mut Vec<u8>) {}
}

/// Bytes of records that are formatted at a time, which bounds the memory for their text.
pub const PIECE: usize = RECORD_SIZE * 4096;

/// Only 24-byte little-endian records {from, to, flags}.
#[derive(Debug, Default)]
pub struct Raw;

impl Format for Raw {
    fn records(&mut self, _pid: u32, records: Records<'_>, out: &mut Vec<u8>) {
        for record in records.iter() {
            if let Record::Branch { from, to } = record {
                let mut bytes = [0; RECORD_SIZE];
                bytes[..8].copy_from_slice(&from.to_le_bytes());
                bytes[8..16].copy_from_slice(&to.to_le_bytes());
                out.extend_from_slice(&bytes);
            }
        }
    }
}

/// One JSON object a line.
#[derive(Debug)]
pub struct Json {
    accel: Accel,
    /// The program's process. Records of other processes have a process ID.
    main: Option<u32>,
}

impl Json {
    /// An empty trace of a guest on `accel`.
    pub fn new(accel: Accel) -> Self {
        Self { accel, main: None }
    }
}

impl Format for Json {
    fn records(&mut self, pid: u32, records: Records<'_>, out: &mut Vec<u8>) {
        let main = *self.main.get_or_insert(pid);
        for record in records.iter() {
            let (kind, jiffies) = match record {
                Record::Branch { from, to } => {
                    out.extend_from_slice(b"{\"kind\":\"branch\",\"from\":\"0x");
                    push_hex(out, from);
                    out.extend_from_slice(b"\",\"to\":\"0x");
                    push_hex(out, to);
                    out.push(b'"');
                    (None, 0)
                }
                Record::Arrive { jiffies } => (Some("arrive"), jiffies),
                Record::Depart { jiffies } => (Some("depart"), jiffies),
                Record::Invalid => continue,
            };
            if let Some(kind) = kind {
                out.extend_from_slice(b"{\"kind\":\"");
                out.extend_from_slice(kind.as_bytes());
                out.extend_from_slice(b"\",\"jiffies\":");
                push_decimal(out, jiffies);
            }
            if pid != main {
                out.extend_from_slice(b",\"pid\":");
                push_decimal(out, pid.into());
            }
            out.extend_from_slice(b"}\n");
        }
    }

    fn summary(&mut self, s: &Summary, out: &mut Vec<u8>) {
        let more = if s.lost_more {
            ",\"lost_at_least\":true"
        } else {
            ""
        };
        let untraced = match s.untraced {
            0 => String::new(),
            n => format!(",\"untraced\":{n}"),
        };
        let line = format!(
            "{{\"kind\":\"summary\",\"records\":{},\"lost\":{}{more}{untraced},\
             \"exit\":{},\"accel\":\"{}\"}}\n",
            s.records, s.lost, s.exit, self.accel
        );
        out.extend_from_slice(line.as_bytes());
    }
}

/// Appends `value` in hexadecimal without leading zeros. `itoa` has decimal only, and two addresses
/// a branch are too many for `format!`.
pub fn push_hex(out: &mut Vec<u8>, value: u64) {
    let digits = (u64::BITS - value.leading_zeros()).div_ceil(4).max(1);
    push_hex_digits(out, value, digits);
}

/// Appends the low `digits` hexadecimal digits of `value`, at most 16.
pub fn push_hex_digits(out: &mut Vec<u8>, value: u64, digits: u32) {
    let mut text = [0; 16];
    for (i, digit) in text.iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(value >> (60 - 4 * i)) as usize & 15];
    }
    out.extend_from_slice(&text[16 - digits.min(16) as usize..]);
}

/// Appends `value` in decimal.
pub fn push_decimal(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Records in the format of the kernel.
    pub(crate) fn records(words: &[[u64; 3]]) -> Vec<u8> {
        words
            .iter()
            .flatten()
            .flat_map(|w| w.to_le_bytes())
            .collect()
    }

    const SAMPLE: &[[u64; 3]] = &[
        [2, 4_294_937_296, 0],
        [1, 0x40_1000, 0xFFFF_8000_0000_0000],
        [0, 1, 2],
        [3, 7, 0],
        [1, 0xFFFF_FFFF_8100_0000, 0x40_1000],
        [1, 0, 0xA],
    ];

    #[test]
    fn raw_has_only_branches() {
        let mut out = Vec::new();
        Raw.records(1, Records::new(&records(SAMPLE), Scope::User), &mut out);
        Raw.summary(&Summary::default(), &mut out);
        let words: Vec<u64> = out
            .as_chunks()
            .0
            .iter()
            .map(|w| u64::from_le_bytes(*w))
            .collect();
        assert_eq!(words, [0x40_1000, 0xFFFF_8000_0000_0000, 0, 0, 0xA, 0]);
    }

    #[test]
    fn returns_from_the_kernel_belong_to_all_scopes_except_user() {
        let bytes = records(SAMPLE);
        let back = Record::Branch {
            from: 0xFFFF_FFFF_8100_0000,
            to: 0x40_1000,
        };
        for (scope, count) in [(Scope::User, 0), (Scope::Kernel, 1), (Scope::All, 1)] {
            let records: Vec<Record> = Records::new(&bytes, scope).iter().collect();
            assert_eq!(records.iter().filter(|r| **r == back).count(), count);
            assert_eq!(records.len(), SAMPLE.len() - 1 + count);
        }
    }

    #[test]
    fn json_is_one_object_a_line() {
        let mut out = Vec::new();
        let mut json = Json::new(Accel::Kvm);
        json.records(7, Records::new(&records(SAMPLE), Scope::User), &mut out);
        let others = records(&[[1, 1, 2], [2, 3, 0]]);
        json.records(8, Records::new(&others, Scope::User), &mut out);
        for lost_more in [false, true] {
            let summary = Summary {
                records: 3,
                lost: 1,
                lost_more,
                untraced: u64::from(lost_more) * 2,
                exit: 200,
            };
            json.summary(&summary, &mut out);
        }
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                r#"{"kind":"arrive","jiffies":4294937296}"#,
                r#"{"kind":"branch","from":"0x401000","to":"0xffff800000000000"}"#,
                r#"{"kind":"depart","jiffies":7}"#,
                r#"{"kind":"branch","from":"0x0","to":"0xa"}"#,
                r#"{"kind":"branch","from":"0x1","to":"0x2","pid":8}"#,
                r#"{"kind":"arrive","jiffies":3,"pid":8}"#,
                r#"{"kind":"summary","records":3,"lost":1,"exit":200,"accel":"kvm"}"#,
                r#"{"kind":"summary","records":3,"lost":1,"lost_at_least":true,"untraced":2,"exit":200,"accel":"kvm"}"#,
            ]
        );
        for line in lines {
            serde_json::from_str::<serde_json::Value>(line).unwrap();
        }
    }

    #[test]
    fn numbers_are_formatted_like_the_standard_library() {
        for value in [0, 9, 10, 0xF, 0x10, 12_345_678_901, u64::MAX] {
            let mut out = Vec::new();
            push_decimal(&mut out, value);
            out.push(b' ');
            push_hex(&mut out, value);
            assert_eq!(
                String::from_utf8(out).unwrap(),
                format!("{value} {value:x}")
            );
        }
    }
}
