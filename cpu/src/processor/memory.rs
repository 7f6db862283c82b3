//! Loads and stores of linear memory.

use std::arch::asm;

use vbts_bts::{DsFault, DsMemory};

use crate::insn::{Abort, Insn};
use crate::mmu::access::{Access, Privilege, canonical};
use crate::mmu::paging;
use crate::mmu::tlb::Hit;
use crate::processor::cpu::Cpu;
use crate::processor::fault::Fault;
use crate::processor::pending_work::VmmRequests;
use crate::processor::translation::Target;
use crate::state::flags::Int;

impl Cpu {
    /// Loads from linear address `la` with the privilege of the current CPL.
    #[inline(always)]
    pub fn load<T: Int>(&mut self, la: u64) -> Result<T, Abort> {
        self.load_if::<false, T>(la)
    }

    /// Loads only on a TLB hit if `HIT` is set. On a miss it returns [`Abort`] without setting a
    /// fault, so that the caller can retry on the slow path.
    #[inline(always)]
    pub(crate) fn load_if<const HIT: bool, T: Int>(&mut self, la: u64) -> Result<T, Abort> {
        match self.tlb.fast(la, T::BYTES, Access::Read) {
            // SAFETY: the TLB only gives addresses of guest RAM with `T::BYTES` bytes left in the
            // page.
            Some(p) => Ok(unsafe { p.cast::<T>().read_unaligned() }),
            None if HIT => Err(Abort),
            None => self.load_missed(la, self.privilege),
        }
    }

    /// Loads with a given privilege.
    #[inline(always)]
    pub fn load_as<T: Int>(&mut self, la: u64, privilege: Privilege) -> Result<T, Abort> {
        match self.tlb.fast_as(la, T::BYTES, Access::Read, privilege) {
            // SAFETY: as in `load_if`.
            Some(p) => Ok(unsafe { p.cast::<T>().read_unaligned() }),
            None => self.load_missed(la, privilege),
        }
    }

    // A function of its own: the address of `bytes` escapes (see `threaded!`).
    #[cold]
    #[inline(never)]
    fn load_missed<T: Int>(&mut self, la: u64, privilege: Privilege) -> Result<T, Abort> {
        let mut bytes = [0; 8];
        self.load_slow(la, &mut bytes[..T::BYTES], privilege)?;
        Ok(T::from_u64(u64::from_le_bytes(bytes)))
    }

    /// Stores to linear address `la` with the privilege of the current CPL.
    #[inline(always)]
    pub fn store<T: Int>(&mut self, la: u64, value: T) -> Result<(), Abort> {
        self.store_if::<false, T>(la, value)
    }

    /// Stores only on a TLB hit if `HIT` is set. On a miss it returns [`Abort`] without setting a
    /// fault, so that the caller can retry on the slow path.
    #[inline(always)]
    pub(crate) fn store_if<const HIT: bool, T: Int>(
        &mut self,
        la: u64,
        value: T,
    ) -> Result<(), Abort> {
        match self.tlb.fast(la, T::BYTES, Access::Write) {
            Some(p) => {
                // SAFETY: the TLB only gives addresses of writable guest RAM with `T::BYTES` bytes
                // left in the page.
                unsafe { p.cast::<T>().write_unaligned(value) };
                Ok(())
            }
            None if HIT => Err(Abort),
            None => self.store_missed(la, value),
        }
    }

    #[cold]
    #[inline(never)]
    fn store_missed<T: Int>(&mut self, la: u64, value: T) -> Result<(), Abort> {
        let bytes = value.zext().to_le_bytes();
        self.store_slow(la, &bytes[..T::BYTES], self.privilege)
    }

    /// Reads, lets `f` compute the new value, and writes it back, atomically if `insn` has LOCK;
    /// faults before `f` runs, or not at all. `f` may run more than once.
    #[inline(always)]
    pub fn modify<T: Int>(
        &mut self,
        insn: &Insn,
        la: u64,
        f: impl FnMut(&mut Self, T) -> T,
    ) -> Result<(), Abort> {
        self.modify_if::<false, T>(insn, la, f)
    }

    /// The same, with `HIT` only without LOCK and where the TLB has it: else it aborts, with no
    /// reason given.
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
                let old = unsafe { p.cast::<T>().read_unaligned() };
                let new = f(self, old);
                // SAFETY: `f` computes; it cannot unmap guest RAM.
                unsafe { p.cast::<T>().write_unaligned(new) };
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
        let fast = self.tlb.fast(la, T::BYTES, Access::Write);
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
        let mut old = unsafe { host.cast::<T>().read_unaligned() };
        loop {
            // What `f` reads of the flags is what they were before the instruction.
            self.flags = flags;
            let new = f(self, old);
            // SAFETY: as above.
            match unsafe { T::compare_exchange(host.cast(), old, new) } {
                found if found == old => break,
                found => old = found,
            }
        }
        if fast.is_none() {
            self.watch(la, T::BYTES, Access::Write);
        }
        Ok(())
    }

    /// Checks a write of `size` bytes at `la`. Gives the host's address if the bytes are RAM and
    /// lie in one page: across two, and on device registers, there is no atomic access.
    pub(crate) fn lockable(&mut self, la: u64, size: usize) -> Result<Option<*mut u8>, Abort> {
        self.check_writable(la, size)?;
        if pages(la, size).nth(1).is_some() {
            return Ok(None);
        }
        Ok(match self.translate(la, Access::Write, self.privilege)? {
            Target::Ram(hit) => Some(hit.host),
            Target::Mmio(_) => None,
        })
    }

    /// Stores `new` at the 16-byte-aligned `la` if `old` is there, atomically if the host can;
    /// returns what was there.
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
        self.watch(la, 16, Access::Write);
        let p = host.cast::<u128>();
        if is_x86_feature_detected!("cmpxchg16b") {
            // SAFETY: `p` is writable guest RAM, aligned as `la` is, and the host has the
            // instruction.
            return Ok(unsafe { exchange128(p, old, new) });
        }
        // SAFETY: as above. A host without the instruction has no KVM, and runs one processor at a
        // time.
        unsafe {
            let found = p.read();
            p.write(if found == old { new } else { found });
            Ok(found)
        }
    }

    /// Loads 16 bytes. Alignment, where an instruction demands it, is the caller's to check.
    #[inline(always)]
    pub fn load128(&mut self, la: u64) -> Result<u128, Abort> {
        match self.tlb.fast(la, 16, Access::Read) {
            // SAFETY: as in `load_if`.
            Some(p) => Ok(unsafe { p.cast::<u128>().read_unaligned() }),
            None => {
                let mut bytes = [0; 16];
                self.load_slow(la, &mut bytes, self.privilege)?;
                Ok(u128::from_le_bytes(bytes))
            }
        }
    }

    /// Stores 16 bytes. Alignment, where an instruction demands it, is the caller's to check.
    #[inline(always)]
    pub fn store128(&mut self, la: u64, value: u128) -> Result<(), Abort> {
        match self.tlb.fast(la, 16, Access::Write) {
            // SAFETY: as in `store`.
            Some(p) => unsafe { p.cast::<u128>().write_unaligned(value) },
            None => self.store_slow(la, &value.to_le_bytes(), self.privilege)?,
        }
        Ok(())
    }

    /// Loads any number of bytes (up to a page) with the privilege of the current CPL.
    pub fn load_bytes(&mut self, la: u64, bytes: &mut [u8]) -> Result<(), Abort> {
        self.load_slow(la, bytes, self.privilege)
    }

    /// Stores any number of bytes (up to a page), all or none, with the privilege of the current
    /// CPL.
    pub fn store_bytes(&mut self, la: u64, bytes: &[u8]) -> Result<(), Abort> {
        self.store_slow(la, bytes, self.privilege)
    }

    /// Implicit load of a system structure (descriptor tables, TSS): supervisor privilege whatever
    /// the CPL.
    #[inline]
    pub fn load_system<T: Int>(&mut self, la: u64) -> Result<T, Abort> {
        self.load_as(la, Privilege::Supervisor)
    }

    /// Implicit store to a system structure or, while an event is delivered, to the inner stack.
    pub fn store_system<T: Int>(&mut self, la: u64, value: T) -> Result<(), Abort> {
        match self
            .tlb
            .fast_as(la, T::BYTES, Access::Write, Privilege::Supervisor)
        {
            // SAFETY: as in `store`.
            Some(p) => unsafe { p.cast::<T>().write_unaligned(value) },
            None => {
                let bytes = value.zext().to_le_bytes();
                self.store_implicit(la, &bytes[..T::BYTES])?;
            }
        }
        Ok(())
    }

    /// A store that is not part of an instruction that could be restarted: code that it overwrites
    /// is forgotten before the next block instead.
    fn store_implicit(&mut self, la: u64, bytes: &[u8]) -> Result<(), Abort> {
        let r = self.store_slow(la, bytes, Privilege::Supervisor);
        if let (Err(Abort), Fault::CodeWrite { .. }) = (&r, &self.fault) {
            for (i, &b) in bytes.iter().enumerate() {
                let la = la.wrapping_add(i as u64);
                if let Target::Ram(hit) =
                    self.translate(la, Access::Write, Privilege::Supervisor)?
                {
                    if hit.write_tracked {
                        self.window.close();
                        self.invalid_pages.push(hit.gpa & !0xFFF);
                        self.pending_work.insert(VmmRequests::INVALIDATE_CODE);
                    }
                    // SAFETY: `translate` found RAM for this byte.
                    unsafe { hit.host.write(b) };
                }
            }
            return Ok(());
        }
        r
    }

    /// Faults as a write of `size` bytes at `la` would, without writing.
    pub fn check_writable(&mut self, la: u64, size: usize) -> Result<(), Abort> {
        self.check_aligned(la, size)?;
        self.check_canonical_end(la, size)?;
        for part in pages(la, size) {
            if let Target::Ram(hit) = self.translate(part.la, Access::Write, self.privilege)? {
                self.check_observed(&hit, part.len)?;
            }
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn load_slow(&mut self, la: u64, bytes: &mut [u8], privilege: Privilege) -> Result<(), Abort> {
        if privilege == Privilege::UserAligned {
            self.check_aligned(la, bytes.len())?;
        }
        // Both pages before either is read: a read of a device register must not be repeated. The
        // first one that faults gives CR2.
        let parts = pages(la, bytes.len());
        if parts.clone().nth(1).is_some() {
            self.check_canonical_end(la, bytes.len())?;
            for part in parts.clone() {
                self.translate(part.la, Access::Read, privilege)?;
            }
        }
        let mut done = 0;
        for part in parts {
            let dst = &mut bytes[done..done + part.len];
            match self.translate(part.la, Access::Read, privilege)? {
                // SAFETY: `translate` found RAM, and a part does not leave its page. Guest memory
                // and `dst` are distinct.
                Target::Ram(hit) => unsafe {
                    std::ptr::copy_nonoverlapping(hit.host, dst.as_mut_ptr(), part.len);
                },
                Target::Mmio(gpa) => {
                    let now = self.now();
                    for (i, chunk) in dst.chunks_mut(8).enumerate() {
                        self.platform.mmio_read(now, gpa + 8 * i as u64, chunk);
                    }
                    self.after_bus();
                }
            }
            done += part.len;
        }
        self.watch(la, bytes.len(), Access::Read);
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn store_slow(&mut self, la: u64, bytes: &[u8], privilege: Privilege) -> Result<(), Abort> {
        if privilege == Privilege::UserAligned {
            self.check_aligned(la, bytes.len())?;
        }
        self.check_canonical_end(la, bytes.len())?;
        let parts = pages(la, bytes.len());
        for part in parts.clone() {
            if let Target::Ram(hit) = self.translate(part.la, Access::Write, privilege)? {
                self.check_observed(&hit, part.len)?;
            }
        }
        let mut done = 0;
        for part in parts {
            let src = &bytes[done..done + part.len];
            match self.translate(part.la, Access::Write, privilege)? {
                // SAFETY: `translate` found writable RAM, and a part does not leave its page. Guest
                // memory and `src` are distinct.
                Target::Ram(hit) => unsafe {
                    std::ptr::copy_nonoverlapping(src.as_ptr(), hit.host, part.len);
                },
                Target::Mmio(gpa) => {
                    let now = self.now();
                    for (i, chunk) in src.chunks(8).enumerate() {
                        self.platform.mmio_write(now, gpa + 8 * i as u64, chunk);
                    }
                    self.after_bus();
                }
            }
            done += part.len;
        }
        self.watch(la, bytes.len(), Access::Write);
        Ok(())
    }

    /// #AC for an unaligned access at CPL 3 while CR0.AM and RFLAGS.AC are set (SDM Vol. 3A 6.15,
    /// vector 17).
    fn check_aligned(&mut self, la: u64, size: usize) -> Result<(), Abort> {
        if self.privilege == Privilege::UserAligned
            && size.is_power_of_two()
            && la & (size as u64 - 1) != 0
        {
            return Err(self.exception(crate::state::vector::AC, Some(0)));
        }
        Ok(())
    }

    /// An operand that only ends outside the canonical addresses faults for that before any page of
    /// it does.
    fn check_canonical_end(&mut self, la: u64, len: usize) -> Result<(), Abort> {
        if canonical(la.wrapping_add(len as u64 - 1)) {
            Ok(())
        } else {
            Err(self.abort(Fault::NonCanonical))
        }
    }

    /// A write of `len` bytes at `hit` must not meet code that has been decoded; and the fields of
    /// the DS area may not be what they were.
    fn check_observed(&mut self, hit: &Hit, len: usize) -> Result<(), Abort> {
        if hit.write_tracked {
            self.window.close();
            if self.code_map.overlaps(hit.gpa, len) {
                return Err(self.abort(Fault::CodeWrite { gpa: hit.gpa }));
            }
        }
        Ok(())
    }
}

/// LOCK CMPXCHG16B: stores `new` at `p` if `old` is there; returns what was there.
///
/// # Safety
/// `p` is aligned, and valid for reads and writes by atomic instructions; the host has the
/// instruction.
unsafe fn exchange128(p: *mut u128, old: u128, new: u128) -> u128 {
    let (low, high): (u64, u64);
    // SAFETY: the caller's promise. RBX, which the compiler keeps for itself, has its value again.
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

/// The part of an access that lies in one page.
#[derive(Debug, Clone, Copy)]
struct Part {
    la: u64,
    len: usize,
}

/// Splits an access at page boundaries: into one part, or two.
fn pages(la: u64, len: usize) -> impl Iterator<Item = Part> + Clone {
    let first = len.min(0x1000 - (la & 0xFFF) as usize);
    let parts = [
        Part { la, len: first },
        Part {
            la: la.wrapping_add(first as u64),
            len: len - first,
        },
    ];
    parts.into_iter().filter(|p| p.len > 0)
}

impl DsMemory for Cpu {
    #[inline(always)]
    fn read<const N: usize>(&mut self, la: u64) -> Result<[u64; N], DsFault> {
        if let Some(hit) = self.pin(la, 8 * N) {
            // SAFETY: `pin` only gives addresses of guest RAM with `8 * N` bytes left in the page.
            return Ok(std::array::from_fn(|i| unsafe {
                hit.host.cast::<u64>().add(i).read_unaligned()
            }));
        }
        self.ds_check(la, 8 * N)?;
        let mut words = [0; N];
        for (i, word) in words.iter_mut().enumerate() {
            *word = self
                .load_system(la.wrapping_add(8 * i as u64))
                .map_err(|Abort| DsFault::Unmapped)?;
        }
        Ok(words)
    }

    #[inline(always)]
    fn write<const N: usize>(&mut self, la: u64, words: &[u64; N]) -> Result<(), DsFault> {
        if let Some(hit) = self.pin(la, 8 * N) {
            for (i, word) in words.iter().enumerate() {
                // SAFETY: `pin` only gives addresses of writable guest RAM with `8 * N` bytes left
                // in the page.
                unsafe { hit.host.cast::<u64>().add(i).write_unaligned(*word) };
            }
            return Ok(());
        }
        self.ds_check(la, 8 * N)?;
        for (i, word) in words.iter().enumerate() {
            self.store_system(la.wrapping_add(8 * i as u64), *word)
                .map_err(|Abort| DsFault::Unmapped)?;
        }
        Ok(())
    }
}

impl Cpu {
    /// Where linear address `la` leads, if a supervisor may write `len` bytes there directly: they
    /// lie in one page of RAM that holds no code, and that no breakpoint watches. Valid until the
    /// next [`Self::new_generation`].
    pub(crate) fn pin(&mut self, la: u64, len: usize) -> Option<Hit> {
        if (la & 0xFFF) as usize + len > 0x1000 {
            return None;
        }
        let hit = match self.tlb.find(la, Access::Write, Privilege::Supervisor) {
            // The TLB has no page that is watched.
            Some(hit) => hit,
            None if self.watched(la, Access::Write) => return None,
            // Another page that is pinned may have taken its place.
            None => match self.translate(la, Access::Write, Privilege::Supervisor) {
                Ok(Target::Ram(hit)) => hit,
                _ => return None,
            },
        };
        (!self.code_map.is_code(hit.gpa)).then_some(hit)
    }

    /// The DS save area must be writable RAM: a record must not reach a device register.
    #[cold]
    fn ds_check(&mut self, la: u64, len: usize) -> Result<(), DsFault> {
        for part in pages(la, len) {
            match self.translate(part.la, Access::Write, Privilege::Supervisor) {
                Ok(Target::Ram(_)) => {}
                Ok(Target::Mmio(_)) => return Err(DsFault::NotRam),
                Err(Abort) => {
                    return Err(match self.fault {
                        Fault::Page { error, .. }
                            if error & (paging::pf::P | paging::pf::RSVD) == paging::pf::P =>
                        {
                            DsFault::ReadOnly
                        }
                        _ => DsFault::Unmapped,
                    });
                }
            }
        }
        Ok(())
    }
}
