//! The kernel command line.
//!
//! `linux-loader`'s `Cmdline` builds our part of it. It is not used for the user's part: it refuses
//! tabs and everything that is not ASCII, which Linux accepts, and removes spaces at both ends. Nor
//! for its own form of virtio-mmio devices, `4K@…`: the guest sees the bytes, and every byte of the
//! command line is part of a reproducible run.

use linux_loader::cmdline::{Cmdline, Error};

use super::BootError;
use crate::layout::{COMMAND_LINE_SIZE, VIRTIO_BASE, VIRTIO_GSI, VIRTIO_STRIDE};

/// Words for every kernel: where its console is, to reset at once after a panic, to reset through
/// the keyboard controller (either reset ends the run), and that its time-stamp counter is
/// reliable.
pub const BASE: &str = "console=ttyS0 panic=-1 reboot=k tsc=reliable";

/// Returns [`BASE`], the rate of the time-stamp counter in kHz, which the kernel then need not
/// measure, the addresses of the first `devices` virtio-mmio devices, and `append`, the user's
/// words.
///
/// # Errors
/// Our own words do not fit into [`COMMAND_LINE_SIZE`]. That of the user's is left to [`check`].
pub fn build(devices: usize, tsc_khz: u32, append: &str) -> Result<String, BootError> {
    let mut line = own_words(devices, tsc_khz)?;
    if !append.is_empty() {
        line.push(' ');
        line.push_str(append);
    }
    Ok(line)
}

fn own_words(devices: usize, tsc_khz: u32) -> Result<String, Error> {
    let mut line = Cmdline::new(COMMAND_LINE_SIZE)?;
    line.insert_str(BASE)?;
    line.insert("tsc_early_khz", &tsc_khz.to_string())?;
    for (n, gsi) in (0..).zip(VIRTIO_GSI.iter().take(devices)) {
        let base = VIRTIO_BASE + n * VIRTIO_STRIDE;
        let device = format!("{VIRTIO_STRIDE:#x}@{base:#x}:{gsi}");
        line.insert("virtio_mmio.device", &device)?;
    }
    let line = line.as_cstring()?.into_string();
    line.map_err(|_| Error::InvalidAscii)
}

/// Checks that the kernel will read all of `line`, and as one line.
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
        let line = build(2, 1_000_000, "quiet init=/bin/sh").unwrap();
        let expected = [
            BASE,
            "tsc_early_khz=1000000",
            "virtio_mmio.device=0x1000@0xd0000000:5",
            "virtio_mmio.device=0x1000@0xd0001000:6",
            "quiet init=/bin/sh",
        ];
        assert_eq!(line, expected.join(" "));
        let shortest = build(0, 7, "").unwrap();
        assert_eq!(shortest, format!("{BASE} tsc_early_khz=7"));
        assert!(build(usize::MAX, u32::MAX, "").is_ok());
    }

    #[test]
    fn lines_that_the_kernel_would_cut_are_refused() {
        assert!(check(&"x".repeat(COMMAND_LINE_SIZE - 1)).is_ok());
        assert!(check(&"x".repeat(COMMAND_LINE_SIZE)).is_err());
        assert!(check("a\0b").is_err());
        assert!(check("a\nb").is_err());
    }
    #[test]
    fn the_users_words_are_not_changed() {
        // The reason not to give them to `Cmdline`, which trims the first and refuses the others.
        for words in [" quiet ", "a\tb", "name=ü"] {
            let line = build(0, 7, words).unwrap();
            assert!(line.ends_with(&format!(" {words}")), "{line:?}");
            assert!(check(&line).is_ok(), "{line:?}");
            let mut theirs = Cmdline::new(COMMAND_LINE_SIZE).unwrap();
            let _ = theirs.insert_str(words);
            assert_ne!(theirs.as_cstring().unwrap().as_bytes(), words.as_bytes());
        }
    }
}
