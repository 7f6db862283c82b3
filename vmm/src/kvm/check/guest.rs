//! The description of a tiny guest: its mode, its code, and the exits that it must cause.

use vbts_cpu::state::{rflags, vector};

use super::code::Code;
use super::exit::Exit;
use super::tables::{KERNEL_CODE, KERNEL_STACK, USER_CODE, USER_STACK, selector};

/// The mode in which a guest starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// 64-bit mode at CPL 0, interrupts off.
    Kernel,
    /// 64-bit mode at CPL 3, interrupts on.
    User,
    /// Compatibility mode at CPL 3, interrupts on.
    Compatibility,
}

impl Mode {
    /// Address of the code, top of the stack, CS and SS.
    pub fn layout(self) -> (u64, u64, u16, u16) {
        use selector::{KERNEL_CS, KERNEL_SS, USER_CS, USER_CS_32, USER_SS};
        match self {
            Self::Kernel => (KERNEL_CODE, KERNEL_STACK, KERNEL_CS, KERNEL_SS),
            Self::User => (USER_CODE, USER_STACK, USER_CS, USER_SS),
            Self::Compatibility => (USER_CODE, USER_STACK, USER_CS_32, USER_SS),
        }
    }

    /// RFLAGS at the start.
    pub fn flags(self) -> u64 {
        match self {
            Self::Kernel => rflags::FIXED,
            Self::User | Self::Compatibility => rflags::FIXED | rflags::IF,
        }
    }

    /// The instruction that ends a guest, and its exit.
    pub fn end(self) -> (&'static [u8], Exit) {
        match self {
            // hlt
            Self::Kernel => (&[0xF4], Exit::Halt),
            // ud2
            Self::User | Self::Compatibility => (&[0x0F, 0x0B], Exit::Event(vector::UD)),
        }
    }
}

/// What happens before the guest's first instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setup {
    /// Nothing.
    Nothing,
    /// KVM_INTERRUPT with this vector.
    Interrupt(u8),
    /// KVM_NMI.
    Nmi,
    /// The VMM requests an interrupt window.
    Window,
}

/// The next exit or state that a guest must reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// HLT.
    Halt,
    /// OUT of a value to a port.
    Out(u16, u64),
    /// IN from a port, which returns this value.
    In(u16, u64),
    /// A write where there is no RAM: address, size, value.
    MmioWrite(u64, usize, u64),
    /// A read where there is no RAM: address, size, and the value that it returns.
    MmioRead(u64, usize, u64),
    /// WRMSR: index and value.
    Wrmsr(u32, u64),
    /// WRMSR: index and value. The VMM refuses it, which raises #GP.
    WrmsrRefused(u32, u64),
    /// RDMSR: index, and the value that it returns.
    Rdmsr(u32, u64),
    /// A write to CR8.
    TaskPriority(u8),
    /// An open interrupt window, in which this vector is injected.
    Window(u8),
    /// No exit until a signal ends KVM_RUN. Then this vector is injected.
    Kicked(u8),
    /// An exception or interrupt: vector, error code, CPL before it.
    Event(u8, Option<u32>, u8),
    /// #PF: error code, CPL before it, and address.
    PageFault(u32, u8, u64),
    /// The entry point of SYSCALL (`true`) or SYSENTER at CPL 0. SYSCALL has set RCX and R11.
    SystemCall(bool),
    /// No exit: a page-table entry has these bits.
    PageBits(u64, u64),
    /// No exit: RAX has this value.
    Rax(u64),
}

/// A tiny guest.
#[derive(Debug)]
pub struct Guest {
    /// The behaviour that it checks.
    pub name: &'static str,
    /// The mode in which it starts.
    pub mode: Mode,
    /// What happens before its first instruction.
    pub setup: Setup,
    /// Its code.
    pub code: Code,
    /// The expected exits and states, in order.
    pub expect: &'static [Expect],
}
