//! Guest memory between pages that nobody may touch: an access outside guest memory is a
//! segmentation fault, which the fuzzer reports.

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
use vbts_devices::{DmaGenerations, GuestRam as DeviceRam};
use vm_memory::bitmap::NewBitmap;
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{GuestAddress, GuestRegionMmap};

/// Forbidden bytes before and after. Linux maps them for nothing.
const GUARD: usize = 16 << 20;

/// RAM from guest-physical address 0. It is never unmapped: a target makes it once.
#[derive(Debug)]
pub struct GuardedRam {
    host: NonNull<u8>,
    len: usize,
}

// SAFETY: it is reached through raw pointers and volatile accesses only, by one thread.
unsafe impl Send for GuardedRam {}
// SAFETY: as above.
unsafe impl Sync for GuardedRam {}

impl GuardedRam {
    /// `len` bytes, a multiple of the page size, all zero.
    ///
    /// # Panics
    /// The host has no memory.
    pub fn new(len: usize) -> Self {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses; the part in the middle is
        // made accessible.
        let host = unsafe {
            let whole = mmap_anonymous(null_mut(), len + 2 * GUARD, ProtFlags::empty(), flags)
                .expect("no address space");
            let host = whole.cast::<u8>().add(GUARD);
            mprotect(
                host.cast::<c_void>(),
                len,
                MprotectFlags::READ | MprotectFlags::WRITE,
            )
            .expect("no memory");
            host
        };
        Self {
            host: NonNull::new(host).expect("a mapping is not at 0"),
            len,
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

    /// Where it lies in the fuzzer's own memory.
    pub fn host(&self) -> NonNull<u8> {
        self.host
    }

    /// Sets every byte: the contents, and zero after them.
    pub fn fill(&self, contents: &[u8]) {
        assert!(contents.len() <= self.len);
        // SAFETY: the mapping lives for ever, and nobody runs on it meanwhile.
        unsafe {
            let host = self.host.as_ptr();
            host.copy_from_nonoverlapping(contents.as_ptr(), contents.len());
            host.add(contents.len())
                .write_bytes(0, self.len - contents.len());
        }
    }

    /// A copy of the bytes from `at` on.
    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len);
        let mut bytes = vec![0; len];
        // SAFETY: inside the mapping, by the test above.
        unsafe {
            bytes
                .as_mut_ptr()
                .copy_from(self.host.as_ptr().add(at), len)
        };
        bytes
    }

    /// Overwrites the bytes at `at`; what does not fit is left out.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        let at = at.min(self.len);
        let len = bytes.len().min(self.len - at);
        // SAFETY: inside the mapping, by the computation above.
        unsafe { self.host.as_ptr().add(at).copy_from(bytes.as_ptr(), len) };
    }

    /// The devices' view.
    ///
    /// # Panics
    /// Never: the mapping suits.
    pub fn for_devices(&self) -> DeviceRam {
        let bitmap = DmaGenerations::with_len(self.len);
        let builder = MmapRegionBuilder::new_with_bitmap(self.len, bitmap)
            .with_mmap_prot(libc_prot())
            .with_mmap_flags(0);
        // SAFETY: the mapping is that large and lives for ever.
        let builder = unsafe { builder.with_raw_mmap_pointer(self.host.as_ptr()) };
        let region = builder.build().expect("a suitable mapping");
        let region = GuestRegionMmap::new(region, GuestAddress(0)).expect("a suitable region");
        DeviceRam::from_regions(vec![region]).expect("one region")
    }

    /// The processor's view.
    pub fn for_cpu(&self) -> vbts_cpu::GuestRam {
        // SAFETY: the mapping lives for ever, and no reference to it is made.
        unsafe { vbts_cpu::GuestRam::new(&[(0, self.len as u64, self.host)]) }
    }
}

/// PROT_READ and PROT_WRITE, for the record: the mapping exists already.
fn libc_prot() -> i32 {
    (ProtFlags::READ | ProtFlags::WRITE).bits() as i32
}
