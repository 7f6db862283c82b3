//! The child of a fork, which the client follows or leaves.

use vbts_gdb::{Stop, StopReason, ThreadAction, ThreadId, ThreadInfo};

use crate::client_points::ClientPoints;
use crate::debugger::Debugger;

/// The child of the fork at which the process has stopped.
#[derive(Debug, Clone)]
pub(crate) struct Forked {
    /// The child's only thread.
    pub thread: ThreadId,
    /// The stop points in the child, which has inherited those of its parent.
    points: ClientPoints,
}

impl Debugger {
    /// Notes the child if the process stops for a fork.
    pub(crate) fn note_fork(&mut self, stop: &Stop) {
        self.forked = match stop.reason {
            StopReason::Fork { child } | StopReason::Vfork { child } => Some(Forked {
                thread: child,
                points: self.points.clone(),
            }),
            _ => None,
        };
    }

    /// The stop points of the client in a process: the one under debug, or the child of its fork.
    pub(crate) fn points_of(&mut self, process: u32) -> Option<&mut ClientPoints> {
        if process == self.process {
            return Some(&mut self.points);
        }
        let forked = self.forked.as_mut();
        let child = forked.filter(|child| child.thread.process == process);
        child.map(|child| &mut child.points)
    }

    /// Threads that the client knows besides those of the process: the child of a fork, until the
    /// client detaches from it or follows it, and the parent of a vfork whose child it has
    /// followed.
    pub(crate) fn other_threads(&self) -> impl Iterator<Item = ThreadInfo> {
        let child = self.forked.as_ref().map(|child| child.thread);
        let others = child.into_iter().chain(self.parent);
        others.map(|id| ThreadInfo {
            id,
            name: String::new(),
            processor: None,
            state: String::new(),
        })
    }

    /// Detaches from one process, or from all. From the parent at a fork, that is to follow the
    /// child.
    pub(crate) fn leave(&mut self, process: Option<u32>) {
        if process.is_some_and(|process| process == self.process) && self.follow_child() {
            return;
        }
        self.has_detached |= process.is_none_or(|process| process == self.process);
        let is_left = |thread: &ThreadId| process == Some(thread.process);
        self.forked = self.forked.take().filter(|child| !is_left(&child.thread));
        self.parent = self.parent.filter(|parent| !is_left(parent));
    }

    /// Follows the child if it alone is resumed. The client keeps the parent of a vfork then, until
    /// the child executes a program or exits.
    pub(crate) fn follow_resumed(&mut self, threads: &[(ThreadId, ThreadAction)]) {
        let Some(child) = self.forked.as_ref().map(|child| child.thread.process) else {
            return;
        };
        let is_alone = threads.iter().all(|(thread, _)| thread.process == child);
        let parent = self.stop.thread;
        if is_alone && !threads.is_empty() && self.follow_child() {
            self.parent = Some(parent);
        }
    }

    /// Debugs the child of the fork in the place of its parent. The session then goes from the fork
    /// to the end of the child. Returns whether there is one.
    fn follow_child(&mut self) -> bool {
        let now = self.replay.now();
        let processes = &self.replay.agent.processes;
        let child = self.forked.as_ref().map(|child| child.thread.process);
        let child = child
            .and_then(|child| processes.forked_at(child, now))
            .cloned();
        let (Some(process), Some(forked)) = (child, self.forked.take()) else {
            return false;
        };
        let maps = &mut self.replay.agent.maps;
        if let Some(of_parent) = maps.get(&self.process).cloned() {
            maps.entry(process.id).or_insert(of_parent);
        }
        (self.process, self.start, self.begin) = (process.id, process.start, now);
        self.points = forked.points;
        self.programs = process.all_programs();
        self.find_end(&process, process.start);
        self.crash = self.crash_of(&process).map(|(time, ..)| time);
        self.stop = Stop {
            thread: forked.thread,
            reason: StopReason::Signal(0),
        };
        self.note_program(forked.thread);
        true
    }
}
