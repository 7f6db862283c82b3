//! What executes the tiny guests, by the environment variable VBTS_ACCEL:
//!
//! | value | who executes |
//! |---|---|
//! | `soft`, or none | the software CPU |
//! | `kvm` | the host's KVM, and the software CPU while the guest traces, as the VMM has it; the first VBTS_SOFT_STEPS instructions of each run the software CPU in any case |
//! | `both` | the software CPU, but between instructions the state goes to KVM and comes back: before each of the first hundreds, later before one of many |
//!
//! What comes out differently on some KVM is in a table ([`deviations`](super::deviations)): it
//! runs on the software CPU then, and says why. On a KVM that fails vbts's checks nothing runs by
//! `kvm`, but `both` does: state goes there and back all the same.

use std::fmt;
use std::io::Write;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use kvm_ioctls::Kvm;
use vbts::kvm::{KvmVcpu, Vm, device, kick};
use vbts::memory::GuestMemory;
use vbts::vcpu::{HandoverStats, Vcpu};
use vbts_cpu::state::PendingEvent;
use vbts_cpu::{Clock, Cpu, Exit, GuestRam, HostClock, Model, Signals, SoftCpu};
use vm_memory::{GuestAddress, GuestMemoryBackend};

use super::deviations::DEVIATIONS;
use super::{RAM, TestPlatform};

/// No run takes longer, not even in a KVM that is emulated itself.
const LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Accel {
    Soft,
    /// So many instructions of a run after the software CPU's.
    Kvm {
        after: u32,
    },
    Both,
}

fn accel() -> Accel {
    static ACCEL: OnceLock<Accel> = OnceLock::new();
    let variable = |name| std::env::var(name).unwrap_or_default();
    *ACCEL.get_or_init(|| match variable("VBTS_ACCEL").as_str() {
        "" | "soft" => Accel::Soft,
        "kvm" => Accel::Kvm {
            after: match variable("VBTS_SOFT_STEPS").as_str() {
                "" => 0,
                steps => steps.parse().unwrap(),
            },
        },
        "both" => Accel::Both,
        other => panic!("VBTS_ACCEL={other} instead of soft, kvm or both"),
    })
}

/// A kind of host whose KVM differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Host {
    /// Any.
    Any,
    /// A processor with AMD's virtualization, SVM.
    Svm,
    /// One whose SVM is emulated by QEMU.
    EmulatedSvm,
    /// A host without virtualization (kvm_pvm).
    Paravirtual,
}

impl Host {
    /// Whether this is one.
    pub fn is_here(self) -> bool {
        let cpuid = |leaf| std::arch::x86_64::__cpuid(leaf);
        let svm = || cpuid(0x8000_0001).ecx & 1 << 2 != 0;
        match self {
            Self::Any => true,
            Self::Svm => svm(),
            Self::Paravirtual => std::path::Path::new("/sys/module/kvm_pvm").exists(),
            // "TCGTCGTCGTCG"
            Self::EmulatedSvm => svm() && cpuid(0x4000_0000).ebx == 0x5447_4354,
        }
    }
}

/// A processor with the machine around it. Where KVM is asked, it serves one guest after the other:
/// it takes longer to make one than to run a guest.
#[derive(Debug)]
struct Machine {
    vcpu: Vcpu,
    platform: Arc<TestPlatform>,
    /// Since the guest first ran on KVM.
    on_host_time: bool,
    /// KVM's part, once there is one.
    vm: Option<Vm>,
    memory: GuestMemory,
}

/// What was said of tests.
static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Machines that serve no guest now.
static FREE: Mutex<Vec<Machine>> = Mutex::new(Vec::new());

/// The processor of a tiny guest. Between two runs the software CPU has its state.
pub struct Processor {
    /// There until it is dropped.
    machine: Option<Machine>,
    soft_only: bool,
}

impl Processor {
    /// One of `model` in a machine with nothing in its memory. KVM's part of it may show another
    /// model by CPUID, but has the host's instructions in any case.
    pub fn new(model: &'static Model) -> Self {
        let free = lock(&FREE).pop();
        let machine = match free {
            Some(mut machine) => {
                machine.platform.reset();
                let ram = host_memory(&machine.memory);
                for at in (0..RAM as usize).step_by(0x1000) {
                    // SAFETY: the page is memory that nobody uses now.
                    let page = unsafe { ram.add(at).cast::<[u64; 0x200]>().as_mut() };
                    if page.iter().any(|word| *word != 0) {
                        page.fill(0);
                    }
                }
                machine.on_host_time = false;
                *machine.vcpu.soft_mut() = soft(model, &machine.memory, &machine.platform);
                machine
            }
            None => {
                let memory = GuestMemory::from_ranges(&[(GuestAddress(0), RAM as usize)]).unwrap();
                let platform = Arc::default();
                Machine {
                    vcpu: Vcpu::new(soft(model, &memory, &platform)),
                    platform,
                    on_host_time: false,
                    vm: None,
                    memory,
                }
            }
        };
        let mut processor = Self {
            machine: Some(machine),
            soft_only: false,
        };
        if accel() != Accel::Soft {
            if let Accel::Kvm { .. } = accel()
                && let Some(why) = unfaithful()
            {
                processor.soft_only(why);
            }
            let thread = std::thread::current();
            let path = thread.name().unwrap_or_default();
            let test = path.rsplit("::").next().unwrap_or_default();
            assert_ne!(
                test, "main",
                "with one test thread tests have no names: give --test-threads 2"
            );
            processor.known_to_differ(test);
        }
        processor
    }

    /// Looks for a test, or a case of one, in the table of what is known to differ.
    pub fn known_to_differ(&mut self, name: &str) {
        if accel() == Accel::Soft {
            return;
        }
        for deviation in DEVIATIONS {
            let applies = deviation.both || accel() != Accel::Both;
            if applies && deviation.tests.contains(&name) && deviation.host.is_here() {
                self.soft_only(deviation.why);
            }
        }
    }

    fn machine(&mut self) -> &mut Machine {
        self.machine.as_mut().unwrap()
    }

    /// What is around it.
    pub fn platform(&self) -> Arc<TestPlatform> {
        self.machine.as_ref().unwrap().platform.clone()
    }

    /// Its memory.
    pub fn memory(&self) -> NonNull<u8> {
        host_memory(&self.machine.as_ref().unwrap().memory)
    }

    /// Lets the software CPU run this guest, whatever VBTS_ACCEL says, and says why.
    pub fn soft_only(&mut self, why: &str) {
        self.soft_only = true;
        if accel() != Accel::Soft {
            say(&format!("not on KVM: {why}"));
        }
    }

    /// How often it has moved, if KVM executes it at all.
    pub fn handovers(&self) -> Option<HandoverStats> {
        let kvm = matches!(accel(), Accel::Kvm { .. }) && !self.soft_only;
        self.machine
            .as_ref()
            .filter(|_| kvm)
            .map(|m| m.vcpu.handovers())
    }

    /// Runs until the processor halts or shuts down.
    pub fn run_to_end(&mut self) -> Exit {
        let accel = accel();
        if accel == Accel::Soft || self.soft_only {
            return self.machine().run_soft();
        }
        let machine = self.machine();
        machine.accelerate();
        let listening = machine.vcpu.register_thread();
        let time = Timer::start(machine.vcpu.soft().cpu.signals());
        let exit = match accel {
            Accel::Both => machine.run_both(&time),
            Accel::Kvm { after } => machine.run_kvm(after, &time),
            Accel::Soft => unreachable!(),
        };
        drop(listening);
        exit
    }
}

impl Machine {
    fn run_soft(&mut self) -> Exit {
        let soft = self.vcpu.soft_mut();
        for _ in 0..100_000 {
            match soft.run(1_000_000) {
                Exit::Bus | Exit::Kick => {}
                exit => return exit,
            }
        }
        panic!("the guest does not stop: {:?}", soft.cpu);
    }

    fn run_kvm(&mut self, after: u32, time: &Timer) -> Exit {
        for _ in 0..after {
            match self.vcpu.soft_mut().step() {
                None | Some(Exit::Bus | Exit::Kick) => {}
                Some(exit) => return exit,
            }
        }
        self.enter_kvm();
        loop {
            match self.vcpu.run(u64::MAX).unwrap() {
                exit @ (Exit::Halt { .. } | Exit::Shutdown) => {
                    self.vcpu.leave_kvm().unwrap();
                    return exit;
                }
                Exit::Bus | Exit::Kick | Exit::Deadline | Exit::Pause | Exit::Init => {
                    time.check(&mut self.vcpu)
                }
            }
        }
    }

    fn enter_kvm(&mut self) {
        if let Err(error) = self.vcpu.enter_kvm() {
            panic!("{error:?}: {:?}", self.vcpu.soft().cpu.state());
        }
    }

    fn run_both(&mut self, time: &Timer) -> Exit {
        // It takes a while each time, and some programs are long.
        const EACH: u32 = 500;
        const SELDOM: u32 = 97;
        for n in 0.. {
            if n < EACH || n % SELDOM == 0 {
                let mut before = self.vcpu.soft().cpu.state();
                self.enter_kvm();
                self.vcpu.leave_kvm().unwrap();
                let after = self.vcpu.soft().cpu.state();
                // Time passes, and what is pending ends a halt.
                before.tsc = after.tsc;
                before.halted &= before.pending.is_none();
                // DR6 has it already.
                if let Some(PendingEvent::Debug(causes)) = &mut before.pending {
                    before.sys.dr6 |= *causes;
                    *causes = 0;
                }
                assert_eq!(
                    after, before,
                    "the state after its way through KVM, and before"
                );
            }
            match self.vcpu.soft_mut().step() {
                None | Some(Exit::Bus | Exit::Kick) => time.check(&mut self.vcpu),
                Some(exit) => return exit,
            }
        }
        unreachable!()
    }

    /// On the host's time from now on.
    fn accelerate(&mut self) {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(|| kick::install_handler().unwrap());
        let cpu = &mut self.vcpu.soft_mut().cpu;
        let signals = cpu.signals().clone();
        let offset = HostClock::tsc().wrapping_neg();
        match &self.vm {
            None => {
                let mut vm = Vm::new(kvm(), &self.memory, 1).unwrap();
                let fd = vm.take_vcpus().pop().unwrap();
                let kvm = KvmVcpu::new(fd, signals, false);
                let clock = HostClock::new(vm.tsc_khz());
                self.vcpu.accelerate(kvm, clock, offset).unwrap();
                self.vcpu.leave_kvm().unwrap();
                self.vm = Some(vm);
            }
            // It has served another guest.
            Some(vm) if !self.on_host_time => {
                cpu.set_clock(Clock::Host(HostClock::new(vm.tsc_khz())));
                cpu.set_tsc_offset(offset);
            }
            Some(_) => {}
        }
        self.on_host_time = true;
    }
}

impl Drop for Processor {
    fn drop(&mut self) {
        if let Some(machine) = self.machine.take()
            && machine.vm.is_some()
            && !std::thread::panicking()
        {
            lock(&FREE).push(machine);
        }
    }
}

fn soft(model: &'static Model, memory: &GuestMemory, platform: &Arc<TestPlatform>) -> SoftCpu {
    // SAFETY: the machine keeps the memory as long as its processor, and it is only accessed
    // through raw pointers.
    let ram = unsafe { GuestRam::new(&[(0, RAM, host_memory(memory))]) };
    let signals = platform.signals.clone();
    SoftCpu::new(Cpu::new(model, ram, platform.clone(), signals))
}

fn host_memory(memory: &GuestMemory) -> NonNull<u8> {
    NonNull::new(memory.iter().next().unwrap().as_ptr()).unwrap()
}

/// Says something of the test, once, past the test harness, which keeps to itself what tests print
/// that pass.
pub fn say(what: &str) {
    let thread = std::thread::current();
    let said = format!("{}: {what}", thread.name().unwrap_or_default());
    let mut before = lock(&SAID);
    if !before.contains(&said) {
        let _ = writeln!(std::io::stderr(), "{said}");
        before.push(said);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.deref().fmt(f)
    }
}

impl Deref for Processor {
    type Target = SoftCpu;
    fn deref(&self) -> &SoftCpu {
        self.machine.as_ref().unwrap().vcpu.soft()
    }
}

impl DerefMut for Processor {
    fn deref_mut(&mut self) -> &mut SoftCpu {
        self.machine().vcpu.soft_mut()
    }
}

/// The first check that the host's KVM fails. What needs a faithful one has been asked for with
/// VBTS_REQUIRE_KVM=1, and is told then by the tests.
fn unfaithful() -> Option<&'static str> {
    static FAILURE: OnceLock<Option<String>> = OnceLock::new();
    let failure = FAILURE.get_or_init(|| {
        if std::env::var_os("VBTS_REQUIRE_KVM").is_some_and(|v| v == "1") {
            return None;
        }
        let report = vbts::kvm::check::run(kvm());
        let (name, why) = report.failure()?;
        Some(format!("this KVM fails the check '{name}': {why}"))
    });
    failure.as_deref()
}

/// Every how manieth row of a long table is run: all of them on the software CPU, one of `n` on
/// KVM.
pub fn stride(n: usize) -> usize {
    if accel() == Accel::Soft { 1 } else { n }
}

fn kvm() -> &'static Kvm {
    static KVM: OnceLock<Kvm> = OnceLock::new();
    KVM.get_or_init(|| device::open(device::DEVICE.as_ref()).unwrap())
}

/// The time of a run.
#[derive(Debug)]
struct Timer {
    end: Instant,
}

/// Whom to kick, and when.
static RUNS: Mutex<Vec<(Instant, Arc<Signals>)>> = Mutex::new(Vec::new());

impl Timer {
    fn start(signals: &Arc<Signals>) -> Self {
        static KICKER: Once = Once::new();
        KICKER.call_once(|| {
            std::thread::spawn(|| {
                loop {
                    std::thread::sleep(Duration::from_millis(100));
                    let runs = lock(&RUNS);
                    let now = Instant::now();
                    for (_, signals) in runs.iter().filter(|run| run.0 <= now) {
                        signals.raise(Signals::KICK);
                    }
                }
            });
        });
        let end = Instant::now() + LIMIT;
        let mut runs = lock(&RUNS);
        runs.push((end, signals.clone()));
        Self { end }
    }

    fn check(&self, vcpu: &mut Vcpu) {
        if Instant::now() >= self.end {
            vcpu.leave_kvm().unwrap();
            panic!("the guest does not stop: {:?}", vcpu.soft().cpu);
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        let mut runs = lock(&RUNS);
        if let Some(at) = runs.iter().position(|run| run.0 == self.end) {
            runs.swap_remove(at);
        }
    }
}
