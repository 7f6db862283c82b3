//! The interface between a processor and the machine around it.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The machine as one logical processor sees it: the physical bus behind RAM, and its local APIC.
///
/// `now` is the caller's time in nanoseconds, which is also its time-stamp counter.
/// Methods take `&self`: on a machine with several processors they are called from several threads.
pub trait Platform: Send + Sync {
    /// Reads `data.len()` (1 to 8) bytes at guest-physical address `gpa`, which is not RAM.
    fn mmio_read(&self, now: u64, gpa: u64, data: &mut [u8]);
    /// Writes `data` (1 to 8 bytes) at guest-physical address `gpa`, which is not RAM.
    fn mmio_write(&self, now: u64, gpa: u64, data: &[u8]);
    /// Reads 1, 2 or 4 bytes from an I/O port.
    fn pio_read(&self, now: u64, port: u16, data: &mut [u8]);
    /// Writes 1, 2 or 4 bytes to an I/O port.
    fn pio_write(&self, now: u64, port: u16, data: &[u8]);

    /// Acknowledges the interrupt that [`Signals::INTR`] announced. Returns its vector, or `None`
    /// if it is no longer pending (a spurious wake-up).
    fn acknowledge_interrupt(&self, now: u64) -> Option<u8>;
    /// Takes the non-maskable interrupt that [`Signals::NMI`] announced. Returns whether it was
    /// still pending.
    fn take_nmi(&self) -> bool;
    /// Returns a non-maskable interrupt that was taken and not delivered: it is pending again.
    fn give_back_nmi(&self);
    /// Takes the INIT or start-up IPI that [`Signals::INIT`] announced, if it is still pending. A
    /// machine with one processor has no sender.
    fn take_startup(&self) -> Option<Startup> {
        None
    }
    /// The performance-monitoring interrupt: delivered as the local APIC's LVTPC entry says.
    fn performance_interrupt(&self, now: u64);

    /// The task-priority class: bits 3:0 of CR8.
    fn cr8(&self) -> u64;
    /// Writes CR8; the value has only bits 3:0 set.
    fn set_cr8(&self, now: u64, value: u64);
    /// Reads an MSR that belongs to the local APIC (0x1B, 0x6E0, 0x800-0x8FF). `None`: it has no
    /// such MSR (#GP).
    fn apic_rdmsr(&self, now: u64, msr: u32) -> Option<u64>;
    /// Writes an MSR that belongs to the local APIC. `None`: no such MSR or a reserved bit is set
    /// (#GP).
    fn apic_wrmsr(&self, now: u64, msr: u32, value: u64) -> Option<()>;
}

/// An event that restarts a processor (SDM Vol. 3A 8.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Startup {
    /// INIT: the processor then waits for a start-up IPI.
    Init,
    /// A start-up IPI with its vector: the page of base memory that the processor starts at.
    StartUp(u8),
}

/// Wakes a processor that does not poll its [`Signals`]: one that KVM runs, or one that waits.
pub trait Wake: Send + Sync {
    /// Makes the processor check its signals. Called from any thread.
    fn wake(&self);
}

/// Lines into a processor. Any part of the machine raises them, from any thread. The processor
/// checks them once a block.
///
/// # Example
///
/// ```
/// use vbts_cpu::Signals;
///
/// let signals = Signals::default();
/// signals.raise(Signals::INTR | Signals::KICK);
/// signals.lower(Signals::INTR);
/// assert_eq!(signals.get(), Signals::KICK);
/// ```
#[derive(Default)]
pub struct Signals {
    lines: AtomicU32,
    wake: OnceLock<Box<dyn Wake>>,
}

impl Signals {
    /// A maskable interrupt is deliverable (the INTR pin, after the local APIC's priority logic).
    pub const INTR: u32 = 1 << 0;
    /// A non-maskable interrupt is pending.
    pub const NMI: u32 = 1 << 1;
    /// The VMM requests that the processor returns from its run loop.
    pub const KICK: u32 = 1 << 2;
    /// An INIT or start-up IPI waits for the processor.
    pub const INIT: u32 = 1 << 3;
    /// A device has written guest memory: the VMM has to invalidate the software CPU's caches of
    /// it. This line does not end HLT.
    pub const DMA: u32 = 1 << 4;

    /// Calls `wake` whenever a line changes from lowered to raised.
    pub fn set_wake(&self, wake: Box<dyn Wake>) {
        // Only the first call has an effect: a processor waits in one place.
        let _ = self.wake.set(wake);
    }

    /// Raises the lines in `bits`.
    pub fn raise(&self, bits: u32) {
        // Sequentially consistent: a processor announces that it is about to wait, and then checks
        // the lines once more.
        let before = self.lines.fetch_or(bits, Ordering::SeqCst);
        if before & bits != bits
            && let Some(wake) = self.wake.get()
        {
            wake.wake();
        }
    }

    /// Raises the lines in `bits` without a wake-up, for work that can wait until the processor
    /// runs.
    pub fn raise_quietly(&self, bits: u32) {
        self.lines.fetch_or(bits, Ordering::Release);
    }

    /// Lowers the lines in `bits`.
    pub fn lower(&self, bits: u32) {
        self.lines.fetch_and(!bits, Ordering::Release);
    }

    /// Raises or lowers the lines in `bits`.
    pub fn set(&self, bits: u32, level: bool) {
        if level {
            self.raise(bits)
        } else {
            self.lower(bits)
        }
    }

    /// The lines that are raised.
    #[inline(always)]
    pub fn get(&self) -> u32 {
        self.lines.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Signals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signals({:#x})", self.get())
    }
}
