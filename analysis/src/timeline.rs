//! Functions over time, in Perfetto's trace format
//! (<https://perfetto.dev/docs/reference/synthetic-track-event>).
//!
//! A branch has no time. The time of a task is therefore the number of instructions that it has
//! executed.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;

use vbts_trace::profile::stack::Stack;
use vbts_trace::profile::tree::{Label, Node, NodeId};
use vbts_trace::profile::{Ended, Seen, Sees, Watch};

use self::packet::{Packet, Process, Thread, Track};
use self::slices::{Packets, Sequence};
use self::spool::{Entry, Spool};
use super::open_calls::OpenCalls;
use super::{Loaded, Names, Out};

mod packet;
mod slices;
mod spool;

/// Maximum number of open calls that are kept of a task. Deeper ones are not shown.
const MAX_DEPTH: usize = 1 << 10;

/// The calls of all tasks, as they begin and end.
#[derive(Debug)]
pub struct Timeline {
    open: OpenCalls<()>,
    spool: Spool,
}

impl Timeline {
    /// A timeline that keeps its calls in `file`, which is empty, until their names are known.
    pub fn new(file: File) -> Self {
        Self {
            open: OpenCalls::default(),
            spool: Spool::new(file),
        }
    }
}

impl Watch for Timeline {
    const SEES: Sees = Sees::Calls;

    #[inline(always)]
    fn record(&mut self, seen: &Seen<'_>) {
        let frames = seen.stack.frames();
        let frames = frames.get(..MAX_DEPTH).unwrap_or(frames);
        let (task, clock) = (seen.task, seen.count.instructions);
        self.open.follow(
            task,
            frames,
            &mut self.spool,
            |spool, _, ()| spool.end(task, clock),
            |spool, frame, _| spool.begin(task, frame.node, clock),
        );
    }

    fn renamed(&mut self, task: u64, stack: &Stack) {
        self.open.renamed(task, stack.frames());
    }

    fn end(&mut self, ended: &Ended<'_>) {
        let (task, clock) = (ended.task, ended.count.instructions);
        for _ in self.open.finish(task) {
            self.spool.end(task, clock);
        }
    }
}

/// The identifier of a task's track, which is not 0.
fn track(task: u64) -> u64 {
    task.saturating_add(1)
}

/// Writes the calls of all tasks.
///
/// # Errors
/// The output fails, or the calls could not be kept.
pub fn timeline(profile: &mut Loaded<Timeline>, out: &mut Out<'_>) -> io::Result<()> {
    let names = Names::of(profile);
    let mut entries = profile.watch().spool.finish()?;
    let (tasks, nodes) = (profile.tasks(), profile.tree().nodes());
    let mut packets = Packets::new(out);
    let mut processes = BTreeMap::new();
    for (number, task) in tasks {
        let program = names.program(task.program);
        let pid = task.process as i32;
        processes.entry(pid).or_insert(program);
        let thread = Thread {
            pid,
            tid: task.id as i32,
            name: format!("{} {}", names.program(task.name()), task.id),
        };
        packets.write(Packet {
            track_descriptor: Some(Track {
                uuid: track(*number),
                thread: Some(thread),
                process: None,
            }),
            ..Packet::default()
        })?;
    }
    let last = tasks.iter().map(|(number, _)| track(*number)).max();
    for (uuid, (pid, name)) in (last.unwrap_or(0) + 1..).zip(processes) {
        let name = name.to_owned();
        packets.write(Packet {
            track_descriptor: Some(Track {
                uuid,
                process: Some(Process { pid, name }),
                thread: None,
            }),
            ..Packet::default()
        })?;
    }
    // For each node the number of its name, if it is shown.
    let mut numbers: HashMap<Label, u32> = HashMap::new();
    let name = |node: &Node| {
        let next = numbers.len() as u32;
        profile
            .is_shown(node.label)
            .then(|| *numbers.entry(node.label).or_insert(next))
    };
    let numbers_of_nodes: Vec<Option<u32>> = nodes.iter().map(name).collect();
    let name = |node: NodeId| {
        let node = nodes.get(node as usize);
        node.map_or("", |node| names.label(node.label))
    };
    let mut slices: HashMap<u64, Slices> = HashMap::new();
    let mut current = None;
    while let Some(entry) = entries.next()? {
        match (entry, &mut current) {
            (Entry::Task(task), _) => {
                if let Some((last, calls)) = current.take() {
                    slices.insert(last, calls);
                }
                let known = slices.remove(&task);
                let calls = known.map_or_else(|| Slices::begin(&mut packets, task), Ok)?;
                current = Some((task, calls));
            }
            (Entry::Begin { node, clock }, Some((_, calls))) => {
                let number = numbers_of_nodes.get(node as usize).copied().flatten();
                calls.is_shown.push(number.is_some());
                if let Some(number) = number {
                    let sequence = &mut calls.sequence;
                    packets.slice_begin(sequence, clock, number, || name(node))?;
                }
            }
            (Entry::End { clock }, Some((_, calls))) => {
                if calls.is_shown.pop() == Some(true) {
                    packets.slice_end(&mut calls.sequence, clock)?;
                }
            }
            // A task comes before its calls.
            (Entry::Begin { .. } | Entry::End { .. }, None) => {}
        }
    }
    packets.flush()
}

/// The slices of a task.
#[derive(Debug)]
struct Slices {
    sequence: Sequence,
    /// For each open call, whether it is shown.
    is_shown: Vec<bool>,
}

impl Slices {
    fn begin(packets: &mut Packets<'_, '_>, task: u64) -> io::Result<Self> {
        Ok(Self {
            sequence: packets.begin(track(task))?,
            is_shown: Vec::new(),
        })
    }
}
