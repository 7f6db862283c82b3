//! Delivery of events of which the next begins before an instruction is executed. Whatever vector
//! and stack, the run loop keeps control: the run ends at its limit and at a signal. SDM Vol. 3A
//! table 6-5 says what follows: nothing but shutdown ends it on a processor (CVE-2015-5307,
//! CVE-2015-8104).

use crate::common::{
    Gate, Guest, KERNEL, KERNEL_STACK, TSS, USER, USER_STACK, handler, page_table_entry, segment,
    selector,
};
use crate::native_code::native;
use iced_x86::code_asm::*;
use vbts_cpu::state::{ArchState, PendingEvent, SegAttr, cr0, cr4, dr6, gpr, rflags, sreg, vector};
use vbts_cpu::{Exit, Signals, SoftCpu};

/// Instructions and events of a run.
const LIMIT: u64 = 5000;
/// Code of `jmp $` below 64 KBytes, in a page of its own, for handlers.
const HANDLER: u64 = 0xE000;
/// The interrupt descriptor table of 32-bit mode, and the page directory.
const IDT32: u64 = 0xC000;
const DIRECTORY: u64 = 0xD000;
/// Linear address where nothing is mapped.
const NOWHERE: u64 = 0x4000_0000;
const HOLE: u64 = 0x8000_0000_0000;
/// Bits 7 to 0 of a gate's attributes: trap gates for a handler at CPL 3, of 32 and of 16 bits, and
/// an interrupt gate.
const USER_GATE: u64 = 0xEF;
const USER_GATE16: u64 = 0xE7;
const KERNEL_GATE: u64 = 0x8E;

/// What follows an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The handler runs.
    Handled,
    /// #AC is raised while #AC is delivered.
    Endless,
    Shutdown,
}
use Outcome::{Endless, Handled, Shutdown};

/// A kind of stack on which events are delivered, by all vectors.
struct Stack {
    name: &'static str,
    mode: fn(&mut Guest),
    stack: fn(&mut Guest),
    outcome: Outcome,
}

fn set_rsp<const RSP: u64>(g: &mut Guest) {
    g.update(|s| s.gpr[gpr::RSP] = RSP);
}

/// 32-bit protected mode at CPL 3 without paging, with gates of this kind for all vectors.
fn protected<const GATE: u64>(g: &mut Guest) {
    let code = if GATE == KERNEL_GATE {
        selector::KERNEL_CS32
    } else {
        selector::USER_CS32 & !3
    };
    for vector in 0..256 {
        let gate = HANDLER | u64::from(code) << 16 | GATE << 40;
        g.write(IDT32 + 8 * vector, gate);
    }
    g.write_bytes(HANDLER, &[0xEB, 0xFE]);
    g.write_bytes(USER, &[0xEB, 0xFE]);
    g.update(|s| {
        s.sys.cr0 = cr0::PE | cr0::AM | cr0::ET;
        (s.sys.efer, s.sys.cr4) = (0, 0);
        (s.sys.idtr.base, s.sys.idtr.limit) = (IDT32, 0x7FF);
        s.seg[sreg::CS] = segment(selector::USER_CS32);
        for n in [sreg::ES, sreg::SS, sreg::DS] {
            s.seg[n] = segment(selector::USER_SS);
        }
        (s.rip, s.gpr[gpr::RSP]) = (USER, USER_STACK);
        s.rflags |= rflags::AC;
    });
}

/// [`protected`] with paging. The first 4 MBytes are mapped.
fn paged<const GATE: u64>(g: &mut Guest) {
    protected::<GATE>(g);
    g.write(DIRECTORY, 0x87);
    g.update(|s| {
        s.sys.cr3 = DIRECTORY;
        s.sys.cr4 = cr4::PSE;
        s.sys.cr0 |= cr0::PG;
    });
}

/// The stack for CPL 0 in the TSS.
fn inner<const ESP: u64>(g: &mut Guest) {
    g.write(TSS + 4, ESP | u64::from(selector::KERNEL_SS) << 32);
}

/// 64-bit mode at CPL 3 with handlers at this CPL or at CPL 0, and a stack of the table `IST`.
fn long<const KERNEL_HANDLER: bool, const IST: u8>(g: &mut Guest) {
    let (code, dpl, at) = match KERNEL_HANDLER {
        true => (selector::KERNEL_CS, 0, HANDLER),
        false => (selector::USER_CS, 3, USER + 0x100),
    };
    for vector in 0..=255 {
        g.gate(
            vector,
            Gate {
                selector: code,
                dpl,
                ist: IST,
                ..Gate::to(at)
            },
        );
    }
    g.start_user(|a| a.nop());
    for code in [USER, at] {
        g.write_bytes(code, &[0xEB, 0xFE]);
    }
    g.update(|s| {
        s.sys.cr0 |= cr0::AM;
        s.rflags |= rflags::AC;
    });
}

fn rsp0<const RSP: u64>(g: &mut Guest) {
    g.write(TSS + 4, RSP);
}

fn ist1<const RSP: u64>(g: &mut Guest) {
    g.write(TSS + 0x24, RSP);
}

/// Real-address mode.
fn real(g: &mut Guest) {
    for vector in 0..256 {
        g.write_bytes(4 * vector, &(HANDLER as u32).to_le_bytes());
    }
    g.write_bytes(HANDLER, &[0xEB, 0xFE]);
    g.update(|s| {
        s.sys.cr0 = cr0::ET;
        (s.sys.efer, s.sys.cr4) = (0, 0);
        (s.sys.idtr.base, s.sys.idtr.limit) = (0, 0x3FF);
        for segment in &mut s.seg {
            (segment.selector, segment.base, segment.limit) = (0, 0, 0xFFFF);
            segment.attr &= !(SegAttr::L | SegAttr::DB | SegAttr::G);
        }
        (s.rip, s.gpr[gpr::RSP]) = (HANDLER, 0x7000);
    });
}

const STACKS: &[Stack] = &[
    Stack {
        name: "32 bits, same CPL",
        mode: protected::<USER_GATE>,
        stack: |_| {},
        outcome: Handled,
    },
    Stack {
        name: "32 bits, same CPL, unaligned",
        mode: protected::<USER_GATE>,
        stack: set_rsp::<{ USER_STACK + 1 }>,
        outcome: Endless,
    },
    Stack {
        name: "16-bit gate, unaligned",
        mode: protected::<USER_GATE16>,
        stack: set_rsp::<{ USER_STACK + 1 }>,
        outcome: Endless,
    },
    Stack {
        name: "16-bit stack segment, unaligned",
        mode: protected::<USER_GATE>,
        stack: |g| {
            g.update(|s| {
                s.seg[sreg::SS].attr &= !SegAttr::DB;
                s.gpr[gpr::RSP] = 0x9001;
            });
        },
        outcome: Endless,
    },
    Stack {
        name: "32 bits, beyond the limit",
        mode: protected::<USER_GATE>,
        stack: |g| {
            g.update(|s| {
                (s.seg[sreg::SS].limit, s.gpr[gpr::RSP]) = (0xFFF, 0x2000);
                s.seg[sreg::SS].attr &= !SegAttr::G;
            });
        },
        outcome: Shutdown,
    },
    Stack {
        name: "32 bits, not present",
        mode: paged::<USER_GATE>,
        stack: set_rsp::<NOWHERE>,
        outcome: Shutdown,
    },
    Stack {
        name: "32 bits, unaligned and not present",
        mode: paged::<USER_GATE>,
        stack: set_rsp::<{ NOWHERE + 1 }>,
        outcome: Endless,
    },
    Stack {
        name: "32 bits, inner stack, unaligned",
        mode: protected::<KERNEL_GATE>,
        stack: inner::<{ KERNEL_STACK + 1 }>,
        outcome: Handled,
    },
    Stack {
        name: "32 bits, inner stack, not present",
        mode: paged::<KERNEL_GATE>,
        stack: inner::<NOWHERE>,
        outcome: Shutdown,
    },
    Stack {
        name: "32 bits, no inner stack segment",
        mode: protected::<KERNEL_GATE>,
        stack: |g| g.write(TSS + 4, KERNEL_STACK),
        outcome: Shutdown,
    },
    Stack {
        name: "64 bits, same CPL, unaligned",
        mode: long::<false, 0>,
        stack: set_rsp::<{ USER_STACK + 1 }>,
        outcome: Handled,
    },
    Stack {
        name: "64 bits, same CPL, not present",
        mode: long::<false, 0>,
        stack: set_rsp::<NOWHERE>,
        outcome: Shutdown,
    },
    Stack {
        name: "64 bits, same CPL, the kernel's page",
        mode: long::<false, 0>,
        stack: set_rsp::<KERNEL_STACK>,
        outcome: Shutdown,
    },
    Stack {
        name: "64 bits, same CPL, not canonical",
        mode: long::<false, 0>,
        stack: set_rsp::<HOLE>,
        outcome: Shutdown,
    },
    Stack {
        name: "64 bits, inner stack, not present",
        mode: long::<true, 0>,
        stack: rsp0::<NOWHERE>,
        outcome: Shutdown,
    },
    Stack {
        name: "64 bits, inner stack, not canonical",
        mode: long::<true, 0>,
        stack: rsp0::<HOLE>,
        outcome: Shutdown,
    },
    Stack {
        name: "64 bits, IST, unaligned",
        mode: long::<true, 1>,
        stack: ist1::<{ KERNEL_STACK + 1 }>,
        outcome: Handled,
    },
    Stack {
        name: "64 bits, IST, not present",
        mode: long::<true, 1>,
        stack: ist1::<NOWHERE>,
        outcome: Shutdown,
    },
    Stack {
        name: "real mode, unaligned",
        mode: real,
        stack: set_rsp::<0x7001>,
        outcome: Handled,
    },
    Stack {
        name: "real mode, across the limit",
        mode: real,
        stack: set_rsp::<1>,
        outcome: Shutdown,
    },
];

/// All exceptions, an interrupt, an NMI and a debug trap.
fn events() -> impl Iterator<Item = PendingEvent> {
    let has_error = |v| matches!(v, 8 | 10..=14 | 17);
    let exceptions = (0..=19).filter(|v| ![2, 9, 15].contains(v));
    exceptions
        .map(move |vector| PendingEvent::Exception {
            vector,
            error: has_error(vector).then_some(0),
        })
        .chain([
            PendingEvent::Interrupt(0x41),
            PendingEvent::Nmi,
            PendingEvent::Debug(dr6::BS),
        ])
}

/// The processor of a guest, with and without native code.
fn processors(g: &Guest) -> [SoftCpu; 2] {
    [g.second_processor(), native(g, false, 1 << 20)]
}

/// Runs for [`LIMIT`], and checks that the run does not go beyond.
fn run(soft: &mut SoftCpu) -> Exit {
    let begin = soft.cpu.instructions();
    let exit = soft.run(soft.cpu.now() + LIMIT);
    let took = soft.cpu.instructions() - begin;
    assert!(took <= LIMIT && (exit != Exit::Deadline || took == LIMIT));
    exit
}

/// Checks that the run ends at [`LIMIT`], with the next instruction at `rip`.
fn ends_at_its_limit(soft: &mut SoftCpu, rip: u64) {
    assert_eq!((run(soft), soft.cpu.rip), (Exit::Deadline, rip));
}

/// A guest whose handler of #DB has a stack of its own.
fn with_debug_stack() -> Guest {
    let mut g = Guest::kernel(|a| a.ud2());
    let gate = Gate {
        ist: 1,
        ..Gate::default()
    };
    g.gate(vector::DB, gate);
    g
}

fn outcome(soft: &mut SoftCpu) -> Outcome {
    let at = soft.cpu.rip;
    if run(soft) == Exit::Shutdown {
        return Shutdown;
    }
    const AC: PendingEvent = PendingEvent::Exception {
        vector: vector::AC,
        error: Some(0),
    };
    match soft.cpu.state().pending {
        Some(AC) if soft.cpu.rip == at => Endless,
        None if soft.cpu.rip != at || soft.cpu.cpl == 0 => Handled,
        pending => panic!("{pending:?} at {:#x}", soft.cpu.rip),
    }
}

#[test]
fn delivery_ends_or_the_run_does_by_each_vector_and_stack() {
    for case in STACKS {
        let mut g = Guest::new();
        (case.mode)(&mut g);
        (case.stack)(&mut g);
        for event in events() {
            g.update(|s| s.pending = Some(event));
            for mut soft in processors(&g) {
                assert_eq!(outcome(&mut soft), case.outcome, "{}: {event:?}", case.name);
            }
        }
    }
}

#[test]
fn a_signal_ends_the_run_while_an_exception_is_raised_again_and_again() {
    let mut g = Guest::new();
    protected::<USER_GATE>(&mut g);
    g.update(|s| s.gpr[gpr::RSP] = USER_STACK + 1);
    // MOV EAX, [USER_STACK + 1]
    g.write_bytes(USER, &[0xA1, 1, 0, 0x20, 0]);
    for mut soft in processors(&g) {
        assert_eq!(outcome(&mut soft), Endless);
        soft.cpu.signals().raise(Signals::KICK);
        assert_eq!(soft.run(u64::MAX), Exit::Kick);
        // It goes on, also on another processor in the same state.
        let state = soft.cpu.state();
        assert_eq!(outcome(&mut soft), Endless);
        let mut other = g.second_processor();
        other.cpu.load_state(&state);
        assert_eq!(outcome(&mut other), Endless);
        let progress = |s: ArchState| (s.progress.instructions, s.pending, s.rip);
        assert_eq!(progress(other.cpu.state()), progress(soft.cpu.state()));
    }
}

#[test]
fn a_watchpoint_on_the_stack_of_its_own_handler_does_not_keep_the_run_from_its_end() {
    let mut g = with_debug_stack();
    g.update(|s| {
        s.sys.dr[0] = crate::common::IST1 - 8;
        // G0, a write of 4 bytes.
        s.sys.dr7 |= 2 | 0xD << 16;
        s.pending = Some(PendingEvent::Debug(dr6::BS));
    });
    for mut soft in processors(&g) {
        ends_at_its_limit(&mut soft, handler(vector::DB));
        soft.cpu.signals().raise(Signals::KICK);
        assert_eq!(soft.run(u64::MAX), Exit::Kick);
    }
}

#[test]
fn an_instruction_breakpoint_in_its_own_handler_does_not_keep_the_run_from_its_end() {
    let mut g = with_debug_stack();
    g.update(|s| {
        s.sys.dr[0] = handler(vector::DB);
        s.sys.dr7 |= 2;
        s.rip = handler(vector::DB);
    });
    for mut soft in processors(&g) {
        ends_at_its_limit(&mut soft, handler(vector::DB));
    }
}

#[test]
fn interrupts_that_are_raised_again_at_once_do_not_keep_the_run_from_its_end() {
    // A trap gate keeps interrupts on, and a stack of the table begins anew each time: as with a
    // level-triggered line of an interrupt controller that ends interrupts by itself.
    let mut g = Guest::kernel(|a| a.nop());
    g.gate(
        0x41,
        Gate {
            ist: 1,
            ty: Gate::TRAP,
            ..Gate::default()
        },
    );
    for _ in 0..2 * LIMIT {
        g.platform.interrupt(0x41);
    }
    g.update(|s| s.rflags |= rflags::IF);
    g.soft.soft_only("it counts instructions");
    ends_at_its_limit(&mut g.soft, handler(0x41));
}

/// A guest at CPL 3 with this code, and a stack in its page.
fn with_stack_in_code(code: &[u8], top: u64) -> Guest {
    let mut g = Guest::new();
    protected::<USER_GATE>(&mut g);
    g.write_bytes(USER, code);
    g.update(|s| {
        s.rflags &= !rflags::AC;
        s.gpr[gpr::RSP] = top;
    });
    g
}

/// A handler at the level of the program, on a stack in the bytes that were decoded.
#[test]
fn an_event_is_delivered_on_a_stack_that_is_decoded_code() {
    // UD2; the stack grows down from here.
    let top = USER + 0x20;
    let mut g = with_stack_in_code(&[0x0F, 0x0B], top);
    for mut soft in processors(&g) {
        ends_at_its_limit(&mut soft, HANDLER);
        assert_eq!(soft.cpu.gpr[gpr::RSP], top - 12);
        assert_eq!(g.read(top - 12) as u32, USER as u32);
        g.write_bytes(USER, &[0x0F, 0x0B]);
    }

    // The push changes the instruction that follows: it is decoded again.
    let code = counter();
    let mut g = with_stack_in_code(&code, USER + 0x40);
    g.write_bytes(HANDLER, &[0xCF]);
    for mut soft in processors(&g) {
        g.write_bytes(USER, &code);
        soft.revalidate();
        assert_eq!(run(&mut soft), Exit::Deadline);
        assert_eq!(soft.cpu.gpr[gpr::RBX], 3);
    }
}

/// INT 0x21 three times, counted in EBX, and then a loop.
fn counter() -> Vec<u8> {
    crate::common::assemble(32, USER, |a| {
        let (mut again, mut end) = (a.create_label(), a.create_label());
        a.set_label(&mut again)?;
        a.inc(ebx)?;
        a.int(0x21)?;
        a.cmp(ebx, 3)?;
        a.jne(again)?;
        a.set_label(&mut end)?;
        a.jmp(end)
    })
}

/// The page of a stack at CPL 3 must be the user's in 64-bit mode, too.
#[test]
fn a_handler_at_cpl_3_pushes_with_the_privilege_of_the_user() {
    let mut g = Guest::new();
    long::<false, 0>(&mut g);
    g.write_bytes(USER, &[0x0F, 0x0B]);
    g.gate(vector::PF, Gate::to(handler(vector::PF)));
    g.update(|s| s.gpr[gpr::RSP] = KERNEL_STACK);
    let frame = g.run_to_exception(vector::PF, Some(7));
    assert_eq!((frame.rip, g.soft.cpu.sys.cr2), (USER, KERNEL_STACK - 8));
    assert_ne!(g.read(page_table_entry(KERNEL)), 0);
}
