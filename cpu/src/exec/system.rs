//! System instructions: descriptor tables, TLB and caches, HLT, CLI and STI, MSRs, counters, CPUID.

use iced_x86::Code;

use crate::exec::table::{Backend, Table};
use crate::insn::{Exec, Flow, Insn};
use crate::mmu::access::canonical;
use crate::processor::cpu::Cpu;
use crate::processor::pending_work::ArchEvents;
use crate::processor::platform::Signals;
use crate::state::gpr::{RAX, RBX, RCX, RDX};
use crate::state::{TableRegister, cr4, rflags};

/// Selects GDTR in [`table`].
const GDT: u8 = 0;
/// Selects IDTR in [`table`].
const IDT: u8 = 1;

/// The register of a descriptor table.
fn table<const T: u8>(cpu: &mut Cpu) -> &mut TableRegister {
    if T == GDT {
        &mut cpu.sys.gdtr
    } else {
        &mut cpu.sys.idtr
    }
}

/// Alignment in bytes of the contents of GDTR and IDTR (SDM Vol. 3A table 6-7).
const ALIGNMENT: usize = 4;

/// SGDT, SIDT in 64-bit mode.
fn store_table<const T: u8>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.check_umip()?;
    let la = cpu.ea(insn);
    let TableRegister { base, limit } = *table::<T>(cpu);
    let mut image = [0; 10];
    image[..2].copy_from_slice(&limit.to_le_bytes());
    image[2..].copy_from_slice(&base.to_le_bytes());
    cpu.store_bytes(la, &image, ALIGNMENT)?;
    Ok(Flow::Next)
}

/// SGDT, SIDT outside 64-bit mode.
fn store_table_32<const T: u8>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.check_umip()?;
    let la = cpu.ea(insn);
    let TableRegister { base, limit } = *table::<T>(cpu);
    let mut image = [0; 6];
    image[..2].copy_from_slice(&limit.to_le_bytes());
    image[2..].copy_from_slice(&(base as u32).to_le_bytes());
    cpu.store_bytes(la, &image, ALIGNMENT)?;
    Ok(Flow::Next)
}

fn load_table<const T: u8>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.require_cpl0()?;
    let la = cpu.ea(insn);
    let limit = cpu.load::<u16>(la)?;
    let base = cpu.load::<u64>(la.wrapping_add(2))?;
    if !canonical(base) {
        return Err(cpu.gp(0));
    }
    *table::<T>(cpu) = TableRegister { base, limit };
    Ok(Flow::Next)
}

/// LGDT, LIDT outside 64-bit mode: with a 16-bit operand size (`O16`) the base has 24 bits.
fn load_table_32<const T: u8>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.require_cpl0()?;
    let la = cpu.ea(insn);
    let limit = cpu.load::<u16>(la)?;
    let base = cpu.load::<u32>(la.wrapping_add(2))?;
    let mask = if insn.prefix & Insn::O16 != 0 {
        0xFF_FFFF
    } else {
        u32::MAX
    };
    *table::<T>(cpu) = TableRegister {
        base: (base & mask).into(),
        limit,
    };
    Ok(Flow::Next)
}

fn invlpg(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.require_cpl0()?;
    let la = cpu.ea(insn);
    cpu.flush_tlb_page(la);
    cpu.serialize();
    cpu.end_block(insn)
}

/// INVD, WBINVD: this processor has no cache to write back.
fn privileged_nop(cpu: &mut Cpu, _: &Insn) -> Exec {
    cpu.require_cpl0()?;
    Ok(Flow::Next)
}

/// LFENCE, SFENCE: loads are not reordered with loads, nor stores with stores (SDM Vol. 3A 8.2.2),
/// since those of the host's processor are not.
fn nop_fence(_: &mut Cpu, _: &Insn) -> Exec {
    Ok(Flow::Next)
}

fn mfence(cpu: &mut Cpu, _: &Insn) -> Exec {
    cpu.drain_store_buffer();
    Ok(Flow::Next)
}

/// CLFLUSH faults as a load would.
fn clflush(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.load::<u8>(cpu.ea(insn))?;
    Ok(Flow::Next)
}

fn hlt(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.require_cpl0()?;
    cpu.pending_work.insert(ArchEvents::HALTED);
    cpu.end_block(insn)
}

/// Whether the program may change IF: CPL <= IOPL, also in virtual-8086 mode. Otherwise CLI and STI
/// change VIF or fault.
fn may_change_if(cpu: &Cpu) -> bool {
    cpu.cpl <= cpu.iopl()
}

fn cli(cpu: &mut Cpu, _: &Insn) -> Exec {
    if !may_change_if(cpu) {
        cpu.require_virtual_interrupts()?;
        cpu.eflags &= !rflags::VIF;
        return Ok(Flow::Next);
    }
    cpu.eflags &= !rflags::IF;
    cpu.signal_mask &= !Signals::INTR;
    Ok(Flow::Next)
}

fn sti(cpu: &mut Cpu, insn: &Insn) -> Exec {
    if !may_change_if(cpu) {
        cpu.require_virtual_interrupts()?;
        if cpu.eflags & rflags::VIP != 0 {
            return Err(cpu.gp(0));
        }
        cpu.eflags |= rflags::VIF;
        return Ok(Flow::Next);
    }
    if cpu.eflags & rflags::IF != 0 {
        return Ok(Flow::Next);
    }
    cpu.eflags |= rflags::IF;
    cpu.signal_mask |= Signals::INTR;
    // The instruction after STI runs before any interrupt (SDM Vol. 2B, STI).
    cpu.pending_work.insert(ArchEvents::SHADOW);
    cpu.end_block(insn)
}

/// STAC (`SET`) and CLAC: whether SMAP lets the supervisor access user pages.
fn set_ac<const SET: bool>(cpu: &mut Cpu, _: &Insn) -> Exec {
    if cpu.cpl != 0 {
        return Err(cpu.ud());
    }
    cpu.eflags = cpu.eflags & !rflags::AC | if SET { rflags::AC } else { 0 };
    cpu.update_data_privilege();
    Ok(Flow::Next)
}

/// Returns a 64-bit value in EDX:EAX.
fn return_pair(cpu: &mut Cpu, value: u64) -> Exec {
    cpu.gpr[RAX] = value & 0xFFFF_FFFF;
    cpu.gpr[RDX] = value >> 32;
    Ok(Flow::Next)
}

fn rdmsr(cpu: &mut Cpu, _: &Insn) -> Exec {
    cpu.require_cpl0()?;
    let value = cpu.rdmsr(cpu.gpr[RCX] as u32)?;
    return_pair(cpu, value)
}

fn wrmsr(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.require_cpl0()?;
    let value = cpu.gpr[RDX] << 32 | cpu.gpr[RAX] & 0xFFFF_FFFF;
    cpu.wrmsr(cpu.gpr[RCX] as u32, value)?;
    cpu.serialize();
    cpu.end_block(insn)
}

/// Whether an instruction faults that a flag of CR4 reserves to CPL 0.
fn forbidden(cpu: &Cpu, forbidden: bool) -> bool {
    forbidden && cpu.cpl != 0
}

fn rdtsc(cpu: &mut Cpu, insn: &Insn) -> Exec {
    if forbidden(cpu, cpu.sys.cr4 & cr4::TSD != 0) {
        return Err(cpu.gp(0));
    }
    let tsc = cpu.tsc(insn.ordinal);
    return_pair(cpu, tsc)
}

/// RDTSCP: also IA32_TSC_AUX in ECX. All earlier instructions have completed.
fn rdtscp(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let flow = rdtsc(cpu, insn)?;
    cpu.gpr[RCX] = cpu.msr.tsc_aux;
    Ok(flow)
}

fn rdpmc(cpu: &mut Cpu, insn: &Insn) -> Exec {
    if forbidden(cpu, cpu.sys.cr4 & cr4::PCE == 0) {
        return Err(cpu.gp(0));
    }
    match cpu.performance_counter(insn.ordinal, cpu.gpr[RCX] as u32) {
        Some(value) => return_pair(cpu, value),
        None => Err(cpu.gp(0)),
    }
}

fn cpuid(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let l = cpu.cpuid(cpu.gpr[RAX] as u32, cpu.gpr[RCX] as u32);
    for (register, value) in [(RAX, l.eax), (RBX, l.ebx), (RCX, l.ecx), (RDX, l.edx)] {
        cpu.gpr[register] = value.into();
    }
    cpu.serialize();
    cpu.end_block(insn)
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    t.handler([Sgdt_m1632_16, Sgdt_m1632], store_table_32::<GDT>);
    t.handler([Sidt_m1632_16, Sidt_m1632], store_table_32::<IDT>);
    t.handler([Sgdt_m1664], store_table::<GDT>);
    t.handler([Sidt_m1664], store_table::<IDT>);
    t.handler([Lgdt_m1632_16, Lgdt_m1632], load_table_32::<GDT>);
    t.handler([Lidt_m1632_16, Lidt_m1632], load_table_32::<IDT>);
    t.handler([Lgdt_m1664], load_table::<GDT>);
    t.handler([Lidt_m1664], load_table::<IDT>);
    t.handler([Lfence, Lfence_E9, Lfence_EA, Lfence_EB, Lfence_EC, Lfence_ED, Lfence_EE, Lfence_EF, Sfence, Sfence_F9, Sfence_FA, Sfence_FB, Sfence_FC, Sfence_FD, Sfence_FE, Sfence_FF], nop_fence);
    t.handler([Mfence, Mfence_F1, Mfence_F2, Mfence_F3, Mfence_F4, Mfence_F5, Mfence_F6, Mfence_F7], mfence);
    t.handler([Invlpg_m], invlpg);
    t.handler([Invd, Wbinvd], privileged_nop);
    t.handler([Clflush_m8], clflush);
    t.handler([Hlt], hlt);
    t.handler([Cli], cli);
    t.handler([Sti], sti);
    t.handler([Stac], set_ac::<true>);
    t.handler([Clac], set_ac::<false>);
    t.handler([Rdmsr], rdmsr);
    t.handler([Wrmsr], wrmsr);
    t.handler([Rdtsc], rdtsc);
    t.handler([Rdtscp], rdtscp);
    t.handler([Rdpmc], rdpmc);
    t.handler([Cpuid], cpuid);
}
