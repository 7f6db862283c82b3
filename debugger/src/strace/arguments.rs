//! The text of an argument of a system call, as strace shows it.

use std::fmt::Write as _;

use vbts_host::exit::signal_name;

use super::flags::SHOWN;
use super::{flags, structures};
use crate::tasks::Tasks;

/// Bytes of a path that are read, at most (`PATH_MAX`).
const MAX_PATH: usize = 4096;
/// Strings of a list that are shown, at most, and that are counted.
const SHOWN_STRINGS: usize = 32;
const MAX_STRINGS: usize = 1 << 16;
/// `AT_FDCWD`: a path begins at the working directory.
const WORKING_DIRECTORY: i32 = -100;
/// Flags of `open` that make files: `O_CREAT`, and the bit of `O_TMPFILE`.
const CREATES: u64 = 0o100 | 0o20000000;
/// Types of files in `st_mode`.
const FILE_TYPES: [(u32, &str); 7] = [
    (0o14, "S_IFSOCK"),
    (0o12, "S_IFLNK"),
    (0o10, "S_IFREG"),
    (0o6, "S_IFBLK"),
    (0o4, "S_IFDIR"),
    (0o2, "S_IFCHR"),
    (0o1, "S_IFIFO"),
];

/// The memory of a program.
#[derive(Debug, Clone, Copy)]
pub(super) struct Memory<'a> {
    pub tasks: Tasks<'a>,
    /// Its address space.
    pub space: u64,
}

impl Memory<'_> {
    fn array<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        (self.tasks.read(self.space, address, &mut bytes) == N).then_some(bytes)
    }

    pub(super) fn word(&self, address: u64) -> Option<u64> {
        self.array(address).map(u64::from_le_bytes)
    }

    /// A signed number of 32 bits.
    pub(super) fn number(&self, address: u64) -> Option<i32> {
        self.array(address).map(i32::from_le_bytes)
    }

    pub(super) fn bytes(&self, address: u64, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        (self.tasks.read(self.space, address, &mut bytes) == len).then_some(bytes)
    }

    /// The bytes up to a zero, which is within `limit`.
    fn string(&self, address: u64, limit: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; limit];
        let read = self.tasks.read(self.space, address, &mut bytes);
        let end = bytes.get(..read)?.iter().position(|byte| *byte == 0)?;
        bytes.truncate(end);
        Some(bytes)
    }
}

/// Bytes in quotes. What is no printable character of ASCII has an escape.
pub(super) fn quoted(bytes: &[u8], is_cut: bool) -> String {
    let mut text = String::from("\"");
    for (n, byte) in bytes.iter().enumerate() {
        match byte {
            b'"' | b'\\' => {
                text.push('\\');
                text.push(char::from(*byte));
            }
            b'\n' => text.push_str("\\n"),
            b'\r' => text.push_str("\\r"),
            b'\t' => text.push_str("\\t"),
            b'\x0B' => text.push_str("\\v"),
            b'\x0C' => text.push_str("\\f"),
            b' '..=b'~' => text.push(char::from(*byte)),
            _ => {
                // A digit that follows would belong to the number.
                let is_whole = bytes.get(n + 1).is_some_and(u8::is_ascii_digit);
                // Writing to a `String` does not fail.
                let _ = match is_whole {
                    true => write!(text, "\\{byte:03o}"),
                    false => write!(text, "\\{byte:o}"),
                };
            }
        }
    }
    text.push('"');
    if is_cut {
        text.push_str("...");
    }
    text
}

pub(super) fn pointer(value: u64) -> String {
    match value {
        0 => "NULL".into(),
        _ => format!("{value:#x}"),
    }
}

fn buffer(address: u64, len: u64, memory: Option<&Memory<'_>>) -> String {
    let shown = usize::try_from(len).map_or(SHOWN, |len| len.min(SHOWN));
    let bytes = memory.and_then(|memory| memory.bytes(address, shown));
    match bytes {
        Some(bytes) if address != 0 => quoted(&bytes, len > shown as u64),
        _ => pointer(address),
    }
}

fn string(address: u64, memory: Option<&Memory<'_>>, limit: usize) -> String {
    let bytes = memory.and_then(|memory| memory.string(address, MAX_PATH));
    match bytes {
        Some(bytes) if address != 0 => {
            let shown = bytes.get(..limit).unwrap_or(&bytes);
            quoted(shown, shown.len() < bytes.len())
        }
        _ => pointer(address),
    }
}

/// A list of addresses of strings that ends with 0.
fn addresses(address: u64, memory: Option<&Memory<'_>>) -> Option<Vec<u64>> {
    let memory = memory?;
    let mut list = Vec::new();
    while list.len() < MAX_STRINGS {
        match memory.word(address.wrapping_add(8 * list.len() as u64))? {
            0 => break,
            string => list.push(string),
        }
    }
    Some(list)
}

fn strings(address: u64, memory: Option<&Memory<'_>>) -> String {
    let Some(list) = addresses(address, memory) else {
        return pointer(address);
    };
    let shown = list.iter().take(SHOWN_STRINGS);
    let mut texts: Vec<String> = shown.map(|at| string(*at, memory, SHOWN)).collect();
    if texts.len() < list.len() {
        texts.push("...".into());
    }
    format!("[{}]", texts.join(", "))
}

/// A time in seconds and ns.
fn timespec(address: u64, memory: Option<&Memory<'_>>) -> String {
    let read = memory.and_then(|memory| Some((memory.word(address)?, memory.word(address + 8)?)));
    match read {
        Some((seconds, ns)) if address != 0 => {
            format!("{{tv_sec={}, tv_nsec={}}}", seconds as i64, ns as i64)
        }
        _ => pointer(address),
    }
}

/// Whether the text of an argument of this kind comes from memory that cannot be read: a page that
/// was not used yet, which the kernel brings into memory in the call.
pub(super) fn is_missing(kind: &str, value: u64, text: &str) -> bool {
    [
        "path",
        "bytes",
        "strings",
        "environment",
        "timespec",
        "poll",
    ]
    .contains(&kind)
        && value != 0
        && text == pointer(value)
}

/// The text of an argument that the kernel reads; `None` if the call does not have it this time.
/// `other` is the argument on which it depends.
pub(super) fn input(
    kind: &str,
    value: u64,
    other: Option<u64>,
    memory: Option<&Memory<'_>>,
) -> Option<String> {
    let number = value as i32;
    Some(match kind {
        "fd" | "int" if (value >> 32) == 0 => number.to_string(),
        "fd" | "int" => (value as i64).to_string(),
        "uint" => value.to_string(),
        "hex" if value == 0 => "0".into(),
        "hex" => format!("{value:#x}"),
        "address" if value == 0 => "NULL".into(),
        "mode" if other.is_some_and(|flags| flags & CREATES == 0) => return None,
        "mode" => format!("0{:03o}", value & 0o177777),
        "path" => string(value, memory, MAX_PATH),
        "bytes" => buffer(value, other.unwrap_or(0), memory),
        "strings" => strings(value, memory),
        "environment" => match addresses(value, memory) {
            Some(list) => format!("{value:#x} /* {} vars */", list.len()),
            None => pointer(value),
        },
        "directory" if number == WORKING_DIRECTORY => "AT_FDCWD".into(),
        "directory" => number.to_string(),
        "signal" => signal_name(number),
        "timespec" => timespec(value, memory),
        _ => flags::text(kind, value)
            .or_else(|| structures::text(kind, value, other.unwrap_or(0), memory?))
            .unwrap_or_else(|| pointer(value)),
    })
}

/// The text of an argument at `value` that the kernel has written, when the call has returned
/// `result`.
pub(super) fn output(kind: &str, value: u64, result: i64, memory: Option<&Memory<'_>>) -> String {
    let text = memory
        .filter(|_| result >= 0 && value != 0)
        .and_then(|known| {
            Some(match kind {
                "out_bytes" => buffer(value, result as u64, memory),
                "out_path" => string(value, memory, MAX_PATH),
                "out_timespec" => timespec(value, memory),
                "out_pair" => {
                    let [a, b] = [value, value.wrapping_add(4)]
                        .map(|at| known.array(at).map(i32::from_le_bytes));
                    format!("[{}, {}]", a?, b?)
                }
                "out_status" if result == 0 => return None,
                "out_status" => wait_status(i32::from_le_bytes(known.array(value)?)),
                "out_stat" => stat(&known.array(value)?),
                _ => structures::text(kind.strip_prefix("out_")?, value, 0, known)?,
            })
        });
    text.unwrap_or_else(|| pointer(value))
}

/// The status of a process that has ended, stopped or continued.
fn wait_status(status: i32) -> String {
    let (low, high) = (status & 0x7F, (status >> 8) & 0xFF);
    match low {
        0 => format!("[{{WIFEXITED(s) && WEXITSTATUS(s) == {high}}}]"),
        0x7F => format!(
            "[{{WIFSTOPPED(s) && WSTOPSIG(s) == {}}}]",
            signal_name(high)
        ),
        signal => {
            let core = if status & 0x80 != 0 {
                " && WCOREDUMP(s)"
            } else {
                ""
            };
            format!(
                "[{{WIFSIGNALED(s) && WTERMSIG(s) == {}{core}}}]",
                signal_name(signal)
            )
        }
    }
}

/// The members of `struct stat` that strace shows.
fn stat(bytes: &[u8; 144]) -> String {
    let word = |at: usize| {
        let word = bytes.get(at..at + 8).and_then(|bytes| bytes.first_chunk());
        word.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    };
    let mode = word(24) as u32;
    let of_type = FILE_TYPES.iter().find(|(number, _)| *number == mode >> 12);
    let of_type = of_type.map_or("0", |(_, name)| name);
    let what = match of_type {
        "S_IFCHR" | "S_IFBLK" => {
            let device = word(40);
            let device = (major(device), minor(device));
            format!("st_rdev=makedev({:#x}, {:#x})", device.0, device.1)
        }
        _ => format!("st_size={}", word(48)),
    };
    format!("{{st_mode={of_type}|0{:03o}, {what}, ...}}", mode & 0o7777)
}

/// The parts of the number of a device, as in the C library.
fn major(device: u64) -> u64 {
    (device >> 8) & 0xFFF | (device >> 32) & !0xFFF
}

fn minor(device: u64) -> u64 {
    device & 0xFF | (device >> 12) & !0xFF
}

/// What `siginfo_t` tells.
pub(super) fn signal_info(bytes: &[u8; 48]) -> String {
    let number = |at: usize| {
        let number = bytes.get(at..at + 4).and_then(|bytes| bytes.first_chunk());
        number.map_or(0, |bytes| i32::from_le_bytes(*bytes))
    };
    let address = u64::from(number(16) as u32) | u64::from(number(20) as u32) << 32;
    let (signal, code) = (number(0), number(8));
    let name = signal_name(signal);
    let code_name = match (name.as_str(), code) {
        (_, 0) => "SI_USER",
        (_, -6) => "SI_TKILL",
        (_, 0x80) => "SI_KERNEL",
        ("SIGSEGV", 1) => "SEGV_MAPERR",
        ("SIGSEGV", 2) => "SEGV_ACCERR",
        ("SIGCHLD", 1) => "CLD_EXITED",
        ("SIGCHLD", 2) => "CLD_KILLED",
        ("SIGCHLD", 3) => "CLD_DUMPED",
        ("SIGILL", 2) => "ILL_ILLOPN",
        ("SIGFPE", 1) => "FPE_INTDIV",
        ("SIGTRAP", 1) => "TRAP_BRKPT",
        _ => "",
    };
    let code_name = match code_name {
        "" => format!("{code:#x}"),
        name => name.to_owned(),
    };
    let rest = match (name.as_str(), code) {
        ("SIGCHLD", 1..) => format!(
            "si_pid={}, si_uid={}, si_status={}",
            number(16),
            number(20),
            match code {
                1 => number(24).to_string(),
                _ => signal_name(number(24)),
            }
        ),
        (_, ..=0) => format!("si_pid={}, si_uid={}", number(16), number(20)),
        (_, 0x80) => "si_addr=NULL".into(),
        _ => format!("si_addr={}", pointer(address)),
    };
    format!("{{si_signo={name}, si_code={code_name}, {rest}}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_the_escapes_of_strace() {
        assert_eq!(quoted(b"a\"b\\\n\t", false), r#""a\"b\\\n\t""#);
        assert_eq!(
            quoted(b"\x7fELF\x02\x01\x001", true),
            r#""\177ELF\2\1\0001"..."#
        );
    }

    #[test]
    fn numbers_have_the_form_of_strace() {
        let text = |kind, value| input(kind, value, None, None).unwrap();
        assert_eq!(text("mode", 0o644), "0644");
        assert_eq!(text("mode", 0), "0000");
        assert_eq!(text("directory", -100_i64 as u64), "AT_FDCWD");
        assert_eq!(text("int", 0xFFFF_FFFF), "-1");
        assert_eq!(text("pointer", 0), "NULL");
        assert_eq!(
            wait_status(0x300),
            "[{WIFEXITED(s) && WEXITSTATUS(s) == 3}]"
        );
        assert_eq!(
            wait_status(9),
            "[{WIFSIGNALED(s) && WTERMSIG(s) == SIGKILL}]"
        );
    }
}
