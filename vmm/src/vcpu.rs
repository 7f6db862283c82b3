//! A processor of the guest: executed by the software CPU, or by KVM for as long as no branch has
//! to be recorded and no performance counter counts.
//!
//! The software CPU is the processor, and KVM a faster way to run it: between any two instructions
//! the state can move from one to the other. What does not move is what only one of them has, above
//! all the MSRs that are not part of [`CpuState`]: the software CPU's table answers for them on
//! either.

use vbts_cpu::{Clock, CpuState, Exit, HostClock, Signals, SoftCpu, Startup};

use crate::exit::Failure;
use crate::kvm::doorbell::Listening;
use crate::kvm::{KvmVcpu, Left};

/// Instructions that the software CPU goes on for after tracing has ended. A kernel that switches
/// from a traced task to another often comes back soon, and there and back costs as much as 2500 to
/// 10000 of them (`ci/bench`): who goes on for about as long pays at most twice of what would have
/// been best.
const LINGER: u64 = 5_000;

/// How often a processor has moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moves {
    /// From KVM to the software CPU, because tracing was turned on, or a counter.
    pub to_soft: u64,
    /// And back.
    pub to_kvm: u64,
    /// Instructions that KVM could not emulate.
    pub assists: u64,
}

impl std::iter::Sum for Moves {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |a, b| Self {
            to_soft: a.to_soft + b.to_soft,
            to_kvm: a.to_kvm + b.to_kvm,
            assists: a.assists + b.assists,
        })
    }
}

/// A processor.
#[derive(Debug)]
pub struct Vcpu {
    soft: SoftCpu,
    kvm: Option<KvmVcpu>,
    /// KVM has the state now.
    on_kvm: bool,
    /// After INIT: nothing but a start-up IPI goes on from here.
    waits_for_startup: bool,
    /// Instructions retired when tracing was last seen on.
    last_traced: u64,
    /// A counter was in use since the software CPU took over: see [`Self::rejoin_kvm`].
    counted: bool,
    moves: Moves,
}

impl Vcpu {
    /// A processor that the software CPU executes.
    pub fn new(soft: SoftCpu) -> Self {
        Self {
            soft,
            kvm: None,
            on_kvm: false,
            waits_for_startup: false,
            last_traced: 0,
            counted: false,
            moves: Moves::default(),
        }
    }

    /// Lets KVM execute the processor whenever possible, on the time of `clock`.
    ///
    /// # Errors
    /// KVM refuses.
    pub fn accelerate(
        &mut self,
        mut kvm: KvmVcpu,
        clock: HostClock,
        tsc_offset: u64,
    ) -> Result<(), Failure> {
        self.soft.cpu.set_clock(Clock::Host(clock));
        self.soft.cpu.set_tsc_offset(tsc_offset);
        kvm.attach(&mut self.soft.cpu)?;
        self.kvm = Some(kvm);
        self.enter_kvm()
    }

    /// Makes the processor one that waits for a start-up IPI, as all but the first do after RESET.
    pub fn wait_for_startup(&mut self) {
        self.waits_for_startup = true;
    }

    /// The software CPU.
    pub fn soft(&self) -> &SoftCpu {
        &self.soft
    }

    /// The software CPU.
    pub fn soft_mut(&mut self) -> &mut SoftCpu {
        &mut self.soft
    }

    /// How often it has moved.
    pub fn moves(&self) -> Moves {
        self.moves
    }

    /// The calling thread runs this processor until the result is dropped, and is woken by the
    /// lines into it.
    pub fn listen(&mut self) -> Option<Listening> {
        self.kvm.as_mut().map(KvmVcpu::listen)
    }

    /// Whether it executes nothing until something happens. Not meant for a processor on KVM.
    pub fn asleep(&self) -> bool {
        let lines = self.soft.cpu.signals().get();
        let startup = lines & Signals::INIT != 0;
        !startup && (self.waits_for_startup || self.soft.cpu.asleep())
    }

    /// Whether only an NMI or INIT can wake it.
    pub fn deaf(&self) -> bool {
        self.waits_for_startup || !self.soft.cpu.interrupts_on()
    }

    /// The state, whoever has it.
    ///
    /// # Errors
    /// KVM does not give it.
    pub fn state(&mut self) -> Result<CpuState, Failure> {
        let mut state = self.soft.cpu.state();
        if self.on_kvm
            && let Some(kvm) = &mut self.kvm
        {
            kvm.save(self.soft.cpu.platform(), &mut state)?;
            state.sys.pdpte = self.soft.cpu.pdptes(&state.sys);
        }
        Ok(state)
    }

    /// Runs until `deadline`, a time in nanoseconds, or until something needs the caller. On the
    /// host's time it returns at any time.
    ///
    /// # Errors
    /// KVM cannot go on.
    pub fn run(&mut self, deadline: u64) -> Result<Exit, Failure> {
        loop {
            if self.on_kvm && self.needs_soft() {
                self.leave_kvm()?;
                self.moves.to_soft += 1;
            }
            if self.waits_for_startup {
                match self.soft.cpu.platform().take_startup() {
                    Some(event) => self.startup(event)?,
                    None => return Ok(self.wait()),
                }
                continue;
            }
            let exit = match &mut self.kvm {
                Some(kvm) if self.on_kvm => match kvm.run(&mut self.soft.cpu)? {
                    Left::Exit(exit) => exit,
                    Left::DebugCtl => continue,
                    Left::Unemulated => return self.assist(),
                },
                _ => self.soft.run(deadline),
            };
            if exit == Exit::Init {
                if let Some(event) = self.soft.cpu.platform().take_startup() {
                    self.startup(event)?;
                }
                continue;
            }
            self.rejoin_kvm(exit)?;
            return Ok(exit);
        }
    }

    /// What a processor does that waits for a start-up IPI.
    fn wait(&self) -> Exit {
        let signals = self.soft.cpu.signals();
        if signals.get() & Signals::KICK != 0 {
            signals.lower(Signals::KICK);
            return Exit::Kick;
        }
        Exit::Halt {
            interrupts_off: true,
        }
    }

    /// INIT, or a start-up IPI, which means something to a processor after INIT only (SDM Vol. 3A
    /// 8.4.3).
    fn startup(&mut self, event: Startup) -> Result<(), Failure> {
        let waited = self.waits_for_startup;
        self.waits_for_startup = event == Startup::Init;
        let state = match event {
            Startup::Init => self.state()?.after_init(self.soft.cpu.model()),
            Startup::StartUp(vector) if waited => {
                let mut state = self.state()?;
                state.start_up(vector);
                state
            }
            Startup::StartUp(_) => return Ok(()),
        };
        self.soft.cpu.load_state(&state);
        self.enter_kvm()
    }

    /// Whether only the software CPU can go on: branches have to be recorded, or to be stepped on,
    /// or events to be counted.
    fn needs_soft(&self) -> bool {
        let passes_through = self.kvm.as_ref().is_some_and(KvmVcpu::passes_bts_through);
        self.soft.cpu.watches_branches() && !passes_through || self.soft.cpu.uses_counters()
    }

    /// KVM takes over, if it is to execute the processor at all. One that has shut down stays where
    /// it is: KVM knows no such state.
    ///
    /// # Errors
    /// KVM refuses the state.
    pub fn enter_kvm(&mut self) -> Result<(), Failure> {
        if let Some(kvm) = &mut self.kvm
            && !self.soft.cpu.has_shut_down()
        {
            kvm.load(&self.soft.cpu)?;
            self.on_kvm = true;
        }
        Ok(())
    }

    /// The software CPU takes over.
    ///
    /// # Errors
    /// KVM does not give the state.
    pub fn leave_kvm(&mut self) -> Result<(), Failure> {
        if !self.on_kvm {
            return Ok(());
        }
        let state = self.state()?;
        self.soft.cpu.load_state(&state);
        // KVM's processor has stored into memory without telling anybody where.
        self.soft.revalidate();
        self.on_kvm = false;
        self.last_traced = self.soft.cpu.instructions();
        self.counted = self.soft.cpu.uses_counters();
        if self.counted {
            tracing::debug!("a performance counter is on: the software CPU runs the guest");
        }
        Ok(())
    }

    /// KVM takes over again once tracing has been off for a while, or at once if there is nothing
    /// to execute.
    ///
    /// KVM knows nothing of the counters, not even for RDPMC, which no exit tells of. A kernel
    /// reads what it has stopped before it goes back to a program, or to sleep.
    fn rejoin_kvm(&mut self, exit: Exit) -> Result<(), Failure> {
        if self.kvm.is_none() || self.on_kvm {
            return Ok(());
        }
        let now = self.soft.cpu.instructions();
        if self.needs_soft() {
            self.last_traced = now;
            self.counted |= self.soft.cpu.uses_counters();
            return Ok(());
        }
        let idle = matches!(exit, Exit::Halt { .. });
        if self.counted && !idle && self.soft.cpu.cpl == 0 {
            return Ok(());
        }
        if idle || now - self.last_traced >= LINGER {
            self.enter_kvm()?;
            self.moves.to_kvm += 1;
        }
        Ok(())
    }

    /// The software CPU executes the one instruction that KVM could not.
    fn assist(&mut self) -> Result<Exit, Failure> {
        self.leave_kvm()?;
        self.moves.assists += 1;
        let (rip, before) = (self.soft.cpu.rip, self.soft.cpu.instructions());
        tracing::debug!(
            rip = format_args!("{rip:#x}"),
            "KVM cannot emulate an instruction"
        );
        // Events that come before the instruction are not it.
        const TRIES: u32 = 16;
        for _ in 0..TRIES {
            match self.soft.step() {
                None | Some(Exit::Bus) => {}
                // KVM stays out until the caller has seen to it.
                Some(exit) => return Ok(exit),
            }
            if self.soft.cpu.instructions() != before || self.soft.cpu.rip != rip {
                if !self.needs_soft() {
                    self.enter_kvm()?;
                }
                // It may have been an access to the machine.
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
