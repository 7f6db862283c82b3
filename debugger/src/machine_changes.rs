//! Changes that the client makes to a machine, in the kernel's view: memory, and the registers of
//! its processors.

use vbts_cpu::canonical;
use vbts_cpu::state::rflags;
use vbts_gdb::{Registers, Result, TargetError, ThreadId};

use crate::changes::{refused, set_registers};
use crate::debugger::{Debugger, EFAULT, ESRCH};
use crate::view::{by_pages, processor_of};

/// Flags that a client can change: those that POPF changes at CPL 0, apart from IOPL, NT and TF
/// (SDM Vol. 1 3.4.3).
const FLAGS: u64 = rflags::CF
    | rflags::PF
    | rflags::AF
    | rflags::ZF
    | rflags::SF
    | rflags::IF
    | rflags::DF
    | rflags::OF;

impl Debugger {
    /// Writes memory at `address` as the processor has it mapped for which `thread` stands, all
    /// bytes or none. Whether the page can be written does not matter, as for a processor at CPL 0
    /// without CR0.WP.
    pub(crate) fn change_machine_memory(
        &mut self,
        thread: ThreadId,
        address: u64,
        bytes: &[u8],
    ) -> Result<()> {
        let cpu = processor_of(thread).and_then(|number| self.replay.processor(number));
        let cpu = cpu.ok_or(TargetError::Errno(ESRCH))?;
        let mut old = vec![0; bytes.len()];
        let read = by_pages(address, &mut old, |at, part| cpu.read_quietly(at, part));
        // It is RAM.
        if read != bytes.len() {
            return Err(TargetError::Errno(EFAULT));
        }
        if old == bytes {
            return Ok(());
        }
        self.write_by_pages(address, bytes, |debugger, at, _| {
            let cpu = processor_of(thread).and_then(|number| debugger.replay.processor(number));
            Ok(cpu.and_then(|cpu| cpu.translate_quietly(at)))
        })
    }

    /// Replaces the registers of the processor for which `thread` stands.
    pub(crate) fn change_processor(&mut self, thread: ThreadId, new: &Registers) -> Result<()> {
        let number = processor_of(thread).ok_or(TargetError::Errno(ESRCH))?;
        let old = self.processor_registers(number);
        let old = old.ok_or(TargetError::Errno(ESRCH))?;
        let new = Registers {
            rflags: new.rflags & FLAGS | old.rflags & !FLAGS,
            orig_rax: old.orig_rax,
            ..new.clone()
        };
        if new == old {
            return Ok(());
        }
        if new.segments != old.segments || new.control != old.control {
            return Err(refused(
                "segment registers and control registers cannot be changed",
            ));
        }
        let addresses = [new.rip, new.fs_base, new.gs_base];
        if addresses.into_iter().any(|address| !canonical(address)) {
            return Err(refused("the address is not canonical"));
        }
        let state = self.replay.processor(number).map(|cpu| cpu.state());
        let mut state = state.ok_or(TargetError::Errno(ESRCH))?;
        // RIP is shown with the base of CS.
        let rip = state.rip.wrapping_add(new.rip.wrapping_sub(old.rip));
        set_registers(&mut state, &Registers { rip, ..new }, true);
        self.replay.change_state(number, &state);
        Ok(())
    }
}
