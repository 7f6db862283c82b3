//! Instructions that the software CPU once executed wrongly. `ci/fuzz-cpu` found each of them: it
//! runs random instructions on the host's processor as well. Here each instruction runs alone at
//! CPL 3, with a UD2 behind it, which ends the guest if the instruction completes.

use crate::common::deviations::{apply_to_case, is_left_out};
use crate::common::{DATA, Guest, USER, USER_STACK, assemble, segment, selector};
use iced_x86::code_asm::*;
use iced_x86::{Code, IcedError, Instruction, MemoryOperand, Register, RepPrefixKind};
use vbts_cpu::ArchState;
use vbts_cpu::state::gpr::{RAX, RBP, RBX, RCX, RDI, RDX, RSI, RSP};
use vbts_cpu::state::vector::{BR, DB, GP, PF, SS, UD};
use vbts_cpu::state::{Segment, cr0, rflags};
use vbts_testkit::descriptor::null;

/// Where the code runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// 64-bit mode.
    Bits64,
    /// Compatibility mode, 32-bit code.
    Bits32,
}

/// How the instruction ends.
#[derive(Debug, Clone, Copy)]
enum End {
    Completes,
    /// Vector and error code.
    Faults(u8, Option<u64>),
    /// Error code and CR2.
    PageFaults(u64, u64),
}

/// A part of the state after the instruction, and its expected value.
#[derive(Debug, Clone, Copy)]
enum After {
    /// A general register.
    Gpr(usize, u64),
    /// Eight bytes of memory.
    Memory(u64, u64),
    /// The arithmetic flags.
    Flags(u64),
    /// The x87 status word.
    StatusWord(u16),
}

struct Case {
    name: &'static str,
    mode: Mode,
    code: fn(&mut CodeAssembler) -> Result<(), IcedError>,
    /// Sets up the state; what it does not set is zero.
    before: fn(&mut ArchState),
    /// Quadwords of memory before the instruction; the rest is zero.
    memory: &'static [(u64, u64)],
    end: End,
    after: &'static [After],
}

use After::{Flags, Gpr, Memory, StatusWord};
use End::{Completes, Faults, PageFaults};
use Mode::{Bits32, Bits64};

/// Not canonical.
const HOLE: u64 = 0x8000_0000_0000;
/// Canonical; nothing is mapped from here to the next gigabyte.
const NOWHERE: u64 = 0x4000_0000;
/// A page of user data between pages that are not mapped.
const ISLAND: u64 = DATA + 0x1_1000;
/// Page-fault error codes of user code: a read and a write of a page that is not present, and of a
/// supervisor page.
const READ: u64 = 4;
const WRITE: u64 = 6;
const READ_KERNEL: u64 = 5;
const WRITE_KERNEL: u64 = 7;

/// A data segment that ends at a limit.
fn limited(limit: u64) -> Segment {
    Segment {
        limit: limit as u32,
        ..segment(selector::USER_SS)
    }
}

/// XLAT with the base register `base`, by which the address size is known.
fn xlat(a: &mut CodeAssembler, base: Register) -> Result<(), IcedError> {
    let table = MemoryOperand::with_base_index(base, Register::AL);
    a.add_instruction(Instruction::with1(Code::Xlat_m8, table)?)
}

/// NOP behind operand-size prefixes, `LEN` bytes in all. An assembler does not repeat a prefix.
fn prefixed_nop<const LEN: usize>() -> [u8; LEN] {
    let mut bytes = [0x66; LEN];
    bytes[LEN - 1] = 0x90;
    bytes
}

/// NOP behind LOCK and operand-size prefixes, 15 bytes in all.
fn locked_nop() -> [u8; 15] {
    let mut bytes = prefixed_nop();
    bytes[0] = 0xF0;
    bytes
}

const CASES: &[Case] = &[
    Case {
        name: "R12B is not AH and SPL is not R8: byte registers that need REX",
        mode: Bits64,
        code: |a| {
            a.mov(sil, 0x11)?;
            a.mov(r8b, 0x22)?;
            a.mov(r12b, 0x33)?;
            a.mov(r15b, 0x44)
        },
        before: |s| s.gpr[RSI] = 0xFF00,
        memory: &[],
        end: Completes,
        after: &[
            Gpr(RSI, 0xFF11),
            Gpr(8, 0x22),
            Gpr(12, 0x33),
            Gpr(15, 0x44),
            Gpr(RAX, 0),
            Gpr(RSP, USER_STACK),
        ],
    },
    Case {
        name: "SPL is the stack pointer",
        mode: Bits64,
        code: |a| a.mov(spl, 0x55),
        before: |_| {},
        memory: &[],
        end: Completes,
        after: &[Gpr(RSP, USER_STACK + 0x55), Gpr(RAX, 0)],
    },
    Case {
        name: "a load that crosses into a second missing page tells of the first",
        mode: Bits64,
        code: |a| a.mov(rax, qword_ptr(rbx)),
        before: |s| s.gpr[RBX] = NOWHERE + 0xFFC,
        memory: &[],
        end: PageFaults(READ, NOWHERE + 0xFFC),
        after: &[],
    },
    Case {
        name: "a load that crosses into a missing page tells of its start",
        mode: Bits64,
        code: |a| a.mov(rax, qword_ptr(rbx)),
        before: |s| s.gpr[RBX] = ISLAND + 0xFFC,
        memory: &[],
        end: PageFaults(READ, ISLAND + 0x1000),
        after: &[],
    },
    Case {
        name: "a store that crosses into a second missing page tells of the first",
        mode: Bits64,
        code: |a| a.mov(qword_ptr(rbx), rax),
        before: |s| s.gpr[RBX] = NOWHERE + 0xFFC,
        memory: &[],
        end: PageFaults(WRITE, NOWHERE + 0xFFC),
        after: &[],
    },
    Case {
        name: "a load that only ends outside the canonical addresses is #GP before its page is missing",
        mode: Bits64,
        code: |a| a.mov(rax, qword_ptr(rbx)),
        before: |s| s.gpr[RBX] = HOLE - 4,
        memory: &[],
        end: Faults(GP, Some(0)),
        after: &[],
    },
    Case {
        name: "a store that only ends outside the canonical addresses is #GP before its page is missing",
        mode: Bits64,
        code: |a| a.mov(qword_ptr(rbx), rax),
        before: |s| s.gpr[RBX] = HOLE - 4,
        memory: &[],
        end: Faults(GP, Some(0)),
        after: &[],
    },
    Case {
        name: "ENTER reads the outer frame pointers from the stack: #SS",
        mode: Bits64,
        code: |a| a.enter(0, 2),
        before: |s| s.gpr[RBP] = HOLE + 8,
        memory: &[],
        end: Faults(SS, Some(0)),
        after: &[Gpr(RSP, USER_STACK), Gpr(RBP, HOLE + 8)],
    },
    Case {
        name: "64-bit mode ignores an override with SS: #GP",
        mode: Bits64,
        code: |a| a.mov(al, byte_ptr(rbx).ss()),
        before: |s| s.gpr[RBX] = HOLE,
        memory: &[],
        end: Faults(GP, Some(0)),
        after: &[],
    },
    Case {
        name: "64-bit mode ignores an override of SS: #SS",
        mode: Bits64,
        code: |a| a.mov(al, byte_ptr(rbp).ds()),
        before: |s| s.gpr[RBP] = HOLE,
        memory: &[],
        end: Faults(SS, Some(0)),
        after: &[],
    },
    Case {
        name: "64-bit mode ignores an override with SS on a string, too: #GP",
        mode: Bits64,
        code: |a| {
            a.add_instruction(Instruction::with_lodsb(
                64,
                Register::SS,
                RepPrefixKind::None,
            )?)
        },
        before: |s| s.gpr[RSI] = HOLE,
        memory: &[],
        end: Faults(GP, Some(0)),
        after: &[],
    },
    Case {
        name: "BOUND within the bounds, which are inclusive",
        mode: Bits32,
        code: |a| a.bound(eax, qword_ptr(ebx)),
        before: |s| {
            s.gpr[RAX] = 0xFFFF_FFFE;
            s.gpr[RBX] = DATA;
        },
        memory: &[(DATA, 0x0000_0005_FFFF_FFFE)],
        end: Completes,
        after: &[],
    },
    Case {
        name: "BOUND outside the bounds",
        mode: Bits32,
        code: |a| a.bound(eax, qword_ptr(ebx)),
        before: |s| {
            s.gpr[RAX] = 6;
            s.gpr[RBX] = DATA;
        },
        memory: &[(DATA, 0x0000_0005_FFFF_FFFE)],
        end: Faults(BR, None),
        after: &[],
    },
    Case {
        name: "BOUND below the lower bound does not load the upper one",
        mode: Bits32,
        code: |a| a.bound(eax, qword_ptr(ebx)),
        before: |s| s.gpr[RBX] = ISLAND + 0xFFC,
        memory: &[(ISLAND + 0xFF8, 5 << 32)],
        end: Faults(BR, None),
        after: &[],
    },
    Case {
        name: "BOUND not below the lower bound does",
        mode: Bits32,
        code: |a| a.bound(eax, qword_ptr(ebx)),
        before: |s| {
            s.gpr[RAX] = 5;
            s.gpr[RBX] = ISLAND + 0xFFC;
        },
        memory: &[(ISLAND + 0xFF8, 5 << 32)],
        end: PageFaults(READ, ISLAND + 0x1000),
        after: &[],
    },
    Case {
        name: "SALC with CF",
        mode: Bits32,
        code: |a| a.salc(),
        before: |s| {
            s.gpr[RAX] = 0x1234;
            s.rflags |= rflags::CF;
        },
        memory: &[],
        end: Completes,
        after: &[Gpr(RAX, 0x12FF)],
    },
    Case {
        name: "SALC without CF",
        mode: Bits32,
        code: |a| a.salc(),
        before: |s| s.gpr[RAX] = 0x1234,
        memory: &[],
        end: Completes,
        after: &[Gpr(RAX, 0x1200)],
    },
    Case {
        name: "the stack segment has a limit in compatibility mode",
        mode: Bits32,
        code: |a| a.push(eax),
        before: |s| s.sys.seg[2] = limited(USER_STACK - 4),
        memory: &[],
        end: Faults(SS, Some(0)),
        after: &[Gpr(RSP, USER_STACK)],
    },
    Case {
        name: "a stack access across 4 GiB is beyond the limit",
        mode: Bits32,
        code: |a| a.push(eax),
        before: |s| s.gpr[RSP] = 2,
        memory: &[],
        end: Faults(SS, Some(0)),
        after: &[Gpr(RSP, 2)],
    },
    Case {
        name: "MOVS loads before it stores",
        mode: Bits64,
        code: |a| a.movsb(),
        before: |s| {
            s.gpr[RSI] = NOWHERE + 0x1000;
            s.gpr[RDI] = NOWHERE;
        },
        memory: &[],
        end: PageFaults(READ, NOWHERE + 0x1000),
        after: &[],
    },
    Case {
        name: "CMPS loads its second operand first",
        mode: Bits64,
        code: |a| a.cmpsb(),
        before: |s| {
            s.gpr[RSI] = NOWHERE + 0x1000;
            s.gpr[RDI] = NOWHERE;
        },
        memory: &[],
        end: PageFaults(READ, NOWHERE),
        after: &[],
    },
    Case {
        name: "CMPS loads its second operand before the first one's address is looked at",
        mode: Bits64,
        code: |a| a.cmpsb(),
        before: |s| {
            s.gpr[RSI] = HOLE;
            s.gpr[RDI] = NOWHERE;
        },
        memory: &[],
        end: PageFaults(READ, NOWHERE),
        after: &[],
    },
    Case {
        name: "XLAT's sum wraps around at 4 GiB",
        mode: Bits64,
        code: |a| xlat(a, Register::EBX),
        before: |s| {
            s.gpr[RBX] = 0xFFFF_FFF0;
            s.gpr[RAX] = 0x30;
        },
        memory: &[],
        end: PageFaults(READ_KERNEL, 0x20),
        after: &[],
    },
    Case {
        name: "XLAT's sum wraps around at 64 KiB",
        mode: Bits32,
        code: |a| xlat(a, Register::BX),
        before: |s| {
            s.gpr[RBX] = 0x1_FFF0;
            s.gpr[RAX] = 0x30;
        },
        memory: &[],
        end: PageFaults(READ_KERNEL, 0x20),
        after: &[],
    },
    Case {
        name: "the segment's limit is that of XLAT's sum",
        mode: Bits32,
        code: |a| xlat(a, Register::EBX),
        before: |s| {
            s.sys.seg[3] = limited(DATA + 0xF);
            s.gpr[RBX] = DATA;
            s.gpr[RAX] = 0x10;
        },
        memory: &[],
        end: Faults(GP, Some(0)),
        after: &[],
    },
    Case {
        name: "POP [ESP+x] counts from the stack pointer after the pop",
        mode: Bits32,
        code: |a| a.pop(dword_ptr(esp + 4)),
        before: |s| s.gpr[RSP] = DATA,
        memory: &[(DATA, 0x1234_5678)],
        end: Completes,
        after: &[Gpr(RSP, DATA + 4), Memory(DATA + 8, 0x1234_5678)],
    },
    Case {
        name: "POP [ESP] with 32-bit addressing in 64-bit mode",
        mode: Bits64,
        code: |a| a.pop(qword_ptr(esp)),
        before: |s| s.gpr[RSP] = DATA,
        memory: &[(DATA, 0x1234_5678)],
        end: Completes,
        after: &[Gpr(RSP, DATA + 8), Memory(DATA + 8, 0x1234_5678)],
    },
    Case {
        name: "POP reads the stack before the operand's segment is looked at",
        mode: Bits32,
        code: |a| a.pop(dword_ptr(ebx).gs()),
        before: |s| {
            s.gpr[RSP] = 0xFFFF_FFFF;
            s.sys.seg[5] = null();
        },
        memory: &[],
        end: Faults(SS, Some(0)),
        after: &[Gpr(RSP, 0xFFFF_FFFF)],
    },
    Case {
        name: "POP to a null segment leaves the stack pointer alone",
        mode: Bits32,
        code: |a| a.pop(dword_ptr(ebx).gs()),
        before: |s| s.sys.seg[5] = null(),
        memory: &[],
        end: Faults(GP, Some(0)),
        after: &[Gpr(RSP, USER_STACK)],
    },
    Case {
        name: "15 bytes are an instruction",
        mode: Bits64,
        code: |a| a.db(&prefixed_nop::<15>()),
        before: |_| {},
        memory: &[],
        end: Completes,
        after: &[],
    },
    Case {
        name: "16 bytes are too many: #GP, not #UD",
        mode: Bits64,
        code: |a| a.db(&prefixed_nop::<16>()),
        before: |_| {},
        memory: &[],
        end: Faults(GP, Some(0)),
        after: &[],
    },
    Case {
        name: "15 bytes with LOCK out of place are #UD",
        mode: Bits64,
        code: |a| a.db(&locked_nop()),
        before: |_| {},
        memory: &[],
        end: Faults(UD, None),
        after: &[],
    },
    Case {
        name: "a bit string wraps around at 4 GiB with 32-bit addressing",
        mode: Bits64,
        code: |a| a.bts(dword_ptr(ebx), ecx),
        before: |s| {
            s.gpr[RBX] = 0xFFFF_FFFC;
            s.gpr[RCX] = 8 * (DATA + 4) + 3;
        },
        memory: &[],
        end: Completes,
        after: &[Memory(DATA, 8)],
    },
    Case {
        name: "a bit string below address 0 is at the end of 4 GiB",
        mode: Bits64,
        code: |a| a.bt(dword_ptr(ebx), ecx),
        before: |s| {
            s.gpr[RBX] = 0x10;
            s.gpr[RCX] = (-8i64 * 0x30) as u64;
        },
        memory: &[],
        end: PageFaults(READ, 0xFFFF_FFE0),
        after: &[],
    },
    Case {
        name: "a bit string wraps around at 4 GiB in compatibility mode",
        mode: Bits32,
        code: |a| a.btc(dword_ptr(ebx), ecx),
        before: |s| {
            s.gpr[RBX] = 0xFFFF_FFFC;
            s.gpr[RCX] = 8 * (DATA + 4) + 3;
        },
        memory: &[(DATA, 0xF)],
        end: Completes,
        after: &[Memory(DATA, 7)],
    },
    Case {
        name: "a bit string wraps around at 64 KiB with 16-bit addressing",
        mode: Bits32,
        code: |a| a.btr(dword_ptr(bx), ecx),
        before: |s| {
            s.gpr[RBX] = 0xFFF0;
            s.gpr[RCX] = 8 * 0x20;
        },
        memory: &[],
        end: PageFaults(WRITE_KERNEL, 0x10),
        after: &[],
    },
    Case {
        name: "the segment's limit is that of the bit string's word",
        mode: Bits32,
        code: |a| a.bt(dword_ptr(ebx), ecx),
        before: |s| {
            s.sys.seg[3] = limited(DATA + 0xF);
            s.gpr[RBX] = DATA;
            s.gpr[RCX] = 8 * 0x10;
        },
        memory: &[],
        end: Faults(GP, Some(0)),
        after: &[],
    },
    Case {
        name: "REP CMPS that faults leaves the flags as they were",
        mode: Bits64,
        code: |a| a.repe().cmpsb(),
        before: |s| {
            s.gpr[RCX] = 0x10;
            s.gpr[RSI] = DATA;
            s.gpr[RDI] = ISLAND + 0xFF8;
            s.rflags |= rflags::CF | rflags::OF;
        },
        memory: &[],
        end: PageFaults(READ, ISLAND + 0x1000),
        after: &[
            Flags(rflags::CF | rflags::OF),
            Gpr(RCX, 8),
            Gpr(RSI, DATA + 8),
        ],
    },
    Case {
        name: "REP SCAS that traps half-way leaves the flags as they were",
        mode: Bits64,
        code: |a| a.repne().scasb(),
        before: |s| {
            s.gpr[RAX] = 1;
            s.gpr[RCX] = 3;
            s.gpr[RDI] = DATA;
            s.rflags |= rflags::TF | rflags::ZF | rflags::OF;
        },
        memory: &[],
        end: Faults(DB, None),
        after: &[Flags(rflags::ZF | rflags::OF), Gpr(RCX, 2)],
    },
    Case {
        name: "REP SCAS that completes sets the flags",
        mode: Bits64,
        code: |a| a.repne().scasb(),
        before: |s| {
            s.gpr[RCX] = 3;
            s.gpr[RDI] = DATA;
            s.rflags |= rflags::CF;
        },
        memory: &[],
        end: Completes,
        after: &[Flags(rflags::ZF | rflags::PF), Gpr(RCX, 2)],
    },
    Case {
        name: "PUSH of a segment register moves 16 bits into a slot of 32",
        mode: Bits32,
        code: |a| a.push(ss),
        before: |s| s.gpr[RSP] = DATA + 8,
        memory: &[(DATA, u64::MAX)],
        end: Completes,
        after: &[
            Gpr(RSP, DATA + 4),
            Memory(
                DATA,
                0xFFFF_0000_FFFF_FFFF | (selector::USER_SS as u64) << 32,
            ),
        ],
    },
    Case {
        name: "PUSH of a segment register with 64 bits moves all of them",
        mode: Bits64,
        code: |a| a.push(fs),
        before: |s| {
            s.gpr[RSP] = DATA + 8;
            s.sys.seg[4] = segment(selector::USER_SS);
        },
        memory: &[(DATA, u64::MAX)],
        end: Completes,
        after: &[Gpr(RSP, DATA), Memory(DATA, selector::USER_SS as u64)],
    },
    Case {
        name: "an x87 store that an unmasked exception cancels accesses no memory",
        mode: Bits64,
        // ST(0) is empty.
        code: |a| a.fstp(dword_ptr(rbx)),
        before: |s| {
            s.x87.fcw = 0x37E;
            s.gpr[RBX] = NOWHERE;
        },
        memory: &[],
        end: Completes,
        // IE, SF, ES and B; the stack is not popped.
        after: &[StatusWord(0x80C1)],
    },
    Case {
        name: "an x87 store that an unmasked exception cancels does not mind the segment",
        mode: Bits32,
        // ST(0) is empty.
        code: |a| a.fistp(word_ptr(ebx).gs()),
        before: |s| {
            s.x87.fcw = 0x37E;
            s.sys.seg[5] = null();
        },
        memory: &[],
        end: Completes,
        after: &[StatusWord(0x80C1)],
    },
    Case {
        name: "an x87 store that faults leaves the FPU alone",
        mode: Bits64,
        // ST(0) is empty.
        code: |a| a.fstp(dword_ptr(rbx)),
        before: |s| {
            s.x87.fcw = 0x37F;
            s.gpr[RBX] = NOWHERE;
        },
        memory: &[],
        end: PageFaults(WRITE, NOWHERE),
        after: &[StatusWord(0)],
    },
    Case {
        name: "FCOMI sets the flags even if its exception is unmasked",
        mode: Bits64,
        // Both are empty.
        code: |a| a.fcomi(st0, st1),
        before: |s| {
            s.x87.fcw = 0x37E;
            s.rflags |= rflags::OF;
        },
        memory: &[],
        end: Completes,
        after: &[
            Flags(rflags::ZF | rflags::PF | rflags::CF),
            StatusWord(0x80C1),
        ],
    },
    Case {
        name: "a repeated string with ECX = 0 clears the upper half of RCX",
        mode: Bits64,
        code: |a| a.add_instruction(Instruction::with_rep_lodsb(32)?),
        before: |s| {
            s.gpr[RCX] = 0xFFFF_FFFF_0000_0000;
            s.gpr[RSI] = 0xFFFF_FFFF_0000_1234;
        },
        memory: &[],
        end: Completes,
        after: &[Gpr(RCX, 0), Gpr(RSI, 0xFFFF_FFFF_0000_1234)],
    },
    Case {
        name: "REP MOVS with ECX = 0 clears the upper halves of its pointers, too",
        mode: Bits64,
        code: |a| a.add_instruction(Instruction::with_rep_movsb(32)?),
        before: |s| {
            s.gpr[RCX] = 0xFFFF_FFFF_0000_0000;
            s.gpr[RSI] = 0xFFFF_FFFF_0000_1234;
            s.gpr[RDI] = 0xFFFF_FFFF_0000_5678;
        },
        memory: &[],
        end: Completes,
        after: &[Gpr(RCX, 0), Gpr(RSI, 0x1234), Gpr(RDI, 0x5678)],
    },
    Case {
        name: "REP STOS that faults at once has cleared the upper halves",
        mode: Bits64,
        code: |a| a.add_instruction(Instruction::with_rep_stosb(32)?),
        before: |s| {
            s.gpr[RCX] = 0xFFFF_FFFF_0000_0003;
            s.gpr[RDI] = 0xFFFF_FFFF_0000_0000 | NOWHERE;
        },
        memory: &[],
        end: PageFaults(WRITE, NOWHERE),
        after: &[Gpr(RCX, 3), Gpr(RDI, NOWHERE)],
    },
    Case {
        name: "REP STOS without a prefix for its addresses keeps them",
        mode: Bits64,
        code: |a| a.rep().stosb(),
        before: |s| s.gpr[RDI] = 0xFFFF_FFFF_0000_5678,
        memory: &[],
        end: Completes,
        after: &[Gpr(RDI, 0xFFFF_FFFF_0000_5678), Gpr(RDX, 0)],
    },
];

impl Case {
    fn assemble(&self) -> Vec<u8> {
        let bitness = match self.mode {
            Bits64 => 64,
            Bits32 => 32,
        };
        assemble(bitness, USER, self.code)
    }

    /// The address behind the instruction.
    fn end_address(&self) -> u64 {
        USER + self.assemble().len() as u64
    }
}

fn start(case: &Case) -> Guest {
    let mut g = Guest::user(|_| Ok(()));
    g.write_bytes(USER, &case.assemble());
    g.assemble(case.end_address(), |a| a.ud2());
    for &(at, value) in case.memory {
        g.write(at, value);
    }
    for neighbour in [ISLAND - 0x1000, ISLAND + 0x1000] {
        g.page(neighbour, 0);
    }
    g.update(|s| {
        if case.mode == Bits32 {
            s.sys.seg[1] = segment(selector::USER_CS32);
        }
        s.sys.cr0 &= !(cr0::EM | cr0::TS);
        (case.before)(s);
    });
    g
}

fn check(case: &Case) {
    let mut g = start(case);
    apply_to_case(&mut g.soft, case.name);
    // CR2 stays zero unless there is a page fault.
    let (vector, error, address) = match case.end {
        Completes => (UD, None, 0),
        Faults(vector, error) => (vector, error, 0),
        PageFaults(error, address) => (PF, Some(error), address),
    };
    let frame = g.run_to_exception(vector, error);
    let at = match case.end {
        Completes => case.end_address(),
        _ => USER,
    };
    assert_eq!((frame.rip, g.soft.cpu.sys.cr2), (at, address));
    for &after in case.after {
        match after {
            Gpr(RSP, value) => assert_eq!(frame.rsp, value, "RSP"),
            Gpr(n, value) => assert_eq!(g.soft.cpu.gpr[n], value, "register {n}"),
            Memory(at, value) => assert_eq!(g.read(at), value, "memory {at:#x}"),
            Flags(value) => assert_eq!(frame.rflags & rflags::ARITH, value, "RFLAGS"),
            StatusWord(value) => assert_eq!(g.soft.cpu.x87.fsw, value, "status word"),
        }
    }
}

/// Runs all cases and reports the names of those that fail.
#[test]
fn instructions_that_once_went_wrong() {
    let failed: Vec<&str> = CASES
        .iter()
        .filter(|case| !is_left_out(case.name))
        .filter(|case| {
            let result = std::panic::catch_unwind(|| check(case));
            if result.is_err() {
                eprintln!("^ in the case: {}", case.name);
            }
            result.is_err()
        })
        .map(|case| case.name)
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
}
