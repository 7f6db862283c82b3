//! Addresses at which a log does something.

use super::BranchLog;
use crate::processor::cpu::Cpu;
use crate::processor::pending_work::VmmRequests;
use crate::state::gpr;

/// An address at which the log does something before the instruction there, when a branch has led
/// to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Linear address of an instruction.
    pub address: u64,
    /// What happens there.
    pub action: ProbeAction,
}

/// What happens at a [`Probe`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeAction {
    /// The log begins, when probes with this action have been reached so often.
    Start {
        /// The number of times, from 1 on.
        nth: u64,
    },
    /// The processor returns [`Exit::Stop`](crate::Exit::Stop) before the instruction, when the log
    /// has begun and probes with this action have been reached so often since.
    Stop {
        /// The number of times, from 1 on.
        nth: u64,
    },
    /// The second argument is the address of the task that the kernel switches to (`__switch_to` of
    /// Linux). It is in RSI in 64-bit mode, else in EDX. The fields are at these offsets.
    SwitchTask {
        /// Thread ID (32 bits), followed by the process ID.
        ids: u64,
        /// Name (16 bytes).
        name: u64,
    },
}

impl ProbeAction {
    pub(super) fn is_start(self) -> bool {
        matches!(self, Self::Start { .. })
    }

    /// The position among the actions at one address. A log does not end where it begins, and one
    /// that begins notes what else happens.
    fn position(self) -> u8 {
        match self {
            Self::Stop { .. } => 0,
            Self::Start { .. } => 1,
            Self::SwitchTask { .. } => 2,
        }
    }
}

impl BranchLog {
    /// Whether there is a probe at `rip`.
    #[inline]
    fn has_probe(&self, rip: u64) -> bool {
        self.probes.iter().any(|p| p.address == rip)
    }

    /// What happens at `rip`, in this order.
    fn actions(&self, rip: u64) -> Vec<ProbeAction> {
        let here = self.probes.iter().filter(|p| p.address == rip);
        let mut actions: Vec<ProbeAction> = here.map(|p| p.action).collect();
        actions.sort_by_key(|action| action.position());
        actions
    }
}

impl Cpu {
    /// Does what the probes at RIP ask for, and stops at a breakpoint. Returns whether there are
    /// some.
    #[inline]
    pub(crate) fn pass_probe(&mut self) -> bool {
        let rip = self.linear_ip(self.rip);
        let has_breakpoint = self.stops.is_some() && self.pass_breakpoint(rip);
        let has_probe = self.log.as_ref().is_some_and(|log| log.has_probe(rip));
        if has_probe {
            self.act_at(rip);
        }
        has_probe || has_breakpoint
    }

    #[cold]
    fn act_at(&mut self, rip: u64) {
        let actions = self.log.as_ref().map(|log| log.actions(rip));
        for action in actions.unwrap_or_default() {
            self.act(action);
        }
    }

    fn act(&mut self, action: ProbeAction) {
        self.window.close();
        let (cr3, time) = (self.address_space(), self.now());
        match action {
            ProbeAction::Start { nth } => {
                if let Some(log) = &mut self.log {
                    log.start(nth, cr3, time);
                }
                self.update_mode();
            }
            ProbeAction::Stop { nth } => {
                if self.log.as_mut().is_some_and(|log| log.stops(nth)) {
                    self.pending_work.insert(VmmRequests::STOP);
                }
            }
            ProbeAction::SwitchTask { ids, name } => {
                // Linux passes the second argument so: to 64-bit code by the System V ABI, and
                // within a 32-bit kernel with regparm(3).
                let wide = self.in_64_bit_mode();
                let task = self.gpr[if wide { gpr::RSI } else { gpr::RDX }];
                let mask = if wide { u64::MAX } else { u32::MAX.into() };
                let field = |offset| task.wrapping_add(offset) & mask;
                let (mut numbers, mut text) = ([0; 8], [0; 16]);
                if self.read_quietly(field(ids), &mut numbers)
                    && self.read_quietly(field(name), &mut text)
                    && let Some(log) = &mut self.log
                {
                    let ids = u64::from_le_bytes(numbers);
                    log.enter_task(ids, text, time);
                }
            }
        }
    }
}
