//! Numbers of signals: GDB has its own, which are the same for all systems
//! (include/gdb/signals.def in its source).

/// GDB's numbers of Linux's signals 1 to 31.
const GDB: [u8; 31] = [
    1, 2, 3, 4, 5, 6, 10, 8, 9, 30, 11, 31, 13, 14, 15, 0x8f, 20, 19, 17, 18, 21, 22, 16, 24, 25,
    26, 27, 28, 23, 32, 12,
];
/// GDB's number of a signal that it does not know, such as Linux's SIGSTKFLT.
const UNKNOWN: u8 = 0x8f;

/// Returns GDB's number of a signal of Linux.
pub(super) fn to_gdb(signal: u8) -> u8 {
    match signal {
        0 => 0,
        1..=31 => GDB[usize::from(signal) - 1],
        32 => 77,
        33..=63 => signal + 12,
        64 => 78,
        _ => UNKNOWN,
    }
}

/// Returns Linux's number of a signal of GDB, or `None` if Linux does not have it.
pub(super) fn from_gdb(signal: u8) -> Option<u8> {
    (0..=64).find(|&linux| to_gdb(linux) == signal && signal != UNKNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_signal_of_linux_but_one_has_its_own_number() {
        for linux in (0..=64).filter(|&linux| linux != 16) {
            assert_eq!(from_gdb(to_gdb(linux)), Some(linux));
        }
        assert_eq!(to_gdb(16), UNKNOWN);
        // SIGBUS, SIGUSR1, SIGSEGV, SIGCHLD, SIGSYS, the first two real-time signals.
        for (linux, gdb) in [
            (7, 10),
            (10, 30),
            (11, 11),
            (17, 20),
            (31, 12),
            (32, 77),
            (33, 45),
        ] {
            assert_eq!(to_gdb(linux), gdb);
        }
        assert_eq!(from_gdb(7), None);
        assert_eq!(from_gdb(UNKNOWN), None);
    }
}
