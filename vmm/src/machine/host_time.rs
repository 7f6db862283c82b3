//! The loop for the host's time: a thread for each processor, and this one for what the devices
//! have to do with the world and the clock.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use vbts_cpu::{Exit, HostClock, Signals};
use vbts_devices::lock;

use super::rest::Rest;
use super::{End, MAX_SLEEPS_WITH_INTERRUPTS_OFF, Machine, RunObserver, Witness};
use crate::board::Board;
use crate::exit::Failure;
use crate::host::input;
use crate::vcpu::Vcpu;

/// What the processors' threads and the machine's have in common.
#[derive(Debug)]
struct Common<'a> {
    board: &'a Board,
    /// All of them begin when the sandbox is closed.
    gate: Barrier,
    stop: AtomicBool,
    /// Wakes the machine's thread.
    bell: OwnedFd,
    /// When the machine's thread wakes by itself.
    armed: AtomicU64,
    rest: Rest,
    /// Why a processor cannot go on.
    end: Mutex<Option<Stop>>,
}

#[derive(Debug)]
enum Stop {
    ShutDown,
    Failed(Failure),
}

impl Common<'_> {
    fn ring(&self) {
        // It can only fail because it rings already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    fn stop(&self, why: Stop) {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        end.get_or_insert(why);
        drop(end);
        self.ring();
    }

    /// Runs `vcpu`, number `cpu`, until the machine stops.
    fn run(&self, cpu: usize, vcpu: &mut Vcpu) {
        let _listening = vcpu.listen();
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
                Exit::Halt { interrupts_off } => self.sleep(cpu, interrupts_off),
                Exit::Pause => pause(pauses),
                Exit::Bus | Exit::Deadline | Exit::Kick | Exit::Init => {}
            }
            if self.board.take_dma() {
                vcpu.soft_mut().revalidate();
            }
            let deadline = self.board.next_deadline().unwrap_or(u64::MAX);
            if self.board.take_news() || deadline < self.armed.load(Ordering::SeqCst) {
                self.ring();
            }
        }
    }

    /// Until a line into processor `cpu` is raised.
    fn sleep(&self, cpu: usize, interrupts_off: bool) {
        let Some(signals) = self.board.signals().get(cpu) else {
            return;
        };
        let wakes = wakes(interrupts_off);
        // The machine's thread looks whether anything is left that could wake somebody.
        let last = || self.ring();
        let count = self.board.signals().len();
        self.rest.sleep(interrupts_off, count, last, || {
            while signals.get() & wakes == 0 {
                // A line that is raised from now on unparks this thread, and a token that is there
                // already does.
                std::thread::park();
            }
        });
    }
}

/// A processor seems to wait for another, for the `nth` time in a row: lets that one have the
/// host's processor, which it may have lost with a lock in its hands. Until then each turn of the
/// waiting loop is recorded, if branches are, and with interrupts off nobody could make room for
/// them.
fn pause(nth: u32) {
    const FIRST: Duration = Duration::from_micros(50);
    const LONGEST: Duration = Duration::from_millis(3);
    match nth {
        ..=1 => std::thread::yield_now(),
        // A line that is raised ends it.
        _ => std::thread::park_timeout(LONGEST.min(FIRST * (1 << (nth - 2).min(8)))),
    }
}

impl Machine {
    pub(super) fn run_on_host_time(
        &mut self,
        clock: HostClock,
        observer: &mut dyn RunObserver,
    ) -> Result<End, Failure> {
        crate::kvm::doorbell::install_handler()?;
        let witness = Witness {
            board: &self.board,
            console: &self.console,
            alarm: &self.alarm,
        };
        let common = Common {
            board: &self.board,
            gate: Barrier::new(self.vcpus.len() + 1),
            stop: AtomicBool::new(false),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            armed: AtomicU64::new(0),
            rest: Rest::default(),
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
            // The last file is open and the last thread has been started.
            let ready = sandbox.map_or(Ok(()), |sandbox| sandbox.enter());
            if ready.is_err() {
                common.stop.store(true, Ordering::Release);
            }
            common.gate.wait();
            let outcome = ready.and_then(|()| attend(&common, witness, clock, count, observer));
            common.stop.store(true, Ordering::Release);
            for signals in common.board.signals() {
                signals.raise(Signals::KICK);
            }
            outcome
        })
    }
}

/// The machine's thread: timers, the host's files, and the end.
fn attend(
    common: &Common<'_>,
    witness: Witness<'_>,
    clock: HostClock,
    count: usize,
    observer: &mut dyn RunObserver,
) -> Result<End, Failure> {
    let mut deaf_ticks = 0;
    loop {
        let board = common.board;
        board.tick(clock.now());
        observer.after_exit(board, clock.now())?;
        lock(witness.console).flush();
        if let Some(end) = witness.ended()? {
            return Ok(end);
        }
        let stop = common
            .end
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        match stop {
            Some(Stop::ShutDown) => return Err(witness.shut_down()),
            Some(Stop::Failed(failure)) => return Err(failure),
            None => {}
        }
        let deadline = board.next_deadline();
        common
            .armed
            .store(deadline.unwrap_or(u64::MAX), Ordering::SeqCst);
        // A processor may have asked for an earlier one before it could see when this thread wakes.
        if board.next_deadline() != deadline {
            continue;
        }
        let awaited = !observer.awaited_inputs().is_empty();
        let rest = common.rest.of_all(
            count,
            |deaf| is_called(board, deaf),
            || board.next_deadline(),
        );
        match rest {
            // A processor has set a timer before it went to sleep.
            Some(rest) if rest.seen != deadline => continue,
            Some(rest) if deadline.is_none() && (!awaited || rest.deaf) => {
                return Err(witness.nothing_can_wake_it());
            }
            Some(rest) if rest.deaf => {
                deaf_ticks += 1;
                if deaf_ticks > MAX_SLEEPS_WITH_INTERRUPTS_OFF {
                    return Err(witness.halted_for_ever());
                }
            }
            _ => deaf_ticks = 0,
        }
        let limit = deadline.map(|at| Duration::from_nanos(at.saturating_sub(clock.now())));
        let mut awaited = observer.awaited_inputs();
        awaited.extend([common.bell.as_fd(), witness.alarm.fd()]);
        input::wait(&awaited, limit)?;
        let _ = rustix::io::read(&common.bell, &mut [0; 8]);
        observer.idle()?;
        witness.take_events(observer)?;
    }
}

/// Whether a line is raised into any processor that would wake it. `deaf`: none of them takes
/// maskable interrupts.
fn is_called(board: &Board, deaf: bool) -> bool {
    let wakes = wakes(deaf);
    let raised = |signals: &Arc<Signals>| signals.get() & wakes != 0;
    board.signals().iter().any(raised)
}

/// The lines that wake a processor; `deaf`: one that takes no maskable interrupts.
fn wakes(deaf: bool) -> u32 {
    let always = Signals::KICK | Signals::INIT | Signals::NMI;
    if deaf { always } else { always | Signals::INTR }
}
