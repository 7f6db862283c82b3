//! Labels for the addresses of a guest's processes and of its kernel.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use vbts_trace::Event;
use vbts_trace::maps::{self, Mapping};
use vbts_trace::profile::modules::{self, is_kernel};

use super::connection::Connection;
use super::files::{FileId, Files, INLINED};
use super::labels::{LabelRange, Labels, MAX_LABEL};
use super::mapped_files::MappedFiles;
use super::protocol::{Answer, CodePlace, Wanted};
use super::source::Source;
use super::unnamed::Unnamed;
use vbts_host::WriteMonitor;
use vbts_host::escape::prefix;
use vbts_host::root::Root;

/// Maximum memory in bytes of the mappings that are kept of processes other than the current one.
/// When it is reached, all are dropped.
const MAX_OTHER_MAPPINGS: usize = 64 << 20;
/// Maximum memory in bytes of the labels that are kept for processes other than the current one.
/// When it is reached, all are dropped.
const MAX_OTHER_LABELS: usize = 64 << 20;

/// The mappings and labels of a process.
#[derive(Debug, Default)]
struct Process {
    pid: u32,
    mappings: Vec<Mapping>,
    labels: Labels,
}

/// Names the addresses of the guest's processes and of its kernel.
#[derive(Debug)]
pub struct Symbolizer {
    files: Files,
    /// Source files below this directory are named relative to it.
    cwd: PathBuf,
    /// The file of the guest's kernel.
    kernel: Option<FileId>,
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
    /// Looks up files below `root` for a program that runs in `cwd`. Without a process that reads
    /// symbols, addresses have no names.
    pub fn new(root: Root, cwd: &Path) -> Self {
        Self {
            files: Files::new(root, Source::Absent),
            cwd: cwd.into(),
            kernel: None,
            kernel_labels: Labels::default(),
            current: Process::default(),
            others: HashMap::new(),
            mapping_bytes: 0,
            label_bytes: 0,
        }
    }

    /// Sets the directory in which the program runs.
    pub fn set_directory(&mut self, cwd: &Path) {
        cwd.clone_into(&mut self.cwd);
    }

    /// Starts the process that reads symbols: the program `vbts`, in a sandbox if `confined`.
    ///
    /// # Errors
    /// The host starts no process.
    pub fn start_reader(&mut self, vbts: &mut Command, confined: bool) -> io::Result<()> {
        let connection = Connection::start(vbts, confined)?;
        self.files.set_source(Source::Process(connection));
        Ok(())
    }

    /// Gives names up soon once the run whose trace these writes are is interrupted.
    pub fn end_with(&mut self, writes: Arc<WriteMonitor>) {
        if let Source::Process(connection) = self.files.source() {
            connection.end_with(writes);
        }
    }

    /// Ends the process that reads symbols. Addresses whose labels are not kept have no names any
    /// more.
    pub fn end_reader(&mut self) {
        self.files.set_source(Source::Absent);
    }

    /// Sets the file of the guest's kernel, which is called `name`. The kernel runs at the
    /// addresses in the file.
    pub fn set_kernel(&mut self, file: File, name: &str) {
        self.kernel = Some(self.files.add_kernel(file, name));
        self.kernel_labels.clear();
    }

    /// The files whose names are missing.
    pub fn unnamed(&self) -> Unnamed {
        self.files.all_unnamed()
    }

    /// The number of times that the process that reads symbols was given a file. A file without
    /// addresses to look up is not read, and one with several names is read once.
    pub fn reads(&self) -> u64 {
        self.files.reads()
    }

    /// Those of them that can be opened.
    pub fn readable_unnamed(&self) -> &Unnamed {
        self.files.unnamed()
    }

    /// The mapped files.
    pub fn mapped(&self) -> &MappedFiles {
        self.files.mapped()
    }

    /// The mapped files.
    pub fn mapped_mut(&mut self) -> &mut MappedFiles {
        self.files.mapped_mut()
    }

    /// The places that have a name in the file that is mapped as `name`, or in that of the kernel
    /// without one: offsets in the file, or addresses of the kernel.
    pub fn resolve(&mut self, name: Option<&str>, wanted: &Wanted) -> Vec<CodePlace> {
        let file = match name {
            Some(name) => self.files.get(name),
            None => self.kernel,
        };
        file.map_or_else(Vec::new, |file| self.files.resolve(file, wanted))
    }

    /// Updates the mappings of processes with an event of a trace.
    pub fn event(&mut self, event: &Event) {
        match event {
            Event::Maps { process, text } => self.set_maps(*process, text),
            Event::ProcessEnd { process } => self.remove(*process),
            _ => {}
        }
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

    /// The name of the mapping of an address of process `pid`: mostly the path of a file.
    pub fn file(&self, pid: u32, address: u64) -> Option<&str> {
        let process = match self.current.pid == pid {
            true => &self.current,
            false => self.others.get(&pid)?,
        };
        let mapping = maps::find(&process.mappings, address)?;
        Some(&mapping.name)
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
    /// address has none. If it is not known, those of `others` are looked up with it, because each
    /// request takes time.
    #[inline]
    pub fn label(&mut self, pid: u32, address: u64, others: &mut dyn FnMut() -> Vec<u64>) -> &str {
        let labels = if is_kernel(address) {
            &self.kernel_labels
        } else {
            self.enter(pid);
            &self.current.labels
        };
        let known = labels.find(address);
        let range = known.unwrap_or_else(|| self.look_up(address, others()));
        self.labels(address).text(range)
    }

    /// The frames of `address` in process `pid`, the innermost first: labels of the inlined
    /// functions to which it belongs, such as `f (inlined) (fib.c:3)`, and that of the function,
    /// with the line of the call. Each is at most as long as a label.
    pub fn frames(&mut self, pid: u32, address: u64) -> Vec<String> {
        let in_kernel = is_kernel(address);
        if !in_kernel {
            self.enter(pid);
        }
        let Self {
            files,
            cwd,
            kernel,
            current,
            ..
        } = self;
        let mapping = maps::find(&current.mappings, address).filter(|_| !in_kernel);
        let (file, place) = match mapping {
            _ if in_kernel => (*kernel, address),
            Some(mapping) => (files.get(&mapping.name), offset(mapping, address)),
            None => return Vec::new(),
        };
        let Some(file) = file else {
            return vec![self.label(pid, address, &mut Vec::new).to_owned()];
        };
        let inlined = files.inlined_at(file, place);
        let mut frames = Vec::new();
        files.find(file, &[place], &mut |_, answer| {
            let mut line = answer.line;
            for call in inlined.iter().rev() {
                let mut frame = format!("{}{INLINED}", call.function);
                push_line(&mut frame, line, cwd);
                frames.push(frame);
                line = call
                    .call
                    .as_ref()
                    .map(|(path, line)| (path.as_str(), *line));
            }
            let function = answer.function;
            let answer = &Answer { function, line };
            let mut frame = String::new();
            match mapping {
                Some(mapping) => describe(&mut frame, mapping, address, answer, cwd),
                None => describe_kernel(&mut frame, answer),
            }
            frames.push(frame);
        });
        for frame in &mut frames {
            frame.truncate(prefix(frame, MAX_LABEL).len());
        }
        frames
    }

    /// The labels of the kernel, or of the current process.
    fn labels(&self, address: u64) -> &Labels {
        match is_kernel(address) {
            true => &self.kernel_labels,
            false => &self.current.labels,
        }
    }

    /// Makes the labels of `address` and of `others` in the current process. Returns that of
    /// `address`.
    #[cold]
    fn look_up(&mut self, address: u64, others: Vec<u64>) -> LabelRange {
        self.make_labels(others.into_iter().chain([address]));
        if self.labels(address).find(address).is_none() {
            // The others may have taken all the room.
            self.make_labels([address].into_iter());
        }
        // An address without a label may get one when its mapping is known.
        self.labels(address).find(address).unwrap_or_default()
    }

    fn make_labels(&mut self, addresses: impl Iterator<Item = u64>) {
        let mut seen = FxHashSet::default();
        // Addresses of the kernel and of the process by their files; `None` is no file.
        let mut wanted: FxHashMap<(bool, Option<FileId>), Vec<u64>> = FxHashMap::default();
        for address in addresses {
            if self.labels(address).find(address).is_some() || !seen.insert(address) {
                continue;
            }
            let file = match maps::find(&self.current.mappings, address) {
                _ if is_kernel(address) => self.kernel,
                Some(mapping) => self.files.get(&mapping.name),
                None => continue,
            };
            let place = (is_kernel(address), file);
            wanted.entry(place).or_default().push(address);
        }
        for ((in_kernel, file), addresses) in wanted {
            self.make_labels_of(in_kernel, file, &addresses);
        }
    }

    /// Makes the labels of addresses in `file`, which all are `in_kernel`, or none is.
    fn make_labels_of(&mut self, in_kernel: bool, file: Option<FileId>, addresses: &[u64]) {
        let Self {
            files,
            cwd,
            kernel_labels,
            current,
            ..
        } = self;
        let mappings = &current.mappings;
        let mapping = |address| maps::find(mappings, address);
        let labels = match in_kernel {
            true => kernel_labels,
            false => &mut current.labels,
        };
        let mut text = String::new();
        let mut add = |address: u64, answer: &Answer<'_>| {
            text.clear();
            match mapping(address) {
                _ if in_kernel => describe_kernel(&mut text, answer),
                Some(mapping) => describe(&mut text, mapping, address, answer, cwd),
                None => {}
            }
            labels.add(address, &text);
        };
        let mut answered = 0;
        if let Some(file) = file {
            let places: Vec<u64> = addresses
                .iter()
                .map(|address| match mapping(*address) {
                    Some(mapping) if !in_kernel => offset(mapping, *address),
                    _ => *address,
                })
                .collect();
            files.find(file, &places, &mut |n, answer| {
                if let Some(address) = addresses.get(n) {
                    add(*address, answer);
                }
                answered = n + 1;
            });
        }
        let rest = addresses.get(answered..).unwrap_or_default();
        rest.iter()
            .for_each(|address| add(*address, &Answer::default()));
    }
}

/// The offset in its file of `address`, which is in `mapping`. The guest chooses the mappings, so
/// it can have any value.
fn offset(mapping: &Mapping, address: u64) -> u64 {
    (address - mapping.start).wrapping_add(mapping.offset)
}

/// Appends the label of an address of the kernel.
fn describe_kernel(out: &mut String, answer: &Answer<'_>) {
    // Writing to a `String` does not fail.
    if let Some((name, distance)) = answer.function {
        let _ = write!(out, "{name}+{distance:#x} ");
    }
    out.push_str(modules::KERNEL);
    if let Some((path, line)) = answer.line {
        let _ = write!(out, " ({path}:{line})");
    }
}

/// Appends the label of `address`, which is in `mapping`.
fn describe(out: &mut String, mapping: &Mapping, address: u64, answer: &Answer<'_>, cwd: &Path) {
    let module = mapping.name.rsplit('/').next().unwrap_or_default();
    // Writing to a `String` does not fail.
    let _ = match answer.function {
        Some((name, distance)) => write!(out, "{name}+{distance:#x}"),
        None if module.is_empty() => write!(out, "[anonymous]+{:#x}", address - mapping.start),
        None => write!(out, "{module}+{:#x}", offset(mapping, address)),
    };
    match answer.line {
        None if answer.function.is_some() => {
            let _ = write!(out, " ({module})");
        }
        line => push_line(out, line, cwd),
    }
}

/// Appends a source line, relative to `cwd`.
fn push_line(out: &mut String, line: Option<(&str, u32)>, cwd: &Path) {
    if let Some((path, line)) = line {
        let path = Path::new(path);
        let short = path.strip_prefix(cwd).unwrap_or(path);
        // Writing to a `String` does not fail.
        let _ = write!(out, " ({}:{line})", short.display());
    }
}

#[cfg(test)]
mod tests;
