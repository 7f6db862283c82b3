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
        self.uart.read_byte(0, offset).0
    }
    fn set(&mut self, offset: u64, value: u8) {
        self.uart.write_byte(0, offset, value);
    }
    fn irq(&self) -> bool {
        self.uart.state.pending() != IIR_NONE && lock(&self.chip).intr_pending(0)
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
    // Detection of a port: IER keeps its low bits only.
    p.set(IER, 0);
    assert_eq!(p.get(IER) & 0xF, 0);
    p.set(IER, 0xFF);
    assert_eq!(p.get(IER), 0xF);
    p.set(IER, 0);
    // Loopback: RTS and OUT2 come back as CTS and DCD.
    p.set(MCR, MCR_LOOP | MCR_RTS | MCR_OUT2);
    assert_eq!(p.get(MSR) & 0xF0, 0x90);
    p.set(MCR, 0);
    // FIFO: LCR = 0xBF does not select an EFR, and there is no 64-byte FIFO.
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
    assert_eq!(p.uart.push_input(&[7; 20]).0, 20);
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
        p.uart.push_input(&vec![0; UART_INPUT_LIMIT]).0,
        UART_INPUT_LIMIT
    );
    assert_eq!(p.uart.push_input(&[1; 100]).0, FIFO_DEPTH, "back pressure");
    assert_eq!(p.uart.push_input(&[1; 100]).0, 0);
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

#[test]
fn a_restored_port_continues() {
    let mut p = Port::new();
    p.set(IER, IER_RECEIVED);
    p.set(MCR, MCR_RTS | MCR_OUT2);
    p.uart.push_input(b"abc");
    let mut restored = Port::new();
    restored.uart.restore(&p.uart.state()).unwrap();
    assert_eq!(restored.uart.state(), p.uart.state());
    assert_eq!([(); 3].map(|()| restored.get(DATA)), *b"abc");
    // The line was restored to its high level, so that only now it changes.
    assert!(
        restored
            .uart
            .push_input(b"d")
            .1
            .contains(Effects::INTERRUPTS)
    );
}

#[test]
fn impossible_states_are_refused() {
    let states: [fn(&mut SerialState); 6] = [
        |s| s.ier = 0x10,
        |s| s.fcr = 2,
        |s| s.mcr = 0x20,
        |s| s.modem_delta = 0x10,
        |s| s.input = vec![0; UART_INPUT_LIMIT + 1].into(),
        |s| s.fifo = [1, 2].into(),
    ];
    for change in states {
        let mut p = Port::new();
        let mut state = p.uart.state();
        change(&mut state);
        let error = p.uart.restore(&state).unwrap_err().to_string();
        assert!(error.contains("the serial port"), "{error}");
        assert_eq!(p.uart.state(), SerialState::new());
    }
}
