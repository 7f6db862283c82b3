//! Recordings of runs: what `vbts record` writes before the guest starts, and what `vbts replay`
//! reads there.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufReader, ErrorKind};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use serde::{Deserialize, Serialize};
use vbts_capture::output::StreamOutput;
use vbts_host::exit::{Failure, say};
use vbts_recording::{Header, Item, Reader, Writer};
use vbts_vmm::config::MachineConfig;
use vbts_vmm::inputs::{Exclusions, Inputs};
use vbts_vmm::launch::{KernelFiles, start_date};
use vbts_vmm::machine::Machine;

use crate::options::is_stdout;
use crate::referred_kernel;
use crate::run_facts::{WRITER, command};

/// The numbers of the guest's files in a recording.
mod file {
    pub(super) const KERNEL: u8 = 0;
    pub(super) const INITRD: u8 = 1;
    pub(super) const COUNT: u8 = 2;
}

/// The facts about a guest that a replay needs, beside the configuration of its machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GuestFacts {
    /// The path that the kernel's file had.
    pub kernel: String,
    /// The hash of the kernel, if the recording has that in place of its contents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_sha256: Option<String>,
    /// Words that were added to the kernel's command line.
    pub append: String,
    /// The program.
    pub program: String,
    /// The guest's kernel is a 32-bit one.
    pub is_32_bit: bool,
    /// What a trace of the run says about it.
    pub run: vbts_trace::Run,
    /// The tags of the shares, in the order of their devices.
    pub shares: Vec<String>,
    /// The streams of the program.
    pub streams: ReplayedStreams,
    /// There is no agent and no program: the guest is a machine of the user.
    pub is_machine: bool,
}

/// Where a replay writes what the program writes to its streams.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReplayedStreams {
    /// The streams that go to standard output.
    stdout: Vec<u32>,
    /// The streams that go to standard error.
    stderr: Vec<u32>,
    /// The stream that is the program's terminal.
    pub terminal: Option<u32>,
}

impl ReplayedStreams {
    /// The streams of a run whose streams go to `outputs`. One of them may be its `terminal`.
    pub(crate) fn new(outputs: &BTreeMap<u32, StreamOutput>, terminal: Option<u32>) -> Self {
        let mut streams = Self {
            terminal,
            ..Self::default()
        };
        for (number, output) in outputs {
            match output {
                StreamOutput::Stdout => streams.stdout.push(*number),
                StreamOutput::Stderr => streams.stderr.push(*number),
                StreamOutput::Other(_) => {}
            }
        }
        streams
    }

    /// Where the streams go. Others are not written.
    pub(crate) fn outputs(&self) -> BTreeMap<u32, StreamOutput> {
        let stdout = self.stdout.iter().map(|n| (*n, StreamOutput::Stdout));
        let stderr = self.stderr.iter().map(|n| (*n, StreamOutput::Stderr));
        stdout.chain(stderr).collect()
    }

    /// All of the streams on standard error: something else is on standard output.
    pub(crate) fn on_stderr(&self) -> BTreeMap<u32, StreamOutput> {
        let streams = self.stdout.iter().chain(&self.stderr);
        streams.map(|n| (*n, StreamOutput::Stderr)).collect()
    }
}

/// A file for a new recording.
#[derive(Debug, Clone)]
pub(crate) struct NewRecording {
    /// Its path.
    pub path: PathBuf,
    /// It may replace another file.
    pub force: bool,
    /// Its maximum size in bytes.
    pub max_size: u64,
    /// Files and directories whose contents are kept out.
    pub exclude: Vec<PathBuf>,
    /// It has the hash of the kernel in place of its contents.
    pub refer_kernel: bool,
    /// No messages.
    pub quiet: bool,
}

/// The files of the host that a guest has, by the servers that give them to it.
#[derive(Debug)]
pub(crate) struct ServedFiles<'a> {
    /// The directories of the first servers, in the order of their devices.
    pub directories: Vec<&'a Path>,
    /// Files that are open, each with the name that the last server gives it.
    pub open: &'a BTreeMap<u32, OwnedFd>,
}

impl ServedFiles<'_> {
    /// The files among them that are at or below one of `paths`.
    ///
    /// # Errors
    /// One of the paths does not exist.
    fn exclusions(&self, paths: &[PathBuf]) -> anyhow::Result<Exclusions> {
        let mut exclusions = Exclusions::default();
        for path in paths {
            let option = || format!("--exclude {}", path.display());
            let top = path.canonicalize().with_context(option)?;
            for (server, directory) in (0..).zip(&self.directories) {
                let directory = directory.canonicalize().with_context(option)?;
                // A share can also be below an excluded directory.
                let below = match top.strip_prefix(&directory) {
                    Ok(below) => below,
                    Err(_) if directory.starts_with(&top) => Path::new(""),
                    Err(_) => continue,
                };
                exclusions.add(server, below.as_os_str().as_bytes().to_vec());
            }
            let server = u8::try_from(self.directories.len()).unwrap_or(u8::MAX);
            for (name, file) in self.open {
                let link = format!("/proc/self/fd/{}", file.as_raw_fd());
                let file = std::fs::read_link(link).with_context(option)?;
                if file.starts_with(&top) {
                    exclusions.add(server, name.to_string().into_bytes());
                }
            }
        }
        Ok(exclusions)
    }
}

impl NewRecording {
    /// Checks that there is a file, and that it replaces no other one, before the guest is
    /// prepared.
    ///
    /// # Errors
    /// There is none, or it does.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if is_stdout(&self.path) {
            let message = "--output -: a recording is a file, and cannot go to standard output";
            return Err(anyhow!(message).into());
        }
        match self.path.symlink_metadata() {
            Ok(_) if !self.force => Err(self.exists().into()),
            _ => Ok(()),
        }
    }

    fn exists(&self) -> anyhow::Error {
        let name = self.path.display();
        anyhow!("{name} exists: -o FILE names another file, and --force replaces this one")
    }

    /// Creates the file, which only its owner can read.
    fn create(&self) -> anyhow::Result<File> {
        let name = self.path.display();
        if self.force {
            match std::fs::remove_file(&self.path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("Cannot replace {name}"));
                }
                _ => {}
            }
        }
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        match options.open(&self.path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(self.exists()),
            opened => opened.with_context(|| format!("Cannot create {name}")),
        }
    }

    /// Creates the file, and writes the configuration of a machine and the files of the guest that
    /// `facts` describe, which boots `kernel`, and has `files`.
    ///
    /// # Errors
    /// The file exists or cannot be written, or an excluded file does not exist.
    pub(crate) fn begin(
        &self,
        machine: &MachineConfig,
        facts: &GuestFacts,
        kernel: &KernelFiles,
        files: &ServedFiles<'_>,
    ) -> Result<Inputs, Failure> {
        let excluded = files.exclusions(&self.exclude)?;
        let machine = MachineConfig {
            start_date: Some(start_date(machine)?),
            ..machine.clone()
        };
        let (command, directory) = command();
        let hash = self
            .refer_kernel
            .then(|| referred_kernel::hash(kernel.image()));
        let image = match hash {
            Some(_) => &[],
            None => kernel.image(),
        };
        let kernel_path = std::path::absolute(&facts.kernel).map_err(anyhow::Error::from)?;
        let facts = &GuestFacts {
            kernel: kernel_path.to_string_lossy().into_owned(),
            kernel_sha256: hash,
            ..facts.clone()
        };
        let header = Header {
            writer: WRITER.into(),
            command,
            directory,
            machine: serde_json::to_value(machine).map_err(anyhow::Error::from)?,
            guest: serde_json::to_value(facts).map_err(anyhow::Error::from)?,
            ..Header::default()
        };
        let file = self.create()?;
        let write = || {
            let mut writer = Writer::new(file, &header, self.max_size)?;
            writer.file(file::KERNEL, image)?;
            writer.file(file::INITRD, kernel.initrd().unwrap_or_default())?;
            writer.item(&Item::Boot)?;
            writer.flush()?;
            Ok::<_, vbts_recording::Error>(writer)
        };
        let writer = write().context("Cannot write the recording")?;
        if !self.quiet {
            say(format_args!(
                "recording in {}: it contains the files that the {} and all that is typed",
                self.path.display(),
                match facts.is_machine {
                    false => "program reads, its environment,",
                    true => "guest reads",
                }
            ));
        }
        Ok(Inputs::recorded(writer, excluded))
    }

    /// Writes the end of the run of `machine`, which has ended so. Returns `outcome`.
    ///
    /// # Errors
    /// The run has failed, or the file cannot be written.
    pub(crate) fn end(
        &self,
        machine: &Machine,
        outcome: Result<u8, Failure>,
    ) -> Result<u8, Failure> {
        let status = outcome
            .as_ref()
            .map_or_else(Failure::status, |status| *status);
        let reason = match &outcome {
            Ok(_) | Err(Failure::Guest { .. }) => None,
            Err(failure) => Some(failure.to_string()),
        };
        if let Some(file) = machine.recording_ended_by().filter(|_| !self.quiet) {
            say(format_args!(
                "{} ends where {file} is read, which --exclude keeps out",
                self.path.display()
            ));
        }
        match (machine.record_end(status, reason.as_deref()), &outcome) {
            (Ok(bytes), _) if !self.quiet => {
                say(format_args!("{} has {bytes} bytes", self.path.display()));
            }
            // The first failure decides the exit status.
            (Ok(_), _) | (Err(_), Err(_)) => {}
            (Err(failure), Ok(_)) => return Err(failure),
        }
        outcome
    }
}

/// A recording to replay.
#[derive(Debug)]
pub(crate) struct OldRecording {
    /// The machine of the recorded run.
    pub machine: MachineConfig,
    /// The words of its command line.
    pub command: Vec<String>,
    /// Its working directory.
    pub directory: String,
    /// The facts about its guest.
    pub facts: GuestFacts,
    /// The kernel that it booted.
    pub kernel: KernelFiles,
    /// Its inputs.
    pub inputs: Inputs,
}

impl OldRecording {
    /// The machine of a replay: `host` with what decides the guest's behaviour. No file of the host
    /// is named here.
    pub(crate) fn machine_as(&self, host: &MachineConfig) -> MachineConfig {
        let recorded = &self.machine;
        MachineConfig {
            bts: recorded.bts,
            model: recorded.model.clone(),
            memory: recorded.memory,
            processors: recorded.processors,
            start_date: recorded.start_date,
            ..host.clone()
        }
    }

    /// Opens the recording `path`, up to its inputs.
    ///
    /// # Errors
    /// The file cannot be read, or this program cannot replay it; or the recording refers to a
    /// kernel that is not here.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let name = path.display();
        let file = File::open(path).with_context(|| format!("Cannot open {name}"))?;
        let read = Reader::new(BufReader::new(file));
        let (header, mut reader) = read.with_context(|| format!("Cannot replay {name}"))?;
        let facts: Result<(MachineConfig, GuestFacts), _> = serde_json::from_value(header.machine)
            .and_then(|machine| serde_json::from_value(header.guest).map(|facts| (machine, facts)));
        let (recorded, facts) =
            facts.with_context(|| format!("Cannot replay {name}: its configuration is damaged"))?;
        let files = reader.files(file::COUNT);
        let mut files = files
            .with_context(|| format!("Cannot read the guest's files of {name}"))?
            .into_iter();
        let (image, initrd) = (files.next(), files.next());
        let kernel_path = PathBuf::from(&facts.kernel);
        let image = match &facts.kernel_sha256 {
            Some(hash) => referred_kernel::find(hash, &kernel_path, facts.is_32_bit)?,
            None => image.unwrap_or_default(),
        };
        let kernel = KernelFiles::recorded(
            kernel_path,
            image,
            initrd.filter(|initrd| !initrd.is_empty()),
            facts.append.clone(),
        );
        Ok(Self {
            machine: recorded,
            command: header.command,
            directory: header.directory,
            facts,
            kernel,
            inputs: Inputs::replayed(reader),
        })
    }
}
