//! Labels for addresses: function and offset, file and line.

mod demangle;
mod labels;
mod lines;
mod maps;
pub mod object_file;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use demangle::demangle;
use labels::Labels;
use maps::Mapping;
use object_file::ObjectFile;

use crate::root::Root;

/// Start of the kernel's half of the address space.
const KERNEL: u64 = 1 << 63;
/// The page in the kernel's half that programs execute, for an old form of system calls.
const VSYSCALL: std::ops::Range<u64> = 0xFFFF_FFFF_FF60_0000..0xFFFF_FFFF_FF60_1000;
/// Maximum memory in bytes of the mappings that are kept of processes other than the current one.
/// When it is reached, all are dropped.
const MAX_OTHER_MAPPINGS: usize = 64 << 20;
/// Maximum memory in bytes of the labels that are kept for processes other than the current one.
/// When it is reached, all are dropped.
const MAX_OTHER_LABELS: usize = 64 << 20;
/// Maximum number of files whose symbols are kept. When it is reached, all are dropped.
const MAX_FILES: usize = 1 << 10;

/// The mappings and labels of a process.
#[derive(Debug, Default)]
struct Process {
    pid: u32,
    mappings: Vec<Mapping>,
    labels: Labels,
}

/// The mapped files.
#[derive(Debug)]
struct Files {
    root: Root,
    /// Source files below this directory are named relative to it.
    cwd: PathBuf,
    /// Symbols by path in the guest; `None` if a file has no symbols.
    files: HashMap<String, Option<ObjectFile>>,
}

/// Names the addresses of the guest's processes and of its kernel.
#[derive(Debug)]
pub struct Symbolizer {
    files: Files,
    /// The guest's kernel, if its file has symbols.
    kernel: Option<ObjectFile>,
    /// Labels of the kernel's addresses.
    kernel_labels: Labels,
    /// The process of the last address.
    current: Process,
    others: HashMap<u32, Process>,
    /// Memory of the mappings of `others` in bytes.
    mapping_bytes: usize,
    /// Memory of the labels of `others` in bytes.
    label_bytes: usize,
}

impl Symbolizer {
    /// Looks up files below `root` for a program that runs in `cwd`.
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
            mapping_bytes: 0,
            label_bytes: 0,
        }
    }

    /// Sets the symbols of the guest's kernel.
    pub fn set_kernel(&mut self, kernel: ObjectFile) {
        self.kernel = Some(kernel);
        self.kernel_labels.clear();
    }

    /// Sets the mappings of process `pid` from the text of `/proc/PID/maps`.
    pub fn set_maps(&mut self, pid: u32, text: &[u8]) {
        let process = self.enter(pid);
        let mappings = maps::parse(text);
        // Labels stay valid when mappings are only added: an address without a mapping has no
        // label.
        let kept = |old: &Mapping| maps::find(&mappings, old.start) == Some(old);
        if !process.mappings.iter().all(kept) {
            process.labels.clear();
        }
        process.mappings = mappings;
    }

    /// Forgets process `pid`, which has ended.
    pub fn remove(&mut self, pid: u32) {
        self.take(pid);
        if self.current.pid == pid {
            self.current = Process::default();
        }
    }

    /// Makes process `pid` the current one.
    #[inline]
    fn enter(&mut self, pid: u32) -> &mut Process {
        if self.current.pid != pid {
            self.switch(pid);
        }
        &mut self.current
    }

    fn switch(&mut self, pid: u32) {
        let next = self.take(pid).unwrap_or_else(|| Process {
            pid,
            ..Process::default()
        });
        let last = std::mem::replace(&mut self.current, next);
        self.mapping_bytes += maps::bytes(&last.mappings);
        self.label_bytes += last.labels.bytes();
        self.others.insert(last.pid, last);
        if self.label_bytes > MAX_OTHER_LABELS {
            let others = self.others.values_mut();
            others.for_each(|process| process.labels = Labels::default());
            self.label_bytes = 0;
        }
        if self.mapping_bytes > MAX_OTHER_MAPPINGS {
            self.others.clear();
            (self.mapping_bytes, self.label_bytes) = (0, 0);
        }
    }

    /// Takes process `pid` out of the others.
    fn take(&mut self, pid: u32) -> Option<Process> {
        let process = self.others.remove(&pid)?;
        self.mapping_bytes -= maps::bytes(&process.mappings);
        self.label_bytes -= process.labels.bytes();
        Some(process)
    }

    /// The label of `address` in process `pid`, such as `main+0x1f (fib.c:12)`; empty if the
    /// address has none.
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
    /// Appends the label of `address`, which is in `mapping`.
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

/// Appends the label of an address of the kernel.
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

/// Appends the label of `address`, which is in `mapping` of `file`.
fn describe(
    out: &mut String,
    mapping: &Mapping,
    file: Option<&ObjectFile>,
    address: u64,
    cwd: &Path,
) {
    // The guest chooses the mappings, so the offset can have any value.
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

#[cfg(test)]
mod tests {
    use super::*;
    use object_file::tests::with_function;

    fn own_maps() -> Vec<u8> {
        std::fs::read("/proc/self/maps").unwrap()
    }

    fn symbolizer() -> Symbolizer {
        Symbolizer::new(Root::open(Path::new("/")).unwrap(), Path::new("/"))
    }

    #[test]
    fn a_test_finds_its_own_function() {
        let mut symbols = symbolizer();
        symbols.set_maps(1, &own_maps());
        let address = a_test_finds_its_own_function as fn() as usize as u64;
        let label = symbols.label(1, address).to_owned();
        assert!(
            label.contains("a_test_finds_its_own_function+0x0"),
            "{label}"
        );
        assert!(label.contains("symbols/mod.rs:"), "{label}");
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
    fn memory_for_a_hostile_guest_is_bounded() {
        let mut symbols = symbolizer();
        for n in 0..MAX_FILES * 2 {
            symbols.set_maps(
                1,
                format!("1000-2000 r-xp 0 0:0 0 /nonexistent/{n}\n").as_bytes(),
            );
            assert_eq!(symbols.label(1, 0x1000), format!("{n}+0x0"));
            assert!(symbols.files.files.len() <= MAX_FILES);
        }
        // As many mappings as a message can have, twice, take linear time.
        let many: String = (0..200_000)
            .map(|n| format!("{n:x}-{:x} r-xp 0 0 0\n", n + 1))
            .collect();
        symbols.set_maps(1, many.as_bytes());
        symbols.set_maps(1, many.as_bytes());
        assert_eq!(symbols.label(1, 199_999), "[anonymous]+0x0");
        for pid in 2..10 {
            symbols.set_maps(pid, many.as_bytes());
            assert_eq!(symbols.label(pid, 199_999), "[anonymous]+0x0");
            assert!(symbols.mapping_bytes <= MAX_OTHER_MAPPINGS);
        }
        for pid in 0..10 {
            symbols.remove(pid);
        }
        assert!(symbols.others.is_empty());
        assert_eq!((symbols.mapping_bytes, symbols.label_bytes), (0, 0));
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
}
