//! The format of Linux perf's files: records, and the sections of a file
//! (tools/perf/Documentation/perf.data-file-format.txt and include/uapi/linux/perf_event.h of
//! Linux). Numbers are little-endian.

use std::io;

use vbts_trace::Branch;

use super::Out;

/// `PERFILE2`.
const MAGIC: u64 = 0x3245_4C49_4652_4550;
/// Size in bytes of the header of a file.
const HEADER_SIZE: u64 = 104;
/// Size in bytes of `perf_event_attr`, version 5.
const ATTR_SIZE: u64 = 112;
/// Size in bytes of the offset and the size of a section.
const SECTION_SIZE: u64 = 16;
/// Where the records begin.
const DATA_OFFSET: u64 = HEADER_SIZE + ATTR_SIZE + SECTION_SIZE;

/// The event: taken branches (`PERF_TYPE_HARDWARE`, `PERF_COUNT_HW_BRANCH_INSTRUCTIONS`).
const BRANCH_INSTRUCTIONS: u64 = 4;
/// Parts of a sample: IP, TID, TIME, PERIOD, BRANCH_STACK.
const SAMPLE_TYPE: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 8 | 1 << 11;
/// Flags of `perf_event_attr`.
const EXCLUDE_USER: u64 = 1 << 4;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HV: u64 = 1 << 6;
const MMAP: u64 = 1 << 8;
const COMM: u64 = 1 << 9;
const TASK: u64 = 1 << 13;
const SAMPLE_ID_ALL: u64 = 1 << 18;
const MMAP2: u64 = 1 << 23;
const COMM_EXEC: u64 = 1 << 24;
const BUILD_ID: u64 = 1 << 34;
/// Which branches the branch stacks have.
const BRANCH_USER: u64 = 1;
const BRANCH_KERNEL: u64 = 1 << 1;
const BRANCH_ANY: u64 = 1 << 3;

/// Types of records.
const RECORD_LOST: u32 = 2;
const RECORD_COMM: u32 = 3;
const RECORD_EXIT: u32 = 4;
const RECORD_FORK: u32 = 7;
const RECORD_SAMPLE: u32 = 9;
const RECORD_MMAP2: u32 = 10;
/// Flags in the header of a record.
const MISC_KERNEL: u16 = 1;
const MISC_USER: u16 = 2;
const MISC_COMM_EXEC: u16 = 1 << 13;
const MISC_MMAP_BUILD_ID: u16 = 1 << 14;
/// `PROT_READ | PROT_EXEC` and `MAP_PRIVATE`.
const READ_EXECUTE: u32 = 5;
const PRIVATE: u32 = 2;
/// Maximum size in bytes of a build ID in a record.
const MAX_BUILD_ID: usize = 20;
/// Maximum length in bytes of a task's name (`TASK_COMM_LEN`).
const MAX_COMM: usize = 15;
/// Maximum length in bytes of a path (`PATH_MAX`).
const MAX_PATH: usize = 4096;

/// Numbers of optional sections.
const OS_RELEASE: u32 = 4;
const VERSION: u32 = 5;
const ARCH: u32 = 6;
const CMDLINE: u32 = 11;
const BRANCH_STACK: u32 = 15;
/// Strings are padded to a multiple of so many bytes.
const STRING_ALIGN: usize = 64;

/// Number of branches in a branch stack. A record has at most 64 KiB.
pub(crate) const STACK_SIZE: usize = 2048;

/// Which branches a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scope {
    /// Those of programs.
    pub user: bool,
    /// Those of the kernel.
    pub kernel: bool,
}

/// A task of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Task {
    /// Process.
    pub process: u32,
    /// Thread ID.
    pub id: u32,
}

impl Task {
    /// The kernel.
    pub(crate) const KERNEL: Self = Self {
        process: u32::MAX,
        id: 0,
    };
}

/// A mapping of code.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CodeMapping<'a> {
    /// First address.
    pub start: u64,
    /// Size in bytes.
    pub size: u64,
    /// Offset in the file of the first address.
    pub offset: u64,
    /// Path, or another name.
    pub name: &'a [u8],
    /// The build ID of the file, if it is known.
    pub build_id: Option<&'a [u8]>,
}

/// A record while it is made.
#[derive(Debug, Default)]
pub(crate) struct Record(Vec<u8>);

impl Record {
    fn begin(&mut self, kind: u32, misc: u16) -> &mut Self {
        self.0.clear();
        self.u32(kind);
        self.0.extend_from_slice(&misc.to_le_bytes());
        // The size follows when it is known.
        self.0.extend_from_slice(&[0; 2]);
        self
    }

    fn u32(&mut self, number: u32) -> &mut Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn u64(&mut self, number: u64) -> &mut Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn task(&mut self, task: Task) -> &mut Self {
        self.u32(task.process).u32(task.id)
    }

    /// Text with a zero at its end, padded to 8 bytes.
    fn text(&mut self, text: &[u8], most: usize) -> &mut Self {
        let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
        let text = text.get(..most).unwrap_or(text);
        self.0.extend_from_slice(text);
        let length = self.0.len() + 1;
        self.0.resize(length.next_multiple_of(8), 0);
        self
    }

    fn finish(&mut self) -> &[u8] {
        let size = u16::try_from(self.0.len()).unwrap_or(u16::MAX);
        if let Some(bytes) = self.0.get_mut(6..8) {
            bytes.copy_from_slice(&size.to_le_bytes());
        }
        &self.0
    }

    /// What other records than samples end with: the task and the time.
    fn finish_with(&mut self, task: Task, time: u64) -> &[u8] {
        self.task(task).u64(time).finish()
    }

    /// A task has this name, because it executes another program if `is_exec`.
    pub(crate) fn comm(&mut self, task: Task, name: &[u8], is_exec: bool, time: u64) -> &[u8] {
        let misc = if is_exec { MISC_COMM_EXEC } else { 0 };
        self.begin(RECORD_COMM, misc)
            .task(task)
            .text(name, MAX_COMM)
            .finish_with(task, time)
    }

    /// A task starts.
    pub(crate) fn fork(&mut self, task: Task, parent: Task, time: u64) -> &[u8] {
        self.begin(RECORD_FORK, 0).parents(task, parent, time)
    }

    /// A task ends.
    pub(crate) fn exit(&mut self, task: Task, time: u64) -> &[u8] {
        self.begin(RECORD_EXIT, 0).parents(task, task, time)
    }

    fn parents(&mut self, task: Task, parent: Task, time: u64) -> &[u8] {
        self.u32(task.process)
            .u32(parent.process)
            .u32(task.id)
            .u32(parent.id)
            .u64(time)
            .finish_with(parent, time)
    }

    /// So many branches are missing.
    pub(crate) fn lost(&mut self, task: Task, count: u64, time: u64) -> &[u8] {
        self.begin(RECORD_LOST, 0)
            .u64(0)
            .u64(count)
            .finish_with(task, time)
    }

    /// Code is mapped.
    pub(crate) fn mmap(&mut self, task: Task, mapping: &CodeMapping<'_>, time: u64) -> &[u8] {
        let id = mapping
            .build_id
            .map(|id| id.get(..MAX_BUILD_ID).unwrap_or(id));
        let mode = match task {
            Task::KERNEL => MISC_KERNEL,
            _ => MISC_USER,
        };
        let with_id = if id.is_some() { MISC_MMAP_BUILD_ID } else { 0 };
        self.begin(RECORD_MMAP2, mode | with_id)
            .task(task)
            .u64(mapping.start)
            .u64(mapping.size)
            .u64(mapping.offset);
        // The size of the build ID, three unused bytes, the build ID; or device and inode.
        let mut identity = [0; 24];
        for (byte, from) in identity.iter_mut().skip(4).zip(id.unwrap_or_default()) {
            *byte = *from;
        }
        if let (Some(size), Some(id)) = (identity.first_mut(), id) {
            *size = id.len() as u8;
        }
        self.0.extend_from_slice(&identity);
        self.u32(READ_EXECUTE)
            .u32(PRIVATE)
            .text(mapping.name, MAX_PATH)
            .finish_with(task, time)
    }

    /// The next branches of a task, at most [`STACK_SIZE`], oldest first.
    pub(crate) fn sample(
        &mut self,
        task: Task,
        branches: &[Branch],
        is_kernel: bool,
        time: u64,
    ) -> &[u8] {
        let misc = if is_kernel { MISC_KERNEL } else { MISC_USER };
        let count = branches.len() as u64;
        let at = branches.last().map_or(0, |branch| branch.to);
        self.begin(RECORD_SAMPLE, misc)
            .u64(at)
            .task(task)
            .u64(time)
            .u64(count)
            .u64(count);
        // The youngest comes first. Nothing is known of predictions and cycles.
        for branch in branches.iter().rev() {
            self.u64(branch.from).u64(branch.to).u64(0);
        }
        self.finish()
    }
}

/// A section with strings.
fn strings(texts: &[&str], counted: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    if counted {
        bytes.extend_from_slice(&(texts.len() as u32).to_le_bytes());
    }
    for text in texts {
        let text = text.split('\0').next().unwrap_or_default();
        let size = (text.len() + 1).next_multiple_of(STRING_ALIGN);
        bytes.extend_from_slice(&(size as u32).to_le_bytes());
        let end = bytes.len() + size;
        bytes.extend_from_slice(text.as_bytes());
        bytes.resize(end, 0);
    }
    bytes
}

/// What a file says about the run.
#[derive(Debug)]
pub(crate) struct About<'a> {
    /// Which branches it has.
    pub scope: Scope,
    /// The traced command.
    pub command: &'a [String],
    /// The program that writes the file.
    pub writer: &'a str,
}

/// Writes the beginning of a file whose records have `size` bytes.
///
/// # Errors
/// The output fails.
pub(crate) fn begin(about: &About<'_>, size: u64, out: &mut Out<'_>) -> io::Result<()> {
    let features = [OS_RELEASE, VERSION, ARCH, CMDLINE, BRANCH_STACK];
    let bits = features.iter().fold(0_u64, |bits, bit| bits | 1 << bit);
    let header = [
        MAGIC,
        HEADER_SIZE,
        ATTR_SIZE + SECTION_SIZE,
        // The events.
        HEADER_SIZE,
        ATTR_SIZE + SECTION_SIZE,
        // The records.
        DATA_OFFSET,
        size,
        // The types of events: perf does not use them any more.
        0,
        0,
        bits,
        0,
        0,
        0,
    ];
    let scope = about.scope;
    let mut flags = EXCLUDE_HV | MMAP | COMM | TASK | SAMPLE_ID_ALL | MMAP2 | COMM_EXEC | BUILD_ID;
    let mut stacks = BRANCH_ANY;
    match scope.user {
        true => stacks |= BRANCH_USER,
        false => flags |= EXCLUDE_USER,
    }
    match scope.kernel {
        true => stacks |= BRANCH_KERNEL,
        false => flags |= EXCLUDE_KERNEL,
    }
    let attr = [
        // PERF_TYPE_HARDWARE is 0.
        ATTR_SIZE << 32,
        BRANCH_INSTRUCTIONS,
        STACK_SIZE as u64,
        SAMPLE_TYPE,
        0,
        flags,
        0,
        0,
        0,
        stacks,
        0,
        0,
        0,
        0,
        // The event has no IDs.
        DATA_OFFSET,
        0,
    ];
    for number in header.iter().chain(&attr) {
        out.write_all(&number.to_le_bytes())?;
    }
    Ok(())
}

/// Writes the end of a file whose records have `size` bytes.
///
/// # Errors
/// The output fails.
pub(crate) fn end(about: &About<'_>, size: u64, out: &mut Out<'_>) -> io::Result<()> {
    let command: Vec<&str> = about.command.iter().map(String::as_str).collect();
    let sections = [
        strings(&["Linux"], false),
        strings(&[about.writer], false),
        strings(&["x86_64"], false),
        strings(&command, true),
        // That there are branch stacks needs no contents.
        Vec::new(),
    ];
    let mut at = DATA_OFFSET + size + SECTION_SIZE * sections.len() as u64;
    for section in &sections {
        let size = section.len() as u64;
        out.write_all(&at.to_le_bytes())?;
        out.write_all(&size.to_le_bytes())?;
        at += size;
    }
    for section in &sections {
        out.write_all(section)?;
    }
    Ok(())
}
