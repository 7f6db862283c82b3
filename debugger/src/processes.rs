//! The processes of the recorded run, as the agent tells of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use vbts_protocol::{ExitStatus, ToHost};

/// Processes and tasks that are kept, at most.
const MAX_PROCESSES: usize = 1 << 12;
const MAX_TASKS: usize = 1 << 16;
/// Programs that are kept, of all processes, at most.
const MAX_PROGRAMS: usize = 1 << 14;
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
    /// Path of the program that the process has inherited from its parent.
    inherited: Vec<u8>,
    /// The programs that the process has executed since its fork.
    programs: Vec<Program>,
    /// Virtual time in ns at which the agent has told of the end, and how the process ended.
    end: Option<(u64, ExitStatus)>,
    /// The thread that has crashed, and the virtual time in ns at which the agent has told it.
    pub crash: Option<(u32, u64)>,
}

/// A program that a process executes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Program {
    /// Virtual time in ns at which the agent has told of the exec.
    begin: u64,
    path: Vec<u8>,
}

/// A process, from one of its programs on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Selected<'a> {
    pub process: &'a Process,
    /// The index of the program in those of the process.
    program: usize,
}

impl Selected<'_> {
    /// Virtual time in ns at which the agent has told of the exec, or of the fork if there is none.
    pub(crate) fn begin(&self) -> u64 {
        let program = self.process.programs.get(self.program);
        program.map_or(self.process.start, |program| program.begin)
    }

    /// The paths of the programs that the process executes, from the selected one on.
    pub(crate) fn programs(&self) -> Vec<Vec<u8>> {
        let Process {
            inherited,
            programs,
            ..
        } = self.process;
        match programs.get(self.program..) {
            Some(programs) if !programs.is_empty() => {
                programs.iter().map(|one| one.path.clone()).collect()
            }
            _ => vec![inherited.clone()],
        }
    }
}

/// All processes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Processes {
    /// In the order of their forks.
    list: Vec<Process>,
    /// The process of each task, by index.
    tasks: BTreeMap<u32, usize>,
    /// The number of programs of all processes.
    programs: usize,
}

impl Process {
    /// The path of the last program.
    fn path(&self) -> &[u8] {
        let last = self.programs.last();
        last.map_or(&self.inherited, |program| &program.path)
    }

    /// The process from its last program on.
    fn last(&self) -> Selected<'_> {
        Selected {
            process: self,
            program: self.programs.len().saturating_sub(1),
        }
    }

    /// Virtual time in ns at which the agent has told of the last exec, or of the fork.
    fn begin(&self) -> u64 {
        self.last().begin()
    }

    /// The process from the last of its programs on that has this name.
    fn since_program(&self, name: &str) -> Option<Selected<'_>> {
        let program = self
            .programs
            .iter()
            .rposition(|one| is_name(&one.path, name))?;
        Some(Selected {
            process: self,
            program,
        })
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
        self.parent == 0 || !self.programs.is_empty()
    }

    /// The paths of the programs that the process executes, from its fork on.
    pub(crate) fn all_programs(&self) -> Vec<Vec<u8>> {
        let programs = self.programs.iter().map(|program| program.path.clone());
        [self.inherited.clone()]
            .into_iter()
            .chain(programs)
            .collect()
    }
}

/// Returns whether the program at `path` is called `name`, which is a path or its last part.
fn is_name(path: &[u8], name: &str) -> bool {
    let last = path.rsplit(|byte| *byte == b'/').next();
    path == name.as_bytes() || last == Some(name.as_bytes())
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
                let is_full = self.programs >= MAX_PROGRAMS;
                if let Some(process) = self.of_task(task).filter(|_| !is_full) {
                    process.programs.push(Program {
                        begin: now,
                        path: name.to_vec(),
                    });
                    self.programs += 1;
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
        let inherited = forked.map_or_else(Vec::new, |parent| parent.path().to_vec());
        // The number of a process that has ended may be that of another one later.
        self.tasks.insert(task, self.list.len());
        self.list.push(Process {
            id: process,
            parent,
            start: now,
            inherited,
            programs: Vec::new(),
            end: None,
            crash: None,
        });
    }

    fn of_task(&mut self, task: u32) -> Option<&mut Process> {
        let index = self.tasks.get(&task)?;
        self.list.get_mut(*index)
    }

    /// The process with the number, or that of one of its threads, or with the name of a program
    /// that `wanted` is: of several, the first that failed. It is selected from its last program
    /// on, or from an earlier one that has the name, if no last one has it. Without `wanted`, it is
    /// the first process that crashed, or else the first.
    ///
    /// # Errors
    /// There is none. The text has a list of all.
    pub(crate) fn select(&self, wanted: Option<&str>) -> Result<Selected<'_>, String> {
        let Some(wanted) = wanted else {
            let mut crashes: Vec<&Process> =
                self.list.iter().filter(|one| one.crash.is_some()).collect();
            crashes.sort_by_key(|process| process.crash.map(|(_, time)| time));
            let first = crashes.first().copied().or(self.list.first());
            let first = first.map(Process::last);
            return first.ok_or_else(|| "the program of the recording has not started".into());
        };
        let number: Option<u32> = wanted.parse().ok();
        let of_thread = number.and_then(|number| self.list.get(*self.tasks.get(&number)?));
        let is_wanted = |process: &&Process| {
            number == Some(process.id)
                || is_name(process.path(), wanted)
                || of_thread.is_some_and(|one| one == *process)
        };
        let found = self.list.iter().filter(is_wanted);
        let mut found: Vec<Selected<'_>> = found.map(Process::last).collect();
        if found.is_empty() {
            let earlier = self.list.iter().filter_map(|one| one.since_program(wanted));
            found = earlier.collect();
        }
        let failed = found.iter().find(|found| found.process.has_failed());
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

    /// The process with this number that was forked at `time`, in ns.
    pub(crate) fn forked_at(&self, id: u32, time: u64) -> Option<&Process> {
        let mut processes = self.list.iter();
        processes.find(|process| process.id == id && process.start >= time)
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
                process.begin(),
                to.unwrap_or_default(),
                process.path().escape_ascii(),
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
            process.map(|selected| (selected.process.id, selected.begin()))
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
    fn an_earlier_program_is_selected_if_none_is_last() {
        let mut processes = Processes::default();
        for (now, message) in (1..).zip(&[
            start(30, 0, 30),
            exec(30, b"/bin/sh"),
            start(31, 30, 31),
            exec(31, b"/usr/bin/env"),
            exec(31, b"/usr/bin/cc"),
            exec(30, b"/usr/bin/env"),
            exec(30, b"/bin/true"),
        ]) {
            processes.note(message, now);
        }
        let selected = |wanted| {
            let selected = processes.select(wanted);
            selected.map(|one| (one.process.id, one.begin(), one.programs().len()))
        };
        assert_eq!(selected(None), Ok((30, 7, 1)));
        assert_eq!(selected(Some("sh")), Ok((30, 2, 3)));
        assert_eq!(selected(Some("env")), Ok((30, 6, 2)));
        assert_eq!(selected(Some("cc")), Ok((31, 5, 1)));
        let child = processes.forked_at(31, 3).map(Process::all_programs);
        assert_eq!(child.map(|programs| programs.len()), Some(3));
        assert_eq!(processes.forked_at(31, 4), None);
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
        assert_eq!(processes.select(Some("31")).map(|one| one.begin()), Ok(4));
    }
}
