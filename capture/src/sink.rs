//! The interface between the stages of a trace.
//!
//! The merge, or a kept trace that is replayed, originates branches and events. The filter, the
//! buffer of the last branches and the formats receive them in the same two calls.

use vbts_trace::{Branch, Event};

use crate::task::Task;

/// Receives a trace in the order of time.
pub trait Sink {
    /// Why the sink accepts no more.
    type Error;

    /// Receives branches of `task`, oldest first.
    ///
    /// # Errors
    /// The sink accepts no more.
    fn branches(&mut self, task: &mut Task, branches: &[Branch]) -> Result<(), Self::Error>;

    /// Receives an event of `task`, whose name and ID are those after the event. Events of a whole
    /// process or of the guest (`belongs_to_a_task`) come with the default task.
    ///
    /// # Errors
    /// The sink accepts no more.
    fn event(&mut self, task: &Task, event: &Event) -> Result<(), Self::Error>;
}

/// Returns whether an event has the place of a record of its task, between two branches. An output
/// without the branches cannot show it.
pub fn is_record(event: &Event) -> bool {
    matches!(
        event,
        Event::Arrive { .. } | Event::Depart { .. } | Event::Filtered(_) | Event::Invalid
    )
}

/// Returns whether an event is about one task or processor, and not about a process, the guest's
/// kernel, or a task that has no branches.
pub(crate) fn belongs_to_a_task(event: &Event) -> bool {
    !matches!(
        event,
        Event::Untraced { .. }
            | Event::Maps { .. }
            | Event::ProcessEnd { .. }
            | Event::KernelCode { .. }
            | Event::KernelFile { .. }
            | Event::Code { .. }
            | Event::BuildId { .. }
    )
}
