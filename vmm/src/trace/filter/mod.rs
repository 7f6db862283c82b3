//! Which branches of a trace the user wants.
//!
//! A filter is between the merge, which orders the records, and the format: all formats get the
//! same. Where it has left out branches, the next record of the task is preceded by one that says
//! how many ([`FILTERED`]), so that no reader mistakes the gap for straight-line execution.
//!
//! | module | contents |
//! |---|---|
//! | `point`, `object` | what the user names |
//! | `places`, `space` | where that is in an address space |
//! | `position` | what a task executes between two branches |
//! | `window` | from when until when branches are wanted |

mod object;
mod places;
mod point;
mod position;
mod space;
mod window;

use std::collections::HashMap;

use vbts_protocol::{RECORD_SIZE, Scope};
use vbts_trace::maps;
use vbts_trace::profile::modules::KERNEL_START;

use super::format::{ARRIVES, DEPARTS, FILTERED, is_branch, record, words};
use super::symbols::Symbolizer;
pub use object::Object;
use places::FilePlaces;
pub use point::{Point, PointPlace};
use position::{Executed, Position, Positions};
use space::Space;
use window::Window;

/// Flag of the addresses of the only objects that are wanted.
const ONLY: u8 = 1;
/// Flag of the addresses of objects that are not wanted.
const SKIP: u8 = 2;

/// What the user wants of a trace.
#[derive(Debug, Clone, Default)]
pub struct Filters {
    /// Where the trace begins.
    pub start: Option<Point>,
    /// Where it ends.
    pub stop: Option<Point>,
    /// Branches that touch none of these are left out, unless there are none.
    pub only: Vec<Object>,
    /// Branches inside of these are left out.
    pub skip: Vec<Object>,
    /// The number of branches after which it ends.
    pub max_records: Option<u64>,
    /// A signal to a task that ends it.
    pub until_signal: Option<u32>,
    /// Of the branches that the others leave, only so many are kept: the last ones.
    pub last: Option<u64>,
}

impl Filters {
    /// Returns whether branches may be left out before they are counted for `last`.
    pub fn choose(&self) -> bool {
        self.start.is_some()
            || self.stop.is_some()
            || !self.only.is_empty()
            || !self.skip.is_empty()
            || self.max_records.is_some()
            || self.until_signal.is_some()
    }

    /// Returns whether symbols are needed to find what the user has named.
    pub fn have_names(&self) -> bool {
        let has_name = |point: &Point| !matches!(point.place, PointPlace::Address(_));
        let mut objects = self.only.iter().chain(&self.skip);
        self.points().into_iter().flatten().any(has_name)
            || objects.any(|object| object.function().is_some())
    }

    fn points(&self) -> [Option<&Point>; 2] {
        [self.start.as_ref(), self.stop.as_ref()]
    }

    /// The objects with their flags.
    fn objects(&self) -> impl Iterator<Item = (&Object, u8)> {
        let only = self.only.iter().map(|object| (object, ONLY));
        only.chain(self.skip.iter().map(|object| (object, SKIP)))
    }
}

/// What is known about a task.
#[derive(Debug, Default)]
struct TaskState {
    positions: Positions,
    /// Branches that were left out since the last one that was not.
    left_out: u64,
}

/// Leaves out the branches that the user does not want.
#[derive(Debug)]
pub struct Filter {
    filters: Filters,
    scope: Scope,
    window: Window,
    /// The places in each mapped file, by its name.
    files: HashMap<String, FilePlaces>,
    spaces: HashMap<u32, Space>,
    kernel: Option<Space>,
    tasks: HashMap<u64, TaskState>,
    /// Whether some code has the points, and each of the objects.
    points_found: [bool; 2],
    objects_found: Vec<bool>,
    /// Branches that were left out.
    filtered: u64,
    kept: Vec<u8>,
}

impl Filter {
    /// Bytes of records that [`Self::records`] takes at most, so that with the records of gaps they
    /// are not more than a format takes.
    pub const PIECE: usize = super::format::PIECE / 2;

    /// A filter of records of `scope`.
    pub fn new(filters: Filters, scope: Scope) -> Self {
        let nth = filters.points().map(|point| point.map(|point| point.nth));
        let objects = filters.objects().count();
        Self {
            window: Window::new(nth, filters.max_records),
            filters,
            scope,
            files: HashMap::new(),
            spaces: HashMap::new(),
            kernel: None,
            tasks: HashMap::new(),
            points_found: [false; 2],
            objects_found: vec![false; objects],
            filtered: 0,
            kept: Vec::new(),
        }
    }

    /// Number of branches that were left out.
    pub fn filtered(&self) -> u64 {
        self.filtered
    }

    /// Takes the mappings of `process`, the text of `/proc/PID/maps`.
    pub fn maps(&mut self, process: u32, text: &[u8], symbols: &mut Symbolizer) {
        let mut mappings = Vec::new();
        if self.scope != Scope::Kernel {
            mappings = maps::parse(text);
        }
        let space = self.space(&mappings, symbols);
        self.spaces.insert(process, space);
    }

    /// Takes the end of `process`.
    pub fn process_ended(&mut self, process: u32) {
        self.spaces.remove(&process);
    }

    /// Takes the end of the task with this number.
    pub fn task_ended(&mut self, task: u64) {
        self.tasks.remove(&task);
    }

    /// The straight line of a task ends: records are missing, or it executes a program.
    pub fn interrupted(&mut self, task: u64) {
        if let Some(state) = self.tasks.get_mut(&task) {
            state.positions = Positions::default();
        }
    }

    /// A processor, which is in the place of a task, leaves its program for another one. The
    /// straight line in the kernel goes on.
    pub fn leave_program(&mut self, task: u64) {
        if let Some(state) = self.tasks.get_mut(&task) {
            state.positions.user = Position::default();
        }
    }

    /// Takes a signal to a task.
    pub fn signal(&mut self, signal: u32) {
        if self.filters.until_signal == Some(signal) {
            self.window.close();
        }
    }

    /// The record of the gap at the end of what was given out of a task, if it is one.
    pub fn gap(&mut self, task: u64) -> Option<[u8; RECORD_SIZE]> {
        let state = self.tasks.get_mut(&task)?;
        let branches = std::mem::take(&mut state.left_out);
        (branches > 0).then(|| gap_record(branches))
    }

    /// The records of a task of `process` that are wanted, with those of gaps. The returns from
    /// the kernel that do not belong to the scope are left out.
    pub fn records(
        &mut self,
        task: u64,
        process: u32,
        records: &[u8],
        symbols: &mut Symbolizer,
    ) -> &[u8] {
        if self.kernel.is_none() {
            self.kernel = Some(self.kernel_space(symbols));
        }
        if !self.spaces.contains_key(&process) {
            let space = self.space(&[], symbols);
            self.spaces.insert(process, space);
        }
        let Self {
            filters,
            window,
            spaces,
            kernel,
            tasks,
            kept,
            filtered,
            ..
        } = self;
        kept.clear();
        let (unmapped, program_only) = (Space::default(), self.scope == Scope::User);
        let user = spaces.get(&process).unwrap_or(&unmapped);
        let kernel = kernel.as_ref().unwrap_or(&unmapped);
        let state = tasks.entry(task).or_default();
        let (has_only, has_skip) = (!filters.only.is_empty(), !filters.skip.is_empty());
        let areas_of = |address: u64| match address >= KERNEL_START {
            true => kernel.areas.flags(address),
            false => user.areas.flags(address),
        };
        for record in records.as_chunks::<RECORD_SIZE>().0 {
            let [from, to, flags] = words(record);
            match flags {
                _ if is_branch(flags) => {}
                ARRIVES | DEPARTS => {
                    kept.extend_from_slice(record);
                    continue;
                }
                _ => {
                    state.positions = Positions::default();
                    kept.extend_from_slice(record);
                    continue;
                }
            }
            let is_open = window.pass(&mut state.positions, &Executed { from, to }, user, kernel);
            if program_only && from >= KERNEL_START {
                continue;
            }
            let mut is_wanted = is_open;
            if is_wanted && (has_only || has_skip) {
                let (from, to) = (areas_of(from), areas_of(to));
                is_wanted = (!has_only || (from | to) & ONLY != 0) && from & to & SKIP == 0;
            }
            if !is_wanted {
                state.left_out += 1;
                *filtered += 1;
                continue;
            }
            if state.left_out > 0 {
                kept.extend_from_slice(&gap_record(std::mem::take(&mut state.left_out)));
            }
            kept.extend_from_slice(record);
            window.count();
        }
        kept
    }

    /// What the user should know at the end: what was not found, and what was not reached.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for (which, point) in self.filters.points().into_iter().enumerate() {
            let (Some(point), Some(reached)) = (point, self.window.missed(which)) else {
                continue;
            };
            let option = ["--start", "--stop"][which];
            let why = match (&point.place, self.points_found[which], reached) {
                (PointPlace::Named { .. }, false, _) => {
                    "no file that was mapped has such a function, or is such a module".into()
                }
                (PointPlace::Line { .. }, false, _) => {
                    "no file that was mapped has code of this line".into()
                }
                (_, _, 0) => "the program has not reached it".into(),
                (.., 1) => "the program has reached it only once".into(),
                (.., times) => format!("the program has reached it only {times} times"),
            };
            notes.push(format!("{option} {point}: {why}"));
        }
        let objects = self.filters.objects().zip(&self.objects_found);
        for ((object, flag), _) in objects.filter(|(_, is_found)| !**is_found) {
            let option = if flag == ONLY { "--only" } else { "--skip" };
            let why = "no file that was mapped has such a function, or is such a module";
            notes.push(format!("{option} {object}: {why}"));
        }
        notes
    }
}

/// The record of a gap.
fn gap_record(branches: u64) -> [u8; RECORD_SIZE] {
    record([branches, 0, FILTERED])
}

#[cfg(test)]
mod tests;
