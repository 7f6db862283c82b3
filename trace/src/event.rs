//! What happens between branches.

mod encoding;

pub(crate) use encoding::SELECT;

/// How a task ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It exited with this status.
    Exited(u8),
    /// This signal killed it.
    Killed(u8),
}

/// A signal that kills a task, and the state of the task at the instruction that caused it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crash {
    /// The signal.
    pub signal: u32,
    /// `si_code` of the signal.
    pub code: i32,
    /// The address of the fault (`si_addr`).
    pub address: u64,
    /// RAX, RBX, RCX, RDX, RSI, RDI, RSP, RBP, R8 to R15, RIP, RFLAGS, CS.
    pub registers: Vec<u64>,
    /// The bytes at RIP, as far as they can be read.
    pub instruction: Vec<u8>,
}

/// Where the bytes of [`Event::Code`] come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeSource {
    /// The memory of the process at its end, at an address: code that is in no file, or that was
    /// written over that of a file.
    Memory,
    /// The vDSO, which the kernel has mapped at an address.
    Vdso,
    /// A part of the process's `/tmp/perf-PID.map`, at an offset.
    PerfMap,
    /// A part of the process's `jit-PID.dump`, at an offset.
    JitDump,
}

impl CodeSource {
    const ALL: [Self; 4] = [Self::Memory, Self::Vdso, Self::PerfMap, Self::JitDump];
}

/// What happens to a task, or to a processor, between two of its branches. Times are
/// `CLOCK_MONOTONIC` of the guest in ns. Names and texts are bytes from the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The task is traced from here on.
    Start {
        /// Thread ID in the guest. It can be used again; the number of the task is not.
        id: u32,
        /// Thread ID of the task that has started it; 0 for the first one.
        parent: u32,
        /// The process (thread group) that it belongs to.
        process: u32,
        /// When.
        time: u64,
    },
    /// The task executes a program.
    Exec {
        /// Its thread ID from here on.
        id: u32,
        /// Its thread ID before. It differs if a thread that is not the leader executes.
        former: u32,
        /// When.
        time: u64,
        /// Path of the program.
        name: Vec<u8>,
    },
    /// The path of the program that the task executes, and has executed before: the trace does not
    /// have the task that it has got it from.
    Name(Vec<u8>),
    /// The name that the task has in the guest's kernel from here on (`/proc/TID/comm`). Until
    /// then, and after each exec, that is the name of its program.
    ThreadName(Vec<u8>),
    /// The task has ended.
    End {
        /// When.
        time: u64,
        /// How.
        status: Status,
    },
    /// At least this many records of the task are missing here.
    Lost(u64),
    /// The guest's kernel has marked one record invalid.
    Invalid,
    /// The user did not want this many branches of the task, which were here.
    Filtered(u64),
    /// The task gets a signal.
    Signal {
        /// When.
        time: u64,
        /// The signal.
        signal: u32,
    },
    /// The task arrives on a processor.
    Arrive {
        /// When.
        time: u64,
    },
    /// The task departs from a processor.
    Depart {
        /// When.
        time: u64,
    },
    /// A signal kills the task for what its instruction did.
    Crash(Box<Crash>),
    /// The run has ended before the task did.
    Standing {
        /// The line of `/proc/TID/syscall`.
        syscall: Vec<u8>,
        /// Its name in the guest's kernel.
        name: Vec<u8>,
    },
    /// Another task is not traced, or not any more.
    Untraced {
        /// Its thread ID.
        id: u32,
        /// Thread ID of the task that has started it.
        parent: u32,
        /// When.
        time: u64,
        /// Its name in the guest's kernel.
        name: Vec<u8>,
        /// The reason for the user.
        reason: Vec<u8>,
    },
    /// The mappings of a process from here on.
    Maps {
        /// The process.
        process: u32,
        /// The text of `/proc/PID/maps`.
        text: Vec<u8>,
    },
    /// The last task of a process has ended.
    ProcessEnd {
        /// The process.
        process: u32,
    },
    /// Code of the guest's kernel differs in memory from that in its file.
    KernelCode {
        /// Its linear address.
        address: u64,
        /// The bytes in memory.
        bytes: Vec<u8>,
    },
    /// A piece of an ELF file with the symbols and the code of the guest's kernel, if the kernel's
    /// own file has none. It has the addresses of the running kernel.
    KernelFile {
        /// Offset of the piece.
        at: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Code that is in no file, or a part of what its compiler says about it.
    Code {
        /// The process.
        process: u32,
        /// Where it comes from.
        source: CodeSource,
        /// An address, or an offset: see [`CodeSource`].
        at: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// The build ID of a file that is mapped as code.
    BuildId {
        /// The build ID.
        id: Vec<u8>,
        /// The name of its mappings: a path.
        name: Vec<u8>,
    },
    /// The address space of the processor from here on. Times of processors are those of the
    /// machine since its start.
    AddressSpace {
        /// CR3.
        cr3: u64,
        /// When.
        time: u64,
    },
    /// The processor executes this task of the guest's kernel from here on.
    Switch {
        /// Its thread ID.
        id: u32,
        /// The process (thread group) that it belongs to.
        process: u32,
        /// When.
        time: u64,
        /// Its name in the guest's kernel.
        name: Vec<u8>,
    },
    /// Another accelerator has executed the processor until here, and its branches are missing.
    Gap {
        /// For how long, in ns.
        duration: u64,
        /// When that ended.
        time: u64,
    },
}

impl Event {
    /// When, if the event has a time.
    pub fn time(&self) -> Option<u64> {
        match self {
            Self::Start { time, .. }
            | Self::Exec { time, .. }
            | Self::End { time, .. }
            | Self::Arrive { time }
            | Self::Depart { time }
            | Self::Untraced { time, .. }
            | Self::AddressSpace { time, .. }
            | Self::Switch { time, .. }
            | Self::Gap { time, .. }
            | Self::Signal { time, .. } => Some(*time),
            _ => None,
        }
    }

    /// Size in bytes of its names and texts.
    pub fn size(&self) -> usize {
        match self {
            Self::Exec { name, .. }
            | Self::Switch { name, .. }
            | Self::Name(name)
            | Self::ThreadName(name) => name.len(),
            Self::Crash(crash) => {
                size_of::<Crash>()
                    + size_of_val(crash.registers.as_slice())
                    + crash.instruction.len()
            }
            Self::Standing { syscall, name } => syscall.len() + name.len(),
            Self::BuildId { id, name } => id.len() + name.len(),
            Self::Untraced { name, reason, .. } => name.len() + reason.len(),
            Self::Maps { text, .. } => text.len(),
            Self::KernelCode { bytes, .. }
            | Self::KernelFile { bytes, .. }
            | Self::Code { bytes, .. } => bytes.len(),
            _ => 0,
        }
    }
}
