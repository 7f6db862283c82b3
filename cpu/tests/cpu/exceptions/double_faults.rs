//! Double faults and shutdown (SDM Vol. 3A 6.15, interrupt 8).

use crate::common::{Gate, Guest, IST1, RSP0, USER};
use iced_x86::code_asm::*;
use vbts_cpu::Exit;
use vbts_cpu::state::{rflags, vector};

#[test]
fn contributory_after_contributory_and_page_fault_after_page_fault_are_double_faults() {
    // #GP whose gate is absent: #NP.
    let mut g = Guest::user(|a| a.hlt());
    g.gate(
        vector::GP,
        Gate {
            present: false,
            ..Gate::default()
        },
    );
    let frame = g.run_to_exception(vector::DF, Some(0));
    assert_eq!(frame.rip, USER);
    assert_eq!(frame.rflags & rflags::RF, 0);

    // #PF that finds no stack.
    let mut g = Guest::user(|a| a.mov(byte_ptr(0x4000_0000), al));
    g.gate(
        vector::DF,
        Gate {
            ist: 1,
            ..Gate::default()
        },
    );
    g.page(RSP0 - 0x1000, 0);
    assert_eq!(g.run_to_exception(vector::DF, Some(0)).at + 40, IST1);
    assert_eq!(g.soft.cpu.sys.cr2, RSP0 - 8);
}

#[test]
fn page_fault_after_contributory_is_delivered_as_itself() {
    let mut g = Guest::user(|a| a.hlt());
    g.page(RSP0 - 0x1000, 0);
    g.gate(
        vector::PF,
        Gate {
            ist: 1,
            ..Gate::default()
        },
    );
    // Supervisor write to a page that is not there.
    assert_eq!(g.run_to_exception(vector::PF, Some(2)).rip, USER);
}

#[test]
fn a_double_fault_that_cannot_be_delivered_shuts_down() {
    let mut g = Guest::user(|a| a.hlt());
    g.update(|s| s.sys.idtr.limit = 0);
    assert_eq!(g.run(), Exit::Shutdown);
    assert_eq!(g.run(), Exit::Shutdown);
}
