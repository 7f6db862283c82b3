//! Memory operands of guest instructions that have a template.

use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};

use crate::backend::jit::forms::direct::is_bit_test;
use crate::backend::jit::registers::map::Guest;
use crate::decode;
use crate::insn::{Insn, reg, seg};
use crate::state::gpr;

/// The guest's RSP, RBP, and the size of a slot of its stack in bytes.
pub(crate) const RSP: Guest = gpr::RSP as Guest;
pub(crate) const RBP: Guest = gpr::RBP as Guest;
pub(crate) const SLOT: i64 = 8;

/// A memory operand of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Operand {
    pub base: Option<Guest>,
    /// Register and factor.
    pub index: Option<(Guest, u8)>,
    /// Added to the registers; without registers, the address.
    pub disp: i64,
    /// The segment whose base is added: FS or GS.
    pub segment: Option<u8>,
    /// A register with the number of a bit, of which the operand is at this address plus as many
    /// operands as lie before it.
    pub bit: Option<Guest>,
    /// Bytes that are accessed.
    pub size: usize,
}

/// Whether `i` accesses the memory at its operand. A masked move does, without [`Insn::MEM`].
pub(crate) fn accesses_memory(i: &Instruction, insn: &Insn) -> bool {
    let has_operand = insn.prefix & Insn::MEM != 0 || decode::is_masked_move(i);
    has_operand && i.mnemonic() != Mnemonic::Lea
}

impl Operand {
    /// Whether its address depends on no register.
    pub(crate) fn is_constant(&self) -> bool {
        let registers = [self.base, self.index.map(|(r, _)| r), self.bit];
        registers.iter().all(Option::is_none) && self.segment.is_none()
    }

    /// `size` bytes at `disp` from the stack pointer or the frame pointer.
    pub(crate) fn at(base: Guest, disp: i64, size: usize) -> Self {
        Self {
            base: Some(base),
            index: None,
            disp,
            segment: None,
            bit: None,
            size,
        }
    }

    /// The memory operand of `i`, in 64-bit code in a block at `rip`. `None`: its address does not
    /// have 64 bits, or no template has its form.
    pub(crate) fn of(i: &Instruction, insn: &Insn, rip: u64) -> Option<Self> {
        if insn.prefix & (Insn::A16 | Insn::A32 | Insn::OFFSET64) != 0 || insn.base == reg::TMP {
            return None;
        }
        let register = |r: Register| match r {
            Register::None => Some(None),
            r if r.is_gpr64() => Some(Some(r.number() as Guest)),
            _ => None,
        };
        let segment = match insn.seg {
            seg::FLAT | seg::FLAT_SS => None,
            seg::FS | seg::GS => Some(insn.seg),
            _ => return None,
        };
        let size = i.memory_size().size();
        let bit = (is_bit_test(i.mnemonic()) && i.op1_kind() == OpKind::Register)
            .then(|| i.op1_register().full_register().number() as Guest);
        if bit.is_some() && size == 2 {
            return None;
        }
        if i.is_ip_rel_memory_operand() {
            // It was decoded as if the block began at zero.
            let address = rip.wrapping_add(i.ip_rel_memory_address());
            return Some(Self {
                base: None,
                index: None,
                disp: address as i64,
                segment,
                bit,
                size,
            });
        }
        let index = register(i.memory_index())?;
        let mut disp = i.memory_displacement64() as i64;
        if i.code() == Code::Pop_rm64 && i.memory_base() == Register::RSP {
            // It is relative to the stack pointer after the pop.
            disp = i32::try_from(disp + 8).ok()?.into();
        }
        Some(Self {
            base: register(i.memory_base())?,
            index: index.map(|r| (r, i.memory_index_scale() as u8)),
            disp,
            segment,
            bit,
            size,
        })
    }
}
