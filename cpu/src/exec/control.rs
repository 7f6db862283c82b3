//! Control and debug registers (SDM Vol. 3A 2.5, Vol. 2B "MOV—Move to/from Control Registers").

use iced_x86::Code;

use crate::exec::table::{Backend, Table};
use crate::insn::{Abort, Exec, Flow, Insn};
use crate::mmu::access::canonical;
use crate::mmu::paging;
use crate::model::PHYS_MASK;
use crate::processor::cpu::Cpu;
use crate::state::descriptor::system;
use crate::state::{SegAttr, SystemState, cr0, cr4, efer, sreg};

/// The bits of CR0 that exist; writes to others in the lower half are ignored.
const CR0_BITS: u64 = cr0::PE
    | cr0::MP
    | cr0::EM
    | cr0::TS
    | cr0::ET
    | cr0::NE
    | cr0::WP
    | cr0::AM
    | cr0::NW
    | cr0::CD
    | cr0::PG;

/// The bits of CR4 that all CPU models have.
const CR4_BITS: u64 = cr4::VME
    | cr4::PVI
    | cr4::TSD
    | cr4::DE
    | cr4::PSE
    | cr4::PAE
    | cr4::MCE
    | cr4::PGE
    | cr4::PCE
    | cr4::OSFXSR
    | cr4::OSXMMEXCPT;

/// Bits of CR3 between MAXPHYADDR and 63 are reserved.
const CR3_BITS: u64 = PHYS_MASK;
/// Of a value for CR3 with CR4.PCIDE set: translations of its PCID can be kept (SDM Vol. 3A
/// 4.10.4.1). The bit does not exist in CR3.
const CR3_KEEP: u64 = 1 << 63;
/// The process-context identifier in CR3 (SDM Vol. 3A 4.10.1).
const CR3_PCID: u64 = 0xFFF;

/// Writes CR0, and with PE and PG changes the mode (SDM Vol. 3A 4.1.2, 9.8.5, 9.9).
fn write_cr0(cpu: &mut Cpu, value: u64) -> Result<(), Abort> {
    let has = |bit| value & bit != 0;
    let impossible = value >> 32 != 0
        || (has(cr0::PG) && !has(cr0::PE))
        || (has(cr0::NW) && !has(cr0::CD))
        || (!has(cr0::PG) && cpu.sys.cr4 & cr4::PCIDE != 0);
    if impossible {
        return Err(cpu.gp(0));
    }
    let mut sys = cpu.sys.clone();
    sys.cr0 = value & CR0_BITS | cr0::ET;
    let changed = cpu.sys.cr0 ^ sys.cr0;
    if changed & cr0::PG != 0 {
        let entering = has(cr0::PG) && sys.efer & efer::LME != 0;
        // 9.8.5: IA-32e mode is entered from 32-bit code with PAE on and a TSS that it can use, and
        // left from compatibility mode.
        let good = if entering {
            let code = cpu.seg[sreg::CS].attr;
            sys.cr4 & cr4::PAE != 0
                && !code.contains(SegAttr::L)
                && !matches!(sys.tr.ty(), system::TSS_16_AVAILABLE | system::TSS_16_BUSY)
        } else {
            !cpu.in_64_bit_mode()
        };
        if !good {
            return Err(cpu.gp(0));
        }
        sys.efer = sys.efer & !efer::LMA | if entering { efer::LMA } else { 0 };
    }
    if changed & (cr0::PG | cr0::CD | cr0::NW) != 0 {
        load_pdptes(cpu, &mut sys)?;
    }
    cpu.sys = sys;
    if changed & (cr0::WP | cr0::PG) != 0 {
        cpu.flush_tlb(false);
    }
    cpu.update_mode();
    Ok(())
}

/// Writes CR3. The TLB has translations of the current address space and global ones alone, so that
/// nothing is kept for a PCID.
fn write_cr3(cpu: &mut Cpu, value: u64) -> Result<(), Abort> {
    let value = match cpu.sys.cr4 & cr4::PCIDE {
        0 => value,
        _ => value & !CR3_KEEP,
    };
    if value & !CR3_BITS != 0 {
        return Err(cpu.gp(0));
    }
    if paging::is_pae(&cpu.sys) {
        cpu.sys.pdpte = pdptes(cpu, value)?;
    }
    cpu.sys.cr3 = value;
    cpu.flush_tlb(true);
    Ok(())
}

fn write_cr4(cpu: &mut Cpu, value: u64) -> Result<(), Abort> {
    let changed = cpu.sys.cr4 ^ value;
    // IA-32e paging requires PAE (SDM Vol. 3A 9.8.5), and PCIDs require IA-32e paging (4.10.1).
    let has_pcids = changed & value & cr4::PCIDE != 0;
    let impossible = value & !(CR4_BITS | cpu.model.cr4_flags()) != 0
        || (cpu.is_ia32e() && value & cr4::PAE == 0)
        || (has_pcids && (!cpu.is_ia32e() || cpu.sys.cr3 & CR3_PCID != 0));
    if impossible {
        return Err(cpu.gp(0));
    }
    // SDM Vol. 3A 4.10.4.1, 4.4.1.
    let tables = changed & (cr4::PGE | cr4::PSE | cr4::PAE) != 0;
    let rights = changed & (cr4::PCIDE | cr4::SMEP | cr4::SMAP) != 0;
    let mut sys = cpu.sys.clone();
    sys.cr4 = value;
    if tables {
        load_pdptes(cpu, &mut sys)?;
    }
    cpu.sys = sys;
    if tables || rights {
        cpu.flush_tlb(false);
    }
    if rights {
        cpu.update_mode();
    }
    Ok(())
}

/// INVPCID. Its descriptor has a PCID and an address. Other address spaces than the current one
/// have no translations here.
fn invpcid(cpu: &mut Cpu, insn: &Insn) -> Exec {
    const ADDRESS: u64 = 0;
    const SINGLE: u64 = 1;
    const ALL: u64 = 2;
    const ALL_BUT_GLOBAL: u64 = 3;
    cpu.require_cpl0()?;
    let kind = match cpu.in_64_bit_mode() {
        true => cpu.r(insn.dst),
        false => cpu.r::<u32>(insn.dst).into(),
    };
    let descriptor = cpu.load128(cpu.ea(insn))?;
    let (pcid, la) = (descriptor as u64, (descriptor >> 64) as u64);
    let has_pcids = cpu.sys.cr4 & cr4::PCIDE != 0;
    let impossible = kind > ALL_BUT_GLOBAL
        || pcid & !CR3_PCID != 0
        || (kind <= SINGLE && pcid != 0 && !has_pcids)
        || (kind == ADDRESS && !canonical(la));
    if impossible {
        return Err(cpu.gp(0));
    }
    let is_current = !has_pcids || cpu.sys.cr3 & CR3_PCID == pcid;
    match kind {
        ADDRESS if is_current => cpu.flush_tlb_page(la),
        ADDRESS => {}
        ALL => cpu.flush_tlb(false),
        _ => cpu.flush_tlb(true),
    }
    cpu.serialize();
    cpu.end_block(insn)
}

/// Loads the PDPTE registers if `sys`, the state after the instruction, uses PAE paging. Reserved
/// bits raise #GP(0) (SDM Vol. 3A 4.4.1).
fn load_pdptes(cpu: &mut Cpu, sys: &mut SystemState) -> Result<(), Abort> {
    if paging::is_pae(sys) {
        sys.pdpte = pdptes(cpu, sys.cr3)?;
    }
    Ok(())
}

fn pdptes(cpu: &mut Cpu, cr3: u64) -> Result<[u64; 4], Abort> {
    match paging::pdptes(&cpu.ram, cr3) {
        Some(entries) => Ok(entries),
        None => Err(cpu.gp(0)),
    }
}

/// MOV to a control register; `dst` is its number.
fn to_cr(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.require_cpl0()?;
    let value = source(cpu, insn);
    match insn.dst {
        0 => write_cr0(cpu, value)?,
        2 => cpu.sys.cr2 = value,
        3 => write_cr3(cpu, value)?,
        4 => write_cr4(cpu, value)?,
        8 => {
            if value >> 4 != 0 {
                return Err(cpu.gp(0));
            }
            cpu.platform.set_cr8(cpu.now(), value);
            return cpu.end_block(insn);
        }
        _ => return Err(cpu.ud()),
    }
    cpu.serialize();
    cpu.end_block(insn)
}

/// MOV from a control register; `src` is its number.
fn from_cr(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.require_cpl0()?;
    let value = match insn.src {
        0 => cpu.sys.cr0,
        2 => cpu.sys.cr2,
        3 => cpu.sys.cr3,
        4 => cpu.sys.cr4,
        8 => cpu.platform.cr8(),
        _ => return Err(cpu.ud()),
    };
    destination(cpu, insn, value);
    Ok(Flow::Next)
}

/// The source operand. It has 64 bits in 64-bit mode and 32 bits elsewhere; prefixes do not change
/// that.
fn source(cpu: &Cpu, insn: &Insn) -> u64 {
    if cpu.in_64_bit_mode() {
        cpu.r(insn.src)
    } else {
        cpu.r::<u32>(insn.src).into()
    }
}

fn destination(cpu: &mut Cpu, insn: &Insn, value: u64) {
    if cpu.in_64_bit_mode() {
        cpu.w(insn.dst, value)
    } else {
        cpu.w(insn.dst, value as u32)
    }
}

fn to_dr(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let value = source(cpu, insn);
    cpu.write_dr(insn.dst, value)?;
    cpu.serialize();
    cpu.end_block(insn)
}

fn from_dr(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let value = cpu.read_dr(insn.src)?;
    destination(cpu, insn, value);
    Ok(Flow::Next)
}

/// LMSW: bits 3:0 of CR0, of which PE can only be set.
fn lmsw(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.require_cpl0()?;
    let value: u16 = if insn.prefix & Insn::MEM != 0 {
        cpu.load(cpu.ea(insn))?
    } else {
        cpu.r(insn.dst)
    };
    let loaded = cr0::PE | cr0::MP | cr0::EM | cr0::TS;
    let new = cpu.sys.cr0 & !(loaded & !cr0::PE) | u64::from(value) & loaded;
    write_cr0(cpu, new)?;
    cpu.end_block(insn)
}

/// SMSW: 16 bits to memory, the operand size to a register.
fn smsw<T: crate::state::int::Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.check_umip()?;
    let value = cpu.sys.cr0;
    if insn.prefix & Insn::MEM != 0 {
        cpu.store(cpu.ea(insn), value as u16)?;
    } else {
        cpu.w(insn.dst, T::from_u64(value));
    }
    Ok(Flow::Next)
}

fn clts(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.require_cpl0()?;
    cpu.sys.cr0 &= !cr0::TS;
    cpu.end_block(insn)
}

pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    t.handler([Mov_cr_r32, Mov_cr_r64], to_cr);
    t.handler([Mov_r32_cr, Mov_r64_cr], from_cr);
    t.handler([Mov_dr_r32, Mov_dr_r64], to_dr);
    t.handler([Mov_r32_dr, Mov_r64_dr], from_dr);
    t.handler([Lmsw_rm16, Lmsw_r32m16, Lmsw_r64m16], lmsw);
    t.handler([Smsw_rm16], smsw::<u16>);
    t.handler([Smsw_r32m16], smsw::<u32>);
    t.handler([Smsw_r64m16], smsw::<u64>);
    t.handler([Clts], clts);
    t.handler([Invpcid_r32_m128, Invpcid_r64_m128], invpcid);
}
