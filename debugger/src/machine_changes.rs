//! Changes that the client makes to a machine, in the kernel's view: memory, and the registers of
//! its processors.

use vbts_cpu::state::rflags;
use vbts_gdb::{Avx, Registers, Result, TargetError, ThreadId};

use crate::changes::{refused, set_fxsave};
use crate::debugger::{Debugger, EFAULT, ESRCH, fatal};
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
/// The segment registers FS and GS by number.
const FS: usize = 4;
const GS: usize = 5;

/// Returns whether an address is canonical (SDM Vol. 1 3.3.7.1), with 48 bits.
fn is_canonical(address: u64) -> bool {
    (address << 16) as i64 >> 16 == address as i64
}

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
        let mut places = Vec::new();
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            let at = address.wrapping_add(done as u64);
            let here = rest.len().min(0x1000 - (at & 0xFFF) as usize);
            let place = cpu
                .translate_quietly(at)
                .ok_or(TargetError::Errno(EFAULT))?;
            places.push((place, &rest[..here]));
            done += here;
        }
        self.replay.depart();
        for (place, bytes) in places {
            let written = self.replay.machine.write_memory(place, bytes);
            written.map_err(fatal)?;
        }
        Ok(())
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
        if addresses.into_iter().any(|address| !is_canonical(address)) {
            return Err(refused("the address is not canonical"));
        }
        let state = self.replay.processor(number).map(|cpu| cpu.state());
        let mut state = state.ok_or(TargetError::Errno(ESRCH))?;
        self.replay.depart();
        // RIP is shown with the base of CS.
        state.rip = state.rip.wrapping_add(new.rip.wrapping_sub(old.rip));
        (state.gpr, state.rflags) = (new.general, new.rflags);
        (state.seg[FS].base, state.seg[GS].base) = (new.fs_base, new.gs_base);
        if let Some(registers) = &new.fxsave {
            set_fxsave(&mut state, registers);
        }
        if let Some(Avx { ymmh }) = &new.avx {
            state.ymm_high = *ymmh;
        }
        self.replay.machine.set_state(number, &state);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_addresses_repeat_bit_47() {
        for address in [0, 0x7FFF_FFFF_FFFF, 0xFFFF_8000_0000_0000, !0] {
            assert!(is_canonical(address), "{address:#x}");
        }
        for address in [0x8000_0000_0000, 0xFFFF_7FFF_FFFF_FFFF, 1 << 63] {
            assert!(!is_canonical(address), "{address:#x}");
        }
    }
}
