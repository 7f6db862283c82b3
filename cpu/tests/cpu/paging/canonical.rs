//! Accesses to addresses that are not canonical (SDM Vol. 1 3.3.7.1).

use crate::common::records::check_and;
use crate::common::{Gate, Guest, IST1, KERNEL, USER, assemble, handler};
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use vbts_cpu::state::gpr::RBX;
use vbts_cpu::state::vector::{GP, SS};

type Program = fn(&mut CodeAssembler) -> Result<(), IcedError>;

/// An instruction that accesses the address in RBX, what precedes it, and the vector of the fault
/// that it raises if the address is not canonical.
type Access = (&'static str, u8, Program, Program);

const ACCESSES: &[Access] = &[
    ("mov rax, [rbx]", GP, nothing, |a| {
        a.mov(rax, qword_ptr(rbx))
    }),
    ("mov [rbx], rax", GP, nothing, |a| {
        a.mov(qword_ptr(rbx), rax)
    }),
    ("lock inc dword ptr [rbx]", GP, nothing, |a| {
        a.lock().inc(dword_ptr(rbx))
    }),
    ("movups xmm0, [rbx]", GP, nothing, |a| {
        a.movups(xmm0, xmmword_ptr(rbx))
    }),
    ("fld qword ptr [rbx]", GP, nothing, |a| {
        a.fld(qword_ptr(rbx))
    }),
    ("fxsave [rbx]", GP, nothing, |a| a.fxsave(ptr(rbx))),
    ("push qword ptr [rbx]", GP, nothing, |a| {
        a.push(qword_ptr(rbx))
    }),
    ("jmp rbx", GP, nothing, |a| a.jmp(rbx)),
    ("call rbx", GP, nothing, |a| a.call(rbx)),
    ("jmp qword ptr [rbx]", GP, nothing, |a| {
        a.jmp(qword_ptr(rbx))
    }),
    (PUSH, SS, to_rsp, |a| a.push(rax)),
    ("pop rax", SS, to_rsp, |a| a.pop(rax)),
    ("ret", SS, to_rsp, |a| a.ret()),
    (CALL, SS, to_rsp, |a| {
        let mut next = a.create_label();
        a.call(next)?;
        a.set_label(&mut next)?;
        a.nop()
    }),
    ("mov eax, [rsp]", SS, to_rsp, |a| a.mov(eax, dword_ptr(rsp))),
    (
        "mov eax, [rbp]",
        SS,
        |a| a.mov(rbp, rbx),
        |a| a.mov(eax, dword_ptr(rbp)),
    ),
    ("movsq", GP, |a| a.mov(rsi, rbx), |a| a.movsq()),
    ("stosq", GP, |a| a.mov(rdi, rbx), |a| a.stosq()),
];
const PUSH: &str = "push rax";
const CALL: &str = "call near";

fn nothing(_: &mut CodeAssembler) -> Result<(), IcedError> {
    Ok(())
}

fn to_rsp(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(rsp, rbx)
}

#[test]
fn addresses_that_are_not_canonical_fault_before_any_page_does() {
    for &(name, vector, prepare, access) in ACCESSES {
        // Far enough above the last canonical address that PUSH and CALL do not reach it, and the
        // last that is not canonical.
        for la in [
            0x8000_0000_0000u64,
            0x8000_0000_1000,
            0xFFFF_7FFF_FFFF_FFF8,
            1 << 63,
        ] {
            if [PUSH, CALL].contains(&name) && la == 0x8000_0000_0000 {
                continue;
            }
            for start in [KERNEL, USER] {
                let at = start + assemble(64, start, prepare).len() as u64;
                let make = || {
                    let mut g = if start == KERNEL {
                        Guest::kernel(|a| a.hlt())
                    } else {
                        Guest::user(|a| a.hlt())
                    };
                    g.assemble(start, |a| {
                        prepare(a)?;
                        access(a)
                    });
                    for vector in [GP, SS] {
                        g.gate(
                            vector,
                            Gate {
                                ist: 1,
                                ..Gate::default()
                            },
                        );
                    }
                    g.update(|s| s.gpr[RBX] = la);
                    g
                };
                check_and(make, &[(at, handler(vector), 0)], |g| {
                    assert_eq!(g.soft.cpu.sys.cr2, 0, "{name} {la:#x}");
                    assert_eq!(g.read(IST1 - 48), 0, "{name} {la:#x}: error code");
                    assert_eq!(g.read(IST1 - 40), at, "{name} {la:#x}");
                });
            }
        }
    }
}
