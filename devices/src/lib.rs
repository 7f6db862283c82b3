//! The devices of the vbts machine.
//!
//! The models have no threads, no host clock, and no random numbers unless they are configured.
//! Every call that depends on time takes `now`, the virtual time in nanoseconds. Devices with
//! timers have `next_deadline` and `tick`.
//!
//! # A machine
//!
//! Devices are in [`Shared`] (an `Arc<Mutex<_>>`), so that the [`Bus`] and the VMM access the same
//! one. A device that interrupts owns an [`irqchip::IrqLine`]. The lock order is: device, then
//! interrupt controllers. So never call a device while holding the lock of the
//! [`irqchip::IrqChip`].
//!
//! ```
//! use vbts_devices::irqchip::{IrqChip, IrqLine, PicPorts};
//! use vbts_devices::uart::Uart;
//! use vbts_devices::{Bus, OutputBuffer, lock, shared};
//!
//! let chip = shared(IrqChip::new(1, true));
//! let output = shared(OutputBuffer::new(4096));
//! let line = IrqLine::new(chip.clone(), 4);
//! let uart = shared(Uart::new(line, Box::new(output.clone())));
//!
//! let mut ports = Bus::new();
//! ports.insert(0x20, 2, shared(PicPorts::master(chip.clone())))?;
//! ports.insert(0x3F8, 8, uart.clone())?;
//!
//! // The guest writes to its serial port, and unmasks IRQ 4 at the 8259A.
//! ports.write(0, 0x3F8, b"A");
//! ports.write(0, 0x21, &[0xEF]);
//! assert_eq!(lock(&output).take(), b"A");
//!
//! // It enables the received-data interrupt, OUT2 and RTS. Input then raises the interrupt.
//! ports.write(0, 0x3F9, &[0x01]);
//! ports.write(0, 0x3FC, &[0x0A]);
//! lock(&uart).push_input(b"hello");
//! assert!(lock(&chip).intr_pending(0));
//!
//! // A restored device continues where the saved one was.
//! let state = lock(&uart).state();
//! let mut other = Uart::new(IrqLine::new(chip.clone(), 4), Box::new(OutputBuffer::new(0)));
//! other.restore(&state)?;
//! assert_eq!(other.state(), state);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | device | type | address |
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
//! Every call that makes a device act (an access, host input, `tick`) returns the [`Effects`]. The
//! machine then updates the processors' interrupt lines, or wakes its host side.
//!
//! Devices write guest memory only through [`GuestRam`], which records the written pages for each
//! [`DmaObserver`].
//!
//! Output of the guest goes to a [`ByteSink`] at once. [`OutputBuffer`] is a sink that its owner
//! empties. When the sink of a console port was full and has room again, call
//! [`virtio::mmio::MmioTransport::poll`].
//!
//! Ports and addresses that no device claims read as ones. Port 0x80 (POST) is one of them.
//!
//! # State
//!
//! A device is its state and its wiring: interrupt lines, guest memory, files and sinks of the
//! host. The state is a plain type (`SerialState`, `PitState`, ...) with every fact that decides
//! how the device continues. It can be compared and serialised. `state` returns it, and `restore`
//! puts the device into it, or returns a [`StateError`] if the device never has such a state.
//! Levels of interrupt lines follow from the states and are not stored.

#![warn(unreachable_pub)]

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
/// Guest RAM as the devices access it. The generations tell processors which pages devices have
/// written.
pub type GuestRam = vm_memory::GuestMemoryMmap<DmaGenerations>;

pub use sink::{ByteSink, OutputBuffer};
pub use state::StateError;
