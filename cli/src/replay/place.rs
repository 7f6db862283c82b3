//! Where a replay that differs from the recorded run is: the processor, the task of the guest's
//! kernel, the kernel's function, and the program's instruction.

use std::fmt::Write as _;

use vbts_capture::machine::kernel::{Kernel, TaskFields};
use vbts_cpu::{ArchState, Cpu};
use vbts_vmm::machine::Machine;

/// Size in bytes of a stack of a task in a 64-bit kernel, to which it is aligned (`THREAD_SIZE`).
const STACK_SIZE: u64 = 16 << 10;
/// Offsets of CS and RIP from the top of that stack, where an entry from a program saves them
/// (`struct pt_regs`).
const SAVED_CS: u64 = 32;
const SAVED_RIP: u64 = 40;

/// Describes where the processor of `machine` is that has its turn. `kernel` is the contents of the
/// guest's kernel.
pub(super) fn describe(machine: &Machine, kernel: &[u8]) -> String {
    let Some((number, cpu)) = machine.current_processor() else {
        return "there is no processor".into();
    };
    let kernel = Kernel::parse(kernel);
    let state = cpu.state();
    let mut text = format!("processor {number}");
    let task = kernel.as_ref().and_then(|kernel| {
        let (fields, offset) = (kernel.task_fields()?, kernel.current_task()?);
        task(cpu, &state, fields, offset)
    });
    if let Some((id, name)) = task {
        let _ = write!(text, ", task {id} ({name})");
    }
    let _ = write!(text, ", at {:#x}", state.rip);
    if cpl(&state) != 0 {
        return text + " of the program";
    }
    if let Some((function, offset)) = kernel.as_ref().and_then(|kernel| kernel.at(state.rip)) {
        let _ = write!(text, " ({function}+{offset:#x})");
    }
    if let Some(rip) = program_counter(cpu, &state) {
        let _ = write!(text, ", entered from {rip:#x} of the program");
    }
    text
}

fn cpl(state: &ArchState) -> u16 {
    let [_, cs, ..] = &state.seg;
    cs.selector & 3
}

/// The ID and the name of the current task. The kernel has its address `offset` bytes from the
/// start of its data of this processor.
fn task(cpu: &Cpu, state: &ArchState, fields: TaskFields, offset: u64) -> Option<(u32, String)> {
    let [.., gs] = &state.seg;
    let base = match cpl(state) {
        0 => gs.base,
        _ => state.msr.kernel_gs_base,
    };
    let task = word(cpu, base.wrapping_add(offset))?;
    let (mut id, mut name) = ([0; 4], [0; 16]);
    let is_read = cpu.read_quietly(task.wrapping_add(fields.ids), &mut id)
        && cpu.read_quietly(task.wrapping_add(fields.name), &mut name);
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = name.escape_ascii().to_string();
    is_read.then(|| (u32::from_le_bytes(id), name))
}

/// Where the program has entered the kernel, if the kernel works on the stack of a task.
fn program_counter(cpu: &Cpu, state: &ArchState) -> Option<u64> {
    let [_, _, _, _, rsp, ..] = state.gpr;
    let top = (rsp & !(STACK_SIZE - 1)).checked_add(STACK_SIZE)?;
    let cs = word(cpu, top - SAVED_CS)?;
    // A kernel thread has nothing there, and a stack of interrupts something else.
    let is_program = cs < 1 << 16 && cs & 3 == 3;
    word(cpu, top - SAVED_RIP).filter(|_| is_program)
}

fn word(cpu: &Cpu, address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    let is_read = cpu.read_quietly(address, &mut bytes);
    is_read.then(|| u64::from_le_bytes(bytes))
}
