//! Runs a processor: the run loop, cached blocks, and the events between two instructions.

mod boundary;
mod cache;
mod instruction;
mod lookup;
mod native;
mod run;
mod validity;

use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};

use crate::backend::jit::{Jit, NativeListener, NativeOptions, NativeStats};
use crate::engine::cache::BlockCache;
use crate::mmu::translations::Translations;
use crate::processor::clock::Clock;
use crate::processor::cpu::Cpu;
use crate::processor::stop_points::StopPoints;
use crate::state::ArchState;

/// Longest run of [`SoftCpu::run`] in instructions when time is the host's: some 50 µs.
const SLICE: u64 = 20_000;

/// Why [`SoftCpu::run`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The time limit was reached. When time is the host's, the run may end earlier.
    Deadline,
    /// The machine was accessed: deadlines may have changed, and memory may have been written by a
    /// device.
    Bus,
    /// HLT or wait-for-SIPI, and no signal wakes the processor: advance the time to the next event,
    /// if one can come.
    Halt {
        /// Maskable interrupts are off: only an NMI can wake the processor.
        interrupts_off: bool,
    },
    /// The processor seems to wait for another (see `spin`), which should run first.
    Pause,
    /// [`Signals::KICK`](crate::Signals::KICK) was raised.
    Kick,
    /// [`Signals::INIT`](crate::Signals::INIT) is raised.
    Init,
    /// Triple fault.
    Shutdown,
    /// The processor is at a probe with [`ProbeAction::Stop`](crate::ProbeAction::Stop), or at one
    /// of its [`StopPoints`].
    Stop,
}

/// Everything that decides how a processor continues, with the translations in its TLB.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The architectural state.
    pub state: ArchState,
    translations: Translations,
}

impl Snapshot {
    /// Size in bytes, about.
    pub fn size(&self) -> usize {
        size_of_val(self) + self.translations.size()
    }
}

/// A processor that is run in software, and its decoded code.
#[derive(Debug)]
pub struct SoftCpu {
    /// The processor.
    pub cpu: Cpu,
    cache: BlockCache,
    /// Native code, if blocks are translated.
    jit: Option<Box<Jit>>,
}

impl SoftCpu {
    /// Runs `cpu` in software, with no code decoded yet. The processors of its topology share the
    /// memory for decoded code.
    pub fn new(cpu: Cpu) -> Self {
        let cache = BlockCache::new(cpu.ram.end(), cpu.topology.count.into());
        let jit = None;
        Self { cpu, cache, jit }
    }

    /// Has blocks that run often translated to native code. Nothing that a guest can observe
    /// depends on it. The processors of the topology share the memory for native code. It is mapped
    /// here, and none becomes executable later.
    ///
    /// # Errors
    /// The host refuses to map it, its processor is too old, or the RAM lies in no
    /// [`Reservation`](crate::Reservation).
    pub fn translate_blocks(&mut self, options: NativeOptions) -> std::io::Result<()> {
        let Some(reservation) = self.cpu.ram.reservation() else {
            return Err(std::io::Error::other(
                "guest memory does not lie in 4 GiB of addresses: there is more than 3968M of it, \
                 or the host refuses to reserve 8 GiB of addresses (ulimit -v)",
            ));
        };
        let processors = self.cpu.topology.count.into();
        let jit = Jit::new(processors, reservation.clone(), options)?;
        self.jit = Some(Box::new(jit));
        Ok(())
    }

    /// Tells `listener` of the native code of all blocks that are translated from now on.
    pub fn listen_to_native_code(&mut self, listener: Arc<Mutex<dyn NativeListener>>) {
        if let Some(jit) = &mut self.jit {
            jit.listen(listener);
        }
    }

    /// Counts of the native code; zero if there is none.
    pub fn native_code(&self) -> NativeStats {
        self.jit.as_ref().map(|jit| jit.stats()).unwrap_or_default()
    }

    /// Skips time that passes while the processor is halted, up to virtual time `now` in
    /// nanoseconds.
    pub fn advance_to(&mut self, now: u64) {
        self.cpu.skipped += now.saturating_sub(self.cpu.now());
    }

    /// Invalidates decoded code, of all processors, and cached DS-area state of the guest-physical
    /// page at `gpa`, which this processor or a device has written.
    pub fn invalidate_page(&mut self, gpa: u64) {
        if !self.cpu.is_write_tracked(gpa) {
            return;
        }
        self.cpu.window.close();
        if self.cpu.ram.code_map().clear(gpa) {
            self.cache.invalidate(gpa);
            self.cpu.update_write_tracking(gpa);
            // Also without a block of the page: one of the page before can go on in it.
            self.cpu.new_generation();
        }
    }

    /// Invalidates the decoded code of the pages that other processors have written.
    fn observe_code_changes(&mut self) {
        if !self.cpu.ram.code_map().has_changes() {
            return;
        }
        let changes = self.cpu.ram.code_map().take_changes();
        let mut removed = false;
        for gpa in changes.pages {
            removed |= self.cache.invalidate(gpa);
        }
        self.cpu.update_all_write_tracking();
        if removed || changes.is_overwritten {
            self.cpu.new_generation();
        }
    }

    /// Replaces the places at which the processor stops for a debugger.
    pub fn set_stop_points(&mut self, points: StopPoints) {
        // Code that was made without a second lookup would call Rust's code for each access to the
        // page. It is not made again for later watchpoints.
        if !points.watchpoints.is_empty()
            && let Some(jit) = &mut self.jit
            && !std::mem::replace(&mut jit.watches, true)
        {
            self.forget_code();
        }
        self.cpu.set_stop_points(points);
    }

    /// Compares decoded code with memory before it is used again: it may have changed untracked, as
    /// while another accelerator ran the processor.
    pub fn revalidate(&mut self) {
        self.cache.revalidate(&mut self.cpu);
    }

    /// Does the work that is due before the next instruction, or else runs that instruction.
    pub fn step(&mut self) -> Option<Exit> {
        self.enter(self.cpu.icount + 1);
        let exit = self.boundary();
        self.cpu.leave_run();
        exit
    }

    /// The state from which a processor continues as this one does. A state has no translations:
    /// this processor flushes its TLB, too, because a guest can observe that.
    pub fn checkpoint(&mut self) -> ArchState {
        self.cpu.flush_tlb(false);
        self.cpu.state()
    }

    /// Enters the pages that the processor can write unnoticed into those of
    /// [`GuestRam::take_written_pages`](crate::GuestRam::take_written_pages).
    pub fn note_writable_pages(&mut self) {
        self.cpu.note_writable_pages();
    }

    /// The state from which a processor of the same machine continues exactly as this one does,
    /// which does not observe it.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            state: self.cpu.state(),
            translations: self.cpu.tlb.save(),
        }
    }

    /// Puts the processor into the state of a snapshot. Decoded code stays: the caller invalidates
    /// the pages whose contents change. A log of branches is not attached. Stop points stay, and
    /// that of the instruction at RIP counts as passed.
    ///
    /// Returns whether the snapshot can be one of this machine. If not, the processor must not run.
    #[must_use]
    pub fn restore_snapshot(&mut self, snapshot: &Snapshot) -> bool {
        let cpu = &mut self.cpu;
        cpu.load_state(&snapshot.state);
        cpu.leave_stop();
        cpu.load_translations(&snapshot.translations)
    }

    /// Runs until `deadline`, a time in nanoseconds, or until something needs the caller. On
    /// [`Clock::Instructions`] the run ends at the deadline exactly, and what follows does not
    /// depend on where runs have ended.
    pub fn run(&mut self, deadline: u64) -> Exit {
        self.enter(match self.cpu.clock {
            Clock::Instructions => deadline.saturating_sub(self.cpu.skipped),
            Clock::Host(_) => self.cpu.icount + SLICE,
        });
        // An instruction that starts or stops a counter ends the run.
        let exit = if self.cpu.pmu.branches_count {
            self.run_blocks::<true, false>()
        } else if self.jit.is_some() {
            self.run_blocks::<false, true>()
        } else {
            self.run_blocks::<false, false>()
        };
        self.cpu.leave_run();
        exit
    }

    /// Prepares a run up to `limit` of [`Cpu`]'s `icount`.
    fn enter(&mut self, limit: u64) {
        // Other processors have run meanwhile and may have written the DS area.
        if self.cpu.topology.count > 1 {
            self.cpu.window.close();
        }
        self.observe_code_changes();
        self.cpu.enter_run(limit);
    }
}
