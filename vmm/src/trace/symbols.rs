//! From an address in a process to words for it.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::{BuildHasherDefault, Hasher};
use std::path::{Path, PathBuf};

use super::maps::{self, Mapping};
use super::object_file::ObjectFile;
use crate::program::Root;

/// Where the kernel's half of the address space begins.
const KERNEL: u64 = 1 << 63;
/// Processes whose mappings are kept, and labels that are kept for each: beyond, they are made anew.
const MAX_PROCESSES: usize = 16;
const MAX_LABELS: usize = 1 << 18;
/// The same for the bytes of a process's labels, and for the files whose symbols are kept.
const MAX_TEXT: usize = 64 << 20;
const MAX_FILES: usize = 1 << 10;

/// Hashes an address by multiplication: the keys are not chosen by an adversary that gains from collisions.
#[derive(Debug, Default, Clone, Copy)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u64(u64::from(*b)));
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

/// What is known of one process.
#[derive(Debug, Default)]
struct Process {
    pid: u32,
    mappings: Vec<Mapping>,
    /// Range in `text` of the label of an address.
    labels: HashMap<u64, (u32, u32), BuildHasherDefault<AddressHasher>>,
    text: String,
}

impl Process {
    fn forget_labels(&mut self) {
        self.labels.clear();
        self.text.clear();
    }
}

/// Names the addresses of the guest's processes.
#[derive(Debug)]
pub struct Symbolizer {
    root: Root,
    /// Source files below it are named relative to it.
    cwd: PathBuf,
    /// Files by their path in the guest; `None` if they have no symbols.
    files: HashMap<String, Option<ObjectFile>>,
    /// The process whose addresses were asked for last.
    current: Process,
    others: HashMap<u32, Process>,
}

impl Symbolizer {
    /// Looks files up below `root`, for a program that was started in `cwd`.
    pub fn new(root: Root, cwd: &Path) -> Self {
        Self {
            root,
            cwd: cwd.into(),
            files: HashMap::new(),
            current: Process::default(),
            others: HashMap::new(),
        }
    }

    /// Learns the mappings of process `pid` from the text of its `/proc/PID/maps`.
    pub fn set_maps(&mut self, pid: u32, text: &[u8]) {
        let process = self.enter(pid);
        let mappings = maps::parse(text);
        // Labels stay valid when mappings are only added: what had no mapping has no label.
        let kept = |old: &Mapping| maps::find(&mappings, old.start) == Some(old);
        if !process.mappings.iter().all(kept) {
            process.forget_labels();
        }
        process.mappings = mappings;
    }

    /// Makes process `pid` the current one.
    fn enter(&mut self, pid: u32) -> &mut Process {
        if self.current.pid != pid {
            let next = self.others.remove(&pid).unwrap_or_else(|| Process {
                pid,
                ..Process::default()
            });
            let last = std::mem::replace(&mut self.current, next);
            if self.others.len() >= MAX_PROCESSES {
                self.others.clear();
            }
            self.others.insert(last.pid, last);
        }
        &mut self.current
    }

    /// The words for `address` in process `pid`, such as `main+0x1f (fib.c:12)`; empty if there are none.
    #[inline]
    pub fn label(&mut self, pid: u32, address: u64) -> &str {
        if address >= KERNEL {
            return "[kernel]";
        }
        let process = self.enter(pid);
        let (start, end) = match process.labels.get(&address) {
            Some(range) => *range,
            None => self.make_label(address),
        };
        self.current
            .text
            .get(start as usize..end as usize)
            .unwrap_or_default()
    }

    #[cold]
    fn make_label(&mut self, address: u64) -> (u32, u32) {
        let process = &mut self.current;
        let Some(mapping) = maps::find(&process.mappings, address) else {
            return (0, 0);
        };
        if process.labels.len() >= MAX_LABELS || process.text.len() >= MAX_TEXT {
            process.labels.clear();
            process.text.clear();
        }
        if !self.files.contains_key(&mapping.name) {
            let path = mapping
                .name
                .strip_suffix(" (deleted)")
                .unwrap_or(&mapping.name);
            let file = path
                .starts_with('/')
                .then(|| ObjectFile::open(&self.root, Path::new(path)))
                .flatten();
            if self.files.len() >= MAX_FILES {
                self.files.clear();
            }
            self.files.insert(mapping.name.clone(), file);
        }
        let file = self.files.get(&mapping.name).and_then(Option::as_ref);
        let start = process.text.len();
        describe(&mut process.text, mapping, file, address, &self.cwd);
        let range = (start as u32, process.text.len() as u32);
        process.labels.insert(address, range);
        range
    }
}

/// Appends the words for `address`, which lies in `mapping` of `file`.
fn describe(
    out: &mut String,
    mapping: &Mapping,
    file: Option<&ObjectFile>,
    address: u64,
    cwd: &Path,
) {
    // The guest says where its mappings are: an offset can be anything.
    let offset = (address - mapping.start).wrapping_add(mapping.offset);
    let module = mapping.name.rsplit('/').next().unwrap_or_default();
    let in_file = file.and_then(|f| Some((f, f.address_of_offset(offset)?)));
    let function = in_file.and_then(|(f, at)| f.function(at));
    // Writing to a `String` does not fail.
    let _ = match function {
        Some((name, distance)) => write!(out, "{}+{distance:#x}", demangle(name)),
        None if module.is_empty() => write!(out, "[anonymous]+{:#x}", address - mapping.start),
        None => write!(out, "{module}+{offset:#x}"),
    };
    match in_file.and_then(|(f, at)| f.line(at)) {
        Some((path, line)) => {
            let path = Path::new(&path);
            let _ = write!(
                out,
                " ({}:{line})",
                path.strip_prefix(cwd).unwrap_or(path).display()
            );
        }
        None if function.is_some() => {
            let _ = write!(out, " ({module})");
        }
        None => {}
    }
}

/// The name as it stands in the source, for Rust and C++.
fn demangle(name: &str) -> String {
    let (name, suffix) = match name.strip_suffix("@plt") {
        Some(name) => (name, "@plt"),
        None => (name, ""),
    };
    format!("{}{suffix}", addr2line::demangle_auto(name.into(), None))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_maps() -> Vec<u8> {
        std::fs::read("/proc/self/maps").unwrap()
    }

    fn symbolizer() -> Symbolizer {
        Symbolizer::new(Root::open(Path::new("/")).unwrap(), Path::new("/"))
    }

    #[test]
    fn this_test_finds_itself() {
        let mut symbols = symbolizer();
        symbols.set_maps(1, &own_maps());
        let address = this_test_finds_itself as fn() as usize as u64;
        let label = symbols.label(1, address).to_owned();
        assert!(label.contains("this_test_finds_itself+0x0"), "{label}");
        assert!(label.contains("symbols.rs:"), "{label}");
        assert_eq!(symbols.label(1, address), label, "from the cache");
    }

    #[test]
    fn a_library_function_is_found_in_its_library() {
        let mut symbols = symbolizer();
        symbols.set_maps(1, &own_maps());
        let label = symbols
            .label(1, libc::getpid as *const () as usize as u64)
            .to_owned();
        assert!(label.contains("getpid"), "{label}");
    }

    #[test]
    fn a_hostile_guest_has_bounds() {
        let mut symbols = symbolizer();
        for n in 0..MAX_FILES * 2 {
            symbols.set_maps(
                1,
                format!("1000-2000 r-xp 0 0:0 0 /nonexistent/{n}\n").as_bytes(),
            );
            assert_eq!(symbols.label(1, 0x1000), format!("{n}+0x0"));
            assert!(symbols.files.len() <= MAX_FILES);
        }
        // As many mappings as a message holds, twice: in no more than linear time.
        let many: String = (0..200_000)
            .map(|n| format!("{n:x}-{:x} r-xp 0 0 0\n", n + 1))
            .collect();
        symbols.set_maps(1, many.as_bytes());
        symbols.set_maps(1, many.as_bytes());
        assert_eq!(symbols.label(1, 199_999), "[anonymous]+0x0");
    }

    #[test]
    fn unknown_addresses_have_no_label_until_they_are_mapped() {
        let mut symbols = symbolizer();
        assert_eq!(symbols.label(1, 0x1234), "");
        symbols.set_maps(1, b"1000-2000 r-xp 00000000 00:00 0\n");
        assert_eq!(symbols.label(1, 0x1234), "[anonymous]+0x234");
        symbols.set_maps(1, b"1000-2000 r-xp 00005000 00:01 9 /nonexistent\n");
        assert_eq!(symbols.label(1, 0x1234), "nonexistent+0x5234");
        symbols.set_maps(1, b"1000-2000 r-xp ffffffffffffffff 00:01 9 /nonexistent\n");
        assert_eq!(symbols.label(1, 0x1234), "nonexistent+0x233");
        symbols.set_maps(2, b"1000-2000 r-xp 00000000 00:00 0 [vdso]\n");
        assert_eq!(symbols.label(2, 0x1234), "[vdso]+0x234");
        assert_eq!(symbols.label(1, u64::MAX), "[kernel]");
    }

    #[test]
    fn names_are_demangled() {
        assert_eq!(demangle("_ZN3foo3barEv"), "foo::bar()");
        assert_eq!(demangle("memcpy@plt"), "memcpy@plt");
    }
}
