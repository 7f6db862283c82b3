//! Code that is in no file of the host: the kernel's vDSO, what a JIT compiler has made, and what a
//! program has written over its own code. The memory has the code, and the files that compilers
//! write for Linux perf have its names. Of the other code, the build IDs.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::iter::once;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use libc::pid_t;
use vbts_protocol::{CodeSource, ToHost};

use crate::failure::Failure;
use crate::maps::{FileNumber, Maps};
use crate::pagemap::written_pages;
use crate::port::Port;

/// Bytes that are read and sent at a time.
const PIECE: usize = 1 << 20;
/// Maximum size in bytes of the code of a process, and of each of its files.
const MAX_SIZE: u64 = 64 << 20;
/// Size of a page.
const PAGE: usize = 4096;
/// The first address that 32-bit code does not reach.
const END_OF_32_BITS: u64 = 1 << 32;

/// Sends code that is in no file of the host.
#[derive(Debug, Default)]
pub struct CodeSender {
    /// The vDSO of 64-bit programs was sent, and that of 32-bit programs.
    vdsos: [bool; 2],
    /// The files whose build IDs were sent.
    files: BTreeSet<FileNumber>,
}

/// A line of `/proc/PID/maps` with an executable mapping.
struct Mapping<'a> {
    start: u64,
    end: u64,
    name: &'a str,
}

impl Mapping<'_> {
    /// Whether it is memory without a file.
    fn is_anonymous(&self) -> bool {
        let starts = [
            "[anon",
            "[heap]",
            "[stack]",
            "/memfd:",
            "/dev/zero",
            "/SYSV",
        ];
        self.name.is_empty() || starts.iter().any(|start| self.name.starts_with(start))
    }
}

/// The executable mappings in the text of `/proc/PID/maps`.
fn executable(text: &str) -> impl Iterator<Item = Mapping<'_>> {
    text.lines().filter_map(|line| {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let is_code = fields.next()?.contains('x');
        let name = fields.nth(3).unwrap_or_default().trim_start();
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (start, end) = (number(start)?, number(end)?);
        is_code.then_some(Mapping { start, end, name })
    })
}

impl CodeSender {
    /// Sends the vDSO of a process that has executed a program, if this one was not sent yet.
    pub fn executes(&mut self, port: &mut Port, pid: pid_t, maps: &Maps) -> Result<(), Failure> {
        self.send_build_ids(port, maps)?;
        let maps = maps.text();
        let maps = String::from_utf8_lossy(&maps);
        let mut mappings = executable(&maps);
        let Some(vdso) = mappings.find(|mapping| mapping.name == "[vdso]") else {
            return Ok(());
        };
        let is_32 = usize::from(vdso.start < END_OF_32_BITS);
        if let Some(sent) = self.vdsos.get_mut(is_32)
            && !std::mem::replace(sent, true)
            && let Ok(memory) = File::open(format!("/proc/{pid}/mem"))
        {
            send_memory(port, pid, &memory, CodeSource::Vdso, vdso.start..vdso.end)?;
        }
        Ok(())
    }

    fn send_build_ids(&mut self, port: &mut Port, maps: &Maps) -> Result<(), Failure> {
        for file in maps.new_files(&mut self.files) {
            let (id, name) = (&file.build_id, &file.name);
            port.send(&ToHost::BuildId { id, name })?;
        }
        Ok(())
    }

    /// Sends the code of a process that ends, and the files that name it.
    pub fn ends(&mut self, port: &mut Port, pid: pid_t, maps: &Maps) -> Result<(), Failure> {
        self.send_build_ids(port, maps)?;
        let maps = maps.text();
        let maps = String::from_utf8_lossy(&maps);
        let dump = format!("/jit-{pid}.dump");
        let mut dumps = Vec::new();
        let mut left = MAX_SIZE;
        let memory = File::open(format!("/proc/{pid}/mem"));
        let page_map = File::open(format!("/proc/{pid}/pagemap"));
        for mapping in executable(&maps) {
            if mapping.name.ends_with(&dump) {
                // perf finds the file in the same way: the compiler maps it as code.
                dumps.push(format!("/proc/{pid}/root{}", mapping.name));
            }
            let (Ok(memory), Ok(page_map)) = (&memory, &page_map) else {
                continue;
            };
            let parts = match mapping.is_anonymous() {
                true => once(mapping.start..mapping.end).collect(),
                false => written_pages(page_map, mapping.start..mapping.end),
            };
            for part in parts {
                let end = part.end.min(part.start.saturating_add(left));
                left -= end - part.start;
                send_memory(port, pid, memory, CodeSource::Memory, part.start..end)?;
            }
        }
        let name = format!("/proc/{pid}/root/tmp/perf-{pid}.map");
        if let Some(file) = regular_file(&name) {
            send_file(port, pid, &file, CodeSource::PerfMap)?;
        }
        // A compiler that ends itself in order has no mapping any more.
        dumps.push(format!("/proc/{pid}/cwd{dump}"));
        dumps.push(format!("/proc/{pid}/root/tmp{dump}"));
        if let Some(file) = dumps.iter().find_map(|name| regular_file(name)) {
            send_file(port, pid, &file, CodeSource::JitDump)?;
        }
        Ok(())
    }
}

/// Opens a file of the traced program, which can be anything.
fn regular_file(name: &str) -> Option<File> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
        .open(name)
        .ok()?;
    file.metadata().ok()?.is_file().then_some(file)
}

/// Sends what memory has at these addresses, without pages of zeros.
fn send_memory(
    port: &mut Port,
    pid: pid_t,
    memory: &File,
    source: CodeSource,
    addresses: Range<u64>,
) -> Result<(), Failure> {
    let mut buffer = vec![0; PIECE];
    let mut at = addresses.start;
    while at < addresses.end {
        let size = PIECE.min(usize::try_from(addresses.end - at).unwrap_or(PIECE));
        let room = buffer.get_mut(..size).unwrap_or_default();
        // A part may not be readable. What follows it is left out.
        let Ok(read @ 1..) = memory.read_at(room, at) else {
            return Ok(());
        };
        let bytes = buffer.get(..read).unwrap_or_default();
        for (start, run) in runs(bytes) {
            port.send(&ToHost::Code {
                process: pid.unsigned_abs(),
                source,
                at: at + start as u64,
                bytes: run,
            })?;
        }
        at += read as u64;
    }
    Ok(())
}

/// The parts of `bytes` between pages of zeros, with their offsets.
fn runs(bytes: &[u8]) -> Vec<(usize, &[u8])> {
    let mut runs: Vec<(usize, &[u8])> = Vec::new();
    for (number, page) in bytes.chunks(PAGE).enumerate() {
        if page.iter().all(|byte| *byte == 0) {
            continue;
        }
        let at = number * PAGE;
        match runs.last_mut() {
            Some((start, run)) if *start + run.len() == at => {
                *run = bytes.get(*start..at + page.len()).unwrap_or(run);
            }
            _ => runs.push((at, page)),
        }
    }
    runs
}

/// Sends a file.
fn send_file(port: &mut Port, pid: pid_t, file: &File, source: CodeSource) -> Result<(), Failure> {
    let mut buffer = vec![0; PIECE];
    let mut at = 0;
    while at < MAX_SIZE {
        let read = match file.read_at(&mut buffer, at) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Ok(read @ 1..) => read,
            _ => return Ok(()),
        };
        port.send(&ToHost::Code {
            process: pid.unsigned_abs(),
            source,
            at,
            bytes: buffer.get(..read).unwrap_or_default(),
        })?;
        at += read as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_zeros_are_left_out() {
        let mut bytes = vec![0; 5 * PAGE + 10];
        for at in [PAGE, 3 * PAGE - 1, 4 * PAGE, 5 * PAGE + 9] {
            bytes[at] = 1;
        }
        let found: Vec<_> = runs(&bytes)
            .iter()
            .map(|(at, run)| (*at, run.len()))
            .collect();
        assert_eq!(found, [(PAGE, 2 * PAGE), (4 * PAGE, PAGE + 10)]);
        assert_eq!(runs(&[0; 100]), []);
    }

    #[test]
    fn code_without_a_file_is_found() {
        let text = "\
400000-401000 r-xp 00001000 00:12 5                              /bin/true
7f0000-7f1000 rwxp 00000000 00:00 0 
7f1000-7f2000 rw-p 00000000 00:00 0 
7f2000-7f3000 r-xs 00000000 00:01 9                              /memfd:code (deleted)
7f4000-7f5000 r-xp 00000000 00:00 0                              [vdso]
";
        let found = executable(text).filter(Mapping::is_anonymous);
        let starts: Vec<u64> = found.map(|mapping| mapping.start).collect();
        assert_eq!(starts, [0x7f_0000, 0x7f_2000]);
    }

    #[test]
    fn only_regular_files_are_read() {
        assert!(regular_file("/dev/null").is_none());
        assert!(regular_file("/proc/self/exe").is_none());
        assert!(regular_file("/proc/self/maps").is_some());
    }
}
