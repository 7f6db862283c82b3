//! Tasks that are not traced, and why.

use libc::pid_t;
use vbts_protocol::ToHost;

use crate::bts::now;
use crate::failure::Failure;
use crate::port::Port;
use crate::status::Status;
use crate::task_name::comm;

/// Reports that a task is not traced, or not any more.
pub(super) fn untraced(
    port: &mut Port,
    pid: pid_t,
    parent: pid_t,
    reason: &str,
) -> Result<(), Failure> {
    port.send(&ToHost::TaskUntraced {
        task: pid.unsigned_abs(),
        parent: parent.unsigned_abs(),
        time: now(),
        name: &comm(pid),
        reason,
    })
}

/// The reason why a task is not traced that another task traces.
pub(super) fn traced_by(tracer: pid_t) -> String {
    format!("traced by task {tracer}")
}

/// The reason why a task is not traced that has asked for its parent as its tracer
/// (`PTRACE_TRACEME`).
pub(super) fn traced_by_parent(pid: pid_t) -> String {
    match Status::of(pid).task("PPid:") {
        // The agent stands for whatever has started vbts on the host.
        Some(1) => "it wants to be traced by its parent, which is outside of the guest".into(),
        Some(parent) => traced_by(parent),
        None => "it wants to be traced by its parent".into(),
    }
}
