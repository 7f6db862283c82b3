//! Signals that the process has ignored from its start: nohup(1) ignores SIGHUP, and a shell
//! without job control has a command that it does not wait for ignore SIGINT and SIGQUIT.

use std::mem::MaybeUninit;
use std::ptr;

/// Signals that Rust's runtime and [`crate::output::survive_file_size_limit`] ignore.
const OWN: [i32; 2] = [libc::SIGPIPE, libc::SIGXFSZ];

/// Returns whether the process ignores `signal`.
pub fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: the call changes no action, and writes that of the signal to `action`.
    let status = unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) };
    // SAFETY: the call has written it.
    status == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

/// Returns the signals that the process has ignored from its start, as `SigIgn` in
/// proc_pid_status(5): bit n - 1 is signal n.
pub fn ignored_signals() -> u64 {
    let ignored = (1..=64).filter(|signal| !OWN.contains(signal) && is_ignored(*signal));
    ignored.fold(0, |mask, signal| mask | 1 << (signal - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_those_of_the_kernel() {
        // SAFETY: the call changes the action for a signal that no other test uses.
        unsafe { libc::signal(libc::SIGUSR2, libc::SIG_IGN) };
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let mask = u64::from_str_radix(mask.unwrap().trim(), 16).unwrap();
        // The C library keeps signals 32 and 33 for itself.
        let not_told = OWN.iter().chain(&[32, 33]);
        let not_told = not_told.fold(0, |mask, signal| mask | 1 << (signal - 1));
        assert_eq!(ignored_signals(), mask & !not_told);
        assert!(is_ignored(libc::SIGUSR2) && !is_ignored(libc::SIGALRM));
    }
}
