//! Functions over time, in the trace event format that Chrome's tracing and Perfetto read.
//!
//! A branch has no time. The time of a task is therefore the number of instructions that it has
//! executed.

use std::collections::HashMap;
use std::io;

use serde_json::json;
use vbts_trace::profile::tree::NodeId;
use vbts_trace::profile::{Ended, Seen, Sees, TaskCount, Watch};

use super::open_calls::OpenCalls;
use super::{Loaded, Names, Out};

/// Maximum number of calls that are kept. When it is reached, the shorter half is dropped.
const MAX_SPANS: usize = 1 << 19;
/// Maximum number of open calls that are kept of a task. Deeper ones are not shown.
const MAX_DEPTH: usize = 1 << 10;

/// A call, with its time in instructions.
#[derive(Debug, Clone, Copy)]
struct Span {
    task: u64,
    node: NodeId,
    start: u64,
    length: u64,
}

/// The calls of all tasks.
#[derive(Debug, Default)]
pub struct Timeline {
    /// Each with the instructions of its task when it began.
    open: OpenCalls<u64>,
    spans: Spans,
}

/// The longest of the calls that have ended.
#[derive(Debug, Default)]
struct Spans {
    list: Vec<Span>,
    /// Shorter calls are not kept.
    least: u64,
}

impl Spans {
    fn add(&mut self, task: u64, node: NodeId, start: u64, clock: u64) {
        let length = clock.saturating_sub(start);
        if length < self.least {
            return;
        }
        if self.list.len() >= MAX_SPANS {
            let mut lengths: Vec<u64> = self.list.iter().map(|span| span.length).collect();
            let middle = lengths.len() / 2;
            self.least = *lengths.select_nth_unstable(middle).1 + 1;
            let least = self.least;
            self.list.retain(|span| span.length >= least);
        }
        self.list.push(Span {
            task,
            node,
            start,
            length,
        });
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
            &mut self.spans,
            |spans, node, start| spans.add(task, node, start, clock),
            |_, _, _| clock,
        );
    }

    fn end(&mut self, ended: &Ended<'_>) {
        let task = ended.task;
        for (node, start) in self.open.finish(task) {
            self.spans.add(task, node, start, ended.count.instructions);
        }
    }
}

/// Writes the calls of all tasks.
///
/// # Errors
/// The output fails.
pub fn timeline(profile: &mut Loaded<Timeline>, out: &mut Out<'_>) -> io::Result<()> {
    let names = Names::of(profile);
    let tasks: HashMap<u64, TaskCount> = profile.tasks().iter().cloned().collect();
    let timeline = std::mem::take(profile.watch());
    let Spans {
        list: mut spans,
        least,
    } = timeline.spans;
    spans.sort_by_key(|span| (span.task, span.start, std::cmp::Reverse(span.length)));
    let nodes = profile.tree().nodes();
    writeln!(out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    for (number, task) in profile.tasks() {
        let name = format!("{} {}", names.program(task.program), task.id);
        let event = json!({
            "ph": "M", "name": "thread_name", "pid": task.process, "tid": number,
            "args": {"name": name},
        });
        writeln!(out, "{event},")?;
    }
    for span in &spans {
        let node = nodes.get(span.node as usize);
        let Some(node) = node.filter(|node| profile.is_shown(node.label)) else {
            continue;
        };
        // The format's times are microseconds: an instruction is shown as a nanosecond.
        let event = json!({
            "ph": "X",
            "name": names.label(node.label),
            "pid": tasks.get(&span.task).map_or(0, |task| task.process),
            "tid": span.task,
            "ts": span.start as f64 / 1000.0,
            "dur": span.length as f64 / 1000.0,
        });
        writeln!(out, "{event},")?;
    }
    let note = json!({
        "ph": "M", "name": "process_labels", "pid": 0,
        "args": {"labels": "1 ns is 1 instruction", "shortest": least},
    });
    writeln!(out, "{note}\n]}}")
}
