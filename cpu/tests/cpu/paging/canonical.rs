//! Accesses to addresses that are not canonical (SDM Vol. 1 3.3.7.1).

use crate::common::records::check_and;
use crate::common::{Gate, Guest, IST1, KERNEL, USER, handler};
use vbts_cpu::state::gpr::RBX;
use vbts_cpu::state::vector::{GP, SS};

/// An instruction that accesses RBX, and what it raises if that is not canonical.
type Access = (&'static str, u8, &'static [u8]);

#[test]
fn addresses_that_are_not_canonical_fault_before_any_page_does() {
    const ACCESSES: &[Access] = &[
        ("mov rax, [rbx]", GP, &[0x48, 0x8B, 0x03]),
        ("mov [rbx], rax", GP, &[0x48, 0x89, 0x03]),
        ("lock inc dword ptr [rbx]", GP, &[0xF0, 0xFF, 0x03]),
        ("movups xmm0, [rbx]", GP, &[0x0F, 0x10, 0x03]),
        ("fld qword ptr [rbx]", GP, &[0xDD, 0x03]),
        ("fxsave [rbx]", GP, &[0x0F, 0xAE, 0x03]),
        ("push qword ptr [rbx]", GP, &[0xFF, 0x33]),
        ("jmp rbx", GP, &[0xFF, 0xE3]),
        ("call rbx", GP, &[0xFF, 0xD3]),
        ("jmp qword ptr [rbx]", GP, &[0xFF, 0x23]),
        ("push rax", SS, &[0x48, 0x89, 0xDC, 0x50]),
        ("pop rax", SS, &[0x48, 0x89, 0xDC, 0x58]),
        ("ret", SS, &[0x48, 0x89, 0xDC, 0xC3]),
        ("call +0", SS, &[0x48, 0x89, 0xDC, 0xE8, 0, 0, 0, 0]),
        ("mov eax, [rsp]", SS, &[0x48, 0x89, 0xDC, 0x8B, 0x04, 0x24]),
        ("mov eax, [rbp]", SS, &[0x48, 0x89, 0xDD, 0x8B, 0x45, 0]),
        ("movsq from", GP, &[0x48, 0x89, 0xDE, 0x48, 0xA5]),
        ("stosq to", GP, &[0x48, 0x89, 0xDF, 0x48, 0xAB]),
    ];
    for &(name, vector, code) in ACCESSES {
        // Those of three bytes more move RBX to the register that they access first.
        let before = match code {
            [0x48, 0x89, 0xDC..=0xDF, rest @ ..] if !rest.is_empty() => 3,
            _ => 0,
        };
        // Far enough above the last canonical address that PUSH and CALL do not reach it, and the
        // last that is not canonical.
        for la in [
            0x8000_0000_0000u64,
            0x8000_0000_1000,
            0xFFFF_7FFF_FFFF_FFF8,
            1 << 63,
        ] {
            let pushes = matches!(code.get(before), Some(0x50 | 0xE8)) && before > 0;
            if pushes && la == 0x8000_0000_0000 {
                continue;
            }
            for start in [KERNEL, USER] {
                let make = || {
                    let mut g = if start == KERNEL {
                        Guest::kernel(|a| a.hlt())
                    } else {
                        Guest::user(|a| a.hlt())
                    };
                    g.write_bytes(start, code);
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
                let at = start + before as u64;
                check_and(make, &[(at, handler(vector), 0)], |g| {
                    assert_eq!(g.soft.cpu.sys.cr2, 0, "{name} {la:#x}");
                    assert_eq!(g.read(IST1 - 48), 0, "{name} {la:#x}: error code");
                    assert_eq!(g.read(IST1 - 40), at, "{name} {la:#x}");
                });
            }
        }
    }
}
