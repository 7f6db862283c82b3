//! The kernel command line.
//!
//! `Cmdline` of `linux-loader` builds the words that vbts adds. It is not used for the user's
//! words: it refuses tabs and non-ASCII characters, which Linux accepts, and removes spaces at both
//! ends. Its form of virtio-mmio devices, `4K@…`, is not used either: the guest sees the command
//! line, and other bytes would change its run.

use linux_loader::cmdline::{Cmdline, Error};

use super::BootError;
use crate::layout::{COMMAND_LINE_SIZE, VIRTIO_BASE, VIRTIO_GSI, VIRTIO_STRIDE};

/// Words for every kernel: its console, an immediate reset after a panic, resets through the
/// keyboard controller (each reset ends the run), and a time-stamp counter that is reliable.
pub const BASE: &str = "console=ttyS0 panic=-1 reboot=k tsc=reliable";

/// Returns [`BASE`], the frequency of the time-stamp counter in kHz, so that the kernel does not
/// measure it, the addresses of the first `devices` virtio-mmio devices, and `append`, the user's
/// words.
///
/// # Errors
/// The words without `append` do not fit into [`COMMAND_LINE_SIZE`]. [`check`] checks the whole.
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

/// Checks that the kernel reads `line` completely, as one line.
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
    fn devices_come_before_the_users_words() {
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
    fn lines_that_the_kernel_would_truncate_are_refused() {
        assert!(check(&"x".repeat(COMMAND_LINE_SIZE - 1)).is_ok());
        assert!(check(&"x".repeat(COMMAND_LINE_SIZE)).is_err());
        assert!(check("a\0b").is_err());
        assert!(check("a\nb").is_err());
    }

    #[test]
    fn the_users_words_are_not_changed() {
        // `Cmdline` is not used for them: it trims the first and refuses the others.
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
