//! A whole machine with a tiny kernel, which records its branches and accesses devices.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use iced_x86::code_asm::*;
use vbts_cpu::state::msr::{IA32_DEBUGCTL, IA32_DS_AREA};
use vbts_devices::OutputBuffer;
use vbts_devices::virtio::console::ConsolePort;
use vbts_host::Event;
use vbts_host::exit::Failure;
use vbts_testkit::{Emit, assemble};
use vbts_vmm::board::Board;
use vbts_vmm::config::{Accelerator, KernelConfig, MachineConfig, SandboxMode};
use vbts_vmm::launch::{KernelFiles, Launch};
use vbts_vmm::layout::EXTENDED_MEMORY;
use vbts_vmm::machine::{Machine, ReplayObserver, RunObserver};
use vbts_vmm::memory::Size;

use crate::tree::Tree;

/// The guest's DS area and its buffer.
const DS_AREA: u64 = 0x20_0000;
const BUFFER: u64 = 0x20_1000;
const BUFFER_END: u64 = BUFFER + 64 * 24 + 1;
/// TR and BTS of IA32_DEBUGCTL.
const TRACE_TO_BUFFER: u32 = 0xC0;
const CR4_OSFXSR: u32 = vbts_cpu::state::cr4::OSFXSR as u32;
/// Size of guest memory in bytes, the smallest possible.
pub const MEMORY: u64 = 16 << 20;

static TREE: LazyLock<Tree> = LazyLock::new(Tree::new);
/// The kernel's file.
static KERNEL: LazyLock<PathBuf> = LazyLock::new(|| {
    let code = assemble(64, EXTENDED_MEMORY, kernel);
    let path = TREE.empty().join("kernel");
    std::fs::write(&path, elf(&code)).expect("the temporary directory can be written");
    path
});

/// The guest: it records its branches and accesses devices.
fn kernel(a: &mut CodeAssembler) -> Emit {
    let (mut top, mut function) = (a.create_label(), a.create_label());
    a.mov(rax, cr4)?;
    a.or(eax, CR4_OSFXSR)?;
    a.mov(cr4, rax)?;
    a.mov(rdi, DS_AREA)?;
    for (offset, value) in [(0, BUFFER), (8, BUFFER), (16, BUFFER_END), (24, BUFFER_END)] {
        a.mov(rax, value)?;
        a.mov(qword_ptr(rdi + offset), rax)?;
    }
    for (msr, value) in [
        (IA32_DS_AREA, DS_AREA as u32),
        (IA32_DEBUGCTL, TRACE_TO_BUFFER),
    ] {
        a.mov(ecx, msr)?;
        a.mov(eax, value)?;
        a.xor(edx, edx)?;
        a.wrmsr()?;
    }
    a.fld1()?;
    a.set_label(&mut top)?;
    a.out(0x80, al)?;
    a.mov(dx, 0x3F8)?;
    a.out(dx, al)?;
    a.in_(al, 0x61)?;
    a.call(function)?;
    a.rdtsc()?;
    a.pause()?;
    a.jmp(top)?;
    a.set_label(&mut function)?;
    a.fadd_2(st0, st0)?;
    a.paddd(xmm0, xmm1)?;
    a.ret()
}

/// A kernel of one segment at 1 MiB.
fn elf(code: &[u8]) -> Vec<u8> {
    let mut image = vec![0; 64 + 56];
    let len = code.len() as u64;
    for (at, bytes) in [
        (0, &b"\x7fELF\x02\x01\x01"[..]),
        (16, &2u16.to_le_bytes()),
        (18, &62u16.to_le_bytes()),
        (20, &1u32.to_le_bytes()),
        (24, &EXTENDED_MEMORY.to_le_bytes()),
        (32, &64u64.to_le_bytes()),
        (52, &64u16.to_le_bytes()),
        (54, &56u16.to_le_bytes()),
        (56, &1u16.to_le_bytes()),
        (64, &1u32.to_le_bytes()),
        (72, &120u64.to_le_bytes()),
        (80, &EXTENDED_MEMORY.to_le_bytes()),
        (88, &EXTENDED_MEMORY.to_le_bytes()),
        (96, &len.to_le_bytes()),
        (104, &len.to_le_bytes()),
    ] {
        image[at..at + bytes.len()].copy_from_slice(bytes);
    }
    image.extend_from_slice(code);
    image
}

/// A machine with two processors and some devices, before the first instruction. It runs for
/// `time_limit` of the host's time at most.
///
/// # Panics
/// The machine cannot be created.
pub fn machine(time_limit: Option<Duration>) -> Machine {
    let config = MachineConfig {
        accelerator: Accelerator::Soft,
        processors: 2,
        memory: Size(MEMORY),
        time_limit,
        root: Some(TREE.share()),
        // The fuzzer needs more system calls.
        sandbox: SandboxMode::Off,
        ..MachineConfig::default()
    };
    let make = || -> Result<Machine, Failure> {
        let mut launch = Launch::new(&config, false)?;
        let output = Box::new(OutputBuffer::new(64));
        launch
            .board
            .add_console(vec![ConsolePort::named("port", output)])?;
        launch.share_root()?;
        launch.add_entropy()?;
        launch.boot(&KernelFiles::read(KernelConfig {
            image: KERNEL.clone(),
            initrd: None,
            append: String::new(),
        })?)
    };
    make().expect("a machine")
}

/// An observer without input, and without a state.
#[derive(Debug)]
pub struct Quiet;

impl RunObserver for Quiet {
    fn after_exit(&mut self, _: &Board, _: u64) -> Result<(), Failure> {
        Ok(())
    }
    fn event(&mut self, _: &Board, event: Event) -> Result<(), Failure> {
        panic!("{event:?}")
    }
    fn awaited_inputs(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}

impl ReplayObserver for Quiet {
    fn save(&mut self) -> Vec<u8> {
        Vec::new()
    }
    fn restore(&mut self, _: &[u8]) -> Result<(), Failure> {
        Ok(())
    }
}
