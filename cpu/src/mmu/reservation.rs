//! The addresses of this process that native code can access: 4 GiB, to which an operand of native
//! code is an offset of 32 bits.
//!
//! The base of GS is the start. An access of a guest's memory, or of a buffer of records, has a
//! 32-bit effective address and a GS override, so that it lies in the reservation whatever its
//! registers have. Guest RAM and those buffers are mapped there, and nothing else is.

use std::cell::Cell;
use std::ffi::c_void;
use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Size of the reservation in bytes: all offsets of 32 bits. Its start is a multiple of it, so that
/// the lower half of an address is the offset.
const SIZE: usize = 1 << 32;
/// Inaccessible bytes behind it, which the end of an operand at the last offset reaches.
const MARGIN: usize = 1 << 16;
/// Granularity of mappings in it, in bytes: a huge page of the host.
const HUGE: usize = 2 << 20;

/// Addresses for the memory of a machine.
#[derive(Debug)]
pub struct Reservation {
    start: NonNull<u8>,
    /// Offsets that are free, as (start, end), lowest first.
    free: Mutex<Vec<(usize, usize)>>,
}

// SAFETY: the addresses belong to this value alone, and any thread can use it.
unsafe impl Send for Reservation {}
// SAFETY: as above; the list is behind a lock.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// Reserves the addresses. This takes no memory, but counts as 8 GiB of address space
    /// (`RLIMIT_AS`) for a moment, and then as 4 GiB.
    ///
    /// # Errors
    /// The host refuses as many addresses.
    pub fn new() -> io::Result<Arc<Self>> {
        let all = 2 * SIZE + MARGIN;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the host chooses addresses at which nothing is mapped.
        let whole = unsafe { mmap_anonymous(null_mut(), all, ProtFlags::empty(), flags) }?;
        let before = whole.cast::<u8>().align_offset(SIZE);
        let behind = before + SIZE + MARGIN;
        let whole = whole.cast::<u8>();
        // SAFETY: `before` is less than `SIZE`, so that all three parts lie in the mapping.
        let (start, rest) = unsafe { (whole.add(before), whole.add(behind)) };
        for (part, len) in [(whole, before), (rest, all - behind)] {
            if len > 0 {
                // SAFETY: nothing uses this part of the mapping.
                unsafe { munmap(part.cast(), len) }?;
            }
        }
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Arc::new(Self {
            start,
            free: Mutex::new(vec![(0, SIZE)]),
        }))
    }

    /// Address of the first byte.
    pub fn start(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// Whether the `len` bytes at `address` lie in it.
    pub fn has(&self, address: u64, len: u64) -> bool {
        let offset = address.wrapping_sub(self.start());
        offset <= SIZE as u64 && len <= SIZE as u64 - offset
    }

    /// Maps `len` bytes, filled with zeros, to be read and written, in huge pages if the host has
    /// any.
    ///
    /// # Errors
    /// No room is left, or the host refuses.
    pub fn map(self: &Arc<Self>, len: usize) -> io::Result<ReservedMemory> {
        let (at, size) = self.take(len).ok_or(io::ErrorKind::OutOfMemory)?;
        let memory = ReservedMemory {
            reservation: self.clone(),
            at,
            len,
            size,
        };
        let access = ProtFlags::READ | ProtFlags::WRITE;
        self.remap(at, size, access)?;
        // SAFETY: the mapping is new. Without huge pages it works, too.
        let _ = unsafe {
            madvise(
                memory.pointer().as_ptr().cast(),
                size,
                Advice::LinuxHugepage,
            )
        };
        Ok(memory)
    }

    /// Takes free offsets for `len` bytes: the first ones that suffice.
    fn take(&self, len: usize) -> Option<(usize, usize)> {
        let size = len.checked_next_multiple_of(HUGE)?;
        let mut free = self.free();
        let n = free.iter().position(|(at, end)| end - at >= size)?;
        let (at, end) = free[n];
        if end - at == size {
            free.remove(n);
        } else {
            free[n].0 += size;
        }
        Some((at, size))
    }

    fn free(&self) -> MutexGuard<'_, Vec<(usize, usize)>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives offsets back.
    fn give_back(&self, at: usize, size: usize) {
        let mut free = self.free();
        let n = free.partition_point(|(start, _)| *start < at);
        free.insert(n, (at, at + size));
        free.dedup_by(|next, before| {
            let adjacent = before.1 == next.0;
            if adjacent {
                before.1 = next.1;
            }
            adjacent
        });
    }

    /// Replaces what is mapped at an offset by pages of zeros with this access.
    fn remap(&self, at: usize, size: usize, access: ProtFlags) -> io::Result<()> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the caller has these bytes of the reservation, which nothing else uses.
        unsafe { mmap_anonymous(self.start.as_ptr().add(at).cast(), size, access, flags) }?;
        Ok(())
    }

    /// Whether the start is the base of GS of this thread: a check of the host's kernel.
    pub fn is_selected(&self) -> bool {
        let mut base = 0u64;
        // SAFETY: it stores 8 bytes.
        let result = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_GET_GS, &raw mut base) };
        result == 0 && base == self.start()
    }

    /// Makes the start the base of GS of this thread. Nothing else in the process uses GS.
    #[inline]
    pub fn select(&self) {
        let start = self.start();
        if SELECTED.get() != start {
            select(start);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: each mapping in it has a reference to this value: there is none any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast::<c_void>(), SIZE + MARGIN) };
    }
}

/// Memory in a [`Reservation`], which is given back when the value is dropped.
#[derive(Debug)]
pub struct ReservedMemory {
    reservation: Arc<Reservation>,
    at: usize,
    len: usize,
    /// Bytes that are mapped.
    size: usize,
}

impl ReservedMemory {
    /// The first byte.
    pub fn pointer(&self) -> NonNull<u8> {
        // SAFETY: the offset lies in the reservation.
        unsafe { self.reservation.start.add(self.at) }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The reservation.
    pub fn reservation(&self) -> &Arc<Reservation> {
        &self.reservation
    }
}

impl Drop for ReservedMemory {
    fn drop(&mut self) {
        let Self { at, size, .. } = *self;
        // Otherwise the bytes stay mapped, and are not used again.
        if self.reservation.remap(at, size, ProtFlags::empty()).is_ok() {
            self.reservation.give_back(at, size);
        }
    }
}

thread_local! {
    /// What [`Reservation::select`] has made the base of GS of this thread.
    static SELECTED: Cell<u64> = const { Cell::new(0) };
}

/// AT_HWCAP2: WRGSBASE works in user mode (`HWCAP2_FSGSBASE` in Linux's
/// `arch/x86/include/uapi/asm/hwcap2.h`).
const FSGSBASE: usize = 1 << 1;
/// A code of `arch_prctl(2)`: sets the base of GS.
pub const ARCH_SET_GS: libc::c_int = 0x1001;
const ARCH_GET_GS: libc::c_int = 0x1004;

#[cold]
fn select(start: u64) {
    let (_, hwcap2) = rustix::param::linux_hwcap();
    if hwcap2 & FSGSBASE != 0 {
        // SAFETY: the system has enabled the instruction. Nothing in the process uses GS.
        unsafe {
            std::arch::asm!("wrgsbase {}", in(reg) start, options(nostack, nomem, preserves_flags));
        }
    } else {
        select_by_call(start);
    }
    SELECTED.set(start);
}

fn select_by_call(start: u64) {
    // SAFETY: nothing in the process uses GS.
    let result = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, start) };
    // It accepts every address of a process. Native code would reach something else without.
    assert_eq!(result, 0, "arch_prctl(ARCH_SET_GS) failed");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The byte at an offset from the base of GS.
    fn byte_at(offset: u32) -> u8 {
        let byte: u32;
        // SAFETY: the caller names a byte that is mapped.
        unsafe {
            std::arch::asm!("movzx {:e}, byte ptr gs:[{:e}]", out(reg) byte, in(reg) offset,
                options(nostack, readonly, preserves_flags));
        }
        byte as u8
    }

    #[test]
    fn an_offset_from_gs_is_the_lower_half_of_an_address() {
        let reservation = Reservation::new().unwrap();
        assert_eq!(reservation.start() as u32, 0);
        let memory = reservation.map(0x3000).unwrap();
        let address = memory.pointer().as_ptr() as u64 + 0x2345;
        assert!(reservation.has(address, 1) && !reservation.has(address, SIZE as u64));
        // SAFETY: the byte is mapped, and nothing else uses it.
        unsafe { (address as *mut u8).write(7) };
        assert!(!reservation.is_selected());
        reservation.select();
        assert!(reservation.is_selected());
        assert_eq!(byte_at(address as u32), 7);
        let other = Reservation::new().unwrap();
        let zeros = other.map(0x3000).unwrap();
        select_by_call(other.start());
        assert_eq!(byte_at(zeros.pointer().as_ptr() as u32 + 0x2345), 0);
    }

    #[test]
    fn memory_is_zero_and_used_again() {
        let reservation = Reservation::new().unwrap();
        let rest = reservation.map(SIZE - 2 * HUGE).unwrap();
        let [first, second] = [(); 2].map(|()| reservation.map(HUGE - 1).unwrap());
        assert!(reservation.map(1).is_err());
        // SAFETY: the byte is mapped, and nothing else uses it.
        unsafe { second.pointer().write(1) };
        let address = first.pointer();
        drop(first);
        drop(second);
        let again = reservation.map(2 * HUGE).unwrap();
        assert_eq!(again.pointer(), address);
        // SAFETY: as above.
        assert_eq!(unsafe { again.pointer().add(HUGE).read() }, 0);
        drop((rest, again));
        assert_eq!(*reservation.free(), [(0, SIZE)]);
    }
}
