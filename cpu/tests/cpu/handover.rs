//! What happens to a processor that another accelerator executes at times, or that is one of
//! several: events that were accepted elsewhere, code that changes unseen, time and CPUID.

use crate::common::{DATA, Guest, KERNEL, USER, handler};
use iced_x86::code_asm::*;
use vbts_cpu::state::gpr::{RAX, RBX, RCX, RDI, RDX, RSI};
use vbts_cpu::state::vector::{DB, GP, NMI, UD};
use vbts_cpu::state::{Activity, PendingEvent};
use vbts_cpu::{Clock, Exit, HostClock, Signals, Topology};

/// A page of kernel memory for a second piece of code.
const OTHER: u64 = 0x3_0000;

/// `mov eax, value; ret`.
fn function(value: u32) -> Vec<u8> {
    let mut code = vec![0xB8];
    code.extend(value.to_le_bytes());
    code.push(0xC3);
    code
}

#[test]
fn an_accepted_event_comes_before_the_next_instruction() {
    for (event, vector) in [
        (PendingEvent::Interrupt(0x41), 0x41),
        (PendingEvent::Nmi, NMI),
        (PendingEvent::Debug(1), DB),
    ] {
        let mut g = Guest::kernel(|a| a.ud2());
        g.update(|s| s.pending = Some(event));
        assert_eq!(g.soft.cpu.state().pending, Some(event));
        let frame = g.run_to_exception(vector, None);
        assert_eq!(frame.rip, KERNEL);
        let state = g.soft.cpu.state();
        assert_eq!(state.pending, None);
        assert_eq!(state.nmi_blocked, event == PendingEvent::Nmi);
        assert_eq!(state.sys.dr6 & 1 != 0, event == PendingEvent::Debug(1));
    }
}

#[test]
fn an_accepted_interrupt_ends_a_halt() {
    let mut g = Guest::kernel(|a| a.hlt());
    g.update(|s| {
        s.activity = Activity::Halted;
        s.pending = Some(PendingEvent::Interrupt(0x41));
    });
    g.run_to(handler(0x41) + 1);
}

/// Calls the function, waits for a HLT to be ended, does `between`, and calls it again: RBX, then
/// RAX.
fn call_twice(
    between: impl FnOnce(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>,
) -> Guest {
    let mut g = Guest::kernel(|a| {
        a.mov(rsi, OTHER)?;
        a.call(rsi)?;
        a.mov(ebx, eax)?;
        a.hlt()?;
        between(a)?;
        a.call(rsi)?;
        a.hlt()
    });
    g.write_bytes(OTHER, &function(1));
    assert!(matches!(g.run(), Exit::Halt { .. }));
    g.update(|s| s.activity = Activity::Active);
    g.write_unseen(OTHER, &function(2));
    g
}

#[test]
fn code_that_changed_elsewhere_is_seen_after_revalidation() {
    let mut g = call_twice(|_| Ok(()));
    g.soft.revalidate();
    g.run();
    assert_eq!((g.soft.cpu.gpr[RBX], g.soft.cpu.gpr[RAX]), (1, 2));
}

#[test]
fn unchanged_code_survives_revalidation() {
    let mut g = call_twice(|_| Ok(()));
    g.write_unseen(OTHER, &function(1));
    g.soft.revalidate();
    g.run();
    assert_eq!((g.soft.cpu.gpr[RBX], g.soft.cpu.gpr[RAX]), (1, 1));
}

#[test]
fn a_processor_on_the_hosts_time_sees_changed_code_after_a_serializing_instruction() {
    type Program = fn(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>;
    let table: [(&str, Program); 4] = [
        ("CPUID", |a| {
            a.push(rbx)?;
            a.cpuid()?;
            a.pop(rbx)
        }),
        ("MOV CR3", |a| {
            a.mov(rax, cr3)?;
            a.mov(cr3, rax)
        }),
        ("IRETQ", |a| {
            let mut next = a.create_label();
            a.mov(rax, rsp)?;
            a.push(0x18)?;
            a.push(rax)?;
            a.pushfq()?;
            a.push(0x10)?;
            a.lea(rax, ptr(next))?;
            a.push(rax)?;
            a.iretq()?;
            a.set_label(&mut next)?;
            a.nop()
        }),
        ("INVLPG", |a| a.invlpg(byte_ptr(DATA))),
    ];
    for (name, program) in table {
        let mut g = call_twice(program);
        g.soft.cpu.set_topology(Topology { id: 0, count: 2 });
        let clock = HostClock::in_nanoseconds();
        g.soft.cpu.set_clock(Clock::Host(clock));
        g.run();
        assert_eq!((g.soft.cpu.gpr[RBX], g.soft.cpu.gpr[RAX]), (1, 2), "{name}");
    }
}

#[test]
fn init_leaves_the_run_loop() {
    let mut g = Guest::kernel(|a| {
        let mut here = a.create_label();
        a.set_label(&mut here)?;
        a.jmp(here)
    });
    g.platform.signals.raise(Signals::INIT);
    assert_eq!(g.soft.run(1000), Exit::Init);
}

#[test]
fn a_step_is_an_event_or_an_instruction() {
    let mut g = Guest::kernel(|a| {
        a.inc(rbx)?;
        a.inc(rbx)?;
        a.hlt()
    });
    g.update(|s| s.pending = None);
    let start = g.soft.cpu.instructions();
    for n in 1..=2 {
        assert_eq!(g.soft.step(), None);
        assert_eq!(g.soft.cpu.gpr[RBX], n);
        assert_eq!(g.soft.cpu.instructions(), start + n);
    }
    assert_eq!(g.soft.step(), None);
    assert!(matches!(g.soft.step(), Some(Exit::Halt { .. })));
}

#[test]
fn on_the_hosts_time_the_counter_is_the_hosts() {
    let mut g = Guest::kernel(|a| {
        a.rdtsc()?;
        a.hlt()
    });
    g.soft.cpu.set_clock(Clock::Host(HostClock::new(2_000_000)));
    g.soft.cpu.set_tsc_offset(1 << 40);
    let before = HostClock::host_tsc() + (1 << 40);
    g.run();
    let seen = g.soft.cpu.gpr[RDX] << 32 | g.soft.cpu.gpr[RAX];
    assert!((before..HostClock::host_tsc() + (1 << 40)).contains(&seen));
    // The state can come and go without moving it.
    let state = g.soft.cpu.state();
    g.soft.cpu.load_state(&state);
    assert_eq!(g.soft.cpu.tsc_offset(), 1 << 40);
    // CPUID.15H: the crystal's nanoseconds times 2.
    let leaf = g.soft.cpu.cpuid_leaves().find(|l| l.leaf == 0x15).unwrap();
    assert_eq!(
        u64::from(leaf.ecx) * u64::from(leaf.ebx) / u64::from(leaf.eax),
        2_000_000_000
    );
}

#[test]
fn on_the_hosts_time_a_run_returns_soon() {
    let mut g = Guest::kernel(|a| {
        let mut here = a.create_label();
        a.set_label(&mut here)?;
        a.jmp(here)
    });
    g.soft.cpu.set_clock(Clock::Host(HostClock::new(1_000_000)));
    assert_eq!(g.soft.run(u64::MAX), Exit::Deadline);
}

/// A loop around PAUSE, which a processor only leaves when another has done something.
fn spinning(count: u8) -> Guest {
    let mut g = Guest::kernel(|a| {
        let mut here = a.create_label();
        a.set_label(&mut here)?;
        a.pause()?;
        a.jmp(here)
    });
    g.soft.cpu.set_topology(Topology { id: 0, count });
    g
}

#[test]
fn a_processor_that_waits_for_another_lets_it_run() {
    let mut g = spinning(2);
    assert_eq!(g.soft.run(1_000_000), Exit::Pause);
    // The processor stops after the last of so many PAUSE, before the jump behind it.
    let pauses = 256;
    assert_eq!(g.soft.cpu.instructions(), 2 * pauses - 1);
    assert_eq!(g.soft.run(1_000_000), Exit::Pause);
    assert_eq!(g.soft.cpu.instructions(), 4 * pauses - 1);
    // Alone, it can only wait for the time.
    assert_eq!(spinning(1).soft.run(1_000_000), Exit::Deadline);
}

#[test]
fn cpuid_distinguishes_processors() {
    let mut g = Guest::new();
    g.soft.cpu.set_topology(Topology { id: 2, count: 3 });
    let leaf = |g: &Guest, n| g.soft.cpu.cpuid_leaves().find(|l| l.leaf == n).unwrap();
    let one = leaf(&g, 1);
    assert_eq!(one.ebx >> 24, 2, "initial APIC ID");
    assert_eq!(one.ebx >> 16 & 0xFF, 4, "IDs in the package");
    assert_eq!(one.edx >> 28 & 1, 1, "HTT");
    assert_eq!(leaf(&g, 4).eax >> 26, 3, "cores in the package, minus one");
    g.soft.cpu.set_topology(Topology::default());
    assert_eq!(leaf(&g, 1).edx >> 28 & 1, 0);
}

/// Stores XMM0, XMM15 and, as FXSAVE has it, all of the x87 state.
fn store_vectors(a: &mut CodeAssembler) -> Result<(), iced_x86::IcedError> {
    a.mov(edi, DATA as u32)?;
    a.movups(xmmword_ptr(rdi), xmm0)?;
    a.movups(xmmword_ptr(rdi + 16), xmm15)?;
    a.fxsave(ptr(rdi + 0x100))?;
    a.hlt()
}

#[test]
fn registers_that_left_their_reset_values_are_handed_over() {
    // The second time, the processor that takes over has had nothing in them before.
    for filled in [false, true] {
        let mut g = Guest::kernel(store_vectors);
        g.update(|s| {
            if filled {
                s.xmm[0] = 0x1122_3344_5566_7788;
                s.xmm[15] = u128::MAX;
                s.x87.fsw = 7 << 11;
                s.x87.ftw = 1 << 7;
                s.x87.set_st(0, 0x4000 << 64 | 1 << 63);
                s.mxcsr = 0x1FA0;
            }
        });
        g.run();
        let expected = [0x1122_3344_5566_7788, 0, u64::MAX, u64::MAX];
        for (n, value) in (0..).zip(expected) {
            assert_eq!(g.read(DATA + 8 * n), if filled { value } else { 0 });
        }
        let fxsave = DATA + 0x100;
        let status = g.read(fxsave) >> 16;
        assert_eq!(
            status,
            if filled { 0x80_3800 } else { 0 },
            "status and tags"
        );
        let mxcsr = g.read(fxsave + 24) as u32;
        assert_eq!(mxcsr, if filled { 0x1FA0 } else { 0x1F80 });
        assert_eq!(g.read(fxsave + 32), if filled { 1 << 63 } else { 0 });
        assert_eq!(g.soft.cpu.xmm[15], if filled { u128::MAX } else { 0 });
    }
}

/// Linear address of a page that is none of RAM.
const DEVICE: u64 = 0x3F_0000;

/// Maps it where the test platform answers: every byte reads as ones.
fn map_device(g: &mut Guest) {
    g.write(
        0x7000 + 8 * (DEVICE >> 12),
        (crate::common::RAM + 0x10_0000) | 7,
    );
    g.soft.cpu.flush_tlb(false);
}

#[test]
fn the_software_cpu_executes_an_instruction_that_kvm_cannot_emulate() {
    // KVM has to emulate what accesses a device, and its emulator has none of these.
    let program = |a: &mut CodeAssembler| {
        a.mov(edi, DEVICE as u32)?;
        a.paddd(xmm0, xmmword_ptr(rdi))?;
        a.fld(dword_ptr(rdi))?;
        a.inc(ebx)?;
        a.ud2()
    };
    for user in [false, true] {
        let mut g = if user {
            Guest::user(program)
        } else {
            Guest::kernel(program)
        };
        map_device(&mut g);
        g.update(|s| s.xmm[0] = 1 | 2 << 64);
        let before = g.soft.handovers();
        let frame = g.run_to_exception(UD, None);
        let start = if user { USER } else { KERNEL };
        assert_eq!(frame.rip, start + 13);
        assert_eq!(g.soft.cpu.gpr[RBX], 1);
        assert_eq!(
            g.soft.cpu.xmm[0],
            (u128::MAX >> 32 << 32 & !(0xFFFF_FFFF << 64)) | 1 << 64
        );
        // A quiet NaN of ones.
        assert_eq!(g.soft.cpu.x87.st(0) >> 64, 0xFFFF);
        if let (Some(before), Some(after)) = (before, g.soft.handovers()) {
            assert_eq!(after.emulated - before.emulated, 2);
        }
    }
}

#[test]
fn a_repeated_instruction_returns_to_the_run_loop_after_an_access_to_a_device() {
    type Program = fn(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>;
    const COUNT: u64 = 100;
    let programs: [Program; 4] = [
        |a| a.rep().stosd(),
        |a| a.rep().movsd(),
        |a| a.rep().lodsd(),
        |a| a.repne().scasd(),
    ];
    for program in programs {
        let mut g = Guest::kernel(|a| {
            program(a)?;
            a.hlt()
        });
        map_device(&mut g);
        g.update(|s| {
            (s.gpr[RSI], s.gpr[RDI]) = (DEVICE, DEVICE);
            s.gpr[RCX] = COUNT;
        });
        g.soft.soft_only("KVM repeats an access by itself");
        let start = g.soft.cpu.instructions();
        for n in 1..COUNT {
            assert_eq!(g.soft.run(u64::MAX), Exit::Bus);
            assert_eq!(g.soft.cpu.gpr[RCX], COUNT - n);
            assert_eq!(g.soft.cpu.instructions(), start + n);
        }
    }
}

#[test]
fn code_that_is_not_in_ram_is_gp() {
    let mut g = Guest::kernel(|a| {
        a.mov(edi, DEVICE as u32)?;
        a.jmp(rdi)
    });
    map_device(&mut g);
    let frame = g.run_to_exception(GP, Some(0));
    assert_eq!(frame.rip, DEVICE);
}
