//! Replies that report a stop.

use super::registers;
use super::session::{Client, Session};
use super::signals::to_gdb;
use super::text::push_hex;
use crate::resumption::WatchAccess;
use crate::stop::{Stop, StopReason, SyscallBoundary};
use crate::target::Result;

const SIGTRAP: u8 = 5;

/// Returns the reply for the last stop.
pub(super) fn reply(session: &mut Session<'_>) -> Result<Vec<u8>> {
    let Stop { thread, reason } = session.stop.clone();
    let id = session.thread_id(thread);
    let process = if session.client.multiprocess {
        format!(";process:{:x}", thread.process)
    } else {
        String::new()
    };
    match reason {
        StopReason::Exited { status } => Ok(format!("W{status:02x}{process}").into_bytes()),
        StopReason::Killed { signal } => {
            Ok(format!("X{:02x}{process}", to_gdb(signal)).into_bytes())
        }
        StopReason::ThreadExited { status } => Ok(format!("w{status:02x};{id}").into_bytes()),
        StopReason::NoResumedThreads if session.client.no_resumed => Ok(b"N".to_vec()),
        reason => {
            let signal = match reason {
                StopReason::Signal(signal) => to_gdb(signal),
                StopReason::NoResumedThreads => 0,
                _ => SIGTRAP,
            };
            let mut reply = format!("T{signal:02x}").into_bytes();
            push_reason(&mut reply, session, &reason);
            reply.extend(format!("thread:{id};").into_bytes());
            let layout = session.layout(thread)?;
            let values = session.target.read_registers(thread)?;
            registers::push_expedited(&mut reply, layout, &values);
            Ok(reply)
        }
    }
}

/// Appends the reason, as far as the client understands it.
fn push_reason(reply: &mut Vec<u8>, session: &Session<'_>, reason: &StopReason) {
    let client = session.client;
    let text = match *reason {
        StopReason::Breakpoint if client.software_breakpoints => "swbreak:;".to_owned(),
        StopReason::HardwareBreakpoint if client.hardware_breakpoints => "hwbreak:;".to_owned(),
        StopReason::Watchpoint { access, address } => {
            let name = match access {
                WatchAccess::Write => "watch",
                WatchAccess::Read => "rwatch",
                WatchAccess::ReadWrite => "awatch",
            };
            format!("{name}:{address:x};")
        }
        StopReason::HistoryBegin => "replaylog:begin;".to_owned(),
        StopReason::HistoryEnd => "replaylog:end;".to_owned(),
        StopReason::Syscall { number, boundary } => {
            let name = match boundary {
                SyscallBoundary::Entry => "syscall_entry",
                SyscallBoundary::Return => "syscall_return",
            };
            format!("{name}:{number:x};")
        }
        StopReason::Exec { ref path } if client.exec_events => {
            reply.extend(b"exec:");
            push_hex(reply, path);
            ";".to_owned()
        }
        StopReason::Fork { child } if client.fork_events => {
            format!("fork:{};", session.thread_id(child))
        }
        StopReason::Vfork { child } if client.vfork_events => {
            format!("vfork:{};", session.thread_id(child))
        }
        StopReason::VforkDone if client.vfork_events => "vforkdone:;".to_owned(),
        StopReason::ThreadCreated => "create:;".to_owned(),
        _ => String::new(),
    };
    reply.extend(text.into_bytes());
}

/// Returns whether the client can be told of a stop for this reason. It continues otherwise.
pub(super) fn is_reportable(client: Client, reason: &StopReason) -> bool {
    match reason {
        StopReason::Fork { .. } => client.fork_events,
        StopReason::Vfork { .. } | StopReason::VforkDone => client.vfork_events,
        StopReason::Exec { .. } => client.exec_events,
        _ => true,
    }
}
