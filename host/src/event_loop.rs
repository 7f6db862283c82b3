//! The host I/O loop: one wait for all host events that an idle guest may depend on: standard
//! input, TAP devices, timers, signals, the time limit, and other threads.
//!
//! The loop only reports that a descriptor is ready. The machine's thread reads and writes, on the
//! guest's time line, so that a run on virtual time is reproducible.
//!
//! Three waits do not use the loop:
//! - `Input` waits a few milliseconds for the rest of a pipe's data. The guest does not run and no
//!   other event is served during that wait.
//! - `Output` waits for room in a pipe, on any thread. The loop belongs to one thread.
//! - A thread of [`Alarm`] waits for the time limit. It must interrupt a guest that runs, and on
//!   virtual time the loop waits only while the guest is idle.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use event_manager::{
    Error, EventManager, EventOps, EventSet, Events, MutEventSubscriber, SubscriberId,
    SubscriberOps,
};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};
use vmm_sys_util::timerfd::TimerFd;

use super::Alarm;

/// Number of events that one wait takes from the host. The next wait finds the others.
const CAPACITY: usize = 16;

/// What ended a wait. Both are false if [`Alarm`], a [`Waker`] or a signal ended it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ready {
    /// An awaited descriptor has data or has reached its end.
    pub input: bool,
    /// The limit has passed.
    pub timer: bool,
}

/// The subscriber for one kind of event.
#[derive(Debug, Default)]
struct Source {
    ready: bool,
}

impl MutEventSubscriber for Source {
    fn process(&mut self, _: Events, _: &mut EventOps<'_>) {
        self.ready = true;
    }

    fn init(&mut self, _: &mut EventOps<'_>) {}
}

/// The loop of one machine, or of the test suite.
#[derive(Debug)]
pub struct EventLoop {
    manager: EventManager<Source>,
    timer: TimerFd,
    timer_source: SubscriberId,
    timer_is_set: bool,
    waker: EventFd,
    waker_source: SubscriberId,
    /// Keeps the descriptor open that the loop watches.
    _alarm: Arc<Alarm>,
}

/// Ends the wait of an [`EventLoop`] from another thread.
#[derive(Debug)]
pub struct Waker(EventFd);

impl Waker {
    /// Ends the current wait, or the next one.
    pub fn wake(&self) {
        // The write fails only if the counter is full. The wait ends in that case too.
        let _ = self.0.write(1);
    }
}

impl EventLoop {
    /// Makes a loop whose waits `alarm` ends.
    ///
    /// # Errors
    /// The host is out of file descriptors.
    pub fn new(alarm: Arc<Alarm>) -> io::Result<Self> {
        let mut manager = EventManager::new_with_capacity(CAPACITY).map_err(host_error)?;
        let timer = TimerFd::new()?;
        let waker = EventFd::new(EFD_NONBLOCK | libc::EFD_CLOEXEC)?;
        let mut watch = |events| {
            let source = manager.add_subscriber(Source::default());
            let mut ops = manager.event_ops(source).map_err(host_error)?;
            ops.add(events).map_err(host_error).map(|()| source)
        };
        let timer_source = watch(Events::new(&timer, EventSet::IN))?;
        let waker_source = watch(Events::new(&waker, EventSet::IN))?;
        watch(Events::new(&alarm.fd(), EventSet::IN))?;
        Ok(Self {
            manager,
            timer,
            timer_source,
            timer_is_set: false,
            waker,
            waker_source,
            _alarm: alarm,
        })
    }

    /// Returns a handle that ends waits from another thread.
    ///
    /// # Errors
    /// The host is out of file descriptors.
    pub fn waker(&self) -> io::Result<Waker> {
        self.waker.try_clone().map(Waker)
    }

    /// Waits until one of `awaited` is readable or has ended, `limit` has passed, [`Alarm`] has an
    /// event, a [`Waker`] is used or a signal arrives.
    ///
    /// # Errors
    /// The host refuses to wait.
    pub fn wait(
        &mut self,
        awaited: &[BorrowedFd<'_>],
        limit: Option<Duration>,
    ) -> io::Result<Ready> {
        // The inputs are watched during this wait only, so that the caller may close them.
        let inputs = self.manager.add_subscriber(Source::default());
        let waited = self.wait_with(inputs, awaited, limit);
        let source = self.manager.remove_subscriber(inputs).map_err(host_error)?;
        let mut ready = waited?;
        ready.input |= source.ready;
        Ok(ready)
    }

    fn wait_with(
        &mut self,
        inputs: SubscriberId,
        awaited: &[BorrowedFd<'_>],
        limit: Option<Duration>,
    ) -> io::Result<Ready> {
        let mut ready = Ready::default();
        let mut ops = self.manager.event_ops(inputs).map_err(host_error)?;
        for fd in awaited {
            match ops.add(Events::new(fd, EventSet::IN)) {
                Ok(()) => {}
                // epoll refuses regular files and /dev/null, which are always ready.
                Err(Error::Epoll(errno)) if errno.errno() == libc::EPERM => ready.input = true,
                Err(error) => return Err(host_error(error)),
            }
        }
        let returns_at_once = ready.input || limit == Some(Duration::ZERO);
        self.set_timer(limit.filter(|_| !returns_at_once))?;
        self.source(self.timer_source)?.ready = false;
        self.source(self.waker_source)?.ready = false;
        let count = if returns_at_once {
            self.manager.run_with_timeout(0)
        } else {
            self.manager.run()
        };
        let count = count.map_err(host_error)?;
        if self.source(self.waker_source)?.ready {
            let _ = self.waker.read();
        }
        ready.timer = if returns_at_once {
            !ready.input && count == 0
        } else {
            self.source(self.timer_source)?.ready
        };
        Ok(ready)
    }

    /// Arms the timer to expire after `limit`, which is not zero, or disarms it. The guest's timers
    /// have a resolution of 1 ns, and the manager's timeout one of 1 ms.
    fn set_timer(&mut self, limit: Option<Duration>) -> io::Result<()> {
        match limit {
            Some(limit) => self.timer.reset(limit, None)?,
            None if self.timer_is_set => self.timer.clear()?,
            None => {}
        }
        self.timer_is_set = limit.is_some();
        Ok(())
    }

    fn source(&mut self, id: SubscriberId) -> io::Result<&mut Source> {
        self.manager.subscriber_mut(id).map_err(host_error)
    }
}

fn host_error(error: Error) -> io::Error {
    match error {
        Error::Epoll(errno) => errno.into(),
        error => io::Error::other(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::time::Instant;
    use vbts_cpu::Signals;

    const INPUT: Ready = Ready {
        input: true,
        timer: false,
    };
    const TIMER: Ready = Ready {
        input: false,
        timer: true,
    };

    fn event_loop(limit: Option<Duration>) -> (Arc<Alarm>, EventLoop) {
        let alarm = Arc::new(Alarm::catching(&[], Arc::<Signals>::default(), limit).unwrap());
        (alarm.clone(), EventLoop::new(alarm).unwrap())
    }

    #[test]
    fn an_input_is_ready_when_it_has_data_or_has_ended() {
        let (_alarm, mut events) = event_loop(None);
        let (reader, mut writer) = io::pipe().unwrap();
        let nothing = Some(Duration::ZERO);
        assert_eq!(events.wait(&[reader.as_fd()], nothing).unwrap(), TIMER);
        writer.write_all(b"x").unwrap();
        assert_eq!(events.wait(&[reader.as_fd()], None).unwrap(), INPUT);
        // An input that is not awaited does not end a wait.
        let short = Some(Duration::from_millis(1));
        assert_eq!(events.wait(&[], short).unwrap(), TIMER);
        drop(writer);
        assert_eq!(events.wait(&[reader.as_fd()], None).unwrap(), INPUT);
    }

    #[test]
    fn a_descriptor_may_be_closed_and_its_number_used_again() {
        let (_alarm, mut events) = event_loop(None);
        for _ in 0..3 {
            let (reader, mut writer) = io::pipe().unwrap();
            let nothing = Some(Duration::ZERO);
            assert_eq!(events.wait(&[reader.as_fd()], nothing).unwrap(), TIMER);
            writer.write_all(b"x").unwrap();
            assert_eq!(events.wait(&[reader.as_fd()], None).unwrap(), INPUT);
        }
    }

    #[test]
    fn files_that_epoll_refuses_are_always_ready() {
        let (_alarm, mut events) = event_loop(None);
        for name in ["/dev/null", "/proc/self/exe", "/"] {
            let file = File::open(name).unwrap();
            let refused = EventManager::<Source>::new().map(|mut manager| {
                let source = manager.add_subscriber(Source::default());
                let mut ops = manager.event_ops(source).unwrap();
                ops.add(Events::new(&file, EventSet::IN)).is_err()
            });
            assert_eq!(refused, Ok(true), "{name}");
            assert_eq!(events.wait(&[file.as_fd()], None).unwrap(), INPUT, "{name}");
        }
    }

    #[test]
    fn a_limit_is_not_rounded_to_milliseconds() {
        let (_alarm, mut events) = event_loop(None);
        let limit = Duration::from_micros(1100);
        let mut wait = || {
            let began = Instant::now();
            assert_eq!(events.wait(&[], Some(limit)).unwrap(), TIMER);
            began.elapsed()
        };
        assert!(wait() >= limit, "rounded down");
        // A wait can take longer on a busy host, but not every time.
        let rounded_up = Duration::from_millis(2);
        assert!((0..1000).any(|_| wait() < rounded_up), "rounded up");
        // A timer of an earlier wait does not end a later one.
        events.waker().unwrap().wake();
        assert_eq!(events.wait(&[], None).unwrap(), Ready::default());
    }

    #[test]
    fn another_thread_ends_one_wait() {
        let (_alarm, mut events) = event_loop(None);
        let waker = events.waker().unwrap();
        let thread = std::thread::spawn(move || waker.wake());
        assert_eq!(events.wait(&[], None).unwrap(), Ready::default());
        thread.join().unwrap();
        assert_eq!(events.wait(&[], Some(Duration::ZERO)).unwrap(), TIMER);
    }

    #[test]
    fn the_time_limit_ends_a_wait() {
        let (alarm, mut events) = event_loop(Some(Duration::from_millis(1)));
        alarm.start_timer().unwrap();
        assert_eq!(events.wait(&[], None).unwrap(), Ready::default());
        assert!(alarm.is_pending());
    }
}
