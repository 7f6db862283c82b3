//! The open calls of each task, from record to record.

use std::collections::HashMap;

use vbts_trace::profile::stack::Frame;
use vbts_trace::profile::tree::NodeId;

/// Maximum number of open calls that are kept of all tasks.
const MAX_OPEN: usize = 1 << 21;

/// The open calls of a task: for each, its node of the call tree and a `C`.
type Open<C> = Vec<(NodeId, C)>;

/// The open calls of each task.
#[derive(Debug)]
pub(crate) struct OpenCalls<C> {
    /// The number of the task that was followed last, and its calls.
    last: (u64, Open<C>),
    /// The calls of the other tasks, by their numbers.
    others: HashMap<u64, Open<C>>,
    /// Number of open calls.
    count: usize,
}

impl<C> Default for OpenCalls<C> {
    fn default() -> Self {
        Self {
            last: (0, Vec::new()),
            others: HashMap::new(),
            count: 0,
        }
    }
}

impl<C: Copy> OpenCalls<C> {
    /// Follows a record after which the task has the stack `frames`. Passes the calls that have
    /// ended to `end`, the innermost first, and then the frames of new ones to `begin`, with the
    /// call around it.
    #[inline(always)]
    pub(crate) fn follow<S>(
        &mut self,
        task: u64,
        frames: &[Frame],
        state: &mut S,
        end: impl Fn(&mut S, NodeId, C),
        begin: impl Fn(&mut S, &Frame, Option<C>) -> C,
    ) {
        self.end(task, frames, state, end);
        let open = &mut self.last.1;
        let new = frames.get(open.len()..).unwrap_or_default();
        let new = new.get(..MAX_OPEN - self.count).unwrap_or(new);
        for frame in new {
            let outer = open.last().map(|(_, call)| *call);
            open.push((frame.node, begin(state, frame, outer)));
        }
        self.count += new.len();
    }

    /// Returns whether all open calls of a task are in its stack `frames`.
    #[inline(always)]
    pub(crate) fn are_in(&self, task: u64, frames: &[Frame]) -> bool {
        let (last, open) = &self.last;
        let innermost = open.last().map(|(node, _)| *node);
        let frame = open.len().checked_sub(1).and_then(|at| frames.get(at));
        *last == task && innermost == frame.map(|frame| frame.node)
    }

    /// As [`Self::follow`], but new calls are not followed.
    #[inline(always)]
    pub(crate) fn end<S>(
        &mut self,
        task: u64,
        frames: &[Frame],
        state: &mut S,
        end: impl Fn(&mut S, NodeId, C),
    ) {
        self.select(task);
        let open = &mut self.last.1;
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
    }

    /// Makes [`Self::last`] the calls of `task`.
    #[inline]
    fn select(&mut self, task: u64) {
        if self.last.0 != task {
            self.switch_to(task);
        }
    }

    #[cold]
    fn switch_to(&mut self, task: u64) {
        let open = self.others.remove(&task).unwrap_or_default();
        let (last, open) = std::mem::replace(&mut self.last, (task, open));
        if !open.is_empty() {
            self.others.insert(last, open);
        }
    }

    /// Takes the nodes that the frames of a task have got without a call or a return.
    pub(crate) fn renamed(&mut self, task: u64, frames: &[Frame]) {
        self.select(task);
        for ((node, _), frame) in self.last.1.iter_mut().zip(frames) {
            *node = frame.node;
        }
    }

    /// Removes the open calls of a task that has ended, the outermost first.
    pub(crate) fn finish(&mut self, task: u64) -> Open<C> {
        self.select(task);
        let open = std::mem::take(&mut self.last.1);
        self.count -= open.len();
        open
    }
}

#[cfg(test)]
mod tests {
    use vbts_trace::profile::stack::FrameKind;

    use super::*;

    fn frame(node: NodeId) -> Frame {
        Frame {
            node,
            ret: 0,
            function: 0,
            kind: FrameKind::Call,
        }
    }

    #[test]
    fn calls_of_tasks_that_take_turns_are_kept_apart() {
        let mut open = OpenCalls::default();
        let mut ended = Vec::new();
        let mut follow = |task, nodes: &[NodeId]| {
            let frames: Vec<Frame> = nodes.iter().copied().map(frame).collect();
            open.follow(
                task,
                &frames,
                &mut ended,
                |ended: &mut Vec<_>, node, number| ended.push((node, number)),
                |_, _, outer: Option<u32>| outer.map_or(0, |outer| outer + 1),
            );
        };
        follow(7, &[1, 2]);
        follow(9, &[1, 3]);
        follow(7, &[1, 2, 4]);
        follow(9, &[1]);
        follow(7, &[1, 5]);
        assert_eq!(ended, [(3, 1), (4, 2), (2, 1)]);
        open.renamed(7, &[frame(8), frame(9)]);
        assert_eq!(open.finish(7), [(8, 0), (9, 1)]);
        assert_eq!(open.finish(7), []);
        assert_eq!(open.finish(9), [(1, 0)]);
        assert_eq!(open.count, 0);
    }
}
