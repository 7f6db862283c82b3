//! The branches of a program in its own file: those that two runs are compared by.

use std::collections::HashMap;

use vbts_trace::Streams;
use vbts_trace::profile::functions::FunctionId;
use vbts_trace::profile::modules::{ModuleId, ModuleKind, Modules, Place, is_kernel};
use vbts_trace::profile::space::Effect;
use vbts_trace::profile::{New, Seen, TaskCount};

/// Maximum number of different branches. Further ones are not compared.
const MAX_BRANCHES: usize = 1 << 22;

/// What tells a task from the others: its number; or, if the streams are processors, its thread ID,
/// and for idle tasks the processor.
pub(super) type TaskKey = (u32, u64);

/// A straight line and the branch at its end, of which one end is in the own file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Branch {
    /// Where the line begins.
    pub start: Place,
    pub from: Place,
    pub to: Place,
    /// The own file.
    pub module: ModuleId,
    /// The function of the target, if that is in the own file.
    pub function: Option<FunctionId>,
}

impl Branch {
    /// What two runs have in common, wherever files are mapped: the offsets of its ends, as far as
    /// these are in the own file. Other files can be other versions.
    pub(super) fn key(&self) -> (Option<u64>, Option<u64>) {
        let own = |place: Place| (place.module == self.module).then_some(place.offset);
        (own(self.from), own(self.to))
    }

    /// A number that most likely differs from that of a branch with another key.
    pub(super) fn hash(&self) -> u64 {
        // The factors are odd, so that no bit is lost.
        let mix = |offset: Option<u64>| offset.map_or(1, |offset| offset.wrapping_add(2));
        let (from, to) = self.key();
        let sum = mix(from).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ mix(to).rotate_left(u32::BITS);
        sum.wrapping_mul(0xD6E8_FEB8_6659_FD93)
    }
}

/// Which branches are own ones.
#[derive(Debug, Default)]
pub(super) struct OwnCode {
    streams: Streams,
    /// The file whose branches are compared, if it is not the program's.
    only: Option<String>,
    /// The own file of each program, and the name of the program.
    programs: HashMap<u32, (ModuleId, String)>,
    /// By mark, from 1 on.
    branches: Vec<Branch>,
    /// For each task, how deep its stack is in an interrupt or exception.
    events: Vec<Option<usize>>,
    numbers: HashMap<TaskKey, usize>,
    /// The last task.
    last: Option<(TaskKey, usize)>,
    /// Branches that there was no memory for.
    pub cut: bool,
}

impl OwnCode {
    /// The own file is `only`, if that is given.
    pub(super) fn new(streams: Streams, only: Option<&str>) -> Self {
        Self {
            streams,
            only: only.map(str::to_owned),
            ..Self::default()
        }
    }

    /// Copies the choice of branches, without the branches and the tasks.
    pub(super) fn again(&self) -> Self {
        Self::new(self.streams, self.only.as_deref())
    }

    /// What [`Seen::mark`] is to be: the number of a branch, or 0 if it is no own one.
    pub(super) fn mark(&mut self, new: &New<'_>) -> u32 {
        let Some(module) = self.module(new) else {
            return 0;
        };
        let transfer = new.transfer;
        let [start, from, to] =
            [transfer.start, transfer.from, transfer.to].map(|address| new.map.place(address));
        // An interrupt or a page fault comes at another time in each run. Whether a call leads
        // through the linkage depends on what was called before.
        let is_other = (from.module != module && to.module != module)
            || is_kernel(transfer.from) != is_kernel(transfer.to)
            || !transfer.complete
            || new.functions.is_linkage_at(from);
        if is_other {
            return 0;
        }
        if self.branches.len() >= MAX_BRANCHES {
            self.cut = true;
            return 0;
        }
        self.branches.push(Branch {
            start,
            from,
            to,
            module,
            function: (to.module == module).then_some(transfer.function),
        });
        self.branches.len() as u32
    }

    /// The own file of the task that executes a transfer.
    fn module(&mut self, new: &New<'_>) -> Option<ModuleId> {
        let program = new.count.program;
        if let Some((module, _)) = self.programs.get(&program) {
            return Some(*module);
        }
        let path = new.programs.get(program as usize);
        let path = String::from_utf8_lossy(path?);
        let module = match &self.only {
            Some(name) => named(new.modules, name)?,
            // In the recording of a machine, no files are known.
            None if self.streams == Streams::Processors => Modules::KERNEL,
            // A link to the program has another name. The program is below its libraries.
            None => new.modules.file(&path).or_else(|| {
                let mut mapped = new.map.modules().iter().copied();
                mapped.find(|id| new.modules.get(*id).kind == ModuleKind::File)
            })?,
        };
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        self.programs.insert(program, (module, name));
        Some(module)
    }

    /// The own file of a program, and the program's name.
    pub(super) fn program(&self, program: u32) -> Option<(ModuleId, &str)> {
        let (module, name) = self.programs.get(&program)?;
        Some((*module, name))
    }

    /// The own files.
    pub(super) fn modules(&self) -> impl Iterator<Item = ModuleId> {
        self.programs.values().map(|(module, _)| *module)
    }

    /// The branch with this mark.
    pub(super) fn branch(&self, mark: u32) -> Option<&Branch> {
        self.branches.get((mark as usize).checked_sub(1)?)
    }

    /// Number of branches.
    pub(super) fn len(&self) -> usize {
        self.branches.len()
    }

    /// The key of the task that the stream with this number executes.
    fn key(&self, stream: u64, count: &TaskCount) -> TaskKey {
        match (self.streams, count.id) {
            (Streams::Tasks, _) | (Streams::Processors, 0) => (0, stream),
            (Streams::Processors, id) => (id, 0),
        }
    }

    /// The number of a task that has ended.
    pub(super) fn ended(&self, stream: u64, count: &TaskCount) -> Option<usize> {
        self.numbers.get(&self.key(stream, count)).copied()
    }

    /// The number and the key of the task that has executed a record. `None` in an interrupt or
    /// exception, and for the records that begin and end one. When these come differs from run to
    /// run.
    #[inline]
    pub(super) fn task(&mut self, seen: &Seen<'_>) -> Option<(usize, TaskKey)> {
        let key = self.key(seen.task, seen.count);
        let at = match self.last {
            Some((last, at)) if last == key => at,
            _ => self.find(key),
        };
        let event = self.events.get_mut(at)?;
        if seen.effect != Effect::Jump {
            let depth = seen.stack.frames().len();
            if event.is_some_and(|event| depth < event) {
                *event = None;
                return None;
            }
            if seen.is_event {
                event.get_or_insert(depth);
            }
        }
        event.is_none().then_some((at, key))
    }

    #[cold]
    fn find(&mut self, key: TaskKey) -> usize {
        let next = self.events.len();
        let at = *self.numbers.entry(key).or_insert(next);
        if at == next {
            self.events.push(None);
        }
        self.last = Some((key, at));
        at
    }
}

/// The executed file with this name, or whose path ends with it.
fn named(modules: &Modules, name: &str) -> Option<ModuleId> {
    let mut all = modules
        .iter()
        .map(|module| (module.id, module.name.as_str()));
    let last = |path: &str| path.rsplit('/').next() == Some(name);
    let found = all.find(|(_, path)| *path == name || last(path));
    found.map(|(id, _)| id)
}
