//! Host registers for the operands of one guest instruction.
//!
//! Most guest registers have a host register of their own. An instruction that names another one
//! executes with [`SCRATCH`] or [`POINTER`] in its place. [`ScratchRegs`] hands out these two, and
//! refuses when both are in use: an instruction then has no template.

use std::array::from_fn;

use iced_x86::{Instruction, InstructionInfoFactory, OpAccess, OpKind, Register};

use crate::backend::jit::assembler::{Assembler, Byte, ByteOp, Reg};
use crate::backend::jit::registers::map::{Guest, POINTER, SCRATCH, host};
use crate::backend::jit::registers::processor::register;

/// Returns the number of the general register that `r` is, or is the lowest part of.
pub(crate) fn guest(r: Register) -> Option<Guest> {
    (r.is_gpr() && guest_of_high_byte(r).is_none()).then(|| r.full_register().number() as Guest)
}

/// Returns the number of the general register of which `r` is the second byte.
fn guest_of_high_byte(r: Register) -> Option<Guest> {
    [Register::AH, Register::CH, Register::DH, Register::BH]
        .into_iter()
        .zip(0..)
        .find_map(|(high, n)| (high == r).then_some(n))
}

/// Returns the number of a vector register.
pub(crate) fn vector_number(r: Register) -> Option<u8> {
    r.is_vector_register().then(|| r.number() as u8)
}

/// Emits a load of a guest register into a host register. Keeps the host's flags.
pub(crate) fn read(a: &mut Assembler, to: Reg, guest: Guest) {
    match host(guest) {
        Some(host) => a.mov(to, host),
        None => a.load(to, &register(guest)),
    }
}

/// Emits a store of a host register to a guest register. Keeps the host's flags.
pub(crate) fn write(a: &mut Assembler, guest: Guest, from: Reg) {
    match host(guest) {
        Some(host) => a.mov(host, from),
        None => a.store(&register(guest), from),
    }
}

/// Upper bound on the host registers that one instruction can occupy.
const MAX: usize = 2;

/// Guest registers that host registers contain during one instruction.
#[derive(Debug, Default)]
pub(crate) struct ScratchRegs {
    /// Host registers that can be occupied, the preferred one first.
    free: [Option<Reg>; MAX],
    occupied: [Option<(Guest, Reg)>; MAX],
    /// Guest registers that the instruction writes: bit `n` stands for register `n`.
    written: u16,
    /// The guest register whose second byte is in the lowest byte of [`SCRATCH`].
    high: Option<Guest>,
    /// Whether the instruction writes that byte.
    writes_high: bool,
    /// The guest register whose second byte is in the lowest byte of [`POINTER`]. The instruction
    /// only reads that byte.
    other_high: Option<Guest>,
}

impl ScratchRegs {
    /// Returns a set of which the host registers `free` can be occupied.
    pub(crate) fn new<const N: usize>(free: [Reg; N]) -> Self {
        const { assert!(N <= MAX) };
        Self {
            free: from_fn(|n| free.get(n).copied()),
            ..Self::default()
        }
    }

    /// Returns the registers of an instruction: without [`POINTER`] if it has a memory operand,
    /// whose address that register contains.
    pub(crate) fn beside(memory: bool) -> Self {
        if memory {
            Self::new([SCRATCH])
        } else {
            Self::new([SCRATCH, POINTER])
        }
    }

    /// Whether no host register is occupied by a whole guest register.
    pub(crate) fn is_empty(&self) -> bool {
        self.occupied.iter().all(Option::is_none)
    }

    /// Returns the host register whose lowest byte stands for the second byte of `guest`.
    fn high(&mut self, guest: Guest, writes: bool) -> Option<Reg> {
        if self.high == Some(guest) {
            self.writes_high |= writes;
            return Some(SCRATCH);
        }
        if self.high.is_none() {
            self.occupy(SCRATCH)?;
            (self.high, self.writes_high) = (Some(guest), writes);
            return Some(SCRATCH);
        }
        if writes {
            return None;
        }
        self.occupy(POINTER)?;
        self.other_high = Some(guest);
        Some(POINTER)
    }

    fn occupied(&self) -> impl Iterator<Item = (Guest, Reg)> {
        self.occupied.into_iter().flatten()
    }

    /// Occupies `r` if it is free.
    fn occupy(&mut self, r: Reg) -> Option<Reg> {
        let slot = self.free.iter_mut().find(|free| **free == Some(r))?;
        slot.take()
    }

    /// Returns the host register that contains `guest` during the instruction, or `None` if none is
    /// free.
    pub(crate) fn host(&mut self, guest: Guest) -> Option<Reg> {
        if let Some(host) = host(guest) {
            return Some(host);
        }
        if let Some((_, host)) = self.occupied().find(|(g, _)| *g == guest) {
            return Some(host);
        }
        let host = self.free.iter_mut().find_map(Option::take)?;
        *self.occupied.iter_mut().find(|slot| slot.is_none())? = Some((guest, host));
        Some(host)
    }

    /// Replaces the general registers that are operands of `i` by those of the host. Returns
    /// whether enough of them are free.
    pub(crate) fn substitute(
        &mut self,
        i: &mut Instruction,
        info: &mut InstructionInfoFactory,
    ) -> bool {
        for n in 0..i.op_count() {
            if i.op_kind(n) != OpKind::Register {
                continue;
            }
            let r = i.op_register(n);
            if vector_number(r).is_some() {
                continue;
            }
            let access = info.info(i).op_access(n);
            let reads = matches!(access, OpAccess::Read | OpAccess::CondRead);
            if let Some(guest) = guest_of_high_byte(r) {
                let Some(host) = self.high(guest, !reads) else {
                    return false;
                };
                i.set_op_register(n, host.named(1));
                continue;
            }
            let Some(guest) = guest(r) else {
                return false;
            };
            let Some(host) = self.host(guest) else {
                return false;
            };
            if !reads {
                self.written |= 1 << guest;
            }
            i.set_op_register(n, host.named(r.size()));
        }
        true
    }

    /// Emits loads of the guest registers. Keeps the host's flags.
    pub(crate) fn load(&self, a: &mut Assembler) {
        for (guest, host) in self.occupied() {
            read(a, host, guest);
        }
        if let Some(guest) = self.other_high {
            read(a, SCRATCH, guest);
            a.zero_extend_byte(SCRATCH, Byte::AH);
            a.mov32(POINTER, SCRATCH);
        }
        if let Some(guest) = self.high {
            read(a, SCRATCH, guest);
            a.zero_extend_byte(SCRATCH, Byte::AH);
        }
    }

    /// Emits stores of the guest registers that the instruction has written. Keeps the host's
    /// flags.
    pub(crate) fn store(&self, a: &mut Assembler) {
        for (guest, host) in self.occupied() {
            if self.written & 1 << guest != 0 {
                write(a, guest, host);
            }
        }
        // The registers that have a second byte are in host registers.
        let high = self.high.filter(|_| self.writes_high);
        if let Some(host) = high.and_then(host) {
            // MOV AL, the lowest byte of `host`; MOV the lowest word of `host`, AX
            a.byte_op(ByteOp::Mov, Byte::AH, Byte::AL);
            a.registers(true, &[0x8A], SCRATCH, host);
            a.bytes(&[0x66]);
            a.registers(false, &[0x89], SCRATCH, host);
        }
    }
}

const _: () = assert!(SCRATCH.number() == 0, "AL and AH are bytes of SCRATCH");
