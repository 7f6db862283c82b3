//! Read-modify-write of linear memory, atomically for locked instructions (SDM Vol. 3A 8.1.2.2).

use std::arch::asm;
use std::sync::atomic::{Ordering, fence};

use crate::insn::{Abort, Insn};
use crate::mmu::access::Access;
use crate::mmu::host_access::HostAccess;
use crate::processor::clock::Clock;
use crate::processor::cpu::Cpu;
use crate::processor::memory::pages;
use crate::processor::split_lock::crosses_line;
use crate::processor::translation::Target;
use crate::state::int::Int;

impl Cpu {
    /// Reads a value at `la`, computes the new value with `f`, and writes it back; atomically if
    /// `insn` has LOCK. A fault comes before the first call of `f`, which may run more than once.
    #[inline(always)]
    pub fn modify<T: Int>(
        &mut self,
        insn: &Insn,
        la: u64,
        f: impl FnMut(&mut Self, T) -> T,
    ) -> Result<(), Abort> {
        self.modify_if::<false, T>(insn, la, f)
    }

    /// [`Cpu::modify`] only on a TLB hit and without LOCK if `HIT` is set. Otherwise it then
    /// returns [`Abort`] without setting a fault, so that the caller can retry on the slow path.
    #[inline(always)]
    pub(crate) fn modify_if<const HIT: bool, T: Int>(
        &mut self,
        insn: &Insn,
        la: u64,
        mut f: impl FnMut(&mut Self, T) -> T,
    ) -> Result<(), Abort> {
        if insn.prefix & Insn::LOCK != 0 {
            return if HIT {
                Err(Abort)
            } else {
                self.modify_locked(la, f)
            };
        }
        match self.tlb.fast(la, T::BYTES, Access::Write) {
            Some(p) => {
                // SAFETY: as in `store_if`; a page writable for a privilege is readable for it.
                let old = unsafe { T::load(p) };
                let new = f(self, old);
                // SAFETY: `f` computes; it cannot unmap guest RAM.
                unsafe { new.store(p) };
                Ok(())
            }
            None if HIT => Err(Abort),
            None => self.modify_missed(la, f),
        }
    }

    #[cold]
    #[inline(never)]
    fn modify_missed<T: Int>(
        &mut self,
        la: u64,
        mut f: impl FnMut(&mut Self, T) -> T,
    ) -> Result<(), Abort> {
        if let Some(p) = self.beside_watchpoints(la, T::BYTES, Access::Write) {
            // SAFETY: as in `modify_if`.
            let old = unsafe { T::load(p) };
            let new = f(self, old);
            // SAFETY: as in `modify_if`.
            unsafe { new.store(p) };
            return Ok(());
        }
        self.check_writable(la, T::BYTES)?;
        let old = self.load(la)?;
        let new = f(self, old);
        self.store(la, new)
    }

    #[inline(never)]
    fn modify_locked<T: Int>(
        &mut self,
        la: u64,
        mut f: impl FnMut(&mut Self, T) -> T,
    ) -> Result<(), Abort> {
        let alone = self.has_memory_alone();
        if !alone && crosses_line(la, T::BYTES) {
            return self.modify_across_lines(la, f);
        }
        let fast = self
            .tlb
            .fast(la, T::BYTES, Access::Write)
            .or_else(|| self.beside_watchpoints(la, T::BYTES, Access::Write));
        let host = match fast {
            Some(p) => p,
            None => match self.lockable(la, T::BYTES)? {
                Some(p) => p,
                None => {
                    let old = self.load(la)?;
                    let new = f(self, old);
                    return self.store(la, new);
                }
            },
        };
        let flags = self.flags;
        // SAFETY: `host` is writable guest RAM with `T::BYTES` bytes left in the page.
        let mut old = unsafe { T::load(host) };
        let mut new = f(self, old);
        if alone {
            // SAFETY: as above. `f` computes; it cannot unmap guest RAM.
            unsafe { new.store(host) };
        } else {
            loop {
                // SAFETY: as above.
                let found = unsafe { T::compare_exchange(host.cast(), old, new) };
                if found == old {
                    break;
                }
                old = found;
                // `f` reads the flags from before the instruction.
                self.flags = flags;
                new = f(self, old);
            }
        }
        if fast.is_none() {
            self.watch(la, T::BYTES, Access::Read);
            self.watch(la, T::BYTES, Access::Write);
        }
        Ok(())
    }

    /// Whether no other processor accesses memory while this one executes an instruction. Then a
    /// locked instruction needs no lock of the host's.
    #[inline(always)]
    pub(crate) fn has_memory_alone(&self) -> bool {
        matches!(self.clock, Clock::Instructions) || self.topology.count == 1
    }

    /// Has other processors see all stores before any later load (SDM Vol. 3A 8.2.5). The stores
    /// wait in the store buffer of the host's processor.
    #[inline(always)]
    pub(crate) fn drain_store_buffer(&self) {
        if !self.has_memory_alone() {
            fence(Ordering::SeqCst);
        }
    }

    /// Checks a write of `size` bytes at `la`. Returns the host's address if the bytes are RAM in
    /// one page. An access to two pages, or to a device, is not atomic.
    pub(crate) fn lockable(&mut self, la: u64, size: usize) -> Result<Option<*mut u8>, Abort> {
        self.check_writable(la, size)?;
        self.check_watchpoints(la, size, Access::Read)?;
        if pages(la, size).nth(1).is_some() {
            return Ok(None);
        }
        Ok(match self.translate(la, Access::Write, self.privilege)? {
            Target::Ram(hit) => Some(hit.host),
            Target::Mmio(_) => None,
        })
    }

    /// Stores `new` at the 16-byte-aligned `la` if the value there is `old`; atomically if the host
    /// has CMPXCHG16B. Returns the value that was there.
    pub(crate) fn compare_exchange128(
        &mut self,
        la: u64,
        old: u128,
        new: u128,
    ) -> Result<u128, Abort> {
        let Some(host) = self.lockable(la, 16)? else {
            let found = self.load128(la)?;
            self.store128(la, if found == old { new } else { found })?;
            return Ok(found);
        };
        self.watch(la, 16, Access::Read);
        self.watch(la, 16, Access::Write);
        if is_x86_feature_detected!("cmpxchg16b") {
            // SAFETY: `host` is writable guest RAM, aligned as `la` is, and the host has the
            // instruction.
            return Ok(unsafe { exchange128(host.cast(), old, new) });
        }
        // SAFETY: as above. A host without the instruction has no KVM, and runs one processor at a
        // time.
        unsafe {
            let found = u128::load(host);
            let value = if found == old { new } else { found };
            value.store(host);
            Ok(found)
        }
    }
}

/// LOCK CMPXCHG16B: stores `new` at `p` if the value there is `old`. Returns the value that was
/// there.
///
/// # Safety
/// `p` is aligned, and valid for reads and writes by atomic instructions; the host has the
/// instruction.
unsafe fn exchange128(p: *mut u128, old: u128, new: u128) -> u128 {
    let (low, high): (u64, u64);
    // SAFETY: the caller's promise. RBX, which the compiler reserves, gets its value back.
    unsafe {
        asm!(
            "xchg rsi, rbx",
            "lock cmpxchg16b [rdi]",
            "mov rbx, rsi",
            in("rdi") p,
            inout("rsi") new as u64 => _,
            in("rcx") (new >> 64) as u64,
            inout("rax") old as u64 => low,
            inout("rdx") (old >> 64) as u64 => high,
            options(nostack)
        );
    }
    u128::from(high) << 64 | u128::from(low)
}
