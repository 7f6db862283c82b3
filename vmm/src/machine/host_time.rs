//! The loop for the host's time: a thread for each processor, and this one for what the devices have to do with the
//! world and the clock.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use vbts_cpu::{Exit, HostClock, Signals};
use vbts_devices::lock;

use super::{Attendant, End, MAX_SLEEPS_WITH_INTERRUPTS_OFF, Machine, Witness};
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
    /// Processors that sleep, and those among them that only an NMI or INIT can wake.
    asleep: AtomicUsize,
    deaf: AtomicUsize,
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
        while !self.stop.load(Ordering::Acquire) {
            let exit = match vcpu.run(u64::MAX) {
                Ok(exit) => exit,
                Err(failure) => return self.stop(Stop::Failed(failure)),
            };
            tracing::trace!(cpu, ?exit);
            match exit {
                Exit::Shutdown => return self.stop(Stop::ShutDown),
                Exit::Halt { interrupts_off } => self.sleep(cpu, interrupts_off),
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
        let mut wakes = Signals::KICK | Signals::INIT | Signals::NMI;
        if !interrupts_off {
            wakes |= Signals::INTR;
        }
        self.deaf.fetch_add(interrupts_off.into(), Ordering::SeqCst);
        if self.asleep.fetch_add(1, Ordering::SeqCst) + 1 == self.board.signals().len() {
            // The machine's thread looks whether anything is left that could wake somebody.
            self.ring();
        }
        while signals.get() & wakes == 0 {
            // A line that is raised from now on unparks this thread, and a token that is there already does.
            std::thread::park();
        }
        self.asleep.fetch_sub(1, Ordering::SeqCst);
        self.deaf.fetch_sub(interrupts_off.into(), Ordering::SeqCst);
    }
}

impl Machine {
    pub(super) fn run_on_host_time(
        &mut self,
        clock: HostClock,
        attendant: &mut dyn Attendant,
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
            asleep: AtomicUsize::new(0),
            deaf: AtomicUsize::new(0),
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
            let outcome = ready.and_then(|()| attend(&common, witness, clock, count, attendant));
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
    attendant: &mut dyn Attendant,
) -> Result<End, Failure> {
    let mut deaf_ticks = 0;
    loop {
        let board = common.board;
        board.tick(clock.now());
        attendant.attend(board, clock.now())?;
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
        let idle = common.asleep.load(Ordering::SeqCst) == count;
        let deaf = common.deaf.load(Ordering::SeqCst) == count;
        let awaited = attendant.awaited_input().is_some();
        if idle && nobody_called(board) {
            if deaf {
                deaf_ticks += 1;
                if deaf_ticks > MAX_SLEEPS_WITH_INTERRUPTS_OFF {
                    return Err(witness.halted_for_ever());
                }
            }
            if deadline.is_none() && (!awaited || deaf) {
                return Err(witness.nothing_can_wake_it());
            }
        }
        if !deaf {
            deaf_ticks = 0;
        }
        let limit = deadline.map(|at| Duration::from_nanos(at.saturating_sub(clock.now())));
        let alarm = witness.alarm.fd();
        let bell = common.bell.as_fd();
        match attendant.awaited_input() {
            Some(fd) => input::wait(&[bell, alarm, fd], limit)?,
            None => input::wait(&[bell, alarm], limit)?,
        };
        let _ = rustix::io::read(&common.bell, &mut [0; 8]);
        attendant.idle()?;
        witness.take_events(attendant)?;
    }
}

/// Whether no line is raised into any processor, so that those that sleep go on sleeping.
fn nobody_called(board: &Board) -> bool {
    let wakes = Signals::KICK | Signals::INIT | Signals::NMI | Signals::INTR;
    board
        .signals()
        .iter()
        .all(|signals| signals.get() & wakes == 0)
}
