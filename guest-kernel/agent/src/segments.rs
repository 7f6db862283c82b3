//! The segments of a task's buffer, which this process maps so that the host can read the records
//! where the processor has written them.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::io;
use std::ptr;
use std::slice;

use libc::pid_t;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use vbts_protocol::{ErrorKind, Extents, MAX_RECORDS, RECORD_SIZE, ToHost};

use crate::failure::Failure;
use crate::pagemap::{self, Frames, PAGE, PageMap};
use crate::port::Port;
use crate::ptrace;

/// The mapped segments of one task.
#[derive(Debug)]
pub struct Segments {
    at: *mut c_void,
    len: usize,
    /// Number of segments.
    count: usize,
    /// The page frames of the mapping. The kernel does not move them.
    frames: Frames,
    /// For each segment that the host may still read: the number of the last message about it.
    taken: VecDeque<u64>,
}

impl Segments {
    /// Maps the buffer of a stopped tracee: `count` segments of `size` bytes.
    pub fn map(pid: pid_t, page_map: &PageMap, size: u64, count: u64) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::os(ErrorKind::Trace, "PTRACE_BTS_MAP", error);
        let invalid = || failed(io::ErrorKind::InvalidData.into());
        let count = usize::try_from(count).map_err(|_| invalid())?;
        let size = usize::try_from(size).map_err(|_| invalid())?;
        let len = (size.checked_next_multiple_of(PAGE))
            .and_then(|size| size.checked_mul(count))
            .ok_or_else(invalid)?;
        let file = ptrace::bts_map(pid).map_err(failed)?;
        let (read, shared) = (ProtFlags::READ, MapFlags::SHARED);
        // SAFETY: the kernel chooses the address, so no other memory is replaced.
        let at = unsafe { mmap(ptr::null_mut(), len, read, shared, file, 0) }
            .map_err(|error| failed(error.into()))?;
        let mut segments = Self {
            at,
            len,
            count,
            frames: Frames::default(),
            taken: VecDeque::new(),
        };
        // SAFETY: `len` bytes are mapped, and this process does not depend on their values, which
        // the processor changes.
        let bytes = unsafe { slice::from_raw_parts(at.cast_const().cast(), len) };
        segments.frames = page_map.frames(bytes)?;
        Ok(segments)
    }

    /// Takes the segment with records of a tracee; see [`ptrace::bts_take`]. If no segment is left,
    /// the host first reads the one that was taken first.
    pub fn take(
        &mut self,
        port: &mut Port,
        pid: pid_t,
        running: bool,
    ) -> Result<ptrace::Taken, Failure> {
        let mut back = 0;
        if self.taken.len() + 1 >= self.count
            && let Some(&messages) = self.taken.front()
        {
            port.send(&ToHost::Reuse { messages })?;
            back = 1;
        }
        let taken = ptrace::bts_take(pid, running, back)
            .map_err(|error| Failure::os(ErrorKind::Trace, "PTRACE_BTS_TAKE", error))?;
        self.taken.drain(..back);
        Ok(taken)
    }

    /// Tells the host about records of `task`. `sent` is the number of such messages so far.
    pub fn send(
        &mut self,
        port: &mut Port,
        task: u32,
        taken: ptrace::Taken,
        sent: &mut u64,
    ) -> Result<(), Failure> {
        let mut offset = usize::try_from(taken.offset).unwrap_or(usize::MAX);
        let mut left = taken.records.saturating_mul(RECORD_SIZE);
        while left > 0 {
            let len = left.min(MAX_RECORDS);
            let extents = pagemap::extents(&self.frames, offset, len);
            port.send(&ToHost::Mapped {
                task,
                extents: Extents::new(&extents)
                    .map_err(|error| Failure::new(ErrorKind::Internal, error))?,
            })?;
            *sent += 1;
            (offset, left) = (offset.saturating_add(len), left - len);
        }
        self.taken.push_back(*sent);
        Ok(())
    }

    /// Makes the host read what it may still read, so that the memory can be freed.
    pub fn finish(self, port: &mut Port) -> Result<(), Failure> {
        match self.taken.back() {
            Some(&messages) => port.send(&ToHost::Reuse { messages }),
            None => Ok(()),
        }
    }
}

impl Drop for Segments {
    fn drop(&mut self) {
        // SAFETY: this is the mapping of `map`, and nothing refers to it.
        let _ = unsafe { munmap(self.at, self.len) };
    }
}
