//! The stacks at a moment, and what has led there.

use std::collections::{HashMap, VecDeque};
use std::io;

use vbts_symbols::{INLINED, InlinedAt};
use vbts_trace::profile::code::SymbolKind;
use vbts_trace::profile::functions::FunctionId;
use vbts_trace::profile::modules::Place;
use vbts_trace::profile::space::Effect;
use vbts_trace::profile::stack::FrameKind;
use vbts_trace::profile::tree::NodeId;
use vbts_trace::profile::{Ended, Needs, New, Seen, Sees, Watch};

use super::interpreters::names_python;
use super::linkage::{Joined, Linkage};
use super::names::{PlaceName, name_places, names_of_places, shown_function, shown_line};
use super::{Loaded, Names, Out};

/// Maximum number of frames of a stack that are shown.
const MAX_FRAMES: usize = 256;
/// Maximum number of steps that are kept of a task.
pub(crate) const MAX_STEPS: usize = 10_000;
/// Maximum number of different calls and returns that are kept.
const MAX_TRANSFERS: usize = 1 << 22;
/// Branches of a long trace that are read, in all.
const RECENT: u64 = 1 << 22;
/// Maximum number of tasks that are shown.
const MAX_TASKS: usize = 1 << 10;

/// A branch, or several that lead through the linkage.
#[derive(Debug, Clone, Copy)]
struct Step {
    from: Place,
    to: Place,
    effect: Effect,
    depth: usize,
}

/// A frame of a stack.
#[derive(Debug, Clone, Copy)]
struct FrameNow {
    node: NodeId,
    function: FunctionId,
    kind: FrameKind,
    /// In the call instruction of the caller.
    ret: Place,
}

/// What is known of a task.
#[derive(Debug)]
struct TaskNow {
    number: u64,
    id: u32,
    /// The number of its name.
    name: u32,
    /// Number of the last branch, its kind, and where it has led from and to.
    record: u64,
    last: Step,
    frames: Vec<FrameNow>,
    /// The number of the branch from which on its branches were read, if some before were left out.
    read_from: Option<u64>,
}

/// The stacks of the tasks at the end of what was read.
#[derive(Debug, Default)]
pub struct Stacks {
    tasks: Vec<TaskNow>,
    /// Tasks that there was no memory for.
    left_out: u64,
}

impl Stacks {
    fn add(&mut self, ended: &Ended<'_>) {
        let Some(last) = ended.last else {
            return;
        };
        if self.tasks.len() >= MAX_TASKS {
            self.left_out += 1;
            return;
        }
        let (map, frames) = (ended.map, ended.stack.frames());
        let first = frames.len().saturating_sub(MAX_FRAMES);
        let shown = frames.get(first..).unwrap_or_default().iter();
        self.tasks.push(TaskNow {
            number: ended.task,
            id: ended.count.id,
            name: ended.count.name(),
            record: last.record,
            read_from: ended.read_from,
            last: Step {
                from: map.place(last.from),
                to: map.place(last.to),
                effect: last.effect,
                depth: frames.len(),
            },
            frames: shown
                .map(|frame| FrameNow {
                    node: frame.node,
                    function: frame.function,
                    kind: frame.kind,
                    // The call is before the address that it returns to.
                    ret: map.place(frame.ret.wrapping_sub(1)),
                })
                .collect(),
        });
    }
}

impl Watch for Stacks {
    const SEES: Sees = Sees::Nothing;
    const NEEDS: Needs = Needs::LastOfLastTask(RECENT);

    fn end(&mut self, ended: &Ended<'_>) {
        self.add(ended);
    }
}

/// A transfer between functions.
#[derive(Debug, Clone, Copy)]
struct Transfer {
    from: Place,
    to: Place,
    effect: Effect,
    /// Whether the ends are in the linkage.
    in_linkage: (bool, bool),
}

/// The last transfers of a task.
#[derive(Debug, Default)]
struct Recent {
    /// The marks of the transfers, of which the second has completed the step, with the depth of
    /// the stack after it.
    steps: VecDeque<(u32, u32, u32)>,
    /// The marks of transfers that lead to the linkage.
    linkage: Linkage<u32>,
}

/// Keeps the last calls and returns of each task, and the stacks.
#[derive(Debug, Default)]
pub struct Tail {
    /// Calls and returns to keep of each task.
    limit: usize,
    /// Also those to and from the linkage.
    raw_frames: bool,
    /// By mark, from 1 on.
    transfers: Vec<Transfer>,
    recent: Vec<Recent>,
    numbers: HashMap<u64, usize>,
    /// The task of the last transfer, and where it is in `recent`.
    last: Option<(u64, usize)>,
    stacks: Stacks,
}

impl Tail {
    /// Keeps the last `limit` calls and returns of each task. Calls through the procedure linkage
    /// table are several ones if `raw_frames`.
    pub fn new(limit: usize, raw_frames: bool) -> Self {
        Self {
            limit: limit.min(MAX_STEPS),
            raw_frames,
            ..Self::default()
        }
    }

    /// Where a task is in `recent`. A task more than there is memory for has no place.
    #[cold]
    fn find(&mut self, task: u64) -> usize {
        let next = self.recent.len();
        let is_full = next >= MAX_TASKS;
        let at = match self.numbers.get(&task) {
            Some(at) => *at,
            None if is_full => usize::MAX,
            None => {
                self.numbers.insert(task, next);
                self.recent.push(Recent::default());
                next
            }
        };
        self.last = Some((task, at));
        at
    }

    fn transfer(&self, mark: u32) -> Option<&Transfer> {
        self.transfers.get((mark as usize).checked_sub(1)?)
    }

    /// The last steps of a task.
    fn steps(&self, task: u64) -> Vec<Step> {
        let recent = self.numbers.get(&task).and_then(|at| self.recent.get(*at));
        let steps = recent.into_iter().flat_map(|recent| &recent.steps);
        let steps = steps.filter_map(|(first, last, depth)| {
            let (first, last) = (self.transfer(*first)?, self.transfer(*last)?);
            Some(Step {
                from: first.from,
                to: last.to,
                effect: first.effect,
                depth: *depth as usize,
            })
        });
        steps.collect()
    }
}

impl Watch for Tail {
    const SEES: Sees = Sees::Calls;
    const NEEDS: Needs = Needs::LastOfTasks(RECENT);

    fn mark(&mut self, new: &New<'_>) -> u32 {
        let transfer = new.transfer;
        if transfer.effect == Effect::Jump || self.transfers.len() >= MAX_TRANSFERS {
            return 0;
        }
        let (from, to) = (new.map.place(transfer.from), new.map.place(transfer.to));
        let is_linkage = |place| !self.raw_frames && new.functions.is_linkage_at(place);
        self.transfers.push(Transfer {
            from,
            to,
            effect: transfer.effect,
            in_linkage: (is_linkage(from), is_linkage(to)),
        });
        self.transfers.len() as u32
    }

    #[inline]
    fn record(&mut self, seen: &Seen<'_>) {
        let at = match self.last {
            Some((task, at)) if task == seen.task => at,
            _ => self.find(seen.task),
        };
        let mark = seen.mark;
        let index = (mark as usize).wrapping_sub(1);
        let (Some(recent), Some(transfer)) = (self.recent.get_mut(at), self.transfers.get(index))
        else {
            return;
        };
        let joined = recent
            .linkage
            .join(transfer.in_linkage, transfer.effect, mark);
        let Some(Joined { first, .. }) = joined else {
            return;
        };
        if recent.steps.len() >= self.limit {
            recent.steps.pop_front();
        }
        let depth = seen.stack.frames().len() as u32;
        if self.limit > 0 {
            recent.steps.push_back((first, mark, depth));
        }
    }

    fn end(&mut self, ended: &Ended<'_>) {
        self.stacks.add(ended);
    }
}

/// The frames that are shown. One inside of frames that are not returns to where these return to.
fn shown_frames<W: Watch>(frames: &[FrameNow], profile: &Loaded<W>) -> Vec<FrameNow> {
    let nodes = profile.tree().nodes();
    let mut shown = Vec::with_capacity(frames.len());
    let mut ret = None;
    for frame in frames {
        let node = nodes.get(frame.node as usize);
        if node.is_none_or(|node| profile.is_shown(node.label)) {
            let ret = ret.take().unwrap_or(frame.ret);
            shown.push(FrameNow { ret, ..*frame });
        } else {
            ret = ret.or(Some(frame.ret));
        }
    }
    shown
}

/// Shows the last calls and returns of each task, and its stack.
///
/// # Errors
/// The output fails.
pub fn tail(profile: &mut Loaded<Tail>, out: &mut Out<'_>) -> io::Result<()> {
    let mut tail = std::mem::take(profile.watch());
    let mut stacks = std::mem::take(&mut tail.stacks);
    stacks.tasks.sort_by_key(|task| task.number);
    let names = Names::of(profile);
    for task in &stacks.tasks {
        show(profile, &names, task, &tail.steps(task.number), out)?;
    }
    if stacks.left_out > 0 {
        writeln!(out, "further tasks are left out")?;
    }
    Ok(())
}

/// Shows the last branch of all tasks, and the stack of its task. Returns whether CPython executes
/// a program there.
///
/// # Errors
/// The output fails.
pub fn moment(profile: &mut Loaded<Stacks>, out: &mut Out<'_>) -> io::Result<bool> {
    let stacks = std::mem::take(profile.watch());
    let last = stacks.tasks.iter().max_by_key(|task| task.record);
    let names = Names::of(profile);
    let Some(task) = last else {
        return Ok(false);
    };
    show(profile, &names, task, &[task.last], out)?;
    let nodes = profile.tree().nodes();
    let labels = task
        .frames
        .iter()
        .filter_map(|frame| nodes.get(frame.node as usize))
        .map(|node| names.label(node.label));
    Ok(labels.into_iter().any(names_python))
}

/// The inlined functions that are active at a place, the outermost first, if they have frames.
fn inlined_at<W: Watch>(profile: &mut Loaded<W>, place: Place) -> Vec<InlinedAt> {
    if !profile.shows_inlined() {
        return Vec::new();
    }
    let (code, modules) = profile.code();
    code.files
        .inlined_at(modules.get(place.module), place.offset)
}

/// Position of a frame of a stack, as far as a place tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    /// The place is in its function, or in that of a caller, as the names tell.
    InFunction,
    /// The place is in its function, which has no name.
    InUnnamed,
    /// The place is in a part of its function that a compiler has moved away, and that no symbol
    /// names.
    InPart,
    /// The place tells nothing of the frame.
    Unknown,
}

/// Returns where a frame is whose last known place is `place`: the end of the last branch, or the
/// call of the frame `inner`.
fn position<W: Watch>(
    profile: &Loaded<W>,
    frame: &FrameNow,
    inner: Option<&FrameNow>,
    place: Option<Place>,
) -> Position {
    let kind = inner.map(|inner| inner.kind);
    if matches!(
        kind,
        Some(FrameKind::Outermost | FrameKind::First | FrameKind::Handler | FrameKind::Signal(_))
    ) {
        return Position::Unknown;
    }
    let functions = profile.functions();
    let Some(id) = place.and_then(|place| functions.executed_at(place)) else {
        return Position::InFunction;
    };
    let function = functions.get(id);
    // A function that has jumped to another one is not in the place that this one returns to.
    match kind == Some(FrameKind::Tail) {
        false if id == frame.function && !function.named => Position::InUnnamed,
        false if id != frame.function && function.kind == SymbolKind::Part => Position::InPart,
        _ => Position::InFunction,
    }
}

/// Shows the last steps of a task, and its stack.
fn show<W: Watch>(
    profile: &mut Loaded<W>,
    names: &Names,
    task: &TaskNow,
    steps: &[Step],
    out: &mut Out<'_>,
) -> io::Result<()> {
    writeln!(out, "task {} ({})", task.id, names.program(task.name))?;
    let ends: Vec<Place> = (steps.iter().flat_map(|step| [step.from, step.to])).collect();
    let labels = name_places(profile, &ends);
    let outer = steps.iter().map(|step| step.depth).min().unwrap_or(0);
    for (step, labels) in steps.iter().zip(labels.chunks(2)) {
        let [from, to] = labels else {
            continue;
        };
        let indent = (step.depth - outer).min(40);
        let what = match step.effect {
            Effect::Call => "call",
            Effect::Return => "return",
            Effect::Tail => "tail call",
            Effect::Enter => "enter",
            Effect::Leave => "leave",
            Effect::Switch => "switch",
            Effect::Jump
            | Effect::Far
            | Effect::FarIndirect
            | Effect::FarGenerated
            | Effect::Blind => "jump",
        };
        writeln!(out, "    {:indent$}{what} {from} -> {to}", "")?;
    }
    writeln!(out, "  stack:")?;
    let frames = shown_frames(&task.frames, profile);
    let returns = frames.iter().rev().map(|frame| frame.ret);
    let places: Vec<Place> = [task.last.to].into_iter().chain(returns).collect();
    let labels = names_of_places(profile, &places);
    let files = &profile.code().0.files;
    let (directory, is_short) = (files.directory.clone(), files.short_names);
    let mut number = 0;
    for (depth, frame) in frames.iter().rev().enumerate() {
        let node = profile.tree().nodes().get(frame.node as usize);
        let label = node.map_or("", |node| names.label(node.label));
        // The place in a frame is the call of the one inside of it.
        let mut name = labels.get(depth).cloned().unwrap_or_default();
        let place = places.get(depth).copied();
        let inner = depth
            .checked_sub(1)
            .and_then(|at| frames.iter().nth_back(at));
        let without_place = match position(profile, frame, inner, place) {
            Position::InFunction if name.name.starts_with(label) => None,
            Position::InUnnamed => None,
            Position::InPart => Some(format!("{label} ({})", name.name)),
            Position::InFunction | Position::Unknown => Some(label.to_owned()),
        };
        if let Some(text) = without_place {
            writeln!(out, "  {number:>4}  {text}")?;
            number += 1;
            continue;
        }
        for call in place
            .map(|place| inlined_at(profile, place))
            .into_iter()
            .flatten()
            .rev()
        {
            let line = call
                .call
                .map(|(path, line)| shown_line(&directory, &path, line));
            let inlined = PlaceName {
                name: shown_function(&call.function, is_short) + INLINED,
                line: std::mem::replace(&mut name.line, line.unwrap_or_default()),
            };
            writeln!(out, "  {number:>4}  {inlined}")?;
            number += 1;
        }
        writeln!(out, "  {number:>4}  {name}")?;
        number += 1;
    }
    let more = task.last.depth - task.frames.len();
    if more > 0 {
        writeln!(out, "        and {more} more")?;
    }
    if let Some(record) = task.read_from {
        writeln!(
            out,
            "        (read from branch {record} on: --from 0 also shows what was called before)"
        )?;
    }
    Ok(())
}
