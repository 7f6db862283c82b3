//! Any DS area and any sequence of IA32_DEBUGCTL and IA32_DS_AREA, while branches of every kind
//! run.
#![no_main]

use std::sync::LazyLock;

use iced_x86::code_asm::ecx;
use libfuzzer_sys::fuzz_target;
use vbts_bts::{BtsFields, RECORD_SIZE};
use vbts_cpu::state::msr::{IA32_DEBUGCTL, IA32_DS_AREA};
use vbts_cpu::{Activity, Exit};
use vbts_fuzz::guest::{BTS_BUFFER, CODE, DATA, DS_AREA, Guest, Mode, PT, RAM, ds_fields};
use vbts_fuzz::input::Input;
use vbts_testkit::assemble;

/// An endless sequence of calls, returns, jumps, an interrupt and a loop, valid in every mode.
static BRANCHES: LazyLock<Vec<u8>> = LazyLock::new(|| {
    assemble(64, CODE, |a| {
        let (mut top, mut function) = (a.create_label(), a.create_label());
        let mut repeat = a.create_label();
        a.set_label(&mut top)?;
        a.call(function)?;
        a.int(0x30)?;
        a.jmp(top)?;
        a.nop()?;
        a.set_label(&mut function)?;
        a.mov(ecx, 4)?;
        a.set_label(&mut repeat)?;
        a.loop_(repeat)?;
        a.ret()
    })
});
static WRMSR: LazyLock<Vec<u8>> = LazyLock::new(|| assemble(64, WRITE_MSR, |a| a.wrmsr()));
/// WRMSR, then the branches.
const WRITE_MSR: u64 = CODE + 0x100;

/// Size of the memory where the buffer may be while records overwrite nothing else.
const BUFFER_SIZE: u64 = 0x2000;
/// A page that no correct access of this target writes.
const UNTOUCHED: u64 = RAM as u64 - 0x1000;
const OPERATIONS: usize = 200;

/// An address: where the DS area is, anywhere in RAM, near the ends of the address space, or any.
fn address(input: &mut Input<'_>) -> u64 {
    let near = u64::from(input.u16());
    match near & 7 {
        0..=2 => BTS_BUFFER + (near >> 3) % 0x1000,
        3 => DS_AREA - 0x20 + (near >> 3) % 0x40,
        4 => BTS_BUFFER + (near >> 3) * RECORD_SIZE,
        5 => (1 << 47) - 0x40 + (near >> 3) % 0x80,
        6 => (near >> 3).wrapping_sub(0x1000),
        _ => input.u64(),
    }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let mode = input.choose(&[Mode::Kernel64, Mode::User64, Mode::Kernel32, Mode::User32]);
    let mut guest = Guest::new(mode);
    let mut fields = ds_fields();
    // Set until records may have overwritten the DS area, tables or code, which determine where
    // records go, or the stack may have lost a return address.
    let mut orderly = true;
    let untouched = guest.ram().read(UNTOUCHED, 0x1000);
    for _ in 0..OPERATIONS {
        if input.is_empty() {
            break;
        }
        let operation = input.u8();
        match operation % 8 {
            0 => {
                let value = address(&mut input);
                let field = match operation >> 3 & 3 {
                    0 => &mut fields.base,
                    1 => &mut fields.index,
                    2 => &mut fields.absolute_maximum,
                    _ => &mut fields.threshold,
                };
                *field = value;
                guest.write(DS_AREA, &fields.to_bytes());
            }
            1 => {
                for field in [
                    &mut fields.base,
                    &mut fields.index,
                    &mut fields.absolute_maximum,
                    &mut fields.threshold,
                ] {
                    *field = address(&mut input);
                }
                guest.write(DS_AREA, &fields.to_bytes());
            }
            2 => {
                let (value, ds_area) = (u64::from(input.u16()), operation & 0x80 != 0);
                let ds_area = if ds_area {
                    address(&mut input)
                } else {
                    DS_AREA
                };
                orderly &= ds_area == DS_AREA;
                guest.update(|s| {
                    s.debugctl = value;
                    s.ds_area = ds_area;
                });
            }
            // By the instruction, which checks the value.
            3 => {
                let (msr, value) = if operation & 0x80 != 0 {
                    (IA32_DS_AREA, address(&mut input))
                } else {
                    (IA32_DEBUGCTL, input.u32().into())
                };
                orderly &= msr != IA32_DS_AREA || value == DS_AREA;
                guest.update(|s| {
                    s.rip = WRITE_MSR;
                    (s.gpr[1], s.gpr[0], s.gpr[2]) = (msr.into(), value & 0xFFFF_FFFF, value >> 32);
                });
            }
            // The pages of the DS area, of the buffer and of the stack: absent, read-only, not RAM,
            // somewhere else.
            4 => {
                let page = DS_AREA / 0x1000 + u64::from(operation >> 3 & 3);
                let entry = match operation >> 5 {
                    0 => 0,
                    1 => page << 12 | 1,
                    2 => (RAM as u64) | 3,
                    3 => 0xF_FFFF_F000 | 3,
                    4 => DATA | 3,
                    _ => page << 12 | 3,
                };
                orderly &= page << 12 < BTS_BUFFER + BUFFER_SIZE || entry == page << 12 | 3;
                guest.write(PT + page * 8, &entry.to_le_bytes());
                guest.update(|_| {}); // flushes the TLB
            }
            _ => {
                guest.write(CODE, &BRANCHES);
                guest.write(WRITE_MSR, &WRMSR);
                guest.write(WRITE_MSR + WRMSR.len() as u64, &BRANCHES);
                orderly &= is_orderly(&fields);
                let steps = u64::from(operation >> 3) * 8;
                match guest.run(steps) {
                    Exit::Shutdown => break,
                    Exit::Halt { .. } => guest.update(|s| {
                        s.activity = Activity::Active;
                        s.rip = CODE;
                    }),
                    _ => {}
                }
            }
        }
        if orderly {
            assert_eq!(guest.ram().read(UNTOUCHED, 0x1000), untouched);
        }
    }
    let debugctl = guest.machine.soft.cpu.state().debugctl;
    assert_eq!(debugctl & !0xFFFF, 0, "reserved bits stay clear");
});

/// Whether the buffer lies where records can overwrite neither the DS area, nor tables, nor code.
fn is_orderly(f: &BtsFields) -> bool {
    f.base >= BTS_BUFFER && f.absolute_maximum <= BTS_BUFFER + BUFFER_SIZE
}
