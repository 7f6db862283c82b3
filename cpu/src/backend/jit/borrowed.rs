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

/// Host registers that one instruction can take, at most.
const MOST: usize = 2;

/// Guest registers that are in host registers for the time of one instruction.
#[derive(Debug, Default)]
pub(super) struct Borrowed {
    /// The host registers that can be taken: bit `n` is for register `n`.
    free: u16,
    taken: [Option<(Guest, Reg)>; MOST],
    /// The guest registers that the instruction writes: bit `n` is for register `n`.
    written: u16,
    /// The guest register whose second byte AL of the host has.
    high: Option<Guest>,
    /// It is written.
    writes_high: bool,
    /// The guest register whose second byte R14B of the host has, which is only read.
    other_high: Option<Guest>,
}

impl Borrowed {
    /// None so far. Those of `free` can be used.
    pub(super) fn new<const N: usize>(free: [Reg; N]) -> Self {
        const { assert!(N <= MOST) };
        Self {
            free: free.iter().fold(0, |bits, r| bits | 1 << r),
            ..Self::default()
        }
    }

    /// None so far. All can be used, except for the one that a memory operand needs.
    pub(super) fn beside(memory: bool) -> Self {
        if memory {
            Self::new([RAX])
        } else {
            Self::new([RAX, R14])
        }
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.taken.iter().all(Option::is_none)
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

    fn taken(&self) -> impl Iterator<Item = (Guest, Reg)> {
        self.taken.into_iter().flatten()
    }

    /// Takes `r` if it is free.
    fn take(&mut self, r: Reg) -> Option<()> {
        let rest = self.free & !1u16.checked_shl(r.into())?;
        (std::mem::replace(&mut self.free, rest) != rest).then_some(())
    }

    /// The host register that has `guest`, or will have it.
    pub(super) fn host(&mut self, guest: Guest) -> Option<Reg> {
        if let Some(host) = HOST[usize::from(guest)] {
            return Some(host);
        }
        if let Some((_, host)) = self.taken().find(|(g, _)| *g == guest) {
            return Some(host);
        }
        let host = self.free.trailing_zeros() as Reg;
        self.take(host)?;
        *self.taken.iter_mut().find(|taken| taken.is_none())? = Some((guest, host));
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
                borrowed.written |= 1 << guest;
            }
            i.set_op_register(n, named(host, r.size()));
        }
        true
    }

    pub(super) fn load_borrowed(&mut self, borrowed: &Borrowed) {
        for (guest, host) in borrowed.taken() {
            self.read(host, guest);
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
        for (guest, host) in borrowed.taken() {
            if borrowed.written & 1 << guest != 0 {
                self.write(guest, host);
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
