//! The traced tasks of a guest whose branches the host records: the agent reports tasks and
//! mappings, and the records come out of a log of the processors.

use std::collections::HashSet;

use vbts_cpu::{BranchLog, LogScope, Probe};
use vbts_protocol::Follow;
use vbts_trace::Event;

use super::logged_records::LoggedRecords;
use crate::pipeline::merge::AgentEvent;

/// Time in ns for which records wait for mappings: the agent reports a mapping soon after it was
/// made, and it is valid for the records that wait.
const WAIT: u64 = 20_000_000;

/// Choice of the recorded tasks, and of their branches.
#[derive(Debug, Clone)]
pub struct HostRecording {
    /// The branches.
    pub scope: LogScope,
    /// Probes at which the kernel switches tasks.
    pub probes: Vec<Probe>,
    /// The guest's kernel is a 32-bit one.
    pub is_32_bit: bool,
    /// The tasks.
    pub follow: Follow,
    /// The signal to report, if one is.
    pub signal: Option<u32>,
}

/// Adds records to what the agent reports.
#[derive(Debug)]
pub(super) struct HostRecorder {
    wanted: HostRecording,
    records: LoggedRecords,
    /// The present time of the machine, in ns.
    now: u64,
    /// The time of the machine at which CLOCK_MONOTONIC of the guest was 0.
    boot: Option<u64>,
    /// The traced tasks.
    tasks: HashSet<u32>,
    /// The processes of the traced tasks, also those that have ended.
    processes: HashSet<u32>,
    /// The first process.
    first: Option<u32>,
}

impl HostRecorder {
    pub(super) fn new(wanted: HostRecording) -> Self {
        Self {
            records: LoggedRecords::new(wanted.is_32_bit),
            wanted,
            now: 0,
            boot: None,
            tasks: HashSet::new(),
            processes: HashSet::new(),
            first: None,
        }
    }

    /// The log that the processors fill.
    pub(super) fn log(&self) -> Box<BranchLog> {
        let HostRecording { scope, probes, .. } = &self.wanted;
        self.records.log(*scope, probes.clone())
    }

    /// The messages that follow were sent at `now`, a time of the machine in ns.
    pub(super) fn advance_to(&mut self, now: u64) {
        self.now = now;
    }

    /// Returns whether the trace has code of a process.
    pub(super) fn has_process(&self, process: u32) -> bool {
        self.processes.contains(&process)
    }

    /// Returns what `event` of the agent means for the trace. Its time becomes that of the machine,
    /// which the records have.
    pub(super) fn event(&mut self, mut event: AgentEvent) -> Vec<AgentEvent> {
        if let Some(time) = event.time_mut() {
            let boot = *self.boot.get_or_insert(self.now.saturating_sub(*time));
            self.records.set_boot(boot);
            *time = self.now.saturating_sub(boot);
        }
        match &event {
            AgentEvent::Start {
                task,
                process,
                parent,
                time,
                ..
            } => {
                let first = *self.first.get_or_insert(*process);
                let is_followed = match self.wanted.follow {
                    Follow::All => true,
                    Follow::Threads => *process == first,
                    Follow::None => self.processes.is_empty(),
                };
                if !is_followed {
                    let untraced = Event::Untraced {
                        id: *task,
                        parent: *parent,
                        time: *time,
                        name: Vec::new(),
                        reason: b"not followed".to_vec(),
                    };
                    return vec![AgentEvent::Untraced {
                        task: *task,
                        event: untraced,
                    }];
                }
                self.tasks.insert(*task);
                self.processes.insert(*process);
                self.records.start(*task);
            }
            AgentEvent::Maps { process, .. } if !self.has_process(*process) => return Vec::new(),
            AgentEvent::Maps { .. } => {}
            AgentEvent::Untraced { task, .. } => {
                self.tasks.remove(task);
                self.records.end(*task);
            }
            AgentEvent::Drained { task, .. }
            | AgentEvent::Event { task, .. }
            | AgentEvent::Records { task, .. }
                if !self.tasks.contains(task) =>
            {
                return Vec::new();
            }
            AgentEvent::Drained { task, .. } => {
                let mut events = self.records_of(*task);
                events.push(event);
                return events;
            }
            AgentEvent::Event {
                task,
                event: Event::Exec { id, .. },
            } if id != task => {
                self.tasks.remove(task);
                self.tasks.insert(*id);
                self.records.rename(*task, *id);
            }
            AgentEvent::Event {
                task,
                event: Event::End { .. },
            } => {
                self.tasks.remove(task);
                self.records.end(*task);
            }
            AgentEvent::Event {
                event: Event::Signal { signal, .. },
                ..
            } if self.wanted.signal != Some(*signal) => return Vec::new(),
            AgentEvent::Event { .. } | AgentEvent::Records { .. } => {}
        }
        vec![event]
    }

    /// The records that have waited for mappings for long enough.
    pub(super) fn old_records(&mut self) -> Vec<AgentEvent> {
        self.take_until(self.now.saturating_sub(WAIT))
    }

    /// All records, at the end of the run.
    pub(super) fn last_records(&mut self) -> Vec<AgentEvent> {
        self.take_until(u64::MAX)
    }

    fn take_until(&mut self, until: u64) -> Vec<AgentEvent> {
        let mut events = Vec::new();
        for (task, lists, time) in self.records.take_until(until) {
            let lists = lists.into_iter();
            events.extend(lists.map(|records| AgentEvent::Records { task, records }));
            events.push(AgentEvent::Drained { task, time });
        }
        events
    }

    fn records_of(&mut self, task: u32) -> Vec<AgentEvent> {
        let lists = self.records.take(task).into_iter();
        lists
            .map(|records| AgentEvent::Records { task, records })
            .collect()
    }
}
