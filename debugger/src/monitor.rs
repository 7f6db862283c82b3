//! Commands that the user gives with GDB's `monitor`.

use std::io::Write as _;

use vbts_cpu::{StopCause, StopPoints, WatchKind, Watchpoint};
use vbts_gdb::{Result, StopReason, TargetError, ThreadId};
use vbts_host::exit::Failure;

use crate::debugger::{Debugger, fatal};
use crate::logged::Selection;
use crate::target::unrecorded;

/// Text of `monitor help`.
const HELP: &str = "\
when                      where the replay is: virtual time, thread, instructions
goto time NS              go to a virtual time, in ns
goto start | end | crash  go to the first or last instruction, or to where the program crashed or
                          the kernel panicked
watch writes              access watchpoints stop at writes alone, also of the same value
accessed-by               the instruction at which a watchpoint has stopped the process last
time-of N                 when the tasks of the program have executed N branches
goto record N             go to behind branch N of the first thread of the process. That of the
                          program has them in vbts replay --format raw --follow none. In the
                          kernel's view, the branches of the machine count, as in
                          vbts replay --record
last-write ADDRESS [SIZE] go back to the last write to memory
records [N]               the last N branches of the selected thread, 20 if N is not given
branch-trace from-start   record btrace begins a trace at the first instruction of the program, as it
                          does without this command
branch-trace from-here    record btrace begins a trace at the present instruction
who-called                go back to the call of the function in which the selected thread is
python-frames ADDRESS [N] the Python functions that thread N, or the selected one, executes;
                          _PyRuntime is at ADDRESS
processes                 the processes of the run; another session debugs one by --process
";

/// Branches that `records` shows, and at most.
const DEFAULT_RECORDS: usize = 20;
const MAX_RECORDS: usize = 100_000;

/// Size in bytes of what `last-write` looks for, at most.
const MAX_SIZE: u64 = 1 << 20;

impl Debugger {
    /// Executes a command of the user.
    pub(crate) fn command(
        &mut self,
        thread: ThreadId,
        command: &str,
        output: &mut Vec<u8>,
    ) -> Result<()> {
        let words: Vec<&str> = command.split_whitespace().collect();
        if self.replay.departure.is_some() {
            match words.first() {
                Some(&("records" | "time-of")) => return Err(unrecorded()),
                Some(&("goto" | "last-write" | "who-called")) => {
                    self.drop_departure().map_err(fatal)?;
                }
                _ => {}
            }
        }
        let from = self.replay.now();
        let done = self.execute(thread, &words, output);
        if done.is_err() && self.replay.now() != from {
            self.replay.seek(from).map_err(fatal)?;
        }
        done
    }

    fn execute(&mut self, thread: ThreadId, words: &[&str], output: &mut Vec<u8>) -> Result<()> {
        match *words {
            ["help"] => output.extend_from_slice(HELP.as_bytes()),
            ["processes"] if !self.is_kernel_view => {
                let debugged = Some((self.process, self.start));
                let text = self.replay.agent.processes.show(debugged);
                output.extend_from_slice(text.as_bytes());
            }
            ["when"] => self.say_where(output),
            ["watch", "writes"] => self.writes_alone = true,
            ["branch-trace", "from-start"] => self.branch_traces.from_here = false,
            ["branch-trace", "from-here"] => self.branch_traces.from_here = true,
            ["accessed-by"] => {
                if let Some(address) = self.accessed_by {
                    // Writes to a vector cannot fail.
                    let _ = writeln!(output, "{address:#x}");
                }
            }
            ["time-of", number] => self.say_time_of(number, output)?,
            // By an answer, the kernel's commands for GDB (scripts/gdb of Linux) know that thread N
            // is processor N - 1, as in QEMU, which has this command.
            ["info", "version"] if self.is_kernel_view => {
                output.extend_from_slice(
                    concat!("vbts ", env!("CARGO_PKG_VERSION"), "\n").as_bytes(),
                );
            }
            ["goto", "start"] => self.go_to(self.begin, output)?,
            ["goto", "end"] => self.go_to(self.end, output)?,
            ["goto", "crash"] => match self.crash {
                Some(time) => self.go_to(time, output)?,
                None => {
                    let what = match self.is_kernel_view {
                        true => "the kernel has not panicked",
                        false => "the program has not crashed",
                    };
                    return Err(TargetError::Refused(what.into()));
                }
            },
            ["goto", "record", number] => self.go_to_record(number, output)?,
            ["records"] => self.show_records(thread, DEFAULT_RECORDS, output)?,
            ["records", count] => match count.parse() {
                Ok(count) => self.show_records(thread, count, output)?,
                Err(_) => {
                    return Err(TargetError::Refused(format!(
                        "'{count}' is no number of records"
                    )));
                }
            },
            ["python-frames", address] => self.show_python(thread.thread, address, output)?,
            ["python-frames", address, thread] => match thread.parse() {
                Ok(thread) => self.show_python(thread, address, output)?,
                Err(_) => return Err(TargetError::Refused(format!("'{thread}' is no thread"))),
            },
            ["who-called"] => self.go_to_call(thread, output)?,
            ["goto", "time", time] | ["goto", time] => {
                let Ok(time) = time.replace('_', "").parse::<u64>() else {
                    return Err(TargetError::Refused(format!("'{time}' is no time in ns")));
                };
                self.go_to(time.clamp(self.begin, self.end), output)?;
            }
            ["last-write", address] => self.last_write(address, "8", output)?,
            ["last-write", address, size] => self.last_write(address, size, output)?,
            _ => return Err(TargetError::Unsupported),
        }
        Ok(())
    }

    fn say_where(&self, output: &mut Vec<u8>) {
        let thread = self.any_thread();
        let task = self.name_of(thread).unwrap_or_default();
        let name = match self.processor_of(thread).filter(|_| self.is_kernel_view) {
            Some(processor) if task.is_empty() => format!("CPU {processor}"),
            Some(processor) => format!("CPU {processor}, in task {task}"),
            None => task,
        };
        // Writes to a vector cannot fail.
        let _ = writeln!(
            output,
            "{} ns of virtual time, thread {} ({name}), {} instructions of the machine",
            self.replay.now(),
            thread.thread,
            self.replay.instructions()
        );
    }

    /// Goes to a position, and to the thread that the processor executes there.
    fn go_to(&mut self, time: u64, output: &mut Vec<u8>) -> Result<()> {
        let is_known = self.check_program(time);
        is_known.map_err(|failure| TargetError::Refused(failure.to_string()))?;
        self.replay.seek(time).map_err(fatal)?;
        self.stop = self.stop_here(StopReason::Signal(0));
        self.say_where(output);
        Ok(())
    }

    /// Shows the last `count` branches of `thread`.
    fn show_records(&mut self, thread: ThreadId, count: usize, output: &mut Vec<u8>) -> Result<()> {
        let count = count.min(MAX_RECORDS);
        let records = self.branches_since(self.selection_of(thread), self.begin, count);
        for record in records.map_err(fatal)?.last {
            // Writes to a vector cannot fail.
            let _ = writeln!(output, "{:#x} -> {:#x}", record.from, record.to);
        }
        Ok(())
    }

    /// Goes to behind a branch of the program's first thread, by its number in the trace.
    fn go_to_record(&mut self, number: &str, output: &mut Vec<u8>) -> Result<()> {
        let nth = number.replace('_', "").parse().ok().filter(|nth| *nth > 0);
        let Some(nth) = nth else {
            return Err(TargetError::Refused(format!(
                "'{number}' is no number of a record"
            )));
        };
        let from = self.replay.now();
        let (selected, subject) = match self.is_kernel_view {
            true => (Selection::Machine, "the machine"),
            false => (
                Selection::Thread(self.process),
                "the process's first thread",
            ),
        };
        let found = self.find_branch(selected, self.start, self.replay.end, nth);
        let Some(found) = found.map_err(fatal)? else {
            self.replay.seek(from).map_err(fatal)?;
            return Err(TargetError::Refused(format!(
                "{subject} has no record {nth}"
            )));
        };
        self.go_to(found.time.clamp(self.begin, self.end), output)
    }

    /// Shows the time, in ns, at which the program's tasks have executed a number of branches.
    fn say_time_of(&mut self, number: &str, output: &mut Vec<u8>) -> Result<()> {
        let Ok(count) = number.parse() else {
            return Err(TargetError::Refused(format!("'{number}' is no number")));
        };
        let now = self.replay.now();
        let processes = &self.replay.agent.processes;
        let (start, end) = (processes.first().map_or(0, |p| p.start), self.replay.end);
        let time = match count {
            0 => Some(start),
            _ => {
                let found = self.find_branch(Selection::Program, start, end, count);
                let found = found.map_err(fatal)?;
                found.map(|found| found.time)
            }
        };
        self.replay.seek(now).map_err(fatal)?;
        // Writes to a vector cannot fail.
        let _ = writeln!(output, "{}", time.unwrap_or(end));
        Ok(())
    }

    /// Goes back to the call of the function in which `thread` is.
    fn go_to_call(&mut self, thread: ThreadId, output: &mut Vec<u8>) -> Result<()> {
        let from = self.replay.now();
        let Some(found) = self.find_caller(thread).map_err(fatal)? else {
            self.replay.seek(from).map_err(fatal)?;
            return Err(TargetError::Refused(
                "the thread has made no call that has not returned".into(),
            ));
        };
        let (call, function) = (found.branch.from, found.branch.to);
        let _ = writeln!(output, "{call:#x} has called {function:#x}");
        // The call itself takes one ns.
        self.go_to(found.time.saturating_sub(1).max(self.begin), output)
    }

    /// Goes back to before the last write to the `size` bytes at `address`.
    fn last_write(&mut self, address: &str, size: &str, output: &mut Vec<u8>) -> Result<()> {
        let (Some(address), Some(len)) = (number(address), number(size)) else {
            return Err(TargetError::Refused(
                "last-write takes an address and a size, which are numbers".into(),
            ));
        };
        if len == 0 || len > MAX_SIZE {
            return Err(TargetError::Refused(format!(
                "{len} bytes cannot be watched"
            )));
        }
        let from = self.replay.now();
        match self.find_write(address, len).map_err(fatal)? {
            Some(time) => self.go_to(time, output),
            None => {
                self.replay.seek(from).map_err(fatal)?;
                Err(TargetError::Refused(format!(
                    "nothing has written to {address:#x} before"
                )))
            }
        }
    }

    /// The position before the last instruction that has written to memory.
    fn find_write(&mut self, address: u64, len: u64) -> std::result::Result<Option<u64>, Failure> {
        let points = |debugger: &Self| StopPoints {
            watchpoints: vec![Watchpoint {
                address,
                len,
                kind: WatchKind::Write,
                space: debugger.space().filter(|_| !debugger.is_kernel_view),
            }],
            ..StopPoints::default()
        };
        let is_write = |cause: &StopCause| matches!(cause, StopCause::Watchpoint { .. });
        self.find_last(self.replay.now(), points, |debugger, causes| {
            let now = debugger.replay.now();
            causes.iter().any(is_write).then(|| now - 1)
        })
    }
}

/// A number, decimal or hexadecimal.
pub(crate) fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}
