//! The stacks at a moment, and what has led there.

use std::collections::{HashMap, VecDeque};
use std::io;

use vbts_trace::profile::modules::{AddressSpace, Place};
use vbts_trace::profile::space::Effect;
use vbts_trace::profile::stack::{FrameKind, Stack};
use vbts_trace::profile::tree::NodeId;
use vbts_trace::profile::{Seen, TaskCount, Watch};

use super::linkage::{Joined, Linkage};
use super::names::name_places;
use super::{Loaded, Names, Out};

/// Maximum number of frames of a stack that are shown.
const MAX_FRAMES: usize = 256;
/// Maximum number of steps that are kept of a task.
pub(crate) const MAX_STEPS: usize = 10_000;
/// Maximum number of tasks that are shown.
const MAX_TASKS: usize = 1 << 10;

/// A branch that was executed.
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
    kind: FrameKind,
    /// In the call instruction of the caller.
    ret: Place,
}

/// What is known of a task.
#[derive(Debug, Default)]
struct TaskNow {
    id: u32,
    program: u32,
    steps: VecDeque<Step>,
    frames: Vec<FrameNow>,
    depth: usize,
}

/// Keeps the last branches of each task, and their stacks.
#[derive(Debug, Default)]
pub struct Moment {
    /// Branches to keep of each task.
    steps: usize,
    /// Only those that change the stack.
    calls_only: bool,
    /// Also those to and from the linkage.
    raw_frames: bool,
    linkage: Linkage<u64>,
    tasks: HashMap<u64, TaskNow>,
    /// Tasks that there was no memory for.
    left_out: u64,
    /// The task of the last branch.
    last: u64,
}

impl Moment {
    /// Keeps the last `steps` branches of each task, or calls and returns if `calls_only`. Calls
    /// through the procedure linkage table are several ones if `raw_frames`.
    pub fn new(steps: usize, calls_only: bool, raw_frames: bool) -> Self {
        Self {
            steps: steps.min(MAX_STEPS),
            calls_only,
            raw_frames,
            ..Self::default()
        }
    }
}

impl Watch for Moment {
    fn record(&mut self, seen: &Seen<'_>) {
        self.last = seen.task;
        if !self.tasks.contains_key(&seen.task) && self.tasks.len() >= MAX_TASKS {
            self.left_out += 1;
            return;
        }
        let task = self.tasks.entry(seen.task).or_default();
        (task.id, task.program) = (seen.count.id, seen.count.program);
        let changes = seen.effect != Effect::Jump;
        if self.steps == 0 || self.calls_only && !changes {
            return;
        }
        let joined = match self.raw_frames {
            true => Some(Joined::of(seen)),
            false => self.linkage.join(seen.task, seen),
        };
        if let Some(Joined {
            from, to, effect, ..
        }) = joined
        {
            if task.steps.len() >= self.steps {
                task.steps.pop_front();
            }
            task.steps.push_back(Step {
                from,
                to,
                effect,
                depth: seen.stack.frames().len(),
            });
        }
    }

    fn end(&mut self, task: u64, _: &TaskCount, stack: &Stack, map: &AddressSpace) {
        let Some(task) = self.tasks.get_mut(&task) else {
            return;
        };
        let frames = stack.frames();
        task.depth = frames.len();
        let first = frames.len().saturating_sub(MAX_FRAMES);
        let frames = frames.get(first..).unwrap_or_default().iter();
        task.frames = frames
            .map(|frame| FrameNow {
                node: frame.node,
                kind: frame.kind,
                // The call is before the address that it returns to.
                ret: map.place(frame.ret.wrapping_sub(1)),
            })
            .collect();
    }
}

/// The frames that are shown. One inside of frames that are not returns to where these return to.
fn shown_frames(frames: &[FrameNow], profile: &Loaded<Moment>) -> Vec<FrameNow> {
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

/// Shows the last branches of each task and its stack, or only of the task of the last branch.
///
/// # Errors
/// The output fails.
pub fn moment(profile: &mut Loaded<Moment>, last_only: bool, out: &mut Out<'_>) -> io::Result<()> {
    let names = Names::of(profile);
    let moment = std::mem::take(profile.watch());
    let mut tasks: Vec<(u64, TaskNow)> = moment.tasks.into_iter().collect();
    tasks.sort_by_key(|(number, _)| *number);
    for (number, task) in tasks {
        if last_only && number != moment.last {
            continue;
        }
        writeln!(out, "task {} ({})", task.id, names.program(task.program))?;
        let ends = task.steps.iter().flat_map(|step| [step.from, step.to]);
        let ends: Vec<Place> = ends.collect();
        let labels = name_places(profile, &ends);
        let outer = task.steps.iter().map(|step| step.depth).min().unwrap_or(0);
        for (step, labels) in task.steps.iter().zip(labels.chunks(2)) {
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
                Effect::Jump | Effect::Far | Effect::FarIndirect | Effect::Blind => "jump",
            };
            writeln!(out, "    {:indent$}{what} {from} -> {to}", "")?;
        }
        writeln!(out, "  stack:")?;
        let at = task.steps.back().map(|step| step.to);
        let frames = shown_frames(&task.frames, profile);
        let returns = frames.iter().rev().map(|frame| frame.ret);
        let places: Vec<Place> = at.into_iter().chain(returns).collect();
        let labels = name_places(profile, &places);
        let nodes = profile.tree().nodes();
        for (depth, frame) in frames.iter().rev().enumerate() {
            let label = nodes
                .get(frame.node as usize)
                .map(|node| names.label(node.label));
            let label = label.unwrap_or_default();
            // The place in a frame is the call of the one inside of it.
            let place = labels.get(depth).map_or("", String::as_str);
            let is_known = depth == 0
                || !matches!(
                    frames.iter().rev().nth(depth - 1).map(|frame| frame.kind),
                    Some(FrameKind::Outermost | FrameKind::Handler | FrameKind::Signal(_))
                );
            match is_known && place.starts_with(label) {
                true => writeln!(out, "  {depth:>4}  {place}")?,
                false => writeln!(out, "  {depth:>4}  {label}")?,
            }
        }
        if task.depth > task.frames.len() {
            writeln!(out, "        and {} more", task.depth - task.frames.len())?;
        }
    }
    if moment.left_out > 0 {
        writeln!(out, "further tasks are left out")?;
    }
    Ok(())
}
