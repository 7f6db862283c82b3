//! Pieces of programs: reports, the end, far transfers, changes of mode.

use super::{CODE32, DATA, END, GDT, IDT, STACK, USER_STACK, VECTORS, sel};
use iced_x86::code_asm::*;
use iced_x86::{Code, Instruction};
use vbts_testkit::Emit;

/// Writes a constant to the port that reports.
pub(super) fn say(a: &mut CodeAssembler, text: [u8; 4]) -> Emit {
    mark(a, u32::from_le_bytes(text))
}

/// Reports EAX.
pub fn report(a: &mut CodeAssembler) -> Emit {
    for _ in 0..4 {
        a.out(0xE9, al)?;
        a.ror(eax, 8)?;
    }
    Ok(())
}

/// Reports a constant.
pub fn mark(a: &mut CodeAssembler, value: u32) -> Emit {
    a.mov(eax, value)?;
    report(a)
}

/// Ends the program: isa-debug-exit on QEMU, the shutdown port on Bochs, and HLT.
pub fn exit(a: &mut CodeAssembler) -> Emit {
    say(a, END)?;
    a.xor(eax, eax)?;
    a.out(0xF4, al)?;
    a.mov(dx, 0x8900)?;
    for c in *b"Shutdown" {
        a.mov(al, i32::from(c))?;
        a.out(dx, al)?;
    }
    a.cli()?;
    a.hlt()
}

/// JMP FAR with a 16-bit offset.
pub fn ljmp16(a: &mut CodeAssembler, selector: u16, offset: u32) -> Emit {
    far(a, Code::Jmp_ptr1616, selector, offset)
}

/// JMP FAR with a 32-bit offset.
pub fn ljmp32(a: &mut CodeAssembler, selector: u16, offset: u32) -> Emit {
    far(a, Code::Jmp_ptr1632, selector, offset)
}

/// CALL FAR with a 16-bit offset.
pub fn lcall16(a: &mut CodeAssembler, selector: u16, offset: u32) -> Emit {
    far(a, Code::Call_ptr1616, selector, offset)
}

/// CALL FAR with a 32-bit offset.
pub fn lcall32(a: &mut CodeAssembler, selector: u16, offset: u32) -> Emit {
    far(a, Code::Call_ptr1632, selector, offset)
}

/// A far JMP or CALL to an address in the instruction, for which the assembler has no method.
fn far(a: &mut CodeAssembler, code: Code, selector: u16, offset: u32) -> Emit {
    a.add_instruction(Instruction::with_far_branch(code, selector, offset)?)
}

/// Loads GDTR and IDTR; 16-bit code with DS = 0.
pub fn load_tables(a: &mut CodeAssembler) -> Emit {
    a.mov(word_ptr(DATA), i32::from(sel::END) - 1)?;
    a.mov(dword_ptr(DATA + 2), GDT as i32)?;
    a.lgdt(ptr(DATA))?;
    a.mov(word_ptr(DATA), 8 * VECTORS as i32 - 1)?;
    a.mov(dword_ptr(DATA + 2), IDT as i32)?;
    a.lidt(ptr(DATA))
}

/// From real-address mode to [`CODE32`].
pub fn enter_protected(a: &mut CodeAssembler) -> Emit {
    load_tables(a)?;
    a.mov(eax, cr0)?;
    a.or(al, 1)?;
    a.mov(cr0, eax)?;
    ljmp32(a, sel::CODE32, CODE32)
}

/// Flat data segments and the stack, in 32-bit code.
pub fn load_data32(a: &mut CodeAssembler) -> Emit {
    a.mov(ax, i32::from(sel::DATA32))?;
    a.mov(ds, ax)?;
    a.mov(es, ax)?;
    a.mov(ss, ax)?;
    a.mov(esp, STACK as i32)
}

/// IRET to 32-bit user code with EFLAGS = 2, in flat 32-bit code.
pub fn to_user(a: &mut CodeAssembler, at: u32) -> Emit {
    a.push(i32::from(sel::USER_DATA))?;
    a.push(USER_STACK as i32)?;
    a.push(2)?;
    a.push(i32::from(sel::USER_CODE))?;
    a.push(at as i32)?;
    a.iretd()
}
