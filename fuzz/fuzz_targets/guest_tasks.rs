//! Any bytes in guest memory, out of which a debugger reads the tasks of the guest's kernel and the
//! functions of a Python program.
#![no_main]

use std::cell::{Cell, RefCell};

use libfuzzer_sys::fuzz_target;
use vbts_cpu::state::gpr;
use vbts_cpu::{ArchState, Probe, ProbeAction};
use vbts_debugger::{Layout, Tasks, python_frames};
use vbts_fuzz::input::Input;
use vbts_fuzz::machine::machine;
use vbts_vmm::machine::Machine;

/// Guest memory with the input. The page tables of the boot map it at its physical address.
const START: u64 = 0x80_0000;
const LEN: usize = 0x8000;
/// The segment register GS by number.
const GS: usize = 5;
/// The data of a processor, whose address is one of the kernel.
const PER_CPU: u64 = 0xFFFF_8000_0000_0000;

/// A machine and its first state.
struct Guest {
    machine: Machine,
    states: Vec<ArchState>,
}

thread_local! {
    static GUEST: RefCell<Guest> = RefCell::new({
        let machine = machine(None);
        let states = machine.processors().map(|cpu| cpu.state()).collect();
        Guest { machine, states }
    });
}

/// An offset in a structure: a small one, mostly.
fn offset(input: &mut Input<'_>) -> u64 {
    match input.u16() {
        0xFFFF => input.u64(),
        small => u64::from(small & 0x0FF8),
    }
}

/// An address: one of the input, mostly.
fn address(input: &mut Input<'_>) -> u64 {
    match input.u16() {
        0xFFFF => input.u64(),
        small => START + u64::from(small) % LEN as u64,
    }
}

fn layout(input: &mut Input<'_>) -> Layout {
    Layout {
        init_task: address(input),
        current: address(input).wrapping_sub(PER_CPU),
        ids: offset(input),
        name: offset(input),
        stack: offset(input),
        tasks: offset(input),
        mm: offset(input),
        signal: offset(input),
        thread_node: offset(input),
        thread_sp: offset(input),
        thread_head: offset(input),
        pgd: offset(input),
        ptrace_stop: 0,
        system_call: None,
        zero_page: 0,
        task_probe: Probe {
            address: 0,
            action: ProbeAction::Stop { nth: 1 },
        },
    }
}

fn read_all(machine: &Machine, layout: &Layout, process: u32, runtime: u64) {
    let Some(tasks) = Tasks::new(machine, layout) else {
        return;
    };
    let _ = (tasks.executed(), tasks.current_call());
    let _ = tasks.user_mode_thread(process);
    let threads = tasks.threads(process).into_iter().take(64);
    let is_read = Cell::new(false);
    for task in threads.chain(tasks.current()) {
        let (id, space) = (tasks.id(task), tasks.space(task));
        let _ = (tasks.name(task), tasks.registers(task));
        if let Some(thread) = id {
            let _ = tasks.user_mode_processor(thread);
        }
        // Each list of frames takes as long as it may.
        if let Some(space) = space.filter(|_| !is_read.replace(true)) {
            let mut bytes = [0; 0x1800];
            assert!(tasks.read(space, runtime, &mut bytes) <= bytes.len());
            let read = |at: u64, bytes: &mut [u8]| {
                let len = bytes.len();
                tasks.read(space, at, bytes) == len
            };
            let _ = python_frames(process, runtime, &read);
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let layout = layout(&mut input);
    let (process, runtime) = (u32::from(input.u16()), address(&mut input));
    let stack = address(&mut input);
    let mut memory = input.rest().to_vec();
    memory.resize(LEN, 0);
    GUEST.with_borrow_mut(|Guest { machine, states }| {
        let written = machine.write_memory(START, &memory);
        assert!(written.is_ok(), "{written:?}");
        for (number, state) in states.iter().enumerate() {
            let mut state = state.clone();
            state.seg[GS].base = PER_CPU;
            state.gpr[gpr::RSP] = stack;
            machine.set_state(number, &state);
        }
        read_all(machine, &layout, process, runtime);
        // A Python program alone has the memory.
        let read = |at: u64, bytes: &mut [u8]| {
            let from = at
                .checked_sub(START)
                .and_then(|at| usize::try_from(at).ok());
            let found = from.and_then(|from| memory.get(from..)?.get(..bytes.len()));
            found.is_some_and(|found| {
                bytes.copy_from_slice(found);
                true
            })
        };
        let _ = python_frames(process, runtime, &read);
    });
});
