//! The kernel command line.

use std::fmt::Write as _;

use super::BootError;
use crate::layout::{COMMAND_LINE_SIZE, VIRTIO_BASE, VIRTIO_GSI, VIRTIO_STRIDE};

/// What every kernel is told: where its console is, to reset at once on a panic (so that it ends
/// the run), to reset through the keyboard controller (which ends the run as well), and that its
/// clock is good.
pub const BASE: &str = "console=ttyS0 panic=-1 reboot=k tsc=reliable";

/// [`BASE`], the clock's rate, which the kernel need not measure, where the `devices` virtio-mmio
/// devices are, and what the user adds.
pub fn build(devices: usize, tsc_khz: u32, append: &str) -> String {
    let mut line = format!("{BASE} tsc_early_khz={tsc_khz}");
    for (n, gsi) in (0..).zip(VIRTIO_GSI.iter().take(devices)) {
        let base = VIRTIO_BASE + n * VIRTIO_STRIDE;
        let _ = write!(
            line,
            " virtio_mmio.device={VIRTIO_STRIDE:#x}@{base:#x}:{gsi}"
        );
    }
    if !append.is_empty() {
        line.push(' ');
        line.push_str(append);
    }
    line
}

/// Refuses what the kernel would cut or misread.
///
/// # Errors
/// The line is too long or contains control characters.
pub fn check(line: &str) -> Result<(), BootError> {
    if line.len() >= COMMAND_LINE_SIZE {
        return Err(BootError::CommandLineTooLong(line.len()));
    }
    if line.bytes().any(|b| b.is_ascii_control() && b != b'\t') {
        return Err(BootError::CommandLineControl);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_announced_and_the_users_words_come_last() {
        let line = build(2, 1_000_000, "quiet init=/bin/sh");
        assert!(line.starts_with(BASE));
        assert!(line.ends_with(
            " tsc_early_khz=1000000 virtio_mmio.device=0x1000@0xd0000000:5 virtio_mmio.device=0x1000@0xd0001000:6 quiet init=/bin/sh"
        ));
        assert_eq!(build(0, 7, ""), format!("{BASE} tsc_early_khz=7"));
    }

    #[test]
    fn lines_that_the_kernel_would_cut_are_refused() {
        assert!(check(&"x".repeat(COMMAND_LINE_SIZE - 1)).is_ok());
        assert!(check(&"x".repeat(COMMAND_LINE_SIZE)).is_err());
        assert!(check("a\0b").is_err());
        assert!(check("a\nb").is_err());
    }
}
