//! The architectural state of one logical processor, in the form that accelerators exchange.

pub mod flags;
pub mod msr;
pub mod vector;

pub use msr::MsrState;

use bitflags::bitflags;

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
}

/// IA32_EFER (SDM Vol. 3A 2.2.1).
pub mod efer {
    #![allow(missing_docs)]
    pub const SCE: u64 = 1 << 0;
    pub const LME: u64 = 1 << 8;
    pub const LMA: u64 = 1 << 10;
    pub const NXE: u64 = 1 << 11;
}

bitflags! {
    /// Attributes of a segment, as in bytes 5 and 6 of its descriptor (SDM Vol. 3A 3.4.5), plus
    /// `UNUSABLE`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct SegAttr: u32 {
        /// Accessed (code and data segments).
        const ACCESSED = 1 << 0;
        /// Readable (code), writable (data).
        const RW = 1 << 1;
        /// Conforming (code), expand-down (data).
        const CONFORMING = 1 << 2;
        /// Code segment, if `S`.
        const CODE = 1 << 3;
        /// Code or data, not a system segment.
        const S = 1 << 4;
        /// Descriptor privilege level.
        const DPL = 3 << 5;
        /// Present.
        const P = 1 << 7;
        /// Available to software.
        const AVL = 1 << 12;
        /// 64-bit code segment.
        const L = 1 << 13;
        /// Default operand size 32 bits.
        const DB = 1 << 14;
        /// Limit counts pages.
        const G = 1 << 15;
        /// Loaded with a null selector.
        const UNUSABLE = 1 << 16;
        const _ = !0;
    }
}

/// A segment register with its hidden part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Segment {
    /// Visible selector.
    pub selector: u16,
    /// Linear base address.
    pub base: u64,
    /// Limit in bytes, inclusive (granularity already applied).
    pub limit: u32,
    /// Attributes.
    pub attr: SegAttr,
}

impl Segment {
    /// Descriptor privilege level, 0 to 3.
    pub fn dpl(&self) -> u8 {
        ((self.attr.bits() >> 5) & 3) as u8
    }
    /// Type field, bits 3:0.
    pub fn ty(&self) -> u8 {
        (self.attr.bits() & 15) as u8
    }
}

/// GDTR or IDTR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TableRegister {
    /// Linear base address.
    pub base: u64,
    /// Limit in bytes, inclusive.
    pub limit: u16,
}

/// Segments, descriptor tables, control and debug registers: what system software programs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SystemState {
    /// ES, CS, SS, DS, FS, GS.
    pub seg: [Segment; 6],
    /// Local descriptor table.
    pub ldtr: Segment,
    /// Task register.
    pub tr: Segment,
    /// Global descriptor table.
    pub gdtr: TableRegister,
    /// Interrupt descriptor table.
    pub idtr: TableRegister,
    /// CR0.
    pub cr0: u64,
    /// CR2: linear address of the last page fault.
    pub cr2: u64,
    /// CR3.
    pub cr3: u64,
    /// CR4.
    pub cr4: u64,
    /// The page-directory-pointer table as MOV to CR3 has loaded it: used in PAE paging only (SDM
    /// Vol. 3A 4.4.1).
    pub pdpte: [u64; 4],
    /// IA32_EFER.
    pub efer: u64,
    /// DR0-DR3.
    pub dr: [u64; 4],
    /// DR6.
    pub dr6: u64,
    /// DR7.
    pub dr7: u64,
}

/// The registers of architectural performance monitoring, version 2 (SDM Vol. 3B 18.2). A model has
/// the first of each kind.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PmuState {
    /// IA32_PERFEVTSELx.
    pub evtsel: [u64; Self::GENERAL],
    /// IA32_PMCx.
    pub pmc: [u64; Self::GENERAL],
    /// IA32_FIXED_CTRx.
    pub fixed_ctr: [u64; Self::FIXED],
    /// IA32_FIXED_CTR_CTRL.
    pub fixed_ctr_ctrl: u64,
    /// IA32_PERF_GLOBAL_CTRL.
    pub global_ctrl: u64,
    /// IA32_PERF_GLOBAL_STATUS.
    pub global_status: u64,
}

impl PmuState {
    /// Programmable counters, at most.
    pub const GENERAL: usize = 4;
    /// Fixed-function counters, at most.
    pub const FIXED: usize = 3;
}

/// x87 FPU (SDM Vol. 1 8.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct X87State {
    /// The **physical** registers R0-R7, 80 bits each. ST(i) is R((TOP + i) mod 8), see
    /// [`X87State::st`]; MMi is in the low 64 bits of Ri.
    pub r: [u128; 8],
    /// Control word.
    pub fcw: u16,
    /// Status word, TOP included.
    pub fsw: u16,
    /// Abridged tag word: bit *i* set if Ri is not empty.
    pub ftw: u8,
    /// Last instruction opcode, 11 bits.
    pub fop: u16,
    /// Last instruction pointer.
    pub fip: u64,
    /// Last data pointer.
    pub fdp: u64,
}

impl X87State {
    /// Physical number of ST(0): TOP.
    #[inline(always)]
    pub fn top(&self) -> usize {
        usize::from(self.fsw >> 11 & 7)
    }

    /// ST(`i`), 80 bits, as FXSAVE stores it.
    #[inline(always)]
    pub fn st(&self, i: usize) -> u128 {
        self.r[(self.top() + i) & 7]
    }

    /// Writes ST(`i`), of which only 80 bits are kept; its tag is not changed.
    #[inline(always)]
    pub fn set_st(&mut self, i: usize, value: u128) {
        self.r[(self.top() + i) & 7] = value & (u128::MAX >> 48);
    }
}

impl Default for X87State {
    /// As after FNINIT.
    fn default() -> Self {
        Self {
            r: [0; 8],
            fcw: 0x37F,
            fsw: 0,
            ftw: 0,
            fop: 0,
            fip: 0,
            fdp: 0,
        }
    }
}

/// An event that has been accepted, and is delivered before the next instruction.
///
/// Faults and software interrupts are not among them: the instruction that RIP is at raises them
/// again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PendingEvent {
    /// An interrupt, with the vector that its acknowledgement gave.
    Interrupt(u8),
    /// A non-maskable interrupt.
    Nmi,
    /// A debug trap, with the bits that it sets in DR6.
    Debug(u64),
}

/// Everything that has to move with a logical processor from one accelerator to another.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ArchState {
    /// RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8-R15.
    pub gpr: [u64; 16],
    /// RIP.
    pub rip: u64,
    /// RFLAGS.
    pub rflags: u64,
    /// Segments, tables, control and debug registers.
    pub sys: SystemState,
    /// MSRs.
    pub msr: MsrState,
    /// x87 and, aliased, MMX.
    pub x87: X87State,
    /// XMM0-XMM15.
    pub xmm: [u128; 16],
    /// MXCSR.
    pub mxcsr: u32,
    /// Time-stamp counter.
    pub tsc: u64,
    /// An NMI is being serviced: further ones wait for IRET.
    pub nmi_blocked: bool,
    /// The last instruction was STI, MOV SS or POP SS: no interrupt before the next one.
    pub interrupt_shadow: bool,
    /// In HLT.
    pub halted: bool,
    /// What comes before the next instruction.
    pub pending: Option<PendingEvent>,
}
