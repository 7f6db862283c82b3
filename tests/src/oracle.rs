//! The native oracle: single-steps a program on the host CPU and derives the branches that a Branch
//! Trace Store would record between user addresses.
//!
//! The host need not have a Branch Trace Store. Before each step the instruction is decoded and its
//! condition evaluated, because the instruction pointer alone does not tell a taken branch to the
//! next instruction from one that is not taken, nor a jump to itself from an iteration of a string
//! instruction. After the step the host's instruction pointer must be where the decoder said: the
//! oracle checks itself against the CPU at every step.
//!
//! Entries into the kernel and returns from it (system calls, exceptions, signals) are not in the
//! result, because one of their ends is a kernel address. A program must not read RFLAGS.TF,
//! which stepping sets in PUSHF and in the R11 of SYSCALL.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use iced_x86::{Code, ConditionCode, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};
use nix::libc::user_regs_struct;
use nix::sched::{self, CpuSet};
use nix::sys::personality::{self, Persona};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::branches::Branch;

/// What a program did on the host.
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

/// More steps than any test program needs: ends one that runs away.
const STEP_LIMIT: u64 = 5_000_000;

/// Code segments of 64-bit and 32-bit user code in Linux.
const USER_CS: u64 = 0x33;
const USER32_CS: u64 = 0x23;

/// Longest x86 instruction, in bytes.
const MAX_INSTRUCTION: usize = 15;

/// Runs `program` step by step.
///
/// # Errors
/// If it cannot be started or traced, is killed by a signal, takes too many steps, or does
/// something that the oracle did not foresee.
pub fn trace(program: &Path) -> Result<Trace> {
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
    let result = Stepper::new(&child).and_then(Stepper::run);
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
    let Stepper {
        branches,
        status,
        steps,
        instructions,
        branch_instructions,
        ..
    } = result.with_context(|| format!("oracle on {}", program.display()))?;
    Ok(Trace {
        branches,
        stdout,
        status,
        steps,
        instructions,
        branch_instructions,
    })
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

struct Stepper {
    pid: Pid,
    memory: File,
    branches: Vec<Branch>,
    status: i32,
    steps: u64,
    instructions: u64,
    branch_instructions: u64,
}

impl Stepper {
    fn new(child: &Child) -> Result<Self> {
        let pid = Pid::from_raw(i32::try_from(child.id())?);
        let stop = waitpid(pid, None)?;
        ensure!(
            stop == WaitStatus::Stopped(pid, Signal::SIGTRAP),
            "not stopped at its first instruction: {stop:?}"
        );
        ptrace::setoptions(pid, ptrace::Options::PTRACE_O_EXITKILL)?;
        let memory = File::open(format!("/proc/{pid}/mem"))?;
        Ok(Self {
            pid,
            memory,
            branches: Vec::new(),
            status: 0,
            steps: 0,
            instructions: 0,
            branch_instructions: 0,
        })
    }

    fn run(mut self) -> Result<Self> {
        let mut deliver = None;
        let mut regs = ptrace::getregs(self.pid)?;
        loop {
            ensure!(self.steps < STEP_LIMIT, "more than {STEP_LIMIT} steps");
            self.steps += 1;
            let instruction = self.decode(&regs);
            ptrace::step(self.pid, deliver)?;
            match waitpid(self.pid, None)? {
                WaitStatus::Exited(_, status) => {
                    self.count(&instruction);
                    self.status = status;
                    return Ok(self);
                }
                WaitStatus::Stopped(_, Signal::SIGTRAP) => {
                    // A step that delivers a signal ends at the handler's first instruction and
                    // executes nothing.
                    let after = ptrace::getregs(self.pid)?;
                    if deliver.take().is_none() {
                        self.retired(&instruction, &regs, after.rip)?;
                    }
                    regs = after;
                }
                // The signal waits for the next step; the instruction faulted, or was not reached.
                WaitStatus::Stopped(_, signal) => deliver = Some(signal),
                other => bail!("at {:#x}, {instruction}: {other:?}", regs.rip),
            }
        }
    }

    /// The instruction at RIP, or an invalid one if it cannot be read.
    fn decode(&self, regs: &user_regs_struct) -> Instruction {
        let mut bytes = [0; MAX_INSTRUCTION];
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

    /// Adds the branch that `instruction` took, if it did, and checks where the host went.
    fn retired(
        &mut self,
        instruction: &Instruction,
        before: &user_regs_struct,
        after: u64,
    ) -> Result<()> {
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
            self.branches.push(Branch {
                from: before.rip,
                to: after,
            });
        }
        if foreseen != Foreseen::NextOrSame || after != before.rip {
            self.count(instruction);
        }
        Ok(())
    }

    fn count(&mut self, instruction: &Instruction) {
        self.instructions += 1;
        self.branch_instructions += u64::from(instruction.flow_control() != FlowControl::Next);
    }
}

/// What an instruction will do to the instruction pointer, if it completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Foreseen {
    /// Nothing special, or a branch that is not taken.
    Next,
    /// A string instruction with a repeat prefix: the step ends after each iteration.
    NextOrSame,
    /// Enters the kernel, which may return to any address: not a user branch.
    Kernel,
    /// A taken branch to a known target.
    To(u64),
    /// A taken branch to wherever a register or memory says.
    Anywhere,
}

fn foresee(instruction: &Instruction, regs: &user_regs_struct) -> Result<Foreseen> {
    // INT 80H is the system call of 32-bit programs.
    let calls_kernel = match instruction.mnemonic() {
        Mnemonic::Syscall | Mnemonic::Sysenter => true,
        Mnemonic::Int => instruction.immediate8() == 0x80,
        _ => false,
    };
    if calls_kernel {
        return Ok(Foreseen::Kernel);
    }
    Ok(match instruction.flow_control() {
        FlowControl::Next if has_repeat(instruction) => Foreseen::NextOrSame,
        FlowControl::Next => Foreseen::Next,
        FlowControl::Call | FlowControl::UnconditionalBranch
            if instruction.near_branch_target() != 0 =>
        {
            Foreseen::To(instruction.near_branch_target())
        }
        FlowControl::ConditionalBranch if is_taken(instruction, regs)? => {
            Foreseen::To(instruction.near_branch_target())
        }
        FlowControl::ConditionalBranch => Foreseen::Next,
        FlowControl::Call
        | FlowControl::UnconditionalBranch
        | FlowControl::IndirectBranch
        | FlowControl::IndirectCall
        | FlowControl::Return => Foreseen::Anywhere,
        FlowControl::Interrupt | FlowControl::XbeginXabortXend | FlowControl::Exception => {
            bail!("no test program may complete it")
        }
    })
}

fn has_repeat(instruction: &Instruction) -> bool {
    instruction.is_string_instruction()
        && (instruction.has_rep_prefix() || instruction.has_repne_prefix())
}

/// RFLAGS bits.
const CF: u64 = 1 << 0;
const PF: u64 = 1 << 2;
const ZF: u64 = 1 << 6;
const SF: u64 = 1 << 7;
const OF: u64 = 1 << 11;

fn is_taken(instruction: &Instruction, regs: &user_regs_struct) -> Result<bool> {
    let flag = |mask: u64| regs.eflags & mask != 0;
    if instruction.is_jcx_short() || instruction.is_loop() || instruction.is_loopcc() {
        let mask = counter_mask(instruction.code())?;
        if instruction.is_jcx_short() {
            return Ok(regs.rcx & mask == 0);
        }
        // LOOP decrements first.
        let goes_on = regs.rcx.wrapping_sub(1) & mask != 0;
        return Ok(match instruction.mnemonic() {
            Mnemonic::Loope => goes_on && flag(ZF),
            Mnemonic::Loopne => goes_on && !flag(ZF),
            _ => goes_on,
        });
    }
    Ok(match instruction.condition_code() {
        ConditionCode::o => flag(OF),
        ConditionCode::no => !flag(OF),
        ConditionCode::b => flag(CF),
        ConditionCode::ae => !flag(CF),
        ConditionCode::e => flag(ZF),
        ConditionCode::ne => !flag(ZF),
        ConditionCode::be => flag(CF | ZF),
        ConditionCode::a => !flag(CF | ZF),
        ConditionCode::s => flag(SF),
        ConditionCode::ns => !flag(SF),
        ConditionCode::p => flag(PF),
        ConditionCode::np => !flag(PF),
        ConditionCode::l => flag(SF) != flag(OF),
        ConditionCode::ge => flag(SF) == flag(OF),
        ConditionCode::le => flag(ZF) || flag(SF) != flag(OF),
        ConditionCode::g => !flag(ZF) && flag(SF) == flag(OF),
        ConditionCode::None => bail!("a conditional branch without a condition"),
    })
}

/// The part of RCX that LOOP and JRCXZ use.
fn counter_mask(code: Code) -> Result<u64> {
    Ok(match code {
        Code::Jrcxz_rel8_64
        | Code::Loop_rel8_64_RCX
        | Code::Loope_rel8_64_RCX
        | Code::Loopne_rel8_64_RCX => u64::MAX,
        Code::Jecxz_rel8_32
        | Code::Jecxz_rel8_64
        | Code::Loop_rel8_32_ECX
        | Code::Loop_rel8_64_ECX
        | Code::Loope_rel8_32_ECX
        | Code::Loope_rel8_64_ECX
        | Code::Loopne_rel8_32_ECX
        | Code::Loopne_rel8_64_ECX => u64::from(u32::MAX),
        Code::Jcxz_rel8_32
        | Code::Loop_rel8_32_CX
        | Code::Loope_rel8_32_CX
        | Code::Loopne_rel8_32_CX => u64::from(u16::MAX),
        other => bail!("no counter known for {other:?}"),
    })
}

#[cfg(test)]
mod tests;
