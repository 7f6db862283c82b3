//! Calls and returns in order, indented, as ftrace's `function_graph` and uftrace print them.
//!
//! A branch has no time. How long a call took is therefore the number of instructions that its task
//! has executed until it returned.

use std::collections::{BTreeSet, HashMap};
use std::io;

use vbts_trace::profile::functions::FunctionId;
use vbts_trace::profile::stack::{Frame, FrameKind, Stack};
use vbts_trace::profile::tree::{Label, Node, NodeId};
use vbts_trace::profile::{Ended, Seen, Sees, TaskCount, Watch};

use super::open_calls::OpenCalls;
use super::{Loaded, Names, Out};

/// Maximum number of lines that are kept: 128 MiB.
const MAX_LINES: usize = 1 << 22;
/// Indentation in columns for each call, and at most.
const INDENT: (usize, usize) = (2, 120);

/// Content of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A call whose callees are in the lines that follow.
    Open,
    /// A call without callees that are shown, with its instructions.
    Leaf(u64),
    /// The return from a call, with the instructions of it and its callees.
    Close(u64),
    /// The end of the task, or of the trace, in a call, with its instructions so far.
    Unfinished(u64),
}

/// A line.
#[derive(Debug, Clone, Copy)]
struct Line {
    task: u32,
    depth: u32,
    node: NodeId,
    kind: Kind,
}

/// A call that has not returned.
#[derive(Debug, Clone, Copy)]
struct OpenCall {
    /// A chosen function, or one that such a call leads to, is called.
    is_chosen: bool,
    /// The number of shown calls in which it is.
    depth: u32,
    /// Instructions of the task when it began.
    start: u64,
    /// Index of the line, if the call is shown.
    line: Option<usize>,
}

/// The calls and returns of all tasks.
#[derive(Debug, Default)]
pub struct CallTrace {
    choice: Choice,
    open: OpenCalls<OpenCall>,
    lines: Lines,
}

/// Which calls are shown.
#[derive(Debug, Default)]
pub struct Choice {
    /// Only calls of these functions and what these call, if not all. A profile of the same
    /// branches numbers its functions so.
    pub functions: Option<BTreeSet<FunctionId>>,
    /// Only calls that are in fewer others that are shown.
    pub max_depth: u32,
    /// Stubs of the procedure linkage table are calls.
    pub raw_frames: bool,
}

impl Choice {
    /// Returns whether a call is chosen wherever it is.
    fn has(&self, frame: &Frame) -> bool {
        let functions = self.functions.as_ref();
        functions.is_none_or(|functions| {
            let is_call = !matches!(frame.kind, FrameKind::Signal(_));
            is_call && functions.contains(&frame.function)
        })
    }
}

/// The lines that are shown.
#[derive(Debug, Default)]
struct Lines {
    list: Vec<Line>,
    /// Calls for which there was no room.
    cut: bool,
}

impl Lines {
    fn begin(&mut self, task: u32, node: NodeId, depth: u32) -> Option<usize> {
        if self.list.len() >= MAX_LINES {
            self.cut = true;
            return None;
        }
        self.list.push(Line {
            task,
            depth,
            node,
            kind: Kind::Open,
        });
        Some(self.list.len() - 1)
    }

    fn end(&mut self, task: u32, node: NodeId, call: OpenCall, clock: u64, is_finished: bool) {
        let Some(at) = call.line else {
            return;
        };
        let instructions = clock.saturating_sub(call.start);
        let is_last = at + 1 == self.list.len();
        match self.list.get_mut(at) {
            Some(line) if is_last && is_finished => line.kind = Kind::Leaf(instructions),
            // There is room for the ends of the calls that were kept.
            _ => self.list.push(Line {
                task,
                depth: call.depth,
                node,
                kind: match is_finished {
                    true => Kind::Close(instructions),
                    false => Kind::Unfinished(instructions),
                },
            }),
        }
    }
}

impl CallTrace {
    /// Keeps the calls that are chosen.
    pub fn new(choice: Choice) -> Self {
        Self {
            choice,
            ..Self::default()
        }
    }

    /// Follows a record that begins or ends calls.
    #[inline(never)]
    fn follow(&mut self, seen: &Seen<'_>) {
        let (id, clock) = (seen.count.id, seen.count.instructions);
        let (choice, frames) = (&self.choice, seen.stack.frames());
        let end = |lines: &mut Lines, node, call| lines.end(id, node, call, clock, true);
        if self.lines.cut {
            // New calls have no room. Those that have a line still get their ends.
            self.open.end(seen.task, frames, &mut self.lines, end);
            return;
        }
        self.open.follow(
            seen.task,
            frames,
            &mut self.lines,
            end,
            |lines, frame, outer| {
                let in_line = |call: OpenCall| call.depth + u32::from(call.line.is_some());
                let depth = outer.map_or(0, in_line);
                let is_chosen = outer.is_some_and(|call| call.is_chosen) || choice.has(frame);
                let is_shown = is_chosen
                    && depth < choice.max_depth
                    && (choice.raw_frames || !seen.functions.is_linkage(frame.function));
                let line = is_shown.then(|| lines.begin(id, frame.node, depth));
                OpenCall {
                    is_chosen,
                    depth,
                    start: clock,
                    line: line.flatten(),
                }
            },
        );
    }
}

impl Watch for CallTrace {
    const SEES: Sees = Sees::Calls;

    #[inline(always)]
    fn record(&mut self, seen: &Seen<'_>) {
        // Most records of a long trace come after the last line.
        if !(self.lines.cut && self.open.are_in(seen.task, seen.stack.frames())) {
            self.follow(seen);
        }
    }

    fn renamed(&mut self, task: u64, stack: &Stack) {
        self.open.renamed(task, stack.frames());
    }

    fn end(&mut self, ended: &Ended<'_>) {
        let count = ended.count;
        for (node, call) in self.open.finish(ended.task).into_iter().rev() {
            self.lines
                .end(count.id, node, call, count.instructions, false);
        }
    }
}

/// The texts for the tasks in lines: thread IDs, with names if a task has one of its own.
fn task_names(tasks: &[(u64, TaskCount)], names: &Names) -> HashMap<u32, String> {
    let has_names = tasks.iter().any(|(_, task)| task.thread_name.is_some());
    let name = |task: &TaskCount| match has_names {
        true => format!("{} {}", task.id, names.program(task.name())),
        false => task.id.to_string(),
    };
    tasks
        .iter()
        .map(|(_, task)| (task.id, name(task)))
        .collect()
}

/// Shows the calls and returns.
///
/// # Errors
/// The output fails.
pub fn call_trace(profile: &mut Loaded<CallTrace>, out: &mut Out<'_>) -> io::Result<()> {
    let names = Names::of(profile);
    let lines = std::mem::take(&mut profile.watch().lines);
    let shows_inlined = profile.shows_inlined();
    let nodes = profile.tree().nodes();
    let name = |node: NodeId| {
        let node = nodes.get(node as usize);
        node.map_or("", |node| names.label(node.label))
    };
    // The inlined functions that have made a call, the innermost first.
    let inlined = |node: NodeId| {
        let caller = |node: &Node| {
            let caller = nodes.get(node.parent as usize)?;
            (matches!(caller.label, Label::Inlined(_)) && shows_inlined).then_some(*caller)
        };
        let callers = std::iter::successors(nodes.get(node as usize).copied(), caller);
        let callers: Vec<&str> = callers
            .skip(1)
            .map(|node| names.label(node.label))
            .collect();
        match callers.as_slice() {
            [] => String::new(),
            callers => format!(" /* from {} */", callers.join(", ")),
        }
    };
    let tasks = task_names(profile.tasks(), &names);
    let width = tasks.values().map(String::len).max().unwrap_or(0).max(8);
    writeln!(out, "{:>14} {:>width$}  call", "instructions", "task")?;
    let spaces = " ".repeat(INDENT.1);
    for line in &lines.list {
        let indent = spaces.get(..INDENT.0 * line.depth as usize);
        let indent = indent.unwrap_or(&spaces);
        let (name, inlined) = (name(line.node), inlined(line.node));
        let task = tasks.get(&line.task).map_or("", String::as_str);
        match line.kind {
            Kind::Open => write!(out, "{:>14}", "")?,
            Kind::Leaf(count) | Kind::Close(count) | Kind::Unfinished(count) => {
                write!(out, "{count:>14}")?;
            }
        }
        write!(out, " {task:>width$}  {indent}")?;
        match line.kind {
            Kind::Open => writeln!(out, "{name}() {{{inlined}")?,
            Kind::Leaf(_) => writeln!(out, "{name}();{inlined}")?,
            Kind::Close(_) => writeln!(out, "}} /* {name} */")?,
            Kind::Unfinished(_) => writeln!(out, "}} /* {name}: has not returned */")?,
        }
    }
    if lines.cut {
        writeln!(
            out,
            "only the first {MAX_LINES} lines are shown: --from, --task and --depth select others"
        )?;
    }
    Ok(())
}
