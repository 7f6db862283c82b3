//! Which branches of a trace the user wants.
//!
//! A filter is between the merge, which orders the records, and the format: all formats get the
//! same. Where it has left out branches, [`Event::Filtered`] with their number precedes the next
//! branch of the task, so that no reader mistakes the gap for straight-line execution.
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

use thiserror::Error;
use vbts_protocol::Scope;
use vbts_trace::profile::modules::KERNEL_START;
use vbts_trace::{Branch, Event, Status, maps};

use crate::records::{Mark, Records};
use crate::sink::{belongs_to_a_task, is_record};
use crate::task::{Task, belongs};
pub use object::Object;
use places::FilePlaces;
pub use point::{Point, PointPlace};
use position::{Position, Positions};
use space::Space;
use vbts_symbols::Symbolizer;
use window::Window;

/// Why a name is unknown.
const UNKNOWN_NAME: &str = "no file that was mapped has such a function, or is such a module";

/// A note about a filter for the end of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterNote {
    /// The option, and what is to be said of it.
    pub text: String,
    /// The trace lacks what the user wants, because no file has the name in the option.
    pub is_error: bool,
}

/// Flag of the addresses of the only objects that are wanted.
const ONLY: u8 = 1;
/// Flag of the addresses of objects that are not wanted.
const SKIP: u8 = 2;

/// What the user wants of a trace.
#[derive(Debug, Clone, Default, PartialEq)]
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

/// A point that no branch of the trace can reach.
#[derive(Debug, Error)]
#[error("{option} {point}: {why}")]
pub struct FilterError {
    option: &'static str,
    point: Point,
    why: &'static str,
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

    /// Refuses points that no branch of `scope` can show.
    ///
    /// # Errors
    /// There is such a point.
    pub fn check(&self, scope: Scope) -> Result<(), FilterError> {
        for (option, point) in [("--start", &self.start), ("--stop", &self.stop)] {
            let Some(point) = point else { continue };
            let PointPlace::Address(address) = point.place else {
                continue;
            };
            let why = match (address >> 63 != 0, scope) {
                (true, Scope::User) => {
                    "an address of the kernel, which --scope user does not record"
                }
                (false, Scope::Kernel) => {
                    "an address of the program, which --scope kernel does not record"
                }
                _ => continue,
            };
            return Err(FilterError {
                option,
                point: point.clone(),
                why,
            });
        }
        Ok(())
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
pub(crate) struct Filter {
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
    /// The branches and gaps that the last call of [`Self::branches`] has returned.
    kept: Records,
}

impl Filter {
    /// A filter of records of `scope`.
    pub(crate) fn new(filters: Filters, scope: Scope) -> Self {
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
            kept: Records::default(),
        }
    }

    /// Number of branches that were left out.
    pub(crate) fn filtered(&self) -> u64 {
        self.filtered
    }

    /// Receives an event of `task`. Returns the number of branches that were left out before it, if
    /// they must be reported before it.
    pub(crate) fn event(
        &mut self,
        task: &Task,
        event: &Event,
        symbols: &mut Symbolizer,
    ) -> Option<u64> {
        // Times on a processor, and damage that the kernel reports, interrupt no gap.
        let ends_gap = belongs_to_a_task(event) && !is_record(event);
        let gap = if ends_gap {
            self.gap(task.number)
        } else {
            None
        };
        match event {
            Event::Exec { .. }
            | Event::Lost(_)
            | Event::Invalid
            | Event::Filtered(_)
            | Event::Gap { .. } => self.interrupted(task.number),
            Event::Signal { signal, .. } => self.signal(*signal),
            Event::End { status, .. } => {
                if let Status::Killed(signal) = status {
                    self.signal((*signal).into());
                }
                self.tasks.remove(&task.number);
            }
            Event::AddressSpace { .. } | Event::Switch { .. } => self.leave_program(task.number),
            Event::Maps { process, text } => {
                let mut mappings = Vec::new();
                if self.scope != Scope::Kernel {
                    mappings = maps::parse(text);
                }
                let space = self.space(&mappings, symbols);
                self.spaces.insert(*process, space);
            }
            Event::ProcessEnd { process } => {
                self.spaces.remove(process);
            }
            _ => {}
        }
        gap
    }

    /// The straight line of a task ends: records are missing, or it executes a program.
    fn interrupted(&mut self, task: u64) {
        if let Some(state) = self.tasks.get_mut(&task) {
            state.positions = Positions::default();
        }
    }

    /// A processor, which is in the place of a task, leaves its program for another one. The
    /// straight line in the kernel goes on.
    fn leave_program(&mut self, task: u64) {
        if let Some(state) = self.tasks.get_mut(&task) {
            state.positions.user = Position::default();
        }
    }

    fn signal(&mut self, signal: u32) {
        if self.filters.until_signal == Some(signal) {
            self.window.close();
        }
    }

    /// Returns the number of branches of a task that were left out since the last one that was not,
    /// if there are any, and counts them as reported.
    fn gap(&mut self, task: u64) -> Option<u64> {
        let state = self.tasks.get_mut(&task)?;
        let branches = std::mem::take(&mut state.left_out);
        (branches > 0).then_some(branches)
    }

    /// The branches of `task` that are wanted, with the gaps between them. The returns from the
    /// kernel that do not belong to the scope are left out.
    pub(crate) fn branches(
        &mut self,
        task: &Task,
        branches: &[Branch],
        symbols: &mut Symbolizer,
    ) -> &Records {
        let process = task.process;
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
        let (unmapped, scope) = (Space::default(), self.scope);
        let user = spaces.get(&process).unwrap_or(&unmapped);
        let kernel = kernel.as_ref().unwrap_or(&unmapped);
        let state = tasks.entry(task.number).or_default();
        let (has_only, has_skip) = (!filters.only.is_empty(), !filters.skip.is_empty());
        let areas_of = |address: u64| match address >= KERNEL_START {
            true => kernel.areas.flags(address),
            false => user.areas.flags(address),
        };
        for branch in branches {
            let is_open = window.pass(&mut state.positions, branch, user, kernel);
            if !belongs(branch, scope) {
                continue;
            }
            let mut is_wanted = is_open;
            if is_wanted && (has_only || has_skip) {
                let (from, to) = (areas_of(branch.from), areas_of(branch.to));
                is_wanted = (!has_only || (from | to) & ONLY != 0) && from & to & SKIP == 0;
            }
            if !is_wanted {
                state.left_out += 1;
                *filtered += 1;
                continue;
            }
            if state.left_out > 0 {
                kept.mark(Mark::Filtered(std::mem::take(&mut state.left_out)));
            }
            kept.push(*branch);
            window.count();
        }
        kept
    }

    /// What the user should know at the end: what was not found, and what was not reached.
    pub(crate) fn notes(&self) -> Vec<FilterNote> {
        let mut notes = Vec::new();
        for (which, point) in self.filters.points().into_iter().enumerate() {
            let (Some(point), Some(reached)) = (point, self.window.missed(which)) else {
                continue;
            };
            let option = ["--start", "--stop"][which];
            let is_found = self.points_found[which];
            let why = match (&point.place, is_found, reached) {
                (PointPlace::Named { .. }, false, _) => UNKNOWN_NAME.into(),
                (PointPlace::Line { .. }, false, _) => {
                    "no file that was mapped has code of this line".into()
                }
                (_, _, 0) => "the program has not reached it".into(),
                (.., 1) => "the program has reached it only once".into(),
                (.., times) => format!("the program has reached it only {times} times"),
            };
            notes.push(FilterNote {
                text: format!("{option} {point}: {why}"),
                is_error: !is_found && !matches!(point.place, PointPlace::Address(_)),
            });
        }
        let objects = self.filters.objects().zip(&self.objects_found);
        for ((object, flag), _) in objects.filter(|(_, is_found)| !**is_found) {
            let option = if flag == ONLY { "--only" } else { "--skip" };
            notes.push(FilterNote {
                text: format!("{option} {object}: {UNKNOWN_NAME}"),
                is_error: flag == ONLY,
            });
        }
        notes
    }
}

#[cfg(test)]
mod tests;
