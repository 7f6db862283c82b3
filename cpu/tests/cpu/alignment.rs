//! Alignment checking (SDM Vol. 3A 6.15, interrupt 17): what an unaligned operand at CPL 3 raises
//! while CR0.AM and RFLAGS.AC are set. The host's processor does the same.

use iced_x86::code_asm::*;
use iced_x86::{Code, Instruction, MemoryOperand, Register};
use vbts_cpu::model;
use vbts_cpu::state::vector::{AC, GP, PF, UD};
use vbts_cpu::state::xsave::component;
use vbts_cpu::state::{cr0, cr4, gpr, rflags};
use vbts_testkit::Emit;

use crate::common::{DATA, Guest, USER};

/// Non-canonical, and unaligned.
const HOLE: u64 = 0x8000_0000_0001;
/// The last byte below the non-canonical addresses.
const BELOW_HOLE: u64 = 0x7FFF_FFFF_FFFF;
/// Not mapped, and unaligned.
const NOWHERE: u64 = 0x4000_0001;

/// Name, instruction with an operand at RSI and RDI, this address, and the exception that it
/// raises. #UD is that of the instruction after it: it completes.
type Case = (&'static str, fn(&mut CodeAssembler) -> Emit, u64, u8);

const CASES: &[Case] = &[
    ("MOV", |a| a.mov(rax, qword_ptr(rsi)), DATA + 4, AC),
    ("MOV of a byte", |a| a.mov(al, byte_ptr(rsi)), DATA + 1, UD),
    ("MOV, aligned", |a| a.mov(rax, qword_ptr(rsi)), DATA + 8, UD),
    ("MOV to memory", |a| a.mov(word_ptr(rsi), ax), DATA + 1, AC),
    (
        "LOCK ADD",
        |a| a.lock().add(dword_ptr(rsi), eax),
        DATA + 2,
        AC,
    ),
    ("PUSH", |a| a.push(qword_ptr(rsi)), DATA + 1, AC),
    // The priority of faults.
    (
        "MOV, not present",
        |a| a.mov(rax, qword_ptr(rsi)),
        NOWHERE,
        AC,
    ),
    (
        "MOV, not canonical",
        |a| a.mov(rax, qword_ptr(rsi)),
        HOLE,
        GP,
    ),
    (
        "MOV to memory, not canonical",
        |a| a.mov(qword_ptr(rsi), rax),
        HOLE,
        GP,
    ),
    (
        "MOV, its end not canonical",
        |a| a.mov(rax, qword_ptr(rsi)),
        BELOW_HOLE,
        GP,
    ),
    (
        "ADD to memory, not canonical",
        |a| a.add(qword_ptr(rsi), rax),
        HOLE,
        GP,
    ),
    (
        "LOCK ADD, not canonical",
        |a| a.lock().add(qword_ptr(rsi), rax),
        HOLE,
        GP,
    ),
    // Vectors.
    ("MOVUPS", |a| a.movups(xmm1, xmmword_ptr(rsi)), DATA + 8, AC),
    ("MOVAPS", |a| a.movaps(xmm1, xmmword_ptr(rsi)), DATA + 8, GP),
    ("MOVSD", |a| a.movsd_2(xmm1, qword_ptr(rsi)), DATA + 4, AC),
    (
        "VMOVUPS",
        |a| a.vmovups(ymm1, ymmword_ptr(rsi)),
        DATA + 8,
        AC,
    ),
    (
        "VBROADCASTSS",
        |a| a.vbroadcastss(xmm1, dword_ptr(rsi)),
        DATA + 1,
        AC,
    ),
    // VMASKMOV and VPMASKMOV: "no AC# reported for any mask bit combinations" (SDM Vol. 2C).
    (
        "VMASKMOVPS",
        |a| a.vmaskmovps(xmm1, xmm0, xmmword_ptr(rsi)),
        DATA + 1,
        UD,
    ),
    (
        "VMASKMOVPD",
        |a| a.vmaskmovpd(ymm1, ymm0, ymmword_ptr(rsi)),
        DATA + 1,
        UD,
    ),
    (
        "VMASKMOVPS to memory",
        |a| a.vmaskmovps(ymmword_ptr(rsi), ymm0, ymm1),
        DATA + 1,
        UD,
    ),
    (
        "VPMASKMOVD",
        |a| a.vpmaskmovd(ymm1, ymm0, ymmword_ptr(rsi)),
        DATA + 1,
        UD,
    ),
    (
        "VPMASKMOVQ to memory",
        |a| a.vpmaskmovq(xmmword_ptr(rsi), xmm0, xmm1),
        DATA + 1,
        UD,
    ),
    (
        "VMASKMOVPS, not present",
        |a| a.vmaskmovps(xmm1, xmm0, xmmword_ptr(rsi)),
        NOWHERE,
        PF,
    ),
    (
        "VPMASKMOVD to memory, not present",
        |a| a.vpmaskmovd(ymmword_ptr(rsi), ymm0, ymm1),
        NOWHERE,
        PF,
    ),
    (
        "VMASKMOVPS, not canonical",
        |a| a.vmaskmovps(xmm1, xmm0, xmmword_ptr(rsi)),
        HOLE,
        GP,
    ),
    // Gathers: "this instruction does not perform AC checks" (SDM Vol. 2C).
    (
        "VPGATHERDD",
        |a| gather(a, Code::VEX_Vpgatherdd_xmm_vm32x_xmm),
        DATA + 1,
        UD,
    ),
    (
        "VGATHERQPD",
        |a| gather(a, Code::VEX_Vgatherqpd_ymm_vm64y_ymm),
        DATA + 1,
        UD,
    ),
    // x87: extended precision is aligned to 8 bytes, and a state to its words (table 6-7).
    ("FLD m80", |a| a.fld(tbyte_ptr(rsi)), DATA + 4, AC),
    ("FLD m80, aligned", |a| a.fld(tbyte_ptr(rsi)), DATA + 8, UD),
    ("FSTP m80", |a| a.fstp(tbyte_ptr(rsi)), DATA + 4, AC),
    ("FBLD", |a| a.fbld(tbyte_ptr(rsi)), DATA + 1, AC),
    ("FLD m64", |a| a.fld(qword_ptr(rsi)), DATA + 4, AC),
    ("FNSTENV", |a| a.fnstenv(ptr(rsi)), DATA + 2, AC),
    ("FNSTENV, aligned", |a| a.fnstenv(ptr(rsi)), DATA + 4, UD),
    ("FNSAVE", |a| a.fnsave(ptr(rsi)), DATA + 2, AC),
    ("FNSTCW", |a| a.fnstcw(word_ptr(rsi)), DATA + 1, AC),
    ("FXSAVE", |a| a.fxsave(ptr(rsi)), DATA + 16, UD),
    ("FXRSTOR", |a| a.fxrstor(ptr(rsi)), DATA + 16, UD),
    ("FXSAVE, unaligned", |a| a.fxsave(ptr(rsi)), DATA + 8, GP),
    ("XSAVE", |a| a.xsave(ptr(rsi)), DATA + 64, UD),
    ("XSAVE, unaligned", |a| a.xsave(ptr(rsi)), DATA + 1, GP),
    // Others.
    ("STOSQ", |a| a.stosq(), DATA + 1, AC),
    ("MOVSQ", |a| a.movsq(), DATA + 1, AC),
    ("CMPXCHG8B", |a| a.cmpxchg8b(qword_ptr(rsi)), DATA + 4, AC),
    (
        "CMPXCHG16B",
        |a| a.cmpxchg16b(xmmword_ptr(rsi)),
        DATA + 8,
        GP,
    ),
];

/// Gathers from RSI to register 1, with the mask in register 0 and the indices in register 2.
fn gather(a: &mut CodeAssembler, code: Code) -> Emit {
    let (result, index, mask) = match code {
        Code::VEX_Vgatherqpd_ymm_vm64y_ymm => (Register::YMM1, Register::YMM2, Register::YMM0),
        _ => (Register::XMM1, Register::XMM2, Register::XMM0),
    };
    let operand = MemoryOperand::with_base_index(Register::RSI, index);
    a.add_instruction(Instruction::with3(code, result, operand, mask)?)
}

fn start(&(_, instruction, address, _): &Case) -> Guest {
    let mut g = Guest::of(model("x86-64-v3").unwrap());
    g.start_user(|a| {
        instruction(a)?;
        a.ud2()
    });
    g.update(|s| {
        s.sys.cr0 = s.sys.cr0 & !(cr0::EM | cr0::TS) | cr0::AM;
        s.sys.cr4 |= cr4::OSXSAVE | cr4::OSFXSR;
        s.sys.xcr0 = component::X87 | component::SSE | component::AVX;
        s.rflags |= rflags::AC;
        (s.gpr[gpr::RSI], s.gpr[gpr::RDI]) = (address, address);
        (s.xmm[0], s.ymm_high[0]) = (u128::MAX, u128::MAX);
        s.xmm[2] = 0;
    });
    g
}

#[test]
fn unaligned_operands_of_user_code() {
    for case in CASES {
        let mut g = start(case);
        let (name, vector) = (case.0, case.3);
        let error = (vector != UD).then_some(if vector == PF { page_fault(name) } else { 0 });
        let frame = g.run_to_exception(vector, error);
        assert_eq!(
            frame.rip == USER,
            vector != UD,
            "{name}: RIP {:#x}",
            frame.rip
        );
    }
}

/// The error code of a page fault at CPL 3.
fn page_fault(name: &str) -> u64 {
    if name.contains("to memory") { 6 } else { 4 }
}
