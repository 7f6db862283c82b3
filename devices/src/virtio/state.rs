//! The state of a virtio device and its transport.

use serde::{Deserialize, Serialize};

use super::console::ConsoleState;
use super::entropy::EntropyState;
use super::fs9p::Fs9pState;
use super::net::NetState;
use crate::StateError;

/// State of a virtio device, with that of its transport and of its queues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VirtioState {
    /// Device type and configuration space. They do not change: a state can be restored only to a
    /// device with the same ones.
    pub(super) device_id: u32,
    pub(super) config: Vec<u8>,
    pub(super) registers: TransportRegisters,
    pub(super) queues: Vec<QueueState>,
    pub(super) device: DeviceState,
}

/// The registers of the transport.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TransportRegisters {
    pub status: u32,
    pub interrupt_status: u32,
    pub device_features_sel: u32,
    pub driver_features_sel: u32,
    pub driver_features: u64,
    pub queue_sel: u32,
}

/// State of a queue: its place in guest memory, and how far the device has got.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct QueueState {
    pub size: u16,
    pub ready: bool,
    /// Guest-physical addresses of the three parts.
    pub descriptor_table: u64,
    pub available_ring: u64,
    pub used_ring: u64,
    /// Positions in the rings.
    pub next_available: u16,
    pub next_used: u16,
    /// Chains that the device may take before its next budget.
    pub chains: u16,
    /// The device goes on with its next budget.
    pub throttled: bool,
}

/// State of a device apart from its transport.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceState {
    /// The device has no state of its own.
    Stateless,
    /// A console.
    Console(ConsoleState),
    /// A network device.
    Net(NetState),
    /// An entropy device.
    Entropy(EntropyState),
    /// A 9P transport.
    Fs9p(Fs9pState),
}

impl DeviceState {
    /// The error of a device that this state is not for.
    pub(super) fn mismatch(&self, device: &str) -> StateError {
        let other = match self {
            Self::Stateless => "a device without state",
            Self::Console(_) => "a console",
            Self::Net(_) => "a network device",
            Self::Entropy(_) => "an entropy device",
            Self::Fs9p(_) => "a 9P transport",
        };
        StateError::restore(device, format!("it is that of {other}"))
    }
}
