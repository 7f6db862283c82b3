//! A 16550A serial port (National Semiconductor PC16550D data sheet).
//!
//! Transmission takes no time: a byte written to THR has been sent before the next instruction.
//! Reception is paced by the guest: the host's bytes wait in a bounded queue behind the 16-byte
//! FIFO, and the host honours hardware flow control, so that nothing is lost to a driver that
//! clears the FIFO before it asserts RTS.

use std::collections::VecDeque;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::bus::ByteDevice;
use crate::irqchip::IrqLine;
use crate::sink::ByteSink;
use crate::state::{check, check_bits};
use crate::{Effects, StateError};

/// Bytes from the host that wait for room in the FIFO.
pub const UART_INPUT_LIMIT: usize = 64 * 1024;
const FIFO_DEPTH: usize = 16;

const DATA: u64 = 0;
const IER: u64 = 1;
const IIR_FCR: u64 = 2;
const LCR: u64 = 3;
const MCR: u64 = 4;
const LSR: u64 = 5;
const MSR: u64 = 6;
const SCR: u64 = 7;

const IER_RECEIVED: u8 = 0x01;
const IER_THR_EMPTY: u8 = 0x02;
const IER_LINE_STATUS: u8 = 0x04;
const IER_MODEM_STATUS: u8 = 0x08;

const IIR_NONE: u8 = 0x01;
const IIR_MODEM_STATUS: u8 = 0x00;
const IIR_THR_EMPTY: u8 = 0x02;
const IIR_RECEIVED: u8 = 0x04;
const IIR_LINE_STATUS: u8 = 0x06;
const IIR_TIMEOUT: u8 = 0x0C;
const IIR_FIFOS: u8 = 0xC0;

const FCR_ENABLE: u8 = 0x01;
const FCR_CLEAR_RECEIVER: u8 = 0x02;
/// FIFO enable, DMA mode and trigger level. The other bits are commands, or reserved.
const FCR_STORED: u8 = 0xC9;

const LCR_DLAB: u8 = 0x80;

const MCR_DTR: u8 = 0x01;
const MCR_RTS: u8 = 0x02;
const MCR_OUT1: u8 = 0x04;
const MCR_OUT2: u8 = 0x08;
const MCR_LOOP: u8 = 0x10;
/// Bits 7:5 are always zero.
const MCR_STORED: u8 = 0x1F;

const LSR_DATA_READY: u8 = 0x01;
const LSR_OVERRUN: u8 = 0x02;
/// THR and shift register empty: always, since sending takes no time.
const LSR_EMPTY: u8 = 0x60;

const MSR_CTS: u8 = 0x10;
const MSR_DSR: u8 = 0x20;
const MSR_RI: u8 = 0x40;
const MSR_DCD: u8 = 0x80;

const DEVICE: &str = "the serial port";

/// State of the serial port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SerialState {
    /// Bytes from the host that wait for room in the FIFO.
    input: VecDeque<u8>,
    fifo: VecDeque<u8>,
    divisor: [u8; 2],
    ier: u8,
    fcr: u8,
    lcr: u8,
    mcr: u8,
    scr: u8,
    overrun: bool,
    /// Delta bits of the modem status (CTS, DSR, trailing edge of RI, DCD).
    modem_delta: u8,
    thr_empty_pending: bool,
}

impl SerialState {
    /// The state after reset.
    fn new() -> Self {
        Self {
            input: VecDeque::new(),
            fifo: VecDeque::new(),
            divisor: [12, 0],
            ier: 0,
            fcr: 0,
            lcr: 0,
            mcr: 0,
            scr: 0,
            overrun: false,
            modem_delta: 0,
            thr_empty_pending: false,
        }
    }

    /// Refuses a state that the port never has.
    fn check(&self) -> Result<(), StateError> {
        let bits = |field, value, mask| check_bits(DEVICE, field, value, mask);
        bits("IER", self.ier, 0x0F)?;
        bits("FCR", self.fcr, FCR_STORED.into())?;
        bits("MCR", self.mcr, MCR_STORED.into())?;
        bits("modem status", self.modem_delta, 0x0F)?;
        let input = self.input.len();
        check(
            DEVICE,
            "input length",
            input as u64,
            input <= UART_INPUT_LIMIT,
        )?;
        let fifo = self.fifo.len();
        check(DEVICE, "FIFO length", fifo as u64, fifo <= self.depth())
    }

    fn depth(&self) -> usize {
        if self.fcr & FCR_ENABLE != 0 {
            FIFO_DEPTH
        } else {
            1
        }
    }

    fn looped_back(&self) -> bool {
        self.mcr & MCR_LOOP != 0
    }

    fn fill_fifo(&mut self) {
        // In loopback the RTS pin is inactive, and the receiver is connected to the transmitter
        // instead of the line.
        let clear_to_send = self.mcr & (MCR_RTS | MCR_LOOP) == MCR_RTS;
        while clear_to_send && self.fifo.len() < self.depth() {
            let Some(byte) = self.input.pop_front() else {
                break;
            };
            self.fifo.push_back(byte);
        }
    }

    /// The receive level that interrupts (FCR bits 7:6).
    fn trigger(&self) -> usize {
        match self.fcr >> 6 {
            _ if self.fcr & FCR_ENABLE == 0 => 1,
            0 => 1,
            1 => 4,
            2 => 8,
            _ => 14,
        }
    }

    /// The pending interrupt with the highest priority, as IIR shows it in bits 3:0.
    fn pending(&self) -> u8 {
        if self.ier & IER_LINE_STATUS != 0 && self.overrun {
            IIR_LINE_STATUS
        } else if self.ier & IER_RECEIVED != 0 && self.fifo.len() >= self.trigger() {
            IIR_RECEIVED
        } else if self.ier & IER_RECEIVED != 0 && !self.fifo.is_empty() {
            // The character time-out is due at once: the line is idle whenever the FIFO is not
            // full.
            IIR_TIMEOUT
        } else if self.ier & IER_THR_EMPTY != 0 && self.thr_empty_pending {
            IIR_THR_EMPTY
        } else if self.ier & IER_MODEM_STATUS != 0 && self.modem_delta != 0 {
            IIR_MODEM_STATUS
        } else {
            IIR_NONE
        }
    }

    /// The level of the interrupt line.
    fn interrupts(&self) -> bool {
        // OUT2 gates the interrupt on a PC; in loopback the pin is inactive.
        let gated = self.mcr & (MCR_OUT2 | MCR_LOOP) == MCR_OUT2;
        gated && self.pending() != IIR_NONE
    }

    /// Bits 7:4 of MSR: the modem's lines, which are always active, or the outputs in loopback.
    fn modem(&self) -> u8 {
        if !self.looped_back() {
            return MSR_CTS | MSR_DSR | MSR_DCD;
        }
        [
            (MCR_RTS, MSR_CTS),
            (MCR_DTR, MSR_DSR),
            (MCR_OUT1, MSR_RI),
            (MCR_OUT2, MSR_DCD),
        ]
        .into_iter()
        .filter(|(control, _)| self.mcr & control != 0)
        .fold(0, |status, (_, bit)| status | bit)
    }

    fn write_mcr(&mut self, value: u8) {
        let before = self.modem();
        self.mcr = value & MCR_STORED;
        let changed = before ^ self.modem();
        // TERI is set when RI becomes inactive, the other delta bits on any change.
        let delta = changed & !MSR_RI | changed & before & MSR_RI;
        self.modem_delta |= delta >> 4;
    }

    fn write_fcr(&mut self, value: u8) {
        let toggled = (value ^ self.fcr) & FCR_ENABLE != 0;
        if toggled || (value & FCR_ENABLE != 0 && value & FCR_CLEAR_RECEIVER != 0) {
            self.fifo.clear();
        }
        // The other bits can be programmed only while the FIFOs are enabled.
        self.fcr = if value & FCR_ENABLE != 0 {
            value & FCR_STORED
        } else {
            0
        };
        self.fill_fifo();
    }
}

/// The serial port at eight consecutive ports.
pub struct Uart {
    state: SerialState,
    irq: IrqLine,
    output: Box<dyn ByteSink>,
}

impl Uart {
    /// A port after reset, which writes what the guest sends to `output` at once.
    pub fn new(irq: IrqLine, output: Box<dyn ByteSink>) -> Self {
        Self {
            state: SerialState::new(),
            irq,
            output,
        }
    }

    /// The state of the port.
    pub fn state(&self) -> SerialState {
        self.state.clone()
    }

    /// Puts the port into `state`.
    ///
    /// # Errors
    /// The port never has such a state.
    pub fn restore(&mut self, state: &SerialState) -> Result<(), StateError> {
        state.check()?;
        self.state = state.clone();
        self.irq.restore(self.state.interrupts());
        Ok(())
    }

    /// Offers bytes from the host to the guest. Returns how many were taken, and what that caused.
    /// The caller can offer the rest again after the guest has read some.
    pub fn push_input(&mut self, bytes: &[u8]) -> (usize, Effects) {
        let taken = bytes
            .len()
            .min(UART_INPUT_LIMIT.saturating_sub(self.state.input.len()));
        self.state.input.extend(&bytes[..taken]);
        self.state.fill_fifo();
        (taken, self.update_irq())
    }

    /// True while the guest has the received-data interrupt enabled and has read all input.
    pub fn wants_input(&self) -> bool {
        self.state.ier & IER_RECEIVED != 0
            && self.state.input.is_empty()
            && self.state.fifo.is_empty()
    }

    fn update_irq(&mut self) -> Effects {
        self.irq.set(self.state.interrupts())
    }

    fn transmit(&mut self, byte: u8) -> Effects {
        self.state.thr_empty_pending = true;
        if self.state.looped_back() {
            if self.state.fifo.len() < self.state.depth() {
                self.state.fifo.push_back(byte);
            } else {
                self.state.overrun = true;
            }
            Effects::empty()
        } else {
            self.output.put(&[byte]);
            Effects::HOST
        }
    }
}

impl ByteDevice for Uart {
    fn read_byte(&mut self, _now: u64, offset: u64) -> (u8, Effects) {
        let mut effects = Effects::empty();
        let dlab = self.state.lcr & LCR_DLAB != 0;
        let value = match offset {
            DATA if dlab => self.state.divisor[0],
            IER if dlab => self.state.divisor[1],
            DATA => {
                // The host may have more input.
                effects = Effects::HOST;
                let byte = self.state.fifo.pop_front().unwrap_or(0);
                self.state.fill_fifo();
                byte
            }
            IER => self.state.ier,
            IIR_FCR => {
                let pending = self.state.pending();
                if pending == IIR_THR_EMPTY {
                    self.state.thr_empty_pending = false;
                }
                pending
                    | if self.state.fcr & FCR_ENABLE != 0 {
                        IIR_FIFOS
                    } else {
                        0
                    }
            }
            LCR => self.state.lcr,
            MCR => self.state.mcr,
            LSR => {
                let ready = if self.state.fifo.is_empty() {
                    0
                } else {
                    LSR_DATA_READY
                };
                let overrun = if std::mem::take(&mut self.state.overrun) {
                    LSR_OVERRUN
                } else {
                    0
                };
                LSR_EMPTY | ready | overrun
            }
            MSR => self.state.modem() | std::mem::take(&mut self.state.modem_delta),
            SCR => self.state.scr,
            _ => 0xFF,
        };
        (value, effects | self.update_irq())
    }

    fn write_byte(&mut self, _now: u64, offset: u64, value: u8) -> Effects {
        let mut effects = Effects::empty();
        let dlab = self.state.lcr & LCR_DLAB != 0;
        match offset {
            DATA if dlab => self.state.divisor[0] = value,
            IER if dlab => self.state.divisor[1] = value,
            DATA => effects = self.transmit(value),
            IER => {
                // Enabling the interrupt while THR is empty raises it.
                if value & !self.state.ier & IER_THR_EMPTY != 0 {
                    self.state.thr_empty_pending = true;
                }
                self.state.ier = value & 0x0F;
                // The guest may have begun to wait for input.
                effects = Effects::HOST;
            }
            IIR_FCR => {
                self.state.write_fcr(value);
                effects = Effects::HOST;
            }
            LCR => self.state.lcr = value,
            MCR => {
                self.state.write_mcr(value);
                self.state.fill_fifo();
                effects = Effects::HOST;
            }
            SCR => self.state.scr = value,
            _ => {}
        }
        effects | self.update_irq()
    }
}

impl fmt::Debug for Uart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uart")
            .field("state", &self.state)
            .field("irq", &self.irq)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
