//! Instructions that kernels and programs use and that some KVMs cannot execute, in particular KVMs
//! that interpret code at CPL 0.

use super::code::{Code, code};
use super::tables::{KERNEL_DATA, USER_DATA};

/// One or a few instructions. R8 is the address of data, and RAX has the result.
#[derive(Debug)]
pub struct Row {
    /// Their mnemonics.
    pub name: &'static str,
    /// The code.
    pub code: Code,
    /// The expected value of RAX.
    pub result: u64,
    /// The instructions are allowed at CPL 0 only.
    pub privileged: bool,
}

const fn row(name: &'static str, result: u64, code: Code) -> Row {
    Row {
        name,
        code,
        result,
        privileged: false,
    }
}

const fn privileged(name: &'static str, result: u64, code: Code) -> Row {
    Row {
        name,
        code,
        result,
        privileged: true,
    }
}

/// The value of R8 at CPL 0 and at CPL 3.
pub const DATA: [u64; 2] = [KERNEL_DATA + 0x100, USER_DATA + 0x100];

/// The instructions.
pub const ROWS: &[Row] = &[
    row(
        "CMPXCHG16B",
        7,
        code!(
            "mov qword ptr [r8], 1",
            "mov qword ptr [r8 + 8], 2",
            "mov eax, 1",
            "mov edx, 2",
            "mov ebx, 7",
            "mov ecx, 8",
            "lock cmpxchg16b [r8]",
            "mov rax, qword ptr [r8]"
        ),
    ),
    row(
        "CMPXCHG8B",
        0x3_0000_0004,
        code!(
            "mov qword ptr [r8], 1",
            "mov eax, 1",
            "xor edx, edx",
            "mov ebx, 4",
            "mov ecx, 3",
            "lock cmpxchg8b qword ptr [r8]",
            "mov rax, qword ptr [r8]"
        ),
    ),
    row(
        "LOCK XADD, XCHG, LOCK CMPXCHG",
        15,
        code!(
            "mov qword ptr [r8], 5",
            "mov ebx, 2",
            "lock xadd qword ptr [r8], rbx",
            "mov ecx, 10",
            "xchg qword ptr [r8], rcx",
            "mov eax, 10",
            "mov edx, 15",
            "lock cmpxchg qword ptr [r8], rdx",
            "mov rax, qword ptr [r8]"
        ),
    ),
    row(
        "LOCK BTS, BSF, BSR",
        0x0805,
        code!(
            "mov qword ptr [r8], 0x20",
            "lock bts qword ptr [r8], 8",
            "mov rcx, qword ptr [r8]",
            "bsf rax, rcx",
            "bsr rbx, rcx",
            "shl ebx, 8",
            "or eax, ebx"
        ),
    ),
    row(
        "SHLD, RCL, BSWAP, IMUL",
        0x7856_3412_0000_0002,
        code!(
            "mov eax, 0x12345678",
            "bswap rax",
            "mov ebx, 0x80000000",
            "xor ecx, ecx",
            "shld ecx, ebx, 1",
            "imul ecx, ecx, 1",
            "clc",
            "rcl ecx, 1",
            "or rax, rcx"
        ),
    ),
    row(
        "DIV, CQO, IDIV",
        14,
        code!(
            "mov eax, 100",
            "cqo",
            "mov ecx, 7",
            "div rcx",
            "neg rax",
            "cqo",
            "mov rcx, -1",
            "idiv rcx"
        ),
    ),
    row(
        "REP STOSQ, REP MOVSB, REPE CMPSB",
        0,
        code!(
            "mov rdi, r8",
            "mov rax, 0x0102030405060708",
            "mov ecx, 8",
            "rep stosq",
            "mov rsi, r8",
            "mov ecx, 61",
            "rep movsb",
            "mov rdi, r8",
            "lea rsi, [r8 + 64]",
            "mov ecx, 61",
            "repe cmpsb",
            "mov eax, ecx"
        ),
    ),
    row(
        "PUSHFQ, POPFQ, LAHF, SETcc, CMOVcc",
        3,
        code!(
            "stc",
            "pushfq",
            "clc",
            "popfq",
            "setc bl",
            "lahf",
            "movzx ecx, bl",
            "mov eax, 3",
            "cmovnc eax, ecx"
        ),
    ),
    row(
        "ENTER, LEAVE, PUSH, POP",
        9,
        code!("mov rbp, 9", "enter 32, 0", "leave", "push rbp", "pop rax"),
    ),
    row(
        "XLATB, MOVZX, MOVSX",
        0xFFFF_FFFF_FFFF_FF83,
        code!(
            "mov dword ptr [r8], 0x83828180",
            "mov rbx, r8",
            "mov eax, 3",
            "xlatb",
            "movsx rax, al"
        ),
    ),
    row(
        "RDTSC",
        1,
        code!(
            "rdtsc",
            "shl rdx, 32",
            "or rax, rdx",
            "mov rbx, rax",
            "rdtsc",
            "shl rdx, 32",
            "or rax, rdx",
            "cmp rax, rbx",
            "seta al",
            "movzx eax, al"
        ),
    ),
    row(
        "LFENCE, SFENCE, MFENCE, PAUSE, CLFLUSH, PREFETCH",
        6,
        code!(
            "lfence",
            "sfence",
            "mfence",
            "pause",
            "clflush [r8]",
            "prefetcht0 [r8]",
            "mov eax, 6"
        ),
    ),
    row(
        "x87: FLD, FADD, FISTP",
        42,
        code!(
            "fninit",
            "mov dword ptr [r8], 41",
            "fild dword ptr [r8]",
            "fld1",
            "faddp st(1), st",
            "fistp qword ptr [r8]",
            "mov rax, qword ptr [r8]"
        ),
    ),
    row(
        "x87: FNSTCW, FNSTSW, FNCLEX",
        0x37F,
        code!(
            "fninit",
            "fnclex",
            "fnstcw word ptr [r8]",
            "xor eax, eax",
            "fnstsw word ptr [r8 + 2]",
            "mov eax, dword ptr [r8]"
        ),
    ),
    row(
        "MMX: MOVQ, PADDD, EMMS",
        0x4_0000_0006,
        code!(
            "mov rax, 0x200000003",
            "movq mm0, rax",
            "movq mm1, mm0",
            "paddd mm0, mm1",
            "movq rax, mm0",
            "emms"
        ),
    ),
    row(
        "SSE2: MOVDQU, PADDQ, PSHUFD, CVTSI2SD",
        24,
        code!(
            "mov eax, 10",
            "movq xmm0, rax",
            "movdqu xmm1, xmm0",
            "paddq xmm0, xmm1",
            "movdqu [r8], xmm0",
            "cvtsi2sd xmm1, dword ptr [r8]",
            "mov ecx, 4",
            "cvtsi2sd xmm2, ecx",
            "addsd xmm1, xmm2",
            "cvttsd2si rax, xmm1",
            "pshufd xmm0, xmm1, 0"
        ),
    ),
    row(
        "SSSE3: PSHUFB, SSE3: HADDPD",
        0x0101_0101_0101_0101,
        code!(
            "mov eax, 1",
            "movq xmm0, rax",
            "pxor xmm1, xmm1",
            "pshufb xmm0, xmm1",
            "haddpd xmm1, xmm1",
            "movq rax, xmm0"
        ),
    ),
    row(
        "FXSAVE, FXRSTOR, LDMXCSR",
        0x55,
        code!(
            "mov eax, 0x55",
            "movq xmm0, rax",
            "mov dword ptr [r8], 0x1F80",
            "ldmxcsr dword ptr [r8]",
            "fxsave [r8 + 0x40]",
            "pxor xmm0, xmm0",
            "fxrstor [r8 + 0x40]",
            "movq rax, xmm0"
        ),
    ),
    row(
        "CALL, RET n, JMP, LOOP, JRCXZ",
        11,
        code!(
            "jmp 773f",
            "772:",
            "add rax, qword ptr [rsp + 8]",
            "ret 8",
            "773:",
            "xor eax, eax",
            "mov ecx, 3",
            "774:",
            "push 3",
            "call 772b",
            "loop 774b",
            "jrcxz 775f",
            "ud2",
            "775:",
            "add eax, 2"
        ),
    ),
    row(
        "SLDT, STR, SMSW, VERW, LAR",
        0x40,
        code!(
            "str eax",
            "mov word ptr [r8], 0x2B",
            "verw word ptr [r8]",
            "mov edx, 0x2B",
            "lar ecx, edx"
        ),
    ),
    privileged(
        "SWAPGS, WRMSR and RDMSR of IA32_KERNEL_GS_BASE",
        0x12_3000,
        code!(
            "mov ecx, 0xC0000102",
            "mov eax, 0x123000",
            "xor edx, edx",
            "wrmsr",
            "swapgs",
            "mov ecx, 0xC0000101",
            "rdmsr"
        ),
    ),
    privileged(
        "MOV CR3, MOV CR4, INVLPG, CLTS, WBINVD",
        5,
        code!(
            "mov rax, cr3",
            "mov cr3, rax",
            "mov rax, cr4",
            "mov cr4, rax",
            "invlpg [r8]",
            "clts",
            "wbinvd",
            "mov eax, 5"
        ),
    ),
    privileged(
        "SGDT, LGDT, SIDT, LIDT, LLDT, loads of segments",
        0x18,
        code!(
            "sgdt [r8]",
            "lgdt [r8]",
            "sidt [r8]",
            "lidt [r8]",
            "xor eax, eax",
            "lldt ax",
            "mov es, eax",
            "mov eax, 0x18",
            "mov ds, eax",
            "mov ss, eax",
            "xor eax, eax",
            "mov eax, ss"
        ),
    ),
    privileged(
        "far RET",
        0x10,
        code!(
            "lea rax, [rip + 772f]",
            "push 0x10",
            "push rax",
            "retfq",
            "772:",
            "xor eax, eax",
            "mov eax, cs"
        ),
    ),
    privileged(
        "CLI, STI, PUSHFQ",
        0x200,
        code!("sti", "pushfq", "cli", "pop rax", "and eax, 0x200"),
    ),
    privileged(
        "OUT and IN in one block, REP OUTSB",
        0,
        code!(
            "mov rsi, r8",
            "mov ecx, 0",
            "mov edx, 0x3F8",
            "rep outsb",
            "movzx eax, cl",
            "mov dx, dx"
        ),
    ),
];
