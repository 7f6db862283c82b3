//! The machine: processors, board and memory, and the loops that run them.
//!
//! | module | clock of the guest |
//! |---|---|
//! | `virtual_time` | retired instructions: one thread runs all processors in turn, and two runs are the same |
//! | `host_time` | the host's clock, as always on KVM: one thread per processor; `idle` detects that all are halted |
//!
//! An `observer` is the host's side of a run, and `end` has the ways in which a run ends.
//! `readings` is what the owner of a machine reads of it, and `changes`, `stop_points` and
//! `history` are for debuggers.

mod changes;
mod end;
mod history;
mod host_time;
mod idle;
mod observer;
mod readings;
mod state;
mod stop_points;
mod virtual_time;

pub use end::End;
pub use history::{History, ReplayObserver, SnapshotFileError, SnapshotKey};
pub use observer::RunObserver;
pub use readings::HostTime;
pub use state::{MachineState, MachineStateError};

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use vbts_cpu::{
    Activity, ArchState, BranchLog, Cpu, HostClock, Model, NativeListener, NativeOptions, SoftCpu,
    Topology,
};
use vbts_devices::{DmaObserver, Shared, lock};

use crate::board::{Board, VcpuPlatform};
use crate::console::Console;
use crate::inputs::{Inputs, RecordedEnd};
use crate::kvm::{KvmVcpu, Vm};
use crate::memory::{self, GuestMemory};
use crate::vcpu::Vcpu;
use end::MachineStatus;
use stop_points::Steps;
use vbts_host::exit::Failure;
use vbts_host::sandbox::Sandbox;
use vbts_host::{Alarm, Event, EventLoop};
use virtual_time::Schedule;

/// A machine with a guest in it.
#[derive(Debug)]
pub struct Machine {
    vcpus: Vec<Vcpu>,
    board: Arc<Board>,
    /// Keeps the mapping alive that the processors access.
    memory: GuestMemory,
    console: Shared<Console>,
    alarm: Arc<Alarm>,
    /// It exists before the process enters the sandbox, which allows no new descriptors.
    events: EventLoop,
    sandbox: Option<Sandbox>,
    /// The clock of the processors if each has a thread of its own.
    host_clock: Option<HostClock>,
    vm: Option<Vm>,
    schedule: Schedule,
    steps: Steps,
    inputs: Inputs,
    /// Virtual time in ns at which the run loop stops for an event of the host.
    event_at: Option<u64>,
    /// The host time that the runs have taken, if it is measured.
    host_time: Option<HostTime>,
}

impl Machine {
    /// Creates a machine with as many processors as the board has. The first is in `state`, the
    /// others wait for a start-up IPI. `console` is the output of the board's serial port. `alarm`
    /// can end the run. The process enters `sandbox` when the first run begins.
    ///
    /// # Errors
    /// The host is out of file descriptors.
    pub(crate) fn new(
        model: &'static Model,
        board: Board,
        memory: GuestMemory,
        state: &ArchState,
        console: Shared<Console>,
        alarm: Arc<Alarm>,
        sandbox: Option<Sandbox>,
    ) -> Result<Self, Failure> {
        let events = EventLoop::new(alarm.clone())?;
        let board = Arc::new(board);
        let count = board.signals().len() as u8;
        // SAFETY: the machine owns the processors and the memory.
        let ram = unsafe { memory::cpu_view(&memory) };
        let vcpu = |id: u8| {
            let platform = VcpuPlatform::new(board.clone(), id.into());
            let signals = platform.signals();
            let mut cpu = Cpu::new(model, ram.clone(), Arc::new(platform), signals);
            cpu.set_topology(Topology { id, count });
            if id == 0 {
                cpu.load_state(state);
            } else {
                cpu.load_state(&ArchState {
                    activity: Activity::WaitForSipi,
                    ..ArchState::after_reset(model)
                });
            }
            let mut vcpu = Vcpu::new(SoftCpu::new(cpu));
            vcpu.observe_dma(DmaObserver::new(memory.clone()));
            vcpu
        };
        Ok(Self {
            vcpus: (0..count).map(vcpu).collect(),
            board: board.clone(),
            memory,
            console,
            alarm,
            events,
            sandbox,
            host_clock: None,
            vm: None,
            schedule: Schedule::default(),
            steps: Steps::default(),
            inputs: Inputs::default(),
            event_at: None,
            host_time: None,
        })
    }

    /// Has the software CPU make native code of what runs often.
    ///
    /// # Errors
    /// The host makes no memory executable, or its processor is too old.
    pub fn translate_blocks(&mut self, options: NativeOptions) -> io::Result<()> {
        let mut vcpus = self.vcpus.iter_mut();
        vcpus.try_for_each(|vcpu| vcpu.soft_mut().translate_blocks(options))
    }

    /// Tells `listener` of the native code of all processors.
    pub fn listen_to_native_code(&mut self, listener: &Arc<Mutex<dyn NativeListener>>) {
        for vcpu in &mut self.vcpus {
            vcpu.soft_mut().listen_to_native_code(listener.clone());
        }
    }

    /// Runs the processors on the host's time. Each then has a thread of its own, and two runs
    /// differ.
    pub fn use_host_clock(&mut self) {
        let clock = HostClock::in_nanoseconds();
        for vcpu in &mut self.vcpus {
            vcpu.use_host_clock(clock);
        }
        self.host_clock = Some(clock);
    }

    /// [`Self::use_host_clock`], with the processors on `vm`, which has this machine's memory and
    /// as many processors.
    ///
    /// # Errors
    /// KVM rejects a state or a setting.
    pub fn accelerate(&mut self, mut vm: Vm) -> Result<(), Failure> {
        let clock = HostClock::new(vm.tsc_khz());
        let tsc_offset = clock.tsc().wrapping_neg();
        for (vcpu, fd) in self.vcpus.iter_mut().zip(vm.take_vcpus()) {
            let signals = vcpu.soft().cpu.signals().clone();
            let kvm = KvmVcpu::new(fd, signals, vm.passes_bts_through());
            vcpu.accelerate(kvm, clock, tsc_offset)?;
        }
        self.host_clock = Some(clock);
        self.vm = Some(vm);
        Ok(())
    }

    /// Logs the branches that the software CPU executes from now on. `log` makes a log. Processors
    /// that take turns share one, so that it has their branches in the order of time.
    pub fn record(&mut self, mut log: impl FnMut() -> Box<BranchLog>) {
        if self.host_clock.is_some() {
            for vcpu in &mut self.vcpus {
                vcpu.attach_log(log());
            }
        } else {
            self.record_in(log());
        }
    }

    /// Logs the branches in `log`, of processors that take turns.
    pub fn record_in(&mut self, log: Box<BranchLog>) {
        if let Some(vcpu) = self.vcpus.get_mut(self.schedule.cpu()) {
            vcpu.attach_log(log);
        }
    }

    /// Hands over what the logs have, and logs no more.
    pub fn end_recording(&mut self) {
        self.vcpus.iter_mut().for_each(Vcpu::end_log);
    }

    /// Records the inputs of the run, or takes them out of a recording.
    pub(crate) fn set_inputs(&mut self, inputs: Inputs) {
        self.inputs = inputs;
    }

    /// Records the end of a run with the exit status `status`. The `reason` is that of the host, if
    /// the guest did not end the run. Returns the size of the recording in bytes.
    ///
    /// # Errors
    /// The recording cannot be written.
    pub fn record_end(&self, status: u8, reason: Option<&str>) -> Result<u64, Failure> {
        self.inputs.record_end(self.progress(), status, reason)
    }

    /// The file at which the recording has ended before the run, because its contents are not
    /// recorded.
    pub fn recording_ended_by(&self) -> Option<String> {
        self.inputs.ended_by()
    }

    /// Compares the end of a replay with that of the recorded run, which it returns.
    ///
    /// # Errors
    /// They differ.
    pub fn compare_end(&self) -> Result<RecordedEnd, Failure> {
        self.inputs.compare_end(self.progress())
    }

    /// Keeps what the guest writes to its console behind the present position.
    pub fn keep_console_from_here(&mut self) {
        lock(&self.console).keep_from_here();
    }

    /// Takes what the guest has written to its console for the first time since then.
    pub fn take_console(&mut self) -> Vec<u8> {
        lock(&self.console).take_kept()
    }

    /// The board.
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// Runs the guest until it ends the run.
    ///
    /// # Errors
    /// The guest crashed, the time limit was reached, or `observer` ended it.
    pub fn run(&mut self, observer: &mut dyn RunObserver) -> Result<End, Failure> {
        loop {
            if let Some(end) = self.run_until(u64::MAX, observer)? {
                return Ok(end);
            }
        }
    }

    /// Runs the guest until it ends the run, or until virtual time `pause` in ns, which an idle
    /// guest skips. Returns `None` in the latter case: the next call continues as if there had been
    /// no pause. On the host's time there is no pause.
    ///
    /// Each call restarts the time limit.
    ///
    /// # Errors
    /// The guest crashed, the time limit was reached, or `observer` ended it.
    pub fn run_until(
        &mut self,
        pause: u64,
        observer: &mut dyn RunObserver,
    ) -> Result<Option<End>, Failure> {
        self.alarm.start_timer()?;
        let began = Instant::now();
        let outcome = match self.host_clock {
            Some(clock) => self.run_on_host_time(clock, observer).map(Some),
            None => self.run_on_virtual_time(pause, observer),
        };
        if let Some(time) = &mut self.host_time {
            time.total += began.elapsed();
        }
        self.alarm.end_run();
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

    /// Starts the threads of a run on virtual time, and enters the sandbox, which the first run
    /// would do: for what is read before and is not trusted.
    ///
    /// # Errors
    /// The host starts no thread, or cannot confine the process.
    pub fn enter_sandbox(&mut self) -> Result<(), Failure> {
        self.alarm.start_timer()?;
        let confined = self.confine();
        self.alarm.end_run();
        confined
    }

    /// Enters the sandbox, if there is one to enter. From here on the process creates no descriptor
    /// for itself and starts no thread.
    fn confine(&mut self) -> Result<(), Failure> {
        match self.sandbox.take() {
            Some(sandbox) => sandbox.enter(),
            None => Ok(()),
        }
    }

    fn status(&self) -> MachineStatus<'_> {
        MachineStatus {
            board: &self.board,
            console: &self.console,
            alarm: &self.alarm,
        }
    }

    /// The last process that Linux has killed because it was out of memory: its number and name.
    pub fn killed_for_memory(&self) -> Option<String> {
        lock(&self.console).killed_for_memory()
    }

    /// See [`Console::refused_memory`](crate::console::Console::refused_memory).
    pub fn refused_memory(&self) -> Option<(String, u64)> {
        lock(&self.console).refused_memory()
    }

    /// The failure of a guest that crashed for `reason`.
    pub fn crashed(&self, reason: &str) -> Failure {
        self.status().crashed(reason)
    }

    /// The failure of a guest that was still running at the time limit.
    pub fn timed_out(&self) -> Failure {
        self.status().timed_out()
    }

    /// Replaces [`Failure::Interrupted`], of the trace of a run that has ended, by its cause.
    pub fn name_interrupted_trace(&self, failure: Failure) -> Failure {
        match self.name_interruption(failure) {
            Failure::Timeout { after, .. } => Failure::WritingTimeout { after },
            failure => failure,
        }
    }

    /// Replaces [`Failure::Interrupted`] by its cause, a signal or the time limit.
    fn name_interruption(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Interrupted => match self.alarm.cause() {
                Some(Event::Timeout) => self.status().timed_out(),
                Some(Event::Signal(signal)) => Failure::Signal(signal),
                None => failure,
            },
            failure => failure,
        }
    }
}

#[cfg(test)]
mod dma_tests;
#[cfg(test)]
mod tests;
