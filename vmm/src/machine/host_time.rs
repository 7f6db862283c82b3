//! The run loop on the host's time: one thread per processor, and the machine's thread, which
//! serves timers, the host's files and signals.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vbts_cpu::{Exit, HostClock, Signals};
use vbts_devices::lock;

use super::end::{MAX_SLEEPS_WITH_INTERRUPTS_OFF, MachineStatus};
use super::idle::IdleProcessors;
use super::{End, Machine, RunObserver};
use crate::board::Board;
use crate::vcpu::Vcpu;
use vbts_host::exit::Failure;
use vbts_host::sandbox::{ThreadKind, confine_thread};
use vbts_host::{Alarm, EventLoop, Waker};

/// State that the processors' threads share with the machine's thread.
#[derive(Debug)]
struct SharedState<'a> {
    board: &'a Board,
    alarm: &'a Alarm,
    /// Blocks the processors until the process is in the sandbox.
    start: Barrier,
    stop: AtomicBool,
    /// Wakes the machine's thread.
    waker: Waker,
    /// The deadline in ns at which the machine's thread wakes by itself.
    armed: AtomicU64,
    idle: IdleProcessors,
    /// Why a processor cannot continue.
    stop_reason: Mutex<Option<StopReason>>,
}

#[derive(Debug)]
enum StopReason {
    ShutDown,
    Probe,
    Failed(Failure),
}

impl SharedState<'_> {
    /// Reports to the machine's thread that a processor cannot continue.
    fn stop(&self, reason: StopReason) {
        self.stop_reason().get_or_insert(reason);
        self.waker.wake();
    }

    fn stop_reason(&self) -> MutexGuard<'_, Option<StopReason>> {
        self.stop_reason
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `vcpu`, number `cpu`, until the machine stops.
    fn run(&self, cpu: usize, vcpu: &mut Vcpu) {
        // SAFETY: the result is dropped at the end of this function, to which `vcpu` is borrowed.
        let _registration = unsafe { vcpu.register_thread() };
        self.start.wait();
        if let Err(failure) = confine_thread(ThreadKind::Processor) {
            return self.stop(StopReason::Failed(failure));
        }
        let signals = self.board.signals().get(cpu).cloned().unwrap_or_default();
        let watched = match self.alarm.watch_processor(signals) {
            Ok(watched) => watched,
            Err(error) => return self.stop(StopReason::Failed(error.into())),
        };
        let mut pauses = 0;
        while !self.stop.load(Ordering::Acquire) {
            let exit = match vcpu.run(u64::MAX) {
                Ok(exit) => exit,
                Err(failure) => return self.stop(StopReason::Failed(failure)),
            };
            watched.answer();
            tracing::trace!(cpu, ?exit);
            if self.board.has_ended() {
                // No instruction after the access that ends the run has an effect.
                return self.waker.wake();
            }
            pauses = if exit == Exit::Pause { pauses + 1 } else { 0 };
            match exit {
                Exit::Shutdown => return self.stop(StopReason::ShutDown),
                Exit::Stop => return self.stop(StopReason::Probe),
                Exit::Halt { interrupts_off } => self.wait_for_line(cpu, interrupts_off),
                Exit::Pause => pause(pauses),
                Exit::Bus | Exit::Deadline | Exit::Kick | Exit::Init => {}
            }
            let deadline = self.board.next_deadline().unwrap_or(u64::MAX);
            if self.board.take_host_work() || deadline < self.armed.load(Ordering::SeqCst) {
                self.waker.wake();
            }
        }
    }

    /// Blocks until a line into processor `cpu` is raised that wakes it.
    fn wait_for_line(&self, cpu: usize, interrupts_masked: bool) {
        let Some(signals) = self.board.signals().get(cpu) else {
            return;
        };
        let wakes = wake_lines(interrupts_masked);
        // The machine's thread then checks whether anything can still wake a processor.
        let last = || self.waker.wake();
        let count = self.board.signals().len();
        self.idle.wait(interrupts_masked, count, last, || {
            while signals.get() & wakes == 0 {
                // Raising a line unparks this thread. If that happened before, the token is set.
                std::thread::park();
            }
        });
    }
}

/// Gives up the host's processor after the `nth` [`Exit::Pause`] in a row.
///
/// The processor probably waits for a lock whose holder the host has preempted. If branches are
/// recorded, each turn of the waiting loop fills the buffer, and with interrupts off the guest
/// cannot drain it.
fn pause(nth: u32) {
    const FIRST: Duration = Duration::from_micros(50);
    const LONGEST: Duration = Duration::from_millis(3);
    match nth {
        ..=1 => std::thread::yield_now(),
        // Raising a line unparks the thread.
        _ => std::thread::park_timeout(LONGEST.min(FIRST * (1 << (nth - 2).min(8)))),
    }
}

impl Machine {
    pub(super) fn run_on_host_time(
        &mut self,
        clock: HostClock,
        observer: &mut dyn RunObserver,
    ) -> Result<End, Failure> {
        crate::kvm::kick::install_handler()?;
        let status = MachineStatus {
            board: &self.board,
            console: &self.console,
            alarm: &self.alarm,
        };
        let shared = SharedState {
            board: &self.board,
            alarm: &self.alarm,
            start: Barrier::new(self.vcpus.len() + 1),
            stop: AtomicBool::new(false),
            waker: self.events.waker()?,
            armed: AtomicU64::new(0),
            idle: IdleProcessors::default(),
            stop_reason: Mutex::new(None),
        };
        let mut service = Service {
            shared: &shared,
            status,
            clock,
            processors: self.vcpus.len(),
            sleeps_with_interrupts_off: 0,
        };
        let sandbox = self.sandbox.take();
        std::thread::scope(|scope| {
            for (cpu, vcpu) in self.vcpus.iter_mut().enumerate() {
                let shared = &shared;
                std::thread::Builder::new()
                    .name(format!("vcpu{cpu}"))
                    .spawn_scoped(scope, move || shared.run(cpu, vcpu))?;
            }
            // From here on the process opens no file and starts no thread.
            let ready = sandbox.map_or(Ok(()), |sandbox| sandbox.enter());
            if ready.is_err() {
                shared.stop.store(true, Ordering::Release);
            }
            shared.start.wait();
            let outcome = ready
                .and_then(|()| confine_thread(ThreadKind::Service))
                .and_then(|_| service.run(&mut self.events, observer));
            shared.stop.store(true, Ordering::Release);
            for signals in shared.board.signals() {
                signals.raise(Signals::KICK);
            }
            outcome
        })
    }
}

/// The work of the machine's thread: timers, the host's files and signals.
struct Service<'a> {
    shared: &'a SharedState<'a>,
    status: MachineStatus<'a>,
    clock: HostClock,
    /// Number of processors.
    processors: usize,
    /// Waits in a row during which all processors were halted with interrupts off.
    sleeps_with_interrupts_off: u32,
}

impl Service<'_> {
    /// Serves the guest until it ends.
    fn run(
        &mut self,
        events: &mut EventLoop,
        observer: &mut dyn RunObserver,
    ) -> Result<End, Failure> {
        loop {
            if let Some(end) = self.serve_devices(observer)? {
                return Ok(end);
            }
            let deadline = self.arm();
            let input = !observer.awaited_inputs().is_empty();
            if !self.check_wakeup_sources(deadline, input)? {
                continue;
            }
            let now = self.clock.now();
            let limit = deadline.map(|at| Duration::from_nanos(at.saturating_sub(now)));
            events.wait(&observer.awaited_inputs(), limit)?;
            observer.idle()?;
            self.status.take_events(observer)?;
        }
    }

    /// Serves timers and the host's side of the devices. Returns how the guest has ended, if it
    /// has.
    fn serve_devices(&self, observer: &mut dyn RunObserver) -> Result<Option<End>, Failure> {
        let board = self.shared.board;
        board.tick(self.clock.now());
        observer.after_exit(board, self.clock.now())?;
        lock(self.status.console).flush();
        if let Some(end) = self.status.ended()? {
            return Ok(Some(end));
        }
        let reason = self.shared.stop_reason().take();
        match reason {
            Some(StopReason::ShutDown) => Err(self.status.shut_down()),
            Some(StopReason::Probe) => Ok(Some(End::Stop)),
            Some(StopReason::Failed(failure)) => Err(failure),
            None => Ok(None),
        }
    }

    /// Publishes and returns the next deadline in ns. A processor that sets an earlier one from now
    /// on wakes this thread.
    fn arm(&self) -> Option<u64> {
        loop {
            let deadline = self.shared.board.next_deadline();
            self.shared
                .armed
                .store(deadline.unwrap_or(u64::MAX), Ordering::SeqCst);
            // A processor may have set an earlier deadline before it could read `armed`.
            if self.shared.board.next_deadline() == deadline {
                return deadline;
            }
        }
    }

    /// Checks, if all processors are idle, that something can wake one: a timer at `deadline`, or
    /// awaited `input`. Returns false if a processor has set another deadline before it became
    /// idle.
    fn check_wakeup_sources(
        &mut self,
        deadline: Option<u64>,
        input: bool,
    ) -> Result<bool, Failure> {
        let board = self.shared.board;
        let all_idle = self.shared.idle.check(
            self.processors,
            |interrupts_masked| has_pending_wakeup(board, interrupts_masked),
            || board.next_deadline(),
        );
        match all_idle {
            Some(idle) if idle.observed != deadline => return Ok(false),
            Some(idle) if deadline.is_none() && (!input || idle.interrupts_masked) => {
                return Err(self.status.no_wakeup_source());
            }
            Some(idle) if idle.interrupts_masked => {
                self.sleeps_with_interrupts_off += 1;
                if self.sleeps_with_interrupts_off > MAX_SLEEPS_WITH_INTERRUPTS_OFF {
                    return Err(self.status.halted_with_interrupts_off());
                }
            }
            _ => self.sleeps_with_interrupts_off = 0,
        }
        Ok(true)
    }
}

/// Whether a line is raised that would wake one of the processors. `interrupts_masked` is true if
/// maskable interrupts wake none of them.
fn has_pending_wakeup(board: &Board, interrupts_masked: bool) -> bool {
    let wakes = wake_lines(interrupts_masked);
    let raised = |signals: &Arc<Signals>| signals.get() & wakes != 0;
    board.signals().iter().any(raised)
}

/// The lines that wake a processor, given whether it masks maskable interrupts.
fn wake_lines(interrupts_masked: bool) -> u32 {
    let always = Signals::KICK | Signals::INIT | Signals::NMI;
    if interrupts_masked {
        always
    } else {
        always | Signals::INTR
    }
}
