//! Limits of what a profile holds of the tasks and processes that live at once. A trace can have
//! any contents, and a few bytes of it can stand for a deep stack or for large mappings.
//!
//! The limits are those of sums over all tasks or processes. A sum is computed when so much was
//! added since it was computed last that it could have reached the limit.

use super::code::Files;
use super::modules::AddressSpace;
use super::space::Space;
use super::stack::Stack;
use super::{Profile, Watch};

/// Maximum number of tasks that live at once, and of processes.
pub(super) const MAX_TASKS: usize = 1 << 16;
/// Maximum number of tasks in the list of all tasks.
pub(super) const MAX_ENDED: usize = 1 << 20;
/// Maximum number of programs, and length of their paths in bytes (`PATH_MAX` of Linux).
pub(super) const MAX_PROGRAMS: usize = 1 << 13;
pub(super) const MAX_PATH: usize = 4096;
/// Frames of all stacks. When they are reached, outer frames are dropped.
const MAX_FRAMES: usize = 1 << 22;
/// Transfers of all address spaces. When they are reached, their counts are added up, and they are
/// dropped.
const MAX_TRANSFERS: usize = 1 << 20;
/// Bytes of mappings of all processes. When they are reached, further mappings are ignored.
const MAX_MAPPINGS: usize = 128 << 20;

/// What was added since the sums were computed.
#[derive(Debug, Default)]
pub(super) struct Added {
    /// Frames.
    pub frames: usize,
    /// Transfers.
    pub transfers: usize,
    /// Bytes of mappings.
    mappings: usize,
}

impl<F: Files, W: Watch> Profile<F, W> {
    /// Makes room for frames and transfers, if that could be necessary.
    pub(super) fn make_room(&mut self) {
        if self.added.frames >= MAX_FRAMES / 4 {
            self.added.frames = 0;
            self.trim_stacks();
        }
        if self.added.transfers >= MAX_TRANSFERS / 2 {
            self.added.transfers = 0;
            let held: usize = self.spaces.values().map(|s| s.transfers.len()).sum();
            if held >= MAX_TRANSFERS / 2 {
                let mut spaces = std::mem::take(&mut self.spaces);
                for space in spaces.values_mut() {
                    self.add_up(space);
                }
                self.spaces = spaces;
            }
        }
    }

    fn stacks(&mut self) -> impl Iterator<Item = &mut Stack> {
        let tasks = self.tasks.values_mut().chain(self.asleep.values_mut());
        tasks.map(|task| &mut task.stack)
    }

    /// Drops the outer frames of the deepest stacks until a quarter of the room is free.
    fn trim_stacks(&mut self) {
        let mut depth = MAX_FRAMES;
        while self.stacks().map(|stack| stack.held()).sum::<usize>() > MAX_FRAMES / 4 * 3 {
            depth /= 2;
            let trimmed: u64 = self
                .stacks()
                .map(|stack| u64::from(stack.trim(depth)))
                .sum();
            self.counts.too_deep += trimmed;
        }
    }

    /// Whether there is room for the mappings of one more process.
    pub(super) fn has_room_for(&mut self, map: &AddressSpace) -> bool {
        self.added.mappings = self.added.mappings.saturating_add(map.bytes());
        if self.added.mappings < MAX_MAPPINGS / 2 {
            return true;
        }
        let held: usize = self.spaces.values().map(|space| space.map.bytes()).sum();
        if held < MAX_MAPPINGS / 2 {
            self.added.mappings = 0;
            return true;
        }
        false
    }

    /// Whether there is no room for the space of a process that has none.
    pub(super) fn is_full(&self, space: Option<&Space>) -> bool {
        space.is_none() && self.spaces.len() >= MAX_TASKS
    }
}
