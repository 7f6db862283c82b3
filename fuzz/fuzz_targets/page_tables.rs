//! Any page tables, and accesses through them: loads, stores, fetches, descriptor and stack
//! accesses, branch records.
#![no_main]

use std::sync::LazyLock;

use iced_x86::code_asm::{CodeAssembler, ptr, qword_ptr, rax, rbx, rsp, xmm0};
use libfuzzer_sys::fuzz_target;
use vbts_bts::BtsFields;
use vbts_cpu::state::{cr0, efer, rflags};
use vbts_cpu::{Activity, ArchState, Exit};
use vbts_fuzz::guest::{CODE, Guest, Mode, PML4, RAM};
use vbts_fuzz::input::Input;
use vbts_fuzz::walk::{Purpose, Walker};
use vbts_testkit::{Emit, assemble};

/// Instructions that reach memory at RBX. The first is a load into RAX.
static ACCESSES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let programs: [fn(&mut CodeAssembler) -> Emit; 14] = [
        |a| a.mov(rax, qword_ptr(rbx)),
        |a| a.mov(qword_ptr(rbx), rax),
        |a| a.movups(xmm0, ptr(rbx)),
        |a| a.movups(ptr(rbx), xmm0),
        |a| a.lock().add(qword_ptr(rbx), rax),
        |a| a.cmpxchg16b(ptr(rbx)),
        |a| a.rep().movsq(),
        |a| a.rep().stosb(),
        |a| a.jmp(rbx),
        |a| a.call(qword_ptr(rbx)),
        |a| {
            a.mov(rsp, rbx)?;
            a.push(1)
        },
        |a| a.fxsave(ptr(rbx)),
        |a| a.lgdt(ptr(rbx)),
        |a| a.invlpg(ptr(rbx)),
    ];
    programs.map(|program| assemble(64, CODE, program)).into()
});
/// What follows an access: a jump to itself, or HLT twice.
static SPIN: LazyLock<Vec<u8>> = LazyLock::new(|| {
    assemble(64, CODE, |a| {
        let mut here = a.create_label();
        a.set_label(&mut here)?;
        a.jmp(here)
    })
});
static HALT: LazyLock<Vec<u8>> = LazyLock::new(|| {
    assemble(64, CODE, |a| {
        a.hlt()?;
        a.hlt()
    })
});
/// NOP, which fills the rest.
const NOP: u8 = 0x90;

/// Bits of the first byte.
const NO_WRITE_PROTECT: u8 = 1;
const NO_EXECUTE_DISABLE: u8 = 2;
const USER: u8 = 4;
const RECORD: u8 = 8;

const OPERATIONS: usize = 64;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let flags = input.u8();
    let mode = if flags & USER != 0 {
        Mode::User64
    } else {
        Mode::Kernel64
    };
    let mut guest = Guest::new(mode);
    guest.update(|s| {
        if flags & NO_WRITE_PROTECT != 0 {
            s.sys.cr0 &= !cr0::WP;
        }
        if flags & NO_EXECUTE_DISABLE != 0 {
            s.sys.efer &= !efer::NXE;
        }
    });
    for n in 0..OPERATIONS {
        if input.is_empty() {
            break;
        }
        let operation = input.u8();
        // The four pages of tables are next to each other; an entry may make any page a table.
        let entry = |input: &mut Input<'_>| PML4 + u64::from(input.u16() % (4 * 512)) * 8;
        match operation % 8 {
            // An entry for a page of RAM, or for one just above it.
            0..=1 => {
                let at = entry(&mut input);
                let page = u64::from(input.u8()) % (RAM as u64 / 0x1000 + 4);
                let low = u64::from(input.u16());
                let value = page << 12 | low & 0xFFF | low >> 15 << 63;
                guest.write(at, &value.to_le_bytes());
            }
            2 => {
                let at = entry(&mut input);
                let value = input.u64();
                guest.write(at, &value.to_le_bytes());
            }
            3 => {
                let cr3 = input.u64();
                guest.update(|s| {
                    s.sys.cr3 = if operation & 8 != 0 {
                        cr3
                    } else {
                        cr3 & 0x3_F000
                    }
                });
            }
            // An access: indices into the tables, then the offset.
            _ => {
                let indices = [input.u8(), input.u8(), input.u8(), input.u8()];
                let mut la = indices.iter().fold(0, |la, i| {
                    // Small indices, and the last ones of a table.
                    la << 9 | (u64::from(*i) ^ if i & 0x80 != 0 { 0x100 } else { 0 })
                }) << 12
                    | u64::from(input.u16() & 0xFFF);
                if la >> 47 & 1 != 0 && operation & 0x80 == 0 {
                    la |= !0 << 48;
                }
                let at = CODE + n as u64 * 16;
                let access = usize::from(input.u8()) % ACCESSES.len();
                let mut code = [NOP; 10];
                code[..ACCESSES[access].len()].copy_from_slice(&ACCESSES[access]);
                // A load that is checked ends in a loop, so that nothing can happen after it; all
                // else in HLT.
                let checked = access == 0 && la % 8 == 0 && flags & RECORD == 0;
                code[8..].copy_from_slice(if checked { &SPIN } else { &HALT });
                guest.write(at, &code);
                if flags & RECORD != 0 {
                    // The DS area is where the access goes.
                    let fields = BtsFields {
                        base: la,
                        index: la,
                        absolute_maximum: la.wrapping_add(96),
                        threshold: la.wrapping_add(48),
                    };
                    guest.write(vbts_fuzz::guest::DS_AREA, &fields.to_bytes());
                }
                guest.update(|s| {
                    s.rip = at;
                    s.rflags = rflags::FIXED;
                    s.activity = Activity::Active;
                    s.gpr = [la; 16];
                    s.gpr[1] = 300;
                    s.gpr[4] = vbts_fuzz::guest::KERNEL_STACK;
                    s.debugctl = if flags & RECORD != 0 { 0x1C0 } else { 0 };
                    if operation & 0x40 != 0 {
                        s.ds_area = la;
                    }
                });
                let state = guest.machine.soft.cpu.state();
                let expected = checked.then(|| loaded(&guest, &state, at)).flatten();
                let exit = guest.run(200);
                let value = guest.machine.soft.cpu.state().gpr[0];
                if let Some(expected) = expected {
                    assert_eq!(value, expected, "load from {la:#x}: {state:x?}");
                }
                if exit == Exit::Shutdown {
                    break;
                }
            }
        }
    }
});

/// The value of RAX after the load at `at`, by an independent page walk; before it, RAX is the
/// address. `None` if the walk cannot predict it: `at` leads to other code, the load leads to no
/// RAM, or the handler of a fault has been overwritten.
fn loaded(guest: &Guest, state: &ArchState, at: u64) -> Option<u64> {
    let la = state.gpr[0];
    let user = state.seg[2].dpl() == 3;
    let mut walker = Walker::new(guest.ram(), state, user);
    let fault = || guest.handlers_are_intact(state).then_some(la);
    match walker.translate(at, Purpose::Fetch) {
        None => return fault(),
        Some(gpa) if gpa != at => return None,
        Some(_) => {}
    }
    match walker.translate(la, Purpose::Load) {
        None => fault(),
        Some(gpa) => walker.read(gpa),
    }
}
