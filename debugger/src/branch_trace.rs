//! Branch traces that the client has begun, with `record btrace` of GDB, and where each begins.

use std::collections::HashMap;

use vbts_gdb::{BranchHistory, Result, Target as _, TargetError, ThreadId};

use crate::debugger::{Debugger, fatal};
use crate::target::unrecorded;

/// The first position at which a trace of a thread has branches.
#[derive(Debug, Clone, Copy)]
struct Start {
    /// Virtual time in ns.
    position: u64,
    /// RIP there.
    rip: u64,
}

/// Settings of the client for branch traces.
#[derive(Debug, Default)]
pub(crate) struct BranchTraces {
    /// A trace begins where the client begins it, and not at the first position.
    pub from_here: bool,
    /// The threads whose trace the client has begun with `from_here` set.
    starts: HashMap<ThreadId, Start>,
}

impl Debugger {
    /// Begins or ends the trace of `thread`. A replay makes the branches when the client reads
    /// them.
    pub(crate) fn set_traced(&mut self, thread: ThreadId, enable: bool) -> Result<()> {
        self.branch_traces.starts.remove(&thread);
        if enable && self.branch_traces.from_here {
            let start = Start {
                position: self.replay.now(),
                rip: self.read_registers(thread)?.rip,
            };
            self.branch_traces.starts.insert(thread, start);
        }
        Ok(())
    }

    /// Returns the branches in the trace of `thread`, as [`Target::branches`] does.
    ///
    /// [`Target::branches`]: vbts_gdb::Target::branches
    pub(crate) fn traced_branches(
        &mut self,
        thread: ThreadId,
        since: Option<u64>,
        limit: usize,
    ) -> Result<BranchHistory> {
        if self.replay.departure.is_some() {
            return Err(unrecorded());
        }
        let position = self.replay.now();
        let start = self.branch_traces.starts.get(&thread).copied();
        let first = start.map_or(self.begin, |start| start.position.max(self.begin));
        // A trace that goes on from a place before its start would lack what is between them.
        let is_later = |since: u64| since > position || start.is_some() && since < first;
        if since.is_some_and(is_later) {
            return Err(TargetError::Refused(
                "the trace does not go on from that time".into(),
            ));
        }
        if first > position {
            // The trace is empty: it begins with the present instruction, until the replay is
            // behind its start again.
            return Ok(BranchHistory {
                branches: Vec::new(),
                first: Some(self.read_registers(thread)?.rip),
                position,
            });
        }
        let from = since.unwrap_or(first).max(first);
        let branches = self
            .branches_since(self.selection_of(thread), from, limit)
            .map_err(fatal)?;
        if since.is_some() && branches.are_more {
            return Err(TargetError::Refused("there are more branches".into()));
        }
        Ok(BranchHistory {
            first: start.filter(|_| !branches.are_more).map(|start| start.rip),
            branches: branches.last,
            position,
        })
    }
}
