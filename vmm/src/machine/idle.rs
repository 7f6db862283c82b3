//! Detects that all processors are idle, so that only the host or a timer can wake one.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Counts the idle processors, each of which waits in its own thread.
#[derive(Debug, Default)]
pub(super) struct IdleProcessors {
    idle: AtomicUsize,
    /// Idle processors that only an NMI or INIT can wake.
    interrupts_masked: AtomicUsize,
    /// Number of times that a processor has woken.
    wakes: AtomicU64,
}

/// All processors are idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AllIdle<T> {
    /// Only an NMI or INIT can wake any of them.
    pub interrupts_masked: bool,
    /// What the caller of [`IdleProcessors::check`] observed meanwhile.
    pub observed: T,
}

impl IdleProcessors {
    /// Counts the calling processor as idle while `wait` runs. Calls `last` first if it is the last
    /// of `count` processors to become idle.
    pub(super) fn wait(
        &self,
        interrupts_masked: bool,
        count: usize,
        last: impl FnOnce(),
        wait: impl FnOnce(),
    ) {
        self.interrupts_masked
            .fetch_add(interrupts_masked.into(), Ordering::SeqCst);
        if self.idle.fetch_add(1, Ordering::SeqCst) + 1 == count {
            last();
        }
        wait();
        self.idle.fetch_sub(1, Ordering::SeqCst);
        self.interrupts_masked
            .fetch_sub(interrupts_masked.into(), Ordering::SeqCst);
        self.wakes.fetch_add(1, Ordering::SeqCst);
    }

    /// Calls `observe` if all of `count` processors are idle. Returns the result if all of them
    /// stayed idle meanwhile and none has a pending wake-up; otherwise one may have run between two
    /// of the checks.
    ///
    /// `has_pending_wakeup` returns whether a line is raised that would wake a processor. Its
    /// argument is true if maskable interrupts wake none of them.
    pub(super) fn check<T>(
        &self,
        count: usize,
        has_pending_wakeup: impl FnOnce(bool) -> bool,
        observe: impl FnOnce() -> T,
    ) -> Option<AllIdle<T>> {
        let wakes = self.wakes.load(Ordering::SeqCst);
        if self.idle.load(Ordering::SeqCst) != count {
            return None;
        }
        let interrupts_masked = self.interrupts_masked.load(Ordering::SeqCst) == count;
        let observed = observe();
        // A processor lowers the line that woke it only after it has left `wait`.
        let undisturbed =
            !has_pending_wakeup(interrupts_masked) && self.wakes.load(Ordering::SeqCst) == wakes;
        undisturbed.then_some(AllIdle {
            interrupts_masked,
            observed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn reports_only_when_all_processors_are_idle() {
        let idle = IdleProcessors::default();
        let check = || idle.check(1, |_| false, || 7);
        assert_eq!(check(), None);
        let mut last = false;
        idle.wait(
            true,
            1,
            || last = true,
            || {
                let expected = AllIdle {
                    interrupts_masked: true,
                    observed: 7,
                };
                assert_eq!(check(), Some(expected));
                assert_eq!(idle.check(1, |_| true, || 7), None, "a wake-up is pending");
                assert_eq!(idle.check(2, |_| false, || 7), None, "one of two");
            },
        );
        assert!(last);
        assert_eq!(check(), None);
    }

    #[test]
    fn a_processor_that_runs_meanwhile_is_not_idle() {
        let idle = IdleProcessors::default();
        let (line, timer, end) = <(AtomicBool, AtomicBool, AtomicBool)>::default();
        std::thread::scope(|scope| {
            // A processor that sets its timer before it waits, and has none set while a line is
            // raised.
            scope.spawn(|| {
                timer.store(true, Ordering::SeqCst);
                while !end.load(Ordering::SeqCst) {
                    let wait = || {
                        while !line.load(Ordering::SeqCst) && !end.load(Ordering::SeqCst) {
                            std::thread::yield_now();
                        }
                    };
                    idle.wait(false, 1, || {}, wait);
                    line.store(false, Ordering::SeqCst);
                    timer.store(true, Ordering::SeqCst);
                }
            });
            let (mut found, mut lost) = (0, false);
            for check in 1u32.. {
                let pending = |_| line.load(Ordering::SeqCst);
                let observe = || timer.load(Ordering::SeqCst);
                if let Some(all) = idle.check(1, pending, observe) {
                    lost = !all.observed;
                    found += 1;
                    if lost || found == 5_000 {
                        break;
                    }
                    timer.store(false, Ordering::SeqCst);
                    line.store(true, Ordering::SeqCst);
                }
                if check.is_multiple_of(64) {
                    // Both threads may share one processor of the host.
                    std::thread::yield_now();
                }
            }
            end.store(true, Ordering::SeqCst);
            assert!(!lost, "reported as idle without a wake-up source");
        });
    }
}
