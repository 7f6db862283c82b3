//! Guest RAM between guard pages: an access outside it is a segmentation fault, which a fuzzer
//! reports and which ends a test.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::mm::{MprotectFlags, mprotect};
use vbts_cpu::{GuestRam, Reservation};

/// Inaccessible bytes before and after. They cost address space only.
const GUARD: usize = 16 << 20;
/// Size of a page.
const PAGE: usize = 0x1000;

/// RAM from guest-physical address 0.
///
/// Its mapping is never removed: the next RAM of this size uses it again. A processor that still
/// uses its RAM after this is dropped reads the memory of a later test, but only guest memory.
#[derive(Debug)]
pub struct Ram {
    host: NonNull<u8>,
    len: usize,
    reservation: Arc<Reservation>,
}

// SAFETY: the memory is reached through raw pointers only, by one thread at a time, or by several
// processors as in a real machine.
unsafe impl Send for Ram {}
// SAFETY: as above.
unsafe impl Sync for Ram {}

/// Mappings that no RAM uses.
static FREE: Mutex<Vec<Ram>> = Mutex::new(Vec::new());

impl Ram {
    /// `len` bytes, a multiple of the page size, all zero.
    ///
    /// # Panics
    /// The host has no memory.
    pub fn new(len: usize) -> Self {
        assert!(len.is_multiple_of(PAGE));
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = free.iter().position(|ram| ram.len == len) {
            let ram = free.swap_remove(at);
            drop(free);
            ram.clear();
            return ram;
        }
        drop(free);
        Self::map(len)
    }

    fn map(len: usize) -> Self {
        let reservation = Reservation::new().expect("no address space");
        let [before, memory, behind] =
            [GUARD, len, GUARD].map(|len| reservation.map(len).expect("no memory"));
        let host = memory.pointer();
        // SAFETY: the byte behind the memory is that of the next mapping, or before it.
        let end = unsafe { host.add(len) };
        let rest = behind.pointer().as_ptr() as usize - end.as_ptr() as usize + GUARD;
        for (guard, len) in [(before.pointer(), GUARD), (end, rest)] {
            // SAFETY: nothing uses these bytes, which are mapped one behind the other.
            unsafe { mprotect(guard.as_ptr().cast::<c_void>(), len, MprotectFlags::empty()) }
                .expect("a mapping");
        }
        // They are never unmapped.
        std::mem::forget((before, memory, behind));
        Self {
            host,
            len,
            reservation,
        }
    }

    /// Its size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its address in this process.
    pub fn host(&self) -> NonNull<u8> {
        self.host
    }

    /// Sets every byte to zero. Pages that are zero already are not written, so that the host keeps
    /// no memory for them.
    pub fn clear(&self) {
        for at in (0..self.len).step_by(PAGE) {
            // SAFETY: the page lies inside the mapping, is aligned, and no processor runs now.
            let page = unsafe { self.host.add(at).cast::<[u64; PAGE / 8]>().as_mut() };
            if page.iter().any(|word| *word != 0) {
                page.fill(0);
            }
        }
    }

    /// A copy of `len` bytes from `at` on.
    ///
    /// # Panics
    /// They are not all inside.
    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let from = self.inside(at, len);
        // SAFETY: both are `len` bytes, and no reference to guest memory exists.
        unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(from, len) };
        bytes
    }

    /// All of it, while no processor runs.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is that long and stays. The caller runs no processor meanwhile.
        unsafe { std::slice::from_raw_parts(self.host.as_ptr(), self.len) }
    }

    /// The quadword at `at`.
    ///
    /// # Panics
    /// It is not inside.
    pub fn read_u64(&self, at: u64) -> u64 {
        // SAFETY: eight bytes inside the mapping.
        unsafe { self.inside(at, 8).cast::<u64>().read_unaligned() }
    }

    /// Overwrites the bytes from `at` on. A processor's decoded code is not
    /// invalidated.
    ///
    /// # Panics
    /// They are not all inside.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        let to = self.inside(at, bytes.len());
        // SAFETY: both are as long as `bytes`, and no reference to guest memory exists.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// The address in this process of `len` bytes from `at` on.
    fn inside(&self, at: u64, len: usize) -> *mut u8 {
        let end = usize::try_from(at).ok().and_then(|at| at.checked_add(len));
        assert!(end.is_some_and(|end| end <= self.len), "{at:#x} is not RAM");
        // SAFETY: inside the mapping, by the assertion.
        unsafe { self.host.as_ptr().add(at as usize) }
    }

    /// The processor's view.
    pub fn for_cpu(&self) -> GuestRam {
        // SAFETY: the mapping is never removed, and references to it exist only in `clear`, while
        // no processor runs.
        let ram = unsafe { GuestRam::new(&[(0, self.len as u64, self.host)]) };
        ram.in_reservation(&self.reservation)
    }

    /// The view of devices and of KVM.
    ///
    /// # Panics
    /// Never: the mapping suits.
    #[cfg(feature = "devices")]
    pub fn for_devices(&self) -> vbts_devices::GuestRam {
        use rustix::mm::ProtFlags;
        use vbts_devices::DmaGenerations;
        use vm_memory::bitmap::NewBitmap;
        use vm_memory::mmap::MmapRegionBuilder;
        use vm_memory::{GuestAddress, GuestRegionMmap};

        let access = ProtFlags::READ | ProtFlags::WRITE;
        let bitmap = DmaGenerations::with_len(self.len);
        // The mapping exists already: protection and flags are only kept for information.
        let builder = MmapRegionBuilder::new_with_bitmap(self.len, bitmap)
            .with_mmap_prot(access.bits() as i32)
            .with_mmap_flags(0);
        // SAFETY: the mapping is that large and is never removed.
        let builder = unsafe { builder.with_raw_mmap_pointer(self.host.as_ptr()) };
        let region = builder.build().expect("a suitable mapping");
        let region = GuestRegionMmap::new(region, GuestAddress(0)).expect("a suitable region");
        vbts_devices::GuestRam::from_regions(vec![region]).expect("one region")
    }
}

impl Drop for Ram {
    fn drop(&mut self) {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(Self {
            reservation: self.reservation.clone(),
            ..*self
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ram_that_is_used_again_is_zero() {
        // A size that no other test has.
        let len = 3 * PAGE;
        let host = {
            let ram = Ram::new(len);
            ram.write(0xFFE, &[1, 2, 3, 4]);
            assert_eq!(ram.read(0xFFD, 6), [0, 1, 2, 3, 4, 0]);
            ram.host()
        };
        let again = Ram::new(len);
        assert_eq!(again.host(), host);
        assert_eq!(again.read(0, len), vec![0; len]);
        assert_ne!(Ram::new(len).host(), host);
    }

    #[test]
    #[should_panic(expected = "0x2fff is not RAM")]
    fn an_access_that_ends_outside_is_refused() {
        Ram::new(3 * PAGE).write(0x2FFF, &[0, 0]);
    }
}
