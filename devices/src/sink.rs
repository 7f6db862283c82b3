//! The destination of the bytes that a guest sends.

use crate::bus::{Shared, lock};

/// Takes bytes that a guest sends. It is called while the device is locked, so it must not lock the
/// device.
pub trait ByteSink: Send {
    /// Takes bytes from the front of `bytes`. Returns how many. A device that can wait keeps the
    /// rest and offers it again. The serial port cannot wait, and drops it.
    fn put(&mut self, bytes: &[u8]) -> usize;
}

impl<T: ByteSink + ?Sized> ByteSink for Box<T> {
    fn put(&mut self, bytes: &[u8]) -> usize {
        (**self).put(bytes)
    }
}

impl<T: ByteSink> ByteSink for Shared<T> {
    fn put(&mut self, bytes: &[u8]) -> usize {
        lock(self).put(bytes)
    }
}

/// A bounded buffer for output.
#[derive(Debug)]
pub struct OutputBuffer {
    bytes: Vec<u8>,
    limit: usize,
}

impl OutputBuffer {
    /// An empty buffer with room for `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            bytes: Vec::new(),
            limit,
        }
    }

    /// Takes all bytes out of the buffer.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

impl ByteSink for OutputBuffer {
    fn put(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.limit.saturating_sub(self.bytes.len()));
        self.bytes.extend_from_slice(&bytes[..taken]);
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_buffer_takes_no_more() {
        let mut b = OutputBuffer::new(4);
        assert_eq!(b.put(b"abc"), 3);
        assert_eq!(b.put(b"def"), 1);
        assert_eq!(b.put(b"ef"), 0);
        assert_eq!(b.take(), b"abcd");
        assert_eq!(b.put(b"ef"), 2);
    }
}
