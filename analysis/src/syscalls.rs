//! The system calls of a run: how often each was made, and what the kernel has executed for it.

use std::collections::{BTreeMap, HashMap};
use std::io;

use serde_json::json;
use vbts_trace::profile::modules::{Modules, is_kernel};
use vbts_trace::profile::stack::Stack;
use vbts_trace::profile::tree::{Label, NodeId};
use vbts_trace::profile::{Ended, Seen, Sees, Watch};

use super::open_calls::OpenCalls;
use super::{Loaded, Names, Out, percent};

/// Beginnings of the names of the kernel's functions that execute system calls. The first ones call
/// the last ones.
const PREFIXES: [&str; 5] = [
    "__x64_sys_",
    "__ia32_sys_",
    "__ia32_compat_sys_",
    "__x32_compat_sys_",
    "__do_sys_",
];

/// An open call of the kernel.
#[derive(Debug, Clone, Copy)]
struct OpenCall {
    /// Instructions that the task had executed.
    start: u64,
    /// Number of the branch.
    record: u64,
}

/// Calls of one function of the kernel from one stack.
#[derive(Debug, Clone, Copy, Default)]
struct Calls {
    count: u64,
    instructions: u64,
    /// Instructions of the longest one, and the number of the branch that has called it.
    longest: u64,
    record: u64,
}

impl Calls {
    fn add(&mut self, other: Self) {
        if other.longest >= self.longest {
            (self.longest, self.record) = (other.longest, other.record);
        }
        self.count += other.count;
        self.instructions += other.instructions;
    }
}

/// Keeps the calls of the kernel's functions.
#[derive(Debug, Default)]
pub struct SystemCalls {
    /// `None` for calls of other functions.
    open: OpenCalls<Option<OpenCall>>,
    /// By the node of the call tree.
    nodes: HashMap<NodeId, Calls>,
}

impl SystemCalls {
    fn end(nodes: &mut HashMap<NodeId, Calls>, node: NodeId, call: Option<OpenCall>, clock: u64) {
        let Some(call) = call else { return };
        let instructions = clock.saturating_sub(call.start);
        nodes.entry(node).or_default().add(Calls {
            count: 1,
            instructions,
            longest: instructions,
            record: call.record,
        });
    }

    /// Follows a record that can begin or end a call of the kernel.
    #[inline(never)]
    fn follow(&mut self, seen: &Seen<'_>) {
        let (clock, record) = (seen.count.instructions, seen.record);
        self.open.follow(
            seen.task,
            seen.stack.frames(),
            &mut self.nodes,
            |nodes, node, call| Self::end(nodes, node, call, clock),
            |_, frame, _| {
                let module = seen.functions.get(frame.function).start.module;
                (module == Modules::KERNEL).then_some(OpenCall {
                    start: clock,
                    record,
                })
            },
        );
    }
}

impl Watch for SystemCalls {
    const SEES: Sees = Sees::Calls;

    #[inline(always)]
    fn record(&mut self, seen: &Seen<'_>) {
        // Branches inside the program neither begin nor end calls of the kernel.
        if is_kernel(seen.from) || is_kernel(seen.to) {
            self.follow(seen);
        }
    }

    fn renamed(&mut self, task: u64, stack: &Stack) {
        self.open.renamed(task, stack.frames());
    }

    fn end(&mut self, ended: &Ended<'_>) {
        // The last system call of a task does not return.
        for (node, call) in self.open.finish(ended.task) {
            Self::end(&mut self.nodes, node, call, ended.count.instructions);
        }
    }
}

/// The name of the system call that a function of the kernel executes.
fn system_call(function: &str) -> Option<&str> {
    let mut prefixes = PREFIXES.iter();
    prefixes.find_map(|prefix| function.strip_prefix(prefix))
}

/// Shows the system calls, those first for which the kernel has executed most. There are none if
/// the kernel's branches were not recorded, or its functions have no names.
///
/// # Errors
/// The output fails.
pub fn system_calls(
    profile: &mut Loaded<SystemCalls>,
    as_json: bool,
    out: &mut Out<'_>,
) -> io::Result<()> {
    let names = Names::of(profile);
    let nodes = std::mem::take(profile.watch()).nodes;
    let tree = profile.tree().nodes();
    let named = |node: NodeId| match tree.get(node as usize)?.label {
        Label::Function(id) if profile.functions().get(id).start.module == Modules::KERNEL => {
            system_call(&names.function(id).name)
        }
        _ => None,
    };
    // Whether each node is inside a system call. A parent comes before its children.
    let mut is_inside = vec![false; tree.len()];
    let mut calls: BTreeMap<&str, Calls> = BTreeMap::new();
    for (at, node) in tree.iter().enumerate() {
        let parent = node.parent as usize;
        let outer = parent != at && is_inside.get(parent).is_some_and(|is_inside| *is_inside);
        let name = named(at as NodeId);
        if let Some(is_inside) = is_inside.get_mut(at) {
            *is_inside = outer || name.is_some();
        }
        if let (Some(name), false, Some(of_node)) = (name, outer, nodes.get(&(at as NodeId))) {
            calls.entry(name).or_default().add(*of_node);
        }
    }
    let mut rows: Vec<(&str, Calls)> = calls.into_iter().collect();
    rows.sort_by_key(|(name, calls)| (std::cmp::Reverse(calls.instructions), *name));
    if as_json {
        for (name, calls) in rows {
            let object = json!({
                "name": name,
                "calls": calls.count,
                "instructions": calls.instructions,
                "longest": calls.longest,
                "longest_branch": calls.record,
            });
            writeln!(out, "{object}")?;
        }
        return Ok(());
    }
    if rows.is_empty() {
        return writeln!(
            out,
            "no system calls: vbts trace --scope all records the kernel's branches"
        );
    }
    let whole = profile.counts().instructions;
    writeln!(
        out,
        "{:>14} {:>6} {:>10} {:>12} {:>12} {:>12}  system call",
        "instructions", "", "calls", "each", "longest", "at branch"
    )?;
    for (name, calls) in rows {
        let Calls {
            count,
            instructions,
            longest,
            record,
        } = calls;
        let share = percent(instructions, whole);
        let each = instructions / count.max(1);
        writeln!(
            out,
            "{instructions:>14} {share:>5.1}% {count:>10} {each:>12} {longest:>12} {record:>12}  {name}"
        )?;
    }
    Ok(())
}
