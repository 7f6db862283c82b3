//! The processes that a program leaves when its first one ends.

use std::fs;

use libc::pid_t;
use vbts_protocol::{Names, ToHost};

use crate::failure::Failure;
use crate::port::Port;

/// Number of processes that a message names.
const NAMED: usize = 8;
/// `PF_KTHREAD` of the kernel: a thread of its own.
const KERNEL_THREAD: u64 = 0x0020_0000;
/// PID 1, this process.
const AGENT: pid_t = 1;

/// Tells the host which processes live although the program's first one has ended. They are `ended`
/// now, or the run waits for them.
pub fn report_left(port: &mut Port, ended: bool) -> Result<(), Failure> {
    let left = left();
    let mut names = Vec::new();
    for (pid, name) in left.iter().take(NAMED) {
        let name = [pid.to_string().as_bytes(), b" (", name, b")"].concat();
        Names::push(&mut names, &name);
    }
    if left.is_empty() {
        return Ok(());
    }
    port.send(&ToHost::Outlived {
        ended,
        count: u32::try_from(left.len()).unwrap_or(u32::MAX),
        names: Names::new(&names).unwrap_or_default(),
    })
}

/// The processes of the program, with their names, in the order of their numbers.
fn left() -> Vec<(pid_t, Vec<u8>)> {
    let mut left: Vec<_> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != AGENT)
        .filter_map(|pid| Some((pid, name(&fs::read(format!("/proc/{pid}/stat")).ok()?)?)))
        .collect();
    left.sort();
    left
}

/// The name of the process with this `/proc/PID/stat`; `None` if it is a thread of the kernel, or a
/// zombie.
fn name(stat: &[u8]) -> Option<Vec<u8>> {
    // The name may have any characters, parentheses among them.
    let start = stat.iter().position(|byte| *byte == b'(')? + 1;
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let fields = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    // state, ppid, pgrp, session, tty_nr, tpgid, flags
    let fields: Vec<&str> = fields.split_whitespace().take(7).collect();
    let (state, flags) = (fields.first()?, fields.get(6)?.parse::<u64>().ok()?);
    let lives = !["Z", "X"].contains(state) && flags & KERNEL_THREAD == 0;
    lives.then(|| stat.get(start..end).map(<[u8]>::to_vec))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_the_program_have_names() {
        for (stat, expected) in [
            ("27 (sleep) S 1 27 27 0 -1 4194304 0", Some("sleep")),
            ("27 (a) b ( c) R 1 27 27 0 -1 4194304 0", Some("a) b ( c")),
            ("27 (sleep) Z 1 27 27 0 -1 4194304 0", None),
            ("2 (kthreadd) S 0 0 0 0 -1 2129984 0", None),
            ("27 (sleep) S 1 27", None),
            ("", None),
        ] {
            let expected = expected.map(|name| name.as_bytes().to_vec());
            assert_eq!(name(stat.as_bytes()), expected, "{stat}");
        }
    }
}
