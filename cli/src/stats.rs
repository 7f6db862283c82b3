//! `vbts trace --stats`: prints how the time was spent.

use std::fmt::Write as _;
use std::time::Duration;

use vbts_host::exit::say;
use vbts_vmm::machine::Machine;

/// Prints how many instructions `machine` has executed and for what, and how the host time `all`
/// was spent. `writing` is the time of the thread that writes the trace.
pub(crate) fn print(machine: &Machine, writing: Duration, all: Duration) {
    let usage = machine.usage();
    let total = usage.instructions();
    say(format_args!(
        "instructions on the software CPU: {total}{}",
        list(
            total,
            &[
                ("the program", usage.traced_user),
                ("the kernel while it is traced", usage.traced_kernel),
                ("other programs", usage.user),
                (
                    "the kernel otherwise, for booting and draining",
                    usage.kernel
                ),
            ]
        )
    ));
    let native = machine.native_code();
    if native.blocks > 0 {
        say(format_args!(
            "native code: {} blocks of code translated to {} bytes in {:.2} s, memory full {} times",
            native.blocks,
            native.bytes,
            native.time.as_secs_f64(),
            native.flushes
        ));
    }
    if native.refused > 0 {
        say(format_args!(
            "native code: the verifier has refused {} blocks, an error of vbts",
            native.refused
        ));
    }
    let seconds = |time: Duration| format!("{:.2} s", time.as_secs_f64());
    let mut text = format!("time: {}", seconds(all));
    if let Some(time) = machine.host_time() {
        let _ = write!(
            text,
            ", of it {} before the guest ran, {} executing it, {} devices and waiting",
            seconds(all.saturating_sub(time.total)),
            seconds(time.executing),
            seconds(time.total.saturating_sub(time.executing)),
        );
    }
    say(format_args!(
        "{text}; formatting and writing the trace meanwhile: {}",
        seconds(writing)
    ));
    let handovers = machine.handovers();
    if handovers.to_soft > 0 || handovers.emulated > 0 {
        say(format_args!(
            "from KVM to the software CPU: {} times, back: {}; \
             instructions that KVM could not emulate: {}",
            handovers.to_soft, handovers.to_kvm, handovers.emulated
        ));
    }
}

/// One line for each part of `total`.
fn list(total: u64, parts: &[(&str, u64)]) -> String {
    parts.iter().fold(String::new(), |mut text, (name, n)| {
        let percent = 100.0 * *n as f64 / total.max(1) as f64;
        let _ = write!(text, "\n  {n:>14} {percent:>5.1} % {name}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_percentages() {
        assert_eq!(
            list(200, &[("a", 50), ("b", 150)]),
            "\n              50  25.0 % a\n             150  75.0 % b"
        );
        assert_eq!(list(0, &[("a", 0)]), "\n               0   0.0 % a");
    }
}
