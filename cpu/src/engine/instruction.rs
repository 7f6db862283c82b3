//! One instruction with everything that the architecture demands around it: code breakpoints,
//! single-stepping, shadows, and faults.

use crate::backend::block::Extent;
use crate::engine::SoftCpu;
use crate::engine::lookup::Found;
use crate::engine::run::{BlockFault, run_one};
use crate::processor::fault::Fault;
use crate::processor::pending_work::ArchEvents;
use crate::state::{dr6, rflags};

/// The shadows of STI, MOV SS and POP SS, which end with the next instruction.
const SHADOWS: ArchEvents = ArchEvents::SHADOW.union(ArchEvents::HOLD_TRAP);

/// Pages to which an instruction writes before the run loop checks for pending work: 512 KBytes in
/// `exec/string.rs`, which need not begin at a page, and fewer in all others.
const MAX_CODE_PAGES: u32 = 129;

impl SoftCpu {
    /// Runs one instruction, or raises the breakpoint fault at it.
    pub(super) fn run_instruction(&mut self) {
        let before = self.cpu.pending_work.events();
        self.cpu.branched = false;
        if before.contains(ArchEvents::BREAKPOINT)
            && !before.intersects(ArchEvents::RESUME | ArchEvents::HOLD_TRAP)
            && self.cpu.at_breakpoint()
        {
            self.cpu.raise_breakpoint_fault();
            return;
        }
        let result = match self.look_up(Extent::One) {
            Ok(Found::Cached(id) | Found::Probed(id)) => match self.cache.get(id) {
                Some(block) => run_one(&mut self.cpu, block),
                None => return,
            },
            Ok(Found::Single(block)) => run_one(&mut self.cpu, &block),
            Ok(Found::Stop) => return,
            Err(fault) => Some(fault),
        };
        if let Some(fault) = result {
            // The shadow ends with the instruction even if that faults.
            self.cpu.pending_work.remove(SHADOWS & before);
            self.fault(fault);
            return;
        }
        self.after_instruction(before);
    }

    /// Completes an instruction that was run by itself. `before`: the events that were pending when
    /// it began.
    fn after_instruction(&mut self, before: ArchEvents) {
        let cpu = &mut self.cpu;
        // A second STI or MOV SS in the shadow of a first does not prolong it (SDM Vol. 2B, STI).
        cpu.pending_work.remove(SHADOWS & before);
        if before.contains(ArchEvents::RESUME) {
            cpu.eflags &= !rflags::RF;
            cpu.pending_work.remove(ArchEvents::RESUME);
        }
        // The value of TF at the start of the instruction counts (SDM Vol. 3B 17.3.1.4).
        if before.contains(ArchEvents::TRAP) && !cpu.trap_suppressed() {
            cpu.pending_db |= dr6::BS;
            cpu.pending_work.insert(ArchEvents::DEBUG);
        }
        cpu.pending_work.remove(ArchEvents::NO_STEP);
    }

    /// Handles the fault of an instruction that did not complete.
    #[cold]
    pub(super) fn fault(&mut self, mut fault: BlockFault) {
        let mut pages = 0;
        loop {
            match self.cpu.fault {
                // After the code is invalidated the write is an ordinary one.
                Fault::CodeWrite { gpa } if pages <= MAX_CODE_PAGES => {
                    self.observe_code_changes();
                    self.invalidate_page(gpa & !0xFFF);
                    pages += 1;
                }
                // Another processor executes code in the page again and again. The instruction goes
                // on after a check for pending work.
                Fault::CodeWrite { .. } => return,
                // Alone, the instruction has its access.
                Fault::Device => {}
                _ => break,
            }
            // The instruction itself may be in that page: it runs from a block of its own, which
            // is not cached.
            let before = self.cpu.pending_work.events();
            let result = match self.decode_single() {
                Ok(block) => run_one(&mut self.cpu, &block),
                Err(fault) => Some(fault),
            };
            match result {
                Some(next) => fault = next,
                None => {
                    self.after_instruction(before);
                    return;
                }
            }
        }
        self.cpu.note_fault();
        self.cpu.raise_fault(fault.stack);
    }
}
