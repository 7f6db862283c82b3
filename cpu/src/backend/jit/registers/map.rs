//! The host register of each guest register, and the registers that native code keeps for itself.
//!
//! No other file of `backend/jit` says which host register has a role, apart from the routines,
//! which follow the calling convention of Rust's code.

use crate::backend::jit::assembler::{
    Mem, R8, R9, R10, R11, R12, R13, R14, R15, RAX, RBP, RBX, RCX, RDI, RDX, RSI, RSP, Reg,
};
use crate::backend::jit::registers::processor::register;

/// A guest register, by its number.
pub(crate) type Guest = u8;

/// Contains the address of the [`Cpu`](crate::processor::cpu::Cpu) plus
/// [`BIAS`](super::processor::BIAS).
pub(crate) const CPU: Reg = R15;
/// Contains the address of the [`Frame`](super::frame::Frame).
pub(crate) const FRAME: Reg = RSP;
/// Clobbered by the TLB lookup, and by saving and restoring flags. RAX, because LAHF and SAHF, MUL
/// and DIV, and CMPXCHG name it implicitly.
pub(crate) const SCRATCH: Reg = RAX;
/// Clobbered by the TLB lookup, which returns an operand relative to it.
pub(crate) const POINTER: Reg = R14;

/// The host register of each guest register. The others stay in the register file of
/// [`Cpu`](crate::processor::cpu::Cpu). CL and RDX, which instructions name implicitly, are
/// themselves.
const HOST: [Option<Reg>; 16] = [
    Some(R10),
    Some(RCX),
    Some(RDX),
    Some(RBX),
    Some(R11),
    Some(RBP),
    Some(RSI),
    Some(RDI),
    Some(R8),
    Some(R9),
    None,
    None,
    Some(R12),
    Some(R13),
    None,
    None,
];

/// Host register of the guest's RAX.
pub(crate) const GUEST_RAX: Reg = R10;
/// Host register of the guest's RSP.
pub(crate) const GUEST_RSP: Reg = R11;
/// Host register of the guest's RCX.
pub(crate) const GUEST_RCX: Reg = RCX;
/// Host register of the guest's RDX.
pub(crate) const GUEST_RDX: Reg = RDX;

/// Returns the host register that contains `guest`, if one does.
pub(crate) const fn host(guest: Guest) -> Option<Reg> {
    HOST[guest as usize]
}

/// Returns each guest register that a host register contains, and that register.
pub(crate) fn mapped() -> impl Iterator<Item = (Guest, Reg)> {
    (0u8..)
        .zip(HOST)
        .filter_map(|(guest, host)| Some((guest, host?)))
}

/// The register, or the field of [`Cpu`](crate::processor::cpu::Cpu), that contains a guest
/// register.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Location {
    Register(Reg),
    Memory(Mem),
}

/// Returns the location of `guest`.
pub(crate) const fn location(guest: Guest) -> Location {
    match host(guest) {
        Some(host) => Location::Register(host),
        None => Location::Memory(register(guest)),
    }
}
