//! From an address in a process to words for it.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use rustc_hash::FxHashMap;

use super::maps::{self, Mapping};
use super::object_file::ObjectFile;
use crate::root::Root;

/// Where the kernel's half of the address space begins.
const KERNEL: u64 = 1 << 63;
/// The one page in there that belongs to the program, for system calls as they once were.
const VSYSCALL: std::ops::Range<u64> = 0xFFFF_FFFF_FF60_0000..0xFFFF_FFFF_FF60_1000;
/// Processes whose mappings are kept, and labels that are kept for each: beyond, they are made
/// anew.
const MAX_PROCESSES: usize = 16;
const MAX_LABELS: usize = 1 << 18;
/// The same for the bytes of a process's labels, and for the files whose symbols are kept.
const MAX_TEXT: usize = 64 << 20;
const MAX_FILES: usize = 1 << 10;

/// Labels of addresses that were looked up.
#[derive(Debug, Default)]
struct Labels {
    /// Range in `text` of the label of an address. A hash without a key is enough: a program that
    /// provokes collisions slows down the output of its own trace only.
    ranges: FxHashMap<u64, (u32, u32)>,
    text: String,
}

impl Labels {
    /// The label of `address`, which `make` appends to a text if it is not there yet.
    #[inline]
    fn get(&mut self, address: u64, make: impl FnOnce(&mut String)) -> &str {
        let (start, end) = match self.ranges.get(&address) {
            Some(range) => *range,
            None => self.add(address, make),
        };
        self.text
            .get(start as usize..end as usize)
            .unwrap_or_default()
    }

    #[cold]
    fn add(&mut self, address: u64, make: impl FnOnce(&mut String)) -> (u32, u32) {
        if self.ranges.len() >= MAX_LABELS || self.text.len() >= MAX_TEXT {
            self.clear();
        }
        let start = self.text.len();
        make(&mut self.text);
        let range = (start as u32, self.text.len() as u32);
        // What has no label now may have one later.
        if range.0 < range.1 {
            self.ranges.insert(address, range);
        }
        range
    }

    fn clear(&mut self) {
        self.ranges.clear();
        self.text.clear();
    }
}

/// What is known of one process.
#[derive(Debug, Default)]
struct Process {
    pid: u32,
    mappings: Vec<Mapping>,
    labels: Labels,
}

/// The files that are mapped.
#[derive(Debug)]
struct Files {
    root: Root,
    /// Source files below it are named relative to it.
    cwd: PathBuf,
    /// By their path in the guest; `None` if they have no symbols.
    files: HashMap<String, Option<ObjectFile>>,
}

/// Names the addresses of the guest's processes and of its kernel.
#[derive(Debug)]
pub struct Symbolizer {
    files: Files,
    /// The guest's kernel, if it has symbols, and labels of its addresses.
    kernel: Option<ObjectFile>,
    kernel_labels: Labels,
    /// The process whose addresses were asked for last.
    current: Process,
    others: HashMap<u32, Process>,
}

impl Symbolizer {
    /// Looks files up below `root`, for a program that was started in `cwd`.
    pub fn new(root: Root, cwd: &Path) -> Self {
        Self {
            files: Files {
                root,
                cwd: cwd.into(),
                files: HashMap::new(),
            },
            kernel: None,
            kernel_labels: Labels::default(),
            current: Process::default(),
            others: HashMap::new(),
        }
    }

    /// Names the kernel's addresses by the symbols of `kernel`, the file that was booted.
    pub fn set_kernel(&mut self, kernel: ObjectFile) {
        self.kernel = Some(kernel);
        self.kernel_labels.clear();
    }

    /// Learns the mappings of process `pid` from the text of its `/proc/PID/maps`.
    pub fn set_maps(&mut self, pid: u32, text: &[u8]) {
        let process = self.enter(pid);
        let mappings = maps::parse(text);
        // Labels stay valid when mappings are only added: what had no mapping has no label.
        let kept = |old: &Mapping| maps::find(&mappings, old.start) == Some(old);
        if !process.mappings.iter().all(kept) {
            process.labels.clear();
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

    /// The words for `address` in process `pid`, such as `main+0x1f (fib.c:12)`; empty if there are
    /// none.
    #[inline]
    pub fn label(&mut self, pid: u32, address: u64) -> &str {
        if address >= KERNEL && !VSYSCALL.contains(&address) {
            let kernel = self.kernel.as_ref();
            return self
                .kernel_labels
                .get(address, |out| describe_kernel(out, kernel, address));
        }
        self.enter(pid);
        let files = &mut self.files;
        let Process {
            mappings, labels, ..
        } = &mut self.current;
        labels.get(address, |out| {
            if let Some(mapping) = maps::find(mappings, address) {
                files.describe(out, mapping, address);
            }
        })
    }
}

impl Files {
    /// Appends the words for `address`, which lies in `mapping`.
    fn describe(&mut self, out: &mut String, mapping: &Mapping, address: u64) {
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
        describe(out, mapping, file, address, &self.cwd);
    }
}

/// Appends the words for an address of the kernel.
fn describe_kernel(out: &mut String, kernel: Option<&ObjectFile>, address: u64) {
    // Writing to a `String` does not fail.
    if let Some((name, distance)) = kernel.and_then(|file| file.function(address)) {
        let _ = write!(out, "{}+{distance:#x} ", demangle(name));
    }
    out.push_str("[kernel]");
    if let Some((path, line)) = kernel.and_then(|file| file.line(address)) {
        let _ = write!(out, " ({path}:{line})");
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
    use crate::trace::object_file::tests::with_function;

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
            assert!(symbols.files.files.len() <= MAX_FILES);
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
        symbols.set_maps(
            1,
            b"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n",
        );
        assert_eq!(symbols.label(1, 0xFFFF_FFFF_FF60_0400), "[vsyscall]+0x400");
    }

    #[test]
    fn addresses_of_the_kernel_are_named_by_its_file() {
        let mut symbols = symbolizer();
        let start = 0xFFFF_FFFF_8100_0000;
        assert_eq!(symbols.label(1, start), "[kernel]");
        symbols.set_kernel(with_function(start, 16, "entry_SYSCALL_64"));
        assert_eq!(symbols.label(1, start), "entry_SYSCALL_64+0x0 [kernel]");
        assert_eq!(symbols.label(2, start + 4), "entry_SYSCALL_64+0x4 [kernel]");
        assert_eq!(symbols.label(2, start + 16), "[kernel]");
        assert_eq!(symbols.label(1, start + 0x10_0000), "[kernel]");
        assert_eq!(symbols.label(1, u64::MAX), "[kernel]");
    }

    #[test]
    fn names_are_demangled() {
        assert_eq!(demangle("_ZN3foo3barEv"), "foo::bar()");
        assert_eq!(demangle("memcpy@plt"), "memcpy@plt");
    }
}
