//! Where an instruction will go, by its operands and its condition before the step.

use anyhow::{Result, bail};
use iced_x86::{Code, ConditionCode, FlowControl, Instruction, Mnemonic};
use nix::libc::user_regs_struct;

/// What an instruction will do to the instruction pointer, if it completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Foreseen {
    /// Nothing special, or a branch that is not taken.
    Next,
    /// A string instruction with a repeat prefix: the step ends after each iteration.
    NextOrSame,
    /// Enters the kernel, which may return to any address: not a user branch.
    Kernel,
    /// A taken branch to a known target.
    To(u64),
    /// A taken branch to wherever a register or memory says.
    Anywhere,
}

pub(super) fn foresee(instruction: &Instruction, regs: &user_regs_struct) -> Result<Foreseen> {
    // INT 80H is the system call of 32-bit programs.
    let calls_kernel = match instruction.mnemonic() {
        Mnemonic::Syscall | Mnemonic::Sysenter => true,
        Mnemonic::Int => instruction.immediate8() == 0x80,
        _ => false,
    };
    if calls_kernel {
        return Ok(Foreseen::Kernel);
    }
    Ok(match instruction.flow_control() {
        FlowControl::Next if has_repeat(instruction) => Foreseen::NextOrSame,
        FlowControl::Next => Foreseen::Next,
        FlowControl::Call | FlowControl::UnconditionalBranch
            if instruction.near_branch_target() != 0 =>
        {
            Foreseen::To(instruction.near_branch_target())
        }
        FlowControl::ConditionalBranch if is_taken(instruction, regs)? => {
            Foreseen::To(instruction.near_branch_target())
        }
        FlowControl::ConditionalBranch => Foreseen::Next,
        FlowControl::Call
        | FlowControl::UnconditionalBranch
        | FlowControl::IndirectBranch
        | FlowControl::IndirectCall
        | FlowControl::Return => Foreseen::Anywhere,
        FlowControl::Interrupt | FlowControl::XbeginXabortXend | FlowControl::Exception => {
            bail!("no test program may complete it")
        }
    })
}

fn has_repeat(instruction: &Instruction) -> bool {
    instruction.is_string_instruction()
        && (instruction.has_rep_prefix() || instruction.has_repne_prefix())
}

/// RFLAGS bits.
const CF: u64 = 1 << 0;
const PF: u64 = 1 << 2;
const ZF: u64 = 1 << 6;
const SF: u64 = 1 << 7;
const OF: u64 = 1 << 11;

fn is_taken(instruction: &Instruction, regs: &user_regs_struct) -> Result<bool> {
    let flag = |mask: u64| regs.eflags & mask != 0;
    if instruction.is_jcx_short() || instruction.is_loop() || instruction.is_loopcc() {
        let mask = counter_mask(instruction.code())?;
        if instruction.is_jcx_short() {
            return Ok(regs.rcx & mask == 0);
        }
        // LOOP decrements first.
        let goes_on = regs.rcx.wrapping_sub(1) & mask != 0;
        return Ok(match instruction.mnemonic() {
            Mnemonic::Loope => goes_on && flag(ZF),
            Mnemonic::Loopne => goes_on && !flag(ZF),
            _ => goes_on,
        });
    }
    Ok(match instruction.condition_code() {
        ConditionCode::o => flag(OF),
        ConditionCode::no => !flag(OF),
        ConditionCode::b => flag(CF),
        ConditionCode::ae => !flag(CF),
        ConditionCode::e => flag(ZF),
        ConditionCode::ne => !flag(ZF),
        ConditionCode::be => flag(CF | ZF),
        ConditionCode::a => !flag(CF | ZF),
        ConditionCode::s => flag(SF),
        ConditionCode::ns => !flag(SF),
        ConditionCode::p => flag(PF),
        ConditionCode::np => !flag(PF),
        ConditionCode::l => flag(SF) != flag(OF),
        ConditionCode::ge => flag(SF) == flag(OF),
        ConditionCode::le => flag(ZF) || flag(SF) != flag(OF),
        ConditionCode::g => !flag(ZF) && flag(SF) == flag(OF),
        ConditionCode::None => bail!("a conditional branch without a condition"),
    })
}

/// The part of RCX that LOOP and JRCXZ use.
fn counter_mask(code: Code) -> Result<u64> {
    Ok(match code {
        Code::Jrcxz_rel8_64
        | Code::Loop_rel8_64_RCX
        | Code::Loope_rel8_64_RCX
        | Code::Loopne_rel8_64_RCX => u64::MAX,
        Code::Jecxz_rel8_32
        | Code::Jecxz_rel8_64
        | Code::Loop_rel8_32_ECX
        | Code::Loop_rel8_64_ECX
        | Code::Loope_rel8_32_ECX
        | Code::Loope_rel8_64_ECX
        | Code::Loopne_rel8_32_ECX
        | Code::Loopne_rel8_64_ECX => u64::from(u32::MAX),
        Code::Jcxz_rel8_32
        | Code::Loop_rel8_32_CX
        | Code::Loope_rel8_32_CX
        | Code::Loopne_rel8_32_CX => u64::from(u16::MAX),
        other => bail!("no counter known for {other:?}"),
    })
}
