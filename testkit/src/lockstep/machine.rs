//! Machines that execute a program in different ways.

use std::sync::{Arc, Mutex};

use vbts_cpu::{BranchLog, Cpu, Exit, LogBuffer, LogEntry, LogScope, LogSink, SoftCpu, Topology};

use crate::lockstep::layout::{BASE, RAM};
use crate::lockstep::program::Program;
use crate::platform::OpenBus;
use crate::{Ram, TestPlatform};

/// How a machine executes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tier {
    /// The interpreter, one instruction at a time, each of which is compared with memory before.
    /// This is what the others are compared with.
    Stepped,
    /// The interpreter, in blocks.
    Blocks,
    /// Native code, as users run it.
    Native,
}

/// A processor and its platform.
#[derive(Debug)]
pub(super) struct Processor {
    pub soft: SoftCpu,
    pub platform: Arc<TestPlatform>,
    log: Log,
}

impl Processor {
    /// Returns the entries of the log for the VMM so far, without times.
    pub fn log(&mut self) -> Vec<LogEntry> {
        self.soft.cpu.flush_log();
        self.log.0.lock().unwrap().clone()
    }
}

/// The branches and address spaces of a log.
#[derive(Debug, Clone, Default)]
struct Log(Arc<Mutex<Vec<LogEntry>>>);

impl LogSink for Log {
    fn exchange(&mut self, mut full: LogBuffer) -> LogBuffer {
        let entries = full.entries().filter_map(|entry| match entry {
            LogEntry::Branch { .. } => Some(entry),
            LogEntry::AddressSpace { cr3, .. } => Some(LogEntry::AddressSpace { cr3, time: 0 }),
            _ => None,
        });
        self.0.lock().unwrap().extend(entries);
        full.clear();
        full
    }
}

/// A machine with its own memory.
#[derive(Debug)]
pub(super) struct Machine {
    pub tier: Tier,
    pub ram: Arc<Ram>,
    pub processors: Vec<Processor>,
    /// Addresses of the instructions that the last run has executed, if it steps.
    pub trail: Vec<u64>,
}

impl Machine {
    /// A machine that is about to run `program`.
    pub fn new(program: &Program, tier: Tier) -> Self {
        let ram = Arc::new(Ram::new(RAM));
        BASE.load(&ram);
        for (at, bytes) in &program.memory {
            ram.write(*at, bytes);
        }
        let count = program.states.len() as u8;
        let memory = ram.for_cpu();
        let processor = |(id, state)| {
            let mut platform = TestPlatform::default();
            // The values that devices return depend on the time.
            platform.open_bus = OpenBus::Varying;
            let platform = Arc::new(platform);
            let signals = platform.signals.clone();
            let mut cpu = Cpu::new(program.model, memory.clone(), platform.clone(), signals);
            cpu.set_topology(Topology { id, count });
            let mut soft = SoftCpu::new(cpu);
            if tier == Tier::Native {
                let mapped = soft.translate_blocks(program.native);
                mapped.expect("executable memory for native code");
            }
            soft.cpu.load_state(state);
            let log = Log::default();
            if program.logs {
                let sink = Box::new(log.clone());
                let log = BranchLog::new(LogScope::all(), Vec::new(), sink);
                soft.cpu.attach_log(Box::new(log));
            }
            Processor {
                soft,
                platform,
                log,
            }
        };
        Self {
            tier,
            processors: (0..).zip(&program.states).map(processor).collect(),
            ram,
            trail: Vec::new(),
        }
    }

    /// Runs a processor until `deadline`, or until it returns for another reason.
    pub fn run(&mut self, processor: usize, deadline: u64) -> Exit {
        let soft = &mut self.processors[processor].soft;
        if self.tier != Tier::Stepped {
            return soft.run(deadline);
        }
        self.trail.clear();
        while soft.cpu.now() < deadline {
            self.trail.push(soft.cpu.rip);
            // Code is what memory holds now, also if another processor has written it.
            soft.revalidate();
            if let Some(exit) = soft.step() {
                return exit;
            }
        }
        // Events that come between the last instruction and the end.
        soft.run(deadline)
    }

    /// Saves the state of a processor and, if it `restores`, loads it. What follows does not depend
    /// on that.
    pub fn save(&mut self, processor: usize, restores: bool) {
        let soft = &mut self.processors[processor].soft;
        let state = soft.checkpoint();
        if restores {
            soft.cpu.load_state(&state);
        }
    }

    /// Raises an interrupt or, without a vector, an NMI.
    pub fn interrupt(&self, processor: usize, vector: Option<u8>) {
        let platform = &self.processors[processor].platform;
        match vector {
            Some(vector) => platform.interrupt(vector),
            None => platform.nmi(),
        }
    }
}
