//! Writes the compressed format of a trace ([`vbts_trace`], docs/trace-format.md).

use vbts_protocol::ExitStatus;
use vbts_trace::{Branch, Error, Event, Run, Status, Writer};

use super::format::{Format, Record, Records};
use super::kernel_code::CodeChange;
use super::summary::{RunEnd, Summary};
use super::symbols::Symbolizer;
use super::task::{Task, TaskEvent, Untraced};
use crate::host::Unit;

/// Writes the format.
#[derive(Debug)]
pub struct Btrace {
    writer: Writer<Vec<u8>>,
    /// Branches that the writer does not have yet.
    branches: Vec<Branch>,
}

impl Btrace {
    /// An empty trace.
    ///
    /// # Errors
    /// There is no memory for the compression.
    pub fn new(run: &Run) -> Result<Self, Error> {
        Ok(Self {
            writer: Writer::new(Vec::new(), run)?,
            branches: Vec::new(),
        })
    }

    fn add_branches(&mut self, task: u64) {
        log_failure(self.writer.branches(task, &self.branches));
        self.branches.clear();
    }

    fn add(&mut self, task: u64, event: &Event) {
        log_failure(self.writer.event(task, event));
    }

    fn give_out(&mut self, out: &mut Vec<u8>) {
        out.append(self.writer.output());
    }
}

/// A writer whose output is memory fails only if there is no more.
fn log_failure(result: Result<(), Error>) {
    if let Err(error) = result {
        tracing::error!("a part of the trace is lost: {error}");
    }
}

impl Format for Btrace {
    fn unit(&self) -> Unit {
        Unit::BYTE
    }

    fn records(
        &mut self,
        task: &Task,
        records: &mut Records<'_>,
        _symbols: &mut Symbolizer,
        out: &mut Vec<u8>,
    ) {
        for record in records {
            let event = match record {
                Record::Branch { from, to } => {
                    self.branches.push(Branch { from, to });
                    continue;
                }
                Record::Arrive { time } => Event::Arrive { time },
                Record::Depart { time } => Event::Depart { time },
                Record::Filtered { branches } => Event::Filtered(branches),
                Record::Invalid => Event::Invalid,
            };
            self.add_branches(task.number);
            self.add(task.number, &event);
        }
        self.add_branches(task.number);
        self.give_out(out);
    }

    fn event(&mut self, task: &Task, event: &TaskEvent, out: &mut Vec<u8>) {
        let event = match event {
            TaskEvent::Start { time } => Event::Start {
                id: task.id,
                parent: task.parent,
                process: task.process,
                time: *time,
            },
            TaskEvent::Exec { time, former } => Event::Exec {
                id: task.id,
                former: *former,
                time: *time,
                name: task.name.clone(),
            },
            TaskEvent::Signal { time, signal } => Event::Signal {
                time: *time,
                signal: *signal,
            },
            TaskEvent::End { time, status } => Event::End {
                time: *time,
                status: match *status {
                    ExitStatus::Code(code) => Status::Exited(code),
                    ExitStatus::Signal(signal) => Status::Killed(signal),
                },
            },
            TaskEvent::Lost(records) => Event::Lost(*records),
            TaskEvent::Crash(crash) => Event::Crash {
                signal: crash.signal,
                code: crash.code,
                address: crash.address,
                registers: crash.registers.to_vec(),
                instruction: crash.instruction.clone(),
            },
            TaskEvent::Standing { syscall, name } => Event::Standing {
                syscall: syscall.clone().into(),
                name: name.clone(),
            },
        };
        self.add(task.number, &event);
        self.give_out(out);
    }

    fn untraced(&mut self, untraced: &Untraced, out: &mut Vec<u8>) {
        let event = Event::Untraced {
            id: untraced.task,
            parent: untraced.parent,
            time: untraced.time,
            name: untraced.name.clone(),
            reason: untraced.reason.clone().into(),
        };
        self.add(0, &event);
        self.give_out(out);
    }

    fn maps(&mut self, process: u32, text: &[u8]) {
        let text = text.into();
        self.add(0, &Event::Maps { process, text });
    }

    fn process_ended(&mut self, process: u32) {
        self.add(0, &Event::ProcessEnd { process });
    }

    fn kernel_code(&mut self, changes: Vec<CodeChange>, out: &mut Vec<u8>) {
        for change in changes {
            self.add(0, &change.event());
        }
        self.give_out(out);
    }

    fn summary(&mut self, summary: &Summary, out: &mut Vec<u8>) {
        let signal = match summary.end {
            RunEnd::Program(ExitStatus::Signal(signal)) => Some(signal),
            _ => None,
        };
        let exit = summary.end.exit().filter(|_| signal.is_none());
        let mut end = vbts_trace::Summary {
            records: summary.records,
            lost: summary.lost,
            lost_more: summary.lost_more,
            filtered: summary.filtered,
            undrained: summary.undrained,
            tasks: summary.tasks,
            unordered: summary.unordered,
            end: summary.end.name().into(),
            exit,
            signal,
            ..vbts_trace::Summary::default()
        };
        end.other.insert("untraced".into(), summary.untraced.into());
        log_failure(self.writer.finish(&end));
        self.give_out(out);
    }
}
