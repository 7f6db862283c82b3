//! The records of IRET and of far transfers.

use crate::common::records::{check, check_and};
use crate::common::{Guest, KERNEL, KERNEL_STACK, RSP0, USER, USER_STACK, handler, selector};
use iced_x86::code_asm::*;
use iced_x86::{Code, Instruction};
use vbts_cpu::state::gpr::RSP;
use vbts_cpu::state::vector::{GP, UD};

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
        // With 32-bit operands, as the call.
        g.assemble(USER + 0x100, |a| {
            a.add_instruction(Instruction::with(Code::Retfd))
        });
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
        let mut g = Guest::kernel(|a| a.retf());
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
