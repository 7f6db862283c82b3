//! Loads and stores of linear memory.

use crate::insn::Abort;
use crate::mmu::access::{Access, Privilege, canonical};
use crate::mmu::host_access::{self, HostAccess};
use crate::mmu::tlb::Hit;
use crate::processor::cpu::Cpu;
use crate::processor::fault::Fault;
use crate::processor::pending_work::VmmRequests;
use crate::processor::translation::Target;
use crate::state::int::Int;
use crate::state::vector;

/// A value that one load or store transfers: an integer of 1 to 16 bytes, or two of 16.
pub trait Scalar: HostAccess {
    /// Size in bytes.
    const SIZE: usize;
    /// The value of the first bytes, in memory order.
    fn from_bytes(bytes: [u8; LONGEST]) -> Self;
    /// The bytes in memory order, then zeros.
    fn to_bytes(self) -> [u8; LONGEST];
}

/// Size of the longest value in bytes.
const LONGEST: usize = 32;

impl<T: Int> Scalar for T {
    const SIZE: usize = T::BYTES;

    fn from_bytes(bytes: [u8; LONGEST]) -> Self {
        T::from_u64(u128::from_bytes(bytes) as u64)
    }

    fn to_bytes(self) -> [u8; LONGEST] {
        u128::from(self.zext()).to_bytes()
    }
}

impl Scalar for u128 {
    const SIZE: usize = 16;

    fn from_bytes(bytes: [u8; LONGEST]) -> Self {
        let [value] = Scalar::from_bytes(bytes);
        value
    }

    fn to_bytes(self) -> [u8; LONGEST] {
        [self].to_bytes()
    }
}

/// The contents of an XMM or a YMM register.
impl<const L: usize> Scalar for [u128; L] {
    const SIZE: usize = 16 * L;

    fn from_bytes(bytes: [u8; LONGEST]) -> Self {
        let (lanes, _) = bytes.as_chunks::<16>();
        std::array::from_fn(|i| u128::from_le_bytes(lanes[i]))
    }

    fn to_bytes(self) -> [u8; LONGEST] {
        let mut bytes = [0; LONGEST];
        let (lanes, _) = bytes.as_chunks_mut::<16>();
        for (lane, value) in lanes.iter_mut().zip(self) {
            *lane = value.to_le_bytes();
        }
        bytes
    }
}

impl Cpu {
    /// Loads from linear address `la` with the privilege of the current CPL.
    #[inline(always)]
    pub fn load<T: Scalar>(&mut self, la: u64) -> Result<T, Abort> {
        self.load_if::<false, T>(la)
    }

    /// Loads only on a TLB hit if `HIT` is set. On a miss it returns [`Abort`] without setting a
    /// fault, so that the caller can retry on the slow path.
    #[inline(always)]
    pub(crate) fn load_if<const HIT: bool, T: Scalar>(&mut self, la: u64) -> Result<T, Abort> {
        match self.tlb.fast(la, T::SIZE, Access::Read) {
            // SAFETY: the TLB only gives addresses of guest RAM with `T::SIZE` bytes left in the
            // page.
            Some(p) => Ok(unsafe { T::load(p) }),
            None if HIT => Err(Abort),
            None => self.load_missed(la, self.privilege),
        }
    }

    /// Loads with the given privilege.
    #[inline(always)]
    pub fn load_as<T: Scalar>(&mut self, la: u64, privilege: Privilege) -> Result<T, Abort> {
        match self.tlb.fast_as(la, T::SIZE, Access::Read, privilege) {
            // SAFETY: as in `load_if`.
            Some(p) => Ok(unsafe { T::load(p) }),
            None => self.load_missed(la, privilege),
        }
    }

    // Not inlined: the address of `bytes` escapes, which would prevent a tail call in the caller.
    #[cold]
    #[inline(never)]
    fn load_missed<T: Scalar>(&mut self, la: u64, privilege: Privilege) -> Result<T, Abort> {
        if privilege == self.privilege
            && let Some(p) = self.beside_watchpoints(la, T::SIZE, Access::Read)
        {
            // SAFETY: as in `load_if`.
            return Ok(unsafe { T::load(p) });
        }
        let mut bytes = [0; LONGEST];
        self.load_slow(la, &mut bytes[..T::SIZE], T::SIZE, privilege)?;
        Ok(T::from_bytes(bytes))
    }

    /// Stores to linear address `la` with the privilege of the current CPL.
    #[inline(always)]
    pub fn store<T: Scalar>(&mut self, la: u64, value: T) -> Result<(), Abort> {
        self.store_if::<false, T>(la, value)
    }

    /// Stores only on a TLB hit if `HIT` is set. On a miss it returns [`Abort`] without setting a
    /// fault, so that the caller can retry on the slow path.
    #[inline(always)]
    pub(crate) fn store_if<const HIT: bool, T: Scalar>(
        &mut self,
        la: u64,
        value: T,
    ) -> Result<(), Abort> {
        match self.tlb.fast(la, T::SIZE, Access::Write) {
            Some(p) => {
                // SAFETY: the TLB only gives addresses of writable guest RAM with `T::SIZE` bytes
                // left in the page.
                unsafe { value.store(p) };
                Ok(())
            }
            None if HIT => Err(Abort),
            None => self.store_missed(la, value),
        }
    }

    #[cold]
    #[inline(never)]
    fn store_missed<T: Scalar>(&mut self, la: u64, value: T) -> Result<(), Abort> {
        if let Some(p) = self.beside_watchpoints(la, T::SIZE, Access::Write) {
            // SAFETY: as in `store_if`.
            unsafe { value.store(p) };
            return Ok(());
        }
        self.store_slow(la, &value.to_bytes()[..T::SIZE], T::SIZE, self.privilege)
    }

    /// Stores with the given privilege.
    pub(crate) fn store_as<T: Scalar>(
        &mut self,
        la: u64,
        value: T,
        privilege: Privilege,
    ) -> Result<(), Abort> {
        match self.tlb.fast_as(la, T::SIZE, Access::Write, privilege) {
            // SAFETY: as in `store_if`.
            Some(p) => unsafe { value.store(p) },
            None => self.store_slow(la, &value.to_bytes()[..T::SIZE], T::SIZE, privilege)?,
        }
        Ok(())
    }

    /// Loads 16 bytes. The caller checks the alignment where an instruction requires it.
    #[inline(always)]
    pub fn load128(&mut self, la: u64) -> Result<u128, Abort> {
        self.load(la)
    }

    /// Stores 16 bytes. The caller checks the alignment where an instruction requires it.
    #[inline(always)]
    pub fn store128(&mut self, la: u64, value: u128) -> Result<(), Abort> {
        self.store(la, value)
    }

    /// Loads any number of bytes (up to a page) with the privilege of the current CPL. `alignment`
    /// in bytes is the one that #AC enforces (SDM Vol. 3A table 6-7), a power of two.
    pub fn load_bytes(&mut self, la: u64, bytes: &mut [u8], alignment: usize) -> Result<(), Abort> {
        self.load_slow(la, bytes, alignment, self.privilege)
    }

    /// Stores any number of bytes (up to a page), all or none, with the privilege of the current
    /// CPL. `alignment` is as for [`Self::load_bytes`].
    pub fn store_bytes(&mut self, la: u64, bytes: &[u8], alignment: usize) -> Result<(), Abort> {
        self.store_slow(la, bytes, alignment, self.privilege)
    }

    /// Loads from a system structure (descriptor tables, TSS): implicitly, with supervisor
    /// privilege at any CPL (SDM Vol. 3A 4.6.1).
    #[inline]
    pub fn load_system<T: Scalar>(&mut self, la: u64) -> Result<T, Abort> {
        self.load_as(la, self.system_privilege())
    }

    /// Stores to a system structure: implicitly, with supervisor privilege at any CPL (SDM Vol. 3A
    /// 4.6.1).
    pub fn store_system<T: Scalar>(&mut self, la: u64, value: T) -> Result<(), Abort> {
        self.store_implicit(la, value, self.system_privilege())
    }

    /// Checks that a store of `size` bytes to a system structure at `la` would not fault.
    pub(crate) fn check_system_writable(&mut self, la: u64, size: usize) -> Result<(), Abort> {
        for part in pages(la, size) {
            self.translate(part.la, Access::Write, self.system_privilege())?;
        }
        Ok(())
    }

    /// Stores to a system structure or, in a far transfer, to the stack, with the given privilege
    /// at any CPL.
    pub(crate) fn store_implicit<T: Scalar>(
        &mut self,
        la: u64,
        value: T,
        privilege: Privilege,
    ) -> Result<(), Abort> {
        match self.tlb.fast_as(la, T::SIZE, Access::Write, privilege) {
            // SAFETY: as in `store`.
            Some(p) => unsafe { value.store(p) },
            None => self.store_implicit_slow(la, &value.to_bytes()[..T::SIZE], privilege)?,
        }
        Ok(())
    }

    /// [`Self::store_implicit`] on the slow path. The store can be part of the delivery of an
    /// event, which no instruction repeats, so that decoded code is overwritten first and
    /// invalidated before the next block.
    fn store_implicit_slow(
        &mut self,
        la: u64,
        bytes: &[u8],
        privilege: Privilege,
    ) -> Result<(), Abort> {
        let stored = self.store_slow(la, bytes, bytes.len(), privilege);
        if stored.is_ok() || !matches!(self.fault, Fault::CodeWrite { .. }) {
            return stored;
        }
        for part in pages(la, bytes.len()) {
            if let Target::Ram(hit) = self.translate(part.la, Access::Write, privilege)?
                && hit.write_tracked
            {
                self.window.close();
                self.invalid_pages.push(hit.gpa & !0xFFF);
                self.pending_work.insert(VmmRequests::INVALIDATE_CODE);
            }
        }
        self.store_parts(la, bytes, privilege)
    }

    /// Raises the faults of a write of `size` bytes at `la` without writing.
    pub fn check_writable(&mut self, la: u64, size: usize) -> Result<(), Abort> {
        self.check_writable_as(la, size, size, self.privilege)
    }

    /// [`Self::check_writable`] with the given privilege. `alignment` is as for
    /// [`Self::load_bytes`].
    pub(crate) fn check_writable_as(
        &mut self,
        la: u64,
        size: usize,
        alignment: usize,
        privilege: Privilege,
    ) -> Result<(), Abort> {
        self.check_aligned(la, size, alignment, privilege)?;
        self.check_watchpoints(la, size, Access::Write)?;
        self.check_canonical_end(la, size)?;
        for part in pages(la, size) {
            match self.translate(part.la, Access::Write, privilege)? {
                Target::Ram(hit) => self.check_write_tracking(&hit, part.len)?,
                Target::Mmio(_) => self.check_device()?,
            }
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn load_slow(
        &mut self,
        la: u64,
        bytes: &mut [u8],
        alignment: usize,
        privilege: Privilege,
    ) -> Result<(), Abort> {
        self.check_aligned(la, bytes.len(), alignment, privilege)?;
        self.check_watchpoints(la, bytes.len(), Access::Read)?;
        // Both pages are translated before either is read, because the read of a device register
        // must not be repeated. The first page that faults determines CR2.
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
                // SAFETY: `translate` found RAM, and a part does not leave its page.
                Target::Ram(hit) => unsafe { host_access::load_bytes(hit.host, dst) },
                Target::Mmio(gpa) => {
                    self.check_device()?;
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
    fn store_slow(
        &mut self,
        la: u64,
        bytes: &[u8],
        alignment: usize,
        privilege: Privilege,
    ) -> Result<(), Abort> {
        self.check_writable_as(la, bytes.len(), alignment, privilege)?;
        self.store_parts(la, bytes, privilege)
    }

    /// Stores to the pages of an operand that has been checked.
    fn store_parts(&mut self, la: u64, bytes: &[u8], privilege: Privilege) -> Result<(), Abort> {
        let mut done = 0;
        for part in pages(la, bytes.len()) {
            let src = &bytes[done..done + part.len];
            match self.translate(part.la, Access::Write, privilege)? {
                // SAFETY: `translate` found writable RAM, and a part does not leave its page.
                Target::Ram(hit) => unsafe { host_access::store_bytes(hit.host, src) },
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

    /// Raises #AC for an unaligned access at CPL 3 while CR0.AM and RFLAGS.AC are set (SDM Vol. 3A
    /// 6.15, interrupt 17). An operand that is not canonical raises #GP or #SS instead, and a page
    /// fault has a lower priority: the order is that of processors, table 6-2 leaves it open.
    #[inline]
    fn check_aligned(
        &mut self,
        la: u64,
        size: usize,
        alignment: usize,
        privilege: Privilege,
    ) -> Result<(), Abort> {
        if privilege != Privilege::UserAligned || la & (alignment as u64 - 1) == 0 {
            return Ok(());
        }
        if !canonical(la & self.linear_mask) {
            return Err(self.abort(Fault::NonCanonical));
        }
        self.check_canonical_end(la, size)?;
        Err(self.exception(vector::AC, Some(0)))
    }

    /// Raises the fault of an operand that ends outside the canonical addresses. It has priority
    /// over page faults of the operand.
    fn check_canonical_end(&mut self, la: u64, len: usize) -> Result<(), Abort> {
        if canonical(la.wrapping_add(len as u64 - 1)) {
            Ok(())
        } else {
            Err(self.abort(Fault::NonCanonical))
        }
    }

    /// Aborts an instruction that accesses a device, unless it runs alone.
    fn check_device(&mut self) -> Result<(), Abort> {
        match self.device_aborts {
            true => Err(self.abort(Fault::Device)),
            false => Ok(()),
        }
    }

    /// Executes a part of an instruction that cannot be restarted, with accesses to devices. The
    /// instruction is the only one of its block.
    pub(crate) fn with_devices<R>(&mut self, part: impl FnOnce(&mut Self) -> R) -> R {
        let aborts = std::mem::replace(&mut self.device_aborts, false);
        let result = part(self);
        self.device_aborts = aborts;
        result
    }

    /// Prepares a write of `len` bytes at `hit`. In a write-tracked page it may change the fields
    /// of the DS area, and it must not change decoded code.
    fn check_write_tracking(&mut self, hit: &Hit, len: usize) -> Result<(), Abort> {
        if hit.write_tracked {
            self.window.close();
            if self.ram.code_map().may_overlap(hit.gpa, len) {
                return Err(self.abort(Fault::CodeWrite { gpa: hit.gpa }));
            }
        }
        Ok(())
    }
}

/// The part of an access that is in one page.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub la: u64,
    pub len: usize,
}

/// Splits an access at page boundaries into one part or two.
pub(super) fn pages(la: u64, len: usize) -> impl Iterator<Item = Part> + Clone {
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
