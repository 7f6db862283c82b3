//! The cost of exits from KVM and of hand-overs between the accelerators, for `ci/bench`.
//!
//! Tiny guests at CPL 0. Prints a JSON object of times in ns, or `{"skipped": REASON}`.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use iced_x86::code_asm::*;
use kvm_bindings::{KVM_GUESTDBG_ENABLE, KVM_GUESTDBG_SINGLESTEP, kvm_guest_debug};
use kvm_ioctls::Kvm;
use serde_json::{Map, Value, json};
use vbts_bts::DebugCtl;
use vbts_cpu::state::msr;
use vbts_cpu::{Activity, Cpu, Exit, HostClock, SoftCpu};
use vbts_host::exit::Failure;
use vbts_testkit::{Emit, TestPlatform, assemble};
use vbts_vmm::boot::{Protocol, registers};
use vbts_vmm::kvm::check::exit::Exit as ScratchExit;
use vbts_vmm::kvm::check::guest::Mode;
use vbts_vmm::kvm::check::scratch::Scratch;
use vbts_vmm::kvm::{KvmVcpu, Vm, device};
use vbts_vmm::memory::{GuestMemory, Size, allocate, cpu_view};
use vbts_vmm::vcpu::Vcpu;
use vm_memory::{Bytes, GuestAddress};

/// Where the programs are.
const CODE: u64 = 0x10_0000;
/// A port without a device.
const PORT: i32 = 0x84;
/// The Debug Store save area, and the buffer behind it.
const DS_AREA: u64 = 0x20_0000;
/// What a tiny guest executes.
type Program = fn(&mut CodeAssembler) -> Emit;

/// How long each measurement takes at least.
const ENOUGH: Duration = Duration::from_millis(200);

/// Turns a failure into an error that can be printed.
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
        registers::write_tables(&memory, Protocol::Bits64)?;
        // An index that starts over before the interrupt threshold: a circular buffer.
        let (base, end) = (DS_AREA + 0x1000, DS_AREA + 0x1000 + 24 * 10_000);
        for (i, field) in (0..).zip([base, base, end, end + 24]) {
            memory.write_obj(field, GuestAddress(DS_AREA + 8 * i))?;
        }
        let model = vbts_cpu::model(vbts_cpu::MODELS[0]).context("no processor model")?;
        let platform = Arc::new(TestPlatform::default());
        let signals = platform.signals.clone();
        // SAFETY: the machine keeps both.
        let ram = unsafe { cpu_view(&memory) };
        let cpu = Cpu::new(model, ram, platform, signals.clone());
        let mut vcpu = Vcpu::new(SoftCpu::new(cpu));
        let mut vm = Vm::new(kvm, &memory, 1)?;
        let clock = HostClock::new(vm.tsc_khz());
        let fd = vm.take_vcpus().pop().context("no vCPU")?;
        vcpu.soft_mut()
            .cpu
            .load_state(&registers::initial_state(CODE, Protocol::Bits64));
        let offset = HostClock::host_tsc().wrapping_neg();
        told(vcpu.accelerate(KvmVcpu::new(fd, signals, false), clock, offset))?;
        Ok(Self { vcpu, memory })
    }

    /// Prepares to run `program` with `count` in RBX.
    fn start(&mut self, program: Program, count: u64) -> Result<()> {
        let code = assemble(64, CODE, program);
        self.memory.write_slice(&code, GuestAddress(CODE))?;
        told(self.vcpu.leave_kvm())?;
        let cpu = &mut self.vcpu.soft_mut().cpu;
        let mut state = cpu.state();
        (state.rip, state.gpr[3], state.activity) = (CODE, count, Activity::Active);
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

    /// Nanoseconds that a round of `program` takes, which is a loop that counts RBX down.
    fn round(&mut self, program: Program) -> Result<f64> {
        let mut rounds = 16;
        loop {
            self.start(program, rounds)?;
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

/// Writes IA32_DS_AREA as often as RBX says.
fn write_msr(a: &mut CodeAssembler) -> Emit {
    let mut again = a.create_label();
    load_ds_area(a)?;
    a.set_label(&mut again)?;
    a.wrmsr()?;
    a.dec(rbx)?;
    a.jnz(again)?;
    a.hlt()
}

/// Writes a port in an endless loop.
fn out(a: &mut CodeAssembler) -> Emit {
    let mut again = a.create_label();
    a.set_label(&mut again)?;
    a.out(PORT, al)?;
    a.jmp(again)
}

/// Turns tracing on for 100 rounds of a loop of two instructions, and off again, as often as RBX
/// says.
fn trace(a: &mut CodeAssembler) -> Emit {
    let (mut again, mut inner) = (a.create_label(), a.create_label());
    load_ds_area(a)?;
    a.wrmsr()?;
    a.set_label(&mut again)?;
    start_tracing(a)?;
    a.mov(edi, 100)?;
    a.set_label(&mut inner)?;
    a.dec(edi)?;
    a.jnz(inner)?;
    stop_tracing(a)?;
    a.dec(rbx)?;
    a.jnz(again)?;
    a.hlt()
}

/// Runs the inner loop of [`trace`] as often as RBX says, with tracing on.
fn traced(a: &mut CodeAssembler) -> Emit {
    let mut again = a.create_label();
    load_ds_area(a)?;
    a.wrmsr()?;
    start_tracing(a)?;
    a.set_label(&mut again)?;
    a.dec(rbx)?;
    a.jnz(again)?;
    stop_tracing(a)?;
    a.hlt()
}

/// Loads the registers for a WRMSR to IA32_DS_AREA. EDX stays zero for the WRMSRs that follow.
fn load_ds_area(a: &mut CodeAssembler) -> Emit {
    a.mov(ecx, msr::IA32_DS_AREA)?;
    a.mov(eax, DS_AREA as u32)?;
    a.xor(edx, edx)
}

fn start_tracing(a: &mut CodeAssembler) -> Emit {
    a.mov(ecx, msr::IA32_DEBUGCTL)?;
    a.mov(eax, (DebugCtl::TR | DebugCtl::BTS).bits() as u32)?;
    a.wrmsr()
}

fn stop_tracing(a: &mut CodeAssembler) -> Emit {
    a.xor(eax, eax)?;
    a.wrmsr()
}

/// Each way between the accelerators, and an exit just after it.
fn hand_over(machine: &mut Machine) -> Result<[f64; 3]> {
    machine.start(out, 0)?;
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
    let code = assemble(64, 0, |a| {
        let mut again = a.create_label();
        a.set_label(&mut again)?;
        a.jmp(again)
    });
    scratch.start(Mode::Kernel, &code)?;
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
    vbts_vmm::kvm::kick::install_handler()?;
    let mut machine = Machine::new(&kvm)?;
    // SAFETY: it is dropped at the end of this function, before the machine.
    let _registration = unsafe { machine.vcpu.register_thread() };
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
    add("wrmsr exit", machine.round(write_msr).map(Some));
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
        machine.round(trace).map(Some),
    );
    add(
        "traced instruction on soft",
        machine.round(traced).map(|ns| Some(ns / 2.0)),
    );
    add("single-step of KVM", single_step(&kvm));
    Ok(result.into())
}

fn main() {
    let value = measure().unwrap_or_else(|error| json!({ "skipped": format!("{error:#}") }));
    println!("{value:#}");
}
