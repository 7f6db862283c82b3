//! The registers that system software programs.

use serde::{Deserialize, Serialize};

use super::{Segment, TableRegister};

/// The registers that system software programs, apart from the segment registers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SystemState {
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
    /// XCR0: the state components that XSAVE and its relatives manage.
    pub xcr0: u64,
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
