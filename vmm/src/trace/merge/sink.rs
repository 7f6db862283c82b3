//! What takes a trace, and what the merge refuses.

use thiserror::Error;

use super::MAX_TASKS;
use crate::trace::kernel_code::CodeChange;
use crate::trace::task::{ProcessorEvent, Task, TaskEvent, Untraced};

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

/// Takes a trace: what the merge gives out, or what a file has.
pub trait Sink {
    /// Why it cannot take more.
    type Error;

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

    /// Takes an event of the processor for which `task` stands. The merge has none.
    ///
    /// # Errors
    /// No more can be taken.
    fn processor(&mut self, task: &Task, event: &ProcessorEvent) -> Result<(), Self::Error> {
        let _ = (task, event);
        Ok(())
    }

    /// Takes code that is in no file. The merge has none.
    ///
    /// # Errors
    /// No more can be taken.
    fn code(&mut self, event: &vbts_trace::Event) -> Result<(), Self::Error> {
        let _ = event;
        Ok(())
    }

    /// Takes code of the guest's kernel that differs from that in its file. The merge has none.
    ///
    /// # Errors
    /// No more can be taken.
    fn kernel_code(&mut self, changes: Vec<CodeChange>) -> Result<(), Self::Error> {
        let _ = changes;
        Ok(())
    }
}
