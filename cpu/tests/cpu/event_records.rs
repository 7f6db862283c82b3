//! The records that interrupts, NMIs, debug exceptions, far transfers and resumed faults leave
//! under each CPL filter, with the state that the program ends in.

use crate::common::records::{check, check_and};
use crate::common::{
    DATA, Gate, Guest, INTERRUPT_PORT, IST1, KERNEL, KERNEL_STACK, NMI_PORT, RSP0, USER,
    USER_STACK, assemble, handler, segment, selector,
};
use iced_x86::code_asm::*;
use vbts_cpu::Exit;
use vbts_cpu::state::gpr::{RAX, RBX, RCX, RDI, RDX, RSI, RSP};
use vbts_cpu::state::rflags;
use vbts_cpu::state::vector::{BP, BR, DB, DE, DF, GP, NMI, OF, PF, SS, UD};

/// For `int` and its kin from user code.
const FOR_USER: Gate = Gate {
    selector: selector::KERNEL_CS,
    offset: 0,
    dpl: 3,
    ist: 0,
    ty: Gate::INTERRUPT,
    present: true,
};

/// A user program of 32-bit code.
fn user32(program: impl FnOnce(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>) -> Guest {
    let mut g = Guest::user(|a| a.ud2());
    g.write_bytes(USER, &assemble(32, USER, program));
    g.update(|s| s.sys.seg[1] = segment(selector::USER_CS32));
    g
}

#[test]
fn an_nmi_inside_an_nmi_waits_for_iret() {
    let make = || {
        let mut g = Guest::kernel(|a| {
            a.out(NMI_PORT, al)?; // +0
            a.hlt() // +2
        });
        // The first run of the handler asks for another.
        g.assemble(handler(NMI), |a| {
            let mut end = a.create_label();
            a.inc(ebx)?; // +0
            a.cmp(ebx, 1)?; // +2
            a.jne(end)?; // +5
            a.out(NMI_PORT, al)?; // +7
            a.nop()?; // +9
            a.set_label(&mut end)?;
            a.iretq() // +10
        });
        g
    };
    let h = handler(NMI);
    check_and(
        make,
        &[
            (KERNEL + 2, h, 0),
            (h + 10, KERNEL + 2, 0),
            (KERNEL + 2, h, 0),
            (h + 5, h + 10, 0),
            (h + 10, KERNEL + 2, 0),
        ],
        |g| {
            assert_eq!((g.soft.cpu.rip, g.soft.cpu.gpr[RBX]), (KERNEL + 3, 2));
            assert!(!g.soft.cpu.state().nmi_blocked);
        },
    );
}

#[test]
fn an_nmi_is_taken_with_interrupts_off_and_an_interrupt_after_it() {
    let make = || {
        let mut g = Guest::kernel(|a| {
            a.out(INTERRUPT_PORT, al)?; // +0
            a.out(NMI_PORT, al)?; // +2
            a.sti()?; // +4
            a.nop()?; // +5
            a.cli()?; // +6
            a.hlt() // +7
        });
        for vector in [NMI, 0x21] {
            g.assemble(handler(vector), |a| a.iretq());
        }
        g.update(|s| s.gpr[RAX] = 0x21);
        g
    };
    check(
        make,
        &[
            (KERNEL + 4, handler(NMI), 0),
            (handler(NMI), KERNEL + 4, 0),
            (KERNEL + 6, handler(0x21), 0),
            (handler(0x21), KERNEL + 6, 0),
        ],
    );
}

#[test]
fn an_interrupt_of_user_code_takes_the_stack_of_its_gate() {
    for (ist, top) in [(0, RSP0), (1, IST1)] {
        let make = || {
            let mut g = Guest::user(|a| {
                a.nop()?;
                a.ud2()
            });
            g.gate(
                0x21,
                Gate {
                    ist,
                    ..Gate::default()
                },
            );
            g.assemble(handler(0x21), |a| {
                a.mov(rbx, rsp)?; // +0
                a.iretq() // +3
            });
            g.update(|s| s.rflags |= rflags::IF);
            g.platform.interrupt(0x21);
            g
        };
        check_and(
            make,
            &[
                (USER, handler(0x21), 0),
                (handler(0x21) + 3, USER, 3),
                (USER + 1, handler(UD), 0),
            ],
            |g| assert_eq!(g.soft.cpu.gpr[RBX], top - 40),
        );
    }
}

#[test]
fn hlt_is_left_for_an_interrupt_which_returns_behind_it() {
    let make = || {
        let mut g = Guest::kernel(|a| {
            a.hlt()?; // +0
            a.cli()?; // +1
            a.hlt() // +2
        });
        g.assemble(handler(0x21), |a| a.iretq());
        g.update(|s| s.rflags |= rflags::IF);
        g.soft.run(10);
        g.platform.interrupt(0x21);
        g
    };
    // The guest runs before tracing is on; it has executed HLT and nothing else.
    assert_eq!(make().soft.cpu.rip, KERNEL + 1);
    check_and(
        make,
        &[
            (KERNEL + 1, handler(0x21), 0),
            (handler(0x21), KERNEL + 1, 0),
        ],
        |g| assert_eq!(g.soft.cpu.rip, KERNEL + 3),
    );
}

#[test]
fn mov_ss_holds_interrupts_and_nmis_for_one_instruction() {
    for nmi in [false, true] {
        let vector = if nmi { NMI } else { 0x21 };
        let make = || {
            let mut g = Guest::kernel(|a| {
                let mut next = a.create_label();
                a.mov(ss, ecx)?; // +0
                a.jmp(next)?; // +2
                a.set_label(&mut next)?;
                a.cli()?; // +4
                a.hlt() // +5
            });
            g.assemble(handler(vector), |a| a.iretq());
            g.update(|s| {
                s.gpr[RCX] = selector::KERNEL_SS.into();
                s.rflags |= rflags::IF;
            });
            assert_eq!(g.soft.run(1), Exit::Deadline);
            if nmi {
                g.platform.nmi();
            } else {
                g.platform.interrupt(vector);
            }
            g
        };
        check(
            make,
            &[
                (KERNEL + 2, KERNEL + 4, 0),
                (KERNEL + 4, handler(vector), 0),
                (handler(vector), KERNEL + 4, 0),
            ],
        );
    }
}

#[test]
fn iretq_to_each_kind_of_code() {
    let user = u64::from(selector::USER_SS);
    // CS, RIP, SS and RSP returned to, and the level.
    let targets = [
        (selector::USER_CS, USER, user, USER_STACK, 3),
        (selector::USER_CS32, USER, user, USER_STACK, 3),
        (selector::KERNEL_CS, KERNEL + 0x100, 0, KERNEL_STACK, 0),
    ];
    for (code, at, stack, top, cpl) in targets {
        let make = || {
            let mut g = Guest::kernel(|a| a.iretq());
            g.assemble(at, |a| a.ud2());
            for (n, word) in [at, code.into(), 2, top, stack].into_iter().enumerate() {
                g.write(KERNEL_STACK - 40 + 8 * n as u64, word);
            }
            g.update(|s| s.gpr[RSP] = KERNEL_STACK - 40);
            g
        };
        check_and(make, &[(KERNEL, at, cpl), (at, handler(UD), 0)], |g| {
            let frame = if cpl == 3 { RSP0 } else { KERNEL_STACK } - 40;
            let words = [0, 8, 24, 32].map(|n| g.read(frame + n));
            assert_eq!(words, [at, code.into(), top, stack]);
        });
    }
}

#[test]
fn iretd_pops_words_of_32_bits() {
    let make = || {
        let mut g = Guest::kernel(|a| a.iretd());
        let words = [
            USER as u32,
            selector::USER_CS32.into(),
            2,
            USER_STACK as u32,
            selector::USER_SS.into(),
        ];
        for (n, word) in words.into_iter().enumerate() {
            g.write_bytes(KERNEL_STACK - 20 + 4 * n as u64, &word.to_le_bytes());
        }
        g.assemble(USER, |a| a.ud2());
        g.update(|s| s.gpr[RSP] = KERNEL_STACK - 20);
        g
    };
    check_and(make, &[(KERNEL, USER, 3), (USER, handler(UD), 0)], |g| {
        assert_eq!(g.read(RSP0 - 16), USER_STACK)
    });
}

#[test]
fn an_iret_that_faults_is_no_transfer() {
    let make = || {
        let mut g = Guest::kernel(|a| a.iretq());
        for (n, word) in [USER, 3, 2, USER_STACK, selector::USER_SS.into()]
            .into_iter()
            .enumerate()
        {
            g.write(KERNEL_STACK - 40 + 8 * n as u64, word);
        }
        g.update(|s| s.gpr[RSP] = KERNEL_STACK - 40);
        g
    };
    check(make, &[(KERNEL, handler(GP), 0)]);
}

#[test]
fn far_transfers_at_one_level() {
    let make = || {
        let mut g = Guest::user(|a| {
            a.mov(eax, USER as u32 + 0x200)?; // +0
            a.jmp(fword_ptr(rax))?; // +5
            a.ud2()?; // +7
            a.call(fword_ptr(rax + 8))?; // +9
            a.ud2() // +12
        });
        let pointer = |rip: u64| rip | u64::from(selector::USER_CS) << 32;
        g.write(USER + 0x200, pointer(USER + 9));
        g.write(USER + 0x208, pointer(USER + 0x100));
        g.assemble(USER + 0x100, |a| a.db(&[0xCB])); // RETF
        g
    };
    check_and(
        make,
        &[
            (USER + 5, USER + 9, 3),
            (USER + 9, USER + 0x100, 3),
            (USER + 0x100, USER + 12, 3),
            (USER + 12, handler(UD), 0),
        ],
        |g| assert_eq!(g.read(RSP0 - 16), USER_STACK),
    );
}

#[test]
fn a_far_return_to_user_code() {
    let make = || {
        let mut g = Guest::kernel(|a| a.db(&[0x48, 0xCB])); // RETFQ
        let words = [
            USER,
            selector::USER_CS.into(),
            USER_STACK,
            selector::USER_SS.into(),
        ];
        for (n, word) in words.into_iter().enumerate() {
            g.write(KERNEL_STACK - 32 + 8 * n as u64, word);
        }
        g.assemble(USER, |a| a.ud2());
        g.update(|s| s.gpr[RSP] = KERNEL_STACK - 32);
        g
    };
    check(make, &[(KERNEL, USER, 3), (USER, handler(UD), 0)]);
}

#[test]
fn exceptions_that_instructions_ask_for() {
    // 32-bit code has all of them: INT3, INTO, BOUND, INT n, INT1, and a division by zero.
    let make = || {
        let mut g = user32(|a| {
            a.int3()?; // +0
            a.into()?; // +1
            a.int(0x21)?; // +2
            a.int1()?; // +4
            a.div(ecx)?; // +5
            a.bound(eax, dword_ptr(ebx)) // +7
        });
        for vector in [BP, OF, 0x21] {
            g.gate(vector, FOR_USER);
        }
        for vector in [BP, OF, 0x21, DB] {
            g.assemble(handler(vector), |a| a.iretq());
        }
        g.assemble(handler(DE), |a| {
            a.add(dword_ptr(rsp), 2)?; // +0
            a.iretq() // +4
        });
        g.update(|s| {
            s.rflags |= rflags::OF;
            s.gpr[RBX] = DATA;
            s.gpr[RAX] = 1;
        });
        g
    };
    check(
        make,
        &[
            (USER, handler(BP), 0),
            (handler(BP), USER + 1, 3),
            (USER + 1, handler(OF), 0),
            (handler(OF), USER + 2, 3),
            (USER + 2, handler(0x21), 0),
            (handler(0x21), USER + 4, 3),
            (USER + 4, handler(DB), 0),
            (handler(DB), USER + 5, 3),
            (USER + 5, handler(DE), 0),
            (handler(DE) + 4, USER + 7, 3),
            (USER + 7, handler(BR), 0),
        ],
    );
}

#[test]
fn an_instruction_breakpoint_comes_before_and_a_watchpoint_after() {
    let make = || {
        let mut g = Guest::user(|a| {
            let mut next = a.create_label();
            a.nop()?; // +0
            a.jmp(next)?; // +1: breakpoint 0
            a.set_label(&mut next)?;
            a.mov(byte_ptr(rbx), al)?; // +3: breakpoint 1
            a.ud2() // +5
        });
        // Sets RF in the frame, so that the breakpoint is passed.
        g.assemble(handler(DB), |a| {
            a.or(byte_ptr(rsp + 18), 1)?; // +0
            a.iretq() // +5
        });
        g.update(|s| {
            s.gpr[RBX] = DATA;
            s.sys.dr[0] = USER + 1;
            s.sys.dr[1] = DATA;
            s.sys.dr7 = 1 | 1 << 2 | 1 << 20;
        });
        g
    };
    let iret = handler(DB) + 5;
    check_and(
        make,
        &[
            (USER + 1, handler(DB), 0),
            (iret, USER + 1, 3),
            (USER + 1, USER + 3, 3),
            (USER + 5, handler(DB), 0),
            (iret, USER + 5, 3),
            (USER + 5, handler(UD), 0),
        ],
        |g| assert_eq!(g.soft.cpu.sys.dr6 & 0xE00F, 3),
    );
}

#[test]
fn a_double_fault_is_one_transfer_and_a_triple_fault_none() {
    let absent = Gate {
        present: false,
        ..Gate::default()
    };
    let double = || {
        let mut g = Guest::user(|a| a.hlt());
        g.gate(GP, absent);
        g.gate(
            DF,
            Gate {
                ist: 1,
                ..Gate::default()
            },
        );
        g
    };
    check_and(double, &[(USER, handler(DF), 0)], |g| {
        assert_eq!(g.soft.cpu.gpr[RSP], IST1 - 48);
    });
    let triple = || {
        let mut g = double();
        g.gate(DF, absent);
        g
    };
    check_and(triple, &[], |g| assert_eq!(g.soft.cpu.rip, USER));
    assert_eq!(triple().run(), Exit::Shutdown);
}

#[test]
fn a_stack_in_the_tss_that_is_not_canonical_is_ss() {
    let make = || {
        let mut g = Guest::user(|a| a.int(0x21));
        g.gate(0x21, FOR_USER);
        g.write(crate::common::TSS + 4, 0x8000_0000_1000);
        g.gate(
            SS,
            Gate {
                ist: 1,
                ..Gate::default()
            },
        );
        g
    };
    check_and(make, &[(USER, handler(SS), 0)], |g| {
        assert_eq!(g.read(IST1 - 48), 0, "error code");
        assert_eq!(g.read(IST1 - 40), USER);
    });
}

/// Takes a page away. The page-fault handler gives it back, from R8 to R9, and returns.
fn take_away(g: &mut Guest, la: u64) {
    let entry = g.page_entry(la);
    g.page(la, 0);
    g.assemble(handler(PF), |a| {
        a.mov(qword_ptr(r9), r8)?; // +0
        a.add(rsp, 8)?; // +3
        a.iretq() // +7
    });
    g.update(|s| {
        s.gpr[8] = entry;
        s.gpr[9] = 0x7000 + (la >> 12) * 8;
    });
}

#[test]
fn a_repeated_string_goes_on_where_it_faulted() {
    let make = || {
        let mut g = Guest::user(|a| {
            a.rep().movsq()?; // +0
            a.ud2() // +3
        });
        for n in 0..32 {
            g.write(DATA + 8 * n, n + 1);
        }
        take_away(&mut g, DATA + 0x3000);
        g.update(|s| {
            s.gpr[RCX] = 32;
            s.gpr[RSI] = DATA;
            s.gpr[RDI] = DATA + 0x2FC0;
        });
        g
    };
    check_and(
        make,
        &[
            (USER, handler(PF), 0),
            (handler(PF) + 7, USER, 3),
            (USER + 3, handler(UD), 0),
        ],
        |g| {
            for n in 0..32 {
                assert_eq!(g.read(DATA + 0x2FC0 + 8 * n), n + 1);
            }
            let cpu = &g.soft.cpu;
            assert_eq!((cpu.gpr[RCX], cpu.gpr[RSI]), (0, DATA + 0x100));
            assert_eq!(cpu.sys.cr2, DATA + 0x3000);
        },
    );
}

#[test]
fn a_branch_across_two_pages_comes_from_its_first_byte() {
    let at = USER + 0xFFE;
    let make = || {
        let mut g = Guest::user(|a| {
            a.mov(rdx, at)?; // +0
            a.jmp(rdx) // +10
        });
        // jmp rel32, to USER + 0x2000
        g.write_bytes(at, &[0xE9, 0xFD, 0x0F, 0, 0]);
        g.assemble(USER + 0x2000, |a| a.ud2());
        take_away(&mut g, USER + 0x1000);
        g
    };
    check_and(
        make,
        &[
            (USER + 10, at, 3),
            (at, handler(PF), 0),
            (handler(PF) + 7, at, 3),
            (at, USER + 0x2000, 3),
            (USER + 0x2000, handler(UD), 0),
        ],
        |g| assert_eq!(g.soft.cpu.sys.cr2, USER + 0x1000),
    );
}

#[test]
fn a_call_whose_stack_is_missing_happens_once() {
    let make = || {
        let mut g = Guest::user(|a| {
            let mut f = a.create_label();
            a.call(f)?; // +0
            a.set_label(&mut f)?;
            a.ud2() // +5
        });
        take_away(&mut g, DATA + 0x3000);
        g.update(|s| s.gpr[RSP] = DATA + 0x3008);
        g
    };
    check_and(
        make,
        &[
            (USER, handler(PF), 0),
            (handler(PF) + 7, USER, 3),
            (USER, USER + 5, 3),
            (USER + 5, handler(UD), 0),
        ],
        |g| assert_eq!(g.read(DATA + 0x3000), USER + 5),
    );
}

/// Code in one frame that is executed at [`USER`]` + 0x2000` and written at another linear address.
const CODE: u64 = USER + 0x2000;
const ALIAS: u64 = USER + 0x3000;

#[test]
fn code_that_is_written_through_another_mapping_changes() {
    let make = || {
        let mut g = Guest::user(|a| {
            let mut again = a.create_label();
            a.mov(ecx, 3)?; // +0
            a.set_label(&mut again)?;
            a.mov(rdx, CODE)?; // +5
            a.call(rdx)?; // +15
            a.add(ebx, eax)?; // +17
            a.inc(dword_ptr(ALIAS + 1))?; // +19
            a.dec(ecx)?; // +26
            a.jnz(again)?; // +28
            a.ud2() // +30
        });
        g.assemble(CODE, |a| {
            a.mov(eax, 1)?; // +0
            a.ret() // +5
        });
        g.write(0x7000 + (ALIAS >> 12) * 8, CODE | 7);
        g
    };
    let call = [(USER + 15, CODE, 3), (CODE + 5, USER + 17, 3)];
    let round = [call[0], call[1], (USER + 28, USER + 5, 3)];
    let end = [call[0], call[1], (USER + 30, handler(UD), 0)];
    check_and(make, &[round, round, end].concat(), |g| {
        assert_eq!(g.soft.cpu.gpr[RBX], 1 + 2 + 3);
        assert_eq!(g.read(CODE + 1) as u32, 4);
    });
}

#[test]
fn code_may_change_the_instruction_behind_it_through_another_mapping() {
    let make = || {
        let mut g = Guest::user(|a| {
            a.mov(rdx, CODE)?; // +0
            a.jmp(rdx) // +10
        });
        g.assemble(CODE, |a| {
            a.mov(byte_ptr(ALIAS + 9), 2)?; // +0: the displacement of the JMP
            a.jmp(CODE + 8)?; // +8
            a.nop()?;
            a.nop()?;
            a.ud2() // +12
        });
        g.write_bytes(CODE + 8, &[0xEB, 0]);
        g.write(0x7000 + (ALIAS >> 12) * 8, CODE | 7);
        g
    };
    check(
        make,
        &[
            (USER + 10, CODE, 3),
            (CODE + 8, CODE + 12, 3),
            (CODE + 12, handler(UD), 0),
        ],
    );
}

#[test]
fn code_that_an_interrupt_handler_changes_is_new_after_iret() {
    let make = || {
        let mut g = Guest::user(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again)?;
            a.jmp(again) // +0
        });
        // To UD2 behind it.
        g.write_bytes(USER + 2, &[0x0F, 0x0B]);
        g.assemble(handler(0x21), |a| {
            a.mov(byte_ptr(USER + 1), 0)?; // +0
            a.iretq() // +8
        });
        g.update(|s| s.rflags |= rflags::IF);
        g.soft.run(10);
        g.platform.interrupt(0x21);
        g
    };
    check_and(
        make,
        &[
            (USER, handler(0x21), 0),
            (handler(0x21) + 8, USER, 3),
            (USER, USER + 2, 3),
            (USER + 2, handler(UD), 0),
        ],
        |g| assert_eq!(g.soft.cpu.gpr[RDX], 0),
    );
}
