//! The records that each kind of transfer leaves, under each CPL filter. One rule: a transfer is
//! recorded if the level it leads to is traced.

use crate::common::records::{ALL, check};
use crate::common::{
    BTS_BUFFER, DATA, DS_AREA, Gate, Guest, KERNEL, KERNEL_STACK, RSP0, USER, USER_STACK, handler,
    selector,
};
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use vbts_bts::{BtsFields, DebugCtl, RECORD_SIZE};
use vbts_cpu::state::rflags;
use vbts_cpu::state::vector::{BP, DB, GP, PF, UD};

fn user(program: fn(&mut CodeAssembler) -> Result<(), IcedError>) -> impl Fn() -> Guest {
    move || Guest::user(program)
}

#[test]
fn near_branches_and_the_fault_that_ends_the_program() {
    let make = user(|a| {
        let mut skip = a.create_label();
        let mut function = a.create_label();
        a.xor(eax, eax)?; // +0
        a.jnz(skip)?; // +2, not taken
        a.jz(skip)?; // +4
        a.nop()?; // +6
        a.set_label(&mut skip)?;
        a.call(function)?; // +7
        a.hlt()?; // +12
        a.set_label(&mut function)?;
        a.ret() // +13
    });
    check(
        make,
        &[
            (USER + 4, USER + 7, 3),
            (USER + 7, USER + 13, 3),
            (USER + 13, USER + 12, 3),
            (USER + 12, handler(GP), 0),
        ],
    );
}

#[test]
fn a_loop_records_each_round_and_a_branch_to_the_next_instruction_counts() {
    let make = user(|a| {
        let mut again = a.create_label();
        let mut next = a.create_label();
        a.mov(ecx, 3)?; // +0
        a.set_label(&mut again)?;
        a.loop_(again)?; // +5
        a.jmp(next)?; // +7
        a.set_label(&mut next)?;
        a.ud2() // +9
    });
    let round = (USER + 5, USER + 5, 3);
    check(
        make,
        &[
            round,
            round,
            (USER + 7, USER + 9, 3),
            (USER + 9, handler(UD), 0),
        ],
    );
}

/// From and to an address of 31 bits, one of 47, and from one kind to the other.
#[test]
fn records_have_all_bits_of_the_addresses() {
    const HIGH: u64 = 0x5500_0000_0000;
    let make = || {
        let mut g = Guest::user(|a| {
            let (mut function, mut far) = (a.create_label(), a.create_label());
            a.jmp(far)?; // +0
            a.set_label(&mut function)?;
            a.ret()?; // +2
            a.set_label(&mut far)?;
            a.call(function)?; // +3
            a.mov(rax, HIGH + USER + 20)?; // +8
            a.jmp(rax)?; // +18
            a.call(function)?; // +20, in the upper mapping from here on
            a.mov(eax, (USER + 33) as u32)?; // +25
            a.jmp(rax)?; // +30
            a.nop()?;
            a.hlt() // +33
        });
        g.mirror(HIGH);
        g
    };
    let high = HIGH + USER;
    check(
        make,
        &[
            (USER, USER + 3, 3),
            (USER + 3, USER + 2, 3),
            (USER + 2, USER + 8, 3),
            (USER + 18, high + 20, 3),
            (high + 20, high + 2, 3),
            (high + 2, high + 25, 3),
            (high + 30, USER + 33, 3),
            (USER + 33, handler(GP), 0),
        ],
    );
}

#[test]
fn software_interrupts_and_iret() {
    let make = || {
        let mut g = Guest::user(|a| {
            a.nop()?;
            a.int(0x21)?;
            a.int3()?;
            a.hlt()
        });
        for vector in [0x21, BP] {
            g.gate(
                vector,
                Gate {
                    dpl: 3,
                    ..Gate::default()
                },
            );
            g.assemble(handler(vector), |a| a.iretq());
        }
        g
    };
    check(
        make,
        &[
            (USER + 1, handler(0x21), 0),
            (handler(0x21), USER + 3, 3),
            (USER + 3, handler(BP), 0),
            (handler(BP), USER + 4, 3),
            (USER + 4, handler(GP), 0),
        ],
    );
}

#[test]
fn an_interrupt_comes_from_the_next_instruction_and_follows_the_branch_before_it() {
    let make = || {
        let mut g = Guest::user(|a| {
            let mut next = a.create_label();
            a.out(crate::common::INTERRUPT_PORT, al)?; // +0
            a.jmp(next)?; // +2, not reached before the interrupt
            a.nop()?;
            a.set_label(&mut next)?;
            a.ud2() // +5
        });
        g.assemble(handler(0x21), |a| a.iretq());
        g.update(|s| {
            s.gpr[0] = 0x21;
            s.rflags |= rflags::IF | rflags::IOPL;
        });
        g
    };
    check(
        make,
        &[
            (USER + 2, handler(0x21), 0),
            (handler(0x21), USER + 2, 3),
            (USER + 2, USER + 5, 3),
            (USER + 5, handler(UD), 0),
        ],
    );
}

#[test]
fn an_interrupt_that_waits_for_sti_after_a_branch() {
    let make = || {
        let mut g = Guest::kernel(|a| {
            let mut next = a.create_label();
            a.out(crate::common::INTERRUPT_PORT, al)?; // +0
            a.sti()?; // +2
            a.jmp(next)?; // +3
            a.nop()?; // +5
            a.set_label(&mut next)?;
            a.cli()?; // +6
            a.hlt()
        });
        g.assemble(handler(0x21), |a| a.iretq());
        g.update(|s| s.gpr[0] = 0x21);
        g
    };
    check(
        make,
        &[
            (KERNEL + 3, KERNEL + 6, 0),
            (KERNEL + 6, handler(0x21), 0),
            (handler(0x21), KERNEL + 6, 0),
        ],
    );
}

#[test]
fn syscall_and_sysret() {
    let make = || {
        let mut g = Guest::user(|a| {
            a.nop()?;
            a.syscall()?;
            a.ud2()
        });
        g.assemble(KERNEL, |a| {
            a.nop()?;
            a.sysretq()
        });
        g.update(|s| s.msr.lstar = KERNEL);
        g
    };
    check(
        make,
        &[
            (USER + 1, KERNEL, 0),
            (KERNEL + 1, USER + 3, 3),
            (USER + 3, handler(UD), 0),
        ],
    );
}

#[test]
fn sysenter_and_sysexit() {
    let make = || {
        let mut g = Guest::user(|a| a.sysenter());
        g.assemble(KERNEL, |a| a.sysexitq());
        g.assemble(USER + 0x100, |a| a.ud2());
        g.update(|s| {
            s.gpr[2] = USER + 0x100;
            s.gpr[1] = USER_STACK;
            s.msr.sysenter_eip = KERNEL;
            s.msr.sysenter_esp = KERNEL_STACK;
        });
        g
    };
    check(
        make,
        &[
            (USER, KERNEL, 0),
            (KERNEL, USER + 0x100, 3),
            (USER + 0x100, handler(UD), 0),
        ],
    );
}

#[test]
fn call_gates_and_far_returns() {
    let make = || {
        let mut g = Guest::user(|a| {
            a.mov(eax, USER as u32 + 0x200)?; // +0
            a.call(fword_ptr(rax))?; // +5
            a.ud2() // +7
        });
        g.write(USER + 0x200, u64::from(selector::CALL_GATE | 3) << 32);
        g.call_gate(selector::KERNEL_CS, 3, KERNEL);
        g.assemble(KERNEL, |a| a.retf());
        g
    };
    check(
        make,
        &[
            (USER + 5, KERNEL, 0),
            (KERNEL, USER + 7, 3),
            (USER + 7, handler(UD), 0),
        ],
    );
}

#[test]
fn compatibility_mode_has_linear_addresses_of_32_bits() {
    // The second one wraps around.
    for base in [0x1_0000u32, 0xFFFF_F000] {
        let make = || {
            let mut g = Guest::user(|a| a.jmp(USER + 14));
            g.assemble(USER + 14, |a| a.ud2());
            g.update(|s| {
                s.seg[1] = crate::common::segment(selector::USER_CS32);
                s.seg[1].base = base.into();
                s.rip = (USER as u32).wrapping_sub(base).into();
            });
            g
        };
        check(make, &[(USER, USER + 14, 3), (USER + 14, handler(UD), 0)]);
    }
}

#[test]
fn a_fault_in_the_delivery_of_an_event_leaves_one_record() {
    let make = || {
        let mut g = Guest::user(|a| {
            a.nop()?;
            a.hlt()
        });
        g.page(RSP0 - 0x1000, 0);
        g.gate(
            PF,
            Gate {
                ist: 1,
                ..Gate::default()
            },
        );
        g
    };
    check(make, &[(USER + 1, handler(PF), 0)]);
}

#[test]
fn a_debug_trap_is_recorded_and_leaves_tracing_on() {
    let make = || {
        let mut g = Guest::user(|a| {
            let mut next = a.create_label();
            a.jmp(next)?;
            a.set_label(&mut next)?;
            a.ud2()
        });
        g.assemble(handler(DB), |a| {
            a.and(dword_ptr(rsp + 16), -0x101)?;
            a.iretq()
        });
        g.update(|s| s.rflags |= rflags::TF);
        g
    };
    let iret = handler(DB) + 8;
    check(
        make,
        &[
            (USER, USER + 2, 3),
            (USER + 2, handler(DB), 0),
            (iret, USER + 2, 3),
            (USER + 2, handler(UD), 0),
        ],
    );
}

#[test]
fn tracing_starts_and_stops_with_wrmsr() {
    let mut g = Guest::kernel(|a| {
        let mut one = a.create_label();
        let mut two = a.create_label();
        let mut three = a.create_label();
        a.mov(ecx, 0x1D9)?; // +0
        a.xor(edx, edx)?; // +5
        a.jmp(one)?; // +7
        a.set_label(&mut one)?;
        a.mov(eax, ALL.bits() as u32)?; // +9
        a.wrmsr()?; // +14
        a.jmp(two)?; // +16
        a.set_label(&mut two)?;
        a.xor(eax, eax)?; // +18
        a.wrmsr()?; // +20
        a.jmp(three)?; // +22
        a.set_label(&mut three)?;
        a.hlt()
    });
    g.trace(0, 64);
    g.run();
    assert_eq!(g.records(), [(KERNEL + 16, KERNEL + 18)]);
}

#[test]
fn crossing_the_threshold_signals_once_and_a_full_buffer_keeps_its_records() {
    let make = || {
        Guest::user(|a| {
            let mut again = a.create_label();
            a.mov(ecx, 10)?; // +0
            a.set_label(&mut again)?;
            a.loop_(again)?; // +5
            a.ud2()
        })
    };
    let round = (USER + 5, USER + 5);

    let mut g = make();
    g.trace((ALL | DebugCtl::BTINT).bits(), 4);
    g.write(DS_AREA + 0x18, BTS_BUFFER + 2 * 24);
    g.run();
    assert_eq!(g.records(), [round; 4]);
    let interrupts = g
        .platform
        .performance_interrupts
        .load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(interrupts, 1);

    // Circular: 10 transfers in a buffer of 4 records leave the index at the third.
    let mut g = make();
    g.trace(ALL.bits(), 4);
    g.run();
    assert_eq!(g.records(), [round, (USER + 7, handler(UD))]);
}

/// Assembles a write of RAX to the quadword at RDI, where RCX was.
type Write = fn(&mut CodeAssembler) -> Result<(), IcedError>;

const WRITES: [(&str, Write); 8] = [
    ("MOV", |a| a.mov(qword_ptr(rdi), rax)),
    ("ADD", |a| {
        a.sub(rax, rcx)?;
        a.add(qword_ptr(rdi), rax)
    }),
    ("XCHG", |a| a.xchg(qword_ptr(rdi), rax)),
    ("LOCK CMPXCHG", |a| {
        a.xchg(rax, rcx)?;
        a.lock().cmpxchg(qword_ptr(rdi), rcx)
    }),
    ("REP STOSQ", |a| {
        a.mov(ecx, 1)?;
        a.rep().stosq()
    }),
    ("PUSH", |a| {
        a.lea(rsp, qword_ptr(rdi + 8))?;
        a.push(rax)
    }),
    ("MOVQ", |a| {
        a.movq(xmm0, rax)?;
        a.movq(qword_ptr(rdi), xmm0)
    }),
    ("two of MOV", |a| {
        a.mov(word_ptr(rdi), ax)?;
        a.shr(rax, 16)?;
        a.mov(dword_ptr(rdi + 2), eax)
    }),
];

#[test]
fn a_guest_write_to_the_ds_area_takes_effect_at_the_next_branch() {
    const INDEX: u64 = DS_AREA + 8;
    const ALIAS: u64 = DATA + 8;
    for (name, write) in WRITES {
        for la in [INDEX, ALIAS] {
            let mut g = Guest::kernel(|a| {
                // Of two branches the second is taken back.
                for index in [2, 3] {
                    for _ in 0..2 {
                        let mut next = a.create_label();
                        a.jmp(next)?;
                        a.set_label(&mut next)?;
                    }
                    a.mov(rdi, la)?;
                    a.mov(rcx, BTS_BUFFER + RECORD_SIZE * index)?;
                    a.mov(rax, BTS_BUFFER + RECORD_SIZE * (index - 1))?;
                    write(a)?;
                }
                let mut next = a.create_label();
                a.jmp(next)?;
                a.set_label(&mut next)?;
                a.hlt()
            });
            g.map(ALIAS, DS_AREA, 3);
            g.trace(ALL.bits(), 64);
            g.run();
            // The first, the third, and the last.
            assert_eq!(g.records().len(), 3, "{name} to {la:#x}");
            assert!(g.records().is_sorted(), "{name} to {la:#x}");
        }
    }
}

#[test]
fn an_unmapped_ds_area_drops_its_records() {
    let mut g = Guest::user(|a| {
        let mut next = a.create_label();
        a.jmp(next)?;
        a.set_label(&mut next)?;
        a.ud2()
    });
    g.trace(ALL.bits(), 64);
    g.page(DS_AREA, 0);
    let frame = g.run_to_exception(UD, None);
    assert_eq!(frame.rip, USER + 2);
    assert!(g.records().is_empty());
}

/// A guest with a circular buffer of four pages and a half, and a loop of as many rounds.
fn with_pages(rounds: u64) -> Guest {
    let mut g = Guest::user(|a| {
        let mut again = a.create_label();
        a.mov(ecx, rounds as u32)?; // +0
        a.set_label(&mut again)?;
        a.loop_(again)?; // +5
        a.ud2()
    });
    g.trace(ALL.bits(), RECORDS);
    g
}

const RECORDS: u64 = 0x4800 / RECORD_SIZE;

#[test]
fn a_buffer_need_not_be_contiguous_in_physical_memory() {
    const MAPPED: u64 = BTS_BUFFER + 0x1000;
    const OTHER: u64 = BTS_BUFFER + 0x8000;
    // The exception at the end has the first slot.
    let mut g = with_pages(3 * RECORDS + 1);
    g.map(MAPPED, OTHER, 3);
    g.run();
    for n in 1..RECORDS {
        let at = BTS_BUFFER + RECORD_SIZE * n;
        for (la, expected) in [(at, USER + 5), (at + 8, USER + 5), (at + 16, 0)] {
            let elsewhere = la & !0xFFF == MAPPED;
            let gpa = la + if elsewhere { OTHER - MAPPED } else { 0 };
            assert_eq!(g.read(gpa), expected, "record {n}");
        }
    }
    assert!((0..0x1000).step_by(8).all(|at| g.read(MAPPED + at) == 0));
}

#[test]
fn only_pages_with_records_become_dirty() {
    const DIRTY: u64 = 1 << 6;
    let mut g = with_pages(0x1000 / RECORD_SIZE - 2);
    g.run();
    assert_ne!(g.page_entry(BTS_BUFFER) & DIRTY, 0);
    assert_eq!(g.page_entry(BTS_BUFFER + 0x1000) & DIRTY, 0);
}

/// A window that follows one that is used up reaches over many pages of a large one.
#[test]
fn a_buffer_in_a_large_page_has_the_same_records() {
    const LARGE_PAGE: u64 = 2 << 20;
    // Linear addresses of the second half of memory, mapped to the first half.
    const ALIAS: u64 = 2 * LARGE_PAGE;
    const FLAGS: u64 = 0x83;
    const DIRTY: u64 = 1 << 6;
    // 125 pages and a half: the program is behind them.
    const RECORDS: u64 = 0x7_D800 / RECORD_SIZE;
    let run = |alias: u64, flags: u64, rounds: u64| {
        let mut g = with_pages(rounds);
        let fields = BtsFields {
            base: BTS_BUFFER + alias,
            index: BTS_BUFFER + alias,
            absolute_maximum: BTS_BUFFER + alias + RECORDS * RECORD_SIZE,
            threshold: BTS_BUFFER + alias + RECORDS * RECORD_SIZE + 1,
        };
        g.write_bytes(DS_AREA, &fields.to_bytes());
        let directory = g.read(g.read(g.soft.cpu.state().sys.cr3) & !0xFFF) & !0xFFF;
        g.write(directory + 16, flags);
        g.run();
        let buffer = (0..RECORDS * RECORD_SIZE).step_by(8);
        let words: Vec<u64> = buffer.map(|at| g.read(BTS_BUFFER + at)).collect();
        let index = g.read(DS_AREA + 8) - alias;
        (words, index, g.read(directory + 16))
    };
    for rounds in [3, RECORDS / 2, 2 * RECORDS + 100] {
        let (words, index, _) = run(0, 0, rounds);
        assert!(words[..3] == [USER + 5, USER + 5, 0]);
        for before in [FLAGS, FLAGS | DIRTY] {
            let (large, its_index, entry) = run(ALIAS, before, rounds);
            assert!(large == words && its_index == index, "{rounds}");
            assert_ne!(entry & DIRTY, 0);
        }
    }
    // One without write access has none.
    let (words, index, entry) = run(ALIAS, FLAGS & !2, 100);
    assert!(words.iter().all(|word| *word == 0));
    assert_eq!((index, entry & DIRTY), (BTS_BUFFER, 0));
}
