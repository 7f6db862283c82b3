//! Locked instructions whose operand crosses a cache line, where several processors run at the same
//! time.
//!
//! The host's own instruction would stop all of the host's processors for some thousand cycles, or
//! end vbts (split_lock_detect=fatal), as often as the guest likes. Here the processors take turns
//! by a lock of this process, and each of the two words is exchanged only if it is unchanged.
//! So no change by another instruction is lost, unless a processor on KVM changes both words with
//! one instruction at that moment. Another processor can see one word changed and the other not
//! yet.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::insn::Abort;
use crate::mmu::access::Access;
use crate::processor::cpu::Cpu;
use crate::processor::translation::Target;
use crate::state::int::Int;

/// Length of a cache line in bytes.
const LINE: u64 = 64;

/// Held by the processor that executes such an instruction.
static SPLIT_LOCK: Mutex<()> = Mutex::new(());

/// Whether an operand of `size` bytes at `la` is in two cache lines.
#[inline(always)]
pub(super) fn crosses_line(la: u64, size: usize) -> bool {
    la % LINE + size as u64 > LINE
}

impl Cpu {
    /// [`Cpu::modify`] with LOCK for an operand that crosses a cache line.
    #[cold]
    #[inline(never)]
    pub(super) fn modify_across_lines<T: Int>(
        &mut self,
        la: u64,
        mut f: impl FnMut(&mut Self, T) -> T,
    ) -> Result<(), Abort> {
        self.check_writable(la, T::BYTES)?;
        self.check_watchpoints(la, T::BYTES, Access::Read)?;
        let line = la.wrapping_add(T::BYTES as u64 - 1) & !(LINE - 1);
        let (Some(low), Some(high)) = (self.word(la)?, self.word(line)?) else {
            // An access to a device is not atomic.
            let old = self.load(la)?;
            let new = f(self, old);
            return self.store(la, new);
        };
        let shift = la % 8 * 8;
        let mask = u128::from(u64::MAX >> (64 - T::BITS)) << shift;
        let flags = self.flags;
        let turn = SPLIT_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            // SAFETY: `word` returns aligned addresses of guest RAM, which stays mapped.
            let (low, high) = unsafe { (AtomicU64::from_ptr(low), AtomicU64::from_ptr(high)) };
            let old = (low.load(Ordering::SeqCst), high.load(Ordering::SeqCst));
            let both = u128::from(old.1) << 64 | u128::from(old.0);
            // `f` reads the flags from before the instruction.
            self.flags = flags;
            let value = f(self, T::from_u64((both >> shift) as u64));
            let both = both & !mask | u128::from(value.zext()) << shift;
            let new = (both as u64, (both >> 64) as u64);
            let exchange = |word: &AtomicU64, old, new| {
                let order = Ordering::SeqCst;
                word.compare_exchange(old, new, order, order).is_ok()
            };
            if !exchange(high, old.1, new.1) {
                continue;
            }
            if exchange(low, old.0, new.0) {
                break;
            }
            exchange(high, new.1, old.1);
        }
        drop(turn);
        self.watch(la, T::BYTES, Access::Read);
        self.watch(la, T::BYTES, Access::Write);
        Ok(())
    }

    /// The host's address of the aligned 8 bytes that contain `la`, which is writable. `None` if it
    /// is not RAM.
    fn word(&mut self, la: u64) -> Result<Option<*mut u64>, Abort> {
        Ok(match self.translate(la, Access::Write, self.privilege)? {
            // The bytes are in one page.
            Target::Ram(hit) => Some(hit.host.wrapping_sub((la % 8) as usize).cast()),
            Target::Mmio(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::crosses_line;

    #[test]
    fn an_operand_in_two_lines_crosses() {
        for (la, size, expected) in [
            (0x1000, 8, false),
            (0x1038, 8, false),
            (0x1039, 8, true),
            (0x103F, 1, false),
            (0x103F, 2, true),
            (0x1FFD, 4, true),
            (0x1FFC, 4, false),
        ] {
            assert_eq!(crosses_line(la, size), expected, "{la:#x} {size}");
        }
    }
}
