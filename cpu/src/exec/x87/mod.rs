//! The x87 FPU: instructions D8-DF, and the MMX registers that alias it.
//!
//! The host's FPU computes (see [`host`]), except for the transcendental instructions (see
//! [`transcendental`]). This module checks whether the FPU may be used, and
//! handles memory operands and the control instructions. FCS and FDS are stored as zero, as
//! processors do that have deprecated them (SDM Vol. 1 8.1.8). For a memory operand FOP has a ModRM
//! byte without addressing mode.

mod control;
mod host;
mod transcendental;

use iced_x86::Code;

use crate::exec::table::{Backend, Table};
use crate::insn::{Abort, Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::flags::Lazy;
use crate::state::vector;
use crate::state::{X87State, cr0, rflags};

pub(super) use control::{load_control, load_status};
use transcendental::Operation;

/// Status word: exception flags, and in the control word the masks.
const EXCEPTIONS: u16 = 0x3F;
/// Flags of an invalid operation, of a denormal operand, of a division by zero, of overflow, of
/// underflow, of an inexact result, and of a stack fault.
const IE: u16 = 1 << 0;
const DE: u16 = 1 << 1;
const ZE: u16 = 1 << 2;
const OE: u16 = 1 << 3;
const UE: u16 = 1 << 4;
const PE: u16 = 1 << 5;
const SF: u16 = 1 << 6;
/// Condition codes: the direction of rounding or of a stack fault, and an operand out of range.
const C1: u16 = 1 << 9;
const C2: u16 = 1 << 10;
/// Condition codes that comparisons set. Other instructions leave them undefined; here they keep
/// them, on any host.
const CONDITIONS: u16 = 1 << 8 | C2 | 1 << 14;
/// TOP in the status word.
const TOP: u16 = 7 << 11;

impl X87State {
    /// Whether an unmasked exception waits to be raised.
    #[inline(always)]
    pub(super) fn pending(&self) -> bool {
        self.unmasked() != 0
    }

    /// Flags of unmasked exceptions.
    #[inline(always)]
    fn unmasked(&self) -> u16 {
        self.fsw & !self.fcw & EXCEPTIONS
    }

    /// MMX register `n` (SDM Vol. 1 9.2.2).
    #[inline(always)]
    pub(super) fn mm(&self, n: u8) -> u64 {
        self.r[usize::from(n & 7)] as u64
    }

    /// Writes an MMX register, as an MMX instruction does (see [`X87State::enter_mmx`]): its
    /// exponent becomes all ones.
    #[inline(always)]
    pub(super) fn set_mm(&mut self, n: u8, value: u64) {
        self.enter_mmx();
        self.r[usize::from(n & 7)] = 0xFFFF << 64 | u128::from(value);
    }

    /// What every MMX instruction except EMMS does: TOP is 0, and no register is empty (SDM Vol. 1
    /// 9.5.1).
    #[inline(always)]
    pub(super) fn enter_mmx(&mut self) {
        self.fsw &= !TOP;
        self.ftw = 0xFF;
    }

    /// EMMS: all registers are empty.
    pub(super) fn leave_mmx(&mut self) {
        self.fsw &= !TOP;
        self.ftw = 0;
    }
}

impl Cpu {
    /// #NM unless the FPU is there and its contents are the program's (SDM Vol. 3A 2.5).
    #[inline(always)]
    pub(super) fn need_fpu(&mut self) -> Result<(), Abort> {
        if self.sys.cr0 & (cr0::EM | cr0::TS) != 0 {
            return Err(self.exception(vector::NM, None));
        }
        Ok(())
    }

    /// What a waiting instruction begins with: #MF if an exception is pending. CR0.NE is taken to
    /// be set: no FERR# is wired to an interrupt controller.
    #[inline(always)]
    fn wait_fpu(&mut self) -> Result<(), Abort> {
        self.need_fpu()?;
        if self.x87.pending() {
            return Err(self.exception(vector::MF, None));
        }
        Ok(())
    }

    /// Records the address and the opcode of a non-control instruction, for the exception handler.
    #[inline(always)]
    fn set_fip(&mut self, insn: &Insn, modrm: u8) {
        self.x87.fip = self.this_rip(insn);
        self.x87.fop = u16::from(insn.aux & 7) << 8 | u16::from(modrm);
    }
}

// `aux` is the low three bits of the opcode, `src` ModRM or its reg field, `dst` the size of the
// operand.

fn register(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let before = cpu.x87.fsw;
    let flow = examine(cpu, insn)?;
    keep_conditions(&mut cpu.x87, before);
    Ok(flow)
}

/// An instruction that sets the condition codes.
fn examine(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.wait_fpu()?;
    // SAFETY: `wait_fpu` has found no pending exception. The rows of this function and of
    // `register` are defined register forms that access the FPU alone.
    unsafe { host::run_register(&mut cpu.x87, insn.aux, insn.src, 0) };
    cpu.set_fip(insn, insn.src);
    Ok(Flow::Next)
}

/// Gives the condition codes back that the status word `before` has.
fn keep_conditions(x87: &mut X87State, before: u16) {
    x87.fsw = x87.fsw & !CONDITIONS | before & CONDITIONS;
}

/// An instruction for a power, a logarithm or trigonometry.
fn transcendental(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.wait_fpu()?;
    if let Some(operation) = Operation::of(insn.src) {
        transcendental::execute(&mut cpu.x87, operation);
    }
    cpu.set_fip(insn, insn.src);
    Ok(Flow::Next)
}

/// FCMOVcc, which reads RFLAGS.
fn conditional(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.wait_fpu()?;
    let flags = cpu.flags.bits();
    let before = cpu.x87.fsw;
    // SAFETY: as in `examine`. FCMOVcc also reads RFLAGS.
    unsafe { host::run_register(&mut cpu.x87, insn.aux, insn.src, flags) };
    keep_conditions(&mut cpu.x87, before);
    cpu.set_fip(insn, insn.src);
    Ok(Flow::Next)
}

/// FCOMI and its relatives, which write ZF, PF and CF, and clear the other flags (SDM Vol. 2A,
/// FCOMI). With an invalid operand and an unmasked exception the manual says that they do not;
/// processors do.
fn compare(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.wait_fpu()?;
    let before = cpu.x87.fsw;
    // SAFETY: as in `examine`. The rows also write RFLAGS.
    let flags = unsafe { host::run_register(&mut cpu.x87, insn.aux, insn.src, 0) };
    keep_conditions(&mut cpu.x87, before);
    cpu.flags = Lazy::from_bits(flags & (rflags::ZF | rflags::PF | rflags::CF));
    cpu.set_fip(insn, insn.src);
    Ok(Flow::Next)
}

/// Computes with a memory operand, which a store fills.
///
/// # Safety
/// `wait_fpu` has found no pending exception. `insn` has a row of `load`, `store` or `try_store`:
/// the instructions with longer operands are those of `control`.
unsafe fn memory(cpu: &mut Cpu, insn: &Insn, operand: &mut host::Operand, la: u64) {
    let before = cpu.x87.fsw;
    // SAFETY: the caller's promise: those rows are defined forms with operands of at most 10 bytes.
    unsafe { host::run_memory(&mut cpu.x87, insn.aux, insn.src, operand) };
    // FCOM, FCOMP, FICOM and FICOMP are /2 and /3 of D8, DA, DC and DE.
    let compares = insn.aux & 1 == 0 && matches!(insn.src, 2 | 3);
    if !compares {
        keep_conditions(&mut cpu.x87, before);
    }
    cpu.set_fip(insn, insn.src << 3);
    cpu.x87.fdp = la;
}

/// Alignment in bytes of an operand of `size` bytes: that of DE-FP is 8 (SDM Vol. 3A table 6-7).
fn alignment(size: u8) -> usize {
    usize::from(size).min(8)
}

fn load(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.wait_fpu()?;
    let la = cpu.ea(insn);
    let mut operand = [0; 16];
    match insn.dst {
        2 => operand[..2].copy_from_slice(&cpu.load::<u16>(la)?.to_le_bytes()),
        4 => operand[..4].copy_from_slice(&cpu.load::<u32>(la)?.to_le_bytes()),
        8 => operand[..8].copy_from_slice(&cpu.load::<u64>(la)?.to_le_bytes()),
        size => cpu.load_bytes(la, &mut operand[..10], alignment(size))?,
    }
    // SAFETY: `wait_fpu` has returned, and this is a row of `load`.
    unsafe { memory(cpu, insn, &mut operand, la) };
    Ok(Flow::Next)
}

/// Stores to memory. An unmasked exception other than an inexact result leaves nothing to store
/// (SDM Vol. 1 8.5); memory is not accessed then.
fn store(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.wait_fpu()?;
    let la = cpu.ea(insn);
    let before = cpu.x87;
    let mut operand = [0; 16];
    // SAFETY: `wait_fpu` has returned, and this is a row of `store`.
    unsafe { memory(cpu, insn, &mut operand, la) };
    if cpu.x87.unmasked() & !PE == 0 {
        let size = usize::from(insn.dst).min(10);
        if let Err(Abort) = cpu.store_bytes(la, &operand[..size], alignment(insn.dst)) {
            cpu.x87 = before;
            return Err(Abort);
        }
    }
    Ok(Flow::Next)
}

/// Runs before the address operation of a store: if there is nothing to store, the segment is not
/// checked.
fn try_store(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.wait_fpu()?;
    let before = cpu.x87;
    let la = cpu.ea(insn);
    // SAFETY: `wait_fpu` has returned, and this is a row of `try_store`.
    unsafe { memory(cpu, insn, &mut [0; 16], la) };
    if cpu.x87.unmasked() & !PE != 0 {
        return cpu.end_block(insn);
    }
    cpu.x87 = before;
    Ok(Flow::Next)
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    control::rows(t);
    t.handler(
        [
            Fadd_st0_sti,
            Fmul_st0_sti,
            Fsub_st0_sti,
            Fsubr_st0_sti,
            Fdiv_st0_sti,
            Fdivr_st0_sti,
            Fld_sti,
            Fxch_st0_sti,
            Fnop,
            Fstpnce_sti,
            Fchs,
            Fabs,
            Fld1,
            Fldl2t,
            Fldl2e,
            Fldpi,
            Fldlg2,
            Fldln2,
            Fldz,
            Fxtract,
            Fdecstp,
            Fincstp,
            Fsqrt,
            Frndint,
            Fscale,
            Fadd_sti_st0,
            Fmul_sti_st0,
            Fsubr_sti_st0,
            Fsub_sti_st0,
            Fdivr_sti_st0,
            Fdiv_sti_st0,
            Ffree_sti,
            Fxch_st0_sti_DDC8,
            Fst_sti,
            Fstp_sti,
            Faddp_sti_st0,
            Fmulp_sti_st0,
            Fsubrp_sti_st0,
            Fsubp_sti_st0,
            Fdivrp_sti_st0,
            Fdivp_sti_st0,
            Ffreep_sti,
            Fxch_st0_sti_DFC8,
            Fstp_sti_DFD0,
            Fstp_sti_DFD8,
        ],
        register,
    );
    t.handler([Fcom_st0_sti, Fcomp_st0_sti, Ftst, Fxam, Fprem1, Fprem, Fucompp, Fcom_st0_sti_DCD0, Fcomp_st0_sti_DCD8, Fucom_st0_sti, Fucomp_st0_sti, Fcomp_st0_sti_DED0, Fcompp], examine);
    t.handler([F2xm1, Fyl2x, Fptan, Fpatan, Fyl2xp1, Fsincos, Fsin, Fcos], transcendental);
    t.handler([Fcmovb_st0_sti, Fcmove_st0_sti, Fcmovbe_st0_sti, Fcmovu_st0_sti, Fcmovnb_st0_sti, Fcmovne_st0_sti, Fcmovnbe_st0_sti, Fcmovnu_st0_sti], conditional);
    t.handler([Fucomi_st0_sti, Fcomi_st0_sti, Fucomip_st0_sti, Fcomip_st0_sti], compare);
    t.handler(
        [
            Fadd_m32fp,
            Fmul_m32fp,
            Fcom_m32fp,
            Fcomp_m32fp,
            Fsub_m32fp,
            Fsubr_m32fp,
            Fdiv_m32fp,
            Fdivr_m32fp,
            Fld_m32fp,
            Fiadd_m32int,
            Fimul_m32int,
            Ficom_m32int,
            Ficomp_m32int,
            Fisub_m32int,
            Fisubr_m32int,
            Fidiv_m32int,
            Fidivr_m32int,
            Fild_m32int,
            Fld_m80fp,
            Fadd_m64fp,
            Fmul_m64fp,
            Fcom_m64fp,
            Fcomp_m64fp,
            Fsub_m64fp,
            Fsubr_m64fp,
            Fdiv_m64fp,
            Fdivr_m64fp,
            Fld_m64fp,
            Fiadd_m16int,
            Fimul_m16int,
            Ficom_m16int,
            Ficomp_m16int,
            Fisub_m16int,
            Fisubr_m16int,
            Fidiv_m16int,
            Fidivr_m16int,
            Fild_m16int,
            Fbld_m80bcd,
            Fild_m64int,
        ],
        load,
    );
    let stores = [
        Fst_m32fp,
        Fstp_m32fp,
        Fisttp_m32int,
        Fist_m32int,
        Fistp_m32int,
        Fstp_m80fp,
        Fisttp_m64int,
        Fst_m64fp,
        Fstp_m64fp,
        Fisttp_m16int,
        Fist_m16int,
        Fistp_m16int,
        Fbstp_m80bcd,
        Fistp_m64int,
    ];
    t.handler(stores, store);
    t.set_before_address(stores, try_store);
}
