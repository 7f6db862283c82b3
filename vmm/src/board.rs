//! The devices of the machine on their buses.

mod platform;
mod state;

pub use platform::VcpuPlatform;
pub use state::BoardState;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, TryLockError};

use thiserror::Error;
use vbts_cpu::Signals;
use vbts_devices::disk::Disk;
use vbts_devices::exit_port::{ExitPort, ExitStatus};
use vbts_devices::irqchip::{IoApicWindow, IrqChip, IrqLine, PicPorts};
use vbts_devices::ninep::{Access, GuestClock, OpenFiles, RefusedWrites, Server, Service};
use vbts_devices::pit::{Pit, SystemControlPort};
use vbts_devices::power::{PowerSwitch, SleepRegisters};
use vbts_devices::reset::{I8042, ResetControl, ResetLine, SystemControlPortA};
use vbts_devices::rtc::Rtc;
use vbts_devices::uart::Uart;
use vbts_devices::virtio::block::Block;
use vbts_devices::virtio::console::{Console, ConsolePort};
use vbts_devices::virtio::entropy::{Entropy, Source};
use vbts_devices::virtio::fs9p::Fs9p;
use vbts_devices::virtio::mmio::{MmioTransport, VIRTIO_MMIO_LEN, VirtioTransport};
use vbts_devices::virtio::net::Net;
use vbts_devices::virtio::queue::QueueError;
use vbts_devices::virtio::{Budget, VirtioDevice};
use vbts_devices::{Bus, BusDevice, BusError, ByteSink, Effects, Shared, lock, shared};

use crate::inputs::{Inputs, LoggedService};
use crate::layout::{self, VIRTIO_BASE, VIRTIO_GSI, VIRTIO_STRIDE};
use crate::memory::GuestMemory;

/// Interrupt line of the timer.
const PIT_IRQ: u32 = 0;

/// Deadlines at this virtual time in ns (292 years) or later are ignored, so that the sum of two
/// times does not overflow.
pub const MAX_DEADLINE: u64 = 1 << 63;

/// Why a board cannot be built.
#[derive(Debug, Error)]
pub enum BoardError {
    /// Two devices claim one address.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// A virtio device has impossible queues.
    #[error("Cannot attach a virtio device")]
    Queue(#[from] QueueError),
    /// There is no place for one more device.
    #[error("the machine has room for {max} virtio devices: give fewer --share, --disk or --net", max = VIRTIO_GSI.len())]
    NoRoom,
    /// A directory cannot be shared.
    #[error("Cannot share {directory}")]
    Share {
        /// The directory.
        directory: String,
        /// The error of the host.
        source: std::io::Error,
    },
}

/// The devices around the processors.
#[derive(Debug)]
pub struct Board {
    /// The lines into each processor.
    signals: Vec<Arc<Signals>>,
    chip: Shared<IrqChip>,
    ports: Bus,
    mmio: Bus,
    pit: Shared<Pit>,
    rtc: Shared<Rtc>,
    uart: Shared<Uart>,
    reset_control: Shared<ResetControl>,
    system_control_a: Shared<SystemControlPortA>,
    exit: ExitStatus,
    reset: ResetLine,
    power: PowerSwitch,
    power_button: Mutex<IrqLine>,
    memory: GuestMemory,
    guest_clock: GuestClock,
    inputs: Inputs,
    /// Number of 9P servers.
    servers: u8,
    /// In the order of their addresses.
    virtio: Vec<Arc<Mutex<dyn VirtioTransport>>>,
    /// A device has had work for the host: see [`Effects::HOST`].
    host_work: AtomicBool,
    /// Bounds the work of the virtio devices until the run loop returns.
    budget: Budget,
    /// A virtio device has used a part of the budget: see [`Effects::BUDGET`].
    budget_used: AtomicBool,
}

impl Board {
    /// A board with the devices that every machine has. It raises lines into 1 to
    /// [`MAX_PROCESSORS`](layout::MAX_PROCESSORS) processors, each of which has one of `signals`.
    /// The guest's output on the serial port goes to `serial`. The guest's clock begins at `epoch`
    /// seconds since 1970.
    ///
    /// # Errors
    /// Two devices claim one address.
    pub fn new(
        memory: GuestMemory,
        signals: Vec<Arc<Signals>>,
        tsc_deadline: bool,
        epoch: u64,
        serial: Box<dyn ByteSink>,
    ) -> Result<Self, BoardError> {
        let processors = u8::try_from(signals.len()).unwrap_or(layout::MAX_PROCESSORS);
        let chip = shared(IrqChip::new(processors, tsc_deadline));
        let line = |irq| IrqLine::new(chip.clone(), irq);
        let (reset, exit) = (ResetLine::new(), ExitStatus::new());
        let power = PowerSwitch::new();
        let pit = shared(Pit::new(line(PIT_IRQ)));
        let rtc = shared(Rtc::new(line(layout::RTC_GSI), epoch));
        let uart = shared(Uart::new(line(layout::COM1_GSI), serial));
        let reset_control = shared(ResetControl::new(reset.clone()));
        let system_control_a = shared(SystemControlPortA::new(reset.clone()));

        let mut ports = Bus::new();
        ports.insert(0x20, 2, shared(PicPorts::master(chip.clone())))?;
        ports.insert(0x40, 4, pit.clone())?;
        ports.insert(0x61, 1, shared(SystemControlPort::new(pit.clone())))?;
        ports.insert(0x64, 1, shared(I8042::new(reset.clone())))?;
        ports.insert(layout::RTC.into(), 2, rtc.clone())?;
        ports.insert(0x92, 1, system_control_a.clone())?;
        ports.insert(0xA0, 2, shared(PicPorts::slave(chip.clone())))?;
        ports.insert(
            vbts_protocol::EXIT_PORT.into(),
            4,
            shared(ExitPort::new(exit.clone())),
        )?;
        ports.insert(layout::COM1.into(), 8, uart.clone())?;
        ports.insert(0x4D0, 2, shared(PicPorts::elcr(chip.clone())))?;
        ports.insert(
            layout::SLEEP_CONTROL.into(),
            2,
            shared(SleepRegisters::new(power.clone())),
        )?;
        ports.insert(layout::RESET_CONTROL.into(), 1, reset_control.clone())?;

        let mut mmio = Bus::new();
        mmio.insert(
            layout::IOAPIC,
            0x1000,
            shared(IoApicWindow::new(chip.clone())),
        )?;
        let power_button = Mutex::new(line(layout::POWER_BUTTON_GSI));
        Ok(Self {
            signals,
            chip,
            ports,
            mmio,
            pit,
            rtc,
            uart,
            reset_control,
            system_control_a,
            exit,
            reset,
            power,
            power_button,
            memory,
            guest_clock: GuestClock::default(),
            inputs: Inputs::default(),
            servers: 0,
            virtio: Vec::new(),
            host_work: AtomicBool::new(false),
            budget: Budget::default(),
            budget_used: AtomicBool::new(false),
        })
    }

    /// Gives a virtio device the next address and interrupt line.
    fn attach<D>(&mut self, device: D) -> Result<Shared<MmioTransport<D>>, BoardError>
    where
        D: VirtioDevice + 'static,
        MmioTransport<D>: BusDevice,
    {
        let n = self.virtio.len();
        let gsi = *VIRTIO_GSI.get(n).ok_or(BoardError::NoRoom)?;
        let irq = IrqLine::new(self.chip.clone(), gsi.into());
        let transport = shared(MmioTransport::new(
            device,
            self.memory.clone(),
            irq,
            &self.budget,
        )?);
        self.mmio.insert(
            VIRTIO_BASE + n as u64 * VIRTIO_STRIDE,
            VIRTIO_MMIO_LEN,
            transport.clone(),
        )?;
        self.virtio.push(transport.clone());
        Ok(transport)
    }

    /// Adds a console device with these ports.
    ///
    /// # Errors
    /// There is no room.
    pub fn add_console(
        &mut self,
        ports: Vec<ConsolePort>,
    ) -> Result<Shared<MmioTransport<Console>>, BoardError> {
        self.attach(Console::new(ports))
    }

    /// Shares a directory of the host under a 9P mount tag. Returns the writes that the host
    /// refuses there.
    ///
    /// # Errors
    /// The directory cannot be opened, or there is no room.
    pub fn add_share(
        &mut self,
        tag: &str,
        directory: &Path,
        access: Access,
    ) -> Result<RefusedWrites, BoardError> {
        let failed = |source| BoardError::Share {
            directory: directory.display().to_string(),
            source,
        };
        let server = Server::new(directory, access).map_err(failed)?;
        let refused_writes = server.refused_writes();
        let server = server.with_clock(self.guest_clock.clone());
        self.add_server(tag, Some(Box::new(server)))?;
        Ok(refused_writes)
    }

    /// Gives the guest files that this process has open, as a share named `tag`.
    ///
    /// # Errors
    /// There is no room.
    pub fn add_open_files(&mut self, tag: &str, files: OpenFiles) -> Result<(), BoardError> {
        self.add_server(tag, Some(Box::new(files)))
    }

    /// Adds the share `tag` of a recorded run. Its files are in the recording.
    ///
    /// # Errors
    /// There is no room.
    pub(crate) fn add_replayed_share(&mut self, tag: &str) -> Result<(), BoardError> {
        self.add_server(tag, None)
    }

    fn add_server(
        &mut self,
        tag: &str,
        server: Option<Box<dyn Service>>,
    ) -> Result<(), BoardError> {
        let number = self.servers;
        self.servers = number.saturating_add(1);
        let server: Box<dyn Service> = match server {
            Some(server) if !self.inputs.is_logged() => server,
            server => Box::new(LoggedService::new(self.inputs.clone(), number, server)),
        };
        let device = Fs9p::with_service(tag, server).map_err(|source| BoardError::Share {
            directory: tag.into(),
            source,
        })?;
        self.attach(device).map(drop)
    }

    /// Records the inputs of devices that are added from now on, or takes them out of a recording.
    pub(crate) fn set_inputs(&mut self, inputs: Inputs) {
        self.inputs = inputs;
    }

    /// Adds a disk, which the guest can identify by `id`.
    ///
    /// # Errors
    /// There is no room.
    pub fn add_disk(&mut self, disk: Disk, id: &str) -> Result<(), BoardError> {
        self.attach(Block::new(disk, id)).map(drop)
    }

    /// Adds a network device.
    ///
    /// # Errors
    /// There is no room.
    pub fn add_network(&mut self, device: Net) -> Result<Shared<MmioTransport<Net>>, BoardError> {
        self.attach(device)
    }

    /// Adds a source of random numbers.
    ///
    /// # Errors
    /// There is no room.
    pub fn add_entropy(&mut self, source: Source) -> Result<(), BoardError> {
        self.attach(Entropy::new(source)).map(drop)
    }

    /// The guest's wall clock, by which shares show times. Nothing sets it but [`GuestClock::set`].
    pub fn guest_clock(&self) -> &GuestClock {
        &self.guest_clock
    }

    /// The number of virtio devices.
    pub fn virtio_devices(&self) -> usize {
        self.virtio.len()
    }

    /// The lines into each processor.
    pub fn signals(&self) -> &[Arc<Signals>] {
        &self.signals
    }

    /// The status that the guest has written to the exit port.
    pub fn exit_status(&self) -> Option<u8> {
        self.exit.get()
    }

    /// Whether the guest has requested a reset.
    pub fn reset_requested(&self) -> bool {
        self.reset.requested()
    }

    /// Whether the guest has switched the machine off.
    pub fn is_off(&self) -> bool {
        self.power.is_off()
    }

    /// Whether the guest has ended the run: by the exit port, a reset, or by switching off.
    pub fn has_ended(&self) -> bool {
        self.exit_status().is_some() || self.reset_requested() || self.is_off()
    }

    /// Signals a power-button event. Returns `false` if the guest has not unmasked its interrupt.
    pub fn press_power_button(&self) -> bool {
        let unmasked = lock(&self.chip).is_unmasked(layout::POWER_BUTTON_GSI);
        if unmasked {
            let effects = lock(&self.power_button).pulse();
            self.apply(effects);
        }
        unmasked
    }

    /// Whether the guest has enabled reception on its serial port and has read all input.
    pub fn serial_wants_input(&self) -> bool {
        lock(&self.uart).wants_input()
    }

    /// Offers bytes to the serial port. Returns how many it has taken.
    pub fn push_serial_input(&self, bytes: &[u8]) -> usize {
        let (taken, effects) = lock(&self.uart).push_input(bytes);
        self.apply(effects);
        taken
    }

    /// When [`tick`](Self::tick) has to be called next, in virtual ns.
    pub fn next_deadline(&self) -> Option<u64> {
        let deadlines = [
            lock(&self.chip).next_deadline(),
            lock(&self.pit).next_deadline(),
            lock(&self.rtc).next_deadline(),
        ];
        let earliest = deadlines.into_iter().flatten().min();
        earliest.filter(|at| *at < MAX_DEADLINE)
    }

    /// Brings all devices up to `now`, between two runs of a processor. Virtio devices that have
    /// used up their budget go on with a new one.
    pub fn tick(&self, now: u64) {
        // `apply` locks the interrupt controllers again, so no lock may be held by then.
        let mut effects = lock(&self.pit).tick(now);
        effects |= lock(&self.rtc).tick(now);
        effects |= lock(&self.chip).tick(now);
        if self.budget_used.swap(false, Ordering::Relaxed) {
            self.budget.renew();
            for device in &self.virtio {
                // A processor in a thread of its own may use the device now, for long if the host
                // blocks it. It reports that use at its end.
                effects |= match device.try_lock() {
                    Ok(mut device) => device.grant_budget(now),
                    Err(TryLockError::Poisoned(device)) => device.into_inner().grant_budget(now),
                    Err(TryLockError::WouldBlock) => Effects::BUDGET,
                };
            }
        }
        self.apply(effects);
    }

    /// Whether a device has had work for the host since the last call.
    pub fn take_host_work(&self) -> bool {
        self.host_work.swap(false, Ordering::Relaxed)
    }

    /// Applies the effects of an access to a device, or of input for it.
    pub fn apply(&self, effects: Effects) {
        if effects.contains(Effects::DMA) {
            for signals in &self.signals {
                signals.raise_quietly(Signals::DMA);
            }
        }
        if effects.contains(Effects::HOST) {
            self.host_work.store(true, Ordering::Relaxed);
        }
        if effects.contains(Effects::BUDGET) {
            self.budget_used.store(true, Ordering::Relaxed);
        }
        if effects.contains(Effects::INTERRUPTS) {
            self.update_signals();
        }
    }

    /// Sets the processors' lines from the outputs of the interrupt controllers.
    fn update_signals(&self) {
        let chip = lock(&self.chip);
        for (cpu, signals) in self.signals.iter().enumerate() {
            signals.set(Signals::INTR, chip.intr_pending(cpu));
            signals.set(Signals::NMI, chip.nmi_pending(cpu));
            signals.set(Signals::INIT, chip.startup_pending(cpu));
        }
    }
}

#[cfg(test)]
mod tests;
