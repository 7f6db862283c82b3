//! Ends the process if the run loop does not answer an event of the [`Alarm`](super::Alarm).
//!
//! An event is answered when the run goes on or has ended. A run loop that is stuck, by an error of
//! this program or in a call of the host, does neither. It may hold locks, so that the thread of
//! the watchdog takes none of its. Only time in which the process could run counts: the thread adds
//! up its own waits, which neither a stopped process nor a suspended host completes.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::alarm::Event;

/// Processor time that a thread may use before it answers.
const MAX_USED: Duration = Duration::from_secs(1);
/// Time for which a call of the host may block the thread before it answers.
const MAX_BLOCKED: Duration = Duration::from_secs(10);
/// Time between two looks at a thread that has not answered.
const TICK: Duration = Duration::from_millis(100);

/// Ends the process in place of the run loop.
pub type Rescue = Box<dyn FnOnce(Event) + Send>;

/// The clock of a thread's processor time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ThreadClock(libc::clockid_t);

impl ThreadClock {
    /// The clock of the calling thread.
    fn of_this_thread() -> io::Result<Self> {
        let mut clock = 0;
        // SAFETY: the call writes a number to `clock`.
        match unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut clock) } {
            0 => Ok(Self(clock)),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// The processor time that the thread has used; zero if it has ended.
    fn now(self) -> Duration {
        let mut now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the call writes a time to `now`, or fails.
        match unsafe { libc::clock_gettime(self.0, &raw mut now) } {
            0 => Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32),
            _ => Duration::ZERO,
        }
    }
}

/// Decides whether a thread that was asked is stuck.
#[derive(Debug)]
struct Patience {
    /// Processor time of the thread when it was asked, and at the last look.
    asked: Duration,
    last: Duration,
    /// Time for which it has been blocked in one call.
    blocked: Duration,
}

impl Patience {
    fn new(used: Duration) -> Self {
        Self {
            asked: used,
            last: used,
            blocked: Duration::ZERO,
        }
    }

    /// Looks at the processor time of the thread, `tick` after the last look. Returns whether the
    /// thread is stuck.
    fn look(&mut self, used: Duration, tick: Duration) -> bool {
        self.blocked = match used == self.last {
            true => self.blocked + tick,
            false => Duration::ZERO,
        };
        self.last = used;
        used.saturating_sub(self.asked) >= MAX_USED || self.blocked >= MAX_BLOCKED
    }
}

/// [`Shared::event`] without an event, and that of the time limit. Others are signals.
const NO_EVENT: i32 = 0;
const TIMEOUT: i32 = -1;
/// [`Shared::clock`] while no thread is watched: CLOCK_REALTIME, which is the clock of none.
const NO_CLOCK: i32 = 0;

#[derive(Debug)]
struct Shared {
    /// The event that has not been answered.
    event: AtomicI32,
    /// The clock of the thread that runs the guest.
    clock: AtomicI32,
    /// Advanced when the thread answers, or waits for another one that works.
    progress: AtomicU64,
    ended: AtomicBool,
    /// Readable when there is an event.
    notice: EventFd,
}

/// Asks the watchdog to watch, from a signal handler, too.
#[derive(Debug, Clone)]
pub(super) struct Asker(Arc<Shared>);

impl Asker {
    /// Notes that `event` has to be answered. It only touches atomics and calls write(2).
    pub fn ask(&self, event: Event) {
        let event = match event {
            Event::Signal(signal) => signal,
            Event::Timeout => TIMEOUT,
        };
        self.0.event.store(event, Ordering::SeqCst);
        let _ = self.0.notice.write(1);
    }
}

/// The watchdog of a run.
pub(super) struct Watchdog {
    shared: Arc<Shared>,
    rescue: Arc<Mutex<Option<Rescue>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.fmt(f)
    }
}

impl Watchdog {
    /// A watchdog that watches nothing yet.
    ///
    /// # Errors
    /// The host is out of file descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            shared: Arc::new(Shared {
                event: AtomicI32::new(NO_EVENT),
                clock: AtomicI32::new(NO_CLOCK),
                progress: AtomicU64::new(0),
                ended: AtomicBool::new(false),
                notice: EventFd::new(EFD_NONBLOCK | libc::EFD_CLOEXEC)?,
            }),
            rescue: Arc::default(),
            thread: Mutex::default(),
        })
    }

    /// The part that notes events.
    pub fn asker(&self) -> Asker {
        Asker(self.shared.clone())
    }

    /// Has `rescue` end the process if the thread that runs the guest does not answer.
    pub fn set_rescue(&self, rescue: Rescue) {
        *self.rescue.lock().unwrap_or_else(PoisonError::into_inner) = Some(rescue);
    }

    /// Watches the calling thread from now on. The first call starts the watchdog's thread.
    ///
    /// # Errors
    /// The host cannot start a thread.
    pub fn watch(&self) -> io::Result<()> {
        let clock = ThreadClock::of_this_thread()?;
        self.shared.clock.store(clock.0, Ordering::SeqCst);
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let (shared, rescue) = (self.shared.clone(), self.rescue.clone());
            let builder = std::thread::Builder::new().name("watchdog".into());
            *thread = Some(builder.spawn(move || shared.run(&rescue))?);
        }
        Ok(())
    }

    /// Watches no thread any more. If the watchdog is ending the process, the call does not return.
    pub fn stop_watching(&self) {
        self.shared.event.store(NO_EVENT, Ordering::SeqCst);
        while self.shared.clock.swap(NO_CLOCK, Ordering::SeqCst) == NO_CLOCK {
            std::thread::park();
        }
        drop(
            self.rescue
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
    }

    /// The event was answered: the run goes on. The next event has all of its time, also if it
    /// comes before the watchdog has seen the answer.
    pub fn answer(&self) {
        self.shared.event.store(NO_EVENT, Ordering::SeqCst);
        self.note_progress();
    }

    /// The thread waits for another one that makes progress, however slowly.
    pub fn note_progress(&self) {
        self.shared.progress.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        let _ = self.shared.notice.write(1);
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self, rescue: &Mutex<Option<Rescue>>) {
        loop {
            self.wait();
            if self.ended.load(Ordering::SeqCst) {
                return;
            }
            let Some(event) = self.watch_answer() else {
                continue;
            };
            let rescue = rescue.lock().unwrap_or_else(PoisonError::into_inner).take();
            let clock = self.clock.load(Ordering::SeqCst);
            if let Some(rescue) = rescue
                && clock != NO_CLOCK
                // `stop_watching` may have come first.
                && self.clock.swap(NO_CLOCK, Ordering::SeqCst) != NO_CLOCK
            {
                rescue(event);
                return;
            }
        }
    }

    /// Waits until the event is answered: `None`, or the thread is stuck: the event.
    fn watch_answer(&self) -> Option<Event> {
        let mut patience: Option<(u64, Patience)> = None;
        loop {
            let event = self.event.load(Ordering::SeqCst);
            let clock = self.clock.load(Ordering::SeqCst);
            if event == NO_EVENT || clock == NO_CLOCK || self.ended.load(Ordering::SeqCst) {
                return None;
            }
            let used = ThreadClock(clock).now();
            let progress = self.progress.load(Ordering::Relaxed);
            match &mut patience {
                Some((at, patience)) if *at == progress => {
                    if patience.look(used, TICK) {
                        return Some(match event {
                            TIMEOUT => Event::Timeout,
                            signal => Event::Signal(signal),
                        });
                    }
                }
                patience => *patience = Some((progress, Patience::new(used))),
            }
            // Not on `notice`: signals in a row must not shorten the tick.
            std::thread::sleep(TICK);
        }
    }

    /// Waits for a notice.
    fn wait(&self) {
        // SAFETY: `notice` keeps the descriptor open.
        let fd = unsafe { BorrowedFd::borrow_raw(self.notice.as_raw_fd()) };
        let _ = poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], None);
        let _ = self.notice.read();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
    use std::time::Instant;

    /// A watchdog that reports the event for which it would end the process.
    fn watchdog() -> (Arc<Watchdog>, Receiver<Event>) {
        let watchdog = Arc::new(Watchdog::new().unwrap());
        let (report, reports) = channel();
        watchdog.set_rescue(Box::new(move |event| report.send(event).unwrap()));
        (watchdog, reports)
    }

    /// A thread that is watched and runs `work` until the test drops the watchdog.
    fn watched(watchdog: &Arc<Watchdog>, work: impl Fn(&Watchdog) + Send + 'static) {
        let (watchdog, (ready, is_ready)) = (watchdog.clone(), channel());
        std::thread::spawn(move || {
            watchdog.watch().unwrap();
            ready.send(()).unwrap();
            while Arc::strong_count(&watchdog) > 1 {
                work(&watchdog);
            }
        });
        is_ready.recv().unwrap();
    }

    #[test]
    fn a_busy_thread_that_does_not_answer_is_stuck() {
        for event in [Event::Timeout, Event::Signal(15)] {
            let (watchdog, reports) = watchdog();
            watched(&watchdog, |_| std::hint::spin_loop());
            watchdog.asker().ask(event);
            assert_eq!(reports.recv_timeout(Duration::from_secs(120)), Ok(event));
        }
    }

    #[test]
    fn a_busy_thread_that_answers_is_not_stuck() {
        let (watchdog, reports) = watchdog();
        watched(&watchdog, |watchdog| {
            let began = Instant::now();
            while began.elapsed() < TICK {}
            watchdog.answer();
        });
        let asker = watchdog.asker();
        for _ in 0..20 {
            asker.ask(Event::Timeout);
            let none = reports.recv_timeout(TICK);
            assert_eq!(none, Err(RecvTimeoutError::Timeout));
        }
    }

    #[test]
    fn nothing_is_stuck_without_an_event_and_after_the_run() {
        let (watchdog, reports) = watchdog();
        watched(&watchdog, |_| std::hint::spin_loop());
        let none = |wait| assert!(reports.recv_timeout(wait).is_err());
        none(2 * MAX_USED);
        watchdog.stop_watching();
        watchdog.asker().ask(Event::Timeout);
        none(2 * MAX_USED);
    }

    #[test]
    fn time_counts_in_which_the_thread_runs_or_is_blocked_in_one_call() {
        let second = Duration::from_secs(1);
        let looks = |used: Vec<Duration>| {
            let mut patience = Patience::new(5 * second);
            used.into_iter().position(|used| patience.look(used, TICK))
        };
        // It works: a second, in ticks of processor time.
        let works = (1..50).map(|n| 5 * second + n * TICK);
        assert_eq!(looks(works.collect()), Some(9));
        // It is blocked.
        assert_eq!(looks(vec![5 * second; 200]), Some(99));
        // It makes many short calls.
        let calls = (1..5000).map(|n| 5 * second + n / 50 * Duration::from_micros(1));
        assert_eq!(looks(calls.collect()), None);
        // It has ended, and its clock with it.
        assert_eq!(looks(vec![Duration::ZERO; 50]), None);
    }

    #[test]
    fn progress_of_another_thread_is_patience() {
        let (watchdog, reports) = watchdog();
        watched(&watchdog, |watchdog| watchdog.note_progress());
        watchdog.asker().ask(Event::Timeout);
        assert!(reports.recv_timeout(3 * MAX_USED).is_err());
    }
}
