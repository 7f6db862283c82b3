//! The 8259A interrupt controllers: a master and a slave on its IR2, with the ELCR of the 82371.

mod controller;

use serde::{Deserialize, Serialize};

use crate::StateError;
use controller::{Controller, ControllerState};

const DEVICE: &str = "the 8259A pair";
/// The inputs whose edge sense can be programmed: IRQ 0, 1, 2, 8 and 13 are always edge-triggered.
const MASTER_ELCR: u8 = 0xF8;
const SLAVE_ELCR: u8 = 0xDE;

/// Which port of the pair an access is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PicPort {
    /// 0x20
    MasterCommand,
    /// 0x21
    MasterData,
    /// 0xA0
    SlaveCommand,
    /// 0xA1
    SlaveData,
    /// 0x4D0
    MasterElcr,
    /// 0x4D1
    SlaveElcr,
}

/// State of the pair. The levels of its inputs follow from the states of the devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PicState {
    master: ControllerState,
    slave: ControllerState,
}

/// The pair: inputs 0 to 15, of which 2 is the cascade.
#[derive(Debug)]
pub struct DualPic {
    master: Controller,
    slave: Controller,
}

impl DualPic {
    /// After power-up: not initialized, everything masked.
    pub fn new() -> Self {
        Self {
            master: Controller::new(MASTER_ELCR),
            slave: Controller::new(SLAVE_ELCR),
        }
    }

    /// The state of both controllers.
    pub fn state(&self) -> PicState {
        PicState {
            master: self.master.state.clone(),
            slave: self.slave.state.clone(),
        }
    }

    /// Puts both controllers into `state`. Their inputs keep the levels that they have.
    ///
    /// # Errors
    /// The pair never has such a state.
    pub fn restore(&mut self, state: &PicState) -> Result<(), StateError> {
        state.master.check(MASTER_ELCR)?;
        state.slave.check(SLAVE_ELCR)?;
        self.master.state = state.master.clone();
        self.slave.state = state.slave.clone();
        self.cascade();
        Ok(())
    }

    /// Sets the level of an input without detecting an edge.
    pub(crate) fn restore_line(&mut self, input: u8, level: bool) {
        match input {
            2 => {}
            0..8 => self.master.restore_line(input, level),
            8..16 => self.slave.restore_line(input - 8, level),
            _ => {}
        }
    }

    /// The slave's INT output follows its requests. It is the master's IR2, regardless of the edge
    /// sense.
    fn cascade(&mut self) {
        if self.slave.request().is_some() {
            self.master.state.irr |= 1 << 2;
        } else {
            self.master.state.irr &= !(1 << 2);
        }
    }

    /// Drives an input.
    pub fn set_line(&mut self, input: u8, level: bool) {
        match input {
            2 => {}
            0..8 => self.master.set_line(input, level),
            8..16 => self.slave.set_line(input - 8, level),
            _ => {}
        }
        self.cascade();
    }

    /// The level of the master's INT output, the INTR line.
    pub fn intr(&self) -> bool {
        self.master.request().is_some()
    }

    /// The interrupt-acknowledge cycle. If the request has gone away, the result is the spurious
    /// vector: that of IR7 of the controller that responds.
    pub fn acknowledge(&mut self) -> u8 {
        let vector = match self.master.request() {
            Some(2) => {
                self.master.acknowledge(2);
                match self.slave.request() {
                    Some(input) => {
                        self.slave.acknowledge(input);
                        self.slave.vector(input)
                    }
                    None => self.slave.vector(7),
                }
            }
            Some(input) => {
                self.master.acknowledge(input);
                self.master.vector(input)
            }
            None => self.master.vector(7),
        };
        self.cascade();
        vector
    }

    /// Reads a port; polling acknowledges an interrupt.
    pub fn read(&mut self, port: PicPort) -> u8 {
        let value = match port {
            PicPort::MasterCommand => self.master.read_command(),
            PicPort::SlaveCommand => self.slave.read_command(),
            PicPort::MasterData => self.master.state.imr,
            PicPort::SlaveData => self.slave.state.imr,
            PicPort::MasterElcr => self.master.state.elcr,
            PicPort::SlaveElcr => self.slave.state.elcr,
        };
        self.cascade();
        value
    }

    /// Writes a port.
    pub fn write(&mut self, port: PicPort, value: u8) {
        match port {
            PicPort::MasterCommand => self.master.write_command(value),
            PicPort::SlaveCommand => self.slave.write_command(value),
            PicPort::MasterData => self.master.write_data(value),
            PicPort::SlaveData => self.slave.write_data(value),
            PicPort::MasterElcr => self.master.state.elcr = value & self.master.elcr_writable,
            PicPort::SlaveElcr => self.slave.state.elcr = value & self.slave.elcr_writable,
        }
        self.cascade();
    }
}

impl Default for DualPic {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
