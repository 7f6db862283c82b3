//! The writes of one thread as another thread sees them: how long one takes, and how it ends early.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time that one `write(2)` to a regular file may take when the run is to end. A file has no reader
/// that may not read, but a disk that other programs keep busy delays a write for seconds.
const FILE_TIMEOUT: Duration = Duration::from_secs(30);

/// Observes the writes of a thread, which come one after the other, and ends them.
#[derive(Debug, Default)]
pub struct WriteMonitor {
    stop: AtomicBool,
    /// Odd while the thread writes. Advances when a write begins or ends, and with each `write(2)`
    /// that has written something.
    step: AtomicU64,
    /// The write is to a regular file.
    to_file: AtomicBool,
    hurry: AtomicBool,
}

impl WriteMonitor {
    /// Makes writes end early, with whole units. Those to regular files do not end: they wait for
    /// no reader.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether writes end early.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The run is interrupted: what is left to do before the last write must not take long.
    pub fn hurry(&self) {
        self.hurry.store(true, Ordering::Relaxed);
    }

    /// Whether the run is interrupted.
    pub fn is_hurried(&self) -> bool {
        self.hurry.load(Ordering::Relaxed)
    }

    /// A write begins.
    pub(super) fn begin(&self, to_file: bool) {
        self.to_file.store(to_file, Ordering::Relaxed);
        self.step.fetch_add(1, Ordering::Release);
    }

    /// A part was written.
    pub(super) fn advance(&self) {
        self.step.fetch_add(2, Ordering::Relaxed);
    }

    /// The write has ended.
    pub(super) fn end(&self) {
        self.step.fetch_add(1, Ordering::Relaxed);
    }
}

/// Distinguishes a thread that works from one whose reader does not read.
#[derive(Debug)]
pub struct WriteTimeout<'a> {
    monitor: &'a WriteMonitor,
    limit: Duration,
    step: u64,
    since: Instant,
}

impl<'a> WriteTimeout<'a> {
    /// Each `write(2)` to a reader may take `limit` from now on.
    pub fn new(monitor: &'a WriteMonitor, limit: Duration) -> Self {
        Self {
            monitor,
            limit,
            step: monitor.step.load(Ordering::Acquire),
            since: Instant::now(),
        }
    }

    /// Whether a write has taken too long.
    pub fn is_over(&mut self) -> bool {
        let step = self.monitor.step.load(Ordering::Acquire);
        if step != self.step || step.is_multiple_of(2) {
            (self.step, self.since) = (step, Instant::now());
            return false;
        }
        let limit = match self.monitor.to_file.load(Ordering::Relaxed) {
            true => FILE_TIMEOUT.max(self.limit),
            false => self.limit,
        };
        self.since.elapsed() >= limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a timeout of 10 ms is over, 15 ms after each of `steps`.
    fn is_over(steps: &[fn(&WriteMonitor)]) -> bool {
        let monitor = WriteMonitor::default();
        let mut timeout = WriteTimeout::new(&monitor, Duration::from_millis(10));
        let mut over = false;
        for step in steps {
            step(&monitor);
            over = timeout.is_over();
            std::thread::sleep(Duration::from_millis(15));
        }
        over | timeout.is_over()
    }

    #[test]
    fn only_a_write_that_stands_still_is_too_long() {
        let begin: fn(&WriteMonitor) = |monitor| monitor.begin(false);
        for (steps, expected) in [
            (&[begin][..], true),
            (&[begin, WriteMonitor::advance, |_| {}], true),
            // It reads slowly.
            (&[begin, WriteMonitor::advance, WriteMonitor::end], false),
            // It works for long between two writes.
            (&[begin, WriteMonitor::end, |_| {}, |_| {}], false),
            (&[|monitor| monitor.begin(true), |_| {}], false),
        ] {
            assert_eq!(is_over(steps), expected);
        }
    }
}
