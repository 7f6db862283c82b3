//! Faults that instructions raise: vector, error code, saved RIP, stack.

use crate::common::{Guest, KERNEL, KERNEL_STACK, RSP0, USER, selector};
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use vbts_cpu::state::{rflags, vector};

type Program = fn(&mut CodeAssembler) -> Result<(), IcedError>;

/// An instruction sequence, and the exception that its last instruction raises.
struct Case {
    user: bool,
    program: Program,
    vector: u8,
    error: Option<u64>,
    /// Length of what runs before the instruction that faults.
    before: u64,
}

const HOLE: u64 = 0x8000_0000_0000;

#[test]
fn faults_push_their_error_code_and_the_address_of_the_instruction() {
    let cases = [
        Case {
            user: false,
            program: |a| a.ud2(),
            vector: vector::UD,
            error: None,
            before: 0,
        },
        Case {
            user: true,
            program: |a| a.hlt(),
            vector: vector::GP,
            error: Some(0),
            before: 0,
        },
        Case {
            user: true,
            program: |a| {
                a.xor(ecx, ecx)?;
                a.div(ecx)
            },
            vector: vector::DE,
            error: None,
            before: 2,
        },
        // Beyond the end of the GDT, with and without RPL.
        Case {
            user: false,
            program: |a| {
                a.mov(eax, 0x1FFB)?;
                a.mov(ds, eax)
            },
            vector: vector::GP,
            error: Some(0x1FF8),
            before: 5,
        },
        Case {
            user: false,
            program: |a| {
                a.mov(eax, u32::from(selector::NOT_PRESENT_DS))?;
                a.mov(es, eax)
            },
            vector: vector::NP,
            error: Some(selector::NOT_PRESENT_DS.into()),
            before: 5,
        },
        Case {
            user: false,
            program: |a| {
                a.mov(eax, u32::from(selector::NOT_PRESENT_DS))?;
                a.mov(ss, eax)
            },
            vector: vector::SS,
            error: Some(selector::NOT_PRESENT_DS.into()),
            before: 5,
        },
        // A kernel data segment is not the user's to load.
        Case {
            user: true,
            program: |a| {
                a.mov(eax, u32::from(selector::KERNEL_SS))?;
                a.mov(fs, eax)
            },
            vector: vector::GP,
            error: Some(selector::KERNEL_SS.into()),
            before: 5,
        },
        // SS must not be null at CPL 3.
        Case {
            user: true,
            program: |a| {
                a.mov(eax, 3)?;
                a.mov(ss, eax)
            },
            vector: vector::GP,
            error: Some(0),
            before: 5,
        },
        Case {
            user: false,
            program: |a| {
                a.mov(rax, HOLE)?;
                a.mov(al, byte_ptr(rax))
            },
            vector: vector::GP,
            error: Some(0),
            before: 10,
        },
        Case {
            user: true,
            program: |a| {
                a.mov(rsp, HOLE + 0x1000)?;
                a.push(rax)
            },
            vector: vector::SS,
            error: Some(0),
            before: 10,
        },
        // Page faults: user read of a page that is not there, user write to a supervisor page.
        Case {
            user: true,
            program: |a| {
                a.mov(eax, 0x4000_0000)?;
                a.mov(al, byte_ptr(rax))
            },
            vector: vector::PF,
            error: Some(4),
            before: 5,
        },
        Case {
            user: true,
            program: |a| {
                a.mov(eax, KERNEL as u32)?;
                a.mov(byte_ptr(rax), al)
            },
            vector: vector::PF,
            error: Some(7),
            before: 5,
        },
        // A software interrupt is subject to the gate's DPL; its error code is an index of the IDT.
        Case {
            user: true,
            program: |a| a.int(0x21),
            vector: vector::GP,
            error: Some(0x21 << 3 | 2),
            before: 0,
        },
        Case {
            user: true,
            program: |a| a.int3(),
            vector: vector::GP,
            error: Some(3 << 3 | 2),
            before: 0,
        },
    ];
    for (i, case) in cases.into_iter().enumerate() {
        let start = if case.user { USER } else { KERNEL };
        let mut g = if case.user {
            Guest::user(case.program)
        } else {
            Guest::kernel(case.program)
        };
        let frame = g.run_to_exception(case.vector, case.error);
        assert_eq!(frame.rip, start + case.before, "case {i}");
        assert_eq!(frame.rflags & rflags::RF, rflags::RF, "case {i}");
        let (code, top) = if case.user {
            (selector::USER_CS, RSP0)
        } else {
            (selector::KERNEL_CS, KERNEL_STACK)
        };
        assert_eq!(frame.cs, u64::from(code), "case {i}");
        assert_eq!(frame.at + 40, top, "case {i}");
        assert_eq!(g.soft.cpu.cpl, 0);
    }
}

#[test]
fn a_page_fault_stores_its_address_in_cr2() {
    let mut g = Guest::user(|a| a.mov(byte_ptr(0x4000_0123), al));
    g.run_to_exception(vector::PF, Some(6));
    assert_eq!(g.soft.cpu.sys.cr2, 0x4000_0123);
}
