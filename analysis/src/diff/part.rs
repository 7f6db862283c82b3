//! The first branch of a task that two runs have executed differently.

use std::io;

use vbts_trace::profile::Watch;
use vbts_trace::profile::modules::Place;
use vbts_trace::profile::tree::NodeId;

use super::executions::{Executions, Parted, WINDOW};
use super::own::Branch;
use super::windows::Windows;
use crate::names::name_places;
use crate::{Loaded, Names, Out};

/// Maximum number of callers that are shown.
const MAX_CALLERS: usize = 12;

/// A branch, with its number among those that were read.
type Executed = (Branch, u64);

/// Where two runs part.
#[derive(Debug)]
pub(super) struct Difference {
    first: Option<Executed>,
    second: Option<Executed>,
    /// The branch instruction that went the other way, in the second run; `None` if the runs were
    /// not on the same line.
    at: Option<Place>,
    /// How often it was executed up to there.
    executions: Option<u64>,
    /// The innermost node of the stack, in the second run.
    node: NodeId,
}

impl Difference {
    /// The first difference between the branches of the first run and those of the second one, both
    /// from the same sum on. `None` if a part of the branches is missing.
    pub(super) fn find(first: &[Executed], parted: &Parted, second: &Executions) -> Option<Self> {
        let own = |mark: u32| second.own.branch(mark).copied();
        let steps: Option<Vec<Executed>> = parted
            .steps
            .iter()
            .map(|step| Some((own(step.mark)?, step.record)))
            .collect();
        let steps = steps?;
        let pairs = first.iter().zip(&steps);
        let equal = pairs
            .take_while(|((a, _), (b, _))| a.key() == b.key())
            .count();
        let (a, b) = (first.get(equal).copied(), steps.get(equal).copied());
        if a.is_none() && b.is_none() {
            return None;
        }
        let before = equal.checked_sub(1).and_then(|before| steps.get(before));
        let at = place(before.map(|(branch, _)| branch), a, b);
        let executions = at.zip(parted.counts.as_ref()).map(|(at, counts)| {
            let contains = |mark| own(mark).is_some_and(|branch| is_on_line(&branch, at));
            let all = counts.iter().filter(|(mark, _)| contains(*mark));
            let all: u64 = all.map(|(_, count)| *count).sum();
            let rest = parted.steps.get(equal + 1..).unwrap_or_default();
            let later = rest.iter().filter(|step| contains(step.mark)).count();
            // If the second run has ended there, no line of it contains the branch again.
            all.saturating_sub(later as u64) + u64::from(b.is_none())
        });
        Some(Self {
            first: a,
            second: b,
            at,
            executions,
            node: parted
                .steps
                .get(equal)
                .map_or(parted.node, |step| step.node),
        })
    }

    /// Shows it.
    pub(super) fn write(
        &self,
        first: &mut Loaded<Windows>,
        second: &mut Loaded<Executions>,
        out: &mut Out<'_>,
    ) -> io::Result<()> {
        write!(out, "  the first branch that differs")?;
        if let Some(at) = self.at
            && let [name] = name_places(second, &[at]).as_slice()
        {
            write!(out, ": {name}")?;
        }
        match self.executions {
            Some(executions) => writeln!(out, ", execution {executions}")?,
            None => writeln!(out)?,
        }
        let of_first = self.describe(self.first, first);
        writeln!(out, "  first  {of_first}")?;
        let of_second = self.describe(self.second, second);
        writeln!(out, "  second {of_second}")?;
        writeln!(out, "  stack  {}", stack(second, self.node))
    }

    /// What a run has done.
    fn describe<W: Watch>(&self, executed: Option<Executed>, profile: &mut Loaded<W>) -> String {
        let Some((branch, record)) = executed else {
            return "no further branch".into();
        };
        let names = name_places(profile, &[branch.from, branch.to]);
        let [from, to] = names.as_slice() else {
            return String::new();
        };
        let what = match self.at {
            Some(at) if at.offset == branch.from.offset => format!("-> {to}"),
            Some(_) => "not taken".to_owned(),
            None => format!("{from} -> {to}"),
        };
        format!("branch {record:>10}  {what}")
    }
}

/// The branch instruction at which two runs part that have executed `before` last.
fn place(before: Option<&Branch>, a: Option<Executed>, b: Option<Executed>) -> Option<Place> {
    let own = |executed: Option<Executed>| {
        let (branch, _) = executed?;
        let is_next = before.is_none_or(|before| {
            before.to.module != branch.module || before.to.offset == branch.start.offset
        });
        (branch.from.module == branch.module && is_next).then_some(branch.from)
    };
    match (a, b) {
        (Some(_), Some(_)) => {
            let (a, b) = (own(a)?, own(b)?);
            // The one that comes first on the line.
            let offset = a.offset.min(b.offset);
            Some(Place { offset, ..b })
        }
        (Some((branch, _)), None) => Some(Place {
            module: before.map_or(branch.module, |before| before.module),
            ..own(a)?
        }),
        (None, _) => own(b),
    }
}

/// Whether a branch is on the line that another one ends.
fn is_on_line(branch: &Branch, at: Place) -> bool {
    branch.start.module == at.module
        && (branch.start.offset..=branch.from.offset).contains(&at.offset)
}

/// The functions on the stack, the outermost first.
fn stack(profile: &mut Loaded<Executions>, node: NodeId) -> String {
    let names = Names::of(profile);
    let nodes = profile.tree().nodes();
    let mut labels = Vec::new();
    let mut at = node;
    while let Some(node) = nodes.get(at as usize) {
        if profile.is_shown(node.label) {
            labels.push(names.label(node.label));
        }
        if labels.len() > MAX_CALLERS {
            labels.push("...");
            break;
        }
        if node.parent == at {
            break;
        }
        at = node.parent;
    }
    labels.reverse();
    labels.join(" > ")
}

/// Whether all own branches since the last sum are known.
pub(super) fn is_whole(parted: &Parted, executed: u64) -> bool {
    let before = (parted.window as u64).saturating_mul(WINDOW);
    let steps = executed.saturating_sub(before).min(WINDOW);
    parted.steps.len() as u64 == steps
}
