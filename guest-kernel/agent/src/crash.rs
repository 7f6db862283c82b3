//! Signals that can kill a task for what its instruction did.

use libc::{c_int, pid_t};
use vbts_protocol::{Crash, MAX_INSTRUCTION, REGISTERS};

use crate::ptrace;

/// Signals that the kernel or the C library raises for a program's own fault.
const FAULTS: [c_int; 7] = [
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGSEGV,
    libc::SIGSYS,
];

const PAGE: u64 = 4096;

/// Returns what a task would crash with if the signal that it has stopped for killed it.
pub fn possible(pid: pid_t, signal: c_int) -> Option<Box<Crash>> {
    if !FAULTS.contains(&signal) {
        return None;
    }
    let info = ptrace::signal_info(pid).ok()?;
    let registers = registers(pid)?;
    let [.., rip, _, _] = registers;
    // A signal of the processor has a positive code and an address, others have a sender there.
    let address = match info.si_code {
        // SAFETY: the kernel has filled in these fields, and any value is a valid address.
        1.. if signal != libc::SIGSYS => unsafe { info.si_addr() as u64 },
        _ => 0,
    };
    Some(Box::new(Crash {
        task: pid.unsigned_abs(),
        signal: signal.unsigned_abs(),
        code: info.si_code,
        address,
        registers,
        instruction: instruction(pid, rip),
    }))
}

/// Returns whether a task that has stopped at its exit, with this status, crashes with `crash`: no
/// handler has run since then.
pub fn is_fatal(pid: pid_t, status: c_int, crash: &Crash) -> bool {
    libc::WTERMSIG(status).unsigned_abs() == crash.signal
        && registers(pid).is_some_and(|registers| registers == crash.registers)
}

/// The registers in the order of [`REGISTERS`].
fn registers(pid: pid_t) -> Option<[u64; REGISTERS.len()]> {
    let user = ptrace::registers(pid).ok()?;
    Some(in_order(&user))
}

#[cfg(target_arch = "x86_64")]
fn in_order(user: &libc::user_regs_struct) -> [u64; REGISTERS.len()] {
    [
        user.rax,
        user.rbx,
        user.rcx,
        user.rdx,
        user.rsi,
        user.rdi,
        user.rsp,
        user.rbp,
        user.r8,
        user.r9,
        user.r10,
        user.r11,
        user.r12,
        user.r13,
        user.r14,
        user.r15,
        user.rip,
        user.eflags,
        user.cs,
    ]
}

/// The registers that 32-bit code does not have are 0.
#[cfg(target_arch = "x86")]
fn in_order(user: &libc::user_regs_struct) -> [u64; REGISTERS.len()] {
    #[rustfmt::skip]
    let registers = [
        user.eax, user.ebx, user.ecx, user.edx, user.esi, user.edi, user.esp, user.ebp,
        0, 0, 0, 0, 0, 0, 0, 0, user.eip, user.eflags, user.xcs,
    ];
    registers.map(|register| u64::from(register.cast_unsigned()))
}

/// The bytes at `address` that can belong to one instruction, as far as they can be read.
fn instruction(pid: pid_t, address: u64) -> Vec<u8> {
    let mut bytes = vec![0u8; MAX_INSTRUCTION];
    let local = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let in_page = usize::try_from(PAGE - address % PAGE).map_or(0, |n| n.min(MAX_INSTRUCTION));
    // The kernel reads whole iovecs. The second page may be unmapped.
    let remote = [
        (address, in_page),
        (
            address.wrapping_add(in_page as u64),
            MAX_INSTRUCTION - in_page,
        ),
    ]
    .map(|(base, len)| libc::iovec {
        iov_base: base as *mut libc::c_void,
        iov_len: len,
    });
    // SAFETY: the call writes at most the length of `local` to `bytes`.
    let count = unsafe { libc::process_vm_readv(pid, &raw const local, 1, remote.as_ptr(), 2, 0) };
    bytes.truncate(usize::try_from(count).unwrap_or(0));
    bytes
}
