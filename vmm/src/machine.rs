//! The machine: processors, board and memory, and the loops that run them.
//!
//! | module | whose time passes |
//! |---|---|
//! | `virtual_time` | the guest's: one thread runs all processors in turn, and two runs are the same |
//! | `host_time` | the host's: a thread for each processor, which KVM executes; `rest` knows whether all of them sleep |

mod host_time;
mod rest;
mod virtual_time;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vbts_cpu::{Cpu, CpuState, HostClock, Model, SoftCpu, Topology, Usage};
use vbts_devices::{Shared, lock};

use crate::board::{Board, Socket};
use crate::console::Console;
use crate::exit::Failure;
use crate::host::{Alarm, Event};
use crate::kvm::{KvmVcpu, Vm};
use crate::memory::{self, GuestMemory};
use crate::sandbox::Sandbox;
use crate::vcpu::{Moves, Vcpu};

/// Timer expiries that processors with interrupts off may sleep through, waiting for an NMI, before
/// they count as dead.
const MAX_SLEEPS_WITH_INTERRUPTS_OFF: u32 = 64;

/// How a guest has ended by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It wrote this status to the exit port.
    Status(u8),
    /// It reset the machine.
    Reset,
    /// It switched the machine off.
    Off,
}

/// The host side of a run: reads the guest's output and gives it input.
pub trait RunObserver {
    /// Called after each exit of the processor that is determined by virtual time.
    ///
    /// # Errors
    /// The run has to end.
    fn after_exit(&mut self, board: &Board, now: u64) -> Result<(), Failure>;

    /// Something happened outside.
    ///
    /// # Errors
    /// The run has to end.
    fn event(&mut self, board: &Board, event: Event) -> Result<(), Failure>;

    /// The inputs that the guest waits for, or can take at any time, and that may still come.
    fn awaited_inputs(&self) -> Vec<BorrowedFd<'_>>;

    /// The guest is idle and waits for input.
    ///
    /// # Errors
    /// The run has to end.
    fn idle(&mut self) -> Result<(), Failure> {
        Ok(())
    }
}

/// A machine with a guest in it.
#[derive(Debug)]
pub struct Machine {
    vcpus: Vec<Vcpu>,
    board: Arc<Board>,
    memory: GuestMemory,
    console: Shared<Console>,
    alarm: Arc<Alarm>,
    sandbox: Option<Sandbox>,
    /// Where KVM executes the processors: the time that they live by.
    host_clock: Option<HostClock>,
    vm: Option<Vm>,
    /// Virtual time in ns.
    now: u64,
    /// Where the host's time goes, if it is measured.
    timed: Option<Timed>,
}

/// Where the host's time goes on the software CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timed {
    /// Into executing the guest's instructions.
    pub processors: Duration,
    /// Into all of the run.
    pub run: Duration,
}

impl Machine {
    /// A machine with a processor for each of the board's sockets, of which the first is in `state`
    /// and the others wait for a start-up IPI. `console` is where the board's serial port goes.
    /// `alarm` may end the run. The whole process enters `sandbox` as the run begins.
    pub fn new(
        model: &'static Model,
        board: Board,
        memory: GuestMemory,
        state: &CpuState,
        console: Shared<Console>,
        alarm: Arc<Alarm>,
        sandbox: Option<Sandbox>,
    ) -> Self {
        let board = Arc::new(board);
        let count = board.signals().len() as u8;
        let vcpu = |id: u8| {
            let socket = Socket::new(board.clone(), id.into());
            // SAFETY: the machine keeps both.
            let ram = unsafe { memory::cpu_view(&memory) };
            let signals = socket.signals();
            let mut cpu = Cpu::new(model, ram, Arc::new(socket), signals);
            cpu.set_topology(Topology { id, count });
            if id == 0 {
                cpu.load_state(state);
            } else {
                cpu.load_state(&CpuState::after_reset(model));
            }
            let mut vcpu = Vcpu::new(SoftCpu::new(cpu));
            if id != 0 {
                vcpu.wait_for_startup();
            }
            vcpu
        };
        Self {
            vcpus: (0..count).map(vcpu).collect(),
            board: board.clone(),
            memory,
            console,
            alarm,
            sandbox,
            host_clock: None,
            vm: None,
            now: 0,
            timed: None,
        }
    }

    /// Lets `vm`, which has this machine's memory and as many processors, execute them, on the
    /// host's time.
    ///
    /// # Errors
    /// KVM refuses.
    pub fn accelerate(&mut self, mut vm: Vm) -> Result<(), Failure> {
        let clock = HostClock::new(vm.tsc_khz());
        let tsc_offset = HostClock::tsc().wrapping_neg();
        for (vcpu, fd) in self.vcpus.iter_mut().zip(vm.take_vcpus()) {
            let signals = vcpu.soft().cpu.signals().clone();
            let kvm = KvmVcpu::new(fd, signals, vm.passes_bts_through());
            vcpu.accelerate(kvm, clock, tsc_offset)?;
        }
        self.host_clock = Some(clock);
        self.vm = Some(vm);
        Ok(())
    }

    /// The board.
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// Instructions that the guest has retired on the software CPU.
    pub fn instructions(&self) -> u64 {
        self.vcpus
            .iter()
            .map(|vcpu| vcpu.soft().cpu.instructions())
            .sum()
    }

    /// For whom they were executed.
    pub fn usage(&self) -> Usage {
        let usages = self.vcpus.iter().map(|vcpu| vcpu.soft().cpu.usage());
        usages.sum()
    }

    /// Measures from now on where the host's time goes.
    pub fn measure(&mut self) {
        self.timed = Some(Timed::default());
    }

    /// Where it has gone, if it was measured. On the host's time it is not.
    pub fn timed(&self) -> Option<Timed> {
        self.timed.filter(|_| self.host_clock.is_none())
    }

    /// How often processors have moved between accelerators.
    pub fn moves(&self) -> Moves {
        self.vcpus.iter().map(Vcpu::moves).sum()
    }

    /// The machine's time in ns.
    pub fn now(&self) -> u64 {
        self.host_clock.map_or(self.now, |clock| clock.now())
    }

    /// Runs the guest until it ends.
    ///
    /// # Errors
    /// It crashed, its time was up, or `observer` ended it.
    pub fn run(&mut self, observer: &mut dyn RunObserver) -> Result<End, Failure> {
        self.alarm.start_timer()?;
        let began = Instant::now();
        let outcome = match self.host_clock {
            Some(clock) => self.run_on_host_time(clock, observer),
            None => self.run_on_virtual_time(observer),
        };
        if let Some(timed) = &mut self.timed {
            timed.run = began.elapsed();
        }
        let mut console = lock(&self.console);
        console.flush();
        let error = console.take_error();
        drop(console);
        match (outcome, error) {
            (Ok(_), Some(error)) => Err(self.name_interruption(error.into_failure())),
            (Ok(end), None) => Ok(end),
            (Err(failure), _) => Err(self.name_interruption(failure)),
        }
    }

    fn witness(&self) -> Witness<'_> {
        Witness {
            board: &self.board,
            console: &self.console,
            alarm: &self.alarm,
        }
    }

    /// A guest that crashed.
    pub fn crashed(&self, reason: &str) -> Failure {
        self.witness().crashed(reason)
    }

    /// Says what it was that interrupted a wait for the reader of some output.
    fn name_interruption(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Interrupted => match self.alarm.take() {
                Some(Event::Timeout) => self.witness().timed_out(),
                Some(Event::Signal(signal)) => Failure::Signal(signal),
                None => failure,
            },
            failure => failure,
        }
    }
}

/// What there is to see of a machine while its processors run.
#[derive(Debug, Clone, Copy)]
struct Witness<'a> {
    board: &'a Board,
    console: &'a Shared<Console>,
    alarm: &'a Alarm,
}

impl Witness<'_> {
    /// Whether the guest has ended or cannot go on.
    fn ended(&self) -> Result<Option<End>, Failure> {
        if let Some(status) = self.board.exit_status() {
            return Ok(Some(End::Status(status)));
        }
        let mut console = lock(self.console);
        if let Some(error) = console.take_error() {
            return Err(error.into_failure());
        }
        let (dead, panicked) = (console.is_dead(), console.panicked());
        drop(console);
        if dead || panicked && self.board.reset_requested() {
            return Err(self.crashed("the guest's kernel panicked"));
        }
        if self.board.is_off() {
            return Ok(Some(End::Off));
        }
        Ok(self.board.reset_requested().then_some(End::Reset))
    }

    fn crashed(&self, reason: &str) -> Failure {
        Failure::Guest {
            reason: reason.into(),
            console: lock(self.console).tail(),
        }
    }

    fn shut_down(&self) -> Failure {
        self.crashed("the guest's processor shut down (triple fault)")
    }

    fn halted_for_ever(&self) -> Failure {
        self.crashed("the guest has halted for ever, with interrupts off")
    }

    fn nothing_can_wake_it(&self) -> Failure {
        self.crashed("the guest has halted and nothing can wake it")
    }

    fn timed_out(&self) -> Failure {
        Failure::Timeout {
            after: self.alarm.limit().unwrap_or_default(),
            console: lock(self.console).tail(),
        }
    }

    fn take_events(&self, observer: &mut dyn RunObserver) -> Result<(), Failure> {
        while let Some(event) = self.alarm.take() {
            if event == Event::Timeout {
                return Err(self.timed_out());
            }
            observer.event(self.board, event)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
