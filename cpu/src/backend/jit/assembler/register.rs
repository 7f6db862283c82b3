//! Registers and memory operands of the host, as an encoding names them.

use iced_x86::Register;

/// A general register of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reg(u8);

pub(crate) const RAX: Reg = Reg(0);
pub(crate) const RCX: Reg = Reg(1);
pub(crate) const RDX: Reg = Reg(2);
pub(crate) const RBX: Reg = Reg(3);
pub(crate) const RSP: Reg = Reg(4);
pub(crate) const RBP: Reg = Reg(5);
pub(crate) const RSI: Reg = Reg(6);
pub(crate) const RDI: Reg = Reg(7);
pub(crate) const R8: Reg = Reg(8);
pub(crate) const R9: Reg = Reg(9);
pub(crate) const R10: Reg = Reg(10);
pub(crate) const R11: Reg = Reg(11);
pub(crate) const R12: Reg = Reg(12);
pub(crate) const R13: Reg = Reg(13);
pub(crate) const R14: Reg = Reg(14);
pub(crate) const R15: Reg = Reg(15);

impl Reg {
    /// Returns the register's number in an encoding, 0 to 15.
    pub(crate) const fn number(self) -> u8 {
        self.0
    }

    /// Returns the number's lowest three bits, which ModRM, SIB and short opcodes contain.
    pub(super) const fn low(self) -> u8 {
        self.0 & 7
    }

    /// Returns iced-x86's name of the lowest `size` bytes.
    pub(crate) fn named(self, size: usize) -> Register {
        let n = u32::from(self.0);
        match size {
            1 if n < 4 => Register::AL + n,
            1 => Register::SPL + (n - 4),
            2 => Register::AX + n,
            4 => Register::EAX + n,
            _ => Register::RAX + n,
        }
    }
}

/// Contents of ModRM.reg: a register, or a part of the opcode.
pub(crate) trait RegField {
    /// Returns the field's value, 0 to 15. REX contains the highest bit.
    fn field(self) -> u8;
}

impl RegField for Reg {
    fn field(self) -> u8 {
        self.0
    }
}

/// A byte register of an instruction without REX, or the lowest byte of R8 to R15. Without REX,
/// numbers 4 to 7 are AH, CH, DH and BH (SDM Vol. 2A 2.2.1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Byte(u8);

impl Byte {
    pub(crate) const AL: Self = Self(0);
    pub(crate) const CL: Self = Self(1);
    pub(crate) const AH: Self = Self(4);

    /// Returns the lowest byte of `r`, which is RAX to RBX or R8 to R15.
    pub(crate) const fn lowest(r: Reg) -> Self {
        assert!(r.0 < 4 || r.0 >= 8);
        Self(r.0)
    }

    /// Returns the register of the same number.
    pub(super) const fn encoded(self) -> Reg {
        Reg(self.0)
    }
}

impl RegField for Byte {
    fn field(self) -> u8 {
        self.0
    }
}

/// An XMM or YMM register, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Xmm(pub u8);

impl RegField for Xmm {
    fn field(self) -> u8 {
        self.0
    }
}

/// An opcode extension, which the manual writes as `/0` to `/7`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ext(pub u8);

impl RegField for Ext {
    fn field(self) -> u8 {
        self.0
    }
}

/// A memory operand of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mem {
    pub base: Option<Reg>,
    /// Register, and the factor 1, 2, 4 or 8.
    pub index: Option<(Reg, u8)>,
    pub disp: i32,
    /// Whether the operand lies in the [`Reservation`](crate::mmu::reservation::Reservation), where
    /// the lowest 32 bits of the address are the offset from the base of GS.
    pub reserved: bool,
}

impl Mem {
    /// `[base + disp]`.
    pub(crate) const fn at(base: Reg, disp: i32) -> Self {
        Self {
            base: Some(base),
            index: None,
            disp,
            reserved: false,
        }
    }

    /// `[base + disp]` in the reservation.
    pub(crate) const fn reserved(base: Reg, disp: i32) -> Self {
        Self {
            reserved: true,
            ..Self::at(base, disp)
        }
    }
}
