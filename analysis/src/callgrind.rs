//! The call graph in the format of Valgrind's callgrind, for KCachegrind and callgrind_annotate.
//!
//! Costs are at the source lines that have them, and at the line where a function begins if the
//! debugging information names no line. The format is in the manual of Valgrind, "Callgrind Format
//! Specification".

use std::collections::{BTreeMap, HashMap};
use std::io;

use vbts_trace::profile::Watch;
use vbts_trace::profile::tree::{Label, Node};

use super::calls::sorted_children;
use super::line_costs::{Cost, LineCosts, SourceLine};
use super::names::shown;
use super::{Loaded, Names, Out};

/// The name for a file that is not known, as callgrind has it.
const UNKNOWN: &str = "???";

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
    fn of(nodes: &[Node], totals: &[(u64, u64)]) -> Self {
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
                own.add(Cost {
                    instructions: node.instructions,
                    branches: node.branches,
                });
            }
            if let Some(pair) = pair {
                let calls = graph.calls.entry(pair).or_default();
                calls.count += node.calls;
                let count = active.entry(pair).or_default();
                // What a call inside of such a call executes is in the cost of the outer one.
                if *count == 0 {
                    let (instructions, branches) =
                        totals.get(at as usize).copied().unwrap_or_default();
                    calls.total.add(Cost {
                        instructions,
                        branches,
                    });
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
            self.own.push(Cost::default());
            self.labels.len() - 1
        })
    }
}

/// Names and source lines of labels.
struct Shown {
    names: Names,
    lines: LineCosts,
}

impl Shown {
    /// The path of a source file.
    fn path(&self, line: SourceLine) -> &str {
        let path = self.lines.paths.list.get(line.file as usize);
        path.map_or(UNKNOWN, String::as_str)
    }

    /// Module, source file and line of what a label stands for.
    fn place(&self, label: Label) -> (&str, &str, u32) {
        let (module, line) = self.names.place(label);
        let module = match label {
            Label::Function(_) | Label::Inlined(_) => self.names.module(module),
            Label::Program(_) | Label::Signal => UNKNOWN,
        };
        if let Some((file, line)) = line {
            return (module, file, *line);
        }
        // An inlined function begins at the first line of it that was executed.
        match self.lines.of_label(label).next() {
            Some((line, _)) => (module, self.path(*line), line.line),
            None => (module, UNKNOWN, 0),
        }
    }
}

/// Writes the costs of one function, and remembers the source file of the last one.
struct Positions<'a, 'b> {
    out: &'a mut Out<'b>,
    /// The file of the function, and that of the last cost.
    own: &'a str,
    file: &'a str,
}

impl<'a> Positions<'a, '_> {
    /// Names the source file of what follows.
    fn file(&mut self, file: &'a str) -> io::Result<()> {
        if file == self.file {
            return Ok(());
        }
        self.file = file;
        let key = if file == self.own { "fe" } else { "fi" };
        writeln!(self.out, "{key}={file}")
    }

    /// Writes a cost at a line of the last file.
    fn cost(&mut self, line: u32, cost: Cost) -> io::Result<()> {
        writeln!(self.out, "{line} {cost}")
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
    let source = Shown {
        names: Names::of(profile),
        lines: LineCosts::of(profile),
    };
    let Shown { names, lines } = &source;
    let tree = profile.shown_tree();
    let graph = Graph::of(tree.nodes(), &tree.totals());
    let mut whole = Cost::default();
    graph.own.iter().for_each(|own| whole.add(*own));
    writeln!(out, "# callgrind format\nversion: 1")?;
    writeln!(out, "creator: vbts {}", env!("CARGO_PKG_VERSION"))?;
    writeln!(out, "cmd: {}\npositions: line", shown(command))?;
    writeln!(out, "event: Ir : Instructions\nevent: Br : Taken branches")?;
    writeln!(out, "events: Ir Br\nsummary: {whole}")?;
    for (number, caller) in graph.labels.iter().enumerate() {
        let (module, file, first) = source.place(*caller);
        writeln!(out, "\nob={module}\nfl={file}")?;
        // The number tells functions of one name apart, and is where a call names the callee.
        writeln!(out, "fn=({number}) {}", names.label(*caller))?;
        let mut at = Positions {
            out,
            own: file,
            file,
        };
        let own = graph.own.get(number).copied().unwrap_or_default();
        let mut known = Cost::default();
        lines
            .of_label(*caller)
            .for_each(|(_, cost)| known.add(*cost));
        match own.without(known) {
            Some(rest) => {
                if rest != Cost::default() || known == Cost::default() {
                    at.cost(first, rest)?;
                }
                for (line, cost) in lines.of_label(*caller) {
                    at.file(source.path(*line))?;
                    at.cost(line.line, *cost)?;
                }
            }
            // A part of the code was executed in frames of other functions.
            None => at.cost(first, own)?,
        }
        let calls = graph.calls.range((number, 0)..=(number, usize::MAX));
        for ((_, callee), calls) in calls {
            let Some(callee_label) = graph.labels.get(*callee) else {
                continue;
            };
            let from = lines.of_call(*caller, *callee_label);
            at.file(from.map_or(file, |from| source.path(from)))?;
            let (module, callee_file, to) = source.place(*callee_label);
            writeln!(at.out, "cob={module}\ncfi={callee_file}")?;
            writeln!(at.out, "cfn=({callee}) {}", names.label(*callee_label))?;
            // How often an inlined function was called is not known, and callgrind_annotate takes
            // the cost of no call as that of the caller.
            writeln!(at.out, "calls={} {to}", calls.count.max(1))?;
            at.cost(from.map_or(first, |from| from.line), calls.total)?;
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
        let cost = |instructions, branches| Cost {
            instructions,
            branches,
        };
        assert_eq!(graph.own, [cost(0, 0), cost(170, 17), cost(10, 1)]);
        let calls = |count, (instructions, branches)| Calls {
            count,
            total: cost(instructions, branches),
        };
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
