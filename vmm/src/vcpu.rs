//! A virtual processor, which runs on KVM while no branch has to be recorded and no performance
//! counter counts, and on the software CPU otherwise.
//!
//! The state can move between the two at any instruction boundary. State that only one of them has
//! does not move. In particular the software CPU's table serves the MSRs that are not part of
//! [`ArchState`] on both.

use std::ptr::null_mut;
use std::sync::Arc;

use vbts_cpu::{ArchState, BranchLog, Clock, Exit, HostClock, Signals, Snapshot, SoftCpu, Startup};

use vbts_devices::DmaObserver;

use crate::kvm::kick::{ThreadRegistration, VcpuKick};
use crate::kvm::{ExitReason, KvmVcpu};
use vbts_host::exit::Failure;

/// Instructions to execute on the software CPU after tracing ends before handing back to KVM.
///
/// A kernel that switches away from a traced task often switches back soon. A round trip costs 2500
/// to 10000 instructions (`ci/bench`). Waiting for about that long costs at most twice the optimum
/// (the ski-rental bound).
const HANDBACK_DELAY: u64 = 5_000;

/// Instructions to execute on the software CPU after the guest has locked the bus of the host's
/// processors, some milliseconds: a guest that does so again and again is slow, not its host.
const BUS_LOCK_DELAY: u64 = 1_000_000;

/// Number of hand-overs between the accelerators.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HandoverStats {
    /// From KVM to the software CPU, because tracing or a performance counter was turned on, or
    /// because the guest has locked the bus.
    pub to_soft: u64,
    /// From the software CPU back to KVM.
    pub to_kvm: u64,
    /// Single instructions that KVM could not emulate.
    pub emulated: u64,
}

impl std::iter::Sum for HandoverStats {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |a, b| Self {
            to_soft: a.to_soft + b.to_soft,
            to_kvm: a.to_kvm + b.to_kvm,
            emulated: a.emulated + b.emulated,
        })
    }
}

/// The beginning of the warning about a DS area with which a processor may do anything. `vbts test`
/// looks for it.
pub const MALFORMED_DS_AREA: &str = "the guest records branches with a malformed DS area";

/// Malformed DS areas of a processor that are reported one by one. A guest can have any number.
const REPORTED_DS_AREAS: u64 = 16;

/// A virtual processor.
#[derive(Debug)]
pub struct Vcpu {
    soft: SoftCpu,
    kvm: Option<KvmVcpu>,
    /// Wakes the processor's thread, if it has one of its own.
    kick: Option<Arc<VcpuKick>>,
    /// KVM has the state now.
    on_kvm: bool,
    /// Instructions retired when tracing was last observed on.
    last_traced: u64,
    /// A counter was in use since the software CPU took over: see [`Self::hand_back`].
    counted: bool,
    /// Instructions retired up to which the software CPU executes the guest in any case.
    soft_until: u64,
    handovers: HandoverStats,
    /// How often the guest has begun to record with a malformed DS area.
    malformed_ds_areas: u64,
    /// The device writes that the software CPU has yet to observe.
    dma: Option<DmaObserver>,
}

impl Vcpu {
    /// Creates a processor that runs on the software CPU.
    pub fn new(soft: SoftCpu) -> Self {
        Self {
            soft,
            kvm: None,
            kick: None,
            on_kvm: false,
            last_traced: 0,
            counted: false,
            soft_until: 0,
            handovers: HandoverStats::default(),
            malformed_ds_areas: 0,
            dma: None,
        }
    }

    /// Makes the software CPU invalidate what it has cached of pages that devices write, which
    /// `dma` reports.
    pub fn observe_dma(&mut self, dma: DmaObserver) {
        self.dma = Some(dma);
    }

    /// Runs the processor on the time of `clock`, in a thread of its own.
    pub fn use_host_clock(&mut self, clock: HostClock) {
        self.soft.cpu.set_clock(Clock::Host(clock));
        self.kick = Some(VcpuKick::new(self.soft.cpu.signals()));
    }

    /// [`Self::use_host_clock`], and on `kvm` whenever possible. The guest's time-stamp counter is
    /// that of `clock` plus `tsc_offset`.
    ///
    /// # Errors
    /// KVM rejects the state or a setting.
    pub fn accelerate(
        &mut self,
        mut kvm: KvmVcpu,
        clock: HostClock,
        tsc_offset: u64,
    ) -> Result<(), Failure> {
        self.soft.cpu.set_clock(Clock::Host(clock));
        self.soft.cpu.set_tsc_offset(tsc_offset);
        self.kick = Some(kvm.kick().clone());
        kvm.attach(&mut self.soft.cpu)?;
        self.kvm = Some(kvm);
        self.enter_kvm()
    }

    /// Puts a processor that runs on the software CPU into `state`.
    pub fn restore(&mut self, state: &ArchState) {
        self.soft.cpu.load_state(state);
        self.soft.revalidate();
    }

    /// Puts a processor that runs on the software CPU into the state of `snapshot`, without a log.
    /// What it has decoded of pages that changed is invalidated when it runs. Returns whether the
    /// snapshot can be one of this processor.
    #[must_use]
    pub fn restore_snapshot(&mut self, snapshot: &Snapshot) -> bool {
        self.soft.restore_snapshot(snapshot)
    }

    /// Logs the branches that the software CPU executes from now on.
    pub fn attach_log(&mut self, log: Box<BranchLog>) {
        self.soft.cpu.attach_log(log);
        if self.on_kvm {
            self.soft.cpu.leave_log();
        }
    }

    /// Logs no more branches. Returns the log.
    pub fn detach_log(&mut self) -> Option<Box<BranchLog>> {
        self.soft.cpu.detach_log()
    }

    /// Hands over what the log has.
    pub fn flush_log(&mut self) {
        self.soft.cpu.flush_log();
    }

    /// Hands over what the log has, and detaches it.
    pub fn end_log(&mut self) {
        self.soft.cpu.flush_log();
        self.detach_log();
    }

    /// The software CPU.
    pub fn soft(&self) -> &SoftCpu {
        &self.soft
    }

    /// The software CPU.
    pub fn soft_mut(&mut self) -> &mut SoftCpu {
        &mut self.soft
    }

    /// Number of hand-overs so far.
    pub fn handovers(&self) -> HandoverStats {
        self.handovers
    }

    /// Binds the processor to the calling thread until the result is dropped: raising a line into
    /// the processor wakes the thread. `None` on virtual time, on which one thread runs all
    /// processors.
    ///
    /// # Safety
    /// The result is dropped by the same thread, and before `self`.
    pub unsafe fn register_thread(&mut self) -> Option<ThreadRegistration> {
        let immediate_exit = self
            .kvm
            .as_mut()
            .map_or(null_mut(), KvmVcpu::immediate_exit);
        let kick = self.kick.as_ref()?;
        // SAFETY: the caller's promise, and `kvm` lives as long as `self`.
        Some(unsafe { kick.register_thread(immediate_exit) })
    }

    /// Whether the processor is halted or waits for a start-up IPI, and no line wakes it. Not valid
    /// for a processor on KVM.
    pub fn is_idle(&self) -> bool {
        self.soft.cpu.is_idle()
    }

    /// Whether only an NMI or INIT can wake the processor.
    pub fn interrupts_masked(&self) -> bool {
        !self.soft.cpu.interrupts_enabled()
    }

    /// The state, from the accelerator that has it.
    ///
    /// # Errors
    /// KVM cannot save it.
    pub fn state(&mut self) -> Result<ArchState, Failure> {
        let mut state = self.soft.cpu.state();
        if self.on_kvm
            && let Some(kvm) = &mut self.kvm
        {
            kvm.save(self.soft.cpu.platform(), &mut state)?;
            state.sys.pdpte = self.soft.cpu.pdptes(&state.sys);
        }
        Ok(state)
    }

    /// Runs until `deadline`, in ns, or until an event that the caller has to handle. On the host's
    /// time it can return [`Exit::Deadline`] at any time.
    ///
    /// # Errors
    /// KVM fails, or neither accelerator can execute an instruction.
    pub fn run(&mut self, deadline: u64) -> Result<Exit, Failure> {
        self.invalidate_written_pages();
        loop {
            if self.on_kvm && self.needs_soft() {
                self.leave_kvm()?;
                self.handovers.to_soft += 1;
            }
            let exit = match &mut self.kvm {
                Some(kvm) if self.on_kvm => match kvm.run(&mut self.soft.cpu)? {
                    ExitReason::Common(exit) => exit,
                    ExitReason::DebugCtl => continue,
                    ExitReason::EmulationFailure => return self.emulate_one(),
                    ExitReason::BusLock => return self.slow_down(),
                },
                _ => {
                    self.check_ds_area();
                    self.soft.run(deadline)
                }
            };
            if exit == Exit::Init {
                if let Some(event) = self.soft.cpu.platform().take_startup() {
                    self.startup(event)?;
                }
                continue;
            }
            self.hand_back(exit)?;
            return Ok(exit);
        }
    }

    /// How often the guest has begun to record with a malformed DS area.
    pub fn malformed_ds_areas(&self) -> u64 {
        self.malformed_ds_areas
    }

    /// Reports a malformed DS area with which the guest begins to record.
    fn check_ds_area(&mut self) {
        let Some(area) = self.soft.cpu.check_armed_ds_area() else {
            return;
        };
        self.malformed_ds_areas += 1;
        if self.malformed_ds_areas <= REPORTED_DS_AREAS {
            tracing::warn!(
                rip = format_args!("{:#x}", self.soft.cpu.rip),
                ds_area = format_args!("{:#x}", area.la),
                fields = format_args!("{:x?}", area.fields),
                "{MALFORMED_DS_AREA}: {}",
                area.reason
            );
        }
    }

    /// Invalidates what the software CPU has cached of pages that devices have written.
    fn invalidate_written_pages(&mut self) {
        if let Some(dma) = &mut self.dma {
            self.soft.cpu.signals().lower(Signals::DMA);
            dma.take(|gpa| self.soft.invalidate_page(gpa));
        }
    }

    /// Handles INIT or a start-up IPI. A start-up IPI has an effect only after INIT (SDM Vol. 3A
    /// 8.4.3).
    fn startup(&mut self, event: Startup) -> Result<(), Failure> {
        let state = match event {
            Startup::Init => {
                self.leave_kvm()?;
                self.soft.cpu.state().after_init(self.soft.cpu.model())
            }
            Startup::StartUp(vector) if self.soft.cpu.waits_for_startup() => {
                let mut state = self.soft.cpu.state();
                state.start_up(vector);
                state
            }
            Startup::StartUp(_) => return Ok(()),
        };
        self.soft.cpu.load_state(&state);
        self.enter_kvm()
    }

    /// Whether only the software CPU can execute the next instruction: branches are recorded or
    /// single-stepped, or events are counted.
    fn needs_soft(&self) -> bool {
        let cpu = &self.soft.cpu;
        let passes_through = self.kvm.as_ref().is_some_and(KvmVcpu::passes_bts_through);
        cpu.watches_branches() && !passes_through || cpu.uses_last_branches() || cpu.uses_counters()
    }

    /// Hands the processor to KVM, if there is one. A processor that has shut down or waits for a
    /// start-up IPI stays on the software CPU, since our KVM processors have no such states.
    ///
    /// # Errors
    /// KVM rejects the state.
    pub fn enter_kvm(&mut self) -> Result<(), Failure> {
        let cpu = &self.soft.cpu;
        if let Some(kvm) = &mut self.kvm
            && !cpu.has_shut_down()
            && !cpu.waits_for_startup()
        {
            kvm.load(cpu)?;
            self.on_kvm = true;
            self.soft.cpu.leave_log();
        }
        Ok(())
    }

    /// Hands the processor to the software CPU.
    ///
    /// # Errors
    /// KVM cannot save the state.
    pub fn leave_kvm(&mut self) -> Result<(), Failure> {
        if !self.on_kvm {
            return Ok(());
        }
        let state = self.state()?;
        self.soft.cpu.come_back_to_log();
        self.soft.cpu.load_state(&state);
        // Stores by the processor on KVM are not tracked, so cached code may be stale.
        self.soft.revalidate();
        self.on_kvm = false;
        self.last_traced = self.soft.cpu.instructions();
        self.counted = self.soft.cpu.uses_counters();
        if self.counted {
            tracing::debug!("a performance counter is on: the software CPU runs the guest");
        }
        Ok(())
    }

    /// Hands the processor back to KVM once tracing has been off for [`HANDBACK_DELAY`], or at once
    /// if the processor is halted.
    ///
    /// KVM does not have the counters, and RDPMC does not exit. A kernel reads the counters that it
    /// has stopped before it returns to a program or halts, so until then the processor stays here.
    fn hand_back(&mut self, exit: Exit) -> Result<(), Failure> {
        if self.kvm.is_none() || self.on_kvm {
            return Ok(());
        }
        let now = self.soft.cpu.instructions();
        if self.needs_soft() {
            self.last_traced = now;
            self.counted |= self.soft.cpu.uses_counters();
            return Ok(());
        }
        // KVM does not return an exception that it could not deliver.
        if now < self.soft_until || self.soft.cpu.has_accepted_exception() {
            return Ok(());
        }
        let idle = matches!(exit, Exit::Halt { .. });
        if self.counted && !idle && self.soft.cpu.cpl == 0 {
            return Ok(());
        }
        if idle || now - self.last_traced >= HANDBACK_DELAY {
            self.enter_kvm()?;
            self.handovers.to_kvm += u64::from(self.on_kvm);
        }
        Ok(())
    }

    /// Hands the processor to the software CPU for some time, which emulates bus locks without one
    /// of the host's.
    fn slow_down(&mut self) -> Result<Exit, Failure> {
        self.leave_kvm()?;
        self.handovers.to_soft += 1;
        self.soft_until = self.soft.cpu.instructions() + BUS_LOCK_DELAY;
        let rip = self.soft.cpu.rip;
        tracing::debug!(
            rip = format_args!("{rip:#x}"),
            "the guest has locked the bus: the software CPU runs it for some time"
        );
        // The exit may have been an access to a device.
        Ok(Exit::Bus)
    }

    /// Executes the one instruction that KVM could not emulate on the software CPU.
    fn emulate_one(&mut self) -> Result<Exit, Failure> {
        self.leave_kvm()?;
        self.handovers.emulated += 1;
        let (rip, before) = (self.soft.cpu.rip, self.soft.cpu.instructions());
        tracing::debug!(
            rip = format_args!("{rip:#x}"),
            "KVM cannot emulate an instruction"
        );
        // Each try may deliver an event instead of executing the instruction.
        const TRIES: u32 = 16;
        for _ in 0..TRIES {
            match self.soft.step() {
                None | Some(Exit::Bus) => {}
                // The caller has to handle the exit before KVM can continue.
                Some(exit) => return Ok(exit),
            }
            if self.soft.cpu.instructions() != before || self.soft.cpu.rip != rip {
                if !self.needs_soft() {
                    self.enter_kvm()?;
                }
                // The instruction may have accessed a device.
                return Ok(Exit::Bus);
            }
        }
        Err(anyhow::anyhow!(
            "KVM cannot emulate the instruction at {rip:#x}, and the software CPU makes no progress either: {:?}",
            self.soft.cpu
        )
        .into())
    }
}
