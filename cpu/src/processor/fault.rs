//! Why an instruction did not complete.

use crate::insn::Abort;
use crate::processor::cpu::Cpu;
use crate::state::{cr4, vector};

/// Why an instruction did not complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    /// The last instruction completed.
    #[default]
    None,
    /// An exception, with its error code if it has one.
    Exception {
        /// Vector.
        vector: u8,
        /// Error code.
        error: Option<u32>,
    },
    /// A page fault.
    Page {
        /// Linear address, for CR2.
        la: u64,
        /// Error code.
        error: u32,
    },
    /// A linear address is not canonical: #SS(0) if it was relative to SS, else #GP(0).
    NonCanonical,
    /// The write would change decoded code. The run loop invalidates that code and runs the
    /// instruction again.
    CodeWrite {
        /// Guest-physical address of the write.
        gpa: u64,
    },
    /// The instruction accesses a device, in a block that can have others. The run loop runs it
    /// again, alone, so that the time of the access is that of the instruction, and what follows
    /// from it, such as an interrupt, comes before the next instruction.
    Device,
    /// An instruction fetch from an address that is not RAM.
    Unexecutable,
}

impl Cpu {
    /// Sets the reason why the instruction does not complete.
    #[cold]
    pub fn abort(&mut self, fault: Fault) -> Abort {
        self.fault = fault;
        Abort
    }

    /// Aborts the instruction with an exception, as a fault.
    #[cold]
    pub fn exception(&mut self, vector: u8, error: Option<u32>) -> Abort {
        self.abort(Fault::Exception { vector, error })
    }

    /// Aborts the instruction with #GP and an error code.
    #[cold]
    pub fn gp(&mut self, error: u32) -> Abort {
        self.exception(vector::GP, Some(error))
    }

    /// Aborts the instruction with #UD.
    #[cold]
    pub fn ud(&mut self) -> Abort {
        self.exception(vector::UD, None)
    }

    /// Aborts an instruction that reads a system register with #GP(0) if CR4.UMIP reserves it to
    /// CPL 0 (SDM Vol. 3A 2.5).
    pub fn check_umip(&mut self) -> Result<(), Abort> {
        if self.cpl != 0 && self.sys.cr4 & cr4::UMIP != 0 {
            return Err(self.gp(0));
        }
        Ok(())
    }

    /// Aborts the instruction with #GP(0) unless the processor is at CPL 0.
    #[inline]
    pub fn require_cpl0(&mut self) -> Result<(), Abort> {
        if self.cpl == 0 {
            Ok(())
        } else {
            Err(self.gp(0))
        }
    }
}
