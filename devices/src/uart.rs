//! A 16550A serial port (National Semiconductor PC16550D data sheet).
//!
//! Transmission takes no time: a byte written to THR has been sent before the next instruction.
//! Reception is paced by the guest: the host's bytes wait in a bounded queue behind the 16-byte
//! FIFO, and the host honours hardware flow control, so that nothing is lost to a driver that
//! clears the FIFO before it asserts RTS.

use std::collections::VecDeque;
use std::fmt;

use crate::bus::ByteDevice;
use crate::irqchip::IrqLine;
use crate::sink::ByteSink;

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

const LCR_DLAB: u8 = 0x80;

const MCR_DTR: u8 = 0x01;
const MCR_RTS: u8 = 0x02;
const MCR_OUT1: u8 = 0x04;
const MCR_OUT2: u8 = 0x08;
const MCR_LOOP: u8 = 0x10;

const LSR_DATA_READY: u8 = 0x01;
const LSR_OVERRUN: u8 = 0x02;
/// THR and shift register empty: always, since sending takes no time.
const LSR_EMPTY: u8 = 0x60;

const MSR_CTS: u8 = 0x10;
const MSR_DSR: u8 = 0x20;
const MSR_RI: u8 = 0x40;
const MSR_DCD: u8 = 0x80;

/// The serial port at eight consecutive ports.
pub struct Uart {
    irq: IrqLine,
    output: Box<dyn ByteSink>,
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
    modem: u8,
    thr_empty_pending: bool,
}

impl Uart {
    /// A port after reset. What the guest sends goes to `output` at once.
    pub fn new(irq: IrqLine, output: Box<dyn ByteSink>) -> Self {
        Self {
            irq,
            output,
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
            modem: MSR_CTS | MSR_DSR | MSR_DCD,
            thr_empty_pending: false,
        }
    }

    /// Offers bytes from the host to the guest; returns how many were taken. The rest can be
    /// offered again after the guest has read some.
    pub fn push_input(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes
            .len()
            .min(UART_INPUT_LIMIT.saturating_sub(self.input.len()));
        self.input.extend(&bytes[..taken]);
        self.fill_fifo();
        self.update_irq();
        taken
    }

    /// True while the guest listens (its received-data interrupt is on) and has read all input so
    /// far.
    pub fn wants_input(&self) -> bool {
        self.ier & IER_RECEIVED != 0 && self.input.is_empty() && self.fifo.is_empty()
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
        // In loopback the RTS pin is inactive, and the receiver listens to the transmitter instead
        // of the line.
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

    fn update_irq(&mut self) {
        // OUT2 gates the interrupt on a PC; in loopback the pin is inactive.
        let gated = self.mcr & (MCR_OUT2 | MCR_LOOP) == MCR_OUT2;
        self.irq.set(gated && self.pending() != IIR_NONE);
    }

    fn update_modem(&mut self) {
        let modem = if self.looped_back() {
            [
                (MCR_RTS, MSR_CTS),
                (MCR_DTR, MSR_DSR),
                (MCR_OUT1, MSR_RI),
                (MCR_OUT2, MSR_DCD),
            ]
            .into_iter()
            .filter(|(control, _)| self.mcr & control != 0)
            .fold(0, |status, (_, bit)| status | bit)
        } else {
            MSR_CTS | MSR_DSR | MSR_DCD
        };
        let changed = self.modem ^ modem;
        // RI counts when it goes away, the others when they change.
        let delta = changed & !MSR_RI | changed & self.modem & MSR_RI;
        self.modem_delta |= delta >> 4;
        self.modem = modem;
    }

    fn transmit(&mut self, byte: u8) {
        if self.looped_back() {
            if self.fifo.len() < self.depth() {
                self.fifo.push_back(byte);
            } else {
                self.overrun = true;
            }
        } else {
            self.output.put(&[byte]);
        }
        self.thr_empty_pending = true;
    }

    fn write_fcr(&mut self, value: u8) {
        let toggled = (value ^ self.fcr) & FCR_ENABLE != 0;
        if toggled || (value & FCR_ENABLE != 0 && value & FCR_CLEAR_RECEIVER != 0) {
            self.fifo.clear();
        }
        // The other bits can be programmed only while the FIFOs are enabled.
        self.fcr = if value & FCR_ENABLE != 0 {
            value & 0xC9
        } else {
            0
        };
        self.fill_fifo();
    }
}

impl ByteDevice for Uart {
    fn read_byte(&mut self, _now: u64, offset: u64) -> u8 {
        let dlab = self.lcr & LCR_DLAB != 0;
        let value = match offset {
            DATA if dlab => self.divisor[0],
            IER if dlab => self.divisor[1],
            DATA => {
                let byte = self.fifo.pop_front().unwrap_or(0);
                self.fill_fifo();
                byte
            }
            IER => self.ier,
            IIR_FCR => {
                let pending = self.pending();
                if pending == IIR_THR_EMPTY {
                    self.thr_empty_pending = false;
                }
                pending
                    | if self.fcr & FCR_ENABLE != 0 {
                        IIR_FIFOS
                    } else {
                        0
                    }
            }
            LCR => self.lcr,
            MCR => self.mcr,
            LSR => {
                let ready = if self.fifo.is_empty() {
                    0
                } else {
                    LSR_DATA_READY
                };
                let overrun = if std::mem::take(&mut self.overrun) {
                    LSR_OVERRUN
                } else {
                    0
                };
                LSR_EMPTY | ready | overrun
            }
            MSR => self.modem | std::mem::take(&mut self.modem_delta),
            SCR => self.scr,
            _ => 0xFF,
        };
        self.update_irq();
        value
    }

    fn write_byte(&mut self, _now: u64, offset: u64, value: u8) {
        let dlab = self.lcr & LCR_DLAB != 0;
        match offset {
            DATA if dlab => self.divisor[0] = value,
            IER if dlab => self.divisor[1] = value,
            DATA => self.transmit(value),
            IER => {
                // Enabling the interrupt while THR is empty raises it.
                if value & !self.ier & IER_THR_EMPTY != 0 {
                    self.thr_empty_pending = true;
                }
                self.ier = value & 0x0F;
            }
            IIR_FCR => self.write_fcr(value),
            LCR => self.lcr = value,
            MCR => {
                self.mcr = value & 0x1F;
                self.update_modem();
                self.fill_fifo();
            }
            SCR => self.scr = value,
            _ => {}
        }
        self.update_irq();
    }
}

impl fmt::Debug for Uart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uart")
            .field("irq", &self.irq)
            .field("ier", &self.ier)
            .field("fcr", &self.fcr)
            .field("lcr", &self.lcr)
            .field("mcr", &self.mcr)
            .field("fifo", &self.fifo.len())
            .field("input", &self.input.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::irqchip::IrqChip;
    use crate::irqchip::PicPorts;
    use crate::sink::OutputBuffer;
    use crate::{Shared, lock, shared};

    struct Port {
        uart: Uart,
        chip: Shared<IrqChip>,
        output: Shared<OutputBuffer>,
    }

    impl Port {
        fn new() -> Self {
            let chip = shared(IrqChip::new(1, false));
            PicPorts::master(chip.clone()).write_byte(0, 1, 0xEF);
            let output = shared(OutputBuffer::new(1024));
            let uart = Uart::new(IrqLine::new(chip.clone(), 4), Box::new(output.clone()));
            Self { uart, chip, output }
        }
        fn get(&mut self, offset: u64) -> u8 {
            self.uart.read_byte(0, offset)
        }
        fn set(&mut self, offset: u64, value: u8) {
            self.uart.write_byte(0, offset, value);
        }
        fn irq(&self) -> bool {
            self.uart.pending() != IIR_NONE && lock(&self.chip).intr_pending(0)
        }
    }

    #[test]
    fn registers_after_reset() {
        let mut p = Port::new();
        let values = [0, 0, 1, 0, 0, 0x60, 0xB0, 0];
        assert_eq!((0..8).map(|i| p.get(i)).collect::<Vec<_>>(), values);
    }

    #[test]
    fn linux_autoconfig_finds_a_16550a() {
        let mut p = Port::new();
        // Is there anything at all: IER keeps its low bits only.
        p.set(IER, 0);
        assert_eq!(p.get(IER) & 0xF, 0);
        p.set(IER, 0xFF);
        assert_eq!(p.get(IER), 0xF);
        p.set(IER, 0);
        // Loopback: RTS and OUT2 come back as CTS and DCD.
        p.set(MCR, MCR_LOOP | MCR_RTS | MCR_OUT2);
        assert_eq!(p.get(MSR) & 0xF0, 0x90);
        p.set(MCR, 0);
        // FIFO: no EFR behind LCR = 0xBF, no 64-byte FIFO.
        p.set(LCR, 0xBF);
        p.set(IIR_FCR, 0);
        p.set(LCR, 0);
        p.set(IIR_FCR, FCR_ENABLE);
        assert_eq!(p.get(IIR_FCR) >> 6, 3);
        p.set(LCR, 0x80);
        assert_ne!(p.get(2), 0, "IIR, not EFR");
        p.set(IIR_FCR, 0x21);
        assert_eq!(p.get(IIR_FCR) >> 5, 6);
        p.set(LCR, 0xE0);
        assert_eq!(p.get(2) & MCR_LOOP, p.get(MCR) & MCR_LOOP, "no EXCR1");
        p.set(LCR, 3);
        p.set(SCR, 0xA5);
        assert_eq!((p.get(SCR), p.get(LCR)), (0xA5, 3));
    }

    #[test]
    fn the_divisor_is_behind_dlab() {
        let mut p = Port::new();
        p.set(LCR, LCR_DLAB);
        p.set(DATA, 1);
        p.set(IER, 2);
        assert_eq!((p.get(DATA), p.get(IER)), (1, 2));
        p.set(LCR, 0);
        assert_eq!((p.get(DATA), p.get(IER)), (0, 0));
        assert!(lock(&p.output).take().is_empty());
    }

    #[test]
    fn output_reaches_the_sink_and_thre_interrupts() {
        let mut p = Port::new();
        p.set(MCR, MCR_OUT2);
        p.set(IER, IER_THR_EMPTY);
        assert!(p.irq());
        assert_eq!(p.get(IIR_FCR), IIR_THR_EMPTY);
        assert_eq!(p.get(IIR_FCR), IIR_NONE, "reading IIR clears it");
        p.set(DATA, b'x');
        assert_eq!(p.get(IIR_FCR), IIR_THR_EMPTY);
        assert_eq!(lock(&p.output).take(), b"x");
        // Linux checks that switching the interrupt off and on raises it again.
        p.set(IER, 0);
        assert_eq!(p.get(IIR_FCR), IIR_NONE);
        p.set(IER, IER_THR_EMPTY);
        assert_eq!(p.get(IIR_FCR), IIR_THR_EMPTY);
    }

    #[test]
    fn out2_gates_the_interrupt() {
        let mut p = Port::new();
        p.set(IER, IER_THR_EMPTY);
        assert!(!p.irq());
        p.set(MCR, MCR_OUT2);
        assert!(p.irq());
    }

    #[test]
    fn input_waits_behind_the_fifo() {
        let mut p = Port::new();
        p.set(IIR_FCR, 0x81);
        p.set(IER, IER_RECEIVED);
        p.set(MCR, MCR_OUT2);
        assert_eq!(p.uart.push_input(&[7; 20]), 20);
        p.set(IIR_FCR, 0x83);
        assert_eq!(p.get(LSR), LSR_EMPTY, "RTS is not asserted");
        p.set(MCR, MCR_OUT2 | MCR_RTS);
        assert!(p.irq());
        assert_eq!(p.get(IIR_FCR) & 0xF, IIR_RECEIVED);
        for left in (0..20).rev() {
            assert_eq!(p.get(LSR) & LSR_DATA_READY, 1);
            assert_eq!(p.get(DATA), 7);
            let expected = match left {
                8.. => IIR_RECEIVED,
                1.. => IIR_TIMEOUT,
                _ => IIR_NONE,
            };
            assert_eq!(p.get(IIR_FCR) & 0xF, expected, "{left} left");
        }
        assert_eq!(p.get(LSR), LSR_EMPTY);
        assert_eq!(
            p.uart.push_input(&vec![0; UART_INPUT_LIMIT]),
            UART_INPUT_LIMIT
        );
        assert_eq!(p.uart.push_input(&[1; 100]), FIFO_DEPTH, "back pressure");
        assert_eq!(p.uart.push_input(&[1; 100]), 0);
    }

    #[test]
    fn loopback_returns_what_is_sent() {
        let mut p = Port::new();
        p.set(MCR, MCR_LOOP);
        p.uart.push_input(b"host");
        p.set(DATA, 0x5A);
        assert_eq!(p.get(DATA), 0x5A);
        p.set(DATA, 1);
        p.set(DATA, 2);
        assert_eq!(p.get(LSR), LSR_EMPTY | LSR_DATA_READY | LSR_OVERRUN);
        assert_eq!(p.get(LSR), LSR_EMPTY | LSR_DATA_READY);
        assert!(lock(&p.output).take().is_empty());
        p.get(DATA);
        p.set(MCR, MCR_RTS);
        assert_eq!(p.get(DATA), b'h', "the line is back");
    }

    #[test]
    fn modem_changes_interrupt() {
        let mut p = Port::new();
        p.set(IER, IER_MODEM_STATUS);
        p.set(MCR, MCR_LOOP | MCR_DTR | MCR_OUT1);
        assert_eq!(p.get(IIR_FCR), IIR_MODEM_STATUS);
        assert_eq!(p.get(MSR), MSR_DSR | MSR_RI | 0x09, "CTS and DCD fell");
        p.set(MCR, MCR_LOOP | MCR_DTR);
        assert_eq!(p.get(MSR), MSR_DSR | 0x04, "trailing edge of RI");
        assert_eq!(p.get(IIR_FCR), IIR_NONE);
    }
}
