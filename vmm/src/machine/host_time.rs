//! The run loop on the host's time: one thread per processor, and the machine's thread, which serves
//! timers, the host's files and signals.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::time::Duration;

use vbts_cpu::{Exit, HostClock, Signals};
use vbts_devices::lock;

use super::idle::IdleProcessors;
use super::{End, MAX_SLEEPS_WITH_INTERRUPTS_OFF, Machine, MachineStatus, RunObserver};
use crate::board::Board;
use crate::exit::Failure;
use crate::host::{EventLoop, Waker};
use crate::vcpu::Vcpu;

/// What the processors' threads share with the machine's thread.
#[derive(Debug)]
struct Common<'a> {
    board: &'a Board,
    /// Holds the processors back until the process is in the sandbox.
    gate: Barrier,
    stop: AtomicBool,
    /// Wakes the machine's thread.
    waker: Waker,
    /// When the machine's thread wakes by itself, in ns.
    armed: AtomicU64,
    idle: IdleProcessors,
    /// Why a processor cannot continue.
    end: Mutex<Option<Stop>>,
}

#[derive(Debug)]
enum Stop {
    ShutDown,
    Failed(Failure),
}

impl Common<'_> {
    fn stop(&self, why: Stop) {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        end.get_or_insert(why);
        drop(end);
        self.waker.wake();
    }

    /// Runs `vcpu`, number `cpu`, until the machine stops.
    fn run(&self, cpu: usize, vcpu: &mut Vcpu) {
        let _registration = vcpu.register_thread();
        self.gate.wait();
        let mut pauses = 0;
        while !self.stop.load(Ordering::Acquire) {
            let exit = match vcpu.run(u64::MAX) {
                Ok(exit) => exit,
                Err(failure) => return self.stop(Stop::Failed(failure)),
            };
            tracing::trace!(cpu, ?exit);
            pauses = if exit == Exit::Pause { pauses + 1 } else { 0 };
            match exit {
                Exit::Shutdown => return self.stop(Stop::ShutDown),
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
        events: &mut EventLoop,
        observer: &mut dyn RunObserver,
    ) -> Result<End, Failure> {
        crate::kvm::kick::install_handler()?;
        let status = MachineStatus {
            board: &self.board,
            console: &self.console,
            alarm: &self.alarm,
        };
        let common = Common {
            board: &self.board,
            gate: Barrier::new(self.vcpus.len() + 1),
            stop: AtomicBool::new(false),
            waker: events.waker()?,
            armed: AtomicU64::new(0),
            idle: IdleProcessors::default(),
            end: Mutex::new(None),
        };
        let count = self.vcpus.len();
        let sandbox = self.sandbox.take();
        std::thread::scope(|scope| {
            for (cpu, vcpu) in self.vcpus.iter_mut().enumerate() {
                let common = &common;
                std::thread::Builder::new()
                    .name(format!("vcpu{cpu}"))
                    .spawn_scoped(scope, move || common.run(cpu, vcpu))?;
            }
            // From here on the process opens no file and starts no thread.
            let ready = sandbox.map_or(Ok(()), |sandbox| sandbox.enter());
            if ready.is_err() {
                common.stop.store(true, Ordering::Release);
            }
            common.gate.wait();
            let outcome =
                ready.and_then(|()| serve(&common, status, clock, count, events, observer));
            common.stop.store(true, Ordering::Release);
            for signals in common.board.signals() {
                signals.raise(Signals::KICK);
            }
            outcome
        })
    }
}

/// Serves timers, the host's files and signals until the guest ends.
fn serve(
    common: &Common<'_>,
    status: MachineStatus<'_>,
    clock: HostClock,
    count: usize,
    events: &mut EventLoop,
    observer: &mut dyn RunObserver,
) -> Result<End, Failure> {
    let mut masked_ticks = 0;
    loop {
        let board = common.board;
        board.tick(clock.now());
        observer.after_exit(board, clock.now())?;
        lock(status.console).flush();
        if let Some(end) = status.ended()? {
            return Ok(end);
        }
        let stop = common
            .end
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        match stop {
            Some(Stop::ShutDown) => return Err(status.shut_down()),
            Some(Stop::Failed(failure)) => return Err(failure),
            None => {}
        }
        let deadline = board.next_deadline();
        common
            .armed
            .store(deadline.unwrap_or(u64::MAX), Ordering::SeqCst);
        // A processor may have set an earlier deadline before it could read `armed`.
        if board.next_deadline() != deadline {
            continue;
        }
        let awaited = !observer.awaited_inputs().is_empty();
        let all_idle = common.idle.check(
            count,
            |interrupts_masked| has_pending_wakeup(board, interrupts_masked),
            || board.next_deadline(),
        );
        match all_idle {
            // A processor has set a timer before it became idle.
            Some(idle) if idle.observed != deadline => continue,
            Some(idle) if deadline.is_none() && (!awaited || idle.interrupts_masked) => {
                return Err(status.no_wakeup_source());
            }
            Some(idle) if idle.interrupts_masked => {
                masked_ticks += 1;
                if masked_ticks > MAX_SLEEPS_WITH_INTERRUPTS_OFF {
                    return Err(status.halted_with_interrupts_off());
                }
            }
            _ => masked_ticks = 0,
        }
        let limit = deadline.map(|at| Duration::from_nanos(at.saturating_sub(clock.now())));
        events.wait(&observer.awaited_inputs(), limit)?;
        observer.idle()?;
        status.take_events(observer)?;
    }
}

/// Whether a line is raised into any processor that would wake it. `interrupts_masked`: maskable
/// interrupts wake none of them.
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
