//! The tiny guests, and what has to come of each.
//!
//! Conventions: R14 is where the next exception or interrupt has to come from (the RIP in its frame), R15 where the
//! handler of a fault returns to.

use iced_x86::IcedError;
use iced_x86::code_asm::{
    CodeAssembler, al, ax, byte_ptr, cr8, dr0, dr7, dword_ptr, dx, eax, ecx, edx, ptr, qword_ptr,
    r14, r15, rax, rbx, rcx, rdx, rsp, word_ptr,
};

use super::scratch::Mode::{self, Compatibility, Kernel, User};
use super::scratch::msr;
use super::tables::{A, ABSENT, D, DEVICE, FRESH, GATE, KERNEL_DATA, LOCAL_APIC, USER_DATA};

type Code = fn(&mut CodeAssembler) -> Result<(), IcedError>;

/// What happens before the guest's first instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// Nothing.
    Nothing,
    /// KVM_INTERRUPT with this vector.
    Interrupt(u8),
    /// KVM_NMI.
    Nmi,
    /// The interrupt window is asked for.
    Window,
}

/// What a guest has to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// HLT.
    Halt,
    /// OUT of a value to a port.
    Out(u16, u64),
    /// IN from a port, which gives this value.
    In(u16, u64),
    /// A write where there is no RAM: address, size, value.
    MmioWrite(u64, usize, u64),
    /// A read: address, size, and what it gives.
    MmioRead(u64, usize, u64),
    /// WRMSR: index and value.
    Wrmsr(u32, u64),
    /// The same, answered with #GP.
    WrmsrRefused(u32, u64),
    /// RDMSR, and what it gives.
    Rdmsr(u32, u64),
    /// A write to CR8.
    TaskPriority(u8),
    /// An open interrupt window, in which this vector is injected.
    Window(u8),
    /// Nothing, until a signal ends KVM_RUN; then this vector is injected.
    Kicked(u8),
    /// An exception or interrupt: vector, error code, CPL before it.
    Event(u8, Option<u32>, u8),
    /// #PF: error code, CPL before it, and address.
    PageFault(u32, u8, u64),
    /// SYSCALL or SYSENTER has led to CPL 0. RCX and R11 are to be what the first has left there, if `true`.
    SystemCall(bool),
    /// No exit: these bits of a page-table entry.
    PageBits(u64, u64),
    /// No exit: RAX.
    Rax(u64),
}

/// A row of the check.
#[derive(Debug)]
pub struct Guest {
    /// What it shows.
    pub name: &'static str,
    /// In which mode it starts.
    pub mode: Mode,
    /// What happens before.
    pub before: Before,
    /// Its code.
    pub code: Code,
    /// What has to come of it, in this order.
    pub expect: &'static [Expect],
}

/// Page-fault error codes (SDM Vol. 3A 4.7).
const PRESENT: u32 = 1;
const WRITE: u32 = 2;
const USER: u32 = 4;
const FETCH: u32 = 16;

/// TR, BTS and BTINT.
pub const TRACE: u64 = 0x1C0;

const DE: u8 = 0;
const DB: u8 = 1;
const NMI: u8 = 2;
const BP: u8 = 3;
/// #UD.
pub const UD: u8 = 6;
const GP: u8 = 13;
/// A vector that the interrupt controller might use.
const IRQ: u8 = 0x41;

/// An instruction that faults; the handler goes on after it.
fn fault(a: &mut CodeAssembler, instruction: Code) -> Result<(), IcedError> {
    let (mut at, mut next) = (a.create_label(), a.create_label());
    a.lea(r14, ptr(at))?;
    a.lea(r15, ptr(next))?;
    a.set_label(&mut at)?;
    instruction(a)?;
    a.set_label(&mut next)
}

/// An instruction after which there is a trap.
fn trap(a: &mut CodeAssembler, instruction: Code) -> Result<(), IcedError> {
    let mut next = a.create_label();
    a.lea(r14, ptr(next))?;
    instruction(a)?;
    a.set_label(&mut next)
}

/// The end of a guest at CPL 3: the exception that KVMs get right if they get any.
fn leave(a: &mut CodeAssembler) -> Result<(), IcedError> {
    let mut at = a.create_label();
    a.lea(r14, ptr(at))?;
    a.set_label(&mut at)?;
    a.ud2()
}

/// What [`leave`] comes to.
const LEFT: Expect = Expect::Event(UD, None, 3);

fn ud2(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.ud2()
}

fn int3(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.int3()
}

fn divide(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.div(rcx)
}

fn non_canonical(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(rax, qword_ptr(rbx))
}

/// Exceptions that are the same at each CPL.
fn exceptions(a: &mut CodeAssembler) -> Result<(), IcedError> {
    fault(a, ud2)?;
    trap(a, int3)?;
    fault(a, divide)?;
    a.mov(rbx, 0x8000_0000_0000_0000u64)?;
    fault(a, non_canonical)?;
    fault(a, |a| a.mov(al, byte_ptr(ABSENT + 0x123)))?;
    fault(a, |a| a.mov(byte_ptr(ABSENT + 0xFFF), al))
}

/// The guests, simplest first: the first failure is the one to look at.
pub const GUESTS: &[Guest] = &[
    Guest {
        name: "64-bit mode at CPL 0, memory and HLT",
        mode: Kernel,
        before: Before::Nothing,
        code: |a| {
            a.mov(rax, 0x1122_3344_5566_7788u64)?;
            a.mov(qword_ptr(KERNEL_DATA), rax)?;
            a.xor(eax, eax)?;
            a.push(qword_ptr(KERNEL_DATA))?;
            a.pop(rax)?;
            a.hlt()
        },
        expect: &[Expect::Halt, Expect::Rax(0x1122_3344_5566_7788)],
    },
    Guest {
        name: "accessed and dirty bits",
        mode: Kernel,
        before: Before::Nothing,
        code: |a| {
            a.mov(al, byte_ptr(FRESH[0]))?;
            a.mov(byte_ptr(FRESH[1]), al)?;
            a.hlt()
        },
        expect: &[
            Expect::Halt,
            Expect::PageBits(FRESH[0], A),
            Expect::PageBits(FRESH[1], A | D),
        ],
    },
    Guest {
        name: "I/O ports",
        mode: Kernel,
        before: Before::Nothing,
        code: |a| {
            a.mov(edx, 0x3F8)?;
            a.mov(eax, 0x1234_5678)?;
            a.out(dx, al)?;
            a.out(dx, ax)?;
            a.out(dx, eax)?;
            a.in_(al, dx)?;
            a.in_(eax, 0xF1)?;
            a.hlt()
        },
        expect: &[
            Expect::Out(0x3F8, 0x78),
            Expect::Out(0x3F8, 0x5678),
            Expect::Out(0x3F8, 0x1234_5678),
            Expect::In(0x3F8, 0x9A),
            Expect::In(0xF1, 0x1357_9BDF),
            Expect::Halt,
            Expect::Rax(0x1357_9BDF),
        ],
    },
    Guest {
        name: "memory-mapped registers",
        mode: Kernel,
        before: Before::Nothing,
        code: |a| {
            a.mov(eax, 0x1234_5678)?;
            a.mov(dword_ptr(DEVICE + 8), eax)?;
            a.mov(byte_ptr(DEVICE + 1), al)?;
            a.mov(rbx, qword_ptr(DEVICE + 0x10))?;
            a.movzx(eax, word_ptr(DEVICE + 2))?;
            a.add(rax, rbx)?;
            a.hlt()
        },
        expect: &[
            Expect::MmioWrite(DEVICE + 8, 4, 0x1234_5678),
            Expect::MmioWrite(DEVICE + 1, 1, 0x78),
            Expect::MmioRead(DEVICE + 0x10, 8, 0x1_0000_0000),
            Expect::MmioRead(DEVICE + 2, 2, 0xBEEF),
            Expect::Halt,
            Expect::Rax(0x1_0000_BEEF),
        ],
    },
    Guest {
        name: "the local APIC's registers are the VMM's",
        mode: Kernel,
        before: Before::Nothing,
        code: |a| {
            a.mov(eax, dword_ptr(LOCAL_APIC.0 + 0x30))?;
            a.mov(dword_ptr(LOCAL_APIC.0 + 0xB0), 0)?;
            a.hlt()
        },
        expect: &[
            Expect::MmioRead(LOCAL_APIC.1 + 0x30, 4, 0x5_0014),
            Expect::MmioWrite(LOCAL_APIC.1 + 0xB0, 4, 0),
            Expect::Halt,
            Expect::Rax(0x5_0014),
        ],
    },
    Guest {
        name: "accesses to IA32_DEBUGCTL and IA32_DS_AREA exit",
        mode: Kernel,
        before: Before::Nothing,
        code: |a| {
            a.mov(ecx, msr::DEBUGCTL)?;
            a.mov(eax, TRACE as u32)?;
            a.xor(edx, edx)?;
            a.wrmsr()?;
            a.xor(eax, eax)?;
            a.rdmsr()?;
            a.mov(ecx, msr::DS_AREA)?;
            a.mov(eax, 0x8765_4000u32)?;
            a.mov(edx, 0xFFFF_8888u32)?;
            a.wrmsr()?;
            fault(a, |a| a.wrmsr())?;
            a.rdmsr()?;
            a.shl(rdx, 32)?;
            a.or(rax, rdx)?;
            a.hlt()
        },
        expect: &[
            Expect::Wrmsr(msr::DEBUGCTL, TRACE),
            Expect::Rdmsr(msr::DEBUGCTL, TRACE),
            Expect::Wrmsr(msr::DS_AREA, 0xFFFF_8888_8765_4000),
            Expect::WrmsrRefused(msr::DS_AREA, 0xFFFF_8888_8765_4000),
            Expect::Event(GP, Some(0), 0),
            Expect::Rdmsr(msr::DS_AREA, 0xFFFF_9999_8765_4000),
            Expect::Halt,
            Expect::Rax(0xFFFF_9999_8765_4000),
        ],
    },
    Guest {
        name: "CPUID is the processor model's",
        mode: Kernel,
        before: Before::Nothing,
        code: |a| {
            a.xor(eax, eax)?;
            a.cpuid()?;
            // "GenuineIntel", a part of it
            a.mov(eax, ecx)?;
            a.hlt()
        },
        expect: &[Expect::Halt, Expect::Rax(0x6C65_746E)],
    },
    Guest {
        name: "exceptions at CPL 0",
        mode: Kernel,
        before: Before::Nothing,
        code: |a| {
            exceptions(a)?;
            a.hlt()
        },
        expect: &[
            Expect::Event(UD, None, 0),
            Expect::Event(BP, None, 0),
            Expect::Event(DE, None, 0),
            Expect::Event(GP, Some(0), 0),
            Expect::PageFault(0, 0, ABSENT + 0x123),
            Expect::PageFault(WRITE, 0, ABSENT + 0xFFF),
            Expect::Halt,
        ],
    },
    Guest {
        name: "#UD at CPL 3 reaches CPL 0, and IRET returns",
        mode: User,
        before: Before::Nothing,
        code: |a| {
            fault(a, ud2)?;
            leave(a)
        },
        expect: &[LEFT, LEFT],
    },
    Guest {
        name: "INT from CPL 3 reaches CPL 0, and IRET returns",
        mode: User,
        before: Before::Nothing,
        code: |a| {
            trap(a, |a| a.int(u32::from(GATE)))?;
            trap(a, |a| a.int(u32::from(GATE)))?;
            leave(a)
        },
        expect: &[
            Expect::Event(GATE, None, 3),
            Expect::Event(GATE, None, 3),
            LEFT,
        ],
    },
    Guest {
        name: "exceptions at CPL 3",
        mode: User,
        before: Before::Nothing,
        code: |a| {
            exceptions(a)?;
            leave(a)
        },
        expect: &[
            Expect::Event(UD, None, 3),
            Expect::Event(BP, None, 3),
            Expect::Event(DE, None, 3),
            Expect::Event(GP, Some(0), 3),
            Expect::PageFault(USER, 3, ABSENT + 0x123),
            Expect::PageFault(USER | WRITE, 3, ABSENT + 0xFFF),
            LEFT,
        ],
    },
    Guest {
        name: "CPL 3 cannot do what only CPL 0 can",
        mode: User,
        before: Before::Nothing,
        code: |a| {
            fault(a, |a| a.cli())?;
            fault(a, |a| a.hlt())?;
            fault(a, |a| a.mov(rax, cr8))?;
            fault(a, |a| a.wrmsr())?;
            fault(a, |a| a.in_(al, 0x60))?;
            fault(a, |a| a.mov(al, byte_ptr(KERNEL_DATA)))?;
            fault(a, |a| a.mov(byte_ptr(KERNEL_DATA), al))?;
            leave(a)
        },
        expect: &[
            Expect::Event(GP, Some(0), 3),
            Expect::Event(GP, Some(0), 3),
            Expect::Event(GP, Some(0), 3),
            Expect::Event(GP, Some(0), 3),
            Expect::Event(GP, Some(0), 3),
            Expect::PageFault(USER | PRESENT, 3, KERNEL_DATA),
            Expect::PageFault(USER | PRESENT | WRITE, 3, KERNEL_DATA),
            LEFT,
        ],
    },
    Guest {
        name: "a jump to a page that is not there",
        mode: User,
        before: Before::Nothing,
        code: |a| {
            let mut next = a.create_label();
            a.mov(eax, ABSENT as u32)?;
            a.mov(r14, rax)?;
            a.lea(r15, ptr(next))?;
            a.jmp(rax)?;
            a.set_label(&mut next)?;
            leave(a)
        },
        // IA32_EFER.NXE is set: the fault tells that it was a fetch.
        expect: &[Expect::PageFault(USER | FETCH, 3, ABSENT), LEFT],
    },
    Guest {
        name: "SYSCALL from CPL 3 reaches CPL 0, and SYSRET returns",
        mode: User,
        before: Before::Nothing,
        code: |a| {
            trap(a, |a| a.syscall())?;
            trap(a, |a| a.syscall())?;
            leave(a)
        },
        expect: &[Expect::SystemCall(true), Expect::SystemCall(true), LEFT],
    },
    Guest {
        name: "SYSENTER from compatibility mode reaches CPL 0",
        mode: Compatibility,
        before: Before::Nothing,
        code: |a| a.db(&[0x0F, 0x34]),
        expect: &[Expect::SystemCall(false)],
    },
    Guest {
        name: "INT from compatibility mode reaches CPL 0, and IRET returns",
        mode: Compatibility,
        before: Before::Nothing,
        // Its code cannot set R14. That the second one happens shows where the first returned to.
        code: |a| a.db(&[0xCD, GATE, 0xCD, GATE]),
        expect: &[Expect::Event(GATE, None, 3), Expect::Event(GATE, None, 3)],
    },
    Guest {
        name: "an interrupt at CPL 0",
        mode: Kernel,
        before: Before::Window,
        code: |a| {
            let mut at = a.create_label();
            a.lea(r14, ptr(at))?;
            a.sti()?;
            a.nop()?;
            a.set_label(&mut at)?;
            a.cli()?;
            a.hlt()
        },
        expect: &[
            Expect::Window(IRQ),
            Expect::Event(IRQ, None, 0),
            Expect::Halt,
        ],
    },
    Guest {
        name: "an interrupt at CPL 3",
        mode: User,
        before: Before::Interrupt(IRQ),
        code: leave,
        expect: &[Expect::Event(IRQ, None, 3), LEFT],
    },
    Guest {
        name: "a signal ends a loop at CPL 3, and an interrupt comes there",
        mode: User,
        before: Before::Nothing,
        code: |a| {
            let mut here = a.create_label();
            a.lea(r14, ptr(here))?;
            a.set_label(&mut here)?;
            a.jmp(here)
        },
        expect: &[Expect::Kicked(IRQ), Expect::Event(IRQ, None, 3)],
    },
    Guest {
        name: "a non-maskable interrupt at CPL 0",
        mode: Kernel,
        before: Before::Nmi,
        code: |a| a.hlt(),
        expect: &[Expect::Event(NMI, None, 0), Expect::Halt],
    },
    Guest {
        name: "a non-maskable interrupt at CPL 3",
        mode: User,
        before: Before::Nmi,
        code: leave,
        expect: &[Expect::Event(NMI, None, 3), LEFT],
    },
    Guest {
        name: "TF at CPL 3",
        mode: User,
        before: Before::Nothing,
        code: |a| {
            let mut after = a.create_label();
            a.lea(r14, ptr(after))?;
            a.pushfq()?;
            a.or(dword_ptr(rsp), 0x100)?;
            a.popfq()?;
            a.nop()?;
            a.set_label(&mut after)?;
            a.nop()?;
            a.ud2()
        },
        expect: &[Expect::Event(DB, None, 3)],
    },
    Guest {
        name: "a hardware breakpoint at CPL 0",
        mode: Kernel,
        before: Before::Nothing,
        code: |a| {
            let mut at = a.create_label();
            a.lea(r14, ptr(at))?;
            a.mov(dr0, r14)?;
            a.mov(eax, 0x402)?; // G0, execution
            a.mov(dr7, rax)?;
            a.set_label(&mut at)?;
            a.nop()?;
            a.hlt()
        },
        // The handler takes the breakpoint back.
        expect: &[Expect::Event(DB, None, 0), Expect::Halt],
    },
    Guest {
        name: "the upper half of RAX after 32-bit operations at CPL 3",
        mode: User,
        before: Before::Nothing,
        code: |a| {
            a.mov(rax, u64::MAX)?;
            a.mov(qword_ptr(USER_DATA), rax)?;
            a.add(eax, 2)?;
            leave(a)
        },
        expect: &[LEFT, Expect::Rax(1)],
    },
    Guest {
        name: "the task-priority register is the VMM's",
        mode: Kernel,
        before: Before::Nothing,
        code: |a| {
            a.mov(eax, 5)?;
            a.mov(cr8, rax)?;
            a.mov(rbx, cr8)?;
            a.mov(eax, 2)?;
            a.mov(cr8, rax)?;
            a.mov(rax, rbx)?;
            a.hlt()
        },
        // KVM tells of a lower priority at once, of a higher one at the next exit.
        expect: &[Expect::TaskPriority(2), Expect::Halt, Expect::Rax(5)],
    },
];
