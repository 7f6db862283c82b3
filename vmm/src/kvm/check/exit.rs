//! The exits of a scratch machine.

use std::fmt;

use super::tables::event_name;
use super::time_limit::LIMIT;

/// Why KVM_RUN returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// HLT.
    Halt,
    /// The handler of this vector was entered.
    Event(u8),
    /// SYSCALL or SYSENTER has reached its entry point.
    SystemCall,
    /// OUT to another port: port and value.
    Out(u16, u64),
    /// IN from a port.
    In(u16),
    /// A write where there is no RAM: address, size in bytes, value.
    MmioWrite(u64, usize, u64),
    /// A read where there is no RAM: address, size in bytes.
    MmioRead(u64, usize),
    /// WRMSR: index and value.
    Wrmsr(u32, u64),
    /// RDMSR.
    Rdmsr(u32),
    /// An interrupt can be injected now.
    Window,
    /// Guest debugging: DR6.
    Debug(u64),
    /// The task-priority register was written.
    TaskPriority(u8),
    /// Triple fault.
    Shutdown,
    /// KVM cannot emulate an instruction.
    EmulationFailure,
    /// The time limit was reached.
    Stuck,
    /// Another exit.
    Other(String),
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Halt => f.write_str("HLT"),
            Self::Event(vector) => f.write_str(&event_name(*vector)),
            Self::SystemCall => f.write_str("a system call"),
            Self::Out(port, value) => write!(f, "OUT of {value:#x} to port {port:#x}"),
            Self::In(port) => write!(f, "IN from port {port:#x}"),
            Self::MmioWrite(gpa, size, value) => {
                write!(f, "a write of {value:#x} ({size} bytes) to {gpa:#x}")
            }
            Self::MmioRead(gpa, size) => write!(f, "a read of {size} bytes from {gpa:#x}"),
            Self::Wrmsr(index, value) => write!(f, "WRMSR of {value:#x} to MSR {index:#x}"),
            Self::Rdmsr(index) => write!(f, "RDMSR of MSR {index:#x}"),
            Self::Window => f.write_str("an open interrupt window"),
            Self::Debug(dr6) => write!(f, "a debug exit (DR6 {dr6:#x})"),
            Self::TaskPriority(tpr) => write!(f, "a write of {tpr} to CR8"),
            Self::Shutdown => f.write_str("a triple fault"),
            Self::EmulationFailure => f.write_str("KVM's \"emulation failure\""),
            Self::Stuck => write!(f, "no exit within {} ms", LIMIT.as_millis()),
            Self::Other(what) => f.write_str(what),
        }
    }
}
