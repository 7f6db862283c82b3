use super::super::testing::Driver;
use super::*;
use crate::sink::OutputBuffer;
use crate::{Shared, lock, shared};

struct Guest {
    driver: Driver<Console>,
    console: Shared<OutputBuffer>,
    agent: Shared<OutputBuffer>,
}

fn device(console: &Shared<OutputBuffer>, agent: &Shared<OutputBuffer>) -> Console {
    Console::new(vec![
        ConsolePort::console(Box::new(console.clone())),
        ConsolePort::named("vbts.agent", Box::new(agent.clone())),
    ])
}

impl Guest {
    fn new(limit: usize) -> Self {
        let console = shared(OutputBuffer::new(limit));
        let agent = shared(OutputBuffer::new(limit));
        let mut driver = Driver::new(device(&console, &agent));
        driver.start();
        Self {
            driver,
            console,
            agent,
        }
    }

    /// Saves the device and restores it to a new one.
    fn replace(&mut self) {
        self.driver.replace(device(&self.console, &self.agent));
    }

    fn control(&mut self, id: u32, event: u16, value: u16) {
        let mut m = id.to_le_bytes().to_vec();
        m.extend(event.to_le_bytes());
        m.extend(value.to_le_bytes());
        self.driver.submit(CONTROL_TX, &m, 0);
        self.driver.notify(CONTROL_TX);
        assert!(self.driver.used(CONTROL_TX).is_some());
    }

    /// Provides a buffer for one control message and returns it.
    fn message(&mut self) -> Option<(u32, u16, u16, Vec<u8>)> {
        let request = self.driver.submit(CONTROL_RX, &[], 64);
        self.driver.notify(CONTROL_RX);
        let (_, len) = self.driver.used(CONTROL_RX)?;
        let m = self.driver.bytes(request.reply, len as usize);
        Some((
            u32::from_le_bytes(m[..4].try_into().unwrap()),
            u16::from_le_bytes(m[4..6].try_into().unwrap()),
            u16::from_le_bytes(m[6..8].try_into().unwrap()),
            m[8..].to_vec(),
        ))
    }
}

#[test]
fn the_configuration_has_the_number_of_ports() {
    let mut g = Guest::new(1024);
    assert_eq!(g.driver.get(0x008), 3);
    assert_eq!(g.driver.get(0x104), 2);
    g.driver.set(0x030, 5);
    assert_eq!(g.driver.get(0x034), 32);
    g.driver.set(0x030, 6);
    assert_eq!(g.driver.get(0x034), 0);
}

#[test]
fn the_handshake_names_the_ports() {
    let mut g = Guest::new(1024);
    g.control(u32::MAX, event::DEVICE_READY, 1);
    assert_eq!(g.message(), Some((0, event::DEVICE_ADD, 1, vec![])));
    assert_eq!(g.message(), Some((1, event::DEVICE_ADD, 1, vec![])));
    g.control(0, event::PORT_READY, 1);
    g.control(1, event::PORT_READY, 1);
    assert_eq!(g.message(), Some((0, event::CONSOLE_PORT, 1, vec![])));
    assert_eq!(g.message(), Some((0, event::PORT_OPEN, 1, vec![])));
    assert_eq!(
        g.message(),
        Some((1, event::PORT_NAME, 1, b"vbts.agent".to_vec()))
    );
    assert_eq!(g.message(), Some((1, event::PORT_OPEN, 1, vec![])));
    assert_eq!(g.message(), None);
    g.control(7, event::PORT_READY, 1);
    g.control(1, 99, 1);
    assert_eq!(g.driver.used(CONTROL_RX), None, "nonsense is ignored");
}

#[test]
fn output_goes_to_its_sink() {
    let mut g = Guest::new(1024);
    g.driver.exchange(1, b"console", 0);
    g.driver.exchange(5, b"agent", 0);
    assert_eq!(lock(&g.console).take(), b"console");
    assert_eq!(lock(&g.agent).take(), b"agent");
}

#[test]
fn a_full_sink_delays_the_guest_and_loses_no_byte() {
    let mut g = Guest::new(5);
    g.driver.submit(5, b"abcdefgh", 0);
    g.driver.submit(5, b"ijk", 0);
    g.driver.notify(5);
    assert_eq!(g.driver.used(5), None, "not done with the first buffer");
    g.driver.device.poll();
    assert_eq!(lock(&g.agent).take(), b"abcde");
    g.driver.device.poll();
    assert!(g.driver.used(5).is_some());
    assert_eq!(lock(&g.agent).take(), b"fghij");
    assert_eq!(g.driver.used(5), None);
    g.driver.device.poll();
    assert_eq!(lock(&g.agent).take(), b"k");
    assert!(g.driver.used(5).is_some());
}

#[test]
fn a_reset_drops_the_unfinished_buffer() {
    let mut g = Guest::new(5);
    g.driver.submit(5, b"abcdefgh", 0);
    g.driver.notify(5);
    g.driver.start();
    lock(&g.agent).take();
    g.driver.device.poll();
    assert!(lock(&g.agent).take().is_empty());
}

#[test]
fn large_output_arrives_whole() {
    let mut g = Guest::new(1 << 20);
    let data: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
    g.driver.exchange(1, &data, 0);
    assert_eq!(lock(&g.console).take(), data);
}

#[test]
fn input_waits_until_the_guest_opens_the_port() {
    let mut g = Guest::new(1024);
    let request = g.driver.submit(4, &[], 8);
    assert_eq!(g.driver.device.push_input(1, b"hello, agent").0, 12);
    assert!(!g.driver.device.guest_has_open(1));
    assert_eq!(g.driver.used(4), None);
    g.control(1, event::PORT_OPEN, 1);
    assert!(g.driver.device.guest_has_open(1));
    assert_eq!(g.driver.used(4), Some((request.head, 8)));
    assert_eq!(g.driver.bytes(request.reply, 8), b"hello, a");
    assert_eq!(g.driver.device.input_pending(1), 4);
    let request = g.driver.submit(4, &[], 8);
    g.driver.notify(4);
    assert_eq!(g.driver.bytes(request.reply, 4), b"gent");
    g.control(1, event::PORT_OPEN, 0);
    g.driver.submit(4, &[], 8);
    g.driver.device.push_input(1, b"x");
    assert_eq!(g.driver.device.input_pending(1), 1);
}

#[test]
fn input_is_bounded() {
    let mut g = Guest::new(1024);
    let lots = vec![0; CONSOLE_INPUT_LIMIT];
    assert_eq!(
        g.driver.device.push_input(0, &lots[1..]).0,
        CONSOLE_INPUT_LIMIT - 1
    );
    assert_eq!(g.driver.device.push_input(0, &lots).0, 1);
    assert_eq!(g.driver.device.push_input(0, &lots).0, 0);
    assert_eq!(g.driver.device.push_input(9, &lots).0, 0, "no such port");
}

#[test]
fn control_messages_are_bounded() {
    let mut g = Guest::new(1024);
    for _ in 0..CONTROL_LIMIT / 2 {
        g.control(u32::MAX, event::DEVICE_READY, 1);
    }
    g.driver
        .submit(CONTROL_TX, &[0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 1, 0], 0);
    g.driver.notify(CONTROL_TX);
    assert_eq!(g.driver.used(CONTROL_TX), None, "waits for room");
    assert!(g.message().is_some());
    assert!(g.driver.used(CONTROL_TX).is_some());
    assert!(g.driver.device.device_mut().control.len() <= CONTROL_LIMIT + 1);
}

#[test]
fn short_control_messages_are_ignored() {
    let mut g = Guest::new(1024);
    g.driver.exchange(CONTROL_TX, &[0; 7], 0);
    assert_eq!(g.message(), None);
}

#[test]
fn a_restored_console_continues() {
    let mut g = Guest::new(5);
    g.control(1, event::PORT_READY, 1);
    g.control(1, event::PORT_OPEN, 1);
    g.driver.submit(5, b"abcdefgh", 0);
    g.driver.notify(5);
    g.driver.device.push_input(1, b"input");
    assert_eq!(lock(&g.agent).take(), b"abcde");

    g.replace();
    assert!(g.driver.device.is_running());
    assert_eq!(
        g.message(),
        Some((1, event::PORT_NAME, 1, b"vbts.agent".to_vec()))
    );
    // The message made the device continue with its output.
    assert_eq!(lock(&g.agent).take(), b"fgh");
    assert!(g.driver.used(5).is_some());
    let request = g.driver.submit(4, &[], 8);
    g.driver.notify(4);
    assert_eq!(g.driver.used(4), Some((request.head, 5)));
    assert_eq!(g.driver.bytes(request.reply, 5), b"input");
}

#[test]
fn impossible_states_are_refused() {
    let long = |len| Chain::of_lengths(vec![len; 2]);
    let message = ControlMessage {
        port: 0,
        event: 0,
        value: 0,
    };
    let states: [&dyn Fn(&mut ConsoleState); 4] = [
        &|s| s.ports.truncate(1),
        &|s| s.ports[0].input = vec![0; CONSOLE_INPUT_LIMIT + 1].into(),
        &|s| s.ports[1].unfinished = Some((long(u32::MAX), 0)),
        &|s| s.control = vec![message.clone(); CONTROL_LIMIT + 2].into(),
    ];
    for (n, change) in states.iter().enumerate() {
        let mut g = Guest::new(5);
        let device = g.driver.device.device_mut();
        let Ok(DeviceState::Console(mut state)) = device.state() else {
            panic!("no state")
        };
        change(&mut state);
        assert!(device.restore(&DeviceState::Console(state)).is_err(), "{n}");
    }
}
