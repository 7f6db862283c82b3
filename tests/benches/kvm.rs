//! What KVM costs where it exits, and what the way from one accelerator to the other: `ci/bench`
//! prints it.
//!
//! Tiny guests at CPL 0. Prints a JSON object of times in ns, or `{"skipped": REASON}`.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use kvm_bindings::{KVM_GUESTDBG_ENABLE, KVM_GUESTDBG_SINGLESTEP, kvm_guest_debug};
use kvm_ioctls::Kvm;
use serde_json::{Map, Value, json};
use vbts::boot::registers;
use vbts::exit::Failure;
use vbts::kvm::check::scratch::{Exit as ScratchExit, Mode, Scratch};
use vbts::kvm::{KvmVcpu, Vm, device};
use vbts::memory::{GuestMemory, Size, allocate, cpu_view};
use vbts::vcpu::Vcpu;
use vbts_cpu::{Activity, Cpu, Exit, HostClock, Platform, Signals, SoftCpu};
use vm_memory::{Bytes, GuestAddress};

/// Where the programs are.
const CODE: u64 = 0x10_0000;
/// The Debug Store save area, and the buffer behind it.
const DS_AREA: u64 = 0x20_0000;
/// How long each measurement takes at least.
const ENOUGH: Duration = Duration::from_millis(200);

/// Devices that do nothing.
#[derive(Debug)]
struct Nothing;

impl Platform for Nothing {
    fn mmio_read(&self, _: u64, _: u64, data: &mut [u8]) {
        data.fill(0xFF);
    }
    fn mmio_write(&self, _: u64, _: u64, _: &[u8]) {}
    fn pio_read(&self, _: u64, _: u16, data: &mut [u8]) {
        data.fill(0xFF);
    }
    fn pio_write(&self, _: u64, _: u16, _: &[u8]) {}
    fn acknowledge_interrupt(&self, _: u64) -> Option<u8> {
        None
    }
    fn take_nmi(&self) -> bool {
        false
    }
    fn give_back_nmi(&self) {}
    fn performance_interrupt(&self, _: u64) {}
    fn cr8(&self) -> u64 {
        0
    }
    fn set_cr8(&self, _: u64, _: u64) {}
    fn apic_rdmsr(&self, _: u64, msr: u32) -> Option<u64> {
        (msr == 0x1B).then_some(0xFEE0_0900)
    }
    fn apic_wrmsr(&self, _: u64, _: u32, _: u64) -> Option<()> {
        None
    }
}

/// An error for people.
fn told<T>(result: Result<T, Failure>) -> Result<T> {
    result.map_err(|failure| anyhow!("{failure:?}"))
}

/// A machine with one processor.
struct Machine {
    vcpu: Vcpu,
    memory: GuestMemory,
}

impl Machine {
    fn new(kvm: &Kvm) -> Result<Self> {
        let memory = allocate(Size(16 << 20))?;
        registers::write_tables(&memory)?;
        // An index that starts over before the interrupt threshold: a circular buffer.
        let (base, end) = (DS_AREA + 0x1000, DS_AREA + 0x1000 + 24 * 10_000);
        for (i, field) in (0..).zip([base, base, end, end + 24]) {
            memory.write_obj(field, GuestAddress(DS_AREA + 8 * i))?;
        }
        let model = vbts_cpu::model(vbts_cpu::MODELS[0]).context("no processor model")?;
        let signals = Arc::new(Signals::default());
        // SAFETY: the machine keeps both.
        let ram = unsafe { cpu_view(&memory) };
        let cpu = Cpu::new(model, ram, Arc::new(Nothing), signals.clone());
        let mut vcpu = Vcpu::new(SoftCpu::new(cpu));
        let mut vm = Vm::new(kvm, &memory, 1)?;
        let clock = HostClock::new(vm.tsc_khz());
        let fd = vm.take_vcpus().pop().context("no vCPU")?;
        vcpu.soft_mut()
            .cpu
            .load_state(&registers::initial_state(CODE));
        let offset = HostClock::tsc().wrapping_neg();
        told(vcpu.accelerate(KvmVcpu::new(fd, signals, false), clock, offset))?;
        Ok(Self { vcpu, memory })
    }

    /// Has `code` run next, with `rbx`.
    fn start(&mut self, code: &[u8], rbx: u64) -> Result<()> {
        self.memory.write_slice(code, GuestAddress(CODE))?;
        told(self.vcpu.leave_kvm())?;
        let cpu = &mut self.vcpu.soft_mut().cpu;
        let mut state = cpu.state();
        (state.rip, state.gpr[3], state.activity) = (CODE, rbx, Activity::Active);
        cpu.load_state(&state);
        told(self.vcpu.enter_kvm())?;
        Ok(())
    }

    fn run_to_halt(&mut self) -> Result<()> {
        loop {
            match told(self.vcpu.run(u64::MAX))? {
                Exit::Bus | Exit::Kick | Exit::Deadline | Exit::Pause => {}
                Exit::Halt { .. } => return Ok(()),
                exit => anyhow::bail!("{exit:?}"),
            }
        }
    }

    /// Time that a round of `code` takes, which is a loop that counts RBX down.
    fn round(&mut self, code: &[u8]) -> Result<f64> {
        let mut rounds = 16;
        loop {
            self.start(code, rounds)?;
            let begin = Instant::now();
            self.run_to_halt()?;
            let took = begin.elapsed();
            if took >= ENOUGH {
                return Ok(took.as_nanos() as f64 / rounds as f64);
            }
            rounds *= 2;
        }
    }
}

/// `mov ecx, 600; mov eax, DS_AREA; xor edx, edx; 1: wrmsr; dec rbx; jnz 1b; hlt`
const WRITE_MSR: &[u8] = &[
    0xB9, 0x00, 0x06, 0x00, 0x00, 0xB8, 0x00, 0x00, 0x20, 0x00, 0x31, 0xD2, 0x0F, 0x30, 0x48, 0xFF,
    0xCB, 0x75, 0xF9, 0xF4,
];
/// `1: out 80, al; jmp 1b`
const OUT: &[u8] = &[0xE6, 0x80, 0xEB, 0xFC];
/// Tracing on, 100 rounds of `dec; jnz`, tracing off, until RBX is zero: `mov esi, DS_AREA; mov
/// ecx, 600; mov eax, esi; xor edx, edx; wrmsr; 1: mov ecx, 1d9; mov eax, c0; wrmsr; mov edi, 100;
/// 2: dec edi; jnz 2b; xor eax, eax; wrmsr; dec rbx; jnz 1b; hlt`
const TRACE: &[u8] = &[
    0xBE, 0x00, 0x00, 0x20, 0x00, 0xB9, 0x00, 0x06, 0x00, 0x00, 0x89, 0xF0, 0x31, 0xD2, 0x0F, 0x30,
    0xB9, 0xD9, 0x01, 0x00, 0x00, 0xB8, 0xC0, 0x00, 0x00, 0x00, 0x0F, 0x30, 0xBF, 0x64, 0x00, 0x00,
    0x00, 0xFF, 0xCF, 0x75, 0xFC, 0x31, 0xC0, 0x0F, 0x30, 0x48, 0xFF, 0xCB, 0x75, 0xE2, 0xF4,
];
/// The same loop as [`TRACE`] has, for as long as RBX says, with tracing on; two instructions a
/// round.
const TRACED: &[u8] = &[
    0xB9, 0x00, 0x06, 0x00, 0x00, 0xB8, 0x00, 0x00, 0x20, 0x00, 0x31, 0xD2, 0x0F, 0x30, 0xB9, 0xD9,
    0x01, 0x00, 0x00, 0xB8, 0xC0, 0x00, 0x00, 0x00, 0x0F, 0x30, 0x48, 0xFF, 0xCB, 0x75, 0xFB, 0x31,
    0xC0, 0x0F, 0x30, 0xF4,
];

/// Each way between the accelerators, and an exit just after it.
fn hand_over(machine: &mut Machine) -> Result<[f64; 3]> {
    machine.start(OUT, 0)?;
    let (mut times, mut count) = ([Duration::ZERO; 3], 0);
    while times.iter().sum::<Duration>() < ENOUGH {
        let begin = Instant::now();
        told(machine.vcpu.leave_kvm())?;
        let left = Instant::now();
        told(machine.vcpu.enter_kvm())?;
        let entered = Instant::now();
        ensure!(told(machine.vcpu.run(u64::MAX))? == Exit::Bus, "no OUT");
        times[0] += left - begin;
        times[1] += entered - left;
        times[2] += entered.elapsed();
        count += 1;
    }
    Ok(times.map(|time| time.as_nanos() as f64 / f64::from(count)))
}

/// A step of KVM's single-stepping. None if that does not work.
fn single_step(kvm: &Kvm) -> Result<Option<f64>> {
    let mut scratch = Scratch::new(kvm, true)?;
    // `1: jmp 1b`
    scratch.start(Mode::Kernel, &[0xEB, 0xFE])?;
    let debug = kvm_guest_debug {
        control: KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_SINGLESTEP,
        ..Default::default()
    };
    scratch.vcpu().set_guest_debug(&debug)?;
    let (begin, mut count) = (Instant::now(), 0u32);
    while begin.elapsed() < ENOUGH {
        scratch.resume();
        if !matches!(scratch.run(None)?, ScratchExit::Debug(_)) {
            return Ok(None);
        }
        // What a tracer needs to know of each step.
        scratch.regs()?;
        count += 1;
    }
    Ok(Some(begin.elapsed().as_nanos() as f64 / f64::from(count)))
}

fn measure() -> Result<Value> {
    let kvm = device::open(Path::new(device::DEVICE))?;
    vbts::kvm::kick::install_handler()?;
    let mut machine = Machine::new(&kvm)?;
    let _registration = machine.vcpu.register_thread();
    let mut result = Map::new();
    let mut add = |name: &str, ns: Result<Option<f64>>| {
        let text = |error: &dyn Display| Value::String(format!("{error:#}"));
        result.insert(
            name.into(),
            match ns {
                Ok(ns) => json!(ns),
                Err(error) => text(&error),
            },
        );
    };
    add("wrmsr exit", machine.round(WRITE_MSR).map(Some));
    match hand_over(&mut machine) {
        Ok([leave, enter, exit]) => {
            add("KVM to soft", Ok(Some(leave)));
            add("soft to KVM", Ok(Some(enter)));
            add("exit after that", Ok(Some(exit)));
        }
        Err(error) => add("KVM to soft", Err(error)),
    }
    add(
        "traced for 200 instructions",
        machine.round(TRACE).map(Some),
    );
    add(
        "traced instruction on soft",
        machine.round(TRACED).map(|ns| Some(ns / 2.0)),
    );
    add("single-step of KVM", single_step(&kvm));
    Ok(result.into())
}

fn main() {
    let value = measure().unwrap_or_else(|error| json!({ "skipped": format!("{error:#}") }));
    println!("{value:#}");
}
