//! Memory for native code: the same pages mapped twice, to be written and to be executed.
//!
//! No page is writable and executable at one address. Both mappings exist from the start, so that a
//! process that can make no memory executable any more can still translate.

use std::io;
use std::ptr::{self, NonNull};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Pages that are mapped twice.
#[derive(Debug)]
pub(super) struct CodeMemory {
    /// Readable and writable.
    write: NonNull<u8>,
    /// Readable and executable.
    execute: NonNull<u8>,
    len: usize,
}

// SAFETY: the mappings belong to this value alone, and any thread can use them.
unsafe impl Send for CodeMemory {}

impl CodeMemory {
    /// Maps `len` bytes, a multiple of the page size. They are zero.
    ///
    /// # Errors
    /// The host refuses: it has no memory, or makes none executable.
    pub fn new(len: usize) -> io::Result<Self> {
        let file = memfd_create("vbts-native-code", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, len as u64)?;
        let map = |protection| -> io::Result<NonNull<u8>> {
            // SAFETY: the host chooses an address at which nothing is mapped.
            let start =
                unsafe { mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, &file, 0) }?;
            NonNull::new(start.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
        };
        let write = map(ProtFlags::READ | ProtFlags::WRITE)?;
        match map(ProtFlags::READ | ProtFlags::EXEC) {
            Ok(execute) => Ok(Self {
                write,
                execute,
                len,
            }),
            Err(e) => {
                // SAFETY: nothing else knows of this mapping.
                unsafe { munmap(write.as_ptr().cast(), len) }?;
                Err(e)
            }
        }
    }

    /// Address at which the byte at `offset` is executed.
    pub fn address(&self, offset: usize) -> u64 {
        self.execute.as_ptr() as u64 + offset as u64
    }

    /// Writes `bytes` at `offset`.
    ///
    /// # Panics
    /// They do not lie in the memory: an error of the caller, which would otherwise be harmful.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset <= self.len && bytes.len() <= self.len - offset);
        // SAFETY: the bytes lie in the mapping. No reference to it exists; `bytes` is elsewhere.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.write.as_ptr().add(offset), bytes.len());
        }
    }

    /// Sets `len` bytes from `offset` on to zero.
    pub fn clear(&mut self, offset: usize, len: usize) {
        assert!(offset <= self.len && len <= self.len - offset);
        // SAFETY: the bytes lie in the mapping.
        unsafe { ptr::write_bytes(self.write.as_ptr().add(offset), 0, len) };
    }
}

impl Drop for CodeMemory {
    fn drop(&mut self) {
        for start in [self.write, self.execute] {
            // SAFETY: nothing uses the mappings any more.
            let _ = unsafe { munmap(start.as_ptr().cast(), self.len) };
        }
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
