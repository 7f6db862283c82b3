//! Processors observe what devices write to guest memory.

use std::sync::Arc;
use std::time::Duration;

use crate::board::{Board, VcpuPlatform};
use crate::boot::elf::tests::kernel;
use crate::boot::params::FIXED_RNG_SEED;
use crate::boot::{BootSource, load};
use crate::layout::EXTENDED_MEMORY;
use crate::memory::{self, GuestMemory, Size, allocate};
use crate::vcpu::Vcpu;
use iced_x86::code_asm::{CodeAssembler, al, ebx};
use vbts_cpu::state::gpr::RBX;
use vbts_cpu::{Cpu, Exit, SoftCpu};
use vbts_devices::{DmaObserver, Effects, OutputBuffer};
use vbts_testkit::Emit;
use vm_memory::{Bytes, GuestAddress};

/// Processors that execute the same code next, with their board and memory.
struct Processors {
    vcpus: Vec<Vcpu>,
    board: Arc<Board>,
    memory: GuestMemory,
}

fn processors(count: u8, program: impl FnOnce(&mut CodeAssembler) -> Emit) -> Processors {
    let memory = allocate(Size(16 << 20)).unwrap();
    let code = vbts_testkit::assemble(64, EXTENDED_MEMORY, program);
    let image = kernel(EXTENDED_MEMORY, &code, 0);
    let source = BootSource {
        kernel: &image,
        initrd: None,
        cmdline: "",
        processors: count,
        level_gsis: &[],
        rng_seed: FIXED_RNG_SEED,
    };
    let state = load(&memory, &source).unwrap();
    let signals = (0..count).map(|_| Arc::default()).collect();
    let serial = Box::new(OutputBuffer::new(0));
    let board = Arc::new(Board::new(memory.clone(), signals, true, 0, serial).unwrap());
    let model = vbts_cpu::model(vbts_cpu::MODELS[0]).unwrap();
    let vcpu = |id: u8| {
        let platform = VcpuPlatform::new(board.clone(), id.into());
        // SAFETY: the memory outlives the processors.
        let ram = unsafe { memory::cpu_view(&memory) };
        let signals = platform.signals();
        let mut cpu = Cpu::new(model, ram, Arc::new(platform), signals);
        cpu.load_state(&state);
        let mut vcpu = Vcpu::new(SoftCpu::new(cpu));
        vcpu.observe_dma(DmaObserver::new(memory.clone()));
        vcpu
    };
    Processors {
        vcpus: (0..count).map(vcpu).collect(),
        board: board.clone(),
        memory,
    }
}

#[test]
fn each_processor_observes_a_device_write() {
    let mut p = processors(2, |a| {
        let mut first = a.create_label();
        a.set_label(&mut first)?;
        a.mov(ebx, 1)?;
        a.out(0x80, al)?;
        a.jmp(first)
    });
    // The immediate operand follows the opcode of MOV.
    let operand = GuestAddress(EXTENDED_MEMORY + 1);
    for value in 1..4u8 {
        p.memory.write_obj(value, operand).unwrap();
        p.board.apply(Effects::DMA);
        for (id, vcpu) in p.vcpus.iter_mut().enumerate() {
            for _ in 0..3 {
                assert_eq!(vcpu.run(u64::MAX).unwrap(), Exit::Bus);
                let rbx = vcpu.state().unwrap().gpr[RBX];
                assert_eq!(rbx, u64::from(value), "processor {id}");
            }
        }
    }
}

#[test]
fn a_device_write_interrupts_a_processor_that_runs() {
    let mut p = processors(1, |a| {
        let mut here = a.create_label();
        a.set_label(&mut here)?;
        a.jmp(here)
    });
    let (memory, board) = (&p.memory, &p.board);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            let halt = vbts_testkit::assemble(64, EXTENDED_MEMORY, |a| a.hlt());
            let start = GuestAddress(EXTENDED_MEMORY);
            memory.write_slice(&halt, start).unwrap();
            board.apply(Effects::DMA);
        });
        let mut exits = Vec::new();
        while exits.last().is_none_or(|exit| *exit == Exit::Bus) {
            exits.push(p.vcpus[0].run(10_000_000_000).unwrap());
        }
        assert!(matches!(exits[..], [.., Exit::Halt { .. }]), "{exits:?}");
    });
}
