//! System calls of a recorded program in the form of strace(1), by a replay.
//!
//! The replay stops where the guest's kernel begins and ends a system call, and where a task meets
//! its tracer. Nothing in the guest changes. A call has a line when it returns, or when its task
//! ends in it.
//!
//! | module | contents |
//! |---|---|
//! | `table` | the arguments of the calls |
//! | `calls` | calls whose arguments depend on each other |
//! | `flags`, `socket_options` | the names of flags and numbers |
//! | `arguments`, `structures` | the text of an argument, and of a structure |

mod arguments;
mod calls;
mod flags;
mod socket_options;
mod structures;
mod table;

use std::collections::BTreeMap;

use anyhow::anyhow;
use syscalls::{Errno, Sysno};
use vbts_capture::machine::kernel::Kernel;
use vbts_cpu::state::gpr;
use vbts_cpu::{Breakpoint, StopCause, StopPoints};
use vbts_gdb::ThreadId;
use vbts_host::exit::{Failure, signal_name};
use vbts_vmm::inputs::Inputs;
use vbts_vmm::machine::{End, Machine};

use crate::agent::{Agent, Connection};
use crate::layout::Layout;
use crate::replay::EXIT_GROUP;
use crate::tasks::Tasks;
use crate::tracer_stop::TracerStop;
use arguments::Memory;
use table::{Call, Returns};

/// Words of `struct pt_regs` up to `di`, and the places of registers in it.
const PT_REGS: usize = 15;
const PT_R10: usize = 7;
const PT_R9: usize = 8;
const PT_R8: usize = 9;
const PT_AX: usize = 10;
const PT_DX: usize = 12;
const PT_SI: usize = 13;
const PT_DI: usize = 14;
/// The largest error number (`MAX_ERRNO`).
const MAX_ERRNO: i64 = 4095;
/// The kernel's own error numbers, with which it begins a call again after a signal.
const RESTARTS: [(i64, &str, &str); 4] = [
    (512, "ERESTARTSYS", "To be restarted if SA_RESTART is set"),
    (513, "ERESTARTNOINTR", "To be restarted"),
    (514, "ERESTARTNOHAND", "To be restarted if no handler"),
    (516, "ERESTART_RESTARTBLOCK", "Interrupted by signal"),
];
/// Numbers of system calls that matter here.
const EXECVE: u64 = 59;
const EXIT: u64 = 60;
/// Number of the agent's process, the first one of the guest.
const AGENT: u32 = 1;
/// Tasks whose calls are kept at once, at most.
const MAX_TASKS: usize = 1 << 16;

/// What a task has done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happening {
    /// It has called the kernel.
    Call {
        /// Name of the system call.
        name: String,
        /// The arguments as text.
        arguments: Vec<String>,
        /// The result as text; `None` if the call has not returned.
        result: Option<String>,
    },
    /// It has received a signal, with its `siginfo_t` as text.
    Signal {
        /// Name of the signal.
        name: String,
        /// The information as text.
        info: String,
    },
    /// It has ended: by its exit, with a status, or by the signal with this name.
    End(Result<u8, String>),
}

/// A line of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Virtual time in ns at which it began.
    pub time: u64,
    /// Numbers of the task.
    pub thread: ThreadId,
    /// What the task has done.
    pub happening: Happening,
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.happening {
            Happening::Call {
                name,
                arguments,
                result,
            } => {
                let result = result.as_deref().unwrap_or("?");
                write!(f, "{name}({}) = {result}", arguments.join(", "))
            }
            Happening::Signal { name, info } => write!(f, "--- {name} {info} ---"),
            Happening::End(Ok(status)) => write!(f, "+++ exited with {status} +++"),
            Happening::End(Err(signal)) => write!(f, "+++ killed by {signal} +++"),
        }
    }
}

/// A call that has not returned.
#[derive(Debug)]
struct Open {
    time: u64,
    thread: ThreadId,
    number: u64,
    values: [u64; 6],
    /// The texts of the arguments that the kernel reads; `None` for what it writes.
    texts: Vec<Option<String>>,
}

/// A replay whose system calls are listed.
#[derive(Debug)]
pub struct SystemCallTrace {
    machine: Machine,
    agent: Agent,
    layout: Layout,
    /// `do_syscall_64(regs, nr)`, and `syscall_exit_to_user_mode(regs)`.
    entry: u64,
    exit: u64,
    /// `begin_new_exec`, which has read the arguments of `execve`, and has the memory that they are
    /// in.
    begin_exec: u64,
    open: BTreeMap<u32, Open>,
    /// The first process of the program, once it executes that.
    program: Option<u32>,
}

impl SystemCallTrace {
    /// A replay of `machine`, which has not run.
    ///
    /// # Errors
    /// The kernel is not one that is known here.
    pub fn new(
        machine: Machine,
        connection: Connection,
        inputs: Inputs,
        kernel: &[u8],
    ) -> Result<Self, Failure> {
        let symbols = Kernel::parse(kernel);
        let symbol = |name: &str| symbols.as_ref()?.symbol(name);
        let begin_exec = symbol("begin_new_exec").unwrap_or(0);
        let layout = Layout::of(kernel);
        let known = layout.and_then(|layout| Some((layout, layout.system_call?)));
        let Some((layout, [entry, exit])) = known else {
            let message = "the kernel of the recording is laid out in an unknown way";
            return Err(anyhow!(message).into());
        };
        Ok(Self {
            machine,
            agent: Agent::new(connection, inputs),
            layout,
            entry,
            exit,
            begin_exec,
            open: BTreeMap::new(),
            program: None,
        })
    }

    /// Runs the replay to its end, and calls `each` with each line.
    ///
    /// # Errors
    /// The replay differs from the recording, or `each` fails.
    pub fn run(mut self, each: &mut dyn FnMut(Line) -> Result<(), Failure>) -> Result<(), Failure> {
        let at = |address| Breakpoint {
            address,
            space: None,
        };
        let stops = [
            self.entry,
            self.exit,
            self.begin_exec,
            self.layout.ptrace_stop,
        ];
        self.machine.set_stop_points(&StopPoints {
            breakpoints: stops.map(at).to_vec(),
            ..StopPoints::default()
        });
        loop {
            if let Some((processor, _)) = self.machine.current_processor() {
                self.machine.leave_stop(processor);
            }
            match self.machine.run_until(u64::MAX, &mut self.agent) {
                Ok(Some(End::Stop)) => {}
                // A guest that crashed has reached its end, too.
                Ok(_) | Err(Failure::Guest { .. }) => break,
                Err(failure) => return Err(failure),
            }
            for cause in self.machine.take_stop_causes() {
                if let StopCause::Breakpoint { address } = cause
                    && let Some(line) = self.stopped(address)
                {
                    each(line)?;
                }
            }
        }
        for open in std::mem::take(&mut self.open).into_values() {
            each(open.unfinished())?;
        }
        Ok(())
    }

    /// The line that is complete now that a processor is at `address`, if one is.
    fn stopped(&mut self, address: u64) -> Option<Line> {
        let (_, cpu) = self.machine.current_processor()?;
        let state = cpu.state();
        let tasks = Tasks::new(&self.machine, &self.layout)?;
        let task = tasks.current()?;
        let thread = tasks.id(task).filter(|id| id.process != AGENT)?;
        let time = self.machine.now();
        let memory = tasks.space(task).map(|space| Memory { tasks, space });
        if address == self.layout.ptrace_stop {
            self.program?;
            let happening = TracerStop::of(cpu, &tasks).and_then(at_tracer_stop)?;
            return Some(Line {
                time,
                thread,
                happening,
            });
        }
        if address == self.begin_exec {
            let open = self.open.get_mut(&thread.thread)?;
            let read = Call::of(open.number).inputs(&open.values, memory.as_ref());
            for (text, read) in open.texts.iter_mut().zip(read) {
                *text = text.take().or(read);
            }
            return None;
        }
        let frame = pt_regs(&tasks, state.gpr[gpr::RDI])?;
        if address == self.exit {
            let open = self.open.remove(&thread.thread)?;
            return Some(open.returned(frame[PT_AX], memory.as_ref()));
        }
        let number = state.gpr[gpr::RSI] & 0xFFFF_FFFF;
        if self.program.is_none() && number == EXECVE {
            self.program = Some(thread.process);
        }
        // The agent prepares the first process before that.
        self.program?;
        let places = [PT_DI, PT_SI, PT_DX, PT_R10, PT_R8, PT_R9];
        let values = places.map(|place| frame[place]);
        let call = Call::of(number);
        let texts = call.inputs(&values, memory.as_ref());
        let open = Open {
            time,
            thread,
            number,
            values,
            texts,
        };
        if matches!(number, EXIT | EXIT_GROUP) {
            return Some(open.unfinished());
        }
        if self.open.len() < MAX_TASKS {
            self.open.insert(thread.thread, open);
        }
        None
    }
}

impl Open {
    /// The line of a call that has returned `result`.
    fn returned(self, result: u64, memory: Option<&Memory<'_>>) -> Line {
        let call = Call::of(self.number);
        let arguments = call.outputs(&self.values, self.texts, result as i64, memory);
        let remark = call.remark(&self.values, result as i64, memory);
        let mut result = result_text(result, call.returns());
        if let Some(remark) = remark {
            result.push_str(&format!(" ({remark})"));
        }
        let result = Some(result);
        Self::line(self.time, self.thread, self.number, arguments, result)
    }

    /// The line of a call that does not return.
    fn unfinished(self) -> Line {
        let arguments = Call::of(self.number).unfinished(&self.values, self.texts);
        Self::line(self.time, self.thread, self.number, arguments, None)
    }

    fn line(
        time: u64,
        thread: ThreadId,
        number: u64,
        arguments: Vec<String>,
        result: Option<String>,
    ) -> Line {
        Line {
            time,
            thread,
            happening: Happening::Call {
                name: name(number),
                arguments,
                result,
            },
        }
    }
}

/// What has happened at a stop of a task for its tracer.
fn at_tracer_stop(stop: TracerStop) -> Option<Happening> {
    match stop {
        TracerStop::Signal(signal, info) => Some(Happening::Signal {
            name: signal_name(signal.into()),
            info: arguments::signal_info(&info),
        }),
        TracerStop::Exit(status) => Some(Happening::End(match status & 0x7F {
            0 => Ok((status >> 8) as u8),
            signal => Err(signal_name(signal as i32)),
        })),
        TracerStop::Fork(_) | TracerStop::Vfork(_) | TracerStop::Exec => None,
    }
}

/// The first words of the registers at `address`.
fn pt_regs(tasks: &Tasks<'_>, address: u64) -> Option<[u64; PT_REGS]> {
    let mut bytes = [0; 8 * PT_REGS];
    let is_read = tasks.read_kernel(address, &mut bytes);
    let (words, _) = bytes.as_chunks();
    let mut registers = [0; PT_REGS];
    for (register, word) in registers.iter_mut().zip(words) {
        *register = u64::from_le_bytes(*word);
    }
    is_read.then_some(registers)
}

fn name(number: u64) -> String {
    let known = usize::try_from(number).ok().and_then(Sysno::new);
    known.map_or_else(
        || format!("syscall_{number:#x}"),
        |call| call.name().to_owned(),
    )
}

/// A result as strace shows it.
fn result_text(result: u64, returns: Returns) -> String {
    let signed = result as i64;
    let restart = RESTARTS.iter().find(|(number, ..)| -number == signed);
    if let Some((_, name, meaning)) = restart {
        return format!("? {name} ({meaning})");
    }
    if (-MAX_ERRNO..0).contains(&signed) {
        let error = Errno::new(-signed as i32);
        let name = error.name().unwrap_or("E?");
        let meaning = std::io::Error::from_raw_os_error(error.into_raw()).to_string();
        let meaning = meaning.split(" (os error").next().unwrap_or_default();
        return format!("-1 {name} ({meaning})");
    }
    match returns {
        Returns::Number => signed.to_string(),
        Returns::Address if result == 0 => "0".into(),
        Returns::Address => format!("{result:#x}"),
    }
}
