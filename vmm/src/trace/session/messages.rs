//! From the agent's messages to the input of the merge, and to events of a kept trace.

use vbts_protocol::{CodeSource, ToHost};

use crate::trace::merge::Input;
use crate::trace::task::Untraced;

/// Maximum length of a name from the guest in bytes (`PATH_MAX` of Linux).
pub const MAX_NAME: usize = 4096;

/// A message about a task or a process; `None` for another message.
pub fn about_a_task(message: ToHost<'_>) -> Option<Input> {
    let name = |name: &[u8]| name.get(..MAX_NAME).unwrap_or(name).to_vec();
    let text = |text: &str| text.chars().take(MAX_NAME).collect();
    Some(match message {
        ToHost::TaskStart {
            task,
            parent,
            process,
            records,
            time,
        } => Input::Start {
            task,
            parent,
            process,
            capacity: records,
            time,
        },
        ToHost::TaskExec {
            task,
            former,
            time,
            name: path,
        } => Input::Exec {
            task,
            former,
            time,
            name: name(path),
        },
        ToHost::TaskSignal { task, time, signal } => Input::Signal { task, time, signal },
        ToHost::TaskEnd { task, time, status } => Input::End { task, time, status },
        ToHost::TaskUntraced {
            task,
            parent,
            time,
            name: comm,
            reason,
        } => Input::Untraced(Untraced {
            task,
            parent,
            time,
            name: name(comm),
            reason: text(reason),
        }),
        ToHost::Maps { process, text } => Input::Maps {
            process,
            text: text.into(),
        },
        ToHost::Lost { task, records } => Input::Lost { task, records },
        ToHost::Drained { task, time } => Input::Drained { task, time },
        ToHost::Crash(crash) => Input::Crash(crash),
        ToHost::Standing {
            task,
            syscall,
            name: comm,
        } => Input::Standing {
            task,
            syscall: text(syscall),
            name: name(comm),
        },
        _ => return None,
    })
}

/// Where code comes from, as a kept trace says it.
pub fn code_source(source: CodeSource) -> vbts_trace::CodeSource {
    match source {
        CodeSource::Memory => vbts_trace::CodeSource::Memory,
        CodeSource::Vdso => vbts_trace::CodeSource::Vdso,
        CodeSource::PerfMap => vbts_trace::CodeSource::PerfMap,
        CodeSource::JitDump => vbts_trace::CodeSource::JitDump,
    }
}
