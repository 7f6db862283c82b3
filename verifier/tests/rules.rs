//! Each rule, with code that keeps it and code that breaks it.

#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use iced_x86::Code::{Lea_r64_m, Mov_r64_rm64};
use iced_x86::code_asm::*;
use iced_x86::{Code, IcedError, Instruction, MemoryOperand, Register};
use vbts_verifier::{Field, Part, Piece, Refused, Rules, Why, verify};

const START: u64 = 0x10_0000;
const EXIT: u64 = 0x20_0000;
const RECORD: u64 = 0x20_0100;
const EXECUTE: u64 = 0x20_0200;
const JUMPS: u64 = 0x30_0000;
const KEY: u64 = 0x40_0000;

const TLB: i32 = -0x80;
const INDEX: i32 = 0x10;
const END: i32 = 0x18;
const TARGET: i32 = 0x20;
const MXCSR: i32 = 0x40;
const HOST_MXCSR: i32 = 0x30;

const fn field(at: i32, len: u32, writable: bool) -> Field {
    Field { at, len, writable }
}

const RULES: Rules<'_> = Rules {
    frame: &[field(0, 0x28, true)],
    processor: &[
        field(0x100, 0x80, true),
        field(TLB, 8, false),
        field(INDEX, 16, false),
    ],
    tlb: TLB,
    tlb_mask: 0x1_FFC0,
    tlb_entry: 0x40,
    window_index: INDEX,
    window_end: END,
    record: 24,
    jumps: &[JUMPS],
    jump_mask: 0x1_FFFE,
    jump_code: 8,
    target: TARGET,
    mxcsr: MXCSR,
    host_mxcsr: HOST_MXCSR,
    exits: &[EXIT],
    routines: &[RECORD],
    common_routine: EXECUTE,
    common_constants: 24,
};

type Writer = dyn Fn(&mut CodeAssembler) -> Result<(), IcedError>;

fn check_bytes(code: &[u8], constants: &[(usize, usize)], links: &[u64]) -> Result<(), Refused> {
    let part = Part {
        address: START,
        code,
        constants,
    };
    let piece = Piece {
        parts: &[part],
        entries: &[START],
        links,
        keys: &[KEY],
    };
    verify(&RULES, &piece)
}

/// The verdict on code that jumps to the exit behind it.
fn check(code: &Writer) -> Result<(), Refused> {
    let mut a = CodeAssembler::new(64).unwrap();
    code(&mut a).unwrap();
    a.jmp(EXIT).unwrap();
    check_bytes(&a.assemble(START).unwrap(), &[], &[])
}

#[track_caller]
fn accepts(code: &Writer) {
    assert_eq!(check(code), Ok(()));
}

#[track_caller]
fn refuses(why: Why, code: &Writer) {
    assert_eq!(check(code).map_err(|refused| refused.why), Err(why));
}

/// The look-up of the TLB's entry, up to the pointer to it.
fn entry(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.and(eax, 0x1_FFC0)?;
    a.add(rax, qword_ptr(r15 + TLB))
}

/// An instruction with an operand that is relative to RIP.
fn relative(a: &mut CodeAssembler, code: Code, to: Register, at: u64) -> Result<(), IcedError> {
    let operand = MemoryOperand::with_base_displ(Register::RIP, at as i64);
    a.add_instruction(Instruction::with2(code, to, operand)?)
}

/// The start of a jump through the table: the pointer to the entry.
fn jump_entry(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(eax, dword_ptr(rsp + TARGET))?;
    a.and(eax, 0x1_FFFE)?;
    relative(a, Lea_r64_m, Register::R14, JUMPS)?;
    a.lea(r14, qword_ptr(r14 + rax * 8))?;
    a.mov(rax, qword_ptr(rsp + TARGET))
}

#[test]
fn instructions_are_listed() {
    accepts(&|a| a.imul_2(rbx, r9));
    accepts(&|a| a.vpaddd(ymm1, ymm2, ymm15));
    refuses(Why::Instruction, &|a| a.syscall());
    refuses(Why::Instruction, &|a| a.wrgsbase(rax));
    refuses(Why::Instruction, &|a| a.wrpkru());
    refuses(Why::Instruction, &|a| a.xrstor(ptr(r15 + 0x100)));
    refuses(Why::Instruction, &|a| a.push(rax));
    refuses(Why::Instruction, &|a| a.ret());
    refuses(Why::Instruction, &|a| a.int(3));
    refuses(Why::Instruction, &|a| a.movsb());
    refuses(Why::Instruction, &|a| a.rep().stosq());
    refuses(Why::Instruction, &|a| a.maskmovdqu(xmm0, xmm1));
    refuses(Why::Instruction, &|a| a.vpaddd(zmm1, zmm2, zmm3));
    refuses(Why::Instruction, &|a| a.fld1());
    // What is no instruction.
    let code = [0x06, 0xE9, 0, 0, 0, 0];
    let refused = check_bytes(&code, &[], &[]).unwrap_err();
    assert_eq!((refused.address, refused.why), (START, Why::Instruction));
}

#[test]
fn operands_are_free_registers() {
    refuses(Why::Operand, &|a| a.mov(r15, rax));
    refuses(Why::Operand, &|a| a.add(esp, 8));
    refuses(Why::Operand, &|a| a.setb(r15b));
    refuses(Why::Operand, &|a| a.xchg(rax, rsp));
    refuses(Why::Operand, &|a| a.mov(ds, ax));
    refuses(Why::Operand, &|a| a.mov(rax, cr3));
    // VPGATHERDD XMM1, GS:[R9D + XMM2], XMM3
    let gather = [0x65, 0x67, 0xC4, 0xC2, 0x61, 0x90, 0x0C, 0x11, 0x0F, 0x0B];
    let refused = check_bytes(&gather, &[], &[]).unwrap_err();
    assert_eq!(refused.why, Why::Operand);
}

#[test]
fn memory_is_at_gs_with_32_bits() {
    accepts(&|a| a.mov(ptr(r14d + ecx * 4 + 8).gs(), rax));
    accepts(&|a| a.movups(ptr(eax).gs(), xmm3));
    accepts(&|a| a.lock().add(dword_ptr(r14d).gs(), ebx));
    refuses(Why::Memory, &|a| a.mov(ptr(r14 + rcx * 4).gs(), rax));
    refuses(Why::Memory, &|a| a.mov(ptr(r14d), rax));
    refuses(Why::Memory, &|a| a.mov(ptr(r14d).fs(), rax));
    refuses(Why::Memory, &|a| a.mov(rax, ptr(r14 + 8)));
    refuses(Why::Memory, &|a| a.add(ptr(rcx), rax));
    let verdict = |code: &[u8]| check_bytes(code, &[], &[]).map_err(|refused| refused.why);
    // MOV RAX, GS:[EIP + 0]
    let relative = [0x65, 0x67, 0x48, 0x8B, 5, 0, 0, 0, 0, 0x0F, 0x0B];
    assert_eq!(verdict(&relative), Err(Why::Memory));
    // MOV RAX, GS:[0] with an address of 64 bits, and with one of 32.
    let long = [0x65, 0x48, 0x8B, 4, 0x25, 0, 0, 0, 0, 0x0F, 0x0B];
    assert_eq!(verdict(&long), Err(Why::Memory));
    let short = [0x65, 0x67, 0x48, 0x8B, 4, 0x25, 0, 0, 0, 0, 0x0F, 0x0B];
    assert_eq!(verdict(&short), Ok(()));
}

#[test]
fn a_bit_is_in_its_operand() {
    accepts(&|a| a.bts(dword_ptr(r14d).gs(), 200));
    accepts(&|a| {
        a.and(eax, 63)?;
        a.bts(qword_ptr(r14d).gs(), rax)
    });
    refuses(Why::Memory, &|a| a.bts(qword_ptr(r14d).gs(), rax));
    refuses(Why::Memory, &|a| {
        a.and(eax, 64)?;
        a.bts(qword_ptr(r14d).gs(), rax)
    });
}

#[test]
fn fields_are_listed() {
    accepts(&|a| a.mov(ptr(rsp + 0x20), rax));
    accepts(&|a| a.movaps(ptr(r15 + 0x170), xmm0));
    accepts(&|a| a.cmp(rax, ptr(r15 + INDEX)));
    refuses(Why::Memory, &|a| a.mov(ptr(rsp + 0x21), rax));
    refuses(Why::Memory, &|a| a.mov(ptr(rsp - 8), rax));
    refuses(Why::Memory, &|a| a.movaps(ptr(r15 + 0x178), xmm0));
    refuses(Why::Memory, &|a| a.mov(ptr(r15 + TLB), rax));
    refuses(Why::Memory, &|a| a.mov(ptr(r15 + INDEX), rax));
    refuses(Why::Memory, &|a| a.mov(ptr(r15 + END), rax));
    refuses(Why::Memory, &|a| a.xchg(ptr(r15 + TLB), rax));
    refuses(Why::Memory, &|a| a.mov(rax, ptr(r15 + rcx + 0x100)));
    accepts(&|a| a.ldmxcsr(ptr(r15 + MXCSR)));
    accepts(&|a| a.ldmxcsr(ptr(rsp + HOST_MXCSR)));
    accepts(&|a| a.stmxcsr(ptr(r15 + MXCSR)));
    refuses(Why::Memory, &|a| a.ldmxcsr(ptr(r15 + 0x100)));
    refuses(Why::Memory, &|a| a.stmxcsr(ptr(rsp + HOST_MXCSR)));
    refuses(Why::Memory, &|a| a.ldmxcsr(ptr(r14d).gs()));
}

#[test]
fn the_tlb_is_read_behind_a_masked_offset() {
    accepts(&|a| {
        entry(a)?;
        a.sar(r14, 12)?;
        a.cmp(r14, ptr(rax + 0x30))?;
        a.mov(r14, ptr(rax + 0x38))
    });
    accepts(&|a| {
        a.mov(r14, ptr(r15 + TLB))?;
        a.mov(r14, ptr(r14 + 0x1_FFF8))
    });
    refuses(Why::Memory, &|a| {
        entry(a)?;
        a.mov(r14, ptr(rax + 0x3C))
    });
    refuses(Why::Memory, &|a| {
        entry(a)?;
        a.mov(ptr(rax), rcx)
    });
    refuses(Why::Memory, &|a| {
        a.and(eax, 0x3_FFC0)?;
        a.add(rax, qword_ptr(r15 + TLB))?;
        a.mov(r14, ptr(rax))
    });
    refuses(Why::Memory, &|a| {
        a.mov(r14, ptr(r15 + TLB))?;
        a.mov(r14, ptr(r14 + 0x2_0000))
    });
    let between: [&Writer; 5] = [
        &|a| a.inc(rax),
        &|a| a.mul(rcx),
        &|a| a.lahf(),
        &|a| a.call(RECORD),
        &|a| a.xchg(rcx, rax),
    ];
    for between in between {
        refuses(Why::Memory, &|a| {
            entry(a)?;
            between(a)?;
            a.mov(r14, ptr(rax))
        });
    }
    // A jump into the sequence.
    refuses(Why::Memory, &|a| {
        let mut at = a.create_label();
        a.jne(at)?;
        entry(a)?;
        a.set_label(&mut at)?;
        a.mov(r14, ptr(rax))
    });
}

#[test]
fn the_index_of_the_window_advances_by_a_record() {
    let record = |first: i32, jump: fn(&mut CodeAssembler) -> Result<(), IcedError>, by: i32| {
        check(&move |a| {
            a.mov(rax, ptr(r15 + first))?;
            a.cmp(rax, ptr(r15 + END))?;
            jump(a)?;
            a.mov(r14, ptr(r15 + 0x108))?;
            a.mov(qword_ptr(eax + r14d + 16).gs(), 0)?;
            a.add(rax, by)?;
            a.mov(ptr(r15 + INDEX), rax)
        })
    };
    assert_eq!(record(INDEX, |a| a.jae(EXIT), 24), Ok(()));
    for verdict in [
        record(END, |a| a.jae(EXIT), 24),
        record(INDEX, |a| a.ja(EXIT), 24),
        record(INDEX, |a| a.nop(), 24),
        record(INDEX, |a| a.jae(EXIT), 48),
    ] {
        assert_eq!(verdict.unwrap_err().why, Why::Memory);
    }
}

#[test]
fn an_indirect_jump_follows_its_look_up() {
    accepts(&|a| {
        jump_entry(a)?;
        a.cmp(rax, ptr(r14))?;
        a.jne(EXIT)?;
        a.jmp(qword_ptr(r14 + 8))
    });
    refuses(Why::Memory, &|a| {
        jump_entry(a)?;
        a.jmp(qword_ptr(r14 + 8))
    });
    refuses(Why::Memory, &|a| {
        jump_entry(a)?;
        a.cmp(rax, ptr(r14))?;
        a.je(EXIT)?;
        a.jmp(qword_ptr(r14 + 8))
    });
    refuses(Why::Memory, &|a| {
        jump_entry(a)?;
        a.cmp(rax, ptr(r14))?;
        a.jne(EXIT)?;
        a.jmp(qword_ptr(r14))
    });
    refuses(Why::Memory, &|a| a.jmp(rax));
    refuses(Why::Memory, &|a| a.call(rax));
    refuses(Why::Memory, &|a| a.jmp(qword_ptr(r15 + 0x100)));
}

#[test]
fn jumps_lead_to_instructions() {
    accepts(&|a| a.call(RECORD));
    refuses(Why::Jump, &|a| a.call(EXIT));
    refuses(Why::Jump, &|a| a.jmp(RECORD));
    refuses(Why::Jump, &|a| a.jmp(EXECUTE));
    refuses(Why::Jump, &|a| a.je(EXIT + 1));
    // Into an instruction; behind the end; behind the end by going on; no whole instruction.
    let refused = |code: &[u8]| check_bytes(code, &[], &[]).unwrap_err().why;
    assert_eq!(refused(&[0xEB, 1, 0xB8, 0, 0, 0, 0, 0x0F, 0x0B]), Why::Jump);
    assert_eq!(refused(&[0xEB, 0]), Why::Jump);
    assert_eq!(refused(&[0x90]), Why::End);
    assert_eq!(refused(&[0xE9, 0]), Why::Instruction);
}

/// An opcode and the displacement that leads from the end of the instruction to `target`.
fn jump(opcode: &[u8], before: usize, target: u64) -> Vec<u8> {
    let next = START + (before + opcode.len()) as u64 + 4;
    let displacement = (target - next) as u32;
    [opcode, &displacement.to_le_bytes()].concat()
}

#[test]
fn constants_are_not_executed() {
    let mut code = jump(&[0xE9], 0, EXIT);
    code.extend([0xFF; 8]);
    assert_eq!(check_bytes(&code, &[(5, 8)], &[]), Ok(()));
    assert!(check_bytes(&code, &[], &[]).is_err());
    assert!(check_bytes(&code, &[(5, 9)], &[]).is_err());
    assert!(check_bytes(&code, &[(5, 8), (4, 1)], &[]).is_err());
    // A constant between two instructions of which the first goes on.
    let between = check_bytes(&[0x90, 0xFF, 0x0F, 0x0B], &[(1, 1)], &[]);
    assert_eq!(between.unwrap_err().why, Why::End);
    // MOV RAX, [RIP + n], or a store there; UD2; the constant.
    let access = |opcode: u8, displacement: u8| {
        let mut code = vec![0x48, opcode, 5, displacement, 0, 0, 0, 0x0F, 0x0B];
        code.extend([0xFF; 8]);
        check_bytes(&code, &[(9, 8)], &[]).map_err(|refused| refused.why)
    };
    assert_eq!(access(0x8B, 2), Ok(()));
    assert_eq!(access(0x89, 2), Err(Why::Memory));
    assert_eq!(access(0x8B, 3), Err(Why::Memory));
    accepts(&|a| relative(a, Mov_r64_rm64, Register::RAX, KEY));
    refuses(Why::Memory, &|a| {
        relative(a, Mov_r64_rm64, Register::RAX, KEY + 8)
    });
}

#[test]
fn links_are_displacements_of_jumps() {
    let code = [&[0x90][..], &jump(&[0xE9], 1, EXIT)].concat();
    assert_eq!(check_bytes(&code, &[], &[START + 2]), Ok(()));
    for link in [START, START + 1, START + 3] {
        assert_eq!(check_bytes(&code, &[], &[link]).unwrap_err().why, Why::Jump);
    }
    // The displacements of JNE and of CALL.
    for (opcode, target) in [(&[0x0F, 0x85][..], EXIT), (&[0xE8], RECORD)] {
        let code = [&jump(opcode, 0, target)[..], &[0x0F, 0x0B]].concat();
        assert_eq!(check_bytes(&code, &[], &[]), Ok(()));
        let link = START + opcode.len() as u64;
        assert_eq!(check_bytes(&code, &[], &[link]).unwrap_err().why, Why::Jump);
    }
}

#[test]
fn a_common_call_is_called() {
    const CALL: u8 = 0xE8;
    const JMP: u8 = 0xE9;
    /// LEA R14, [RIP + n]
    const LEA: [u8; 3] = [0x4C, 0x8D, 0x35];
    // `first` to behind UD2 and `between`; then the common call and its constants.
    let verdict = |first: u8, between: &[u8], lea: [u8; 3], displacement: u32| {
        let mut code = vec![first];
        code.extend((2 + between.len() as u32).to_le_bytes());
        code.extend([0x0F, 0x0B]);
        code.extend(between);
        code.extend(lea);
        code.extend(displacement.to_le_bytes());
        code.extend(jump(&[JMP], code.len(), EXECUTE));
        let at = code.len();
        code.extend([0; 24]);
        check_bytes(&code, &[(at, 24)], &[]).map_err(|refused| refused.why)
    };
    assert_eq!(verdict(CALL, &[], LEA, 5), Ok(()));
    assert_eq!(verdict(JMP, &[], LEA, 5), Err(Why::Jump));
    // The constants would end behind the piece.
    assert_eq!(verdict(CALL, &[], LEA, 6), Err(Why::Jump));
    // LEA RSI. NOP, which goes on to it.
    assert_eq!(verdict(CALL, &[], [0x48, 0x8D, 0x35], 5), Err(Why::Jump));
    assert_eq!(verdict(CALL, &[0x90], LEA, 5), Err(Why::Jump));
    // A call of another instruction of the piece.
    let code = [CALL, 2, 0, 0, 0, 0x0F, 0x0B, 0x0F, 0x0B];
    assert_eq!(check_bytes(&code, &[], &[]).unwrap_err().why, Why::Jump);
}
