//! Kinds of memory access and their privilege, and canonical addresses.

/// Kind of a memory access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Data read.
    Read = 0,
    /// Data write, or the read of a read-modify-write.
    Write = 1,
    /// Instruction fetch.
    Execute = 2,
}

/// Privilege of a memory access (SDM Vol. 3A 4.6.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Privilege {
    /// CPL 0-2, and implicit accesses to system structures.
    Supervisor = 0,
    /// CPL 3.
    User = 1,
    /// CPL 3 with alignment checking on (CR0.AM and RFLAGS.AC).
    UserAligned = 2,
    /// As [`Self::Supervisor`], but data in user pages is not accessible (CR4.SMAP).
    SupervisorPages = 3,
}

impl Privilege {
    /// Whether it is that of CPL 3.
    #[inline(always)]
    pub fn is_user(self) -> bool {
        matches!(self, Self::User | Self::UserAligned)
    }

    /// The privilege without alignment checking.
    #[inline(always)]
    pub fn without_alignment(self) -> Self {
        match self {
            Self::UserAligned => Self::User,
            other => other,
        }
    }
}

/// Whether bits 63:47 of a linear address are all equal (SDM Vol. 1 3.3.7.1).
#[inline(always)]
pub fn canonical(la: u64) -> bool {
    (((la as i64) << 16) >> 16) as u64 == la
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_addresses_repeat_bit_47() {
        for address in [0, 0x7FFF_FFFF_FFFF, 0xFFFF_8000_0000_0000, !0] {
            assert!(canonical(address), "{address:#x}");
        }
        for address in [0x8000_0000_0000, 0xFFFF_7FFF_FFFF_FFFF, 1 << 63] {
            assert!(!canonical(address), "{address:#x}");
        }
    }
}
