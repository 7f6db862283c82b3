//! What takes what the merge gives out, and what the merge refuses.

use thiserror::Error;

use super::MAX_TASKS;
use crate::trace::task::{Task, TaskEvent, Untraced};

/// What the agent cannot truly have reported.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum MergeError {
    /// A message is about a task that has not started, or has ended.
    #[error("the guest's agent has reported task {0}, which is not traced")]
    UnknownTask(u32),
    /// A task has started that has not ended.
    #[error("the guest's agent has reported the start of task {0} twice")]
    StartedTwice(u32),
    /// There are more tasks than a guest can have.
    #[error("the guest's agent has reported more than {MAX_TASKS} tasks at once")]
    TooManyTasks,
    /// The mappings take too much memory.
    #[error("the guest's agent has reported too many mappings")]
    TooManyMappings,
}

/// Takes what the merge gives out.
pub trait Sink {
    /// Why it cannot take more.
    type Error: From<MergeError>;

    /// Takes records of `task`, oldest first.
    ///
    /// # Errors
    /// No more can be taken.
    fn records(&mut self, task: &mut Task, records: &[u8]) -> Result<(), Self::Error>;

    /// Takes an event of `task`.
    ///
    /// # Errors
    /// No more can be taken.
    fn event(&mut self, task: &Task, event: &TaskEvent) -> Result<(), Self::Error>;

    /// Takes a task that is not traced.
    ///
    /// # Errors
    /// No more can be taken.
    fn untraced(&mut self, untraced: &Untraced) -> Result<(), Self::Error>;

    /// Takes the mappings of `process`, valid for the records that follow.
    fn maps(&mut self, process: u32, text: &[u8]);

    /// Takes the end of the last task of `process`.
    fn process_ended(&mut self, process: u32);
}
