//! The call of the function in which a thread is, by the calls and returns that it has executed.

use std::collections::HashMap;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic};
use vbts_devices::lock;
use vbts_gdb::ThreadId;
use vbts_host::exit::Failure;

use crate::branches::Found;
use crate::debugger::Debugger;
use crate::logged::Selection;

/// Branches between two snapshots at most among which a call is looked for.
const MAX_BRANCHES: usize = 1 << 24;
/// Bytes of an instruction (SDM Vol. 2 2.3.11).
const MAX_INSTRUCTION: usize = 15;

impl Debugger {
    /// The branches among which the call of the function is in which `thread` is now. In the
    /// kernel's view, they are those of the task that the processor executes, unless it is idle.
    fn selection_of_calls(&self, thread: ThreadId) -> Selection {
        let selection = self.selection_of(thread);
        let Selection::Processor(processor) = selection else {
            return selection;
        };
        let executed = self.replay.tasks().map(|tasks| tasks.executed());
        let task = executed.and_then(|executed| *executed.get(processor)?);
        match task.filter(|task| task.thread != 0) {
            Some(task) => Selection::Task(task.thread),
            None => selection,
        }
    }

    /// Finds the call of the function in which `thread` is now, by the calls and returns that it
    /// has executed: the contents of its stack do not matter. The replay is anywhere afterwards.
    pub(crate) fn find_caller(&mut self, thread: ThreadId) -> Result<Option<Found>, Failure> {
        let now = self.replay.now();
        let selection = self.selection_of_calls(thread);
        let mut transfers = HashMap::new();
        let mut returns = 0_u64;
        let found = self.search_intervals(now, |debugger, from, search| {
            let log = debugger.begin_log(selection, from, MAX_BRANCHES)?;
            debugger.log_until(selection, search.searched)?;
            let logged = lock(&log).clone();
            for (n, branch) in logged.last.iter().rev().enumerate() {
                let at = branch.from;
                let transfer = transfers
                    .entry(at)
                    .or_insert_with(|| debugger.transfer_at(thread, at));
                match transfer {
                    Transfer::Return => returns += 1,
                    Transfer::Call if returns > 0 => returns -= 1,
                    Transfer::Call => {
                        let nth = logged.count - n as u64;
                        let call = debugger.find_branch(selection, from, search.searched, nth)?;
                        return Ok(Some(call));
                    }
                    Transfer::Jump | Transfer::None => {}
                }
            }
            Ok(None)
        })?;
        Ok(found.flatten())
    }

    /// What the branch instruction at `address` does with the stack. The kernel frees the code of
    /// its start, which its file still has, and patches code, so that its memory comes first.
    pub(crate) fn transfer_at(&self, thread: ThreadId, address: u64) -> Transfer {
        let mut code = [0; MAX_INSTRUCTION];
        let read = self.read_as(thread, address, &mut code);
        let bits = if self.is_32_bit { 32 } else { 64 };
        let transfer = Transfer::of(bits, code.get(..read).unwrap_or_default());
        match transfer {
            Transfer::None => Transfer::of(bits, self.kernel_code.at(address)),
            transfer => transfer,
        }
    }
}

/// Effect of a branch on the stack of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transfer {
    Call,
    Return,
    Jump,
    /// The instruction is no branch: an event has come there, or other code was there.
    None,
}

impl Transfer {
    /// The transfer of the branch instruction `code` of a program of `bits` bits.
    fn of(bits: u32, code: &[u8]) -> Self {
        let instruction = Decoder::new(bits, code, DecoderOptions::NONE).decode();
        match (instruction.mnemonic(), instruction.flow_control()) {
            (Mnemonic::Call, _) => Self::Call,
            (Mnemonic::Ret | Mnemonic::Retf, _) => Self::Return,
            (Mnemonic::INVALID | Mnemonic::Int3, _) | (_, FlowControl::Next) => Self::None,
            _ => Self::Jump,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_returns_are_told_from_jumps() {
        let of = |code| Transfer::of(64, code);
        assert_eq!(of(&[0xE8, 1, 2, 3, 4]), Transfer::Call);
        // call *%rax, call *%r10, bnd call, call *8(%rip)
        assert_eq!(of(&[0xFF, 0xD0]), Transfer::Call);
        assert_eq!(of(&[0x41, 0xFF, 0xD2]), Transfer::Call);
        assert_eq!(of(&[0xF2, 0xE8, 0, 0, 0, 0]), Transfer::Call);
        assert_eq!(of(&[0xFF, 0x15, 8, 0, 0, 0]), Transfer::Call);
        assert_eq!(of(&[0xF3, 0xC3]), Transfer::Return);
        assert_eq!(of(&[0xC2, 8, 0]), Transfer::Return);
        // jmp *%rax, jmp, jne, syscall
        for other in [
            &[0xFF, 0xE0][..],
            &[0xEB, 2],
            &[0x0F, 0x85, 0, 0, 0, 0],
            &[0x0F, 5],
        ] {
            assert_eq!(of(other), Transfer::Jump);
        }
        // nop, int3 of freed code
        for none in [&[0x90][..], &[0xCC, 0xCC], &[]] {
            assert_eq!(of(none), Transfer::None);
        }
    }
}
