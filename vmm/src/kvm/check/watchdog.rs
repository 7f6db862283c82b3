//! A thread that interrupts KVM_RUN when a guest of the checks does not end in time.

use std::io;
use std::marker::PhantomData;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use signal_hook::SigId;

/// The signal that ends KVM_RUN, as it does for the accelerator.
fn signal() -> i32 {
    libc::SIGRTMIN()
}

/// Sends signals to the thread that created it while a deadline is over.
#[derive(Debug)]
pub struct Watchdog {
    handler: SigId,
    /// Sends the deadline, or `None`.
    deadlines: Option<Sender<Option<Instant>>>,
    thread: Option<JoinHandle<()>>,
    /// The watchdog stays with the thread that created it, so that it ends before the thread does.
    _not_send: PhantomData<*const ()>,
}

impl Watchdog {
    /// Creates a watchdog for the calling thread.
    ///
    /// # Errors
    /// The host cannot start a thread or install a signal handler.
    pub fn new() -> io::Result<Self> {
        // SAFETY: a handler that does nothing is async-signal-safe.
        let handler = unsafe { signal_hook::low_level::register(signal(), || {}) }?;
        // SAFETY: pthread_self has no preconditions.
        let watched = unsafe { libc::pthread_self() };
        let (sender, receiver) = channel();
        let thread = std::thread::Builder::new()
            .name("watchdog".into())
            .spawn(move || watch(watched, &receiver))?;
        Ok(Self {
            handler,
            deadlines: Some(sender),
            thread: Some(thread),
            _not_send: PhantomData,
        })
    }

    /// Sends signals from `deadline` on, or none.
    pub fn set(&self, deadline: Option<Instant>) {
        if let Some(deadlines) = &self.deadlines {
            // The thread lives as long as the sender.
            let _ = deadlines.send(deadline);
        }
    }
}

fn watch(watched: libc::pthread_t, deadlines: &Receiver<Option<Instant>>) {
    // A signal that arrives just before KVM_RUN has no effect, so another one follows.
    const AGAIN: Duration = Duration::from_millis(1);
    let mut deadline = None;
    loop {
        let next = match deadline {
            None => deadlines.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => {
                let left = Instant::saturating_duration_since(&at, Instant::now());
                deadlines.recv_timeout(left.max(AGAIN))
            }
        };
        match next {
            Ok(new) => deadline = new,
            Err(RecvTimeoutError::Timeout) => {
                // SAFETY: the watched thread waits for this one in `Watchdog::drop` before it ends.
                unsafe { libc::pthread_kill(watched, signal()) };
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.deadlines = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        signal_hook::low_level::unregister(self.handler);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_interrupted_at_the_deadline() {
        let watchdog = Watchdog::new().unwrap();
        let long = libc::timespec {
            tv_sec: 60,
            tv_nsec: 0,
        };
        watchdog.set(Some(Instant::now() + Duration::from_millis(2)));
        // SAFETY: the request is a timespec, and the pointer for the remainder may be null.
        let slept = unsafe { libc::nanosleep(&raw const long, std::ptr::null_mut()) };
        assert_eq!(slept, -1);
        assert_eq!(
            io::Error::last_os_error().kind(),
            io::ErrorKind::Interrupted
        );
    }
}
