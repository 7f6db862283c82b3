//! The bits of registers that system software programs, and the numbers of general registers.

/// General-purpose register numbers, as instructions encode them.
pub mod gpr {
    #![allow(missing_docs)]
    pub const RAX: usize = 0;
    pub const RCX: usize = 1;
    pub const RDX: usize = 2;
    pub const RBX: usize = 3;
    pub const RSP: usize = 4;
    pub const RBP: usize = 5;
    pub const RSI: usize = 6;
    pub const RDI: usize = 7;
    pub const R11: usize = 11;
}

/// Segment register numbers, as instructions encode them.
pub mod sreg {
    #![allow(missing_docs)]
    pub const ES: usize = 0;
    pub const CS: usize = 1;
    pub const SS: usize = 2;
    pub const DS: usize = 3;
    pub const FS: usize = 4;
    pub const GS: usize = 5;
}

/// RFLAGS (SDM Vol. 1 3.4.3).
pub mod rflags {
    #![allow(missing_docs)]
    pub const CF: u64 = 1 << 0;
    pub const FIXED: u64 = 1 << 1;
    pub const PF: u64 = 1 << 2;
    pub const AF: u64 = 1 << 4;
    pub const ZF: u64 = 1 << 6;
    pub const SF: u64 = 1 << 7;
    pub const TF: u64 = 1 << 8;
    pub const IF: u64 = 1 << 9;
    pub const DF: u64 = 1 << 10;
    pub const OF: u64 = 1 << 11;
    pub const IOPL: u64 = 3 << 12;
    pub const NT: u64 = 1 << 14;
    pub const RF: u64 = 1 << 16;
    pub const VM: u64 = 1 << 17;
    pub const AC: u64 = 1 << 18;
    pub const VIF: u64 = 1 << 19;
    pub const VIP: u64 = 1 << 20;
    pub const ID: u64 = 1 << 21;
    /// The six flags that arithmetic sets.
    pub const ARITH: u64 = CF | PF | AF | ZF | SF | OF;
    /// Every flag that exists.
    pub const ALL: u64 = 0x3F_7FD5;
}

/// CR0 (SDM Vol. 3A 2.5).
pub mod cr0 {
    #![allow(missing_docs)]
    pub const PE: u64 = 1 << 0;
    pub const MP: u64 = 1 << 1;
    pub const EM: u64 = 1 << 2;
    pub const TS: u64 = 1 << 3;
    pub const ET: u64 = 1 << 4;
    pub const NE: u64 = 1 << 5;
    pub const WP: u64 = 1 << 16;
    pub const AM: u64 = 1 << 18;
    pub const NW: u64 = 1 << 29;
    pub const CD: u64 = 1 << 30;
    pub const PG: u64 = 1 << 31;
}

/// CR4 (SDM Vol. 3A 2.5).
pub mod cr4 {
    #![allow(missing_docs)]
    pub const VME: u64 = 1 << 0;
    pub const PVI: u64 = 1 << 1;
    pub const TSD: u64 = 1 << 2;
    pub const DE: u64 = 1 << 3;
    pub const PSE: u64 = 1 << 4;
    pub const PAE: u64 = 1 << 5;
    pub const MCE: u64 = 1 << 6;
    pub const PGE: u64 = 1 << 7;
    pub const PCE: u64 = 1 << 8;
    pub const OSFXSR: u64 = 1 << 9;
    pub const OSXMMEXCPT: u64 = 1 << 10;
    pub const UMIP: u64 = 1 << 11;
    pub const FSGSBASE: u64 = 1 << 16;
    pub const PCIDE: u64 = 1 << 17;
    pub const OSXSAVE: u64 = 1 << 18;
    pub const SMEP: u64 = 1 << 20;
    pub const SMAP: u64 = 1 << 21;
}

/// DR6 (SDM Vol. 3B 17.2.3).
pub mod dr6 {
    /// The breakpoint conditions that were met (B0 to B3).
    pub const BREAKPOINTS: u64 = 0xF;
    /// A MOV to or from a debug register was stopped by DR7.GD.
    pub const BD: u64 = 1 << 13;
    /// Single step.
    pub const BS: u64 = 1 << 14;
    /// The debug trap flag of the TSS that a task switch has led to.
    pub const BT: u64 = 1 << 15;
    /// The bits that software can clear and set.
    pub const WRITABLE: u64 = 0xE00F;
    /// The bits that always read as 1.
    pub const FIXED: u64 = 0xFFFF_0FF0;
}

/// DR7 (SDM Vol. 3B 17.2.4).
pub mod dr7 {
    /// The local enables, of the breakpoints and of exact detection (L0 to L3, LE).
    pub const LOCAL: u64 = 0x155;
    /// General detect.
    pub const GD: u64 = 1 << 13;
    /// The bits that software can clear and set.
    pub const WRITABLE: u64 = 0xFFFF_23FF;
    /// The bit that always reads as 1.
    pub const FIXED: u64 = 1 << 10;
}

/// IA32_EFER (SDM Vol. 3A 2.2.1).
pub mod efer {
    #![allow(missing_docs)]
    pub const SCE: u64 = 1 << 0;
    pub const LME: u64 = 1 << 8;
    pub const LMA: u64 = 1 << 10;
    pub const NXE: u64 = 1 << 11;
}
