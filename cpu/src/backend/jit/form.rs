//! Which instructions have a template, and what they do to the flags.

use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register, RflagsBits};

use crate::backend::jit::flags::Fix;
use crate::decode;
use crate::insn::{Insn, reg, seg};

/// A guest register, by its number.
pub(super) type Guest = u8;

/// What an instruction does to the flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// Nothing.
    Keeps,
    /// It writes all of them.
    Writes(Fix),
    /// It writes CF.
    Carry,
    /// It writes some or all of them in a way for which there is no [`Fix`]: the template is used
    /// where no flag is read afterwards.
    Unknown,
}

/// How an instruction without a template of its own becomes native code: as itself, with other
/// registers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plain {
    /// The instruction, in a form that has no implicit register.
    pub code: Code,
    pub effect: Effect,
    /// It reads flags: [`RflagsBits`].
    pub reads: u32,
}

/// Classifies an instruction that becomes native code as itself. `None`: it does not.
pub(super) fn plain(i: &Instruction) -> Option<Plain> {
    let code = explicit(i.code());
    let reads = i.rflags_read();
    let effect = match i.mnemonic() {
        Mnemonic::Mov
        | Mnemonic::Movzx
        | Mnemonic::Movsx
        | Mnemonic::Movsxd
        | Mnemonic::Lea
        | Mnemonic::Not
        | Mnemonic::Bswap => Effect::Keeps,
        Mnemonic::Xchg => Effect::Keeps,
        Mnemonic::Add
        | Mnemonic::Sub
        | Mnemonic::Cmp
        | Mnemonic::Neg
        | Mnemonic::Adc
        | Mnemonic::Sbb
        | Mnemonic::Xadd
        | Mnemonic::Popcnt => Effect::Writes(Fix::None),
        // A register can name a bit beyond the memory operand.
        mnemonic
            if is_bit_test(mnemonic)
                && (i.op0_kind() == OpKind::Register || i.op1_kind() != OpKind::Register) =>
        {
            Effect::Carry
        }
        // CF, which they keep, comes from the host's flags.
        Mnemonic::Inc | Mnemonic::Dec => {
            return Some(Plain {
                code,
                effect: Effect::Writes(Fix::None),
                reads: RflagsBits::CF,
            });
        }
        Mnemonic::And | Mnemonic::Or | Mnemonic::Xor | Mnemonic::Test => {
            Effect::Writes(Fix::ClearAf)
        }
        Mnemonic::Shl | Mnemonic::Sal | Mnemonic::Shr | Mnemonic::Sar => shift(i)?,
        Mnemonic::Rol | Mnemonic::Ror => match count(i) {
            Some(0) => Effect::Keeps,
            _ => Effect::Unknown,
        },
        Mnemonic::Imul if i.op_count() > 1 => Effect::Unknown,
        mnemonic if sets_flags_of_result(mnemonic) && host_has_bmi() => Effect::Unknown,
        Mnemonic::Pdep
        | Mnemonic::Pext
        | Mnemonic::Mulx
        | Mnemonic::Rorx
        | Mnemonic::Sarx
        | Mnemonic::Shlx
        | Mnemonic::Shrx
        | Mnemonic::Movbe
            if host_has_bmi() =>
        {
            Effect::Keeps
        }
        _ if is_conditional(i) => Effect::Keeps,
        _ => return None,
    };
    // 66H before BSWAP has an undefined result. MOV of other registers can fault.
    let general = |n| i.op_kind(n) != OpKind::Register || i.op_register(n).is_gpr();
    if code == Code::Bswap_r16 || !(0..i.op_count()).all(general) {
        return None;
    }
    Some(Plain {
        code,
        effect,
        reads,
    })
}

/// Whether it is BT, BTS, BTR or BTC.
pub(super) fn is_bit_test(mnemonic: Mnemonic) -> bool {
    use Mnemonic::{Bt, Btc, Btr, Bts};
    matches!(mnemonic, Bt | Bts | Btr | Btc)
}

/// Whether an instruction of BMI1, BMI2 or LZCNT leaves the flags of its result: with the host's
/// CF, and without OF. The manual leaves some of them undefined.
pub(super) fn sets_flags_of_result(mnemonic: Mnemonic) -> bool {
    matches!(
        mnemonic,
        Mnemonic::Tzcnt
            | Mnemonic::Lzcnt
            | Mnemonic::Andn
            | Mnemonic::Bextr
            | Mnemonic::Blsi
            | Mnemonic::Blsmsk
            | Mnemonic::Blsr
            | Mnemonic::Bzhi
    )
}

/// Whether the host's processor has what the models with BMI1 have: BMI2, LZCNT and MOVBE, too.
fn host_has_bmi() -> bool {
    is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("movbe")
}

fn is_conditional(i: &Instruction) -> bool {
    use iced_x86::ConditionCode;
    i.condition_code() != ConditionCode::None && !i.is_jcc_short_or_near() && i.op_count() > 0 && {
        // CMOVcc and SETcc: neither LOOPcc nor FCMOVcc.
        i.op0_kind() == OpKind::Memory || i.op0_register().is_gpr()
    }
}

/// The masked count of a shift by an immediate.
pub(super) fn count(i: &Instruction) -> Option<u32> {
    let size = size(i);
    (i.op1_kind() == OpKind::Immediate8)
        .then(|| u32::from(i.immediate8()) & if size == 8 { 63 } else { 31 })
}

/// Size of the first operand in bytes.
pub(super) fn size(i: &Instruction) -> usize {
    match i.op0_kind() {
        OpKind::Register => i.op0_register().size(),
        _ => i.memory_size().size(),
    }
}

fn shift(i: &Instruction) -> Option<Effect> {
    Some(match (count(i), i.mnemonic()) {
        (Some(0), _) => Effect::Keeps,
        (Some(1), _) => Effect::Writes(Fix::ClearAf),
        // A count may exceed the width of a byte or a word.
        (Some(n), _) if n as usize >= 8 * size(i) => Effect::Unknown,
        (Some(_), Mnemonic::Shl | Mnemonic::Sal) => Effect::Writes(Fix::Left),
        (Some(_), Mnemonic::Sar) => Effect::Writes(Fix::ArithmeticRight),
        _ => Effect::Unknown,
    })
}

/// The code of the same instruction with explicit operands.
fn explicit(code: Code) -> Code {
    use Code::*;
    match code {
        Add_AL_imm8 => Add_rm8_imm8,
        Add_AX_imm16 => Add_rm16_imm16,
        Add_EAX_imm32 => Add_rm32_imm32,
        Add_RAX_imm32 => Add_rm64_imm32,
        Or_AL_imm8 => Or_rm8_imm8,
        Or_AX_imm16 => Or_rm16_imm16,
        Or_EAX_imm32 => Or_rm32_imm32,
        Or_RAX_imm32 => Or_rm64_imm32,
        Adc_AL_imm8 => Adc_rm8_imm8,
        Adc_AX_imm16 => Adc_rm16_imm16,
        Adc_EAX_imm32 => Adc_rm32_imm32,
        Adc_RAX_imm32 => Adc_rm64_imm32,
        Sbb_AL_imm8 => Sbb_rm8_imm8,
        Sbb_AX_imm16 => Sbb_rm16_imm16,
        Sbb_EAX_imm32 => Sbb_rm32_imm32,
        Sbb_RAX_imm32 => Sbb_rm64_imm32,
        And_AL_imm8 => And_rm8_imm8,
        And_AX_imm16 => And_rm16_imm16,
        And_EAX_imm32 => And_rm32_imm32,
        And_RAX_imm32 => And_rm64_imm32,
        Sub_AL_imm8 => Sub_rm8_imm8,
        Sub_AX_imm16 => Sub_rm16_imm16,
        Sub_EAX_imm32 => Sub_rm32_imm32,
        Sub_RAX_imm32 => Sub_rm64_imm32,
        Xor_AL_imm8 => Xor_rm8_imm8,
        Xor_AX_imm16 => Xor_rm16_imm16,
        Xor_EAX_imm32 => Xor_rm32_imm32,
        Xor_RAX_imm32 => Xor_rm64_imm32,
        Cmp_AL_imm8 => Cmp_rm8_imm8,
        Cmp_AX_imm16 => Cmp_rm16_imm16,
        Cmp_EAX_imm32 => Cmp_rm32_imm32,
        Cmp_RAX_imm32 => Cmp_rm64_imm32,
        Test_AL_imm8 => Test_rm8_imm8,
        Test_AX_imm16 => Test_rm16_imm16,
        Test_EAX_imm32 => Test_rm32_imm32,
        Test_RAX_imm32 => Test_rm64_imm32,
        Mov_AL_moffs8 => Mov_r8_rm8,
        Mov_AX_moffs16 => Mov_r16_rm16,
        Mov_EAX_moffs32 => Mov_r32_rm32,
        Mov_RAX_moffs64 => Mov_r64_rm64,
        Mov_moffs8_AL => Mov_rm8_r8,
        Mov_moffs16_AX => Mov_rm16_r16,
        Mov_moffs32_EAX => Mov_rm32_r32,
        Mov_moffs64_RAX => Mov_rm64_r64,
        Xchg_r16_AX => Xchg_rm16_r16,
        Xchg_r32_EAX => Xchg_rm32_r32,
        Xchg_r64_RAX => Xchg_rm64_r64,
        other => other,
    }
}

/// A memory operand of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Operand {
    pub base: Option<Guest>,
    /// Register and factor.
    pub index: Option<(Guest, u8)>,
    /// Added to the registers; without registers, the address.
    pub disp: i64,
    /// The segment whose base is added: FS or GS.
    pub segment: Option<u8>,
    /// A register with the number of a bit, of which the operand is at this address plus as many
    /// operands as lie before it.
    pub bit: Option<Guest>,
    /// Bytes that are accessed.
    pub size: usize,
}

/// Whether `i` accesses the memory at its operand. A masked move does, without [`Insn::MEM`].
pub(super) fn accesses_memory(i: &Instruction, insn: &Insn) -> bool {
    let has_operand = insn.prefix & Insn::MEM != 0 || decode::is_masked_move(i);
    has_operand && i.mnemonic() != Mnemonic::Lea
}

impl Operand {
    /// Whether its address depends on no register.
    pub(super) fn is_constant(&self) -> bool {
        let registers = [self.base, self.index.map(|(r, _)| r), self.bit];
        registers.iter().all(Option::is_none) && self.segment.is_none()
    }

    /// `size` bytes at `disp` from the stack pointer or the frame pointer.
    pub(super) fn at(base: Guest, disp: i64, size: usize) -> Self {
        Self {
            base: Some(base),
            index: None,
            disp,
            segment: None,
            bit: None,
            size,
        }
    }

    /// The memory operand of `i`, in 64-bit code in a block at `rip`. `None`: its address does not
    /// have 64 bits, or no template has its form.
    pub(super) fn of(i: &Instruction, insn: &Insn, rip: u64) -> Option<Self> {
        if insn.prefix & (Insn::A16 | Insn::A32 | Insn::OFFSET64) != 0 || insn.base == reg::TMP {
            return None;
        }
        let register = |r: Register| match r {
            Register::None => Some(None),
            r if r.is_gpr64() => Some(Some(r.number() as Guest)),
            _ => None,
        };
        let segment = match insn.seg {
            seg::FLAT | seg::FLAT_SS => None,
            seg::FS | seg::GS => Some(insn.seg),
            _ => return None,
        };
        let size = i.memory_size().size();
        let bit = (is_bit_test(i.mnemonic()) && i.op1_kind() == OpKind::Register)
            .then(|| i.op1_register().full_register().number() as Guest);
        if bit.is_some() && size == 2 {
            return None;
        }
        if i.is_ip_rel_memory_operand() {
            // It was decoded as if the block began at zero.
            let address = rip.wrapping_add(i.ip_rel_memory_address());
            return Some(Self {
                base: None,
                index: None,
                disp: address as i64,
                segment,
                bit,
                size,
            });
        }
        let index = register(i.memory_index())?;
        let mut disp = i.memory_displacement64() as i64;
        if i.code() == Code::Pop_rm64 && i.memory_base() == Register::RSP {
            // It is relative to the stack pointer after the pop.
            disp = i32::try_from(disp + 8).ok()?.into();
        }
        Some(Self {
            base: register(i.memory_base())?,
            index: index.map(|r| (r, i.memory_index_scale() as u8)),
            disp,
            segment,
            bit,
            size,
        })
    }
}
