//! Writes the compressed format of a trace ([`vbts_trace`], docs/trace-format.md).

use vbts_protocol::ExitStatus;
use vbts_trace::{Branch, Error, Event, Run, Status, Writer};

use super::format::{Format, Record, Records};
use super::kernel_code::CodeChange;
use super::last::Last;
use super::summary::{RunEnd, Summary};
use super::symbols::Symbolizer;
use super::task::{ProcessorEvent, Task, TaskEvent, Untraced};
use crate::host::Unit;

/// What takes the branches of a trace and the events between them.
pub trait Encode {
    /// Takes branches of a task or processor, oldest first.
    ///
    /// # Errors
    /// They cannot be encoded.
    fn branches(&mut self, number: u64, branches: &[Branch]) -> Result<(), Error>;

    /// Takes an event of a task or processor.
    ///
    /// # Errors
    /// It cannot be encoded.
    fn event(&mut self, number: u64, event: &Event) -> Result<(), Error>;
}

impl Encode for Writer<Vec<u8>> {
    fn branches(&mut self, number: u64, branches: &[Branch]) -> Result<(), Error> {
        Self::branches(self, number, branches)
    }

    fn event(&mut self, number: u64, event: &Event) -> Result<(), Error> {
        Self::event(self, number, event)
    }
}

impl Encode for Last {
    fn branches(&mut self, number: u64, branches: &[Branch]) -> Result<(), Error> {
        Self::branches(self, number, branches)
    }

    fn event(&mut self, number: u64, event: &Event) -> Result<(), Error> {
        Self::event(self, number, event)
    }
}

/// Gives a trace to what encodes it.
#[derive(Debug)]
pub struct Events<E> {
    /// What encodes it.
    pub to: E,
    /// Branches that it does not have yet.
    branches: Vec<Branch>,
}

impl<E: Encode> Events<E> {
    /// Gives a trace to `to`.
    pub fn new(to: E) -> Self {
        Self {
            to,
            branches: Vec::new(),
        }
    }

    /// Takes records of a task.
    ///
    /// # Errors
    /// They cannot be encoded.
    pub fn records(&mut self, task: &Task, records: &mut Records<'_>) -> Result<(), Error> {
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
            self.add_branches(task.number)?;
            self.to.event(task.number, &event)?;
        }
        self.add_branches(task.number)
    }

    fn add_branches(&mut self, task: u64) -> Result<(), Error> {
        if self.branches.is_empty() {
            return Ok(());
        }
        let added = self.to.branches(task, &self.branches);
        self.branches.clear();
        added
    }

    /// Takes what has happened to a task.
    ///
    /// # Errors
    /// It cannot be encoded.
    pub fn event(&mut self, task: &Task, event: &TaskEvent) -> Result<(), Error> {
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
            TaskEvent::Name => Event::Name(task.name.clone()),
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
        self.to.event(task.number, &event)
    }

    /// Takes what has happened to a processor.
    ///
    /// # Errors
    /// It cannot be encoded.
    pub fn processor(&mut self, processor: u32, event: &ProcessorEvent) -> Result<(), Error> {
        let event = match event.clone() {
            ProcessorEvent::AddressSpace { cr3, time } => Event::AddressSpace { cr3, time },
            ProcessorEvent::Switch {
                id,
                process,
                name,
                time,
            } => Event::Switch {
                id,
                process,
                time,
                name,
            },
            ProcessorEvent::Gap { duration, time } => Event::Gap { duration, time },
        };
        self.to.event(processor.into(), &event)
    }

    /// Takes a task that is not traced.
    ///
    /// # Errors
    /// It cannot be encoded.
    pub fn untraced(&mut self, untraced: &Untraced) -> Result<(), Error> {
        let event = Event::Untraced {
            id: untraced.task,
            parent: untraced.parent,
            time: untraced.time,
            name: untraced.name.clone(),
            reason: untraced.reason.clone().into(),
        };
        self.to.event(0, &event)
    }

    /// Takes the mappings of a process.
    ///
    /// # Errors
    /// They cannot be encoded.
    pub fn maps(&mut self, process: u32, text: &[u8]) -> Result<(), Error> {
        let text = text.into();
        self.to.event(0, &Event::Maps { process, text })
    }

    /// Takes the end of the last task of a process.
    ///
    /// # Errors
    /// It cannot be encoded.
    pub fn process_ended(&mut self, process: u32) -> Result<(), Error> {
        self.to.event(0, &Event::ProcessEnd { process })
    }

    /// Takes code of the guest's kernel that differs from that in its file.
    ///
    /// # Errors
    /// It cannot be encoded.
    pub fn kernel_code(&mut self, changes: Vec<CodeChange>) -> Result<(), Error> {
        let mut changes = changes.into_iter();
        changes.try_for_each(|change| self.to.event(0, &change.event()))
    }
}

/// Writes the format.
#[derive(Debug)]
pub struct Btrace(Events<Writer<Vec<u8>>>);

impl Btrace {
    /// An empty trace.
    ///
    /// # Errors
    /// There is no memory for the compression.
    pub fn new(run: &Run) -> Result<Self, Error> {
        Ok(Self(Events::new(Writer::new(Vec::new(), run)?)))
    }

    fn give_out(&mut self, out: &mut Vec<u8>) {
        out.append(self.0.to.output());
    }
}

/// Logs that a part of a trace is lost: what encodes to memory fails only if there is no more.
pub fn log_failure(result: Result<(), Error>) {
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
        log_failure(self.0.records(task, records));
        self.give_out(out);
    }

    fn event(&mut self, task: &Task, event: &TaskEvent, out: &mut Vec<u8>) {
        log_failure(self.0.event(task, event));
        self.give_out(out);
    }

    fn processor(&mut self, processor: u32, event: &ProcessorEvent, out: &mut Vec<u8>) {
        log_failure(self.0.processor(processor, event));
        self.give_out(out);
    }

    fn untraced(&mut self, untraced: &Untraced, out: &mut Vec<u8>) {
        log_failure(self.0.untraced(untraced));
        self.give_out(out);
    }

    fn maps(&mut self, process: u32, text: &[u8]) {
        log_failure(self.0.maps(process, text));
    }

    fn process_ended(&mut self, process: u32) {
        log_failure(self.0.process_ended(process));
    }

    fn code(&mut self, event: &Event, out: &mut Vec<u8>) {
        log_failure(self.0.to.event(0, event));
        self.give_out(out);
    }

    fn kernel_code(&mut self, changes: Vec<CodeChange>, out: &mut Vec<u8>) {
        log_failure(self.0.kernel_code(changes));
        self.give_out(out);
    }

    fn kept(&self) -> u64 {
        self.0.to.kept()
    }

    fn flush(&mut self, out: &mut Vec<u8>) {
        log_failure(self.0.to.flush());
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
        log_failure(self.0.to.finish(&end));
        self.give_out(out);
    }
}
