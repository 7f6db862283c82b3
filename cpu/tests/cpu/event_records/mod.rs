//! The records that interrupts, NMIs, debug exceptions, far transfers and resumed faults leave
//! under each CPL filter, with the state that the program ends in.

mod changed_code;
mod exceptions;
mod far_transfers;
mod interrupts;
mod restarts;

use crate::common::{Gate, Guest, USER, assemble, segment, selector};
use iced_x86::code_asm::*;

/// A gate that user code may use with INT, INT3 and INTO.
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
    g.update(|s| s.seg[1] = segment(selector::USER_CS32));
    g
}
