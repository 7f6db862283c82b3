//! The console device with several ports (Virtual I/O Device 1.2, section 5.3).
//!
//! A port is a console (Linux: `hvc0`) or a named byte stream (Linux: `/dev/virtio-ports/NAME`).
//! Output goes to the port's sink. Bytes that the sink does not take stay in the guest's buffers.
//! Input waits in a bounded queue until the guest has opened the port.

use std::collections::VecDeque;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::mmio::MmioTransport;
use super::queue::{Chain, QueueError, VirtQueue};
use super::{DeviceState, VirtioDevice};
use crate::sink::ByteSink;
use crate::state::check;
use crate::{Effects, GuestRam, StateError};

/// Bytes from the host that wait for a guest to read them, for each port.
pub const CONSOLE_INPUT_LIMIT: usize = 1 << 20;

const DEVICE_ID: u32 = 3;
const F_MULTIPORT: u64 = 1 << 1;
const QUEUE_SIZE: u16 = 32;
const CONTROL_RX: usize = 2;
const CONTROL_TX: usize = 3;
/// Most control messages that may wait for the driver to provide buffers. When there are so many,
/// the driver's requests wait.
const CONTROL_LIMIT: usize = 64;
/// Output is copied out of the guest in pieces of this size.
const PIECE: usize = 16 * 1024;

/// Control events (section 5.3.6.2).
mod event {
    pub(super) const DEVICE_READY: u16 = 0;
    pub(super) const DEVICE_ADD: u16 = 1;
    pub(super) const PORT_READY: u16 = 3;
    pub(super) const CONSOLE_PORT: u16 = 4;
    pub(super) const PORT_OPEN: u16 = 6;
    pub(super) const PORT_NAME: u16 = 7;
}

const DEVICE: &str = "the virtio console";

/// A message of the device to the driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ControlMessage {
    port: u32,
    event: u16,
    value: u16,
}

/// State of one port.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct PortState {
    input: VecDeque<u8>,
    guest_open: bool,
    /// The output chain of which the sink has taken a part only, and the length of that part.
    unfinished: Option<(Chain, usize)>,
}

/// State of the device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsoleState {
    ports: Vec<PortState>,
    /// Messages that wait for the driver to provide buffers.
    control: VecDeque<ControlMessage>,
}

impl ConsoleState {
    /// Refuses a state that a device with so many ports never has.
    fn check(&self, ports: usize) -> Result<(), StateError> {
        let count = self.ports.len();
        check(DEVICE, "the number of ports", count as u64, count == ports)?;
        // A request of the driver adds at most two messages, or one for each port.
        let waiting = self.control.len();
        let bounded = waiting < CONTROL_LIMIT + ports.max(2);
        check(DEVICE, "the number of messages", waiting as u64, bounded)?;
        for port in &self.ports {
            let input = port.input.len();
            let bounded = input <= CONSOLE_INPUT_LIMIT;
            check(DEVICE, "input length", input as u64, bounded)?;
            if let Some((chain, _)) = &port.unfinished {
                chain.check()?;
            }
        }
        Ok(())
    }
}

/// One port and the host's end of it.
pub struct ConsolePort {
    /// `None` for a console.
    name: Option<String>,
    output: Box<dyn ByteSink>,
    state: PortState,
}

impl ConsolePort {
    /// A console for the guest's kernel and its logins.
    pub fn console(output: Box<dyn ByteSink>) -> Self {
        Self::new(None, output)
    }

    /// A byte stream that programs in the guest open by name.
    pub fn named(name: &str, output: Box<dyn ByteSink>) -> Self {
        Self::new(Some(name.to_owned()), output)
    }

    fn new(name: Option<String>, output: Box<dyn ByteSink>) -> Self {
        Self {
            name,
            output,
            state: PortState::default(),
        }
    }

    fn send(&mut self, queue: &mut VirtQueue, ram: &GuestRam) -> Result<(), QueueError> {
        let mut piece = [0; PIECE];
        loop {
            let (chain, mut done) = match self.state.unfinished.take() {
                Some(unfinished) => unfinished,
                None => match queue.pop(ram)? {
                    Some(chain) => (chain, 0),
                    None => return Ok(()),
                },
            };
            loop {
                let n = chain.read(ram, done, &mut piece)?;
                if n == 0 {
                    break;
                }
                let taken = self.output.put(&piece[..n]).min(n);
                done += taken;
                if taken < n {
                    self.state.unfinished = Some((chain, done));
                    return Ok(());
                }
            }
            queue.complete(ram, &chain, 0)?;
        }
    }

    fn receive(&mut self, queue: &mut VirtQueue, ram: &GuestRam) -> Result<(), QueueError> {
        while self.state.guest_open && !self.state.input.is_empty() {
            let Some(chain) = queue.pop(ram)? else { break };
            let n = chain.writable_len().min(self.state.input.len());
            let bytes: Vec<u8> = self.state.input.drain(..n).collect();
            let written = chain.write(ram, 0, &bytes)?;
            queue.complete(ram, &chain, written)?;
        }
        Ok(())
    }

    fn reset(&mut self) {
        self.state.guest_open = false;
        self.state.unfinished = None;
    }
}

impl fmt::Debug for ConsolePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsolePort")
            .field("name", &self.name)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

/// The device.
#[derive(Debug)]
pub struct Console {
    ports: Vec<ConsolePort>,
    queue_sizes: Vec<u16>,
    config: Vec<u8>,
    control: VecDeque<ControlMessage>,
}

impl Console {
    /// A device with these ports, numbered from 0.
    pub fn new(ports: Vec<ConsolePort>) -> Self {
        // cols, rows, max_nr_ports, emerg_wr.
        let mut config = vec![0; 4];
        config.extend((ports.len() as u32).to_le_bytes());
        config.extend([0; 4]);
        Self {
            // A pair for each port, and the control pair after the first.
            queue_sizes: vec![QUEUE_SIZE; (ports.len() + 1) * 2],
            ports,
            config,
            control: VecDeque::new(),
        }
    }

    /// Index of the port's receive queue; its transmit queue is the next one.
    fn receive_queue(port: usize) -> usize {
        if port == 0 { 0 } else { port * 2 + 2 }
    }

    fn push_control(&mut self, port: u32, event: u16, value: u16) {
        self.control
            .push_back(ControlMessage { port, event, value });
    }

    /// The bytes of `message` (section 5.3.6.2).
    fn encode(&self, message: &ControlMessage) -> Vec<u8> {
        let mut bytes = message.port.to_le_bytes().to_vec();
        bytes.extend(message.event.to_le_bytes());
        bytes.extend(message.value.to_le_bytes());
        if message.event == event::PORT_NAME {
            let port = self.ports.get(message.port as usize);
            let name = port.and_then(|port| port.name.as_deref());
            bytes.extend(name.unwrap_or_default().bytes());
        }
        bytes
    }

    fn handle_control(&mut self, id: u32, event: u16, value: u16) {
        if event == event::DEVICE_READY {
            if value == 1 {
                (0..self.ports.len())
                    .for_each(|n| self.push_control(n as u32, event::DEVICE_ADD, 1));
            }
            return;
        }
        let Some(port) = self.ports.get_mut(id as usize) else {
            return;
        };
        match event {
            event::PORT_READY if value == 1 => {
                let kind = match port.name {
                    None => event::CONSOLE_PORT,
                    Some(_) => event::PORT_NAME,
                };
                self.push_control(id, kind, 1);
                // The host's end is always open.
                self.push_control(id, event::PORT_OPEN, 1);
            }
            event::PORT_OPEN => port.state.guest_open = value != 0,
            _ => {}
        }
    }

    fn serve_control(
        &mut self,
        queues: &mut [VirtQueue],
        ram: &GuestRam,
    ) -> Result<(), QueueError> {
        let Some([rx, tx]) = queues.get_mut(CONTROL_RX..=CONTROL_TX) else {
            return Ok(());
        };
        loop {
            while let Some(message) = self.control.front() {
                let Some(chain) = rx.pop(ram)? else { break };
                let written = chain.write(ram, 0, &self.encode(message))?;
                rx.complete(ram, &chain, written)?;
                self.control.pop_front();
            }
            if self.control.len() >= CONTROL_LIMIT {
                return Ok(());
            }
            let Some(chain) = tx.pop(ram)? else {
                return Ok(());
            };
            let mut m = [0; 8];
            if chain.read(ram, 0, &mut m)? == m.len() {
                let id = u32::from_le_bytes([m[0], m[1], m[2], m[3]]);
                let (event, value) = (
                    u16::from_le_bytes([m[4], m[5]]),
                    u16::from_le_bytes([m[6], m[7]]),
                );
                self.handle_control(id, event, value);
            }
            tx.complete(ram, &chain, 0)?;
        }
    }
}

impl VirtioDevice for Console {
    fn device_id(&self) -> u32 {
        DEVICE_ID
    }

    fn features(&self) -> u64 {
        F_MULTIPORT
    }

    fn queue_sizes(&self) -> &[u16] {
        &self.queue_sizes
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn process(&mut self, queues: &mut [VirtQueue], ram: &GuestRam) -> Result<(), QueueError> {
        self.serve_control(queues, ram)?;
        for (n, port) in self.ports.iter_mut().enumerate() {
            let at = Self::receive_queue(n);
            let Some([rx, tx]) = queues.get_mut(at..at + 2) else {
                continue;
            };
            port.send(tx, ram)?;
            port.receive(rx, ram)?;
        }
        Ok(())
    }

    fn state(&self) -> Result<DeviceState, StateError> {
        let ports = self.ports.iter().map(|port| port.state.clone());
        Ok(DeviceState::Console(ConsoleState {
            ports: ports.collect(),
            control: self.control.clone(),
        }))
    }

    fn restore(&mut self, state: &DeviceState) -> Result<(), StateError> {
        let DeviceState::Console(state) = state else {
            return Err(state.mismatch(DEVICE));
        };
        state.check(self.ports.len())?;
        for (port, state) in self.ports.iter_mut().zip(&state.ports) {
            port.state = state.clone();
        }
        self.control = state.control.clone();
        Ok(())
    }

    fn reset(&mut self) {
        self.control.clear();
        self.ports.iter_mut().for_each(ConsolePort::reset);
    }
}

impl MmioTransport<Console> {
    /// Offers bytes to the guest on `port`. Returns how many were taken, and what that caused. The
    /// rest can be offered again later.
    pub fn push_input(&mut self, port: usize, bytes: &[u8]) -> (usize, Effects) {
        let Some(p) = self.device_mut().ports.get_mut(port) else {
            return (0, Effects::empty());
        };
        let taken = bytes
            .len()
            .min(CONSOLE_INPUT_LIMIT.saturating_sub(p.state.input.len()));
        p.state.input.extend(&bytes[..taken]);
        (taken, self.poll())
    }

    /// Number of bytes pushed on `port` that the guest has not taken yet.
    pub fn input_pending(&mut self, port: usize) -> usize {
        self.device_mut()
            .ports
            .get(port)
            .map_or(0, |p| p.state.input.len())
    }

    /// True while a program or the kernel in the guest has `port` open.
    pub fn guest_has_open(&mut self, port: usize) -> bool {
        self.device_mut()
            .ports
            .get(port)
            .is_some_and(|p| p.state.guest_open)
    }
}

#[cfg(test)]
mod tests;
