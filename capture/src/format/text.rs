//! The format of a trace for people.

use std::io::Write as _;

use vbts_trace::{Branch, Event, Status};

use super::{FULL, Format, push_decimal, push_hex_digits};
use crate::summary::Summary;
use crate::task::Task;
use vbts_host::escape::printable;
use vbts_host::exit::signal_name;
use vbts_symbols::Symbolizer;

/// Hexadecimal digits of a user-mode address.
const ADDRESS_DIGITS: u32 = 12;

/// One branch a line: from and to, each with an address and a label. Where another task continues,
/// a line names it.
#[derive(Debug)]
pub struct Text {
    /// Show when tasks arrive on a processor and depart from it.
    sched: bool,
    /// Number of tasks that have started.
    tasks: u64,
    /// The task of the last line.
    task: Option<u32>,
    /// The branches are those of processors.
    of_machine: bool,
}

impl Text {
    /// An empty trace, which shows when tasks arrive on a processor and depart from it if `sched`.
    pub fn new(sched: bool) -> Self {
        Self {
            sched,
            tasks: 0,
            task: None,
            of_machine: false,
        }
    }

    /// The trace of a machine: processors are in the place of tasks.
    #[must_use]
    pub fn of_machine(self) -> Self {
        Self {
            of_machine: true,
            ..self
        }
    }

    /// Appends a line that names `task`, unless the last line is about it.
    fn enter(&mut self, task: &Task, out: &mut Vec<u8>) {
        if self.task == Some(task.id) {
            return;
        }
        // Writing to a `Vec` does not fail.
        if self.of_machine {
            let _ = writeln!(out, "[processor {}]", task.id);
        } else if self.task.is_some() {
            let name = printable(task.short_name());
            let _ = writeln!(out, "[task {} ({name})]", task.id);
        }
        self.task = Some(task.id);
    }
}

/// Appends `address` of `process` with its label. If it is looked up, `others` are, too.
fn push_place_among(
    symbols: &mut Symbolizer,
    process: u32,
    address: u64,
    others: &mut dyn FnMut() -> Vec<u64>,
    out: &mut Vec<u8>,
) {
    push_address(address, out);
    let label = symbols.label(process, address, others);
    if !label.is_empty() {
        out.push(b' ');
        out.extend_from_slice(label.as_bytes());
    }
}

/// Appends `address` of `process` with its label.
pub(crate) fn push_place(symbols: &mut Symbolizer, process: u32, address: u64, out: &mut Vec<u8>) {
    push_place_among(symbols, process, address, &mut Vec::new, out);
}

/// Appends `address`.
pub(crate) fn push_address(address: u64, out: &mut Vec<u8>) {
    let digits = if address >> (ADDRESS_DIGITS * 4) == 0 {
        ADDRESS_DIGITS
    } else {
        16
    };
    push_hex_digits(out, address, digits);
}

/// Appends a branch of `process`, from and to. If an address is looked up, `others` are, too.
fn push_branch_among(
    symbols: &mut Symbolizer,
    process: u32,
    branch: &Branch,
    others: &mut dyn FnMut() -> Vec<u64>,
    out: &mut Vec<u8>,
) {
    push_place_among(symbols, process, branch.from, others, out);
    out.extend_from_slice(b" -> ");
    push_place_among(symbols, process, branch.to, others, out);
}

/// Appends a branch of `process`, from and to.
pub(crate) fn push_branch(
    symbols: &mut Symbolizer,
    process: u32,
    branch: &Branch,
    out: &mut Vec<u8>,
) {
    push_branch_among(symbols, process, branch, &mut Vec::new, out);
}

/// The addresses of `branches`.
fn addresses(branches: &[Branch]) -> Vec<u64> {
    let pairs = branches.iter().map(|branch| [branch.from, branch.to]);
    pairs.flatten().collect()
}

impl Format for Text {
    fn branches(
        &mut self,
        task: &Task,
        branches: &[Branch],
        symbols: &mut Symbolizer,
        out: &mut Vec<u8>,
    ) -> usize {
        let mut all = Some(branches);
        let others = &mut || all.take().map(addresses).unwrap_or_default();
        let mut count = 0;
        for branch in branches {
            self.enter(task, out);
            push_branch_among(symbols, task.process, branch, others, out);
            out.push(b'\n');
            count += 1;
            if out.len() >= FULL {
                break;
            }
        }
        count
    }

    fn event(&mut self, task: &Task, event: &Event, out: &mut Vec<u8>) {
        let id = task.id;
        // Writing to a `Vec` does not fail.
        let _ = match event {
            Event::Start { parent, .. } => {
                self.tasks += 1;
                if self.tasks == 1 {
                    return;
                }
                writeln!(out, "[task {id} starts, from {parent}]")
            }
            // The first program of the first task is the one that the user has named.
            Event::Exec { .. } if self.task.is_none() && self.tasks <= 1 => return,
            Event::Exec { former, name, .. } => {
                let former = match former {
                    former if *former == id => String::new(),
                    former => format!(", task {former} before,"),
                };
                let name = printable(name);
                writeln!(out, "[task {id}{former} executes {name}]")
            }
            Event::ThreadName(name) => {
                writeln!(out, "[task {id} is named {}]", printable(name))
            }
            Event::Signal { signal, .. } => {
                let name = signal_name(signal.cast_signed());
                writeln!(out, "[task {id} gets {name}]")
            }
            Event::End { .. } if self.tasks <= 1 => return,
            Event::End {
                status: Status::Exited(code),
                ..
            } => writeln!(out, "[task {id} ends: status {code}]"),
            Event::End {
                status: Status::Killed(signal),
                ..
            } => writeln!(out, "[task {id} ends: {}]", signal_name((*signal).into())),
            Event::Lost(n) => writeln!(out, "[task {id}: at least {n} branches lost]"),
            Event::Arrive { time } | Event::Depart { time } => {
                if self.sched {
                    self.enter(task, out);
                    let arrives = matches!(event, Event::Arrive { .. });
                    out.extend_from_slice(if arrives { b"arrives" } else { b"departs" });
                    out.extend_from_slice(b" at ");
                    push_decimal(out, *time);
                    out.extend_from_slice(b" ns\n");
                }
                return;
            }
            // The kernel has it in the place of a record of the task.
            Event::Invalid => return self.enter(task, out),
            Event::Untraced {
                id,
                parent,
                name,
                reason,
                ..
            } => {
                let (name, reason) = (printable(name), printable(reason));
                let _ = writeln!(
                    out,
                    "[task {id} ({name}), from {parent}, is not traced: {reason}]"
                );
                return;
            }
            Event::AddressSpace { .. } | Event::Switch { .. } | Event::Gap { .. } => {
                self.processor_event(id, event, out);
                return;
            }
            // The report on standard error says more of the first two. The others are for reports
            // about kept traces.
            Event::Crash(_)
            | Event::Standing { .. }
            | Event::Name(_)
            | Event::Filtered(_)
            | Event::Maps { .. }
            | Event::ProcessEnd { .. }
            | Event::KernelCode { .. }
            | Event::KernelFile { .. }
            | Event::Code { .. }
            | Event::BuildId { .. } => return,
        };
        // The next records begin with the name of their task.
        self.task = Some(0);
    }

    fn summary(&mut self, s: &Summary, out: &mut Vec<u8>) {
        // Writing to a `Vec` does not fail.
        let _ = writeln!(out, "{s}");
    }
}

impl Text {
    /// Appends an event of a processor.
    fn processor_event(&mut self, processor: u32, event: &Event, out: &mut Vec<u8>) {
        self.task = Some(processor);
        // Writing to a `Vec` does not fail.
        let _ = match event {
            Event::AddressSpace { cr3, .. } => {
                writeln!(out, "[processor {processor}: address space {cr3:#x}]")
            }
            Event::Switch {
                id, process, name, ..
            } => {
                let name = printable(name);
                let of = match process {
                    process if process == id => String::new(),
                    process => format!(", process {process}"),
                };
                writeln!(out, "[processor {processor}: task {id} ({name}){of}]")
            }
            Event::Gap { duration, .. } => writeln!(
                out,
                "[processor {processor}: not recorded for {duration} ns]"
            ),
            _ => return,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::tests::{format_records, symbols};
    use crate::records::tests::records;
    use crate::task::tests::task;

    fn records_of(text: &mut Text, task: &Task, words: &[[u64; 3]], out: &mut Vec<u8>) {
        let mut symbols = symbols();
        symbols.set_maps(
            1,
            b"401000-402000 r-xp 00001000 00:00 0 /nonexistent/prog\n",
        );
        format_records(text, task, &records(words), &mut symbols, out);
    }

    fn start(task: &Task) -> Event {
        Event::Start {
            id: task.id,
            parent: task.parent,
            process: task.process,
            time: 1,
        }
    }

    fn exec(task: &Task, former: u32) -> Event {
        Event::Exec {
            id: task.id,
            former,
            time: 1,
            name: task.name.clone(),
        }
    }

    #[test]
    fn a_branch_is_a_line() {
        let mut text = Text::new(true);
        let (mut out, first) = (Vec::new(), task(7, "sh"));
        text.event(&first, &start(&first), &mut out);
        text.event(&first, &exec(&first, 7), &mut out);
        let sample = [[1, 0x40_1000, 0x5000], [3, 42, 0], [0, 0, 0]];
        records_of(&mut text, &first, &sample, &mut out);
        let sample = [[2, 43, 0], [1, 0x6000, u64::MAX]];
        records_of(&mut text, &first, &sample, &mut out);
        let status = Status::Exited(0);
        text.event(&first, &Event::End { time: 1, status }, &mut out);
        text.summary(
            &Summary {
                records: 2,
                tasks: 1,
                ..Summary::default()
            },
            &mut out,
        );
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "000000401000 prog+0x1000 -> 000000005000\n\
             departs at 42 ns\n\
             arrives at 43 ns\n\
             000000006000 -> ffffffffffffffff [kernel]\n\
             records: 2, lost: 0, exit: 0\n"
        );
    }

    #[test]
    fn a_line_names_the_task_that_continues() {
        let mut text = Text::new(false);
        let (mut out, first, second) = (Vec::new(), task(7, "sh"), task(8, "so\nrt"));
        let sample = [[2, 42, 0], [1, 0x5000, 0x6000], [3, 43, 0]];
        text.event(&first, &start(&first), &mut out);
        text.event(&first, &exec(&first, 7), &mut out);
        records_of(&mut text, &first, &sample, &mut out);
        text.event(&second, &start(&second), &mut out);
        records_of(&mut text, &first, &sample, &mut out);
        records_of(&mut text, &first, &sample, &mut out);
        // Only a line of branches needs the name.
        records_of(&mut text, &second, &[[2, 1, 0], [3, 2, 0]], &mut out);
        text.event(&second, &exec(&second, 8), &mut out);
        records_of(&mut text, &second, &sample, &mut out);
        let status = Status::Killed(9);
        text.event(&second, &Event::End { time: 4, status }, &mut out);
        text.event(&first, &exec(&first, 9), &mut out);
        text.event(&first, &Event::Lost(1), &mut out);
        let status = Status::Exited(3);
        text.event(&first, &Event::End { time: 6, status }, &mut out);
        let untraced = Event::Untraced {
            id: 9,
            parent: 8,
            time: 4,
            name: b"gdb".to_vec(),
            reason: b"traced by task 8".to_vec(),
        };
        text.event(&Task::default(), &untraced, &mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "000000005000 -> 000000006000\n\
             [task 8 starts, from 0]\n\
             [task 7 (sh)]\n\
             000000005000 -> 000000006000\n\
             000000005000 -> 000000006000\n\
             [task 8 executes /bin/so\\nrt]\n\
             [task 8 (so\\nrt)]\n\
             000000005000 -> 000000006000\n\
             [task 8 ends: SIGKILL]\n\
             [task 7, task 9 before, executes /bin/sh]\n\
             [task 7: at least 1 branches lost]\n\
             [task 7 ends: status 3]\n\
             [task 9 (gdb), from 8, is not traced: traced by task 8]\n"
        );
    }

    #[test]
    fn long_labels_do_not_become_a_long_text() {
        let path = "x".repeat(4000);
        let mut symbols = symbols();
        let maps = format!("401000-402000 r-xp 00001000 00:00 0 /nonexistent/{path}\n");
        symbols.set_maps(1, maps.as_bytes());
        let branch = Branch {
            from: 0x40_1000,
            to: 0x40_1010,
        };
        let mut branches = &[branch; 4096][..];
        let (mut text, task) = (Text::new(false), task(7, "sh"));
        let mut lines = 0;
        while !branches.is_empty() {
            let mut out = Vec::new();
            let count = text.branches(&task, branches, &mut symbols, &mut out);
            branches = &branches[count..];
            assert!(out.len() < FULL + 3 * path.len(), "{}", out.len());
            lines += out.iter().filter(|byte| **byte == b'\n').count();
        }
        assert_eq!(lines, 4096);
    }

    #[test]
    fn names_cannot_forge_lines() {
        let mut symbols = symbols();
        symbols.set_maps(
            1,
            "401000-402000 r-xp 0 00:00 0 /x\r\x1b[A\u{202e}\u{85}\n".as_bytes(),
        );
        let mut out = Vec::new();
        push_place(&mut symbols, 1, 0x40_1010, &mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "000000401010 x\\r\\u{1b}[A\\u{202e}\\u{85}+0x10"
        );
    }

    #[test]
    fn kernel_addresses_are_labelled() {
        let mut text = Text::new(false);
        let (user, kernel) = (0x50_1000, 0xFFFF_FFFF_8100_0000);
        let mut out = Vec::new();
        let sample = [[1, user, kernel], [1, kernel, kernel], [1, kernel, user]];
        records_of(&mut text, &task(1, "a"), &sample, &mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "000000501000 -> ffffffff81000000 [kernel]\n\
             ffffffff81000000 [kernel] -> ffffffff81000000 [kernel]\n\
             ffffffff81000000 [kernel] -> 000000501000\n"
        );
    }
}
