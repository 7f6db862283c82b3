//! The open calls of each task, from record to record.

use std::collections::HashMap;

use vbts_trace::profile::stack::Frame;
use vbts_trace::profile::tree::NodeId;

/// Maximum number of open calls that are kept of all tasks.
const MAX_OPEN: usize = 1 << 21;

/// The open calls of each task, by its number: for each, its node of the call tree and a `C`.
#[derive(Debug)]
pub(crate) struct OpenCalls<C> {
    tasks: HashMap<u64, Vec<(NodeId, C)>>,
    /// Number of open calls.
    count: usize,
}

impl<C> Default for OpenCalls<C> {
    fn default() -> Self {
        Self {
            tasks: HashMap::new(),
            count: 0,
        }
    }
}

impl<C: Copy> OpenCalls<C> {
    /// Follows a record after which the task has the stack `frames`. Passes the calls that have
    /// ended to `end`, the innermost first, and then the frames of new ones to `begin`, with the
    /// call around it.
    pub(crate) fn follow<S>(
        &mut self,
        task: u64,
        frames: &[Frame],
        state: &mut S,
        end: impl Fn(&mut S, NodeId, C),
        begin: impl Fn(&mut S, &Frame, Option<C>) -> C,
    ) {
        let open = self.tasks.entry(task).or_default();
        // Only the inner frames change.
        while let Some((node, call)) = open.last().copied()
            && frames
                .get(open.len() - 1)
                .is_none_or(|frame| frame.node != node)
        {
            open.pop();
            self.count -= 1;
            end(state, node, call);
        }
        let new = frames.get(open.len()..).unwrap_or_default();
        let new = new.get(..MAX_OPEN - self.count).unwrap_or(new);
        for frame in new {
            let outer = open.last().map(|(_, call)| *call);
            open.push((frame.node, begin(state, frame, outer)));
        }
        self.count += new.len();
    }

    /// Removes the open calls of a task that has ended, the outermost first.
    pub(crate) fn finish(&mut self, task: u64) -> Vec<(NodeId, C)> {
        let open = self.tasks.remove(&task).unwrap_or_default();
        self.count -= open.len();
        open
    }
}
