//! From the agent's messages to events of a trace.

use vbts_protocol::{CodeSource, ExitStatus, ToHost};
use vbts_trace::{Crash, Event, Status};

use crate::pipeline::merge::AgentEvent;

/// Maximum length of a name from the guest in bytes (`PATH_MAX` of Linux).
pub(super) const MAX_NAME: usize = 4096;

/// A message about a task or a process; `None` for another message.
pub(crate) fn about_a_task(message: ToHost<'_>) -> Option<AgentEvent> {
    let name = |name: &[u8]| name.get(..MAX_NAME).unwrap_or(name).to_vec();
    let text = |text: &str| text.chars().take(MAX_NAME).collect::<String>().into_bytes();
    let (task, event) = match message {
        ToHost::TaskStart {
            task,
            parent,
            process,
            records,
            time,
        } => {
            return Some(AgentEvent::Start {
                task,
                parent,
                process,
                capacity: records,
                time,
            });
        }
        ToHost::TaskExec {
            task,
            former,
            time,
            name: path,
        } => {
            let event = Event::Exec {
                id: task,
                former,
                time,
                name: name(path),
            };
            (former, event)
        }
        ToHost::TaskName { task, name: comm } => (task, Event::ThreadName(name(comm))),
        ToHost::TaskSignal { task, time, signal } => (task, Event::Signal { time, signal }),
        ToHost::TaskEnd { task, time, status } => {
            let status = match status {
                ExitStatus::Code(code) => Status::Exited(code),
                ExitStatus::Signal(signal) => Status::Killed(signal),
            };
            (task, Event::End { time, status })
        }
        ToHost::TaskUntraced {
            task,
            parent,
            time,
            name: comm,
            reason,
        } => {
            let event = Event::Untraced {
                id: task,
                parent,
                time,
                name: name(comm),
                reason: text(reason),
            };
            return Some(AgentEvent::Untraced { task, event });
        }
        ToHost::Maps { process, text } => {
            let text = text.into();
            return Some(AgentEvent::Maps { process, text });
        }
        ToHost::Drained { task, time } => return Some(AgentEvent::Drained { task, time }),
        ToHost::Lost { task, records } => (task, Event::Lost(records)),
        ToHost::Crash(crash) => {
            let event = Event::Crash(Box::new(Crash {
                signal: crash.signal,
                code: crash.code,
                address: crash.address,
                registers: crash.registers.into(),
                instruction: crash.instruction,
            }));
            (crash.task, event)
        }
        ToHost::Standing {
            task,
            syscall,
            name: comm,
        } => {
            let event = Event::Standing {
                syscall: text(syscall),
                name: name(comm),
            };
            (task, event)
        }
        _ => return None,
    };
    Some(AgentEvent::Event { task, event })
}

/// The source of code, as a kept trace names it.
pub(crate) fn code_source(source: CodeSource) -> vbts_trace::CodeSource {
    match source {
        CodeSource::Memory => vbts_trace::CodeSource::Memory,
        CodeSource::Vdso => vbts_trace::CodeSource::Vdso,
        CodeSource::PerfMap => vbts_trace::CodeSource::PerfMap,
        CodeSource::JitDump => vbts_trace::CodeSource::JitDump,
    }
}
