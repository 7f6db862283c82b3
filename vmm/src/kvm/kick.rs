//! Kicks a vCPU's thread out of KVM_RUN, or wakes it, from another thread.
//!
//! A signal ends KVM_RUN. A signal that arrives just before KVM_RUN would have no effect, so its
//! handler also sets `immediate_exit` in the vCPU's `kvm_run` (Documentation/virt/kvm/api.rst, 5).

use std::cell::Cell;
use std::io;
use std::ptr::{null_mut, write_volatile};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::thread::Thread;

use vbts_cpu::Signals;
use vbts_cpu::processor::platform::Wake;

thread_local! {
    /// `immediate_exit` of the vCPU that this thread runs.
    static IMMEDIATE_EXIT: Cell<*mut u8> = const { Cell::new(null_mut()) };
}

/// The signal that ends KVM_RUN.
fn signal() -> i32 {
    libc::SIGRTMIN()
}

/// Installs the handler of the signal, for the process, once.
///
/// # Errors
/// The host rejects the handler.
pub fn install_handler() -> io::Result<()> {
    let handler = || {
        let flag = IMMEDIATE_EXIT.get();
        if !flag.is_null() {
            // SAFETY: it points into the `kvm_run` of the vCPU that this thread runs now; see
            // `VcpuKick::register_thread`.
            unsafe { write_volatile(flag, 1) };
        }
    };
    // SAFETY: the handler touches a thread-local that needs no initialisation, and memory.
    unsafe { signal_hook::low_level::register(signal(), handler) }.map(drop)
}

/// The thread that runs the vCPU.
#[derive(Debug)]
struct Runner {
    thread: Thread,
    id: libc::pthread_t,
}

/// The kick of one vCPU: [`Signals`] sends it, the vCPU's thread receives it.
#[derive(Debug, Default)]
pub struct VcpuKick {
    runner: Mutex<Option<Runner>>,
    in_guest: AtomicBool,
}

impl VcpuKick {
    /// Creates a kick that is sent whenever a line of `signals` is raised.
    pub fn new(signals: &Signals) -> Arc<Self> {
        let kick = Arc::new(Self::default());
        signals.set_wake(Box::new(KickOnRaise(kick.clone())));
        kick
    }

    /// Registers the calling thread as the one that runs the vCPU, until the result is dropped.
    ///
    /// # Safety
    /// `immediate_exit` points into the vCPU's `kvm_run`, or is null if KVM has no such vCPU. The
    /// result is dropped by the same thread, and before the vCPU.
    pub unsafe fn register_thread(self: &Arc<Self>, immediate_exit: *mut u8) -> ThreadRegistration {
        IMMEDIATE_EXIT.set(immediate_exit);
        // SAFETY: it has no preconditions.
        let id = unsafe { libc::pthread_self() };
        let thread = std::thread::current();
        *self.lock() = Some(Runner { thread, id });
        ThreadRegistration(self.clone())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Runner>> {
        self.runner
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Called before the thread enters the guest: from now on a raised line sends the signal. The
    /// caller must read the lines after this call, because lines raised before it sent no signal.
    pub fn enter(&self) {
        self.in_guest.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Called after the thread has left the guest: a raised line sends no signal from now on.
    pub fn leave(&self) {
        self.in_guest.store(false, Ordering::SeqCst);
    }
}

/// Registration of a thread; dropping it ends the registration.
#[derive(Debug)]
pub struct ThreadRegistration(Arc<VcpuKick>);

impl Drop for ThreadRegistration {
    fn drop(&mut self) {
        *self.0.lock() = None;
        IMMEDIATE_EXIT.set(null_mut());
    }
}

/// Sends the kick when a line is raised.
struct KickOnRaise(Arc<VcpuKick>);

impl Wake for KickOnRaise {
    fn wake(&self) {
        let runner = self.0.lock();
        let Some(runner) = runner.as_ref() else {
            return;
        };
        if self.0.in_guest.load(Ordering::SeqCst) {
            // SAFETY: the thread has not ended: it removes itself from `runner` before it ends.
            unsafe { libc::pthread_kill(runner.id, signal()) };
        }
        runner.thread.unpark();
    }
}
