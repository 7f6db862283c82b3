//! Ends the process if the run loop does not answer an event of the [`Alarm`](super::Alarm), or if
//! a processor in a thread of its own does not answer the kick that follows.
//!
//! An event is answered when the run goes on or has ended, a kick when the processor returns to its
//! loop. A thread that is stuck, by an error of this program or in a call of the host, does
//! neither. It may hold locks, so that the thread of the watchdog takes none of its. Only time in
//! which the process could run counts: the thread adds up its own waits, which neither a stopped
//! process nor a suspended host completes.
//!
//! What ends the process completes its output first, and for that it allocates memory and takes
//! locks that the stuck thread may hold. A second thread bounds that time.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vbts_cpu::Signals;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EFD_SEMAPHORE, EventFd};

use super::alarm::Event;

/// Processor time that a thread may use before it answers.
const MAX_USED: Duration = Duration::from_secs(1);
/// Time for which a call of the host may block the thread before it answers.
const MAX_BLOCKED: Duration = Duration::from_secs(10);
/// Time for which a rescue may last.
const MAX_RESCUE: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 20 });
/// Time between two looks at a thread that has not answered.
const TICK: Duration = Duration::from_millis(100);

/// Ends the process in place of the run loop.
pub(crate) type Rescue = Box<dyn FnOnce(Event) + Send>;
/// Ends the process in place of a [`Rescue`] that does not. It takes no lock and allocates nothing.
pub(crate) type LastResort = fn(Event);

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

/// A processor that runs in a thread of its own.
#[derive(Debug)]
struct Processor {
    /// The clock of the thread, or [`NO_CLOCK`] after its end.
    clock: AtomicI32,
    /// The lines to kick it.
    signals: Arc<Signals>,
    /// Number of times that the processor has returned to its loop.
    answers: AtomicU64,
}

/// The processor of the calling thread, which is watched until the end of this value.
#[derive(Debug)]
pub struct WatchedProcessor(Arc<Processor>);

impl WatchedProcessor {
    /// Notes that the processor has returned to its loop, where it looks at what it has to do.
    pub fn answer(&self) {
        self.0.answers.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for WatchedProcessor {
    fn drop(&mut self) {
        self.0.clock.store(NO_CLOCK, Ordering::SeqCst);
    }
}

/// The number of a thread's last answer, and the thread's time since then.
type Wait = Option<(u64, Patience)>;

/// Looks at a thread that has used the processor time `used`, and whose last answer was number
/// `answers`. Calls `ask` if it has answered since the last look. Returns whether it is stuck.
fn look(wait: &mut Wait, answers: u64, used: Duration, ask: impl FnOnce()) -> bool {
    match wait {
        Some((at, patience)) if *at == answers => patience.look(used, TICK),
        _ => {
            *wait = Some((answers, Patience::new(used)));
            ask();
            false
        }
    }
}

#[derive(Debug)]
struct Shared {
    /// The event that has not been answered.
    event: AtomicI32,
    /// The clock of the thread that runs the guest.
    clock: AtomicI32,
    /// Advanced when that thread answers, or when a thread waits for another one that works.
    progress: AtomicU64,
    /// A thread holds the lock while it adds itself, and not while it works.
    processors: Mutex<Vec<Arc<Processor>>>,
    ended: AtomicBool,
    /// Readable when there is an event.
    notice: EventFd,
    last_resort: OnceLock<LastResort>,
    /// The event for which a rescue has begun, as in `event`.
    rescue_event: AtomicI32,
    /// Advanced when a rescue begins, when it returns, and when the watchdog ends.
    rescue_notice: EventFd,
}

/// Asks the watchdog to watch, from a signal handler, too.
#[derive(Debug, Clone)]
pub(super) struct Asker(Arc<Shared>);

impl Asker {
    /// Notes that `event` has to be answered. It only touches atomics and calls write(2).
    pub(crate) fn ask(&self, event: Event) {
        self.0.event.store(number_of(event), Ordering::SeqCst);
        let _ = self.0.notice.write(1);
    }
}

/// The watchdog of a run.
pub(super) struct Watchdog {
    shared: Arc<Shared>,
    rescue: Arc<Mutex<Option<Rescue>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
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
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            shared: Arc::new(Shared {
                event: AtomicI32::new(NO_EVENT),
                clock: AtomicI32::new(NO_CLOCK),
                progress: AtomicU64::new(0),
                processors: Mutex::default(),
                ended: AtomicBool::new(false),
                notice: EventFd::new(EFD_NONBLOCK | libc::EFD_CLOEXEC)?,
                last_resort: OnceLock::new(),
                rescue_event: AtomicI32::new(NO_EVENT),
                rescue_notice: EventFd::new(EFD_NONBLOCK | EFD_SEMAPHORE | libc::EFD_CLOEXEC)?,
            }),
            rescue: Arc::default(),
            threads: Mutex::default(),
        })
    }

    /// The part that notes events.
    pub(crate) fn asker(&self) -> Asker {
        Asker(self.shared.clone())
    }

    /// Has `rescue` end the process if the thread that runs the guest does not answer, and
    /// `last_resort` if `rescue` does not end it within [`MAX_RESCUE`]. The first last resort
    /// stays.
    pub(crate) fn set_rescue(&self, rescue: Rescue, last_resort: LastResort) {
        self.shared.last_resort.get_or_init(|| last_resort);
        *self.rescue.lock().unwrap_or_else(PoisonError::into_inner) = Some(rescue);
    }

    /// Watches the calling thread from now on. The first call starts the watchdog's threads.
    ///
    /// # Errors
    /// The host cannot start a thread.
    pub(crate) fn watch(&self) -> io::Result<()> {
        let clock = ThreadClock::of_this_thread()?;
        self.shared.clock.store(clock.0, Ordering::SeqCst);
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if threads.is_empty() {
            let (shared, rescue) = (self.shared.clone(), self.rescue.clone());
            let builder = std::thread::Builder::new().name("watchdog".into());
            threads.push(builder.spawn(move || shared.run(&rescue))?);
            let shared = self.shared.clone();
            let builder = std::thread::Builder::new().name("last resort".into());
            threads.push(builder.spawn(move || shared.watch_rescue())?);
        }
        Ok(())
    }

    /// Also watches the calling thread, which runs the processor of `signals`. It has to answer
    /// kicks.
    ///
    /// # Errors
    /// The host refuses the clock of the thread.
    pub(crate) fn watch_processor(&self, signals: Arc<Signals>) -> io::Result<WatchedProcessor> {
        let processor = Arc::new(Processor {
            clock: AtomicI32::new(ThreadClock::of_this_thread()?.0),
            signals,
            answers: AtomicU64::new(0),
        });
        let mut processors = self.shared.processors();
        processors.retain(|processor| processor.clock.load(Ordering::SeqCst) != NO_CLOCK);
        processors.push(processor.clone());
        Ok(WatchedProcessor(processor))
    }

    /// Watches no thread any more. If the watchdog is ending the process, the call does not return.
    pub(crate) fn stop_watching(&self) {
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
    pub(crate) fn answer(&self) {
        self.shared.event.store(NO_EVENT, Ordering::SeqCst);
        self.note_progress();
    }

    /// The thread waits for another one that makes progress, however slowly.
    pub(crate) fn note_progress(&self) {
        self.shared.progress.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        let _ = self.shared.notice.write(1);
        let _ = self.shared.rescue_notice.write(1);
        let threads = self.threads.get_mut();
        for thread in threads.unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn processors(&self) -> MutexGuard<'_, Vec<Arc<Processor>>> {
        (self.processors.lock()).unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, rescue: &Mutex<Option<Rescue>>) {
        loop {
            wait(&self.notice, None);
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
                self.rescue_event.store(number_of(event), Ordering::SeqCst);
                let _ = self.rescue_notice.write(1);
                rescue(event);
                let _ = self.rescue_notice.write(1);
                return;
            }
        }
    }

    /// Waits for a rescue, and ends the process if that does not.
    fn watch_rescue(&self) {
        wait(&self.rescue_notice, None);
        if !self.ended.load(Ordering::SeqCst)
            && !wait(&self.rescue_notice, Some(MAX_RESCUE))
            && let Some(last_resort) = self.last_resort.get()
        {
            last_resort(event_of(self.rescue_event.load(Ordering::SeqCst)));
        }
    }

    /// Waits until the event is answered: `None`, or a thread is stuck: the event.
    fn watch_answer(&self) -> Option<Event> {
        let mut run_loop = Wait::None;
        let processors = self.processors().clone();
        let mut processors: Vec<_> = processors.iter().map(|one| (one, Wait::None)).collect();
        loop {
            let event = self.event.load(Ordering::SeqCst);
            let clock = self.clock.load(Ordering::SeqCst);
            if event == NO_EVENT || clock == NO_CLOCK || self.ended.load(Ordering::SeqCst) {
                return None;
            }
            let progress = self.progress.load(Ordering::Relaxed);
            let mut stuck = look(&mut run_loop, progress, ThreadClock(clock).now(), || {});
            for (processor, wait) in &mut processors {
                let clock = processor.clock.load(Ordering::SeqCst);
                if clock == NO_CLOCK {
                    continue;
                }
                // Progress of another thread, for which it may wait, is an answer, too.
                let answers = processor
                    .answers
                    .load(Ordering::Relaxed)
                    .wrapping_add(progress);
                let kick = || processor.signals.raise(Signals::KICK);
                stuck |= look(wait, answers, ThreadClock(clock).now(), kick);
            }
            if stuck {
                return Some(event_of(event));
            }
            // Not on `notice`: signals in a row must not shorten the tick.
            std::thread::sleep(TICK);
        }
    }
}

/// The value of [`Shared::event`] for an event.
fn number_of(event: Event) -> i32 {
    match event {
        Event::Timeout => TIMEOUT,
        Event::Signal(signal) => signal,
    }
}

/// The event of a value of [`Shared::event`].
fn event_of(event: i32) -> Event {
    match event {
        TIMEOUT => Event::Timeout,
        signal => Event::Signal(signal),
    }
}

/// Waits for a notice, for at most `limit`. Returns whether there was one.
fn wait(notice: &EventFd, limit: Option<Duration>) -> bool {
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    // SAFETY: `notice` keeps the descriptor open.
    let fd = unsafe { BorrowedFd::borrow_raw(notice.as_raw_fd()) };
    let _ = poll(
        &mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)],
        limit.as_ref(),
    );
    notice.read().is_ok()
}

#[cfg(test)]
mod tests;
