//! The time limit of a guest: when the guest has not ended in time, and when the host was too busy
//! to run it.

use std::io;
use std::time::{Duration, Instant};

use super::watchdog::Watchdog;

/// Time limit of a guest. Guests take microseconds.
pub const LIMIT: Duration = Duration::from_millis(300);
/// Processor time that an endless guest has used when the limit is reached.
const BUSY: Duration = Duration::from_millis(50);
/// Time limit of a guest that did not get that processor time because the host is busy.
const PATIENCE: Duration = Duration::from_secs(5);

/// Limits the time that the thread that created it spends in a guest.
#[derive(Debug)]
pub struct TimeLimit {
    watchdog: Watchdog,
    /// The guest's time is over from here on, if the thread has used `busy_limit` of processor
    /// time.
    deadline: Instant,
    busy_limit: Duration,
    /// The guest's time is over from here on in any case.
    patience: Instant,
}

impl TimeLimit {
    /// Creates the limit of guests that the calling thread runs. No time is limited yet.
    ///
    /// # Errors
    /// As [`Watchdog::new`].
    pub fn new() -> io::Result<Self> {
        let now = Instant::now();
        Ok(Self {
            watchdog: Watchdog::new()?,
            deadline: now,
            busy_limit: Duration::ZERO,
            patience: now,
        })
    }

    /// Gives a guest [`LIMIT`] from now on. From then on, signals interrupt KVM_RUN.
    pub fn start(&mut self) {
        self.set(LIMIT, BUSY);
    }

    /// Gives a guest `time` from now on, however busy the host is.
    pub fn start_for(&mut self, time: Duration) {
        self.set(time, Duration::ZERO);
    }

    fn set(&mut self, limit: Duration, busy: Duration) {
        let now = Instant::now();
        self.deadline = now + limit;
        self.patience = now + PATIENCE;
        self.busy_limit = busy_time() + busy;
        self.watchdog.set(Some(self.deadline));
    }

    /// Sends no more signals.
    pub fn stop(&self) {
        self.watchdog.set(None);
    }

    /// Whether the guest's time is over.
    pub fn is_over(&self) -> bool {
        let now = Instant::now();
        now >= self.deadline && (busy_time() >= self.busy_limit || now >= self.patience)
    }
}

/// Processor time that this thread has used, inside and outside of guests.
fn busy_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: clock_gettime writes a timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_gets_more_time_than_one_that_computes() {
        let mut limit = TimeLimit::new().unwrap();
        limit.set(Duration::ZERO, Duration::from_millis(20));
        assert!(!limit.is_over(), "no processor time was used");
        let used = busy_time();
        while busy_time() < used + Duration::from_millis(25) {}
        assert!(limit.is_over());
    }

    #[test]
    fn a_limit_without_processor_time_ends_at_its_deadline() {
        let mut limit = TimeLimit::new().unwrap();
        limit.start_for(Duration::from_secs(1000));
        assert!(!limit.is_over());
        limit.start_for(Duration::ZERO);
        assert!(limit.is_over());
    }
}
