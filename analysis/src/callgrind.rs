//! The call graph in the format of Valgrind's callgrind, for KCachegrind and callgrind_annotate.
//!
//! Costs are those of whole functions, at the line where each begins. The format is in the manual
//! of Valgrind, "Callgrind Format Specification".

use std::collections::{BTreeMap, HashMap};
use std::io;

use vbts_trace::profile::Watch;
use vbts_trace::profile::tree::{Label, Node};

use super::calls::sorted_children;
use super::names::shown;
use super::{Loaded, Names, Out};

/// The name for a file that is not known, as callgrind has it.
const UNKNOWN: &str = "???";

/// Number of instructions, and of taken branches.
type Cost = (u64, u64);

/// The calls from one function to another one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Calls {
    count: u64,
    /// The cost of the callee with its callees.
    total: Cost,
}

/// The functions, programs and signal handlers of a call tree, and the calls between them. Each has
/// a number: its position in `labels` and `own`.
#[derive(Debug, Default)]
struct Graph {
    labels: Vec<Label>,
    numbers: HashMap<Label, usize>,
    own: Vec<Cost>,
    calls: BTreeMap<(usize, usize), Calls>,
}

impl Graph {
    /// The graph of a call tree.
    fn of(nodes: &[Node], totals: &[Cost]) -> Self {
        let mut graph = Self::default();
        let (roots, children) = sorted_children(nodes, totals);
        // How often each pair of caller and callee is on the path to the current node.
        let mut active: HashMap<(usize, usize), u32> = HashMap::new();
        let mut open: Vec<(u32, Option<usize>, bool)> = roots
            .iter()
            .rev()
            .map(|root| (*root, None, false))
            .collect();
        while let Some((at, caller, leaves)) = open.pop() {
            let Some(node) = nodes.get(at as usize) else {
                continue;
            };
            let number = graph.number(node.label);
            let pair = caller.map(|caller| (caller, number));
            if leaves {
                if let Some(count) = pair.and_then(|pair| active.get_mut(&pair)) {
                    *count -= 1;
                }
                continue;
            }
            if let Some(own) = graph.own.get_mut(number) {
                own.0 += node.instructions;
                own.1 += node.branches;
            }
            if let Some(pair) = pair {
                let calls = graph.calls.entry(pair).or_default();
                calls.count += node.calls;
                let count = active.entry(pair).or_default();
                // What a call inside of such a call executes is in the cost of the outer one.
                if *count == 0 {
                    let total = totals.get(at as usize).copied().unwrap_or_default();
                    calls.total.0 += total.0;
                    calls.total.1 += total.1;
                }
                *count += 1;
                open.push((at, caller, true));
            }
            let below = children.get(at as usize).into_iter().flatten().rev();
            open.extend(below.map(|child| (*child, Some(number), false)));
        }
        graph
    }

    /// The number of a label.
    fn number(&mut self, label: Label) -> usize {
        *self.numbers.entry(label).or_insert_with(|| {
            self.labels.push(label);
            self.own.push((0, 0));
            self.labels.len() - 1
        })
    }
}

/// Module, source file and line of what a label stands for.
fn place(names: &Names, label: Label) -> (&str, &str, u32) {
    let (module, line) = names.place(label);
    let module = match label {
        Label::Function(_) | Label::Inlined(_) => names.module(module),
        Label::Program(_) | Label::Signal => UNKNOWN,
    };
    match line {
        Some((file, line)) => (module, file, *line),
        None => (module, UNKNOWN, 0),
    }
}

/// Writes the call graph. `command` is the command line that was traced.
///
/// # Errors
/// The output fails.
pub fn callgrind<W: Watch>(
    profile: &mut Loaded<W>,
    command: &str,
    out: &mut Out<'_>,
) -> io::Result<()> {
    let names = Names::of(profile);
    let tree = profile.shown_tree();
    let graph = Graph::of(tree.nodes(), &tree.totals());
    let sum = |of: fn(&Cost) -> u64| graph.own.iter().map(of).sum::<u64>();
    let whole = (sum(|cost| cost.0), sum(|cost| cost.1));
    writeln!(out, "# callgrind format\nversion: 1")?;
    writeln!(out, "creator: vbts {}", env!("CARGO_PKG_VERSION"))?;
    writeln!(out, "cmd: {}\npositions: line", shown(command))?;
    writeln!(out, "event: Ir : Instructions\nevent: Br : Taken branches")?;
    writeln!(out, "events: Ir Br\nsummary: {} {}", whole.0, whole.1)?;
    for (number, label) in graph.labels.iter().enumerate() {
        let (module, file, line) = place(&names, *label);
        let own = graph.own.get(number).copied().unwrap_or_default();
        writeln!(out, "\nob={module}\nfl={file}")?;
        // The number tells functions of one name apart, and is where a call names the callee.
        writeln!(out, "fn=({number}) {}", names.label(*label))?;
        writeln!(out, "{line} {} {}", own.0, own.1)?;
        let calls = graph.calls.range((number, 0)..=(number, usize::MAX));
        for ((_, callee), calls) in calls {
            let Some(label) = graph.labels.get(*callee) else {
                continue;
            };
            let (module, file, to) = place(&names, *label);
            writeln!(out, "cob={module}\ncfi={file}")?;
            writeln!(out, "cfn=({callee}) {}", names.label(*label))?;
            writeln!(out, "calls={} {to}", calls.count)?;
            writeln!(out, "{line} {} {}", calls.total.0, calls.total.1)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recursive_call_has_the_cost_of_the_outer_one() {
        let node = |parent, function, calls, instructions| Node {
            parent,
            label: match function {
                0 => Label::Program(0),
                id => Label::Function(id),
            },
            calls,
            instructions,
            branches: instructions / 10,
        };
        // A program calls 1, which calls itself twice in each other, and then 2.
        let nodes = [
            node(0, 0, 0, 0),
            node(0, 1, 1, 100),
            node(1, 1, 3, 50),
            node(2, 1, 2, 20),
            node(3, 2, 4, 10),
        ];
        let totals = [(180, 18), (180, 18), (80, 8), (30, 3), (10, 1)];
        let graph = Graph::of(&nodes, &totals);
        assert_eq!(graph.own, [(0, 0), (170, 17), (10, 1)]);
        let calls = |count, total| Calls { count, total };
        assert_eq!(
            graph.calls.into_iter().collect::<Vec<_>>(),
            [
                ((0, 1), calls(1, (180, 18))),
                ((1, 1), calls(5, (80, 8))),
                ((1, 2), calls(4, (10, 1))),
            ]
        );
    }
}
