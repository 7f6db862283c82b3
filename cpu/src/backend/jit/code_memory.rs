//! Memory for native code: the same pages mapped twice, to be written and to be executed.
//!
//! No page is writable and executable at one address. Both mappings exist from the start, so that a
//! process that can make no memory executable any more can still translate.

use std::io;
use std::ptr::{self, NonNull};

use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// Size of a huge page of the host.
const HUGE: usize = 2 << 20;

/// A mapping of a file from its start on.
#[derive(Debug)]
struct Mapping {
    /// A multiple of [`HUGE`], so that the host can use huge pages.
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone, and any thread can use it.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(file: &OwnedFd, len: usize, protection: ProtFlags) -> io::Result<Self> {
        let whole = len.next_multiple_of(HUGE);
        let reserved = whole + HUGE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the host chooses addresses at which nothing is mapped.
        let first =
            unsafe { mmap_anonymous(ptr::null_mut(), reserved, ProtFlags::empty(), flags) }?;
        let before = first.addr().next_multiple_of(HUGE) - first.addr();
        // SAFETY: `before` is at most `HUGE`, so all of these are in what has just been reserved.
        let (start, end) = unsafe { (first.byte_add(before), first.byte_add(before + whole)) };
        // SAFETY: nothing else knows of these addresses.
        unsafe {
            if before > 0 {
                munmap(first, before)?;
            }
            if before < HUGE {
                munmap(end, HUGE - before)?;
            }
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            mmap(start, whole, protection, flags, file, 0)?;
            // Without huge pages it works, too.
            let _ = madvise(start, whole, Advice::LinuxHugepage);
        }
        Ok(Self {
            start: NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?,
            len: whole,
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nothing uses the mapping any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Pages that are mapped twice.
#[derive(Debug)]
pub(super) struct CodeMemory {
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
    pub fn new(len: usize) -> io::Result<Self> {
        let file = memfd_create("vbts-native-code", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, len.next_multiple_of(HUGE) as u64)?;
        Ok(Self {
            write: Mapping::new(&file, len, ProtFlags::READ | ProtFlags::WRITE)?,
            execute: Mapping::new(&file, len, ProtFlags::READ | ProtFlags::EXEC)?,
            len,
        })
    }

    /// Address at which the byte at `offset` is executed.
    pub fn address(&self, offset: usize) -> u64 {
        self.execute.start.as_ptr() as u64 + offset as u64
    }

    /// Writes `bytes` at `offset`.
    ///
    /// # Panics
    /// They do not lie in the memory: an error of the caller, which would otherwise be harmful.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
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

    /// Sets `len` bytes from `offset` on to zero.
    pub fn clear(&mut self, offset: usize, len: usize) {
        assert!(offset <= self.len && len <= self.len - offset);
        // SAFETY: the bytes lie in the mapping.
        unsafe { ptr::write_bytes(self.write.start.as_ptr().add(offset), 0, len) };
    }
}

/// Makes this processor of the host fetch instructions anew, after code was written at another
/// linear address than that where it is executed (SDM Vol. 3A 8.1.3). Of the serializing
/// instructions (8.3), IRET needs no privilege and does not exit to a hypervisor.
pub(super) fn serialize() {
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
