use std::sync::Arc;

use super::*;
use crate::board::{Board, VcpuPlatform};
use crate::boot::elf::tests::kernel;
use crate::boot::params::FIXED_RNG_SEED;
use crate::boot::{BootSource, load};
use crate::layout::EXTENDED_MEMORY;
use crate::memory::{self, Size, allocate};
use vbts_cpu::Cpu;
use vbts_cpu::state::gpr::RBX;
use vbts_devices::{Effects, OutputBuffer};
use vm_memory::{Bytes, GuestAddress};

/// `mov ebx, 1; out 0x80, al; jmp` to the first.
const CODE: [u8; 9] = [0xBB, 1, 0, 0, 0, 0xE6, 0x80, 0xEB, 0xF7];
/// Where the operand of the MOV is.
const OPERAND: GuestAddress = GuestAddress(EXTENDED_MEMORY + 1);

#[test]
fn each_processor_observes_a_device_write() {
    let memory = allocate(Size(16 << 20)).unwrap();
    let image = kernel(EXTENDED_MEMORY, &CODE, 0);
    let source = BootSource {
        kernel: &image,
        initrd: None,
        cmdline: "",
        processors: 2,
        level_gsis: &[],
        rng_seed: FIXED_RNG_SEED,
    };
    let state = load(&memory, &source).unwrap();
    let signals = (0..2).map(|_| Arc::default()).collect();
    let serial = Box::new(OutputBuffer::new(0));
    let board = Arc::new(Board::new(memory.clone(), signals, true, 0, serial).unwrap());
    let model = vbts_cpu::model(vbts_cpu::MODELS[0]).unwrap();
    let mut vcpus = [0, 1].map(|id| {
        let platform = VcpuPlatform::new(board.clone(), id);
        // SAFETY: `memory` outlives the processors.
        let ram = unsafe { memory::cpu_view(&memory) };
        let signals = platform.signals();
        let mut cpu = Cpu::new(model, ram, Arc::new(platform), signals);
        cpu.load_state(&state);
        let mut vcpu = Vcpu::new(SoftCpu::new(cpu));
        vcpu.observe_dma(DmaObserver::new(memory.clone()));
        vcpu
    });
    for value in 1..4u8 {
        memory.write_obj(value, OPERAND).unwrap();
        board.apply(Effects::DMA);
        for (id, vcpu) in vcpus.iter_mut().enumerate() {
            for _ in 0..3 {
                assert_eq!(vcpu.run(u64::MAX).unwrap(), Exit::Bus);
                let ebx = vcpu.state().unwrap().gpr[RBX];
                assert_eq!(ebx, u64::from(value), "processor {id}");
            }
        }
    }
}

#[test]
fn a_device_write_interrupts_a_processor_that_runs() {
    let memory = allocate(Size(16 << 20)).unwrap();
    // jmp to itself
    let image = kernel(EXTENDED_MEMORY, &[0xEB, 0xFE], 0);
    let source = BootSource {
        kernel: &image,
        initrd: None,
        cmdline: "",
        processors: 1,
        level_gsis: &[],
        rng_seed: FIXED_RNG_SEED,
    };
    let state = load(&memory, &source).unwrap();
    let serial = Box::new(OutputBuffer::new(0));
    let signals = vec![Arc::default()];
    let board = Arc::new(Board::new(memory.clone(), signals, true, 0, serial).unwrap());
    let model = vbts_cpu::model(vbts_cpu::MODELS[0]).unwrap();
    let platform = VcpuPlatform::new(board.clone(), 0);
    // SAFETY: `memory` outlives the processor.
    let ram = unsafe { memory::cpu_view(&memory) };
    let signals = platform.signals();
    let mut cpu = Cpu::new(model, ram, Arc::new(platform), signals);
    cpu.load_state(&state);
    let mut vcpu = Vcpu::new(SoftCpu::new(cpu));
    vcpu.observe_dma(DmaObserver::new(memory.clone()));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            // hlt
            memory
                .write_obj(0xF4u8, GuestAddress(EXTENDED_MEMORY))
                .unwrap();
            board.apply(Effects::DMA);
        });
        let mut exits = Vec::new();
        while exits.last().is_none_or(|exit| *exit == Exit::Bus) {
            exits.push(vcpu.run(10_000_000_000).unwrap());
        }
        assert!(matches!(exits[..], [.., Exit::Halt { .. }]), "{exits:?}");
    });
}
