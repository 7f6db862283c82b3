//! Snapshots of a replay, so that it can go back to any virtual time at which it has been.
//!
//! A replay has no host: everything that decides how its machine continues is in the machine, in
//! the position in the recording and in the observer. A snapshot has all of it, and a replay that
//! is put back there runs as before. Between two snapshots a replay runs to the time that is asked
//! for.
//!
//! A snapshot changes nothing in the run. It has the contents of the TLB, because a guest can
//! observe a flush, and of memory the pages that differ from the snapshot before. Processors note
//! the pages that they may have written, and devices do so, too ([`DmaObserver`]): the others are
//! not compared. In the same way, going back compares and writes only pages that may differ, and
//! only their decoded code is invalidated.
//!
//! There is a snapshot at each mark that the run passes, and more close to a time to which it has
//! gone back, because a debugger often goes back again from there. If all of them exceed their
//! limit, those are dropped whose neighbours are closest to each other, in relation to the distance
//! from the present: their density falls with the distance.

mod file;
mod selection;
mod snapshot;

use vbts_devices::DmaObserver;
use vbts_host::exit::Failure;

use super::{End, Machine, RunObserver};
use crate::memory::PageVersions;
pub use file::{SnapshotFileError, SnapshotKey};
use snapshot::Snapshot;

/// Interval in ns of virtual time at which a run takes snapshots.
const INTERVAL: u64 = 50_000_000;
/// Distance in ns of a time to which a replay goes back from the snapshot before, above which there
/// is another one closer to it.
const CLOSE: u64 = 1 << 20;
/// Stops at one time that are passed.
const MAX_STOPS: u32 = 16;
/// Part of the distance to that time at which it is.
const APPROACH: u64 = 8;

/// The host's side of a replay, which goes back with it.
pub trait ReplayObserver: RunObserver {
    /// What the observer needs to continue from here, such as the part of a message that it has
    /// received. It is empty if that is nothing.
    fn save(&mut self) -> Vec<u8>;

    /// Goes back, or forward, to where [`Self::save`] has returned `state`. Output of the guest
    /// that has been shown comes again when the replay runs on.
    ///
    /// # Errors
    /// The observer never has such a state.
    fn restore(&mut self, state: &[u8]) -> Result<(), Failure>;
}

/// Snapshots of one replay. Its machine runs with [`Self::run_until`] from the first snapshot on.
///
/// A position of the replay is its virtual time in ns: [`Machine::now`].
#[derive(Debug)]
pub struct History {
    /// Oldest first. The first is where the history begins, and stays.
    snapshots: Vec<Snapshot>,
    pages: PageVersions,
    /// Maximum size in bytes of all snapshots.
    limit: usize,
    /// Time of the snapshot since which the written pages are noted.
    since: u64,
    devices: Option<DmaObserver>,
    /// The end of the run and its time, once it was reached.
    end: Option<(u64, End)>,
    /// The machine was changed, and is not at a position of the replay.
    has_left: bool,
    /// See [`Self::executed`].
    executed: u64,
}

impl History {
    /// No snapshots. They are going to have about `limit_bytes` at most. The first, the last and
    /// the one from which the machine comes are kept in any case.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            snapshots: Vec::new(),
            pages: PageVersions::default(),
            limit: limit_bytes,
            since: 0,
            devices: None,
            end: None,
            has_left: false,
            executed: 0,
        }
    }

    /// Runs forward to virtual time `until` in ns, or to the end of the run, and takes snapshots on
    /// the way. An idle guest skips time, so that the machine may be at a later time then. The
    /// first call takes a snapshot where the machine is, which is the earliest time to go back to.
    ///
    /// The run ends at the same place each time. At an error of the guest, such as a crash, the
    /// machine is where that happens, and can go back.
    ///
    /// # Errors
    /// The guest crashed, the replay differs from the recording, `observer` ended the run, or a
    /// snapshot cannot be taken.
    pub fn run_until(
        &mut self,
        machine: &mut Machine,
        until: u64,
        observer: &mut dyn ReplayObserver,
    ) -> Result<Option<End>, Failure> {
        self.begin(machine, observer)?;
        loop {
            let now = machine.now();
            if let Some((time, end)) = self.end
                && now >= time
                && !self.has_left
            {
                return Ok(Some(end));
            }
            if now >= until {
                return Ok(None);
            }
            let mark = (now / INTERVAL + 1).saturating_mul(INTERVAL);
            let before = machine.instructions();
            let ended = machine.run_until(mark.min(until), observer);
            self.executed += machine.instructions() - before;
            if let Some(end) = ended? {
                if !self.has_left && end != End::Stop {
                    self.end = Some((machine.now(), end));
                }
                return Ok(Some(end));
            }
            if machine.now() >= mark && !self.has_near(machine.now()) {
                self.take(machine, observer)?;
            }
        }
    }

    /// Puts the machine at virtual time `time` in ns, or at the first later one at which it is, if
    /// an idle guest has skipped that time. It goes to the end of the run if that is before. Stop
    /// points on the way are passed, but without them it is faster.
    ///
    /// # Errors
    /// `time` is before the first snapshot; or see [`Self::run_until`]. The machine must not run
    /// after an error, except to another `seek`.
    pub fn seek(
        &mut self,
        machine: &mut Machine,
        time: u64,
        observer: &mut dyn ReplayObserver,
    ) -> Result<(), Failure> {
        self.begin(machine, observer)?;
        let later = self.snapshots.partition_point(|s| s.time <= time);
        let Some(nearest) = later.checked_sub(1).and_then(|n| self.snapshots.get(n)) else {
            let first = self.snapshots.first().map_or(0, |s| s.time);
            let message = format!("the replay cannot go back to {time} ns, before {first} ns");
            return Err(anyhow::anyhow!(message).into());
        };
        let nearest = nearest.time;
        let now = machine.now();
        if self.has_left || time < now || nearest > now {
            self.restore(machine, nearest, observer)?;
        }
        // A debugger goes back from `time` next.
        loop {
            let left = time.saturating_sub(machine.now());
            if left <= CLOSE || self.is_at_end(machine) {
                break;
            }
            let stop = time - left / APPROACH;
            self.run_through(machine, stop, observer)?;
            if machine.now() < time {
                self.take(machine, observer)?;
            }
        }
        self.run_through(machine, time, observer)
    }

    /// Runs forward to `until`, without a stop.
    fn run_through(
        &mut self,
        machine: &mut Machine,
        until: u64,
        observer: &mut dyn ReplayObserver,
    ) -> Result<(), Failure> {
        let (mut last, mut stops) = (machine.now(), 0);
        while self.run_until(machine, until, observer)? == Some(End::Stop) {
            machine.take_stop_causes();
            stops = if machine.now() == last { stops + 1 } else { 0 };
            last = machine.now();
            if stops > MAX_STOPS {
                return Err(anyhow::anyhow!("the processor stops again and again").into());
            }
        }
        Ok(())
    }

    /// The virtual times in ns of the snapshots, in order: a time shortly after one of them is
    /// reached quickly.
    pub fn times(&self) -> impl DoubleEndedIterator<Item = u64> + ExactSizeIterator {
        self.snapshots.iter().map(|snapshot| snapshot.time)
    }

    /// The virtual time in ns of the end of the run, once it was reached, and how it ended.
    pub fn end(&self) -> Option<(u64, End)> {
        self.end
    }

    /// Instructions that the machine has executed in all runs of this history. Those that it has
    /// executed again count again.
    pub fn executed(&self) -> u64 {
        self.executed
    }

    /// Size in bytes of all snapshots, about.
    pub fn size(&self) -> usize {
        let snapshots = self.snapshots.iter().map(Snapshot::size);
        self.pages.size() + snapshots.sum::<usize>()
    }

    /// Notes that the machine is going to be changed, as by a debugger that writes to memory: it
    /// leaves the replay, and no snapshots are taken until [`Self::seek`] puts it back.
    ///
    /// A replay that has left is not compared with the recording, but gets inputs from there: the
    /// replies to the same requests in the same order. Another request is an error
    /// ([`InputError::Unknown`](crate::inputs::InputError::Unknown)).
    pub fn leave(&mut self, machine: &Machine) {
        self.has_left = true;
        machine.inputs.leave();
    }

    /// Returns whether the machine was changed since the last [`Self::seek`].
    pub fn has_left(&self) -> bool {
        self.has_left
    }

    fn is_at_end(&self, machine: &Machine) -> bool {
        self.end.is_some_and(|(time, _)| machine.now() >= time)
    }

    /// Returns whether a snapshot is so close to `time` that another one is not worth its memory.
    fn has_near(&self, time: u64) -> bool {
        let from = time.saturating_sub(INTERVAL / 2);
        let near = self.snapshots.partition_point(|s| s.time <= from);
        let next = self.snapshots.get(near);
        next.is_some_and(|s| s.time < time.saturating_add(INTERVAL / 2))
    }

    /// Drops snapshots until all of them are within the limit.
    fn thin(&mut self, now: u64) {
        while self.size() > self.limit {
            // The first and the last stay, and that from which the machine has come.
            let gaps = self.snapshots.windows(3).enumerate();
            let gaps = gaps.filter_map(|(n, around)| match around {
                [before, snapshot, after] if snapshot.time != self.since => {
                    let distance = snapshot.time.abs_diff(now).max(CLOSE) as f64;
                    Some((n + 1, (after.time - before.time) as f64 / distance))
                }
                _ => None,
            });
            let Some((n, _)) = gaps.min_by(|(_, a), (_, b)| a.total_cmp(b)) else {
                return;
            };
            self.drop_snapshot(n);
        }
    }
}

#[cfg(test)]
mod tests;
