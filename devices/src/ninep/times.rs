//! The times of files on the guest's clock.
//!
//! That clock is not the host's: it is slower while the guest computes, faster while it sleeps, and
//! begins at any date. A file that the guest changes gets the host's time from the host. To the
//! guest it would be in the future, and `make` would complain. So the server keeps the guest's time
//! of a change next to the host's, and shows it for as long as the file has the host's.
//!
//! A guest that sets a time which its clock has shown since the first request (`cp -p`) means the
//! host's time of that moment. On the host, files thus have the host's times, in the order in which
//! the guest has changed them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use rustix::fs::{Stat, Timespec};
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of a second.
pub(super) const NS_PER_SECOND: i64 = 1_000_000_000;
/// Most files with times of the guest. Further ones have the host's.
const MAX_FILES: usize = 1 << 18;
/// Most pairs of times for [`Times::host_time`]. Of more, every second one is dropped.
const MAX_MOMENTS: usize = 1 << 18;
/// A clock that is not known.
const UNKNOWN: i64 = i64::MIN;

/// The guest's wall clock, as far as the machine knows it.
#[derive(Debug, Clone)]
pub struct GuestClock {
    /// Nanoseconds since 1970 at virtual time 0.
    start: Arc<AtomicI64>,
}

impl Default for GuestClock {
    fn default() -> Self {
        Self {
            start: Arc::new(AtomicI64::new(UNKNOWN)),
        }
    }
}

impl GuestClock {
    /// The clock shows `date`, in ns since 1970, or later, at the virtual time `now`.
    pub fn set(&self, date: i64, now: u64) {
        let start = i64::try_from(now)
            .ok()
            .and_then(|now| date.checked_sub(now));
        if let Some(start) = start {
            self.start.store(start, Ordering::Relaxed);
        }
    }

    /// What it shows at the virtual time `now`, in ns since 1970.
    fn at(&self, now: u64) -> Option<i64> {
        let start = self.start.load(Ordering::Relaxed);
        i64::try_from(now)
            .ok()
            .filter(|_| start != UNKNOWN)?
            .checked_add(start)
    }
}

/// The time of one change, in ns since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Moment {
    guest: i64,
    host: i64,
}

/// The changes of a file's times: [`ACCESSED`], [`MODIFIED`], [`STATUS_CHANGED`].
type Changes = [Option<Moment>; 3];

const ACCESSED: usize = 0;
const MODIFIED: usize = 1;
const STATUS_CHANGED: usize = 2;

/// The times of the files of a writable share.
#[derive(Debug)]
pub(super) struct Times {
    clock: GuestClock,
    /// Virtual time of the request.
    now: u64,
    /// What the guest's clock has shown last.
    shown: i64,
    /// Host time from which on a file's time can be that of a change by the guest.
    began: i64,
    /// By device and inode.
    files: HashMap<(u64, u64), Changes>,
    /// In the order of both times.
    moments: Vec<Moment>,
}

impl Times {
    /// Times of a guest with this clock.
    pub(super) fn new(clock: GuestClock) -> Self {
        Self {
            clock,
            now: 0,
            shown: i64::MIN,
            began: host_now(),
            files: HashMap::new(),
            moments: Vec::new(),
        }
    }

    /// The next requests are of the virtual time `now`.
    pub(super) fn advance_to(&mut self, now: u64) {
        self.now = now;
    }

    /// Forgets all files.
    pub(super) fn clear(&mut self) {
        self.files.clear();
        self.moments.clear();
    }

    /// Whether the guest's clock is known.
    pub(super) fn is_known(&self) -> bool {
        self.clock.at(self.now).is_some()
    }

    /// What the guest's clock shows. It never goes back.
    fn guest_now(&mut self) -> Option<i64> {
        self.shown = self.clock.at(self.now)?.max(self.shown);
        Some(self.shown)
    }

    /// The first moment. The host's clock can have ticked since a change, so that its own time
    /// is better than the present.
    fn begin(&mut self, guest: i64, change: Option<i64>) {
        if self.moments.is_empty() {
            let host = change.unwrap_or_else(host_now);
            self.moments.push(Moment { guest, host });
        }
    }

    /// The guest has changed the file that has the attributes `stat` now.
    pub(super) fn changed(&mut self, stat: &Stat) {
        let Some(guest) = self.guest_now() else {
            return;
        };
        let times = times(stat);
        let change = times[STATUS_CHANGED].filter(|host| *host >= self.began);
        self.begin(guest, change);
        if let Some(host) = change
            && self.moments.last().is_some_and(|last| last.host < host)
        {
            self.remember(Moment { guest, host });
        }
        let mut changes = self.changes(stat);
        for (change, host) in changes.iter_mut().zip(times) {
            let Some(host) = host.filter(|host| *host >= self.began) else {
                continue;
            };
            if change.is_none_or(|change| change.host != host) {
                *change = Some(Moment { guest, host });
            }
        }
        self.keep(stat, changes);
    }

    /// The guest has set times of access and modification. The file has the attributes `stat` now.
    pub(super) fn has_set(&mut self, stat: &Stat, set: [Option<i64>; 2]) {
        let mut changes = self.changes(stat);
        for ((change, host), guest) in changes.iter_mut().zip(times(stat)).zip(set) {
            if let (Some(guest), Some(host)) = (guest, host) {
                *change = (guest != host).then_some(Moment { guest, host });
            }
        }
        self.keep(stat, changes);
    }

    /// The host's time for a time that the guest sets.
    pub(super) fn host_time(&mut self, guest: i64) -> i64 {
        let Some(now) = self.guest_now() else {
            return guest;
        };
        self.begin(now, None);
        if now < guest {
            return guest;
        }
        let after = self.moments.partition_point(|moment| moment.guest <= guest);
        let before = after.checked_sub(1).and_then(|at| self.moments.get(at));
        before.map_or(guest, |moment| moment.host)
    }

    /// Replaces the host's times by the guest's.
    pub(super) fn show(&self, stat: &mut Stat) {
        if !self.is_known() {
            return;
        }
        let host = times(stat);
        let changes = self.changes(stat);
        let guest = |at: usize| {
            let change = changes.get(at).copied().flatten();
            let change = change.filter(|change| host.get(at) == Some(&Some(change.host)));
            change.map(|change| split(change.guest))
        };
        if let Some(time) = guest(MODIFIED) {
            (stat.st_mtime, stat.st_mtime_nsec) = time;
        }
        if let Some(time) = guest(STATUS_CHANGED) {
            (stat.st_ctime, stat.st_ctime_nsec) = time;
        }
        if let Some(time) = guest(ACCESSED) {
            (stat.st_atime, stat.st_atime_nsec) = time;
        } else if host.first().is_some_and(|time| *time >= Some(self.began)) {
            // It was read later than it was modified.
            (stat.st_atime, stat.st_atime_nsec) = (stat.st_mtime, stat.st_mtime_nsec);
        }
    }

    /// Forgets a file that is no longer there.
    pub(super) fn forget(&mut self, stat: &Stat) {
        self.files.remove(&(stat.st_dev, stat.st_ino));
    }

    /// Number of files with times of the guest.
    #[cfg(test)]
    pub(super) fn files(&self) -> usize {
        self.files.len()
    }

    fn changes(&self, stat: &Stat) -> Changes {
        let changes = self.files.get(&(stat.st_dev, stat.st_ino));
        changes.copied().unwrap_or_default()
    }

    fn keep(&mut self, stat: &Stat, changes: Changes) {
        let key = (stat.st_dev, stat.st_ino);
        if changes == Changes::default() {
            self.files.remove(&key);
        } else if self.files.len() < MAX_FILES || self.files.contains_key(&key) {
            self.files.insert(key, changes);
        }
    }

    fn remember(&mut self, moment: Moment) {
        if self.moments.len() >= MAX_MOMENTS {
            let mut index = 0;
            self.moments.retain(|_| {
                index += 1;
                index % 2 == 1
            });
        }
        self.moments.push(moment);
    }
}

/// The times of access, modification and status change, where 64 bits have room for them.
fn times(stat: &Stat) -> [Option<i64>; 3] {
    [
        join(stat.st_atime, stat.st_atime_nsec),
        join(stat.st_mtime, stat.st_mtime_nsec),
        join(stat.st_ctime, stat.st_ctime_nsec),
    ]
}

fn join(seconds: i64, nanoseconds: u64) -> Option<i64> {
    let nanoseconds = i64::try_from(nanoseconds).ok()?;
    seconds.checked_mul(NS_PER_SECOND)?.checked_add(nanoseconds)
}

fn split(time: i64) -> (i64, u64) {
    (
        time.div_euclid(NS_PER_SECOND),
        time.rem_euclid(NS_PER_SECOND).unsigned_abs(),
    )
}

/// The time that the guest sets, in ns since 1970, if it is neither omitted nor the present.
pub(super) fn given(time: Timespec) -> Option<i64> {
    let nanoseconds = u64::try_from(time.tv_nsec).ok()?;
    join(time.tv_sec, nanoseconds).filter(|_| time.tv_nsec < NS_PER_SECOND)
}

/// A time in ns since 1970.
pub(super) fn timespec(time: i64) -> Timespec {
    let (tv_sec, nanoseconds) = split(time);
    Timespec {
        tv_sec,
        tv_nsec: nanoseconds.cast_signed(),
    }
}

/// The host's clock as its file systems read it.
fn host_now() -> i64 {
    let time = clock_gettime(ClockId::RealtimeCoarse);
    given(time).unwrap_or_default()
}
