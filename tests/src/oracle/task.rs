//! One task of a program, which is single-stepped.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, ensure};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use nix::libc::user_regs_struct;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::TaskTrace;
use super::foresee::{Foreseen, foresee};
use crate::branches::Branch;

/// Code segments of 64-bit and 32-bit user code in Linux.
const USER_CS: u64 = 0x33;
const USER32_CS: u64 = 0x23;

/// Length of SYSCALL, in bytes.
const SYSCALL_LENGTH: u64 = 2;

/// Results with which Linux marks an interrupted system call that it executes again: ERESTARTSYS,
/// ERESTARTNOINTR, ERESTARTNOHAND and ERESTART_RESTARTBLOCK.
const RESTARTS: [i64; 4] = [-512, -513, -514, -516];

/// Longest x86 instruction, in bytes.
const MAX_INSTRUCTION: usize = 15;

/// A task that is being stepped.
pub struct Task {
    pid: Pid,
    memory: File,
    /// The registers before the current step.
    pub regs: user_regs_struct,
    /// The instruction that the current step executes.
    pub instruction: Instruction,
    /// The signal to deliver with the next step.
    pub deliver: Option<Signal>,
    pub trace: TaskTrace,
}

impl Task {
    /// A task that has stopped before its first instruction.
    pub fn new(pid: Pid, parent: Option<usize>) -> Result<Self> {
        let mut task = Self {
            pid,
            memory: File::open(format!("/proc/{pid}/mem"))?,
            regs: ptrace::getregs(pid)?,
            instruction: Instruction::default(),
            deliver: None,
            trace: TaskTrace {
                parent,
                ..TaskTrace::default()
            },
        };
        task.instruction = task.decode();
        Ok(task)
    }

    /// Begins a step.
    pub fn step(&self) -> Result<()> {
        Ok(ptrace::step(self.pid, self.deliver)?)
    }

    /// Handles the end of a step, and begins the next one.
    pub fn stepped(&mut self) -> Result<()> {
        self.trace.steps += 1;
        // A step that delivers a signal ends at the handler's first instruction and executes
        // nothing.
        let after = ptrace::getregs(self.pid)?;
        if self.deliver.take().is_none() {
            self.retired(after.rip)?;
        }
        self.regs = after;
        // A signal for the process has interrupted the system call. The kernel executes it again.
        if after.orig_rax.cast_signed() >= 0 && RESTARTS.contains(&after.rax.cast_signed()) {
            self.regs.rip -= SYSCALL_LENGTH;
        }
        self.instruction = self.decode();
        self.step()
    }

    /// Handles the end of the task.
    pub fn exited(&mut self, status: i32) {
        self.trace.steps += 1;
        self.count();
        self.trace.status = status;
    }

    /// The instruction at RIP, or an invalid one if it cannot be read.
    fn decode(&self) -> Instruction {
        let mut bytes = [0; MAX_INSTRUCTION];
        let regs = &self.regs;
        let len = self.memory.read_at(&mut bytes, regs.rip).unwrap_or(0);
        let bitness = if regs.cs == USER32_CS { 32 } else { 64 };
        Decoder::with_ip(
            bitness,
            bytes.get(..len).unwrap_or(&[]),
            regs.rip,
            DecoderOptions::NONE,
        )
        .decode()
    }

    /// Adds the branch that the instruction took, if it did, and checks where the host went.
    fn retired(&mut self, after: u64) -> Result<()> {
        let (instruction, before) = (&self.instruction, &self.regs);
        ensure!(
            before.cs == USER_CS || before.cs == USER32_CS,
            "unknown code segment {:#x} at {:#x}",
            before.cs,
            before.rip
        );
        let foreseen = foresee(instruction, before)
            .with_context(|| format!("{:#x}: cannot follow `{instruction}`", before.rip))?;
        let (taken, fits) = match foreseen {
            Foreseen::Next => (false, after == instruction.next_ip()),
            Foreseen::NextOrSame => (false, after == instruction.next_ip() || after == before.rip),
            Foreseen::Kernel => (false, true),
            Foreseen::To(target) => (true, after == target),
            Foreseen::Anywhere => (true, true),
        };
        ensure!(
            fits,
            "{:#x}: `{instruction}` went to {after:#x}, not {foreseen:x?}",
            before.rip
        );
        if taken {
            self.trace.branches.push(Branch {
                from: before.rip,
                to: after,
            });
        }
        if foreseen != Foreseen::NextOrSame || after != before.rip {
            self.count();
        }
        Ok(())
    }

    fn count(&mut self) {
        let is_branch = self.instruction.flow_control() != FlowControl::Next;
        self.trace.instructions += 1;
        self.trace.branch_instructions += u64::from(is_branch);
    }
}
