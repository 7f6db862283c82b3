//! The snapshots of a replay in a file, so that a later session of the same recording does not run
//! it from the start.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs::File;
use std::io::{self, Write};

use anyhow::anyhow;
use serde::{Deserialize, Serialize};
use vbts_gdb::ThreadId;
use vbts_host::exit::{Failure, say};
use vbts_vmm::machine::SnapshotKey;

use crate::processes::Processes;
use crate::replay::{EventKind, Replay, TaskEvent};

/// Maximum size in bytes of the pages of memory in a file, which is a quarter of that if possible:
/// it is read as a whole.
const MAX_PAGES: usize = 512 << 20;

/// The files for the snapshots of a recording.
#[derive(Debug)]
pub struct SnapshotFiles {
    /// The identity of the replay.
    pub key: SnapshotKey,
    /// The snapshots of an earlier session, if there are any.
    pub old: Option<File>,
    /// The file for those of this session.
    pub new: Box<dyn SnapshotFile>,
}

/// A new file of snapshots, which is dropped if it is not complete.
pub trait SnapshotFile: Write + Debug {
    /// Keeps the file, which is complete.
    ///
    /// # Errors
    /// It cannot be kept.
    fn keep(self: Box<Self>) -> io::Result<()>;
}

/// What the first run through a recording has found, besides the snapshots.
#[derive(Debug, Serialize, Deserialize)]
struct Facts {
    /// As (time, process, thread, kind).
    events: Vec<(u64, u32, u32, EventKind)>,
    /// Virtual times in ns of the end of the run, and of the guest's failure.
    end: u64,
    failure: Option<u64>,
    processes: Processes,
    maps: BTreeMap<u32, Vec<u8>>,
}

impl Facts {
    fn of(replay: &Replay) -> Self {
        let events = replay.events.iter().map(|event| {
            let ThreadId { process, thread } = event.thread;
            (event.time, process, thread, event.kind.clone())
        });
        Self {
            events: events.collect(),
            end: replay.end,
            failure: replay.failure,
            processes: replay.agent.processes.clone(),
            maps: replay.agent.maps.clone(),
        }
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let facts: Self = postcard::from_bytes(bytes).ok()?;
        let in_order = facts.events.is_sorted_by_key(|(time, ..)| *time);
        let last = facts.events.last().map_or(0, |(time, ..)| *time);
        let last = last.max(facts.failure.unwrap_or(0));
        (in_order && last <= facts.end).then_some(facts)
    }

    fn apply(self, replay: &mut Replay) {
        replay.agent.processes = self.processes;
        replay.agent.maps = self.maps;
        (replay.end, replay.failure) = (self.end, self.failure);
        let events = self.events.into_iter();
        let events = events.map(|(time, process, thread, kind)| TaskEvent {
            time,
            thread: ThreadId { process, thread },
            kind,
        });
        replay.events = events.collect();
    }
}

impl Replay {
    /// Reads the snapshots of an earlier session. Returns whether the replay knows the whole run
    /// from them. Otherwise it is where it was, at the start.
    ///
    /// # Errors
    /// The replay cannot go back to the start.
    pub(crate) fn load(&mut self, mut file: &File, key: &SnapshotKey) -> Result<bool, Failure> {
        let read = self.history.read(
            &mut self.machine,
            &mut self.agent,
            &mut file,
            key,
            MAX_PAGES,
        );
        let read = read.map_err(|error| Failure::Error(error.into()));
        let loaded = read.and_then(|bytes| {
            let damaged = || anyhow!("the events of the run are damaged");
            let facts = Facts::decode(&bytes).ok_or_else(damaged)?;
            // States that a machine never has are refused here.
            let last = self.history.times().next_back().unwrap_or_default();
            self.history
                .seek(&mut self.machine, last, &mut self.agent)?;
            Ok(facts)
        });
        match loaded {
            Ok(facts) => {
                facts.apply(self);
                self.is_loaded = true;
                Ok(true)
            }
            Err(failure) => {
                say(format_args!(
                    "the snapshots in the cache cannot be used, and the recording is replayed \
                     again: {failure}"
                ));
                self.history.forget(&mut self.machine, &mut self.agent)?;
                self.agent.processes = Processes::default();
                Ok(false)
            }
        }
    }

    /// Writes the snapshots for later sessions, unless they come from an earlier one. Those close
    /// to `begin`, in ns, and to the present position are among them. The session goes on without
    /// a file if it cannot be written.
    pub(crate) fn keep(&self, files: Option<SnapshotFiles>, begin: u64) {
        tracing::info!(
            executed = self.history.executed(),
            instructions = self.instructions(),
            end = self.end,
            "the replay is open"
        );
        let Some(SnapshotFiles { key, mut new, .. }) = files.filter(|_| !self.is_loaded) else {
            return;
        };
        let needed = [begin, self.now()];
        let written = postcard::to_allocvec(&Facts::of(self))
            .map_err(anyhow::Error::from)
            .and_then(|facts| {
                self.history
                    .write(&mut *new, &key, facts, &needed, MAX_PAGES)?;
                Ok(new.keep()?)
            });
        match written {
            Ok(()) => tracing::info!("the snapshots are kept"),
            Err(error) => tracing::info!("the snapshots are not kept: {error:#}"),
        }
    }
}
