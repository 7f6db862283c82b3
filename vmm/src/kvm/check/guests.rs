//! The tiny guests that check memory, exits, exceptions, interrupts and system calls.
//!
//! Conventions: R14 is the address from which the next exception or interrupt must come (the RIP in
//! its frame). R15 is the address to which the handler of a fault returns.

use vbts_cpu::DebugCtl;
use vbts_cpu::state::msr;
use vbts_cpu::state::vector::{BP, DB, DE, GP, NMI, UD};

use super::code::{code, fault, leave, trap};
use super::guest::Mode::{Compatibility, Kernel, User};
use super::guest::{Expect, Guest, Setup};
use super::tables::{A, ABSENT, D, DEVICE, FRESH, GATE, KERNEL_DATA, LOCAL_APIC, USER_DATA};

/// Page-fault error codes (SDM Vol. 3A 4.7).
const PRESENT: u32 = 1;
const WRITE: u32 = 2;
const USER: u32 = 4;
const FETCH: u32 = 16;

/// TR, BTS and BTINT in IA32_DEBUGCTL (SDM Vol. 3B 17.4.1).
const TRACE: u64 = DebugCtl::TR
    .union(DebugCtl::BTS)
    .union(DebugCtl::BTINT)
    .bits();

/// A vector that the interrupt controller might use.
const IRQ: u8 = 0x41;

/// The exit that `leave!` causes.
const LEFT: Expect = Expect::Event(UD, None, 3);

/// Exceptions that are possible at each CPL, and then `$end`.
macro_rules! exceptions {
    ($end:expr) => {
        code!(
            fault!("ud2"),
            trap!("int3"),
            fault!("div rcx"),
            "mov rbx, 0x8000000000000000",
            fault!("mov rax, qword ptr [rbx]"),
            fault!("mov al, byte ptr [{absent} + 0x123]"),
            fault!("mov byte ptr [{absent} + 0xFFF], al"),
            $end;
            absent = ABSENT
        )
    };
}

/// The guests, simplest first: the first failure is the most useful one.
pub const GUESTS: &[Guest] = &[
    Guest {
        name: "64-bit mode at CPL 0, memory and HLT",
        mode: Kernel,
        setup: Setup::Nothing,
        code: code!(
            "mov rax, 0x1122334455667788",
            "mov qword ptr [{data}], rax",
            "xor eax, eax",
            "push qword ptr [{data}]",
            "pop rax",
            "hlt";
            data = KERNEL_DATA
        ),
        expect: &[Expect::Halt, Expect::Rax(0x1122_3344_5566_7788)],
    },
    Guest {
        name: "accessed and dirty bits",
        mode: Kernel,
        setup: Setup::Nothing,
        code: code!(
            "mov al, byte ptr [{read}]",
            "mov byte ptr [{written}], al",
            "hlt";
            read = FRESH[0], written = FRESH[1]
        ),
        expect: &[
            Expect::Halt,
            Expect::PageBits(FRESH[0], A),
            Expect::PageBits(FRESH[1], A | D),
        ],
    },
    Guest {
        name: "I/O ports",
        mode: Kernel,
        setup: Setup::Nothing,
        code: code!(
            "mov edx, 0x3F8",
            "mov eax, 0x12345678",
            "out dx, al",
            "out dx, ax",
            "out dx, eax",
            "in al, dx",
            "in eax, 0xF1",
            "hlt"
        ),
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
        setup: Setup::Nothing,
        code: code!(
            "mov eax, 0x12345678",
            "mov dword ptr [{device} + 8], eax",
            "mov byte ptr [{device} + 1], al",
            "mov rbx, qword ptr [{device} + 0x10]",
            "movzx eax, word ptr [{device} + 2]",
            "add rax, rbx",
            "hlt";
            device = DEVICE
        ),
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
        setup: Setup::Nothing,
        code: code!(
            "mov eax, dword ptr [{apic} + 0x30]",
            "mov dword ptr [{apic} + 0xB0], 0",
            "hlt";
            apic = LOCAL_APIC.0
        ),
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
        setup: Setup::Nothing,
        code: code!(
            "mov ecx, {debugctl}",
            "mov eax, {trace}",
            "xor edx, edx",
            "wrmsr",
            "xor eax, eax",
            "rdmsr",
            "mov ecx, {ds_area}",
            "mov eax, 0x87654000",
            "mov edx, 0xFFFF8888",
            "wrmsr",
            fault!("wrmsr"),
            "rdmsr",
            "shl rdx, 32",
            "or rax, rdx",
            "hlt";
            debugctl = msr::IA32_DEBUGCTL, trace = TRACE, ds_area = msr::IA32_DS_AREA
        ),
        expect: &[
            Expect::Wrmsr(msr::IA32_DEBUGCTL, TRACE),
            Expect::Rdmsr(msr::IA32_DEBUGCTL, TRACE),
            Expect::Wrmsr(msr::IA32_DS_AREA, 0xFFFF_8888_8765_4000),
            Expect::WrmsrRefused(msr::IA32_DS_AREA, 0xFFFF_8888_8765_4000),
            Expect::Event(GP, Some(0), 0),
            Expect::Rdmsr(msr::IA32_DS_AREA, 0xFFFF_9999_8765_4000),
            Expect::Halt,
            Expect::Rax(0xFFFF_9999_8765_4000),
        ],
    },
    Guest {
        name: "CPUID is the processor model's",
        mode: Kernel,
        setup: Setup::Nothing,
        code: code!(
            "xor eax, eax",
            "cpuid",
            // "GenuineIntel", a part of it
            "mov eax, ecx",
            "hlt"
        ),
        expect: &[Expect::Halt, Expect::Rax(0x6C65_746E)],
    },
    Guest {
        name: "exceptions at CPL 0",
        mode: Kernel,
        setup: Setup::Nothing,
        code: exceptions!("hlt"),
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
        setup: Setup::Nothing,
        code: code!(fault!("ud2"), leave!()),
        expect: &[LEFT, LEFT],
    },
    Guest {
        name: "INT from CPL 3 reaches CPL 0, and IRET returns",
        mode: User,
        setup: Setup::Nothing,
        code: code!(
            trap!("int {gate}"),
            trap!("int {gate}"),
            leave!();
            gate = GATE
        ),
        expect: &[
            Expect::Event(GATE, None, 3),
            Expect::Event(GATE, None, 3),
            LEFT,
        ],
    },
    Guest {
        name: "exceptions at CPL 3",
        mode: User,
        setup: Setup::Nothing,
        code: exceptions!(leave!()),
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
        name: "CPL 3 cannot execute privileged instructions",
        mode: User,
        setup: Setup::Nothing,
        code: code!(
            fault!("cli"),
            fault!("hlt"),
            fault!("mov rax, cr8"),
            fault!("wrmsr"),
            fault!("in al, 0x60"),
            fault!("mov al, byte ptr [{data}]"),
            fault!("mov byte ptr [{data}], al"),
            leave!();
            data = KERNEL_DATA
        ),
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
        name: "a jump to a page that is not present",
        mode: User,
        setup: Setup::Nothing,
        code: code!(
            "mov eax, {absent}",
            "mov r14, rax",
            "lea r15, [rip + 775f]",
            "jmp rax",
            "775:",
            leave!();
            absent = ABSENT
        ),
        // With IA32_EFER.NXE set, the error code tells that it was an instruction fetch.
        expect: &[Expect::PageFault(USER | FETCH, 3, ABSENT), LEFT],
    },
    Guest {
        name: "SYSCALL from CPL 3 reaches CPL 0, and SYSRET returns",
        mode: User,
        setup: Setup::Nothing,
        code: code!(trap!("syscall"), trap!("syscall"), leave!()),
        expect: &[Expect::SystemCall(true), Expect::SystemCall(true), LEFT],
    },
    Guest {
        name: "SYSENTER from compatibility mode reaches CPL 0",
        mode: Compatibility,
        setup: Setup::Nothing,
        code: code!("sysenter"),
        expect: &[Expect::SystemCall(false)],
    },
    Guest {
        name: "INT from compatibility mode reaches CPL 0, and IRET returns",
        mode: Compatibility,
        setup: Setup::Nothing,
        // Code in this mode cannot set R14. The second INT shows that the first one has returned.
        code: code!("int {gate}", "int {gate}"; gate = GATE),
        expect: &[Expect::Event(GATE, None, 3), Expect::Event(GATE, None, 3)],
    },
    Guest {
        name: "an interrupt at CPL 0",
        mode: Kernel,
        setup: Setup::Window,
        code: code!("lea r14, [rip + 775f]", "sti", "nop", "775:", "cli", "hlt"),
        expect: &[
            Expect::Window(IRQ),
            Expect::Event(IRQ, None, 0),
            Expect::Halt,
        ],
    },
    Guest {
        name: "an interrupt at CPL 3",
        mode: User,
        setup: Setup::Interrupt(IRQ),
        code: code!(leave!()),
        expect: &[Expect::Event(IRQ, None, 3), LEFT],
    },
    Guest {
        name: "a signal ends a loop at CPL 3, and an interrupt is injected there",
        mode: User,
        setup: Setup::Nothing,
        code: code!("lea r14, [rip + 775f]", "775:", "jmp 775b"),
        expect: &[Expect::Kicked(IRQ), Expect::Event(IRQ, None, 3)],
    },
    Guest {
        name: "a non-maskable interrupt at CPL 0",
        mode: Kernel,
        setup: Setup::Nmi,
        code: code!("hlt"),
        expect: &[Expect::Event(NMI, None, 0), Expect::Halt],
    },
    Guest {
        name: "a non-maskable interrupt at CPL 3",
        mode: User,
        setup: Setup::Nmi,
        code: code!(leave!()),
        expect: &[Expect::Event(NMI, None, 3), LEFT],
    },
    Guest {
        name: "TF at CPL 3",
        mode: User,
        setup: Setup::Nothing,
        code: code!(
            "lea r14, [rip + 775f]",
            "pushfq",
            "or dword ptr [rsp], 0x100",
            "popfq",
            "nop",
            "775:",
            "nop",
            "ud2"
        ),
        expect: &[Expect::Event(DB, None, 3)],
    },
    Guest {
        name: "a hardware breakpoint at CPL 0",
        mode: Kernel,
        setup: Setup::Nothing,
        code: code!(
            "lea r14, [rip + 775f]",
            "mov dr0, r14",
            "mov eax, 0x402", // G0, execution
            "mov dr7, rax",
            "775:",
            "nop",
            "hlt"
        ),
        // The handler disables the breakpoint.
        expect: &[Expect::Event(DB, None, 0), Expect::Halt],
    },
    Guest {
        name: "the upper half of RAX after 32-bit operations at CPL 3",
        mode: User,
        setup: Setup::Nothing,
        code: code!(
            "mov rax, 0xFFFFFFFFFFFFFFFF",
            "mov qword ptr [{data}], rax",
            "add eax, 2",
            leave!();
            data = USER_DATA
        ),
        expect: &[LEFT, Expect::Rax(1)],
    },
    Guest {
        name: "the task-priority register is the VMM's",
        mode: Kernel,
        setup: Setup::Nothing,
        code: code!(
            "mov eax, 5",
            "mov cr8, rax",
            "mov rbx, cr8",
            "mov eax, 2",
            "mov cr8, rax",
            "mov rax, rbx",
            "hlt"
        ),
        // KVM reports a lower priority at once, and a higher one at the next exit.
        expect: &[Expect::TaskPriority(2), Expect::Halt, Expect::Rax(5)],
    },
];
