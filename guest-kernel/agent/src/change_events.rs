//! Notices when a process maps code, and when a task gets another name: the kernel's perf events of
//! each processor tell, as they tell perf record. Without them, these are only known where a task
//! stops.
//!
//! A mapping wakes this process. A name does not: what executes when is to be as without names.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::{c_int, c_void, pid_t};

/// Size in bytes of a page, and of the first one of a mapping, which has no events.
const PAGE: usize = 4096;
/// Size in bytes of the events of a processor.
const EVENTS: usize = 8 * PAGE;
/// Offsets in the first page (`struct perf_event_mmap_page`).
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;

const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_COUNT_SW_DUMMY: u64 = 9;
/// Flags of `struct perf_event_attr`: executable mappings, names of tasks, a wake-up by the size of
/// the events, and a mark at the names that are those of programs.
const MMAP: u64 = 1 << 8;
const COMM: u64 = 1 << 9;
const WATERMARK: u64 = 1 << 14;
const COMM_EXEC: u64 = 1 << 24;
const PERF_FLAG_FD_CLOEXEC: u64 = 1 << 3;
const PERF_RECORD_MMAP: u32 = 1;
const PERF_RECORD_COMM: u32 = 3;
/// `PERF_RECORD_MISC_COMM_EXEC` in the first word of an event: an exec gives the task the name. Its
/// stop is yet to come.
const OF_EXEC: u64 = 1 << (32 + 13);

/// `struct perf_event_attr` of include/uapi/linux/perf_event.h, up to `PERF_ATTR_SIZE_VER0`.
#[derive(Debug, Default)]
#[repr(C)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_watermark: u32,
    bp_type: u32,
    bp_addr: u64,
}

/// The events of one processor.
#[derive(Debug)]
struct Ring {
    file: File,
    memory: *mut u8,
}

/// Processes and tasks with events.
#[derive(Debug, Default)]
pub struct Changes {
    /// The processes that have mapped code.
    pub mapped: BTreeSet<pid_t>,
    /// The tasks that have another name.
    pub renamed: BTreeSet<pid_t>,
}

/// The events of all processors.
#[derive(Debug, Default)]
pub struct ChangeEvents {
    mappings: Vec<Ring>,
    names: Vec<Ring>,
}

impl ChangeEvents {
    /// Opens the events of all processors that have some.
    pub fn open() -> Self {
        // SAFETY: sysconf takes no pointers.
        let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
        let rings = |flags: u64, wakeup: u32| {
            let rings = (0..processors.max(0)).map(|cpu| Ring::open(cpu as c_int, flags, wakeup));
            rings.filter_map(Result::ok).collect()
        };
        Self {
            mappings: rings(MMAP, 1),
            names: rings(COMM | COMM_EXEC, u32::MAX),
        }
    }

    /// Returns whether a processor has events of mappings.
    pub fn have_mappings(&self) -> bool {
        !self.mappings.is_empty()
    }

    /// The descriptors that are readable when [`Self::take`] has something to return.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.mappings.iter().map(|ring| ring.file.as_fd())
    }

    /// Takes the events since the last call.
    pub fn take(&mut self) -> Changes {
        let mut changes = Changes::default();
        for ring in self.mappings.iter_mut().chain(&mut self.names) {
            ring.take(&mut changes);
        }
        changes
    }
}

impl Ring {
    /// Opens the events of a processor that `flags` select. They wake a waiting process when there
    /// are `wakeup` bytes of them, or as many as there is room for.
    fn open(cpu: c_int, flags: u64, wakeup: u32) -> io::Result<Self> {
        let attributes = Attributes {
            kind: PERF_TYPE_SOFTWARE,
            size: size_of::<Attributes>() as u32,
            config: PERF_COUNT_SW_DUMMY,
            flags: flags | WATERMARK,
            wakeup_watermark: wakeup,
            ..Attributes::default()
        };
        let (every_task, no_group): (pid_t, c_int) = (-1, -1);
        // SAFETY: the kernel reads as many bytes of the attributes as their size says. The result
        // is a new descriptor.
        let file = unsafe {
            let fd = libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                every_task,
                cpu,
                no_group,
                PERF_FLAG_FD_CLOEXEC,
            );
            match c_int::try_from(fd) {
                Ok(fd) if fd >= 0 => File::from_raw_fd(fd),
                _ => return Err(io::Error::last_os_error()),
            }
        };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the new mapping replaces none.
        let memory = unsafe {
            libc::mmap(
                ptr::null_mut::<c_void>(),
                PAGE + EVENTS,
                access,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            file,
            memory: memory.cast(),
        })
    }

    /// A position in the events, which the kernel and this process share.
    fn position(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the first page of the mapping has an aligned word there, which lives as long as
        // this value.
        unsafe { &*self.memory.add(offset).cast::<AtomicU64>() }
    }

    /// The 8 bytes of the events at `position`. Events are aligned to them.
    fn word(&self, position: u64) -> u64 {
        let offset = PAGE + (position as usize % EVENTS);
        // SAFETY: the offset is in the mapping, and aligned. The kernel does not change events
        // before they are taken.
        unsafe { self.memory.add(offset).cast::<u64>().read() }
    }

    /// Adds the processes and tasks of the new events.
    fn take(&mut self, changes: &mut Changes) {
        let head = self.position(DATA_HEAD).load(Ordering::Acquire);
        let mut tail = self.position(DATA_TAIL).load(Ordering::Relaxed);
        while tail < head {
            // `struct perf_event_header`: type (32 bits), misc (16), size (16).
            let header = self.word(tail);
            let size = header >> 48;
            // The process ID is in the low half, the thread ID in the high one.
            let ids = self.word(tail + 8);
            match header as u32 {
                PERF_RECORD_MMAP => changes.mapped.insert(ids as u32 as pid_t),
                PERF_RECORD_COMM if header & OF_EXEC == 0 => {
                    changes.renamed.insert((ids >> 32) as pid_t)
                }
                _ => false,
            };
            tail += size.max(8);
        }
        self.position(DATA_TAIL).store(head, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping any more.
        unsafe { libc::munmap(self.memory.cast(), PAGE + EVENTS) };
    }
}
