//! How other threads get the attention of a vCPU's thread, which may be in KVM_RUN or asleep.
//!
//! A signal ends KVM_RUN. One that comes just before KVM_RUN would be in vain, so its handler also
//! sets `immediate_exit` in the vCPU's `kvm_run` (Documentation/virt/kvm/api.rst, 5).

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

/// Installs the handler of the signal, for the process, once and for all.
///
/// # Errors
/// The host refuses.
pub fn install_handler() -> io::Result<()> {
    let handler = || {
        let flag = IMMEDIATE_EXIT.get();
        if !flag.is_null() {
            // SAFETY: it points into the `kvm_run` of the vCPU that this thread runs now; see
            // `Doorbell::listen`.
            unsafe { write_volatile(flag, 1) };
        }
    };
    // SAFETY: the handler touches a thread-local that needs no initialisation, and memory.
    unsafe { signal_hook::low_level::register(signal(), handler) }.map(drop)
}

/// Who is to be woken.
#[derive(Debug)]
struct Listener {
    thread: Thread,
    id: libc::pthread_t,
}

/// One end for those who ring, and one for the vCPU's thread.
#[derive(Debug, Default)]
pub struct Doorbell {
    listener: Mutex<Option<Listener>>,
    in_guest: AtomicBool,
}

impl Doorbell {
    /// A doorbell that rings whenever a line of `signals` is raised.
    pub fn new(signals: &Signals) -> Arc<Self> {
        let doorbell = Arc::new(Self::default());
        signals.set_wake(Box::new(Bell(doorbell.clone())));
        doorbell
    }

    /// This thread is the one to wake, until the result is dropped, which must happen before its
    /// vCPU goes. `immediate_exit` is that of the vCPU.
    pub fn listen(self: &Arc<Self>, immediate_exit: *mut u8) -> Listening {
        IMMEDIATE_EXIT.set(immediate_exit);
        // SAFETY: it has no preconditions.
        let id = unsafe { libc::pthread_self() };
        let thread = std::thread::current();
        *self.lock() = Some(Listener { thread, id });
        Listening(self.clone())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Listener>> {
        self.listener
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// About to enter the guest: from now on the signal is sent. What was raised before has to be
    /// looked for after this.
    pub fn enter(&self) {
        self.in_guest.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Back from the guest.
    pub fn leave(&self) {
        self.in_guest.store(false, Ordering::SeqCst);
    }
}

/// The time in which a thread listens.
#[derive(Debug)]
pub struct Listening(Arc<Doorbell>);

impl Drop for Listening {
    fn drop(&mut self) {
        *self.0.lock() = None;
        IMMEDIATE_EXIT.set(null_mut());
    }
}

/// The button.
struct Bell(Arc<Doorbell>);

impl Wake for Bell {
    fn wake(&self) {
        let listener = self.0.lock();
        let Some(listener) = listener.as_ref() else {
            return;
        };
        if self.0.in_guest.load(Ordering::SeqCst) {
            // SAFETY: the thread lives: it takes itself out of `listener` before it ends.
            unsafe { libc::pthread_kill(listener.id, signal()) };
        }
        listener.thread.unpark();
    }
}
