//! Memory for native code: the same pages mapped twice, to be written and to be executed.
//!
//! No page is writable and executable at one address. Both mappings exist from the start, so that a
//! process that can make no memory executable any more can still translate. The pages belong to no
//! file, because perf reads names of code (`--perf-map`) only for such memory.

use std::ffi::c_void;
use std::io;
use std::ptr::{self, NonNull};

use rustix::mm::{
    Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mprotect,
    mremap_fixed, munmap,
};

/// Size of a huge page of the host.
const HUGE: usize = 2 << 20;

/// Addresses that are reserved for a mapping.
#[derive(Debug)]
struct Mapping {
    /// A multiple of [`HUGE`], so that the host can use huge pages.
    start: NonNull<u8>,
    reserved: NonNull<c_void>,
    reserved_len: usize,
}

// SAFETY: the mapping belongs to this value alone, and any thread can use it.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Reserves `len` bytes.
    fn reserve(len: usize) -> io::Result<Self> {
        let reserved_len = len + HUGE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the host chooses addresses at which nothing is mapped.
        let reserved =
            unsafe { mmap_anonymous(ptr::null_mut(), reserved_len, ProtFlags::empty(), flags) }?;
        let reserved = NonNull::new(reserved).ok_or(io::ErrorKind::OutOfMemory)?;
        let before = reserved.cast::<u8>().align_offset(HUGE);
        Ok(Self {
            // SAFETY: `before` is less than `HUGE`, so this is reserved.
            start: unsafe { reserved.byte_add(before) }.cast(),
            reserved,
            reserved_len,
        })
    }

    fn address(&self) -> *mut c_void {
        self.start.as_ptr().cast()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nothing uses the mapping any more.
        let _ = unsafe { munmap(self.reserved.as_ptr(), self.reserved_len) };
    }
}

/// Pages that are mapped twice.
#[derive(Debug)]
pub(crate) struct CodeMemory {
    /// Readable and writable.
    write: Mapping,
    /// Readable and executable.
    execute: Mapping,
    len: usize,
}

impl CodeMemory {
    /// Maps `len` bytes, a multiple of the page size. They are zero.
    ///
    /// # Errors
    /// The host refuses: it has no memory, or makes none executable.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let all = len.next_multiple_of(HUGE);
        let (write, execute) = (Mapping::reserve(all)?, Mapping::reserve(all)?);
        let (to_write, to_execute) = (write.address(), execute.address());
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
        let executable = MprotectFlags::READ | MprotectFlags::EXEC;
        // SAFETY: `all` bytes at both addresses are reserved, and nothing else knows of them.
        unsafe {
            mmap_anonymous(to_write, all, ProtFlags::READ | ProtFlags::WRITE, flags)?;
            // With an old size of 0 it maps the same pages again (mremap(2)).
            mremap_fixed(to_write, 0, all, MremapFlags::MAYMOVE, to_execute)?;
            mprotect(to_execute, all, executable)?;
            for start in [to_write, to_execute] {
                // Without huge pages it works, too.
                let _ = madvise(start, all, Advice::LinuxHugepage);
            }
        }
        Ok(Self {
            write,
            execute,
            len,
        })
    }

    /// Address at which the byte at `offset` is executed.
    pub(crate) fn address(&self, offset: usize) -> u64 {
        self.execute.start.as_ptr() as u64 + offset as u64
    }

    /// Writes `bytes` at `offset`.
    ///
    /// # Panics
    /// They do not lie in the memory: an error of the caller, which would otherwise be harmful.
    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset <= self.len && bytes.len() <= self.len - offset);
        // SAFETY: the bytes lie in the mapping. No reference to it exists; `bytes` is elsewhere.
        unsafe {
            ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.write.start.as_ptr().add(offset),
                bytes.len(),
            );
        }
    }

    /// The quadword at `offset`.
    ///
    /// # Panics
    /// The quadword ends outside the memory.
    pub(crate) fn read(&self, offset: usize) -> u64 {
        let mut bytes = [0; 8];
        assert!(offset <= self.len && bytes.len() <= self.len - offset);
        // SAFETY: the bytes lie in the mapping. No reference to it exists; `bytes` is elsewhere.
        unsafe {
            ptr::copy_nonoverlapping(
                self.write.start.as_ptr().add(offset),
                bytes.as_mut_ptr(),
                bytes.len(),
            );
        }
        u64::from_le_bytes(bytes)
    }

    /// Sets `len` bytes from `offset` on to zero.
    pub(crate) fn clear(&mut self, offset: usize, len: usize) {
        assert!(offset <= self.len && len <= self.len - offset);
        // SAFETY: the bytes lie in the mapping.
        unsafe { ptr::write_bytes(self.write.start.as_ptr().add(offset), 0, len) };
    }
}

/// Makes this processor of the host fetch instructions anew, after code was written at another
/// linear address than that where it is executed (SDM Vol. 3A 8.1.3). Of the serializing
/// instructions (8.3), IRET needs no privilege and does not exit to a hypervisor.
pub(crate) fn serialize() {
    // SAFETY: IRET returns to the next instruction, with the stack pointer of before. It pushes
    // below the red zone.
    unsafe {
        std::arch::asm!(
            "mov {rsp}, rsp",
            "mov {t:e}, ss",
            "push {t}",
            "push {rsp}",
            "pushfq",
            "mov {t:e}, cs",
            "push {t}",
            "lea {t}, [rip + 2f]",
            "push {t}",
            "iretq",
            "2:",
            t = out(reg) _,
            rsp = out(reg) _,
        );
    }
}
