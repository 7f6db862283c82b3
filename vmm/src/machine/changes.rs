//! Changes that a debugger makes to a machine between two runs.

use vbts_cpu::ArchState;
use vbts_host::exit::Failure;
use vm_memory::{Bytes, GuestAddress};

use super::Machine;

impl Machine {
    /// Writes to guest memory, as a device does: processors invalidate what they have decoded of
    /// it, and a history notes the pages. [`History::leave`](super::History::leave) must have been
    /// called if the machine has one.
    ///
    /// # Errors
    /// Part of the bytes is not RAM.
    pub fn write_memory(&mut self, gpa: u64, bytes: &[u8]) -> Result<(), Failure> {
        let written = self.memory.write_slice(bytes, GuestAddress(gpa));
        written.map_err(|error| Failure::Error(error.into()))
    }

    /// Replaces the state of the processor with this number. Its counts of instructions and of
    /// time stay.
    pub fn set_state(&mut self, processor: usize, state: &ArchState) {
        if let Some(vcpu) = self.vcpus.get_mut(processor) {
            let cpu = &vcpu.soft().cpu;
            let now = cpu.state();
            vcpu.restore(&ArchState {
                progress: now.progress,
                tsc: now.tsc,
                ..state.clone()
            });
        }
    }
}
