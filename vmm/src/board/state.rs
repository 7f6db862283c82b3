//! The state of all devices.

use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};
use vbts_devices::irqchip::IrqChipState;
use vbts_devices::pit::PitState;
use vbts_devices::rtc::RtcState;
use vbts_devices::uart::SerialState;
use vbts_devices::virtio::VirtioState;
use vbts_devices::{StateError, lock};

use super::Board;

/// State of all devices. The levels of interrupt lines and the lines into the processors follow
/// from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoardState {
    interrupt_controllers: IrqChipState,
    pit: PitState,
    rtc: RtcState,
    serial: SerialState,
    reset_control: u8,
    system_control_a: u8,
    reset_requested: bool,
    exit_status: Option<u8>,
    off: bool,
    /// Bytes that are left of the budget of the virtio devices, and whether it is renewed at the
    /// next exit.
    budget: u64,
    budget_used: bool,
    /// In the order of their addresses.
    virtio: Vec<VirtioState>,
}

impl Board {
    /// The state of all devices.
    ///
    /// # Errors
    /// A device holds something that a state cannot contain. The error names it.
    pub fn state(&self) -> Result<BoardState, StateError> {
        let virtio = self.virtio.iter().map(|device| lock(device).state());
        Ok(BoardState {
            virtio: virtio.collect::<Result<_, _>>()?,
            interrupt_controllers: lock(&self.chip).state(),
            pit: lock(&self.pit).state(),
            rtc: lock(&self.rtc).state(),
            serial: lock(&self.uart).state(),
            reset_control: lock(&self.reset_control).state(),
            system_control_a: lock(&self.system_control_a).state(),
            reset_requested: self.reset.requested(),
            exit_status: self.exit.get(),
            off: self.power.is_off(),
            budget: self.budget.left(),
            budget_used: self.budget_used.load(Ordering::Relaxed),
        })
    }

    /// Puts all devices into `state`, and the lines into the processors to the levels that follow.
    ///
    /// # Errors
    /// The state is that of a board with other devices, or one that a device never has. The board
    /// may then be in a mixed state.
    pub fn restore(&self, state: &BoardState) -> Result<(), StateError> {
        let (saved, present) = (state.virtio.len(), self.virtio.len());
        if saved != present {
            return Err(StateError::restore(
                "the virtio devices",
                format!("the machine had {saved} of them, and this one has {present}"),
            ));
        }
        for (device, state) in self.virtio.iter().zip(&state.virtio) {
            lock(device).restore(state)?;
        }
        lock(&self.chip).restore(&state.interrupt_controllers)?;
        lock(&self.pit).restore(&state.pit)?;
        lock(&self.rtc).restore(&state.rtc)?;
        lock(&self.uart).restore(&state.serial)?;
        lock(&self.reset_control).restore(state.reset_control)?;
        lock(&self.system_control_a).restore(state.system_control_a)?;
        self.reset.restore(state.reset_requested);
        self.exit.restore(state.exit_status);
        self.power.restore(state.off);
        self.budget.restore(state.budget);
        self.budget_used.store(state.budget_used, Ordering::Relaxed);
        self.update_signals();
        Ok(())
    }
}
