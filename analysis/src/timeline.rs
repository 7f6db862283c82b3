//! Functions over time, in Perfetto's trace format
//! (<https://perfetto.dev/docs/reference/synthetic-track-event>).
//!
//! A branch has no time. The time of a task is therefore the number of instructions that it has
//! executed.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;

use vbts_trace::profile::stack::Stack;
use vbts_trace::profile::tree::Label;
use vbts_trace::profile::{Ended, Seen, Sees, Watch};

use self::packet::{
    EventName, Interned, Packet, Packets, Process, SequenceFlags, SliceKind, Thread, Track,
    TrackEvent,
};
use self::spool::Spool;
use super::open_calls::OpenCalls;
use super::{Loaded, Names, Out};

mod packet;
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

    fn record(&mut self, seen: &Seen<'_>) {
        let frames = seen.stack.frames();
        let frames = frames.get(..MAX_DEPTH).unwrap_or(frames);
        let (task, clock) = (seen.task, seen.count.instructions);
        self.open.follow(
            task,
            frames,
            &mut self.spool,
            |spool, node, ()| spool.push(task, node, SliceKind::End, clock),
            |spool, frame, _| spool.push(task, frame.node, SliceKind::Begin, clock),
        );
    }

    fn renamed(&mut self, task: u64, stack: &Stack) {
        self.open.renamed(task, stack.frames());
    }

    fn end(&mut self, ended: &Ended<'_>) {
        let (task, clock) = (ended.task, ended.count.instructions);
        for (node, ()) in self.open.finish(task).into_iter().rev() {
            self.spool.push(task, node, SliceKind::End, clock);
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
    let entries = profile.watch().spool.finish()?;
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
    // Each name is written once, before the calls. An identifier is not 0.
    let mut ids: HashMap<Label, u64> = HashMap::new();
    let mut event_names = Vec::new();
    let mut names_of_nodes = Vec::new();
    for node in nodes {
        names_of_nodes.push(profile.is_shown(node.label).then(|| {
            *ids.entry(node.label).or_insert_with(|| {
                let (iid, name) = (event_names.len() as u64 + 1, names.label(node.label));
                let name = name.to_owned();
                event_names.push(EventName { iid, name });
                iid
            })
        }));
    }
    packets.write(Packet {
        interned_data: Some(Interned { event_names }),
        sequence_flags: Some(SequenceFlags::Cleared as u32),
        ..Packet::default()
    })?;
    for entry in entries {
        let entry = entry?;
        let Some(Some(name)) = names_of_nodes.get(entry.node as usize) else {
            continue;
        };
        packets.write(Packet {
            timestamp: Some(entry.clock),
            track_event: Some(TrackEvent {
                kind: entry.kind,
                track_uuid: track(entry.task),
                name_iid: (entry.kind() == SliceKind::Begin).then_some(*name),
            }),
            sequence_flags: Some(SequenceFlags::Needed as u32),
            ..Packet::default()
        })?;
    }
    Ok(())
}
