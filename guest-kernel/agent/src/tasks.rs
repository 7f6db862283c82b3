//! The tables of traced tasks and their processes.

use std::collections::BTreeMap;

use libc::pid_t;
use vbts_protocol::Crash;

use crate::bts::{Buffer, Source};
use crate::maps::Maps;
use crate::task_name::TaskName;

/// A task that the kernel has attached to this tracer.
#[derive(Debug)]
pub struct Task {
    /// Its process (thread group).
    pub process: pid_t,
    /// The task that has started it; 0 for the first one of the program.
    pub parent: pid_t,
    /// `None` if the kernel had no memory for it. The task is not recorded then.
    pub buffer: Option<Buffer>,
    /// Its records up to its exit have been sent.
    pub finished: bool,
    /// It waits in a stop until [`Self::callers`] of another task are resumed.
    pub held: bool,
    /// Stopped tasks that are about to trace this one.
    pub callers: Vec<pid_t>,
    /// What it crashes with if it ends before it executes another instruction.
    pub crash: Option<Box<Crash>>,
    pub name: TaskName,
}

/// A process that has traced tasks.
#[derive(Debug)]
struct Process {
    /// Its mappings.
    maps: Maps,
    /// Number of its tasks.
    tasks: usize,
    /// Number of its tasks that are recorded. The host knows the process while there are any.
    recorded: usize,
}

impl Task {
    /// A task that is going to execute its first instruction.
    pub fn new(process: pid_t, parent: pid_t, buffer: Option<Buffer>) -> Self {
        Self {
            process,
            parent,
            buffer,
            finished: false,
            held: false,
            callers: Vec::new(),
            crash: None,
            name: TaskName::default(),
        }
    }

    /// Whether the kernel records it, so that the host knows it.
    pub fn is_recorded(&self) -> bool {
        self.buffer.is_some()
    }

    /// The source of its records.
    pub fn source(&self, pid: pid_t) -> Source {
        Source {
            pid,
            known_as: pid,
            process: self.process,
        }
    }
}

/// The traced tasks, by ID, and their processes.
#[derive(Debug, Default)]
pub struct Tasks {
    tasks: BTreeMap<pid_t, Task>,
    processes: BTreeMap<pid_t, Process>,
}

impl Tasks {
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    pub fn contains(&self, pid: pid_t) -> bool {
        self.tasks.contains_key(&pid)
    }

    pub fn ids(&self) -> Vec<pid_t> {
        self.tasks.keys().copied().collect()
    }

    pub fn get(&self, pid: pid_t) -> Option<&Task> {
        self.tasks.get(&pid)
    }

    pub fn get_mut(&mut self, pid: pid_t) -> Option<&mut Task> {
        self.tasks.get_mut(&pid)
    }

    /// A task and the mappings of its process.
    pub fn with_maps(&mut self, pid: pid_t) -> Option<(&mut Task, Option<&mut Maps>)> {
        let task = self.tasks.get_mut(&pid)?;
        let process = self.processes.get_mut(&task.process);
        Some((task, process.map(|process| &mut process.maps)))
    }

    /// The IDs of the tasks of a process.
    pub fn of_process(&self, process: pid_t) -> Vec<pid_t> {
        let tasks = self.tasks.iter();
        let tasks = tasks.filter(|(_, task)| task.process == process);
        tasks.map(|(pid, _)| *pid).collect()
    }

    /// The IDs of those tasks that have not come to their exit.
    pub fn unfinished(&self) -> Vec<pid_t> {
        let unfinished = self.tasks.iter().filter(|(_, task)| !task.finished);
        unfinished.map(|(pid, _)| *pid).collect()
    }

    /// The IDs of those tasks that are recorded.
    pub fn recorded(&self) -> Vec<pid_t> {
        let recorded = self.tasks.iter().filter(|(_, task)| task.is_recorded());
        recorded.map(|(pid, _)| *pid).collect()
    }

    /// The mappings of a process that has recorded tasks.
    pub fn maps(&mut self, process: pid_t) -> Option<&mut Maps> {
        let process = self.processes.get_mut(&process)?;
        (process.recorded > 0).then_some(&mut process.maps)
    }

    /// Replaces the mappings of a process that has tasks.
    pub fn set_maps(&mut self, process: pid_t, maps: Maps) {
        if let Some(process) = self.processes.get_mut(&process) {
            process.maps = maps;
        }
    }

    /// Returns whether a process has tasks.
    pub fn has_process(&self, process: pid_t) -> bool {
        self.processes.contains_key(&process)
    }

    /// The processes.
    pub fn processes(&self) -> Vec<pid_t> {
        self.processes.keys().copied().collect()
    }

    /// Adds a new task.
    pub fn add(&mut self, pid: pid_t, task: Task) {
        let process = (self.processes)
            .entry(task.process)
            .or_insert_with(|| Process {
                maps: Maps::new(task.process),
                tasks: 0,
                recorded: 0,
            });
        process.tasks += 1;
        if task.is_recorded() {
            if process.recorded == 0 {
                // The host has forgotten them, or has never had them.
                process.maps.send_again();
            }
            process.recorded += 1;
        }
        self.tasks.insert(pid, task);
    }

    /// Removes a task, and its process if it was the last one.
    pub fn remove(&mut self, pid: pid_t) -> Option<Task> {
        let task = self.tasks.remove(&pid)?;
        if let Some(process) = self.processes.get_mut(&task.process) {
            process.tasks -= 1;
            process.recorded -= usize::from(task.is_recorded());
            if process.tasks == 0 {
                self.processes.remove(&task.process);
            }
        }
        Some(task)
    }

    /// Gives the task `former` the ID `pid`. The task that had this ID must have been removed.
    pub fn rename(&mut self, former: pid_t, pid: pid_t) {
        if let Some(task) = self.tasks.remove(&former) {
            self.tasks.insert(pid, task);
        }
    }
}
