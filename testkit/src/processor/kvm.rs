//! Processors that KVM executes, too.

use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use kvm_ioctls::Kvm;
use vbts_cpu::state::{Activity, PendingEvent, X87State, dr6};
use vbts_cpu::{Clock, Exit, HostClock, Model, Signals, SoftCpu};
use vbts_vmm::kvm::{KvmVcpu, Vm, device, kick};
use vbts_vmm::vcpu::Vcpu;

use super::{Accel, Handovers, Host, accel};
use crate::environment::soft_cpu;
use crate::{Environment, Ram, TestPlatform};

/// Longest run, for a KVM that is emulated itself.
const LIMIT: Duration = Duration::from_secs(60);

/// A processor that KVM can execute, with the machine around it.
#[derive(Debug)]
struct Machine {
    /// KVM has its CPUID, which cannot change once the processor has run.
    model: &'static Model,
    vcpu: Vcpu,
    platform: Arc<TestPlatform>,
    ram: Arc<Ram>,
    /// Whether the guest has run on KVM: its time is the host's since.
    on_host_time: bool,
    /// KVM's part, once there is one.
    vm: Option<Vm>,
}

/// Machines that no test uses. One serves many guests, because making one takes longer than running
/// a guest.
static FREE: Mutex<Vec<Machine>> = Mutex::new(Vec::new());

/// A machine in use. It is free again afterwards, unless the test has failed.
pub(super) struct Accelerated {
    pub(super) platform: Arc<TestPlatform>,
    pub(super) ram: Arc<Ram>,
    /// `Some` until it is dropped.
    machine: Option<Machine>,
}

impl Accelerated {
    /// Creates a processor of `model` in a machine that starts in `environment`.
    pub(super) fn new(environment: &Environment, model: &'static Model) -> Self {
        let free = {
            let mut free = lock(&FREE);
            let fits =
                |m: &Machine| std::ptr::eq(m.model, model) && m.ram.len() == environment.ram_size();
            free.iter().position(fits).map(|at| free.swap_remove(at))
        };
        let mut machine = match free {
            Some(mut machine) => {
                machine.platform.reset();
                machine.on_host_time = false;
                *machine.vcpu.soft_mut() = soft_cpu(model, &machine.ram, &machine.platform);
                machine
            }
            None => {
                let ram = Arc::new(Ram::new(environment.ram_size()));
                let platform = Arc::default();
                Machine {
                    model,
                    vcpu: Vcpu::new(soft_cpu(model, &ram, &platform)),
                    platform,
                    ram,
                    on_host_time: false,
                    vm: None,
                }
            }
        };
        environment.load(&machine.ram);
        machine.vcpu.soft_mut().cpu.load_state(&environment.state);
        Self {
            platform: machine.platform.clone(),
            ram: machine.ram.clone(),
            machine: Some(machine),
        }
    }

    fn machine(&self) -> &Machine {
        self.machine.as_ref().unwrap()
    }

    pub(super) fn soft(&self) -> &SoftCpu {
        self.machine().vcpu.soft()
    }

    pub(super) fn soft_mut(&mut self) -> &mut SoftCpu {
        self.machine.as_mut().unwrap().vcpu.soft_mut()
    }

    pub(super) fn handovers(&self) -> Handovers {
        Handovers {
            emulated: self.machine().vcpu.handovers().emulated,
        }
    }

    /// Runs until the processor halts or shuts down.
    pub(super) fn run(&mut self) -> Exit {
        let machine = self.machine.as_mut().unwrap();
        machine.accelerate();
        // SAFETY: it is dropped at the end of this function, which borrows the machine.
        let registration = unsafe { machine.vcpu.register_thread() };
        let time = Timer::start(machine.vcpu.soft().cpu.signals());
        let exit = match accel() {
            Accel::Both => machine.run_both(&time),
            Accel::Kvm { after } => machine.run_kvm(after, &time),
            Accel::Soft => unreachable!(),
        };
        drop(registration);
        exit
    }
}

impl Drop for Accelerated {
    fn drop(&mut self) {
        if let Some(machine) = self.machine.take()
            && machine.vm.is_some()
            && !std::thread::panicking()
        {
            lock(&FREE).push(machine);
        }
    }
}

/// Whether a round trip has lost the last x87 instruction and its operand. XSAVE of AMD's
/// processors saves both only while an exception is pending (APM Vol. 5, FXSAVE), and QEMU's only
/// the opcode. The host executes it when it switches tasks.
fn loses_x87_pointers(before: &X87State, after: &X87State) -> bool {
    const ES: u16 = 1 << 7;
    (Host::Paravirtual.is_here() || Host::Svm.is_here())
        && (before.fsw & ES == 0 || Host::EmulatedSvm.is_here())
        && (after.fip, after.fdp) == (0, 0)
        && [0, before.fop].contains(&after.fop)
}

impl Machine {
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
                exit @ (Exit::Halt { .. } | Exit::Shutdown | Exit::Stop) => {
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
        // Each round trip takes time, and some programs are long.
        const EACH: u32 = 500;
        const LATER: u32 = 97;
        for n in 0.. {
            if n < EACH || n % LATER == 0 {
                let mut before = self.vcpu.soft().cpu.state();
                self.enter_kvm();
                self.vcpu.leave_kvm().unwrap();
                let after = self.vcpu.soft().cpu.state();
                // Time passes, and a pending event ends a halt.
                before.tsc = after.tsc;
                if before.pending.is_some() {
                    before.activity = Activity::Active;
                }
                // KVM does not keep it.
                before.mov_ss_shadow = false;
                // DR6 has the causes already.
                if let Some(PendingEvent::Debug(causes)) = &mut before.pending {
                    let dr6 = &mut before.sys.dr6;
                    *dr6 = *dr6 & !dr6::BREAKPOINTS | *causes;
                    *causes &= dr6::BREAKPOINTS;
                }
                if loses_x87_pointers(&before.x87, &after.x87) {
                    (before.x87.fop, before.x87.fip, before.x87.fdp) = (after.x87.fop, 0, 0);
                }
                assert_eq!(
                    after, before,
                    "the state after a round trip through KVM, and before"
                );
            }
            match self.vcpu.soft_mut().step() {
                None | Some(Exit::Bus | Exit::Kick) => time.check(&mut self.vcpu),
                Some(exit) => return exit,
            }
        }
        unreachable!()
    }

    /// Gives the guest the host's time from now on.
    fn accelerate(&mut self) {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(|| kick::install_handler().unwrap());
        let cpu = &mut self.vcpu.soft_mut().cpu;
        let signals = cpu.signals().clone();
        let offset = HostClock::host_tsc().wrapping_neg();
        match &self.vm {
            None => {
                let mut vm = Vm::new(kvm(), &self.ram.for_devices(), 1).unwrap();
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first check that the host's KVM fails. With VBTS_REQUIRE_KVM=1 there is none, so that the
/// tests themselves fail.
pub(super) fn unfaithful() -> Option<&'static str> {
    static FAILURE: OnceLock<Option<String>> = OnceLock::new();
    let failure = FAILURE.get_or_init(|| {
        if std::env::var_os("VBTS_REQUIRE_KVM").is_some_and(|v| v == "1") {
            return None;
        }
        let report = vbts_vmm::kvm::check::run(kvm());
        let (name, why) = report.failure()?;
        Some(format!("this KVM fails the check '{name}': {why}"))
    });
    failure.as_deref()
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

/// Runs, by when they must have ended: their processors are kicked then.
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
