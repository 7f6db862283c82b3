//! Operands of a guest's instruction in registers of the host.

use iced_x86::{Instruction, OpAccess, OpKind, Register};

use crate::backend::jit::assembler::{R14, RAX, Reg};
use crate::backend::jit::form::Guest;
use crate::backend::jit::layout::HOST;
use crate::backend::jit::translate::Translator;
use crate::backend::jit::vector_form;

/// The register `n` of `size` bytes.
pub(super) fn named(n: Reg, size: usize) -> Register {
    let n = u32::from(n);
    match size {
        1 if n < 4 => Register::AL + n,
        1 => Register::SPL + (n - 4),
        2 => Register::AX + n,
        4 => Register::EAX + n,
        _ => Register::RAX + n,
    }
}

/// The general register that `r` is, or is the lowest part of.
pub(super) fn guest(r: Register) -> Option<Guest> {
    (r.is_gpr() && of_high(r).is_none()).then(|| r.full_register().number() as Guest)
}

/// The general register of which `r` is the second byte.
fn of_high(r: Register) -> Option<Guest> {
    [Register::AH, Register::CH, Register::DH, Register::BH]
        .into_iter()
        .zip(0..)
        .find_map(|(high, n)| (high == r).then_some(n))
}

/// Guest registers that are in host registers for the time of one instruction.
#[derive(Debug, Default)]
pub(super) struct Borrowed {
    free: Vec<Reg>,
    taken: Vec<(Guest, Reg)>,
    written: Vec<Guest>,
    /// The guest register whose second byte AL of the host has.
    high: Option<Guest>,
    /// It is written.
    writes_high: bool,
    /// The guest register whose second byte R14B of the host has, which is only read.
    other_high: Option<Guest>,
}

impl Borrowed {
    /// None so far. Those of `free` can be used.
    pub fn new(free: &[Reg]) -> Self {
        Self {
            free: free.to_vec(),
            ..Self::default()
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    /// The host register whose lowest byte has the second byte of `guest`, or will have it.
    fn high(&mut self, guest: Guest, writes: bool) -> Option<Reg> {
        if self.high == Some(guest) {
            self.writes_high |= writes;
            return Some(RAX);
        }
        if self.high.is_none() {
            self.take(RAX)?;
            (self.high, self.writes_high) = (Some(guest), writes);
            return Some(RAX);
        }
        if writes {
            return None;
        }
        self.take(R14)?;
        self.other_high = Some(guest);
        Some(R14)
    }

    /// Takes `r` if it is free.
    fn take(&mut self, r: Reg) -> Option<()> {
        let at = self.free.iter().position(|free| *free == r)?;
        self.free.remove(at);
        Some(())
    }

    /// The host register that has `guest`, or will have it.
    pub fn host(&mut self, guest: Guest) -> Option<Reg> {
        if let Some(host) = HOST[usize::from(guest)] {
            return Some(host);
        }
        if let Some((_, host)) = self.taken.iter().find(|(g, _)| *g == guest) {
            return Some(*host);
        }
        let host = self.free.pop()?;
        self.taken.push((guest, host));
        Some(host)
    }
}

impl Translator<'_> {
    /// Replaces the general registers that are operands of `i` by those of the host.
    pub(super) fn substitute(&mut self, i: &mut Instruction, borrowed: &mut Borrowed) -> bool {
        for n in 0..i.op_count() {
            if i.op_kind(n) != OpKind::Register {
                continue;
            }
            let r = i.op_register(n);
            if vector_form::number(r).is_some() {
                continue;
            }
            let access = self.info.info(i).op_access(n);
            let reads = matches!(access, OpAccess::Read | OpAccess::CondRead);
            if let Some(guest) = of_high(r) {
                let Some(host) = borrowed.high(guest, !reads) else {
                    return false;
                };
                i.set_op_register(n, named(host, 1));
                continue;
            }
            let Some(guest) = guest(r) else {
                return false;
            };
            let Some(host) = borrowed.host(guest) else {
                return false;
            };
            if !reads {
                borrowed.written.push(guest);
            }
            i.set_op_register(n, named(host, r.size()));
        }
        true
    }

    pub(super) fn load_borrowed(&mut self, borrowed: &Borrowed) {
        for (guest, host) in &borrowed.taken {
            self.read(*host, *guest);
        }
        // MOVZX EAX, AH, which keeps the flags.
        const MOVZX: [u8; 3] = [0x0F, 0xB6, 0xC4];
        if let Some(guest) = borrowed.other_high {
            self.read(RAX, guest);
            self.asm.bytes(&MOVZX);
            self.asm.mov32(R14, RAX);
        }
        if let Some(guest) = borrowed.high {
            self.read(RAX, guest);
            self.asm.bytes(&MOVZX);
        }
    }

    /// Writes the guest registers that the instruction has written.
    pub(super) fn store_borrowed(&mut self, borrowed: &Borrowed) {
        for (guest, host) in &borrowed.taken {
            if borrowed.written.contains(guest) {
                self.write(*guest, *host);
            }
        }
        // The registers that have a second byte are in host registers.
        let high = borrowed.high.filter(|_| borrowed.writes_high);
        if let Some(host) = high.and_then(|guest| HOST[usize::from(guest)]) {
            // MOV AH, AL; MOV AL, host; MOV host, AX, which keep the flags.
            self.asm.bytes(&[0x88, 0xC4]);
            self.asm.registers(true, &[0x8A], RAX, host);
            self.asm.bytes(&[0x66]);
            self.asm.registers(false, &[0x89], RAX, host);
        }
    }
}
