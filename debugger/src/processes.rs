//! The processes of the recorded run, as the agent tells of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use vbts_protocol::{ExitStatus, ToHost};

/// Processes and tasks that are kept, at most.
const MAX_PROCESSES: usize = 1 << 12;
const MAX_TASKS: usize = 1 << 16;
/// Processes that a list shows, at most.
const MAX_SHOWN: usize = 1000;

/// A process of the recorded run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    /// Number of the process, and of its first thread.
    pub id: u32,
    /// Number of the task that has forked it; 0 for the first process.
    parent: u32,
    /// Virtual time in ns at which the agent has told of the fork.
    pub start: u64,
    /// Virtual time in ns at which the agent has told of the last exec, or of the fork if there
    /// is none.
    pub begin: u64,
    /// Path of that program.
    program: Vec<u8>,
    /// The number of programs that the process has executed since its fork.
    execs: u32,
    /// Virtual time in ns at which the agent has told of the end, and how the process ended.
    end: Option<(u64, ExitStatus)>,
    /// The thread that has crashed, and the virtual time in ns at which the agent has told it.
    pub crash: Option<(u32, u64)>,
}

/// All processes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Processes {
    /// In the order of their forks.
    list: Vec<Process>,
    /// The process of each task, by index.
    tasks: BTreeMap<u32, usize>,
}

impl Process {
    /// Returns whether the process executes a program called `name`, which is a path or its last
    /// part.
    fn has_name(&self, name: &str) -> bool {
        let last = self.program.rsplit(|byte| *byte == b'/').next();
        self.program == name.as_bytes() || last == Some(name.as_bytes())
    }

    /// Returns whether the process crashed, was killed or ended with a status other than 0.
    fn has_failed(&self) -> bool {
        let ended_well = |(_, status)| status == ExitStatus::Code(0);
        self.crash.is_some() || !self.end.is_none_or(ended_well)
    }

    /// Virtual time in ns at which the agent has told of the end.
    pub(crate) fn end_time(&self) -> Option<u64> {
        self.end.map(|(time, _)| time)
    }

    /// Returns whether the process begins with a program, and is no copy of its parent.
    pub(crate) fn has_program(&self) -> bool {
        self.parent == 0 || self.execs > 0
    }
}

impl Processes {
    /// Notes what the agent tells at `now`, virtual time in ns. Only messages of the first run
    /// through the recording are to be noted.
    pub(crate) fn note(&mut self, message: &ToHost<'_>, now: u64) {
        match *message {
            ToHost::TaskStart {
                task,
                parent,
                process,
                ..
            } => self.note_start(task, parent, process, now),
            ToHost::TaskExec { task, name, .. } => {
                if let Some(process) = self.of_task(task) {
                    process.begin = now;
                    process.program = name.to_vec();
                    process.execs = process.execs.saturating_add(1);
                }
            }
            ToHost::TaskEnd { task, status, .. } => {
                let process = self.of_task(task).filter(|process| process.id == task);
                if let Some(process) = process {
                    process.end = Some((now, status));
                }
            }
            ToHost::Crash(ref crash) => {
                if let Some(process) = self.of_task(crash.task) {
                    process.crash.get_or_insert((crash.task, now));
                }
            }
            _ => {}
        }
    }

    fn note_start(&mut self, task: u32, parent: u32, process: u32, now: u64) {
        if self.tasks.len() >= MAX_TASKS || self.list.len() >= MAX_PROCESSES {
            return;
        }
        if task != process {
            if let Some(index) = self.tasks.get(&process).copied() {
                self.tasks.insert(task, index);
            }
            return;
        }
        let forked = self.of_task(parent);
        let program = forked.map_or_else(Vec::new, |parent| parent.program.clone());
        // The number of a process that has ended may be that of another one later.
        self.tasks.insert(task, self.list.len());
        self.list.push(Process {
            id: process,
            parent,
            start: now,
            begin: now,
            program,
            execs: 0,
            end: None,
            crash: None,
        });
    }

    fn of_task(&mut self, task: u32) -> Option<&mut Process> {
        let index = self.tasks.get(&task)?;
        self.list.get_mut(*index)
    }

    /// The process with the number, or that of one of its threads, or with the name of a program
    /// that `wanted` is: of several, the first that failed. Without `wanted`, the first process
    /// that crashed, or else the first.
    ///
    /// # Errors
    /// There is none. The text has a list of all.
    pub(crate) fn select(&self, wanted: Option<&str>) -> Result<&Process, String> {
        let Some(wanted) = wanted else {
            let mut crashes: Vec<&Process> =
                self.list.iter().filter(|one| one.crash.is_some()).collect();
            crashes.sort_by_key(|process| process.crash.map(|(_, time)| time));
            let first = crashes.first().copied().or(self.list.first());
            return first.ok_or_else(|| "the program of the recording has not started".into());
        };
        let number: Option<u32> = wanted.parse().ok();
        let of_thread = number.and_then(|number| self.list.get(*self.tasks.get(&number)?));
        let is_wanted = |process: &&Process| {
            number == Some(process.id)
                || process.has_name(wanted)
                || of_thread.is_some_and(|one| one == *process)
        };
        let found = self.list.iter().filter(is_wanted);
        let found: Vec<&Process> = found.collect();
        let failed = found.iter().find(|process| process.has_failed());
        failed.or(found.first()).copied().ok_or_else(|| {
            format!(
                "--process: the recording has no process '{wanted}'. It has these:\n{}",
                self.show(None)
            )
        })
    }

    /// The first process.
    pub(crate) fn first(&self) -> Option<&Process> {
        self.list.first()
    }

    /// The numbers of all tasks.
    pub(crate) fn tasks(&self) -> BTreeSet<u32> {
        self.tasks.keys().copied().collect()
    }

    /// The number of processes.
    pub(crate) fn count(&self) -> usize {
        self.list.len()
    }

    /// A table of the processes. `debugged` is marked.
    pub(crate) fn show(&self, debugged: Option<(u32, u64)>) -> String {
        let mut text = format!(
            "  {:>7} {:>7} {:>15} {:>15} {:<10} program\n",
            "process", "parent", "from ns", "to ns", "end"
        );
        for process in self.list.iter().take(MAX_SHOWN) {
            let is_debugged =
                debugged.is_some_and(|(id, start)| id == process.id && start == process.start);
            let end = match process.end {
                _ if process.crash.is_some() => "crashed".to_owned(),
                Some((_, ExitStatus::Code(code))) => format!("status {code}"),
                Some((_, ExitStatus::Signal(signal))) => format!("signal {signal}"),
                None => String::new(),
            };
            let to = process.end.map(|(time, _)| time.to_string());
            // Writes to a string cannot fail.
            let _ = writeln!(
                text,
                "{} {:>7} {:>7} {:>15} {:>15} {end:<10} {}",
                if is_debugged { '*' } else { ' ' },
                process.id,
                process.parent,
                process.begin,
                to.unwrap_or_default(),
                process.program.escape_ascii(),
            );
        }
        if let Some(more) = self.list.len().checked_sub(MAX_SHOWN + 1) {
            let _ = writeln!(text, "and {} more", more + 1);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(task: u32, parent: u32, process: u32) -> ToHost<'static> {
        ToHost::TaskStart {
            task,
            parent,
            process,
            records: 0,
            time: 0,
        }
    }

    fn exec(task: u32, name: &'static [u8]) -> ToHost<'static> {
        ToHost::TaskExec {
            task,
            former: task,
            time: 0,
            name,
        }
    }

    fn end(task: u32, code: u8) -> ToHost<'static> {
        ToHost::TaskEnd {
            task,
            time: 0,
            status: ExitStatus::Code(code),
        }
    }

    #[test]
    fn a_process_is_selected_by_number_name_and_failure() {
        let mut processes = Processes::default();
        assert!(processes.select(None).is_err());
        let messages = [
            start(30, 0, 30),
            exec(30, b"/bin/sh"),
            start(31, 30, 31),
            start(32, 30, 32),
            exec(31, b"/usr/bin/cc"),
            start(33, 32, 32),
            exec(32, b"/usr/bin/cc"),
            end(33, 1),
            end(31, 0),
            end(32, 2),
            start(34, 30, 34),
            end(30, 1),
        ];
        for (now, message) in (1..).zip(&messages) {
            processes.note(message, now);
        }
        let selected = |wanted| {
            let process = processes.select(wanted);
            process.map(|process| (process.id, process.begin))
        };
        assert_eq!(selected(None), Ok((30, 2)));
        assert_eq!(selected(Some("31")), Ok((31, 5)));
        assert_eq!(selected(Some("cc")), Ok((32, 7)), "it failed");
        assert_eq!(selected(Some("/usr/bin/cc")), Ok((32, 7)));
        assert_eq!(selected(Some("sh")), Ok((30, 2)));
        assert_eq!(selected(Some("34")), Ok((34, 11)));
        assert_eq!(selected(Some("33")), Ok((32, 7)), "its thread");
        let error = selected(Some("35")).unwrap_err();
        assert!(error.contains("'35'") && error.contains("/usr/bin/cc"));
        let shown = processes.show(Some((32, 4)));
        let marked: Vec<&str> = shown.lines().filter(|line| line.starts_with('*')).collect();
        assert_eq!(marked.len(), 1, "{shown}");
        let words: Vec<&str> = marked[0].split_whitespace().collect();
        assert_eq!(
            words,
            ["*", "32", "30", "7", "10", "status", "2", "/usr/bin/cc"]
        );
    }

    #[test]
    fn numbers_are_used_again() {
        let mut processes = Processes::default();
        for (now, message) in (1..).zip(&[
            start(30, 0, 30),
            start(31, 30, 31),
            end(31, 0),
            start(31, 30, 31),
            end(31, 3),
        ]) {
            processes.note(message, now);
        }
        assert_eq!(processes.count(), 3);
        assert_eq!(processes.select(Some("31")).map(|one| one.start), Ok(4));
    }
}
