//! A trace in a directory: a file for each task, and an index.

use std::collections::{HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use vbts_trace::Event;

use crate::task::Task;
use vbts_host::output::{Output, OutputError};
use vbts_host::{Unit, WriteMonitor};

/// Name of the index.
pub const INDEX: &str = "index.json";
/// Number of files that are open at once. Further ones are closed and opened again.
const MAX_OPEN: usize = 64;

/// The files of a trace in a directory. The file of task 57 is `57.raw`. If the guest's kernel uses
/// an ID again, `57-2.raw` is that of the second task with it.
#[derive(Debug)]
pub(super) struct TaskFiles {
    directory: PathBuf,
    index: Output,
    /// Number of files for each task ID.
    used: HashMap<u32, u32>,
    /// Path of each live task's file, by the task's number.
    paths: HashMap<u64, PathBuf>,
    /// Open files, by the task's number, the last used one last.
    open: VecDeque<(u64, Output)>,
    /// Bytes so far in the tasks' files.
    written: u64,
    /// Observes the writes to all files.
    monitor: Arc<WriteMonitor>,
}

impl TaskFiles {
    /// Creates `directory`, if it does not exist, and the index in it.
    ///
    /// # Errors
    /// The directory or the file cannot be created.
    pub(super) fn create(directory: &Path) -> Result<Self, OutputError> {
        if let Err(source) = std::fs::create_dir(directory)
            && !directory.is_dir()
        {
            let path = directory.into();
            return Err(OutputError::Create { path, source });
        }
        Ok(Self {
            directory: directory.into(),
            index: Output::open(&directory.join(INDEX))?,
            used: HashMap::new(),
            paths: HashMap::new(),
            open: VecDeque::new(),
            written: 0,
            monitor: Arc::default(),
        })
    }

    /// Makes `monitor` observe the writes to the files that are opened from now on.
    pub(super) fn observe(&mut self, monitor: &Arc<WriteMonitor>) {
        self.index.observe(monitor.clone());
        self.monitor = monitor.clone();
    }

    /// Discards the former index.
    ///
    /// # Errors
    /// The host refuses it.
    pub(super) fn truncate(&self) -> Result<(), OutputError> {
        self.index.truncate()
    }

    /// Creates the file of a task that starts, and forgets that of a task that ends.
    ///
    /// # Errors
    /// The file cannot be created.
    pub(super) fn event(&mut self, task: &Task, event: &Event) -> Result<(), OutputError> {
        match event {
            Event::Start { .. } => {
                let count = self.used.entry(task.id).or_default();
                *count += 1;
                let name = match count {
                    1 => format!("{}.raw", task.id),
                    n => format!("{}-{n}.raw", task.id),
                };
                let path = self.directory.join(name);
                self.keep_open(task.number, Output::create(&path)?);
                self.paths.insert(task.number, path);
            }
            Event::End { .. } => {
                self.paths.remove(&task.number);
                self.open.retain(|(number, _)| *number != task.number);
            }
            _ => {}
        }
        Ok(())
    }

    /// Writes `bytes`, which consist of whole units, to the file of the task with this number.
    ///
    /// # Errors
    /// The file cannot be opened again, or the write fails.
    pub(super) fn write(&mut self, task: u64, bytes: &[u8], unit: Unit) -> Result<(), OutputError> {
        let is_last = |last: &(u64, Output)| last.0 == task;
        if !self.open.back().is_some_and(is_last) {
            let output = match self.open.iter().position(is_last) {
                Some(at) => self.open.remove(at).map(|(_, output)| output),
                None => self.reopened(task)?,
            };
            // A task without a file has ended.
            let Some(output) = output else { return Ok(()) };
            self.keep_open(task, output);
        }
        let Some((_, output)) = self.open.back_mut() else {
            return Ok(());
        };
        let before = output.written();
        let result = output.write_units(bytes, unit);
        self.written += output.written() - before;
        result
    }

    /// Number of bytes that were written so far to all files.
    pub(super) fn written(&self) -> u64 {
        self.written + self.index.written()
    }

    /// Writes lines to the index.
    ///
    /// # Errors
    /// The write fails.
    pub(crate) fn write_index(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
        self.index.write_units(bytes, Unit::Line)
    }

    fn reopened(&self, task: u64) -> Result<Option<Output>, OutputError> {
        let Some(path) = self.paths.get(&task) else {
            return Ok(None);
        };
        let name = path.display().to_string();
        let opened: std::io::Result<File> = OpenOptions::new().append(true).open(path);
        match opened {
            Ok(file) => Ok(Some(Output::new(file, &name))),
            Err(source) => Err(OutputError::Write { name, source }),
        }
    }

    fn keep_open(&mut self, number: u64, mut output: Output) {
        output.observe(self.monitor.clone());
        if self.open.len() >= MAX_OPEN {
            self.open.pop_front();
        }
        self.open.push_back((number, output));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::tests::task;
    use vbts_trace::Status;

    #[test]
    fn each_task_has_a_file_even_if_there_are_many() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("trace");
        let mut files = TaskFiles::create(&directory).unwrap();
        let start = Event::Start {
            id: 0,
            parent: 0,
            process: 1,
            time: 0,
        };
        let tasks: Vec<Task> = (0..2 * MAX_OPEN as u64)
            .map(|number| Task {
                number,
                ..task(number as u32, "a")
            })
            .collect();
        for task in &tasks {
            files.event(task, &start).unwrap();
        }
        for part in 0..3 {
            for task in &tasks {
                let text = format!("{} {part}\n", task.id);
                files
                    .write(task.number, text.as_bytes(), Unit::Line)
                    .unwrap();
                assert!(files.open.len() <= MAX_OPEN);
            }
        }
        // The ID of the first task is used again.
        let status = Status::Exited(0);
        files
            .event(&tasks[0], &Event::End { time: 1, status })
            .unwrap();
        let again = Task {
            number: 1000,
            ..task(0, "b")
        };
        files.event(&again, &start).unwrap();
        files.write(again.number, b"again", Unit::BYTE).unwrap();
        files.write_index(b"{}\n").unwrap();
        let read = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
        for task in &tasks {
            let id = task.id;
            assert_eq!(
                read(&format!("{id}.raw")),
                format!("{id} 0\n{id} 1\n{id} 2\n")
            );
        }
        assert_eq!(read("0-2.raw"), "again");
        assert_eq!(read(INDEX), "{}\n");
        let in_use = TaskFiles::create(&directory).unwrap_err();
        assert!(matches!(in_use, OutputError::InUse(_)), "{in_use}");
        drop(files);
        TaskFiles::create(&directory).unwrap();
        TaskFiles::create(Path::new("/dev/null")).unwrap_err();
    }
}
