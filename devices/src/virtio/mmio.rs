//! The virtio-mmio transport, version 2 (Virtual I/O Device 1.2, section 4.2).

use std::fmt;

use virtio_queue::QueueT;
use vm_memory::GuestAddress;

use super::VirtioDevice;
use super::queue::{QueueError, VirtQueue};
use crate::bus::{BusDevice, read_le32};
use crate::irqchip::IrqLine;
use crate::{Effects, GuestRam};

/// Length of the register window in bytes.
pub const VIRTIO_MMIO_LEN: u64 = 0x1000;

const MAGIC: u32 = u32::from_le_bytes(*b"virt");
const VERSION: u32 = 2;
const VENDOR: u32 = u32::from_le_bytes(*b"VBTS");

/// Register offsets (table 4.1).
mod reg {
    pub const MAGIC_VALUE: u64 = 0x000;
    pub const VERSION: u64 = 0x004;
    pub const DEVICE_ID: u64 = 0x008;
    pub const VENDOR_ID: u64 = 0x00C;
    pub const DEVICE_FEATURES: u64 = 0x010;
    pub const DEVICE_FEATURES_SEL: u64 = 0x014;
    pub const DRIVER_FEATURES: u64 = 0x020;
    pub const DRIVER_FEATURES_SEL: u64 = 0x024;
    pub const QUEUE_SEL: u64 = 0x030;
    pub const QUEUE_NUM_MAX: u64 = 0x034;
    pub const QUEUE_NUM: u64 = 0x038;
    pub const QUEUE_READY: u64 = 0x044;
    pub const QUEUE_NOTIFY: u64 = 0x050;
    pub const INTERRUPT_STATUS: u64 = 0x060;
    pub const INTERRUPT_ACK: u64 = 0x064;
    pub const STATUS: u64 = 0x070;
    pub const QUEUE_DESC_LOW: u64 = 0x080;
    pub const QUEUE_DESC_HIGH: u64 = 0x084;
    pub const QUEUE_DRIVER_LOW: u64 = 0x090;
    pub const QUEUE_DRIVER_HIGH: u64 = 0x094;
    pub const QUEUE_DEVICE_LOW: u64 = 0x0A0;
    pub const QUEUE_DEVICE_HIGH: u64 = 0x0A4;
    pub const SHM_LEN_LOW: u64 = 0x0B0;
    pub const SHM_BASE_HIGH: u64 = 0x0BC;
    pub const CONFIG_GENERATION: u64 = 0x0FC;
    pub const CONFIG: u64 = 0x100;
}

const STATUS_DRIVER_OK: u32 = 4;
const STATUS_FEATURES_OK: u32 = 8;
const STATUS_NEEDS_RESET: u32 = 64;

const INTERRUPT_USED_BUFFER: u32 = 1;
const INTERRUPT_CONFIG: u32 = 2;

const F_INDIRECT_DESC: u64 = 1 << 28;
const F_VERSION_1: u64 = 1 << 32;

/// A device at its register window.
pub struct MmioTransport<D> {
    device: D,
    ram: GuestRam,
    irq: IrqLine,
    queues: Vec<VirtQueue>,
    status: u32,
    interrupt_status: u32,
    device_features_sel: u32,
    driver_features_sel: u32,
    driver_features: u64,
    queue_sel: u32,
}

impl<D: VirtioDevice> MmioTransport<D> {
    /// Puts `device` behind the transport; it reads and writes `ram` and interrupts through `irq`.
    ///
    /// # Errors
    /// A queue size of the device is not a power of two.
    pub fn new(device: D, ram: GuestRam, irq: IrqLine) -> Result<Self, QueueError> {
        let queues = device
            .queue_sizes()
            .iter()
            .map(|n| VirtQueue::new(*n))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            device,
            ram,
            irq,
            queues,
            status: 0,
            interrupt_status: 0,
            device_features_sel: 0,
            driver_features_sel: 0,
            driver_features: 0,
            queue_sel: 0,
        })
    }

    /// The device. After changing something that the guest should see, call [`poll`](Self::poll).
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Lets the device go on with what it has waited for: host input, or room for output.
    pub fn poll(&mut self) -> Effects {
        if !self.is_running() {
            return Effects::empty();
        }
        let mut effects = Effects::empty();
        self.queues.iter_mut().for_each(VirtQueue::grant_budget);
        if self.device.process(&mut self.queues, &self.ram).is_err() {
            effects |= self.needs_reset();
        }
        for queue in &mut self.queues {
            if queue.take_interrupt() {
                self.interrupt_status |= INTERRUPT_USED_BUFFER;
            }
            if queue.take_served() {
                effects |= Effects::DMA | Effects::HOST;
            }
        }
        effects | self.update_irq()
    }

    /// True while a driver uses the device.
    pub fn is_running(&self) -> bool {
        self.status & (STATUS_DRIVER_OK | STATUS_NEEDS_RESET) == STATUS_DRIVER_OK
    }

    /// True if the driver did something that only a reset of the device can put right.
    pub fn is_broken(&self) -> bool {
        self.status & STATUS_NEEDS_RESET != 0
    }

    fn needs_reset(&mut self) -> Effects {
        self.status |= STATUS_NEEDS_RESET;
        if self.status & STATUS_DRIVER_OK != 0 {
            self.interrupt_status |= INTERRUPT_CONFIG;
        }
        self.update_irq()
    }

    fn update_irq(&mut self) -> Effects {
        self.irq.set(self.interrupt_status != 0)
    }

    fn features(&self) -> u64 {
        self.device.features() | F_VERSION_1 | F_INDIRECT_DESC
    }

    fn reset(&mut self) -> Effects {
        self.device.reset();
        self.queues.iter_mut().for_each(VirtQueue::reset);
        self.status = 0;
        self.interrupt_status = 0;
        self.device_features_sel = 0;
        self.driver_features_sel = 0;
        self.driver_features = 0;
        self.queue_sel = 0;
        self.update_irq() | Effects::HOST
    }

    fn queue(&self) -> Option<&VirtQueue> {
        self.queues.get(self.queue_sel as usize)
    }

    fn read_register(&self, offset: u64) -> u32 {
        match offset {
            reg::MAGIC_VALUE => MAGIC,
            reg::VERSION => VERSION,
            reg::DEVICE_ID => self.device.device_id(),
            reg::VENDOR_ID => VENDOR,
            reg::DEVICE_FEATURES => half(self.features(), self.device_features_sel),
            reg::QUEUE_NUM_MAX => self.queue().map_or(0, |q| u32::from(q.inner().max_size())),
            reg::QUEUE_READY => self.queue().map_or(0, |q| u32::from(q.inner().ready())),
            reg::INTERRUPT_STATUS => self.interrupt_status,
            reg::STATUS => self.status,
            // No shared memory region has this ID.
            reg::SHM_LEN_LOW..=reg::SHM_BASE_HIGH => u32::MAX,
            // The configuration space never changes.
            reg::CONFIG_GENERATION => 0,
            _ => 0,
        }
    }

    fn write_register(&mut self, offset: u64, value: u32) -> Effects {
        match offset {
            reg::DEVICE_FEATURES_SEL => self.device_features_sel = value,
            reg::DRIVER_FEATURES_SEL => self.driver_features_sel = value,
            reg::DRIVER_FEATURES if self.status & STATUS_FEATURES_OK == 0 => {
                let old = self.driver_features;
                self.driver_features = match self.driver_features_sel {
                    0 => old & !0xFFFF_FFFF | u64::from(value),
                    1 => old & 0xFFFF_FFFF | u64::from(value) << 32,
                    _ => old,
                };
            }
            reg::QUEUE_SEL => self.queue_sel = value,
            reg::QUEUE_NOTIFY => return self.poll(),
            reg::INTERRUPT_ACK => {
                self.interrupt_status &= !value;
                return self.update_irq();
            }
            reg::STATUS => return self.write_status(value),
            reg::QUEUE_NUM..=reg::QUEUE_DEVICE_HIGH => return self.write_queue(offset, value),
            _ => {}
        }
        Effects::empty()
    }

    /// Registers of the selected queue; all but QueueReady are fixed while it is ready.
    fn write_queue(&mut self, offset: u64, value: u32) -> Effects {
        let ram = &self.ram;
        let Some(queue) = self.queues.get_mut(self.queue_sel as usize) else {
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
        // An address with bad alignment, which `try_set_*` refuses, breaks the device, like one
        // outside RAM.
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
        let mut status = value & 0xFF & !STATUS_NEEDS_RESET | self.status & STATUS_NEEDS_RESET;
        let negotiated =
            self.driver_features & !self.features() == 0 && self.driver_features & F_VERSION_1 != 0;
        if self.status & STATUS_FEATURES_OK == 0 && !negotiated {
            status &= !STATUS_FEATURES_OK;
        }
        if status & STATUS_FEATURES_OK == 0 {
            status &= !STATUS_DRIVER_OK;
        }
        let started = status & !self.status & STATUS_DRIVER_OK != 0;
        self.status = status;
        if started {
            self.device.start(self.driver_features);
            // Input or control messages may have been waiting for the driver.
            return self.poll() | Effects::HOST;
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

    fn write(&mut self, _now: u64, offset: u64, data: &[u8]) -> Effects {
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
            .field("status", &self.status)
            .field("interrupt_status", &self.interrupt_status)
            .field("driver_features", &self.driver_features)
            .field("queues", &self.queues)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
