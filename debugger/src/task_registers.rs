//! Registers of tasks: in the frame of an entry into the kernel, in a processor, and in an XSAVE
//! area.

use vbts_cpu::state::{ArchState, gpr};
use vbts_gdb::{Avx, Fxsave, Registers};

/// Words of `struct pt_regs`, which an entry from a program saves at the top of the task's stack in
/// the kernel.
pub(crate) const FRAME_WORDS: usize = 21;
/// Size of the FXSAVE area with its header, which precedes the upper halves of the YMM registers
/// (SDM Vol. 1 13.4).
pub(crate) const XSAVE_AREA: usize = 512 + 64 + 256;

/// The registers of a program, as an entry into the kernel has saved them (`struct pt_regs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame([u64; FRAME_WORDS]);

impl Frame {
    /// The words of the frame in the order of memory.
    pub(crate) fn new(words: [u64; FRAME_WORDS]) -> Self {
        Self(words)
    }

    /// The registers that the frame has.
    pub(crate) fn registers(&self) -> Registers {
        let [
            r15,
            r14,
            r13,
            r12,
            rbp,
            rbx,
            r11,
            r10,
            r9,
            r8,
            rax,
            rcx,
            rdx,
            rsi,
            rdi,
            orig_rax,
            rip,
            cs,
            rflags,
            rsp,
            ss,
        ] = self.0;
        Registers {
            general: [
                rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15,
            ],
            rip,
            rflags,
            segments: [0, cs as u16, ss as u16, 0, 0, 0],
            orig_rax,
            ..Registers::default()
        }
    }

    /// The words of the frame with the general registers, RIP and flags of `registers`.
    pub(crate) fn with(self, registers: &Registers) -> [u64; FRAME_WORDS] {
        let mut words = self.0;
        let [
            rax,
            rcx,
            rdx,
            rbx,
            rsp,
            rbp,
            rsi,
            rdi,
            r8,
            r9,
            r10,
            r11,
            r12,
            r13,
            r14,
            r15,
        ] = registers.general;
        words[..15].copy_from_slice(&[
            r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi,
        ]);
        (words[16], words[18], words[19]) = (registers.rip, registers.rflags, rsp);
        words
    }
}

/// The registers of a program that the processor executes.
pub(crate) fn in_user_mode(state: &ArchState) -> Registers {
    debug_assert_eq!(gpr::RSP, 4);
    Registers {
        general: state.gpr,
        rip: state.rip,
        rflags: state.rflags,
        segments: std::array::from_fn(|n| state.seg[n].selector),
        orig_rax: u64::MAX,
        ..Registers::default()
    }
}

/// The x87 and vector registers of a processor.
pub(crate) fn vector_registers(state: &ArchState) -> (Fxsave, Avx) {
    let avx = Avx {
        ymmh: state.ymm_high,
    };
    (fxsave_of(state), avx)
}

fn fxsave_of(state: &ArchState) -> Fxsave {
    let x87 = &state.x87;
    let tag = |n: usize| -> u16 {
        match x87.ftw >> n & 1 {
            0 => 3,
            _ => 0,
        }
    };
    Fxsave {
        fcw: x87.fcw,
        fsw: x87.fsw,
        ftw: (0..8).map(|n| tag(n) << (2 * n)).sum(),
        fop: x87.fop,
        fcs: (x87.fip >> 32) as u16,
        fip: x87.fip as u32,
        fds: (x87.fdp >> 32) as u16,
        fdp: x87.fdp as u32,
        st: std::array::from_fn(|n| bytes_80(x87.st(n))),
        xmm: state.xmm,
        mxcsr: state.mxcsr,
    }
}

fn bytes_80(value: u128) -> [u8; 10] {
    let bytes = value.to_le_bytes();
    std::array::from_fn(|n| bytes[n])
}

/// The registers in an XSAVE area (SDM Vol. 1 13.4). A component that is not in use is not in the
/// area, and has its initial value.
pub(crate) fn from_xsave(area: &[u8; XSAVE_AREA]) -> (Fxsave, Avx) {
    const HAS_X87: u64 = 1;
    const HAS_SSE: u64 = 2;
    const HAS_AVX: u64 = 4;
    let half = |at: usize| u16::from_le_bytes(std::array::from_fn(|n| area[at + n]));
    let double = |at: usize| u32::from_le_bytes(std::array::from_fn(|n| area[at + n]));
    let wide = |at: usize| u128::from_le_bytes(std::array::from_fn(|n| area[at + n]));
    let features = u64::from_le_bytes(std::array::from_fn(|n| area[512 + n]));
    let mut registers = Fxsave {
        fcw: 0x37F,
        ftw: 0xFFFF,
        mxcsr: double(24),
        ..Fxsave::default()
    };
    if features & HAS_X87 != 0 {
        let tags = area[4];
        registers.fcw = half(0);
        registers.fsw = half(2);
        registers.ftw = (0..8)
            .map(|n| if tags >> n & 1 == 0 { 3 << (2 * n) } else { 0 })
            .sum();
        registers.fop = half(6);
        (registers.fip, registers.fcs) = (double(8), half(12));
        (registers.fdp, registers.fds) = (double(16), half(20));
        registers.st = std::array::from_fn(|n| bytes_80(wide(32 + 16 * n)));
    }
    if features & HAS_SSE != 0 {
        registers.xmm = std::array::from_fn(|n| wide(160 + 16 * n));
    }
    let ymmh = match features & HAS_AVX {
        0 => [0; 16],
        _ => std::array::from_fn(|n| wide(576 + 16 * n)),
    };
    (registers, Avx { ymmh })
}
