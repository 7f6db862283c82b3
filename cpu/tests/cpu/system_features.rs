//! System features of the model x86-64-v3: SMEP, SMAP, UMIP, FSGSBASE, PCID, INVPCID, RDRAND (SDM
//! Vol. 3A 2.5, 4.6.1, 4.10.1).

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use vbts_cpu::state::vector::{GP, PF, UD};
use vbts_cpu::state::{Activity, cr0 as cr0_flags, cr4 as cr4_flags, gpr, rflags};
use vbts_cpu::{Model, model};

use crate::common::{DATA, Guest, KERNEL, RSP0, TSS, USER, handler, page_table_entry};

type Program = fn(&mut CodeAssembler) -> Result<(), IcedError>;

fn v3() -> &'static Model {
    model("x86-64-v3").unwrap()
}

/// A program at CPL 0 with flags of CR4.
fn kernel(flags: u64, program: Program) -> Guest {
    let mut g = Guest::of(v3());
    g.assemble(KERNEL, program);
    g.update(|s| s.sys.cr4 |= flags);
    g
}

/// A program at CPL 3 with flags of CR4.
fn user(flags: u64, program: Program) -> Guest {
    let mut g = Guest::of(v3());
    g.start_user(program);
    g.update(|s| s.sys.cr4 |= flags);
    g
}

#[test]
fn smep_keeps_the_supervisor_from_user_code() {
    let jump: Program = |a| {
        a.mov(eax, USER as u32)?;
        a.jmp(rax)
    };
    let mut g = kernel(0, jump);
    let end = g.assemble(USER, |a| a.hlt());
    g.run_to(end);
    // P and I/D, without U.
    let mut g = kernel(cr4_flags::SMEP, jump);
    g.assemble(USER, |a| a.hlt());
    g.update(|s| s.sys.efer &= !(1 << 11));
    let frame = g.run_to_exception(PF, Some(0x11));
    assert_eq!((frame.rip, g.soft.cpu.sys.cr2), (USER, USER));
    // CPL 3 executes its own code, and not the supervisor's, of which the I/D flag tells.
    let mut g = user(cr4_flags::SMEP, |a| {
        a.mov(eax, KERNEL as u32)?;
        a.jmp(rax)
    });
    g.run_to_exception(PF, Some(0x15));
    assert_eq!(g.soft.cpu.sys.cr2, KERNEL);
}

#[test]
fn smep_applies_to_code_that_has_run() {
    let mut g = kernel(0, |a| {
        a.mov(eax, USER as u32)?;
        a.call(rax)?;
        a.mov(rcx, cr4)?;
        a.or(ecx, cr4_flags::SMEP as u32)?;
        a.mov(cr4, rcx)?;
        a.call(rax)
    });
    g.assemble(USER, |a| a.ret());
    g.run_to_exception(PF, Some(0x11));
}

#[test]
fn smap_keeps_the_supervisor_from_user_data_unless_ac_is_set() {
    const FAULTS: [(Program, u64); 5] = [
        (|a| a.mov(eax, dword_ptr(DATA)), 1),
        (|a| a.mov(dword_ptr(DATA), eax), 3),
        (|a| a.inc(dword_ptr(DATA)), 3),
        // In the second of two pages.
        (|a| a.mov(rax, qword_ptr(DATA - 4)), 1),
        (
            |a| {
                a.mov(esp, DATA as u32 + 8)?;
                a.pop(rax)
            },
            1,
        ),
    ];
    for (n, (program, error)) in FAULTS.into_iter().enumerate() {
        let mut g = kernel(cr4_flags::SMAP, program);
        g.page(DATA - 0x1000, 3);
        g.run_to_exception(PF, Some(error));
        assert_eq!(g.soft.cpu.sys.cr2 & !0xFFF, DATA, "program {n}");
        // Without SMAP, and with AC.
        for (flags, ac) in [(0, 0), (cr4_flags::SMAP, rflags::AC)] {
            let mut g = Guest::of(v3());
            let end = g.assemble(KERNEL, |a| {
                program(a)?;
                a.hlt()
            });
            g.update(|s| {
                s.sys.cr4 |= flags;
                s.rflags |= ac;
            });
            g.run_to(end);
        }
    }
}

#[test]
fn stac_and_clac_open_and_close_user_pages() {
    let mut g = kernel(cr4_flags::SMAP, |a| {
        a.stac()?;
        a.mov(ebx, dword_ptr(DATA))?;
        a.mov(dword_ptr(DATA + 8), ebx)?;
        a.clac()?;
        a.mov(ecx, dword_ptr(KERNEL))?;
        a.mov(edx, dword_ptr(DATA))
    });
    g.write(DATA, 77);
    let frame = g.run_to_exception(PF, Some(1));
    assert_eq!(g.read(DATA + 8), 77);
    assert_eq!(frame.rflags & rflags::AC, 0);
    // Where AC comes from does not matter.
    let mut g = Guest::of(v3());
    let end = g.assemble(KERNEL, |a| {
        a.pushfq()?;
        a.or(dword_ptr(rsp), rflags::AC as u32)?;
        a.popfq()?;
        a.mov(ebx, dword_ptr(DATA))?;
        a.hlt()
    });
    g.update(|s| s.sys.cr4 |= cr4_flags::SMAP);
    g.run_to(end);
}

#[test]
fn clac_and_stac_are_the_kernels() {
    for program in [|a: &mut CodeAssembler| a.clac(), |a| a.stac()] as [Program; 2] {
        assert_eq!(user(0, program).run_to_exception(UD, None).rip, USER);
        // They need no SMAP.
        let mut g = Guest::of(v3());
        let end = g.assemble(KERNEL, |a| {
            program(a)?;
            a.hlt()
        });
        g.run_to(end);
    }
}

#[test]
fn implicit_accesses_ignore_ac() {
    // The descriptor of CS is in a user page.
    let load: Program = |a| {
        a.mov(eax, ds)?;
        a.mov(ds, eax)?;
        a.hlt()
    };
    for (flags, faults) in [(0, false), (cr4_flags::SMAP, true)] {
        let mut g = kernel(flags, load);
        let gdt = g.soft.cpu.sys.gdtr.base;
        g.update(|s| {
            s.rflags |= rflags::AC;
            s.seg[3].selector = s.seg[2].selector;
        });
        g.page(gdt, 7);
        if faults {
            // The delivery reads the GDT, too.
            g.run();
            assert_eq!(g.soft.cpu.sys.cr2 & !0xFFF, gdt);
            assert_eq!(g.soft.cpu.state().activity, Activity::Shutdown);
        } else {
            g.run();
            assert_eq!(g.soft.cpu.state().activity, Activity::Halted);
        }
    }
}

#[test]
fn user_programs_are_interrupted_under_smap() {
    // The handler's stack is no user page, whatever AC is.
    for ac in [0, rflags::AC] {
        let mut g = user(cr4_flags::SMAP, |a| {
            a.mov(eax, dword_ptr(DATA))?;
            a.ud2()
        });
        g.update(|s| s.rflags |= ac);
        let frame = g.run_to_exception(UD, None);
        assert_eq!(frame.rflags & rflags::AC, ac);
        assert!(frame.at < RSP0);
    }
    // TSS in a user page.
    let mut g = user(cr4_flags::SMAP, |a| a.ud2());
    g.page(TSS, 7);
    g.update(|s| s.rflags |= rflags::AC);
    g.run();
    assert_eq!(g.soft.cpu.sys.cr2 & !0xFFF, TSS);
}

#[test]
fn umip_reserves_what_system_registers_hold() {
    let programs: [Program; 7] = [
        |a| a.sgdt(ptr(DATA)),
        |a| a.sidt(ptr(DATA)),
        |a| a.sldt(eax),
        |a| a.sldt(word_ptr(DATA)),
        |a| a.str(eax),
        |a| a.smsw(rax),
        |a| a.smsw(word_ptr(DATA)),
    ];
    for program in programs {
        let mut g = user(cr4_flags::UMIP, program);
        assert_eq!(g.run_to_exception(GP, Some(0)).rip, USER);
        assert_eq!(g.read(DATA), 0);
        let mut g = user(0, |a| a.ud2());
        g.start_user(|a| {
            program(a)?;
            a.ud2()
        });
        assert_ne!(g.run_to_exception(UD, None).rip, USER);
        let mut g = Guest::of(v3());
        let end = g.assemble(KERNEL, |a| {
            program(a)?;
            a.hlt()
        });
        g.update(|s| s.sys.cr4 |= cr4_flags::UMIP);
        g.run_to(end);
    }
}

#[test]
fn fsgsbase_has_to_be_enabled() {
    let programs: [Program; 8] = [
        |a| a.rdfsbase(rax),
        |a| a.rdgsbase(rax),
        |a| a.wrfsbase(rax),
        |a| a.wrgsbase(rax),
        |a| a.rdfsbase(eax),
        |a| a.rdgsbase(eax),
        |a| a.wrfsbase(eax),
        |a| a.wrgsbase(eax),
    ];
    for program in programs {
        assert_eq!(user(0, program).run_to_exception(UD, None).rip, USER);
    }
}

#[test]
fn fsgsbase_reads_and_writes_bases() {
    const FS: u64 = 0x1234_5678_9ABC;
    let mut g = user(cr4_flags::FSGSBASE, |a| {
        a.rdfsbase(rax)?;
        a.rdfsbase(ebx)?;
        a.mov(ecx, DATA as u32)?;
        a.wrfsbase(rcx)?;
        a.mov(rdx, qword_ptr(8).fs())?;
        a.mov(rsi, -1i64)?;
        a.wrgsbase(esi)?;
        a.rdgsbase(rdi)?;
        a.mov(rbp, 0x8000_0000_0000u64)?;
        a.wrgsbase(rbp)
    });
    g.write(DATA + 8, 99);
    g.update(|s| s.seg[4].base = FS);
    g.run_to_exception(GP, Some(0));
    let r = &g.soft.cpu.gpr;
    assert_eq!((r[gpr::RAX], r[gpr::RBX]), (FS, FS & 0xFFFF_FFFF));
    assert_eq!((r[gpr::RDX], r[gpr::RDI]), (99, 0xFFFF_FFFF));
    let seg = g.soft.cpu.state().seg;
    assert_eq!((seg[4].base, seg[5].base), (DATA, 0xFFFF_FFFF));
}

/// Whether a write to CR4 or CR3 is accepted in this state.
fn accepts(g: &mut Guest, program: Program, value: u64) -> bool {
    let end = g.assemble(KERNEL, |a| {
        program(a)?;
        a.hlt()
    });
    g.update(|s| {
        s.rip = KERNEL;
        s.activity = Activity::Active;
        s.gpr[gpr::RAX] = value;
    });
    g.run();
    assert!([end, handler(GP) + 1].contains(&g.soft.cpu.rip));
    g.soft.cpu.rip == end
}

const TO_CR0: Program = |a| a.mov(cr0, rax);
const TO_CR3: Program = |a| a.mov(cr3, rax);
const TO_CR4: Program = |a| a.mov(cr4, rax);

#[test]
fn flags_of_cr4_exist_with_their_features() {
    let flags = cr4_flags::UMIP
        | cr4_flags::FSGSBASE
        | cr4_flags::PCIDE
        | cr4_flags::SMEP
        | cr4_flags::SMAP;
    for bit in (0..64).map(|n| 1u64 << n).filter(|bit| flags & bit != 0) {
        let basic = bit & (cr4_flags::FSGSBASE | cr4_flags::SMEP) != 0;
        for (name, expected) in [
            ("x86-64-v2", false),
            ("x86-64-v3-basic", basic),
            ("x86-64-v3", true),
        ] {
            let mut g = Guest::of(model(name).unwrap());
            let value = g.soft.cpu.sys.cr4 | bit;
            assert_eq!(accepts(&mut g, TO_CR4, value), expected, "{name} {bit:#x}");
        }
    }
}

#[test]
fn pcids_need_ia32e_mode_and_a_cr3_without_flags() {
    const PCD: u64 = 1 << 4;
    const KEEP: u64 = 1 << 63;
    let mut g = Guest::of(v3());
    let (table, flags) = (g.soft.cpu.sys.cr3, g.soft.cpu.sys.cr4);
    assert!(!accepts(&mut g, TO_CR3, table | KEEP));
    assert!(accepts(&mut g, TO_CR3, table | PCD));
    assert!(!accepts(&mut g, TO_CR4, flags | cr4_flags::PCIDE));
    assert!(accepts(&mut g, TO_CR3, table));
    assert!(accepts(&mut g, TO_CR4, flags | cr4_flags::PCIDE));
    for value in [table | 0xFFF, table | KEEP | 5] {
        assert!(accepts(&mut g, TO_CR3, value));
        assert_eq!(g.soft.cpu.sys.cr3, value & !KEEP);
    }
    assert!(!accepts(&mut g, TO_CR3, table | 1 << 62));
    // Now the flag may be written again, and paging stays on.
    assert!(accepts(&mut g, TO_CR4, flags | cr4_flags::PCIDE));
    g.assemble(KERNEL, |a| a.mov(cr0, rax));
    g.update(|s| {
        (s.rip, s.activity) = (KERNEL, Activity::Active);
        s.gpr[gpr::RAX] = s.sys.cr0 & !cr0_flags::PG;
    });
    g.run_to_exception(GP, Some(0));
    let unchanged = g.soft.cpu.sys.cr0;
    assert!(accepts(&mut g, TO_CR0, unchanged));
    assert!(accepts(&mut g, TO_CR4, flags));
}

#[test]
fn a_change_of_the_tables_is_seen_after_a_flush() {
    // DATA is read, mapped to the page after it, and read again.
    let second = DATA + 0x1000;
    let flush: [Program; 6] = [
        |a| a.invlpg(byte_ptr(DATA)),
        |a| {
            a.mov(ebx, 0)?;
            a.invpcid(rbx, xmmword_ptr(DATA + 0x2000))
        },
        |a| {
            a.mov(ebx, 1)?;
            a.invpcid(rbx, xmmword_ptr(DATA + 0x2000))
        },
        |a| {
            a.mov(ebx, 2)?;
            a.invpcid(rbx, xmmword_ptr(DATA + 0x2000))
        },
        |a| {
            a.mov(ebx, 3)?;
            a.invpcid(rbx, xmmword_ptr(DATA + 0x2000))
        },
        |a| {
            a.mov(rbx, cr3)?;
            a.mov(cr3, rbx)
        },
    ];
    for (n, flush) in flush.into_iter().enumerate() {
        for pcid in [0, 7] {
            let mut g = Guest::of(v3());
            let end = g.assemble(KERNEL, |a| {
                a.mov(eax, dword_ptr(DATA))?;
                a.mov(dword_ptr(page_table_entry(DATA)), second as u32 | 7)?;
                flush(a)?;
                a.mov(edx, dword_ptr(DATA))?;
                a.hlt()
            });
            g.write(DATA, 1);
            g.write(second, 2);
            // The descriptor of INVPCID.
            g.write(DATA + 0x2000, pcid);
            g.write(DATA + 0x2008, DATA);
            g.update(|s| {
                s.sys.cr3 |= pcid;
                s.sys.cr4 |= cr4_flags::PCIDE;
            });
            g.run_to(end);
            let r = &g.soft.cpu.gpr;
            assert_eq!((r[gpr::RAX], r[gpr::RDX]), (1, 2), "flush {n}");
        }
    }
}

#[test]
fn invpcid_checks_its_operands() {
    const PCIDE: u64 = cr4_flags::PCIDE;
    const HOLE: u64 = 1 << 47;
    // Type, PCID, address, CR4, and whether it is accepted.
    let cases = [
        (0, 0, 0, 0, true),
        (0, 5, 0, 0, false),
        (1, 5, 0, 0, false),
        (2, 5, 0, 0, true),
        (3, 5, 0, 0, true),
        (0, 5, 0, PCIDE, true),
        (1, 0xFFF, HOLE, PCIDE, true),
        (0, 0, HOLE, PCIDE, false),
        (1, 0x1000, 0, PCIDE, false),
        (2, 1 << 63, 0, PCIDE, false),
        (4, 0, 0, PCIDE, false),
        (1 << 32, 0, 0, PCIDE, false),
    ];
    for case in cases {
        let (kind, pcid, address, flags, expected) = case;
        let mut g = Guest::of(v3());
        g.write(DATA, pcid);
        g.write(DATA + 8, address);
        g.update(|s| s.sys.cr4 |= flags);
        let program: Program = |a| a.invpcid(rax, xmmword_ptr(DATA));
        assert_eq!(accepts(&mut g, program, kind), expected, "{case:x?}");
    }
    let mut g = user(0, |a| a.invpcid(rax, xmmword_ptr(DATA)));
    g.run_to_exception(GP, Some(0));
}

#[test]
fn rdrand_is_the_same_on_every_run() {
    let run = |before: u64| {
        let mut g = Guest::of(v3());
        let end = g.assemble(KERNEL, |a| {
            a.rdrand(rax)?;
            a.rdrand(ecx)?;
            a.mov(edx, -1)?;
            a.rdrand(dx)?;
            a.hlt()
        });
        g.update(|s| {
            s.progress.random_numbers = before;
            s.rflags |= rflags::ARITH;
            s.gpr[gpr::RCX] = u64::MAX;
        });
        g.run_to(end);
        assert_eq!(g.rflags() & rflags::ARITH, rflags::CF);
        let s = g.soft.cpu.state();
        assert_eq!(s.progress.random_numbers, before + 3);
        assert_eq!(s.gpr[gpr::RDX] >> 16, 0xFFFF);
        [s.gpr[gpr::RAX], s.gpr[gpr::RCX], s.gpr[gpr::RDX] & 0xFFFF]
    };
    let first = run(0);
    assert_eq!(run(0), first);
    assert_eq!(run(1)[0] & 0xFFFF_FFFF, first[1]);
    assert_ne!(first[0] & 0xFFFF_FFFF, first[1]);
    assert!(first[1] <= 0xFFFF_FFFF);
}
