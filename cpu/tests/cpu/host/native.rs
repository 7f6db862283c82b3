//! Runs one instruction on the host's processor, with all its registers given.

use std::ffi::c_void;
use std::ptr::NonNull;

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

/// Bytes of an FXSAVE image.
pub const FXSAVE: usize = 512;

/// The registers before and after. `gpr[4]` and `gpr[15]` are not used.
#[repr(C, align(64))]
#[derive(Debug, Clone)]
pub struct Registers {
    pub fxsave: [u8; FXSAVE],
    pub gpr: [u64; 16],
    pub rflags: u64,
    /// The upper halves of the YMM registers.
    pub ymm_high: [u128; 16],
    /// MXCSR as Rust expects it.
    host_mxcsr: u32,
}

impl Registers {
    pub fn new() -> Self {
        Self {
            fxsave: [0; FXSAVE],
            gpr: [0; 16],
            rflags: 2,
            ymm_high: [0; 16],
            host_mxcsr: 0x1F80,
        }
    }
}

const GPR: i32 = FXSAVE as i32;
const RFLAGS: i32 = GPR + 8 * 16;
const YMM_HIGH: i32 = RFLAGS + 16;
const HOST_MXCSR: i32 = YMM_HIGH + 16 * 16;
const PAGE: usize = 4096;

/// The vector registers, by number.
const VECTORS: [AsmRegisterYmm; 16] = [
    ymm0, ymm1, ymm2, ymm3, ymm4, ymm5, ymm6, ymm7, ymm8, ymm9, ymm10, ymm11, ymm12, ymm13, ymm14,
    ymm15,
];

/// The registers that are exchanged, by number.
const EXCHANGED: [(i32, AsmRegister64); 14] = [
    (0, rax),
    (1, rcx),
    (2, rdx),
    (3, rbx),
    (5, rbp),
    (6, rsi),
    (7, rdi),
    (8, r8),
    (9, r9),
    (10, r10),
    (11, r11),
    (12, r12),
    (13, r13),
    (14, r14),
];

/// A page of code: one instruction between code that loads all registers and code that stores them.
#[derive(Debug)]
pub struct Native(NonNull<c_void>);

impl Native {
    /// `instruction` must not access memory but through RDI, and must not use RSP or R15.
    pub fn new(instruction: &[u8]) -> Self {
        Self::function(&wrap(instruction).unwrap())
    }

    /// `code` is a function, of one argument for [`Self::call`].
    pub fn function(code: &[u8]) -> Self {
        assert!(code.len() <= PAGE);
        // SAFETY: a new mapping, which is filled before it becomes code.
        unsafe {
            let page = mmap_anonymous(
                std::ptr::null_mut(),
                PAGE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
            .unwrap();
            std::ptr::copy_nonoverlapping(code.as_ptr(), page.cast(), code.len());
            mprotect(page, PAGE, MprotectFlags::READ | MprotectFlags::EXEC).unwrap();
            Self(NonNull::new(page).unwrap())
        }
    }

    /// Runs it. No unmasked exception may be pending or be raised by SSE; RDI must point to memory
    /// as long as the instruction's operand.
    pub fn run(&self, registers: &mut Registers) {
        self.call(registers);
    }

    /// Calls the function, which must be one of this type.
    pub fn call<T>(&self, argument: &mut T) {
        // SAFETY: the page holds a function of this type, which leaves the host's floating-point
        // state as it must be.
        unsafe {
            let f: extern "sysv64" fn(*mut T) = std::mem::transmute(self.0.as_ptr());
            f(argument);
        }
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`.
        unsafe { munmap(self.0.as_ptr(), PAGE).unwrap() };
    }
}

fn wrap(instruction: &[u8]) -> Result<Vec<u8>, IcedError> {
    let mut a = CodeAssembler::new(64)?;
    let saved = [rbx, rbp, r12, r13, r14, r15];
    for r in saved {
        a.push(r)?;
    }
    a.mov(r15, rdi)?;
    a.fxrstor64(ptr(r15))?;
    let avx = is_x86_feature_detected!("avx");
    let upper_halves = || (YMM_HIGH..).step_by(16).zip(VECTORS).filter(|_| avx);
    for (at, ymm) in upper_halves() {
        a.vinsertf128(ymm, ymm, xmmword_ptr(r15 + at), 1)?;
    }
    a.push(qword_ptr(r15 + RFLAGS))?;
    a.popfq()?;
    for (n, r) in EXCHANGED {
        a.mov(r, qword_ptr(r15 + (GPR + 8 * n)))?;
    }
    a.db(instruction)?;
    for (n, r) in EXCHANGED {
        a.mov(qword_ptr(r15 + (GPR + 8 * n)), r)?;
    }
    a.pushfq()?;
    a.pop(qword_ptr(r15 + RFLAGS))?;
    a.fxsave64(ptr(r15))?;
    for (at, ymm) in upper_halves() {
        a.vextractf128(xmmword_ptr(r15 + at), ymm, 1)?;
    }
    if avx {
        a.vzeroupper()?;
    }
    a.fninit()?;
    a.ldmxcsr(dword_ptr(r15 + HOST_MXCSR))?;
    for r in saved.into_iter().rev() {
        a.pop(r)?;
    }
    a.ret()?;
    a.assemble(0)
}
