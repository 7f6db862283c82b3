/// The registers that a thread of a process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegisterLayout {
    /// Whether the process is one of 32 bits. GDB then sees the i386 registers, whose values are
    /// the lower halves of those in [`Registers`].
    pub is_32_bit: bool,
    /// Whether the process is one of Linux: GDB then knows `orig_rax`, system calls and signals.
    /// A processor of a machine is none.
    pub is_linux: bool,
    /// Whether the processor has AVX.
    pub has_avx: bool,
    /// Whether control registers are shown, as for a processor of a machine.
    pub has_control: bool,
}

/// The registers of a thread. A part that is `None` appears as `<unavailable>` in GDB.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Registers {
    /// RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8 to R15: in the order of their numbers in
    /// instructions.
    pub general: [u64; 16],
    /// RIP.
    pub rip: u64,
    /// RFLAGS.
    pub rflags: u64,
    /// ES, CS, SS, DS, FS, GS: selectors, in the order of their numbers in instructions.
    pub segments: [u16; 6],
    /// Base address of FS.
    pub fs_base: u64,
    /// Base address of GS.
    pub gs_base: u64,
    /// Number of the system call that the thread is in, or all ones outside of system calls.
    /// Linux processes only.
    pub orig_rax: u64,
    /// x87 and SSE registers.
    pub fxsave: Option<Fxsave>,
    /// Upper halves of the AVX registers.
    pub avx: Option<Avx>,
    /// Control registers.
    pub control: Option<Control>,
}

impl Registers {
    /// Returns whether the thread is in a system call.
    pub fn is_in_system_call(&self) -> bool {
        self.orig_rax != u64::MAX
    }
}

/// x87 and SSE registers, with the fields of the FXSAVE area.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fxsave {
    /// Control word.
    pub fcw: u16,
    /// Status word.
    pub fsw: u16,
    /// Tag word in full: two bits for each physical register, 3 for an empty one.
    pub ftw: u16,
    /// Opcode of the last x87 instruction, 11 bits.
    pub fop: u16,
    /// Selector of the last x87 instruction.
    pub fcs: u16,
    /// Offset of the last x87 instruction.
    pub fip: u32,
    /// Selector of the last x87 operand.
    pub fds: u16,
    /// Offset of the last x87 operand.
    pub fdp: u32,
    /// ST(0) to ST(7), 80 bits each, little endian.
    pub st: [[u8; 10]; 8],
    /// XMM0 to XMM15.
    pub xmm: [u128; 16],
    /// MXCSR.
    pub mxcsr: u32,
}

/// Upper 128 bits of YMM0 to YMM15.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Avx {
    /// The upper halves.
    pub ymmh: [u128; 16],
}

/// Control registers and the model-specific registers that belong to them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Control {
    /// IA32_KERNEL_GS_BASE.
    pub kernel_gs_base: u64,
    /// CR0.
    pub cr0: u64,
    /// CR2.
    pub cr2: u64,
    /// CR3.
    pub cr3: u64,
    /// CR4.
    pub cr4: u64,
    /// CR8.
    pub cr8: u64,
    /// IA32_EFER.
    pub efer: u64,
}
