//! Call stacks over time in the processed profile format of the Firefox profiler.
//!
//! Each sample has a stack and the number of instructions that the task has executed in it. The sum
//! of them is exact. A branch has no time: that of a task is the number of its instructions. The
//! format counts processor time in whole microseconds, so that an instruction is shown as one.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use fxprof_processed_profile::debugid::DebugId;
use fxprof_processed_profile::{
    CategoryColor, CategoryHandle, CpuDelta, Frame, FrameFlags, FrameInfo, LibraryHandle,
    LibraryInfo, Profile, ReferenceTimestamp, SamplingInterval, StackHandle, Symbol, SymbolTable,
    ThreadHandle, Timestamp, WeightType,
};
use vbts_trace::profile::functions::FunctionId;
use vbts_trace::profile::modules::{ModuleId, ModuleKind, Modules};
use vbts_trace::profile::tree::{Label, Node, NodeId};
use vbts_trace::profile::{Ended, Run, Sees, TaskCount, Watch};

use super::names::shown;
use super::{Loaded, Names, Out, find_module};

/// Maximum number of samples. When it is reached, the time is divided more coarsely.
const MAX_SAMPLES: usize = 1 << 19;
/// Instructions of a part of time, in the beginning and at most, as powers of two.
const WIDTHS: (u32, u32) = (10, 40);
/// Number of samples to which instructions are added without sorting, a power of two.
const RECENT: usize = 1 << 14;
/// Maximum number of threads.
const MAX_THREADS: usize = 1 << 14;
/// Maximum number of different stacks of all threads together.
const MAX_STACKS: usize = 1 << 22;
/// Maximum depth of a stack. What deeper functions execute counts for the deepest one.
const MAX_DEPTH: usize = 1 << 10;
/// What is shown as the time of an instruction, in ns.
const INSTRUCTION: u64 = 1000;
/// Where the kernel's image is linked to. The format has 32 bits for an address in a library.
const KERNEL_BASE: u64 = 0xFFFF_FFFF_8000_0000;

/// Instructions that a thread has executed in a node of the call tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Sample {
    thread: u32,
    /// Number of the part of its time.
    part: u64,
    node: NodeId,
    instructions: u64,
}

/// A thread: a task of the trace, or of a processor's kernel.
#[derive(Debug, Clone, Copy)]
struct Thread {
    id: u32,
    process: u32,
    program: u32,
    /// The number of its name.
    name: u32,
    /// The node in which it is.
    node: NodeId,
    /// Its instructions when it came there.
    start: u64,
    /// Its instructions.
    clock: u64,
}

/// The samples of all tasks.
#[derive(Debug)]
pub struct Samples {
    threads: Vec<Thread>,
    /// Their numbers, by [`key`].
    numbers: HashMap<(u64, u32), u32>,
    /// Number of the task and thread ID of the last records, and the number of the thread.
    last: ((u64, u32), u32),
    list: Vec<Sample>,
    /// Samples that are not yet in [`Self::list`], by [`slot`].
    recent: Vec<Sample>,
    /// Instructions of a part of time, as a power of two.
    width: u32,
    /// There was no memory for some instructions.
    is_full: bool,
}

impl Default for Samples {
    fn default() -> Self {
        Self {
            threads: Vec::new(),
            numbers: HashMap::new(),
            last: ((u64::MAX, 0), 0),
            list: Vec::new(),
            recent: vec![Sample::default(); RECENT],
            width: WIDTHS.0,
            is_full: false,
        }
    }
}

/// The place in [`Samples::recent`] of a thread's samples in a node.
fn slot(thread: u32, node: NodeId) -> usize {
    (node ^ thread.wrapping_mul(0x9E37_79B9)) as usize & (RECENT - 1)
}

/// The key of a thread. In the trace of a machine, each processor is a task. A thread can move from
/// one to another, and each has an idle task with thread ID 0.
fn key(task: u64, id: u32) -> (u64, u32) {
    match id {
        0 => (task, 0),
        _ => (0, id),
    }
}

impl Samples {
    #[inline(always)]
    fn number(&mut self, task: u64, count: &TaskCount, node: NodeId) -> u32 {
        match self.last {
            (last, number) if last == (task, count.id) => number,
            _ => self.find_number(task, count, node),
        }
    }

    #[cold]
    fn find_number(&mut self, task: u64, count: &TaskCount, node: NodeId) -> u32 {
        let key = key(task, count.id);
        let number = match self.numbers.get(&key) {
            Some(number) => *number,
            None if self.threads.len() >= MAX_THREADS => return u32::MAX,
            None => {
                let number = self.threads.len() as u32;
                self.threads.push(Thread {
                    id: count.id,
                    process: count.process,
                    program: count.program,
                    name: count.name(),
                    node,
                    start: 0,
                    clock: 0,
                });
                self.numbers.insert(key, number);
                number
            }
        };
        self.last = ((task, count.id), number);
        number
    }

    /// Adds instructions that a thread has executed in a node since `start`.
    #[inline(always)]
    fn add(&mut self, thread: u32, node: NodeId, start: u64, instructions: u64) {
        let part = start >> self.width;
        // A function that is called often has many samples in the same part of time.
        if let Some(sample) = self.recent.get_mut(slot(thread, node))
            && (sample.thread, sample.part, sample.node) == (thread, part, node)
        {
            sample.instructions = sample.instructions.saturating_add(instructions);
        } else if instructions > 0 {
            self.add_new(thread, node, start, instructions);
        }
    }

    #[cold]
    fn add_new(&mut self, thread: u32, node: NodeId, start: u64, instructions: u64) {
        if self.list.len() >= 2 * MAX_SAMPLES - RECENT {
            self.merge();
        }
        if self.list.len() >= 2 * MAX_SAMPLES - RECENT {
            self.is_full = true;
            return;
        }
        let sample = Sample {
            thread,
            part: start >> self.width,
            node,
            instructions,
        };
        if let Some(recent) = self.recent.get_mut(slot(thread, node)) {
            let last = std::mem::replace(recent, sample);
            if last.instructions > 0 {
                self.list.push(last);
            }
        }
    }

    /// Adds the samples up that are in the same part of time, until there are few enough.
    fn merge(&mut self) {
        let recent = self.recent.iter_mut().map(std::mem::take);
        self.list
            .extend(recent.filter(|sample| sample.instructions > 0));
        loop {
            self.list.sort_unstable();
            self.list.dedup_by(|next, kept| {
                let key = |sample: &Sample| (sample.thread, sample.part, sample.node);
                let is_same = key(next) == key(kept);
                if is_same {
                    kept.instructions = kept.instructions.saturating_add(next.instructions);
                }
                is_same
            });
            if self.list.len() <= MAX_SAMPLES || self.width >= WIDTHS.1 {
                return;
            }
            self.width += 1;
            for sample in &mut self.list {
                sample.part /= 2;
            }
        }
    }
}

impl Watch for Samples {
    const SEES: Sees = Sees::Runs;

    #[inline(always)]
    fn run(&mut self, run: &Run<'_>) {
        let count = run.count;
        let number = self.number(run.task, count, run.node);
        let Some(thread) = self.threads.get_mut(number as usize) else {
            self.is_full = true;
            return;
        };
        thread.clock = count.instructions;
        if thread.node != run.node {
            // What a task executes without a branch, for example before it executes another
            // program, was executed where it was.
            let end = count.instructions.saturating_sub(run.instructions);
            let (node, start) = (thread.node, thread.start);
            (thread.node, thread.start) = (run.node, end);
            (thread.process, thread.program) = (count.process, count.program);
            thread.name = count.name();
            self.add(number, node, start, end.saturating_sub(start));
        }
    }

    fn end(&mut self, ended: &Ended<'_>) {
        let (task, count) = (ended.task, ended.count);
        let Some(number) = self.numbers.remove(&key(task, count.id)) else {
            return;
        };
        self.last = ((u64::MAX, 0), 0);
        if let Some(thread) = self.threads.get_mut(number as usize) {
            thread.clock = count.instructions.max(thread.clock);
            thread.name = count.name();
            let (node, start) = (thread.node, thread.start);
            let instructions = thread.clock.saturating_sub(start);
            self.add(number, node, start, instructions);
        }
    }
}

/// Where the functions are.
#[derive(Default)]
struct Libraries {
    handles: HashMap<ModuleId, (LibraryHandle, CategoryHandle)>,
    /// Of each function its module, and its address in the library.
    places: Vec<(ModuleId, Option<u32>)>,
}

/// What is written.
struct Writer<'a> {
    profile: Profile,
    nodes: &'a [Node],
    /// For each node, whether it has a frame.
    shown: &'a [bool],
    names: &'a Names,
    libraries: Libraries,
    threads: Vec<ThreadHandle>,
    stacks: HashMap<(u32, NodeId), StackHandle>,
}

impl Writer<'_> {
    fn frame(&mut self, label: Label) -> FrameInfo {
        let place = match label {
            Label::Function(function) => self.libraries.places.get(function as usize).copied(),
            _ => None,
        };
        let (module, address) = place.unwrap_or_default();
        let library = self.libraries.handles.get(&module).copied();
        let frame = match (library, address) {
            (Some((library, _)), Some(address)) => {
                Frame::RelativeAddressFromInstructionPointer(library, address)
            }
            _ => Frame::Label(self.profile.intern_string(self.names.label(label))),
        };
        let category = library.map_or(CategoryHandle::OTHER, |(_, category)| category);
        FrameInfo {
            frame,
            category_pair: category.into(),
            flags: FrameFlags::empty(),
        }
    }

    /// The stack of a node of the call tree.
    fn stack(&mut self, thread: u32, node: NodeId) -> Option<StackHandle> {
        let handle = *self.threads.get(thread as usize)?;
        let mut missing = Vec::new();
        let mut at = node;
        let mut stack = loop {
            if let Some(known) = self.stacks.get(&(thread, at)) {
                break Some(*known);
            }
            if self.shown.get(at as usize) != Some(&false) {
                missing.push(at);
            }
            let parent = self.nodes.get(at as usize)?.parent;
            if parent == at {
                break None;
            }
            at = parent;
        };
        let deepest = missing.len().saturating_sub(MAX_DEPTH);
        for at in missing.into_iter().skip(deepest).rev() {
            if self.stacks.len() >= MAX_STACKS {
                break;
            }
            let info = self.frame(self.nodes.get(at as usize)?.label);
            let frame = self.profile.intern_frame(handle, info);
            let added = self.profile.intern_stack(handle, stack, frame);
            self.stacks.insert((thread, at), added);
            stack = Some(added);
        }
        stack
    }
}

/// Writes the samples.
///
/// # Errors
/// The output fails.
pub fn firefox(profile: &mut Loaded<Samples>, title: &str, out: &mut Out<'_>) -> io::Result<()> {
    let names = Names::of(profile);
    let mut samples = std::mem::take(profile.watch());
    samples.merge();
    let start = ReferenceTimestamp::from_millis_since_unix_epoch(0.0);
    let width = 1 << samples.width;
    let interval = SamplingInterval::from_nanos(width * INSTRUCTION);
    let mut written = Profile::new(&shown(title), start, interval);
    written.set_symbolicated(true);
    written.set_os_name("Linux");
    let libraries = libraries(profile, &names, &mut written);
    let mut processes = HashMap::new();
    let zero = Timestamp::from_nanos_since_reference(0);
    let mut threads = Vec::new();
    for thread in &samples.threads {
        let program = names.program(thread.program);
        let process = *processes
            .entry(thread.process)
            .or_insert_with(|| written.add_process(program, thread.process, zero));
        let is_main = thread.id == thread.process;
        let handle = written.add_thread(process, thread.id, zero, is_main);
        written.set_thread_name(handle, names.program(thread.name));
        written.set_thread_samples_weight_type(handle, WeightType::Samples);
        written.set_thread_end_time(handle, time_after(thread.clock));
        threads.push(handle);
    }
    let nodes = profile.tree().nodes();
    let shown = nodes.iter().map(|node| profile.is_shown(node.label));
    let shown: Vec<bool> = shown.collect();
    let mut writer = Writer {
        profile: written,
        nodes,
        shown: &shown,
        names: &names,
        libraries,
        threads,
        stacks: HashMap::new(),
    };
    let mut last = (u32::MAX, 0, 0_u64);
    for sample in &samples.list {
        let Some(handle) = writer.threads.get(sample.thread as usize).copied() else {
            continue;
        };
        if (last.0, last.1) != (sample.thread, sample.part) {
            last = (sample.thread, sample.part, 0_u64);
        }
        let stack = writer.stack(sample.thread, sample.node);
        let start = sample.part.saturating_mul(width);
        let mut left = sample.instructions;
        while left > 0 {
            let weight = i32::try_from(left).unwrap_or(i32::MAX);
            let instructions = u64::from(weight.unsigned_abs());
            left -= instructions;
            // The samples of a part of time come one after the other, each at its end.
            last.2 = last.2.saturating_add(instructions);
            let time = time_after(start.saturating_add(last.2));
            let spent = CpuDelta::from_nanos(instructions * INSTRUCTION);
            writer
                .profile
                .add_sample(handle, time, stack, spent, weight);
        }
    }
    if samples.is_full {
        let tasks = profile.tasks().iter();
        let executed: u64 = tasks.map(|(_, task)| task.instructions).sum();
        let shown: u64 = samples.list.iter().map(|sample| sample.instructions).sum();
        vbts_host::exit::say(format_args!(
            "{} instructions are left out, because there are too many tasks or functions",
            executed.saturating_sub(shown)
        ));
    }
    serde_json::to_writer(&mut *out, &writer.profile)?;
    writeln!(out)
}

/// The time after so many instructions.
fn time_after(instructions: u64) -> Timestamp {
    Timestamp::from_nanos_since_reference(instructions.saturating_mul(INSTRUCTION))
}

/// The libraries of the profile, and where the functions are in them.
fn libraries(profile: &mut Loaded<Samples>, names: &Names, written: &mut Profile) -> Libraries {
    let kernel = written.add_category("Kernel", CategoryColor::Orange);
    let program = written.add_category("Program", CategoryColor::Blue);
    let library = written.add_category("Library", CategoryColor::Green);
    let own = find_module(profile, None);
    let mut libraries = Libraries::default();
    let mut symbols: HashMap<ModuleId, Vec<Symbol>> = HashMap::new();
    for id in 0..profile.functions().len() as FunctionId {
        let start = profile.functions().get(id).start;
        let (code, modules) = profile.code();
        let module = modules.get(start.module);
        let address = match module.kind {
            ModuleKind::Kernel => start.offset.checked_sub(KERNEL_BASE),
            ModuleKind::File => code.files.address(module, start.offset),
            ModuleKind::Special => Some(start.offset),
            ModuleKind::Unmapped | ModuleKind::Anonymous | ModuleKind::Generated => None,
        };
        let address = address.and_then(|address| u32::try_from(address).ok());
        libraries.places.push((start.module, address));
        if let Some(address) = address {
            symbols.entry(start.module).or_default().push(Symbol {
                address,
                size: None,
                name: names.function(id).name.clone(),
            });
        }
    }
    let mut modules: Vec<(ModuleId, Vec<Symbol>)> = symbols.into_iter().collect();
    modules.sort_unstable_by_key(|(id, _)| *id);
    for (id, symbols) in modules {
        let name = names.short_module(id).to_owned();
        let path = names.module(id).to_owned();
        let handle = written.add_lib(LibraryInfo {
            debug_name: name.clone(),
            name,
            debug_path: path.clone(),
            path,
            debug_id: DebugId::nil(),
            code_id: None,
            arch: Some("x86_64".to_owned()),
            symbol_table: Some(Arc::new(SymbolTable::new(symbols))),
        });
        let category = match id {
            Modules::KERNEL => kernel,
            _ if Some(id) == own => program,
            _ => library,
        };
        libraries.handles.insert(id, (handle, category));
    }
    libraries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_moves_between_processors_is_one_thread() {
        let mut samples = Samples::default();
        let mut run = |task, id, clock, node, instructions| {
            let count = &TaskCount {
                id,
                instructions: clock,
                ..TaskCount::default()
            };
            samples.run(&Run {
                task,
                count,
                node,
                instructions,
            });
        };
        // Processor 0 executes thread 5, then its idle task, and then thread 5 again.
        run(0, 5, 100, 1, 100);
        run(0, 0, 10, 9, 10);
        run(1, 0, 20, 9, 20);
        run(1, 5, 250, 2, 150);
        run(0, 5, 300, 1, 50);
        run(0, 5, 307, 2, 7);
        samples.merge();
        let of = |node| -> u64 {
            let samples = samples.list.iter().filter(|sample| sample.node == node);
            samples.map(|sample| sample.instructions).sum()
        };
        assert_eq!(samples.threads.len(), 3);
        assert_eq!((of(1), of(2)), (150, 150));
    }
}
