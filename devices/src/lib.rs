//! The devices of the vbts machine.
//!
//! Plain models: no threads, no host clock, nothing random unless it is asked for. Every call that
//! depends on time takes `now`, the virtual time in nanoseconds, and devices with timers say when
//! they want to be called next:
//!
//! ```text
//! let next = min(chip.next_deadline(), pit.next_deadline(), rtc.next_deadline());
//! // Run the CPU until then.
//! chip.tick(now); pit.tick(now); rtc.tick(now);
//! ```
//!
//! # Putting a machine together
//!
//! Devices live in [`Shared`] (an `Arc<Mutex<_>>`), so that the [`Bus`] and the VMM reach the same
//! one. A device that interrupts owns an [`irqchip::IrqLine`]. Locks nest in one direction only:
//! device, then interrupt controllers. So never call a device while holding the lock of the
//! [`irqchip::IrqChip`].
//!
//! | what | type | where |
//! |---|---|---|
//! | interrupt controllers | [`irqchip::IrqChip`] | local APIC page: `lapic_read`/`lapic_write` for the accessing CPU |
//! | I/O APIC | [`irqchip::IoApicWindow`] | memory 0xFEC0_0000, 0x1000 bytes |
//! | 8259A pair, ELCR | [`irqchip::PicPorts`] | ports 0x20, 0xA0, 0x4D0; 2 bytes each |
//! | 8254 | [`pit::Pit`], [`pit::SystemControlPort`] | ports 0x40 (4 bytes), 0x61; IRQ 0 |
//! | clock | [`rtc::Rtc`] | port 0x70, 2 bytes; IRQ 8 |
//! | serial port | [`uart::Uart`] | port 0x3F8, 8 bytes; IRQ 4 |
//! | power | [`power::SleepRegisters`] | port 0x600, 2 bytes |
//! | reset | [`reset::I8042`], [`reset::ResetControl`], [`reset::SystemControlPortA`] | ports 0x64, 0xCF9, 0x92 |
//! | exit | [`exit_port::ExitPort`] | port 0xF4, 4 bytes |
//! | console and agent port | [`virtio::console::Console`] | behind [`virtio::mmio::MmioTransport`], 0x1000 bytes |
//! | disks | [`virtio::block::Block`] | behind [`virtio::mmio::MmioTransport`], 0x1000 bytes |
//! | networks | [`virtio::net::Net`] | behind [`virtio::mmio::MmioTransport`], 0x1000 bytes |
//! | random numbers | [`virtio::entropy::Entropy`] | behind [`virtio::mmio::MmioTransport`], 0x1000 bytes |
//! | shared directories | [`virtio::fs9p::Fs9p`] | behind [`virtio::mmio::MmioTransport`], 0x1000 bytes |
//!
//! Whatever makes a device do something (an access, host input, `tick`) returns the [`Effects`]:
//! the machine then updates the processors' interrupt lines, or wakes its host side.
//!
//! Devices write guest memory through [`GuestRam`] only, which notes the pages that they write for
//! each [`DmaObserver`].
//!
//! Output of the guest goes to a [`ByteSink`] at once; [`OutputBuffer`] is one that can be emptied
//! from outside. When a console port's sink was full and has room again, call
//! [`virtio::mmio::MmioTransport::poll`].
//!
//! Ports and addresses that no device claims read as ones; that includes POST port 0x80.

mod bus;
pub mod disk;
mod dma;
mod effects;
pub mod exit_port;
pub mod ioapic;
pub mod irqchip;
pub mod lapic;
pub mod ninep;
pub mod pic;
pub mod pit;
pub mod power;
pub mod reset;
pub mod rtc;
mod sink;
mod state;
pub mod tap;
pub mod uart;
pub mod virtio;

pub use bus::{Bus, BusDevice, BusError, ByteDevice, Shared, lock, shared};
pub use dma::{DmaGenerations, DmaObserver};
pub use effects::Effects;
/// Guest RAM as the devices access it. Processors learn from the generations which pages devices
/// have written.
pub type GuestRam = vm_memory::GuestMemoryMmap<DmaGenerations>;

pub use sink::{ByteSink, OutputBuffer};
pub use state::StateError;
