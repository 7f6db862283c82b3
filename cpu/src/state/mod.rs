//! The architectural state of one logical processor, in the form that accelerators exchange and
//! that a snapshot stores.

pub(crate) mod descriptor;
pub mod flags;
pub mod int;
pub(crate) mod lbr;
pub mod msr;
pub(crate) mod netburst_pmu;
pub(crate) mod pmu;
mod progress;
mod registers;
mod segment;
mod system;
pub mod vector;
mod x87;
pub mod xsave;

pub use lbr::LbrState;
pub use msr::{MsrState, MtrrRange, MtrrState};
pub use netburst_pmu::NetBurstPmu;
pub(crate) use pmu::PmuRegister;
pub use pmu::PmuState;
pub use progress::{Progress, SpinCount, Usage};
pub use registers::{cr0, cr4, dr6, dr7, efer, gpr, rflags, sreg};
pub use segment::{SegAttr, Segment, TableRegister};
pub use system::SystemState;
pub use x87::X87State;

use serde::{Deserialize, Serialize};

/// An event that has been accepted, and is delivered before the next instruction.
///
/// Software interrupts and the fault of an instruction are not among them: the instruction at RIP
/// raises them again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PendingEvent {
    /// An interrupt, with the vector that its acknowledgement gave.
    Interrupt(u8),
    /// A non-maskable interrupt.
    Nmi,
    /// A debug trap, with the bits that it sets in DR6.
    Debug(u64),
    /// An exception during the delivery of another event, which is delivered after that (SDM Vol.
    /// 3A table 6-5, "handle exceptions serially").
    Exception {
        /// Vector.
        vector: u8,
        /// Error code.
        error: Option<u32>,
    },
}

/// Whether the processor executes instructions, and what makes it continue otherwise (SDM Vol. 3C
/// 24.4.2, "activity state").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Activity {
    /// It executes instructions.
    #[default]
    Active,
    /// HLT: an interrupt, an NMI or INIT ends it.
    Halted,
    /// Shutdown after a triple fault: only INIT and RESET end it.
    Shutdown,
    /// Wait-for-SIPI: only a start-up IPI ends it (SDM Vol. 3A 8.4.3).
    WaitForSipi,
}

/// Everything that decides how a logical processor continues.
///
/// It moves with the processor from one accelerator to another, and a snapshot stores it. The
/// processor's fields that are not here are configuration (model, topology, clock, memory, platform
/// and signals) or derived from this state and from guest memory (mode, decoded code, TLB, window
/// into the DS buffer, enabled breakpoints, deadlines of the run loop). A restored processor starts
/// without them.
///
/// The local APIC, with its MSRs and CR8, belongs to the machine's interrupt controllers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ArchState {
    /// RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8-R15.
    pub gpr: [u64; 16],
    /// RIP.
    pub rip: u64,
    /// RFLAGS.
    pub rflags: u64,
    /// ES, CS, SS, DS, FS, GS.
    pub seg: [Segment; 6],
    /// Tables, control and debug registers.
    pub sys: SystemState,
    /// MSRs.
    pub msr: MsrState,
    /// IA32_DEBUGCTL.
    pub debugctl: u64,
    /// IA32_DS_AREA.
    pub ds_area: u64,
    /// x87 and, aliased, MMX.
    pub x87: X87State,
    /// XMM0-XMM15: the low halves of YMM0-YMM15.
    pub xmm: [u128; 16],
    /// The upper halves of YMM0-YMM15: bits 255:128.
    pub ymm_high: [u128; 16],
    /// MXCSR.
    pub mxcsr: u32,
    /// Time-stamp counter. On the host's time the host's counter continues by itself, and the value
    /// is not loaded.
    pub tsc: u64,
    /// An NMI is being serviced: further ones wait for IRET.
    pub nmi_blocked: bool,
    /// The last instruction was STI, MOV SS or POP SS: no interrupt before the next one.
    pub interrupt_shadow: bool,
    /// The last instruction was MOV SS or POP SS: no debug trap and no instruction breakpoint
    /// before the next one either (SDM Vol. 3A 6.8.3).
    pub mov_ss_shadow: bool,
    /// Running, halted, shut down or waiting.
    pub activity: Activity,
    /// The event that is delivered before the next instruction.
    pub pending: Option<PendingEvent>,
    /// Instructions, virtual time, and totals.
    pub progress: Progress,
}
