//! What may interrupt a running guest from outside: signals to `vbts`, and `--timeout`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use vbts_cpu::Signals;

/// Signals that ask `vbts` to end, or to end the guest's program.
const SIGNALS: [i32; 4] = [SIGINT, SIGQUIT, SIGTERM, SIGHUP];

/// What has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A signal arrived.
    Signal(i32),
    /// The time is up.
    Timeout,
}

#[derive(Debug, Default)]
struct Pending {
    /// Bit *n*: signal *n* has arrived.
    signals: AtomicU32,
    timeout: AtomicBool,
}

/// Collects signals and the time limit, kicks the processor out of its run loop, and wakes a wait
/// for input.
#[derive(Debug)]
pub struct Alarm {
    pending: Arc<Pending>,
    kick: Arc<Signals>,
    /// Readable when something is pending.
    woken: UnixStream,
    waker: UnixStream,
    handlers: Vec<SigId>,
    limit: Option<Duration>,
    timer: Mutex<Option<(Sender<()>, JoinHandle<()>)>>,
}

impl Alarm {
    /// Catches signals from now on, until the result is dropped; `limit` counts from
    /// [`Self::start_timer`].
    ///
    /// # Errors
    /// The host is out of file descriptors.
    pub fn new(kick: Arc<Signals>, limit: Option<Duration>) -> io::Result<Self> {
        let pending = Arc::new(Pending::default());
        let (woken, waker) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        waker.set_nonblocking(true)?;
        let mut alarm = Self {
            pending,
            kick,
            woken,
            waker,
            handlers: Vec::new(),
            limit,
            timer: Mutex::new(None),
        };
        for signal in SIGNALS {
            let (pending, kick) = (alarm.pending.clone(), alarm.kick.clone());
            let handler = move || {
                pending.signals.fetch_or(1 << signal, Ordering::Relaxed);
                kick.raise(Signals::KICK);
            };
            // SAFETY: the handler only touches atomics, which is async-signal-safe.
            alarm
                .handlers
                .push(unsafe { signal_hook::low_level::register(signal, handler) }?);
            let waker = alarm.waker.try_clone()?;
            alarm
                .handlers
                .push(signal_hook::low_level::pipe::register(signal, waker)?);
        }
        Ok(alarm)
    }

    /// The time limit.
    pub fn limit(&self) -> Option<Duration> {
        self.limit
    }

    /// Lets [`Event::Timeout`] happen when the time limit, if there is one, has passed from now.
    ///
    /// # Errors
    /// The host cannot start a thread.
    pub fn start_timer(&self) -> io::Result<()> {
        let Some(limit) = self.limit else {
            return Ok(());
        };
        let (cancel, cancelled) = channel();
        let (pending, kick, waker) = (
            self.pending.clone(),
            self.kick.clone(),
            self.waker.try_clone()?,
        );
        let thread = std::thread::Builder::new()
            .name("timeout".into())
            .spawn(move || {
                if cancelled.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                    pending.timeout.store(true, Ordering::Relaxed);
                    kick.raise(Signals::KICK);
                    let _ = io::Write::write(&mut &waker, &[0]);
                }
            })?;
        if let Ok(mut timer) = self.timer.lock() {
            *timer = Some((cancel, thread));
        }
        Ok(())
    }

    /// Takes what has happened; call it until there is nothing more.
    pub fn take(&self) -> Option<Event> {
        if self.pending.timeout.swap(false, Ordering::Relaxed) {
            return Some(Event::Timeout);
        }
        let signals = self.pending.signals.load(Ordering::Relaxed);
        if signals == 0 {
            return None;
        }
        let signal = signals.trailing_zeros();
        self.pending
            .signals
            .fetch_and(!(1 << signal), Ordering::Relaxed);
        self.drain();
        Some(Event::Signal(signal as i32))
    }

    /// Whether something has happened that nobody has taken.
    pub fn is_pending(&self) -> bool {
        // What was written before the flags are looked at need not wake anybody again.
        self.drain();
        self.has_pending()
    }

    /// The same, for who does not wait for [`Self::fd`]: whoever does is woken all the same.
    pub fn has_pending(&self) -> bool {
        self.pending.timeout.load(Ordering::Relaxed)
            || self.pending.signals.load(Ordering::Relaxed) != 0
    }

    fn drain(&self) {
        let mut sink = [0; 64];
        let _ = io::Read::read(&mut &self.woken, &mut sink);
    }

    /// Becomes readable when something happens.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        for handler in self.handlers.drain(..) {
            signal_hook::low_level::unregister(handler);
        }
        if let Ok(mut timer) = self.timer.lock()
            && let Some((cancel, thread)) = timer.take()
        {
            drop(cancel);
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_kicks_the_processor() {
        let signals = Arc::new(Signals::default());
        let limit = Some(Duration::from_millis(1));
        let alarm = Alarm::new(signals.clone(), limit).unwrap();
        assert_eq!(alarm.take(), None);
        alarm.start_timer().unwrap();
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(
            alarm.fd(),
            rustix::event::PollFlags::IN,
        )];
        rustix::event::poll(&mut fds, None).unwrap();
        assert!(alarm.is_pending());
        assert_eq!(alarm.take(), Some(Event::Timeout));
        assert_eq!(signals.get() & Signals::KICK, Signals::KICK);
        assert_eq!(alarm.take(), None);
    }

    #[test]
    fn a_signal_is_an_event() {
        let signals = Arc::new(Signals::default());
        let alarm = Alarm::new(signals.clone(), None).unwrap();
        signal_hook::low_level::raise(SIGHUP).unwrap();
        assert_eq!(alarm.take(), Some(Event::Signal(SIGHUP)));
        assert_eq!(alarm.take(), None);
        assert_ne!(signals.get() & Signals::KICK, 0);
    }
}
