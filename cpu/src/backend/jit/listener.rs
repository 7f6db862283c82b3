//! Tells a listener which native code is where.

use std::sync::{Arc, Mutex, PoisonError};

/// What a piece of native code is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NativePart {
    /// What all blocks share.
    Routines,
    /// What of a block runs often.
    Block {
        /// The guest's RIP.
        rip: u64,
        /// The CPL at which it was translated.
        cpl: u8,
    },
    /// What of a block runs rarely.
    Rare {
        /// As for [`Self::Block`].
        rip: u64,
        /// As for [`Self::Block`].
        cpl: u8,
    },
}

/// Native code that has been made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NativeCode {
    /// The host's address at which it is executed.
    pub address: u64,
    /// Its length in bytes.
    pub len: usize,
    /// What it is.
    pub part: NativePart,
}

/// Is told of native code.
pub trait NativeListener: Send {
    /// `code` is about to be executed. It takes the place of all code that was at its address.
    fn made(&mut self, code: NativeCode);
}

/// A listener that the processors of a machine share, or none.
#[derive(Default)]
pub(super) struct Listener(pub Option<Arc<Mutex<dyn NativeListener>>>);

impl Listener {
    /// Tells of code, if any has been made.
    pub(super) fn made(&self, address: u64, len: usize, part: NativePart) {
        if let Some(listener) = self.0.as_ref().filter(|_| len > 0) {
            let mut listener = listener.lock().unwrap_or_else(PoisonError::into_inner);
            listener.made(NativeCode { address, len, part });
        }
    }
}
