//! A guest that runs cases of the suite, in a process of its own: `vbts guest` with its console in
//! a pipe.
//!
//! A process can enter the sandbox only once, and a guest that hangs is killed with its process.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Signal, set_parent_process_death_signal};

use super::Needs;
use super::source::Contents;
use vbts_host::Event;
use vbts_host::exit::{Failure, signal_name, status};
use vbts_vmm::config::{
    BtsMode, DiskConfig, GuestConfig, Initrd, KernelConfig, LogLevel, MachineConfig,
};
use vbts_vmm::vcpu::MALFORMED_DS_AREA;

/// Words that make the kernel print all its messages, and all that programs write to `/dev/kmsg`.
const WORDS: &str = "loglevel=7 printk.devkmsg=on";
/// Bytes that one read takes from the console.
const PIECE: usize = 16 << 10;
/// Length of a line in bytes. A longer line is split.
const MAX_LINE: usize = 16 << 10;
/// Size in bytes of the disk of a guest that swaps. It takes memory as the guest writes it.
const DISK_SIZE: u64 = 128 << 20;

/// What all guests of a run share.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The machine of each guest.
    pub machine: MachineConfig,
    /// The kernel.
    pub kernel: PathBuf,
    /// The suite's program for this kernel, or nothing.
    pub program: Arc<[u8]>,
    /// Words to add to the kernel's command line.
    pub append: String,
    /// Host time that a case may take.
    pub limit: Duration,
}

/// How a guest ends, or why it has to be ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuestEnd {
    /// It ended by itself, or was reset.
    Exited,
    /// It crashed; the message of `vbts guest` says how.
    Crashed(String),
    /// A case took longer than its limit.
    TimedOut,
    /// A signal, or the time limit of the whole run.
    Interrupted(Event),
}

/// A running guest.
#[derive(Debug)]
pub struct Guest {
    child: Child,
    console: File,
    /// Standard error of `vbts guest`.
    errors: File,
    /// Bytes of it that have been searched for warnings.
    searched: u64,
    /// The beginning of a line without its end.
    partial: Vec<u8>,
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Both fail if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Guest {
    /// Boots a guest with `contents`, on a machine that has what its cases need.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn boot(settings: &Settings, needs: Needs, contents: &Contents) -> Result<Self, Failure> {
        let archive = contents
            .initramfs
            .as_ref()
            .map(|archive| inherited_file("initramfs", archive))
            .transpose()?;
        let mut machine = machine(settings, needs);
        let disk = (needs == Needs::Disk)
            .then(|| inherited_file("disk", &[]))
            .transpose()?;
        if let Some(disk) = &disk {
            disk.set_len(DISK_SIZE)
                .context("Cannot make a disk for the guest")?;
            machine.disks.push(DiskConfig {
                file: path_of(disk),
                writable: true,
            });
        }
        let config = GuestConfig {
            machine,
            kernel: KernelConfig {
                image: settings.kernel.clone(),
                initrd: archive.as_ref().map(|file| Initrd::File(path_of(file))),
                append: kernel_words(settings, needs, &contents.words),
            },
        };
        let config = inherited_file("config", &serde_json::to_vec(&config)?)?;
        let errors = File::from(
            memfd_create("errors", MemfdFlags::CLOEXEC)
                .context("Cannot make a file for messages")?,
        );
        let own = std::env::current_exe().context("Cannot find the executable of vbts")?;
        let mut command = Command::new(own);
        command
            .arg("guest")
            .arg(path_of(&config))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors.try_clone().context("Cannot share a file")?)
            // Ctrl-C then reaches only this process, which ends the guest.
            .process_group(0);
        // SAFETY: the closure makes one system call, which is async-signal-safe.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
        }
        let mut child = command
            .spawn()
            .context("Cannot start a process for the guest")?;
        let console = child
            .stdout
            .take()
            .context("the guest's process has no standard output")?;
        Ok(Self {
            child,
            console: OwnedFd::from(console).into(),
            errors,
            searched: 0,
            partial: Vec::new(),
        })
    }

    /// A descriptor that becomes readable when the guest prints something or ends.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.console.as_fd()
    }

    /// Appends what the guest has printed to `lines`, and before it the warnings about the guest.
    /// Blocks until there is something. Returns whether more can follow.
    ///
    /// # Errors
    /// The pipe cannot be read.
    pub fn read(&mut self, lines: &mut VecDeque<String>) -> io::Result<bool> {
        let mut bytes = [0; PIECE];
        let n = match self.console.read(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(true),
            result => result?,
        };
        self.read_warnings(lines)?;
        for &byte in bytes.get(..n).unwrap_or_default() {
            if byte != b'\n' {
                self.partial.push(byte);
            }
            if byte == b'\n' || self.partial.len() >= MAX_LINE {
                lines.push_back(self.take_line());
            }
        }
        if n == 0 && !self.partial.is_empty() {
            lines.push_back(self.take_line());
        }
        Ok(n > 0)
    }

    /// Appends new warnings about the guest to `lines`: what `vbts guest` wrote before the guest
    /// printed.
    fn read_warnings(&mut self, lines: &mut VecDeque<String>) -> io::Result<()> {
        // The process writes at the offset of the file.
        while self.errors.metadata()?.len() > self.searched {
            let mut bytes = [0; PIECE];
            let n = self.errors.read_at(&mut bytes, self.searched)?;
            let bytes = bytes.get(..n).unwrap_or_default();
            let whole = match bytes.iter().rposition(|&byte| byte == b'\n') {
                Some(end) => end + 1,
                None if n == PIECE => n,
                None => break,
            };
            self.searched += whole as u64;
            let text = String::from_utf8_lossy(bytes.get(..whole).unwrap_or_default());
            let warnings = text.lines().filter(|line| line.contains(MALFORMED_DS_AREA));
            lines.extend(warnings.map(str::to_owned));
        }
        Ok(())
    }

    fn take_line(&mut self) -> String {
        let line = std::mem::take(&mut self.partial);
        String::from_utf8_lossy(&line)
            .trim_end_matches('\r')
            .to_owned()
    }

    /// Waits for the process, after the last line of the console, and returns how the guest ended.
    ///
    /// # Errors
    /// `vbts guest` itself failed.
    pub fn wait(mut self) -> Result<GuestEnd, Failure> {
        let status = self
            .child
            .wait()
            .context("Cannot wait for the guest's process")?;
        let mut text = String::new();
        self.errors
            .seek(SeekFrom::Start(0))
            .and_then(|_| self.errors.read_to_string(&mut text))
            .context("Cannot read the messages of the guest's process")?;
        end_of(status, &text)
    }
}

/// How a guest ended, from the exit status of `vbts guest` and its messages.
fn end_of(status: ExitStatus, errors: &str) -> Result<GuestEnd, Failure> {
    // The last line is the message. The end of the console may precede it.
    let last = errors.lines().last().unwrap_or_default();
    let message = last.strip_prefix("vbts: ").unwrap_or(last).to_owned();
    match (
        status.code().and_then(|code| u8::try_from(code).ok()),
        status.signal(),
    ) {
        (Some(status::GUEST), _) => Ok(GuestEnd::Crashed(message)),
        (Some(status::ERROR), _) => Err(anyhow!(message).into()),
        (Some(status::HOST), _) => Err(Failure::Host(message)),
        (Some(_), _) => Ok(GuestEnd::Exited),
        (None, Some(signal)) => {
            let signal = signal_name(signal);
            Err(anyhow!("the process of the guest was killed by {signal}").into())
        }
        (None, None) => Err(anyhow!("the process of the guest ended: {status}").into()),
    }
}

/// The machine for cases with `needs`.
fn machine(settings: &Settings, needs: Needs) -> MachineConfig {
    let mut machine = settings.machine.clone();
    // A warning is an error of the kernel.
    machine.log = machine.log.max(LogLevel::Warn);
    if needs == Needs::NoBts {
        machine.bts = BtsMode::Off;
    }
    machine
}

/// Words to add to the kernel's command line: those of the guest's contents and of `settings`.
fn kernel_words(settings: &Settings, needs: Needs, words: &str) -> String {
    let pti = match needs {
        Needs::PageTableIsolation => "pti=on",
        Needs::Nothing | Needs::NoBts | Needs::Disk => "",
    };
    let all = [WORDS, pti, words, &settings.append];
    let given: Vec<&str> = all.into_iter().filter(|words| !words.is_empty()).collect();
    given.join(" ")
}

/// A file in memory with `contents`, which a child process inherits.
fn inherited_file(name: &str, contents: &[u8]) -> Result<File, Failure> {
    let fd = memfd_create(name, MemfdFlags::empty())
        .with_context(|| format!("Cannot make a file for the {name}"))?;
    let mut file = File::from(fd);
    io::Write::write_all(&mut file, contents)
        .with_context(|| format!("Cannot write the {name}"))?;
    Ok(file)
}

/// The path of an inherited `file` in the child process.
fn path_of(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(code: i32, errors: &str) -> Result<GuestEnd, Failure> {
        end_of(ExitStatus::from_raw(code), errors)
    }

    #[test]
    fn failures_of_the_guest_and_of_vbts_are_distinct() {
        let console = "vbts: the end of the guest's console:\n  | x\nvbts: triple fault\n";
        assert_eq!(
            end(255 << 8, console).unwrap(),
            GuestEnd::Crashed("triple fault".into())
        );
        assert_eq!(end(1 << 8, "").unwrap(), GuestEnd::Exited);
        let failure = end(125 << 8, "vbts: Cannot boot x\n").unwrap_err();
        assert_eq!(
            (failure.status(), failure.to_string().as_str()),
            (125, "Cannot boot x")
        );
        assert_eq!(end(126 << 8, "vbts: no KVM\n").unwrap_err().status(), 126);
        let killed = end(31, "").unwrap_err();
        assert!(killed.to_string().contains("SIGSYS"), "{killed}");
    }
}
