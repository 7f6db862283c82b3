//! The virtio-mmio transport, version 2 (Virtual I/O Device 1.2, section 4.2).

use std::fmt;

use virtio_queue::QueueT;
use vm_memory::GuestAddress;

use super::queue::{QueueError, VirtQueue};
use super::state::TransportRegisters;
use super::{Budget, VirtioDevice, VirtioState};
use crate::bus::{BusDevice, read_le32};
use crate::irqchip::IrqLine;
use crate::state::{check, check_bits};
use crate::{Effects, GuestRam, StateError};

/// Length of the register window in bytes.
pub const VIRTIO_MMIO_LEN: u64 = 0x1000;

const MAGIC: u32 = u32::from_le_bytes(*b"virt");
const VERSION: u32 = 2;
const VENDOR: u32 = u32::from_le_bytes(*b"VBTS");

/// Register offsets (table 4.1).
mod reg {
    pub(super) const MAGIC_VALUE: u64 = 0x000;
    pub(super) const VERSION: u64 = 0x004;
    pub(super) const DEVICE_ID: u64 = 0x008;
    pub(super) const VENDOR_ID: u64 = 0x00C;
    pub(super) const DEVICE_FEATURES: u64 = 0x010;
    pub(super) const DEVICE_FEATURES_SEL: u64 = 0x014;
    pub(super) const DRIVER_FEATURES: u64 = 0x020;
    pub(super) const DRIVER_FEATURES_SEL: u64 = 0x024;
    pub(super) const QUEUE_SEL: u64 = 0x030;
    pub(super) const QUEUE_NUM_MAX: u64 = 0x034;
    pub(super) const QUEUE_NUM: u64 = 0x038;
    pub(super) const QUEUE_READY: u64 = 0x044;
    pub(super) const QUEUE_NOTIFY: u64 = 0x050;
    pub(super) const INTERRUPT_STATUS: u64 = 0x060;
    pub(super) const INTERRUPT_ACK: u64 = 0x064;
    pub(super) const STATUS: u64 = 0x070;
    pub(super) const QUEUE_DESC_LOW: u64 = 0x080;
    pub(super) const QUEUE_DESC_HIGH: u64 = 0x084;
    pub(super) const QUEUE_DRIVER_LOW: u64 = 0x090;
    pub(super) const QUEUE_DRIVER_HIGH: u64 = 0x094;
    pub(super) const QUEUE_DEVICE_LOW: u64 = 0x0A0;
    pub(super) const QUEUE_DEVICE_HIGH: u64 = 0x0A4;
    pub(super) const SHM_LEN_LOW: u64 = 0x0B0;
    pub(super) const SHM_BASE_HIGH: u64 = 0x0BC;
    pub(super) const CONFIG_GENERATION: u64 = 0x0FC;
    pub(super) const CONFIG: u64 = 0x100;
}

const STATUS_DRIVER_OK: u32 = 4;
const STATUS_FEATURES_OK: u32 = 8;
const STATUS_NEEDS_RESET: u32 = 64;

const INTERRUPT_USED_BUFFER: u32 = 1;
const INTERRUPT_CONFIG: u32 = 2;

const F_INDIRECT_DESC: u64 = 1 << 28;
const F_VERSION_1: u64 = 1 << 32;

/// A virtio device of any kind, for saving and restoring it.
pub trait VirtioTransport: Send + fmt::Debug {
    /// The state of the device, of its transport and of its queues.
    ///
    /// # Errors
    /// The device holds something that a state cannot contain.
    fn state(&self) -> Result<VirtioState, StateError>;

    /// Grants a new budget of chains, and lets the device go on at virtual time `now` if the last
    /// one, or that of bytes, was used up. The machine calls it each time a processor's run loop
    /// has returned, after it has renewed the [`Budget`] that its devices share.
    fn grant_budget(&mut self, now: u64) -> Effects;

    /// Puts the device, its transport and its queues into `state`.
    ///
    /// # Errors
    /// The state is that of another device, or one that this device never has. The device may then
    /// be in a mixed state.
    fn restore(&mut self, state: &VirtioState) -> Result<(), StateError>;
}

/// A device at its register window.
pub struct MmioTransport<D> {
    device: D,
    ram: GuestRam,
    irq: IrqLine,
    queues: Vec<VirtQueue>,
    registers: TransportRegisters,
}

impl<D: VirtioDevice> MmioTransport<D> {
    /// Puts `device` behind the transport; it reads and writes `ram`, within `budget`, and
    /// interrupts through `irq`.
    ///
    /// # Errors
    /// A queue size of the device is not a power of two.
    pub fn new(
        device: D,
        ram: GuestRam,
        irq: IrqLine,
        budget: &Budget,
    ) -> Result<Self, QueueError> {
        let queues = device.queue_sizes().iter();
        let queues = queues.map(|n| VirtQueue::new(*n, budget.clone()));
        let queues = queues.collect::<Result<_, _>>()?;
        Ok(Self {
            device,
            ram,
            irq,
            queues,
            registers: TransportRegisters::default(),
        })
    }

    /// The device. After a change that the guest should observe, call [`poll`](Self::poll).
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Lets the device continue when host input has arrived or an output sink has room again. The
    /// machine calls it between two runs of a processor, so that it also grants a budget of chains.
    pub fn poll(&mut self) -> Effects {
        self.grant_budgets();
        self.serve()
    }

    /// Grants a budget of chains to each queue. Returns whether the device has to go on with one of
    /// them.
    fn grant_budgets(&mut self) -> bool {
        let queues = self.queues.iter_mut();
        queues.fold(false, |throttled, queue| queue.grant_budget() | throttled)
    }

    /// Serves the queues within their budgets.
    fn serve(&mut self) -> Effects {
        if !self.is_running() {
            return Effects::empty();
        }
        let mut effects = Effects::empty();
        if self.device.process(&mut self.queues, &self.ram).is_err() {
            effects |= self.needs_reset();
        }
        for queue in &mut self.queues {
            if queue.take_interrupt() {
                self.registers.interrupt_status |= INTERRUPT_USED_BUFFER;
            }
            if queue.take_served() {
                effects |= Effects::DMA | Effects::HOST | Effects::BUDGET;
            }
            if queue.is_throttled() {
                effects |= Effects::HOST | Effects::BUDGET;
            }
        }
        effects | self.update_irq()
    }

    /// True while a driver uses the device.
    pub fn is_running(&self) -> bool {
        self.registers.status & (STATUS_DRIVER_OK | STATUS_NEEDS_RESET) == STATUS_DRIVER_OK
    }

    /// True if the driver has made an error after which only a reset of the device helps.
    pub fn is_broken(&self) -> bool {
        self.registers.status & STATUS_NEEDS_RESET != 0
    }

    fn needs_reset(&mut self) -> Effects {
        self.registers.status |= STATUS_NEEDS_RESET;
        if self.registers.status & STATUS_DRIVER_OK != 0 {
            self.registers.interrupt_status |= INTERRUPT_CONFIG;
        }
        self.update_irq()
    }

    fn update_irq(&mut self) -> Effects {
        self.irq.set(self.registers.interrupt_status != 0)
    }

    /// Whether the driver may use these features.
    fn accepts(&self, features: u64) -> bool {
        features & !self.features() == 0 && features & F_VERSION_1 != 0
    }

    fn features(&self) -> u64 {
        self.device.features() | F_VERSION_1 | F_INDIRECT_DESC
    }

    fn reset(&mut self) -> Effects {
        self.device.reset();
        self.queues.iter_mut().for_each(VirtQueue::reset);
        self.registers = TransportRegisters::default();
        self.update_irq() | Effects::HOST
    }

    fn queue(&self) -> Option<&VirtQueue> {
        self.queues.get(self.registers.queue_sel as usize)
    }

    fn read_register(&self, offset: u64) -> u32 {
        match offset {
            reg::MAGIC_VALUE => MAGIC,
            reg::VERSION => VERSION,
            reg::DEVICE_ID => self.device.device_id(),
            reg::VENDOR_ID => VENDOR,
            reg::DEVICE_FEATURES => half(self.features(), self.registers.device_features_sel),
            reg::QUEUE_NUM_MAX => self.queue().map_or(0, |q| u32::from(q.inner().max_size())),
            reg::QUEUE_READY => self.queue().map_or(0, |q| u32::from(q.inner().ready())),
            reg::INTERRUPT_STATUS => self.registers.interrupt_status,
            reg::STATUS => self.registers.status,
            // No shared memory region has this ID.
            reg::SHM_LEN_LOW..=reg::SHM_BASE_HIGH => u32::MAX,
            // The configuration space never changes.
            reg::CONFIG_GENERATION => 0,
            _ => 0,
        }
    }

    fn write_register(&mut self, offset: u64, value: u32) -> Effects {
        match offset {
            reg::DEVICE_FEATURES_SEL => self.registers.device_features_sel = value,
            reg::DRIVER_FEATURES_SEL => self.registers.driver_features_sel = value,
            reg::DRIVER_FEATURES if self.registers.status & STATUS_FEATURES_OK == 0 => {
                let old = self.registers.driver_features;
                self.registers.driver_features = match self.registers.driver_features_sel {
                    0 => old & !0xFFFF_FFFF | u64::from(value),
                    1 => old & 0xFFFF_FFFF | u64::from(value) << 32,
                    _ => old,
                };
            }
            reg::QUEUE_SEL => self.registers.queue_sel = value,
            reg::QUEUE_NOTIFY => return self.serve(),
            reg::INTERRUPT_ACK => {
                self.registers.interrupt_status &= !value;
                return self.update_irq();
            }
            reg::STATUS => return self.write_status(value),
            reg::QUEUE_NUM..=reg::QUEUE_DEVICE_HIGH => return self.write_queue(offset, value),
            _ => {}
        }
        Effects::empty()
    }

    /// Writes a register of the selected queue. All except QueueReady are fixed while it is ready.
    fn write_queue(&mut self, offset: u64, value: u32) -> Effects {
        let ram = &self.ram;
        let Some(queue) = self.queues.get_mut(self.registers.queue_sel as usize) else {
            return Effects::empty();
        };
        let queue = queue.inner_mut();
        if offset == reg::QUEUE_READY {
            queue.set_ready(value & 1 != 0);
            if value & 1 != 0 && !queue.is_valid(ram) {
                queue.set_ready(false);
                return self.needs_reset();
            }
            return Effects::empty();
        }
        if queue.ready() {
            return Effects::empty();
        }
        let (desc, driver, device) = (queue.desc_table(), queue.avail_ring(), queue.used_ring());
        let set = |old, part| GuestAddress(replace_half(old, part, value));
        // `try_set_*` refuses an unaligned address. Such an address breaks the device, as one
        // outside RAM does.
        let accepted = match offset {
            reg::QUEUE_NUM => u16::try_from(value).is_ok_and(|n| queue.try_set_size(n).is_ok()),
            reg::QUEUE_DESC_LOW => queue.try_set_desc_table_address(set(desc, 0)).is_ok(),
            reg::QUEUE_DESC_HIGH => queue.try_set_desc_table_address(set(desc, 1)).is_ok(),
            reg::QUEUE_DRIVER_LOW => queue.try_set_avail_ring_address(set(driver, 0)).is_ok(),
            reg::QUEUE_DRIVER_HIGH => queue.try_set_avail_ring_address(set(driver, 1)).is_ok(),
            reg::QUEUE_DEVICE_LOW => queue.try_set_used_ring_address(set(device, 0)).is_ok(),
            reg::QUEUE_DEVICE_HIGH => queue.try_set_used_ring_address(set(device, 1)).is_ok(),
            _ => true,
        };
        if accepted {
            Effects::empty()
        } else {
            self.needs_reset()
        }
    }

    fn write_status(&mut self, value: u32) -> Effects {
        if value == 0 {
            return self.reset();
        }
        let mut status =
            value & 0xFF & !STATUS_NEEDS_RESET | self.registers.status & STATUS_NEEDS_RESET;
        let negotiated = self.accepts(self.registers.driver_features);
        if self.registers.status & STATUS_FEATURES_OK == 0 && !negotiated {
            status &= !STATUS_FEATURES_OK;
        }
        if status & STATUS_FEATURES_OK == 0 {
            status &= !STATUS_DRIVER_OK;
        }
        let started = status & !self.registers.status & STATUS_DRIVER_OK != 0;
        self.registers.status = status;
        if started {
            self.device.start(self.registers.driver_features);
            // Input or control messages may be waiting for the driver.
            return self.serve() | Effects::HOST;
        }
        Effects::empty()
    }
}

fn half(value: u64, part: u32) -> u32 {
    match part {
        0 => value as u32,
        1 => (value >> 32) as u32,
        _ => 0,
    }
}

fn replace_half(old: u64, part: u32, value: u32) -> u64 {
    let shift = part * 32;
    old & !(0xFFFF_FFFF << shift) | u64::from(value) << shift
}

impl<D: VirtioDevice> VirtioTransport for MmioTransport<D> {
    fn state(&self) -> Result<VirtioState, StateError> {
        Ok(VirtioState {
            device_id: self.device.device_id(),
            config: self.device.config().to_vec(),
            registers: self.registers.clone(),
            queues: self.queues.iter().map(VirtQueue::state).collect(),
            device: self.device.state()?,
        })
    }

    fn grant_budget(&mut self, now: u64) -> Effects {
        if !self.grant_budgets() {
            return Effects::empty();
        }
        self.device.advance_to(now);
        self.serve()
    }

    fn restore(&mut self, state: &VirtioState) -> Result<(), StateError> {
        let id = self.device.device_id();
        let name = format!("the virtio device of type {id}");
        let refuse = |reason: &str| Err(StateError::restore(&name, reason));
        check(&name, "the type", state.device_id, state.device_id == id)?;
        if state.config != self.device.config() {
            return refuse("the device was configured differently");
        }
        if state.queues.len() != self.queues.len() {
            return refuse("the device had another number of queues");
        }
        let registers = &state.registers;
        let has = |bits| registers.status & bits != 0;
        check_bits(&name, "status", registers.status, 0xFF)?;
        let interrupts = INTERRUPT_USED_BUFFER | INTERRUPT_CONFIG;
        check_bits(
            &name,
            "InterruptStatus",
            registers.interrupt_status,
            interrupts.into(),
        )?;
        let features = registers.driver_features;
        let negotiated = !has(STATUS_FEATURES_OK) || self.accepts(features);
        check(&name, "the accepted features", features, negotiated)?;
        let ordered = !has(STATUS_DRIVER_OK) || has(STATUS_FEATURES_OK);
        check(&name, "status", registers.status, ordered)?;
        let queues = self.queues.iter().zip(&state.queues);
        let queues = queues.map(|(queue, state)| queue.restored(state, &self.ram));
        self.queues = queues.collect::<Result<_, _>>()?;
        self.device.restore(&state.device)?;
        self.registers = registers.clone();
        if has(STATUS_DRIVER_OK) {
            self.device.start(features);
        }
        self.irq.restore(self.registers.interrupt_status != 0);
        Ok(())
    }
}

impl<D: VirtioDevice> BusDevice for MmioTransport<D> {
    fn read(&mut self, _now: u64, offset: u64, data: &mut [u8]) -> Effects {
        if let Some(at) = offset.checked_sub(reg::CONFIG) {
            let config = self.device.config();
            for (i, byte) in (at..).zip(data) {
                *byte = usize::try_from(i)
                    .ok()
                    .and_then(|i| config.get(i))
                    .copied()
                    .unwrap_or(0);
            }
        } else if data.len() == 4 && offset & 3 == 0 {
            read_le32(self.read_register(offset), 0, data);
        } else {
            // Registers can be accessed as aligned 32-bit words only (section 4.2.2.2).
            data.fill(0);
        }
        Effects::empty()
    }

    fn write(&mut self, now: u64, offset: u64, data: &[u8]) -> Effects {
        self.device.advance_to(now);
        // No device here has writable configuration.
        if offset < reg::CONFIG
            && offset & 3 == 0
            && let Ok(value) = <[u8; 4]>::try_from(data)
        {
            return self.write_register(offset, u32::from_le_bytes(value));
        }
        Effects::empty()
    }
}

impl<D> fmt::Debug for MmioTransport<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MmioTransport")
            .field("irq", &self.irq)
            .field("registers", &self.registers)
            .field("queues", &self.queues)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
