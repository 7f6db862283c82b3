//! Events from outside that interrupt a running guest: signals to `vbts`, and `--timeout`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use signal_hook::SigId;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH};
use vbts_cpu::Signals;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};
use vmm_sys_util::signal::{block_signal, clear_signal, unblock_signal};

use super::ignored_signals::is_ignored;
use super::watchdog::{LastResort, Rescue, Watchdog, WatchedProcessor};

/// Signals that ask `vbts` to end the run.
const SIGNALS: [i32; 4] = [SIGINT, SIGQUIT, SIGTERM, SIGHUP];

/// As long as it lives, the signals that an [`Alarm`] catches wait. So none arrives between the
/// start of a child and the handler that ends the child, even if the signals were ignored before.
#[derive(Debug)]
pub struct HeldSignals(Vec<i32>);

impl HeldSignals {
    /// Blocks the signals in this thread. One that is blocked already stays so.
    pub fn hold() -> Self {
        let held = SIGNALS
            .into_iter()
            .filter(|signal| block_signal(*signal).is_ok());
        Self(held.collect())
    }

    /// Forgets that `signal` has arrived, if it has: it was for another process of the group.
    pub fn forget(&self, signal: i32) {
        // It fails for a signal that does not exist.
        let _ = clear_signal(signal);
    }
}

impl Drop for HeldSignals {
    fn drop(&mut self) {
        for signal in &self.0 {
            // These are valid signals, so it does not fail.
            let _ = unblock_signal(*signal);
        }
    }
}

/// An event from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A signal arrived.
    Signal(i32),
    /// The time limit has passed.
    Timeout,
}

/// Events that have not been taken.
#[derive(Debug, Default)]
struct Pending {
    /// Bit *n* is signal *n*.
    signals: AtomicU32,
    timeout: AtomicBool,
    /// The terminal has another size. Nothing that waits has to end for it.
    resized: AtomicBool,
    /// The terminal asks the process to stop.
    suspended: AtomicBool,
    /// The process was continued: it may be in the foreground now.
    continued: AtomicBool,
    /// The last signal that was taken.
    last_signal: AtomicU32,
}

/// The thread that waits for the time limit. Each message sets the limit again.
type Timer = (Sender<Option<Duration>>, JoinHandle<()>);

/// Collects signals and the time limit, makes the processor leave its run loop, and ends waits on
/// [`Self::fd`].
///
/// Signals are caught with handlers, not read from a descriptor: while the guest runs on virtual
/// time nothing reads one. For the same reason a thread waits for the time limit.
#[derive(Debug)]
pub struct Alarm {
    pending: Arc<Pending>,
    kick: Arc<Signals>,
    /// Readable when an event is pending.
    notice: EventFd,
    handlers: Mutex<Vec<SigId>>,
    limit: Option<Duration>,
    timer: Mutex<Option<Timer>>,
    watchdog: Watchdog,
}

impl Alarm {
    /// Catches SIGINT, SIGQUIT, SIGTERM and SIGHUP from now on, until the result is dropped, except
    /// those that the process ignores, and raises the kick line of `kick` at each event. `limit`
    /// counts from [`Self::start_timer`].
    ///
    /// # Errors
    /// The host is out of file descriptors.
    pub fn new(kick: Arc<Signals>, limit: Option<Duration>) -> io::Result<Self> {
        Self::catching(&SIGNALS, kick, limit)
    }

    /// As [`Self::new`], with the signals to catch. A signal is an event of every `Alarm` in the
    /// process that catches it, so tests that run in parallel must not share signals.
    pub(super) fn catching(
        signals: &[i32],
        kick: Arc<Signals>,
        limit: Option<Duration>,
    ) -> io::Result<Self> {
        let pending = Arc::new(Pending::default());
        let notice = EventFd::new(EFD_NONBLOCK | libc::EFD_CLOEXEC)?;
        let alarm = Self {
            pending,
            kick,
            notice,
            handlers: Mutex::default(),
            limit,
            timer: Mutex::new(None),
            watchdog: Watchdog::new()?,
        };
        for &signal in signals {
            let asker = alarm.watchdog.asker();
            alarm.on_signal(signal, move |pending| {
                pending.signals.fetch_or(1 << signal, Ordering::Relaxed);
                asker.ask(Event::Signal(signal));
            })?;
        }
        Ok(alarm)
    }

    /// Also wakes the machine when the terminal gets another size, asks the process to stop, or
    /// when a shell continues it.
    ///
    /// # Errors
    /// The host refuses a handler of a signal.
    pub fn watch_terminal(&self) -> io::Result<()> {
        self.on_signal(SIGWINCH, |pending| {
            pending.resized.store(true, Ordering::Relaxed);
        })?;
        self.on_signal(SIGTSTP, |pending| {
            pending.suspended.store(true, Ordering::Relaxed);
        })?;
        self.on_signal(SIGCONT, |pending| {
            pending.continued.store(true, Ordering::Relaxed);
        })
    }

    /// Notes `signal` with `note`, which only touches atomics and calls write(2). Interrupts the
    /// guest. An ignored signal stays ignored.
    fn on_signal(
        &self,
        signal: i32,
        note: impl Fn(&Pending) + Send + Sync + 'static,
    ) -> io::Result<()> {
        if is_ignored(signal) {
            return Ok(());
        }
        let (pending, kick) = (self.pending.clone(), self.kick.clone());
        let notice = self.notice.try_clone()?;
        let handler = move || {
            note(&pending);
            kick.raise(Signals::KICK);
            let _ = notice.write(1);
        };
        // SAFETY: the handler only touches atomics and calls write(2), which are
        // async-signal-safe. The write fails only if the counter is full, which takes 2^64
        // signals, so errno does not change.
        let id = unsafe { signal_hook::low_level::register(signal, handler) }?;
        self.handlers().push(id);
        Ok(())
    }

    fn handlers(&self) -> MutexGuard<'_, Vec<SigId>> {
        self.handlers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the terminal has got another size since the last call.
    pub fn take_resized(&self) -> bool {
        take(&self.pending.resized)
    }

    /// Returns whether the terminal has asked the process to stop since the last call.
    pub fn take_suspended(&self) -> bool {
        take(&self.pending.suspended)
    }

    /// Returns whether the process was continued since the last call.
    pub fn take_continued(&self) -> bool {
        take(&self.pending.continued)
    }

    /// The time limit.
    pub fn limit(&self) -> Option<Duration> {
        self.limit
    }

    /// Has `rescue` end the process if the thread that has called [`Self::start_timer`] neither
    /// goes on nor ends after an event: if it uses a second of processor time, or if a call of the
    /// host blocks it for ten seconds. The same holds for [`Self::watch_processor`]. If `rescue`
    /// has not ended the process after 20 seconds, `last_resort` does. The first
    /// [`Self::end_run`] drops both.
    pub fn set_rescue(&self, rescue: Rescue, last_resort: LastResort) {
        self.watchdog.set_rescue(rescue, last_resort);
    }

    /// Notes that the run goes on after all events so far.
    pub fn go_on(&self) {
        self.watchdog.answer();
        // One may have become pending since the last was taken.
        if self.pending.timeout.load(Ordering::Relaxed) {
            self.watchdog.asker().ask(Event::Timeout);
        } else if let signals @ 1.. = self.pending.signals.load(Ordering::Relaxed) {
            let signal = signals.trailing_zeros().cast_signed();
            self.watchdog.asker().ask(Event::Signal(signal));
        }
    }

    /// Watches the calling thread, which runs the processor of `signals`, until the result is
    /// dropped. During an event it is kicked, and has to answer.
    ///
    /// # Errors
    /// The host refuses the clock of the thread.
    pub fn watch_processor(&self, signals: Arc<Signals>) -> io::Result<WatchedProcessor> {
        self.watchdog.watch_processor(signals)
    }

    /// Notes that a thread which waits for another one sees that make progress.
    pub fn note_progress(&self) {
        self.watchdog.note_progress();
    }

    /// Notes that the run has ended. Does not return if a rescue has begun.
    pub fn end_run(&self) {
        self.watchdog.stop_watching();
    }

    /// Lets [`Event::Timeout`] happen when the time limit, if there is one, has passed from now.
    /// Only the first call starts threads. The calling thread has to answer events.
    ///
    /// # Errors
    /// The host cannot start a thread.
    pub fn start_timer(&self) -> io::Result<()> {
        self.watchdog.watch()?;
        self.pending.timeout.store(false, Ordering::Relaxed);
        let mut timer = self.timer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((set, _)) = &*timer {
            // The thread ends only after the sender is dropped.
            let _ = set.send(self.limit);
            return Ok(());
        }
        let (set, limits) = channel();
        let (pending, kick, notice) = (
            self.pending.clone(),
            self.kick.clone(),
            self.notice.try_clone()?,
        );
        let (mut limit, asker) = (self.limit, self.watchdog.asker());
        let wait = move || {
            loop {
                let changed = match limit {
                    Some(limit) => limits.recv_timeout(limit),
                    None => limits.recv().map_err(RecvTimeoutError::from),
                };
                match changed {
                    Ok(new_limit) => limit = new_limit,
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        limit = None;
                        pending.timeout.store(true, Ordering::Relaxed);
                        asker.ask(Event::Timeout);
                        kick.raise(Signals::KICK);
                        let _ = notice.write(1);
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("timeout".into());
        *timer = Some((set, thread.spawn(wait)?));
        Ok(())
    }

    /// Lets [`Event::Timeout`] happen `limit` from now, and not at an earlier limit; `None` is
    /// never. The timer has been started.
    pub fn set_timer(&self, limit: Option<Duration>) {
        self.pending.timeout.store(false, Ordering::Relaxed);
        if let Ok(timer) = self.timer.lock()
            && let Some((set, _)) = &*timer
        {
            let _ = set.send(limit);
        }
    }

    /// Takes the next event. Call it until it returns `None`: then [`Self::fd`] is not readable
    /// until the next event.
    pub fn take(&self) -> Option<Event> {
        self.take_pending().or_else(|| {
            self.drain();
            // An event may have become pending before the descriptor was drained.
            self.take_pending()
        })
    }

    fn take_pending(&self) -> Option<Event> {
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
        self.pending.last_signal.store(signal, Ordering::Relaxed);
        Some(Event::Signal(signal.cast_signed()))
    }

    /// The event because of which a wait ended: a pending one, which is taken, or else the last
    /// signal.
    pub fn cause(&self) -> Option<Event> {
        let last = || match self.pending.last_signal.load(Ordering::Relaxed) {
            0 => None,
            signal => Some(Event::Signal(signal.cast_signed())),
        };
        self.take().or_else(last)
    }

    /// Returns whether an event is pending. Unless one is, [`Self::fd`] is not readable afterwards
    /// until the next event.
    pub fn is_pending(&self) -> bool {
        // This precedes the reads of the flags: a later event makes the descriptor readable again.
        self.drain();
        self.has_pending()
    }

    /// Returns whether an event is pending, and leaves [`Self::fd`] readable for a thread that
    /// waits for it.
    pub fn has_pending(&self) -> bool {
        self.pending.timeout.load(Ordering::Relaxed)
            || self.pending.signals.load(Ordering::Relaxed) != 0
    }

    fn drain(&self) {
        let _ = self.notice.read();
    }

    /// Becomes readable when an event happens.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: `notice` keeps the descriptor open as long as `self` is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.notice.as_raw_fd()) }
    }
}

/// Takes a flag, which is rarely set.
fn take(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed) && flag.swap(false, Ordering::Relaxed)
}

impl Drop for Alarm {
    fn drop(&mut self) {
        for handler in self.handlers().drain(..) {
            signal_hook::low_level::unregister(handler);
        }
        if let Ok(mut timer) = self.timer.lock()
            && let Some((set, thread)) = timer.take()
        {
            drop(set);
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use signal_hook::consts::SIGUSR1;

    fn is_readable(alarm: &Alarm) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(alarm.fd(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
    }

    #[test]
    fn a_timeout_interrupts_the_processor() {
        let signals = Arc::new(Signals::default());
        let limit = Some(Duration::from_millis(1));
        let alarm = Alarm::catching(&[], signals.clone(), limit).unwrap();
        assert_eq!(alarm.take(), None);
        alarm.start_timer().unwrap();
        poll(
            &mut [PollFd::from_borrowed_fd(alarm.fd(), PollFlags::IN)],
            None,
        )
        .unwrap();
        assert!(alarm.is_pending());
        assert!(!is_readable(&alarm));
        assert_eq!(alarm.take(), Some(Event::Timeout));
        assert_eq!(signals.get() & Signals::KICK, Signals::KICK);
        assert_eq!(alarm.take(), None);
    }

    #[test]
    fn the_time_limit_can_start_again() {
        let limit = Some(Duration::from_millis(1));
        let alarm = Alarm::catching(&[], Arc::default(), limit).unwrap();
        for _ in 0..3 {
            alarm.start_timer().unwrap();
            let mut fds = [PollFd::from_borrowed_fd(alarm.fd(), PollFlags::IN)];
            poll(&mut fds, None).unwrap();
            assert_eq!(alarm.take(), Some(Event::Timeout));
            assert_eq!(alarm.take(), None);
        }
    }

    #[test]
    fn the_timer_can_be_set_again() {
        for limit in [None, Some(Duration::from_millis(1))] {
            let alarm = Alarm::catching(&[], Arc::default(), limit).unwrap();
            alarm.start_timer().unwrap();
            let wait = || {
                let fd = PollFd::from_borrowed_fd(alarm.fd(), PollFlags::IN);
                poll(&mut [fd], None).unwrap();
                let event = alarm.take();
                assert_eq!(alarm.take(), None);
                event
            };
            if limit.is_some() {
                assert_eq!(wait(), Some(Event::Timeout));
            }
            alarm.set_timer(Some(Duration::from_secs(1000)));
            alarm.set_timer(Some(Duration::from_millis(1)));
            assert_eq!(wait(), Some(Event::Timeout));
        }
    }

    #[test]
    fn a_signal_is_an_event() {
        let signals = Arc::new(Signals::default());
        // No other alarm catches this signal.
        let alarm = Alarm::catching(&[SIGUSR1], signals.clone(), None).unwrap();
        signal_hook::low_level::raise(SIGUSR1).unwrap();
        assert!(is_readable(&alarm));
        assert_eq!(alarm.cause(), Some(Event::Signal(SIGUSR1)));
        assert_eq!(alarm.take(), None);
        assert_eq!(alarm.cause(), Some(Event::Signal(SIGUSR1)));
        assert!(!is_readable(&alarm));
        assert_ne!(signals.get() & Signals::KICK, 0);
    }
}
