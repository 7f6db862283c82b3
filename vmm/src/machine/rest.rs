//! Whether all processors are at rest: what nobody but the host or a timer can end.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Counts the processors that sleep, each in its own thread.
#[derive(Debug, Default)]
pub(super) struct Rest {
    asleep: AtomicUsize,
    /// Those among them that only an NMI or INIT can wake.
    deaf: AtomicUsize,
    /// How often one has woken.
    wakes: AtomicU64,
}

/// All processors are at rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AtRest<T> {
    /// Only an NMI or INIT can wake any of them.
    pub deaf: bool,
    /// What was seen of the machine meanwhile.
    pub seen: T,
}

impl Rest {
    /// Runs `sleep` as a processor that sleeps. Returns after that; `last` is told when it is the
    /// last one of `count` to do so.
    pub fn sleep(&self, deaf: bool, count: usize, last: impl FnOnce(), sleep: impl FnOnce()) {
        self.deaf.fetch_add(deaf.into(), Ordering::SeqCst);
        if self.asleep.fetch_add(1, Ordering::SeqCst) + 1 == count {
            last();
        }
        sleep();
        self.asleep.fetch_sub(1, Ordering::SeqCst);
        self.deaf.fetch_sub(deaf.into(), Ordering::SeqCst);
        self.wakes.fetch_add(1, Ordering::SeqCst);
    }

    /// Calls `look` if all of `count` processors sleep, and returns what it saw if none was called
    /// and all slept on all the time: otherwise one may have done something between two of its
    /// glances, and sleep again. `called` is whether a line is raised that would wake any of them,
    /// and is told whether all of them are deaf.
    pub fn of_all<T>(
        &self,
        count: usize,
        called: impl FnOnce(bool) -> bool,
        look: impl FnOnce() -> T,
    ) -> Option<AtRest<T>> {
        let wakes = self.wakes.load(Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) != count {
            return None;
        }
        let deaf = self.deaf.load(Ordering::SeqCst) == count;
        let seen = look();
        // One that is about to count as awake is still being called: it answers after that.
        let undisturbed = !called(deaf) && self.wakes.load(Ordering::SeqCst) == wakes;
        undisturbed.then_some(AtRest { deaf, seen })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn all_are_at_rest_or_nothing_is_known() {
        let rest = Rest::default();
        let look = || rest.of_all(1, |_| false, || 7);
        assert_eq!(look(), None);
        let mut last = false;
        rest.sleep(
            true,
            1,
            || last = true,
            || {
                let seen = AtRest {
                    deaf: true,
                    seen: 7,
                };
                assert_eq!(look(), Some(seen));
                assert_eq!(rest.of_all(1, |_| true, || 7), None, "it has been called");
                assert_eq!(rest.of_all(2, |_| false, || 7), None, "one of two");
            },
        );
        assert!(last);
        assert_eq!(look(), None);
    }

    #[test]
    fn one_that_goes_on_meanwhile_is_not_at_rest() {
        let rest = Rest::default();
        let (line, timer, end) = <(AtomicBool, AtomicBool, AtomicBool)>::default();
        std::thread::scope(|scope| {
            // A processor whose timer is always set when it sleeps, and never while it is called.
            scope.spawn(|| {
                timer.store(true, Ordering::SeqCst);
                while !end.load(Ordering::SeqCst) {
                    let asleep = || {
                        while !line.load(Ordering::SeqCst) && !end.load(Ordering::SeqCst) {
                            std::thread::yield_now();
                        }
                    };
                    rest.sleep(false, 1, || {}, asleep);
                    line.store(false, Ordering::SeqCst);
                    timer.store(true, Ordering::SeqCst);
                }
            });
            let (mut rests, mut lost) = (0, false);
            for glance in 1u32.. {
                let called = |_| line.load(Ordering::SeqCst);
                let look = || timer.load(Ordering::SeqCst);
                if let Some(at_rest) = rest.of_all(1, called, look) {
                    lost = !at_rest.seen;
                    rests += 1;
                    if lost || rests == 5_000 {
                        break;
                    }
                    timer.store(false, Ordering::SeqCst);
                    line.store(true, Ordering::SeqCst);
                }
                if glance.is_multiple_of(64) {
                    // The other thread may have to share a processor with this one.
                    std::thread::yield_now();
                }
            }
            end.store(true, Ordering::SeqCst);
            assert!(!lost, "at rest, and nothing will wake it");
        });
    }
}
