//! Compares native code with the interpreter, for `--jit check`.
//!
//! The interpreter executes a block, instruction by instruction. What it has changed is noted and
//! undone. Then native code executes the block, and must change the same in the same way. Only
//! instructions that have a template are compared: the others call the interpreter's code. A block
//! in which an access does not find its page in the TLB, or a branch no open window, runs without a
//! comparison: that could not be undone. So does one beside which another processor runs.

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind};

use crate::backend::interpreter::op::Op;
use crate::backend::jit::forms::operand::{Operand, RBP, RSP, accesses_memory};
use crate::backend::jit::translator::{self, Item};
use crate::exec::MXCSR_MASKS;
use crate::insn::{Flow, Insn, reg, seg};
use crate::mmu::access::{Access, Privilege};
use crate::mmu::host_access;
use crate::processor::cpu::Cpu;

/// What a block changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Changes {
    gpr: [u64; 16],
    xmm: [u128; 16],
    ymm_high: [u128; 16],
    mxcsr: u32,
    rflags: u64,
    privilege: Privilege,
    pauses: u32,
    gs_base: u64,
    kernel_gs_base: u64,
    rip: u64,
    /// Instructions that have retired.
    retired: u64,
    /// What memory holds afterwards where the block has written.
    memory: Vec<Vec<u8>>,
}

/// Bytes of the host's memory, and what they were.
#[derive(Debug)]
struct Written {
    at: *mut u8,
    before: Vec<u8>,
}

impl Written {
    /// Notes `size` bytes that are about to be written.
    ///
    /// # Safety
    /// They are guest memory, also for the calls of the methods.
    unsafe fn note(at: *mut u8, size: usize) -> Self {
        let mut before = vec![0; size];
        // SAFETY: the caller's promise.
        unsafe { host_access::load_bytes(at, &mut before) };
        Self { at, before }
    }

    fn now(&self) -> Vec<u8> {
        // SAFETY: the promise of `note`'s caller.
        unsafe { Self::note(self.at, self.before.len()) }.before
    }

    fn undo(&self) {
        // SAFETY: the promise of `note`'s caller.
        unsafe { host_access::store_bytes(self.at, &self.before) };
    }
}

/// A block that native code is about to execute.
#[derive(Debug)]
pub(crate) struct Expectation {
    changes: Changes,
    written: Vec<Written>,
    icount: u64,
}

impl Expectation {
    /// What the interpreter makes of the first `count` instructions of a block. `None`: that
    /// cannot be undone.
    pub(crate) fn of(cpu: &mut Cpu, rip: u64, bytes: &[u8], ops: &[Op], count: u8) -> Option<Self> {
        // Another processor could change what the two executions read. And native code leaves a
        // block to the interpreter if an exception is not masked.
        if !cpu.has_memory_alone() || cpu.mxcsr & MXCSR_MASKS != MXCSR_MASKS {
            return None;
        }
        let (before, window) = (cpu.gpr, cpu.window.clone());
        let (xmm, ymm_high, mxcsr) = (cpu.xmm, cpu.ymm_high, cpu.mxcsr);
        let (flags, fault) = (cpu.flags, cpu.fault);
        let (eflags, signal_mask) = (cpu.eflags, cpu.signal_mask);
        let (spin, pending_work) = (cpu.spin, cpu.pending_work);
        let kernel_gs_base = cpu.msr.kernel_gs_base;
        let mut written = Vec::new();
        cpu.gpr[usize::from(reg::BLOCK)] = rip;
        let items: Vec<_> = translator::items(cpu.model, bytes, ops).collect();
        let retired = execute(cpu, &items[..usize::from(count)], ops, &mut written);
        let next = match items.get(usize::from(count)) {
            Some(item) => u64::from(item.insn.offset),
            None => bytes.len() as u64,
        };
        let expectation = retired.map(|(retired, jumped)| {
            if !jumped {
                cpu.rip = rip.wrapping_add(next);
            }
            let changes = Changes::of(cpu, retired, &written);
            (changes, cpu.icount)
        });
        for change in written.iter().rev() {
            change.undo();
        }
        (cpu.gpr, cpu.window) = (before, window);
        (cpu.xmm, cpu.ymm_high, cpu.mxcsr) = (xmm, ymm_high, mxcsr);
        (cpu.flags, cpu.fault, cpu.rip) = (flags, fault, rip);
        (cpu.eflags, cpu.signal_mask) = (eflags, signal_mask);
        (cpu.spin, cpu.pending_work) = (spin, pending_work);
        cpu.update_data_privilege();
        cpu.msr.kernel_gs_base = kernel_gs_base;
        expectation.map(|(changes, icount)| Self {
            changes,
            written,
            icount,
        })
    }

    /// Compares what native code has made of the block. Returns a description of the difference.
    pub(crate) fn differs(&self, cpu: &Cpu) -> Option<String> {
        let got = Changes::of(cpu, cpu.icount - self.icount, &self.written);
        (got != self.changes).then(|| format!("expected {:x?}\ngot {got:x?}", self.changes))
    }
}

impl Changes {
    fn of(cpu: &Cpu, retired: u64, written: &[Written]) -> Self {
        Self {
            gpr: std::array::from_fn(|n| cpu.gpr[n]),
            xmm: cpu.xmm,
            ymm_high: cpu.ymm_high,
            mxcsr: cpu.mxcsr,
            rflags: cpu.rflags(),
            privilege: cpu.privilege,
            pauses: cpu.spin.pauses,
            gs_base: cpu.gpr[usize::from(reg::SEGMENT + seg::GS)],
            kernel_gs_base: cpu.msr.kernel_gs_base,
            rip: cpu.rip,
            retired,
            memory: written.iter().map(Written::now).collect(),
        }
    }
}

/// Executes instructions, up to a branch that is taken, and notes what they write. Returns how many
/// have retired, and whether the last one has jumped. `None`: one cannot be undone.
fn execute(
    cpu: &mut Cpu,
    items: &[Item],
    ops: &[Op],
    written: &mut Vec<Written>,
) -> Option<(u64, bool)> {
    let mut factory = InstructionInfoFactory::new();
    for item in items {
        for (operand, access) in accesses(&item.decoded, &item.insn, &mut factory, cpu)? {
            let host = cpu.tlb.fast(linear(cpu, &operand), operand.size, access)?;
            if access == Access::Write {
                // SAFETY: the TLB gives addresses of guest memory with as many bytes.
                written.push(unsafe { Written::note(host, operand.size) });
            }
        }
        let ordinal = item.insn.ordinal;
        let of_item = |op: &&Op| op.insn.ordinal == ordinal && !op.ends_block();
        let mut flow = Flow::Next;
        for op in ops.iter().filter(of_item) {
            flow = (op.body)(cpu, &op.insn).ok()?;
        }
        match flow {
            Flow::Next => {}
            Flow::Branch => {
                if cpu.recording {
                    for (at, size) in cpu.window.next_stores()? {
                        // SAFETY: the window is open: these are the places of the next record and
                        // of the index, in guest memory.
                        written.push(unsafe { Written::note(at, size) });
                    }
                    cpu.record_near(&item.insn);
                }
                return Some((u64::from(ordinal) + 1, true));
            }
            Flow::Jump => return None,
        }
    }
    Some((items.len() as u64, false))
}

/// The memory that an instruction with a template accesses. `None`: its operand has another form.
fn accesses(
    i: &Instruction,
    insn: &Insn,
    factory: &mut InstructionInfoFactory,
    cpu: &Cpu,
) -> Option<Vec<(Operand, Access)>> {
    let mut all = Vec::new();
    if accesses_memory(i, insn) {
        let rip = cpu.gpr[usize::from(reg::BLOCK)];
        let info = factory.info(i);
        let writes = (0..i.op_count())
            .filter(|n| i.op_kind(*n) == OpKind::Memory)
            .any(|n| !matches!(info.op_access(n), OpAccess::Read | OpAccess::CondRead));
        let access = if writes { Access::Write } else { Access::Read };
        all.push((Operand::of(i, insn, rip)?, access));
    }
    match i.mnemonic() {
        Mnemonic::Push | Mnemonic::Pushfq | Mnemonic::Call => {
            all.push((Operand::at(RSP, -8, 8), Access::Write))
        }
        Mnemonic::Pop | Mnemonic::Ret => all.push((Operand::at(RSP, 0, 8), Access::Read)),
        Mnemonic::Leave => all.push((Operand::at(RBP, 0, 8), Access::Read)),
        _ => {}
    }
    Some(all)
}

/// The linear address of an operand.
fn linear(cpu: &Cpu, operand: &Operand) -> u64 {
    let register = |n: u8| cpu.gpr[usize::from(n)];
    let base = operand.base.map_or(0, register);
    let index = operand
        .index
        .map_or(0, |(n, factor)| register(n).wrapping_mul(factor.into()));
    let segment = operand
        .segment
        .map_or(0, |segment| register(reg::SEGMENT + segment));
    let bits = operand.bit.map_or(0, |bit| match operand.size {
        8 => (register(bit) as i64 >> 6) * 8,
        _ => (i64::from(register(bit) as i32) >> 5) * 4,
    });
    base.wrapping_add(index)
        .wrapping_add(operand.disp as u64)
        .wrapping_add(segment)
        .wrapping_add(bits as u64)
}
