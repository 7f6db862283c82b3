//! Reading a JSON trace, and checking what is true of each one: every record belongs to a task that
//! is alive, every task ends, and the summary's numbers are those of the records.

use std::collections::BTreeMap;
use std::fs::File;
use std::hash::Hasher as _;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use serde_json::Value;

use crate::machine::{Run, finish_within};

/// How the line of a branch begins.
const BRANCH: &[u8] = b"{\"kind\":\"branch\"";

/// What a trace says about a task.
#[derive(Debug, Default)]
pub struct Task {
    /// Number of its records.
    pub branches: u64,
    /// Names of the programs that it has executed, without directories.
    pub executed: Vec<String>,
    ended: bool,
    /// Another task traces it now.
    untraced: bool,
}

/// What a trace says.
#[derive(Debug, Default)]
pub struct Trace {
    /// The tasks.
    pub tasks: Vec<Task>,
    /// The objects about tasks that were not traced.
    pub untraced: Vec<Value>,
    /// The last object.
    pub summary: Value,
    /// The last time in it, in nanoseconds since the guest's start.
    pub time: u64,
    /// A checksum of the whole trace.
    pub digest: u64,
}

/// The state of the reader between two lines.
#[derive(Debug, Default)]
struct Reader {
    tasks: BTreeMap<u64, Task>,
    /// Tasks whose ID another task has taken.
    replaced: Vec<Task>,
    untraced: Vec<Value>,
    summary: Option<Value>,
    time: u64,
    /// Branches since the last other line: their number, their task, and how their lines end.
    run: u64,
    task: u64,
    line_end: Vec<u8>,
    /// With `--sched`: the last time, and the task that has arrived.
    last: u64,
    arrived: Option<u64>,
    sched: bool,
}

impl Trace {
    /// Reads a trace and checks it, whether it has lost records and how the run ended excepted.
    ///
    /// # Errors
    /// What is wrong.
    pub fn read(mut from: impl BufRead) -> Result<Self> {
        let mut reader = Reader::default();
        let mut digest = std::hash::DefaultHasher::new();
        let mut line = Vec::new();
        while {
            line.clear();
            from.read_until(b'\n', &mut line)? > 0
        } {
            digest.write(&line);
            ensure!(reader.summary.is_none(), "lines after the summary");
            if line.starts_with(BRANCH) {
                reader.branch(&line)?;
            } else {
                reader.end_run()?;
                let value = serde_json::from_slice(&line)?;
                reader.other(value)?;
            }
        }
        let trace = Self {
            tasks: (reader.tasks.into_values().chain(reader.replaced)).collect(),
            untraced: reader.untraced,
            summary: reader.summary.context("no summary")?,
            time: reader.time,
            digest: digest.finish(),
        };
        trace.check()?;
        Ok(trace)
    }

    /// [`Self::read`] from a file.
    ///
    /// # Errors
    /// The file cannot be read, or what is wrong.
    pub fn open(path: &Path) -> Result<Self> {
        Self::read(BufReader::with_capacity(1 << 20, File::open(path)?))
    }

    /// Runs a command that writes a trace to `pipe`, which this function makes, and reads the trace
    /// meanwhile. It takes no space, however long it is.
    ///
    /// # Errors
    /// Those of [`finish_within`] and [`Self::read`].
    pub fn of(command: Command, pipe: &Path, limit: Duration) -> Result<(Run, Self)> {
        let owner = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(CWD, pipe, FileType::Fifo, owner, 0)?;
        let path = pipe.to_owned();
        let reader = std::thread::spawn(move || Self::open(&path));
        let run = finish_within(command, limit);
        // If the command has not opened the pipe, the reader still waits for a writer.
        let _ = rustix::fs::open(pipe, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty());
        let trace = reader.join().ok().context("the reader panicked")?;
        std::fs::remove_file(pipe)?;
        let run = run?;
        let trace = trace.with_context(|| run.stderr.clone())?;
        Ok((run, trace))
    }

    /// Number of all records.
    #[must_use]
    pub fn branches(&self) -> u64 {
        self.tasks.iter().map(|task| task.branches).sum()
    }

    fn check(&self) -> Result<()> {
        let summary = &self.summary;
        let (branches, untraced) = (self.branches(), summary["untraced"].as_u64().unwrap_or(0));
        ensure!(
            summary["records"] == branches && summary["tasks"] == self.tasks.len(),
            "{branches} branches, {} tasks: {summary}",
            self.tasks.len()
        );
        ensure!(
            untraced == self.untraced.len() as u64,
            "{untraced} untraced: {:?}",
            self.untraced
        );
        ensure!(summary["unordered"].is_null(), "{summary}");
        Ok(())
    }

    /// Checks that nothing was lost, that each task has ended and has records, and that the run
    /// ended with the program.
    ///
    /// # Errors
    /// What is missing.
    pub fn expect_whole(self) -> Result<Self> {
        let summary = &self.summary;
        ensure!(
            summary["lost"] == 0 && summary["end"] == "exited",
            "{summary}"
        );
        for task in &self.tasks {
            // A debugger may take a task before its first branch.
            let has_records = task.branches > 0 || task.untraced;
            ensure!(task.ended && has_records, "{task:?}: {summary}");
        }
        Ok(self)
    }
}

impl Reader {
    fn branch(&mut self, line: &[u8]) -> Result<()> {
        if self.line_end.is_empty() || !line.ends_with(&self.line_end) {
            self.end_run()?;
            let value: Value = serde_json::from_slice(line)?;
            self.task = value["task"].as_u64().context("no task")?;
            self.line_end = format!(",\"task\":{}}}\n", self.task).into_bytes();
            ensure!(line.ends_with(&self.line_end), "{value}");
        }
        self.run += 1;
        Ok(())
    }

    /// Counts the branches since the last other line.
    fn end_run(&mut self) -> Result<()> {
        if self.run > 0 {
            let id = self.task;
            let task = self.tasks.get_mut(&id);
            let task = task.with_context(|| format!("branches of task {id}"))?;
            ensure!(!task.ended, "branches of task {id} after its end");
            ensure!(
                !self.sched || self.arrived == Some(id),
                "branches of task {id} while {:?} runs",
                self.arrived
            );
            task.branches += self.run;
            self.run = 0;
        }
        Ok(())
    }

    /// A line that is not a branch.
    fn other(&mut self, line: Value) -> Result<()> {
        let kind = line["kind"].as_str().context("no kind")?;
        match kind {
            "summary" => {
                self.summary = Some(line);
                return Ok(());
            }
            "untraced" => {
                // Nothing more is said about it.
                let id = line["task"].as_u64().context("no task")?;
                if let Some(task) = self.tasks.get_mut(&id) {
                    (task.ended, task.untraced) = (true, true);
                }
                self.untraced.push(line);
                return Ok(());
            }
            _ => {}
        }
        let id = line["task"].as_u64().context("no task")?;
        self.time = line["time"].as_u64().unwrap_or(self.time);
        if kind == "start"
            && let Some(before) = self.tasks.insert(id, Task::default())
        {
            ensure!(before.ended, "{line}");
            self.replaced.push(before);
        }
        if let Some(former) = line["former"].as_u64() {
            let task = (self.tasks.remove(&former)).with_context(|| line.to_string())?;
            let leader = self.tasks.insert(id, task);
            let leader = leader.with_context(|| line.to_string())?;
            ensure!(leader.ended, "{line}");
            self.replaced.push(leader);
        }
        let task = self.tasks.get_mut(&id);
        let task = task.with_context(|| line.to_string())?;
        ensure!(!task.ended, "{line}");
        match kind {
            "exec" => {
                let name = line["name"].as_str().context("no name")?;
                let name = name.rsplit('/').next().unwrap_or_default();
                task.executed.push(name.into());
            }
            "arrive" => {
                let time = line["time"].as_u64().context("no time")?;
                ensure!(
                    self.last <= time && self.arrived.is_none(),
                    "{line} after {}",
                    self.last
                );
                (self.sched, self.last, self.arrived) = (true, time, Some(id));
            }
            "depart" => ensure!(self.arrived.take() == Some(id), "{line}"),
            "end" => task.ended = true,
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: &str = r#"{"kind":"start","task":5,"parent":0,"process":5,"time":1}"#;
    const BRANCH: &str = r#"{"kind":"branch","from":"0x1","to":"0x2","task":5}"#;
    const END: &str = r#"{"kind":"end","task":5,"exit":0,"time":2}"#;
    const SUMMARY: &str =
        r#"{"kind":"summary","records":2,"lost":0,"tasks":1,"end":"exited","exit":0}"#;

    fn read(lines: &[&str]) -> Result<Trace> {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        Trace::read(text.as_bytes()).and_then(Trace::expect_whole)
    }

    #[test]
    fn a_whole_trace_is_accepted() {
        let exec = r#"{"kind":"exec","task":5,"name":"/bin/ls","time":1}"#;
        let trace = read(&[START, exec, BRANCH, BRANCH, END, SUMMARY]).unwrap();
        assert_eq!(trace.branches(), 2);
        assert_eq!(trace.tasks[0].executed, ["ls"]);
    }

    #[test]
    fn an_incomplete_trace_is_refused() {
        let lost = SUMMARY.replace("\"lost\":0", "\"lost\":1");
        let ended = SUMMARY.replace("exited", "timeout");
        let other = BRANCH.replace("\"task\":5", "\"task\":6");
        for lines in [
            &[START, BRANCH, END, SUMMARY][..],
            &[START, BRANCH, BRANCH, SUMMARY],
            &[START, BRANCH, BRANCH, END],
            &[START, BRANCH, END, BRANCH, SUMMARY],
            &[BRANCH, BRANCH, SUMMARY],
            &[START, BRANCH, &other, END, SUMMARY],
            &[START, BRANCH, BRANCH, END, &lost],
            &[START, BRANCH, BRANCH, END, &ended],
            &[START, BRANCH, BRANCH, END, SUMMARY, END],
        ] {
            assert!(read(lines).is_err(), "{lines:?}");
        }
    }
}
