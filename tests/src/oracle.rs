//! The native oracle: single-steps a program on the host CPU, with all threads and processes that
//! it starts, and derives the branches that a Branch Trace Store would record between user
//! addresses.
//!
//! The host need not have a Branch Trace Store. Before each step the instruction is decoded and its
//! condition evaluated, because the instruction pointer alone does not tell a taken branch to the
//! next instruction from one that is not taken, nor a jump to itself from an iteration of a string
//! instruction. After the step the host's instruction pointer must be where the decoder said: the
//! oracle checks itself against the CPU at every step.
//!
//! Entries into the kernel and returns from it (system calls, exceptions, signals) are not in the
//! result, because one of their ends is a kernel address. A program must not read RFLAGS.TF,
//! which stepping sets in PUSHF and in the R11 of SYSCALL. It must not execute another program.

mod foresee;
mod task;

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use nix::sched::{self, CpuSet};
use nix::sys::personality::{self, Persona};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::branches::Branch;
use task::Task;

/// What a program with one task did on the host.
#[derive(Debug)]
pub struct Trace {
    /// The branches between user addresses, oldest first.
    pub branches: Vec<Branch>,
    /// What it wrote to standard output.
    pub stdout: Vec<u8>,
    /// What it exited with.
    pub status: i32,
    /// How many single steps it took.
    pub steps: u64,
    /// Instructions that it completed; a repeated string instruction is one.
    pub instructions: u64,
    /// Those of them that are branches, taken or not, system calls among them.
    pub branch_instructions: u64,
}

/// What a program with several tasks did on the host.
#[derive(Debug)]
pub struct Tasks {
    /// Its tasks, each after the one that has started it. The first one is that of the program.
    pub tasks: Vec<TaskTrace>,
    /// What it wrote to standard output.
    pub stdout: Vec<u8>,
}

/// What one task did on the host.
#[derive(Debug, Default)]
pub struct TaskTrace {
    /// Index of the task that has started it; `None` for the first one.
    pub parent: Option<usize>,
    /// The branches between user addresses, oldest first.
    pub branches: Vec<Branch>,
    /// What it exited with.
    pub status: i32,
    /// How many single steps it took.
    pub steps: u64,
    /// Instructions that it completed; a repeated string instruction is one.
    pub instructions: u64,
    /// Those of them that are branches, taken or not, system calls among them.
    pub branch_instructions: u64,
}

/// More steps than any test program needs: ends one that runs away.
const STEP_LIMIT: u64 = 5_000_000;

/// The program has taken more steps than this.
#[derive(Debug)]
pub struct TooManySteps(u64);

impl std::fmt::Display for TooManySteps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "more than {} steps", self.0)
    }
}

impl std::error::Error for TooManySteps {}

/// Runs `program`, which starts no tasks, step by step.
///
/// # Errors
/// If it cannot be started or traced, is killed by a signal, takes too many steps, or does
/// something that the oracle did not foresee.
pub fn trace(program: &Path) -> Result<Trace> {
    trace_within(program, STEP_LIMIT)
}

/// [`trace`], for so many steps.
///
/// # Errors
/// As [`trace`]. The root cause is [`TooManySteps`] if the program takes more.
pub fn trace_within(program: &Path, steps: u64) -> Result<Trace> {
    let Tasks { mut tasks, stdout } = trace_tasks_within(program, steps)?;
    ensure!(tasks.len() == 1, "{} tasks instead of one", tasks.len());
    let task = tasks.swap_remove(0);
    Ok(Trace {
        branches: task.branches,
        stdout,
        status: task.status,
        steps: task.steps,
        instructions: task.instructions,
        branch_instructions: task.branch_instructions,
    })
}

/// Runs `program` and the tasks that it starts step by step. A task that blocks does not stop the
/// others.
///
/// # Errors
/// If it cannot be started or traced, a task is killed by a signal, it takes too many steps, or
/// does something that the oracle did not foresee.
pub fn trace_tasks(program: &Path) -> Result<Tasks> {
    trace_tasks_within(program, STEP_LIMIT)
}

fn trace_tasks_within(program: &Path, steps: u64) -> Result<Tasks> {
    let _pinned = Pinned::new()?;
    let mut command = Command::new(program);
    command
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    // SAFETY: both calls are bare system calls, which may be made between fork and exec.
    unsafe {
        command.pre_exec(|| {
            personality::set(Persona::ADDR_NO_RANDOMIZE)?;
            ptrace::traceme()?;
            Ok(())
        });
    }
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let result = Stepper::new(&child).and_then(|stepper| stepper.run(steps));
    if result.is_err() {
        // It may be stopped anywhere, or gone already.
        let _ = child.kill();
    }
    let mut stdout = Vec::new();
    if let (Some(mut pipe), true) = (child.stdout.take(), result.is_ok()) {
        pipe.read_to_end(&mut stdout)?;
    }
    if result.is_err() {
        let _ = child.wait();
    }
    let tasks = result.with_context(|| format!("oracle on {}", program.display()))?;
    Ok(Tasks { tasks, stdout })
}

/// Keeps this thread, and so the child, on one CPU: a step is then a context switch and not a
/// wake-up of another CPU, which makes it several times faster.
#[derive(Debug)]
pub(crate) struct Pinned {
    before: CpuSet,
}

impl Pinned {
    pub(crate) fn new() -> Result<Self> {
        let this_thread = Pid::from_raw(0);
        let before = sched::sched_getaffinity(this_thread)?;
        let mut one = CpuSet::new();
        one.set(sched::sched_getcpu()?)?;
        sched::sched_setaffinity(this_thread, &one)?;
        Ok(Self { before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // A failure costs speed alone.
        let _ = sched::sched_setaffinity(Pid::from_raw(0), &self.before);
    }
}

/// Steps the tasks of a program.
struct Stepper {
    /// All tasks, in the order in which they were started.
    tasks: Vec<Task>,
    /// Indexes of the live ones.
    live: BTreeMap<Pid, usize>,
    /// New tasks that have stopped before their parents have reported them.
    waiting: Vec<Pid>,
}

impl Stepper {
    fn new(child: &Child) -> Result<Self> {
        let pid = Pid::from_raw(i32::try_from(child.id())?);
        let stop = waitpid(pid, None)?;
        ensure!(
            stop == WaitStatus::Stopped(pid, Signal::SIGTRAP),
            "not stopped at its first instruction: {stop:?}"
        );
        ptrace::setoptions(
            pid,
            ptrace::Options::PTRACE_O_EXITKILL
                | ptrace::Options::PTRACE_O_TRACEFORK
                | ptrace::Options::PTRACE_O_TRACEVFORK
                | ptrace::Options::PTRACE_O_TRACECLONE,
        )?;
        let mut stepper = Self {
            tasks: Vec::new(),
            live: BTreeMap::new(),
            waiting: Vec::new(),
        };
        stepper.begin(pid, None)?;
        Ok(stepper)
    }

    /// Starts to step a task that has stopped before its first instruction.
    fn begin(&mut self, pid: Pid, parent: Option<usize>) -> Result<()> {
        let task = Task::new(pid, parent)?;
        task.step()?;
        self.live.insert(pid, self.tasks.len());
        self.tasks.push(task);
        Ok(())
    }

    fn run(mut self, limit: u64) -> Result<Vec<TaskTrace>> {
        // The tasks of other threads of this process are traced by those.
        let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        let mut steps = 0;
        while !self.live.is_empty() {
            ensure!(steps < limit, TooManySteps(limit));
            steps += 1;
            let status = waitpid(None, Some(flags))?;
            let pid = status.pid().context("no task has changed its state")?;
            let Some(&index) = self.live.get(&pid) else {
                self.waiting.push(pid);
                continue;
            };
            let task = self.tasks.get_mut(index).context("no such task")?;
            match status {
                WaitStatus::Exited(_, status) => {
                    task.exited(status);
                    self.live.remove(&pid);
                }
                // The system call is not complete yet.
                WaitStatus::PtraceEvent(..) => {
                    let new = Pid::from_raw(i32::try_from(ptrace::getevent(pid)?)?);
                    ptrace::step(pid, None)?;
                    match self.waiting.iter().position(|pid| *pid == new) {
                        Some(at) => drop(self.waiting.swap_remove(at)),
                        None => drop(waitpid(new, Some(WaitPidFlag::__WALL))?),
                    }
                    self.begin(new, Some(index))?;
                }
                WaitStatus::Stopped(_, Signal::SIGTRAP) => task.stepped()?,
                // The end of a child. The programs ignore this signal, and a step that delivers an
                // ignored signal executes an instruction.
                WaitStatus::Stopped(_, Signal::SIGCHLD) => task.step()?,
                // The signal waits for the next step; the instruction faulted, or was not reached.
                WaitStatus::Stopped(_, signal) => {
                    task.trace.steps += 1;
                    task.deliver = Some(signal);
                    task.step()?;
                }
                other => bail!("at {:#x}, {}: {other:?}", task.regs.rip, task.instruction),
            }
        }
        Ok(self.tasks.into_iter().map(|task| task.trace).collect())
    }
}

#[cfg(test)]
mod tests;
