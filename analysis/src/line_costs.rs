//! The costs of the source lines of functions, and the lines of calls.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fmt;

use iced_x86::{Decoder, DecoderOptions, Instruction};
use vbts_trace::profile::code::MAX_INSTRUCTION;
use vbts_trace::profile::functions::FunctionId;
use vbts_trace::profile::modules::{ModuleId, Place};
use vbts_trace::profile::tree::Label;
use vbts_trace::profile::{Edge, Watch};

use super::Loaded;
use super::names::shown_path;
use super::source_paths::Paths;

/// Maximum number of different instructions with costs. The function has the cost of further ones.
const MAX_INSTRUCTIONS: usize = 1 << 22;
/// Number of instructions whose lines are asked for at once.
const NAMED_AT_ONCE: usize = 1 << 16;

/// Executed instructions and taken branches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    pub instructions: u64,
    pub branches: u64,
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.instructions, self.branches)
    }
}

impl Cost {
    pub(crate) fn add(&mut self, more: Self) {
        self.instructions = self.instructions.saturating_add(more.instructions);
        self.branches = self.branches.saturating_add(more.branches);
    }

    /// The cost without `part`; `None` if `part` is larger.
    pub(crate) fn without(self, part: Self) -> Option<Self> {
        Some(Self {
            instructions: self.instructions.checked_sub(part.instructions)?,
            branches: self.branches.checked_sub(part.branches)?,
        })
    }
}

/// A source line: the number of its file, and that of the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SourceLine {
    pub file: u32,
    pub line: u32,
}

/// The costs of the source lines of functions.
#[derive(Debug, Default)]
pub(crate) struct LineCosts {
    /// The paths of the source files.
    pub paths: Paths,
    costs: HashMap<Label, BTreeMap<SourceLine, Cost>>,
    /// The line from which a function calls another one; `None` if there are several.
    calls: HashMap<(Label, Label), Option<SourceLine>>,
}

impl LineCosts {
    /// The costs of all executed code whose source lines are known.
    pub(crate) fn of<W: Watch>(profile: &mut Loaded<W>) -> Self {
        let mut this = Self::default();
        let callees = callees(profile);
        for (module, costs) in instruction_costs(profile) {
            let costs: Vec<(u64, Cost)> = costs.into_iter().collect();
            for part in costs.chunks(NAMED_AT_ONCE) {
                let lines = this.source_lines(profile, module, part);
                for ((offset, cost), line) in part.iter().zip(lines) {
                    let offset = *offset;
                    let place = Place { module, offset };
                    let function = profile.functions().executed_at(place);
                    if let (Some(line), Some(function)) = (line, function) {
                        let label = profile.label_at(function, place);
                        let callees = callees.get(&place).map_or(&[][..], Vec::as_slice);
                        this.add(label, line, *cost, callees);
                    }
                }
            }
        }
        this
    }

    /// The cost of each executed line of a function.
    pub(crate) fn of_label(&self, label: Label) -> impl Iterator<Item = (&SourceLine, &Cost)> {
        self.costs.get(&label).into_iter().flatten()
    }

    /// The line from which a function calls another one, if it is always the same.
    pub(crate) fn of_call(&self, caller: Label, callee: Label) -> Option<SourceLine> {
        self.calls.get(&(caller, callee)).copied().flatten()
    }

    /// Adds an instruction of a source line, which calls these functions.
    fn add(&mut self, label: Label, line: SourceLine, cost: Cost, callees: &[FunctionId]) {
        let lines = self.costs.entry(label).or_default();
        lines.entry(line).or_default().add(cost);
        for callee in callees {
            match self.calls.entry((label, Label::Function(*callee))) {
                Entry::Vacant(new) => {
                    new.insert(Some(line));
                }
                Entry::Occupied(mut known) if *known.get() != Some(line) => {
                    known.insert(None);
                }
                Entry::Occupied(_) => {}
            }
        }
    }

    /// The source lines of instructions at these offsets.
    fn source_lines<W: Watch>(
        &mut self,
        profile: &mut Loaded<W>,
        module: ModuleId,
        instructions: &[(u64, Cost)],
    ) -> Vec<Option<SourceLine>> {
        let offsets: Vec<u64> = instructions.iter().map(|(offset, _)| *offset).collect();
        let mut lines = vec![None; offsets.len()];
        let (code, modules) = profile.code();
        let directory = code.files.directory.clone();
        let paths = &mut self.paths;
        code.files
            .find(modules.get(module), &offsets, &mut |n, answer| {
                if let Some(known) = lines.get_mut(n)
                    && let Some((path, line)) = answer.line
                    && let Some(file) = paths.number(&shown_path(&directory, path))
                {
                    *known = Some(SourceLine { file, line });
                }
            });
        lines
    }
}

/// The cost of each executed instruction, by module and offset.
fn instruction_costs<W: Watch>(profile: &mut Loaded<W>) -> BTreeMap<ModuleId, BTreeMap<u64, Cost>> {
    let lines = profile.lines().filter(|(_, count)| count.instructions > 0);
    let mut lines: Vec<_> = lines.map(|(line, count)| (*line, *count)).collect();
    lines.sort_unstable_by_key(|(line, _)| *line);
    let mut costs: BTreeMap<ModuleId, BTreeMap<u64, Cost>> = BTreeMap::new();
    let mut left = MAX_INSTRUCTIONS;
    let mut instruction = Instruction::default();
    for (line, count) in lines {
        let Place { module, offset } = line.start;
        let costs = costs.entry(module).or_default();
        let (code, modules) = profile.code();
        let module = modules.get(module);
        let bits = code.bits(module);
        let size = line.last.saturating_sub(offset) + MAX_INSTRUCTION;
        let bytes = code.read(module, offset, size);
        let mut decoder = Decoder::with_ip(bits, bytes, offset, DecoderOptions::NONE);
        for _ in 0..count.instructions {
            if left == 0 || !decoder.can_decode() {
                break;
            }
            decoder.decode_out(&mut instruction);
            let cost = costs.entry(instruction.ip()).or_insert_with(|| {
                left -= 1;
                Cost::default()
            });
            cost.instructions = cost.instructions.saturating_add(count.count);
        }
    }
    for (edge, count) in profile.edges().filter(|(edge, _)| !edge.is_event) {
        let costs = costs.get_mut(&edge.from.module);
        if let Some(cost) = costs.and_then(|costs| costs.get_mut(&edge.from.offset)) {
            cost.branches = cost.branches.saturating_add(count);
        }
    }
    costs
}

/// The functions that each branch instruction enters at their beginning. Stubs of the procedure
/// linkage table are transparent if they have no frames: the function behind them is entered.
fn callees<W: Watch>(profile: &Loaded<W>) -> HashMap<Place, Vec<FunctionId>> {
    let functions = profile.functions();
    let is_shown = |function: &FunctionId| profile.is_shown(Label::Function(*function));
    let entered = |edge: &Edge| {
        let id = functions.executed_at(edge.to)?;
        (functions.get(id).start == edge.to).then_some(id)
    };
    let branches = || {
        profile
            .edges()
            .map(|(edge, _)| edge)
            .filter(|e| !e.is_event)
    };
    // What a stub leads to; `None` if that is not one function.
    let mut stubs: HashMap<FunctionId, Option<FunctionId>> = HashMap::new();
    for edge in branches() {
        let stub = functions.executed_at(edge.from);
        if let Some(stub) = stub.filter(|stub| !is_shown(stub))
            && let Some(target) = entered(edge).filter(is_shown)
        {
            let known = stubs.entry(stub).or_insert(Some(target));
            *known = known.filter(|known| *known == target);
        }
    }
    let mut callees: HashMap<Place, Vec<FunctionId>> = HashMap::new();
    for edge in branches() {
        let callee = match entered(edge) {
            Some(stub) if !is_shown(&stub) => stubs.get(&stub).copied().flatten(),
            callee => callee,
        };
        if let Some(callee) = callee {
            callees.entry(edge.from).or_default().push(callee);
        }
    }
    callees
}
