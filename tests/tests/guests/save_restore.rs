//! A machine that is saved in the middle of the boot and restored to a new machine ends like the
//! one without interruption: console, instruction counts, virtual time and trace are the same
//! bytes.
//!
//! The guest boots with everything that `vbts trace` gives it, and the moment of the save is before
//! it mounts the shared root: a machine whose guest has files of the host open is not saved.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use libtest_mimic::Trial;
use vbts_capture::format::Raw;
use vbts_capture::output::{StdoutUse, TraceTo};
use vbts_capture::program::Positions;
use vbts_capture::{AgentConnection, Destination, Options, RunEnd, Session};
use vbts_devices::virtio::console::ConsolePort;
use vbts_devices::{Shared, lock, shared};
use vbts_host::root::Root;
use vbts_protocol::{
    Bytes, FileAccess, Follow, Job, PORT_NAME, Recorder, Scope, Stream, StreamKind, Trace,
};
use vbts_symbols::Symbolizer;
use vbts_tests::machine as found;
use vbts_tests::machine::TestModule;
use vbts_vmm::boot::cpio::Cpio;
use vbts_vmm::config::{Accelerator, Initrd, KernelConfig, MachineConfig, SandboxMode};
use vbts_vmm::launch::{KernelFiles, Launch};
use vbts_vmm::machine::{End, Machine, MachineState};

const PROGRAM: [&str; 3] = ["/bin/sh", "-c", "exit 7"];

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    found::trials_of(
        module,
        &[
            ("one_processor", |files| compare(files, 1)),
            ("two_processors", |files| compare(files, 2)),
            ("open_host_files", open_host_files),
        ],
    )
}

/// A guest that traces [`PROGRAM`].
struct Guest {
    machine: Machine,
    connection: AgentConnection,
    session: Shared<Session>,
    directory: tempfile::TempDir,
}

/// What a guest has left at its end.
#[derive(PartialEq)]
struct Results {
    console: Vec<u8>,
    trace: Vec<u8>,
    instructions: u64,
    now: u64,
}

impl Guest {
    fn new(files: &found::Machine, processors: u32) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let config = MachineConfig {
            accelerator: Accelerator::Soft,
            processors,
            console: Some(directory.path().join("console")),
            // The tests of this process need more system calls.
            root: Some("/".into()),
            sandbox: SandboxMode::Off,
            ..MachineConfig::default()
        };
        let mut launch = Launch::new(&config, false).map_err(|error| anyhow!("{error}"))?;
        let trace = directory.path().join("trace");
        let destination = Destination::new(&TraceTo::File(trace.clone()), StdoutUse::Program)?;
        let memory = launch.memory().clone();
        let options = Options {
            filters: vbts_capture::Filters::default(),
            scope: Scope::User,
            is_32_bit: false,
            reports: true,
            format: Box::new(Raw),
            symbols: Symbolizer::new(Root::open(Path::new("/"))?, Path::new("/")),
            destination,
            merge_limit: 1 << 20,
        };
        let session = Session::start(memory, options, Positions::default(), launch.alarm())?;
        let session = shared(session);
        let output = Box::new(session.clone());
        let port = ConsolePort::named(PORT_NAME, output);
        let port = launch.board.add_console(vec![port])?;
        let root = launch.share_root();
        root.map_err(|error| anyhow!("{error}"))?;
        let kernel = KernelConfig {
            image: files.kernel().to_owned(),
            initrd: Some(Initrd::Contents(initramfs(files)?)),
            append: String::new(),
        };
        let alarm = launch.alarm().clone();
        let machine = KernelFiles::read(kernel).and_then(|kernel| launch.boot(&kernel));
        let machine = machine.map_err(|error| anyhow!("{error}"))?;
        let inputs = BTreeMap::new();
        let connection = AgentConnection::new(session.clone(), port, job(), inputs, alarm);
        Ok(Self {
            machine,
            connection,
            session,
            directory,
        })
    }

    /// Runs the guest until `pause` in virtual ns, or to its end.
    fn run_until(&mut self, pause: u64) -> Result<Option<End>> {
        let outcome = self.machine.run_until(pause, &mut self.connection);
        outcome.map_err(|error| anyhow!("{error}\n{}", self.console_text()))
    }

    /// Runs the guest to its end.
    fn finish(&mut self) -> Result<Results> {
        let end = self.run_until(u64::MAX)?.context("no end")?;
        let mut session = lock(&self.session);
        let (summary, error) = session.finish(RunEnd::Error, false);
        error.map_or(Ok(()), Err)?;
        let summary = summary.context("no summary")?;
        let status = summary.end.exit();
        drop(session);
        ensure!(status == Some(7), "{status:?}, {end:?}");
        ensure!(summary.records > 0 && summary.lost == 0, "{summary}");
        Ok(Results {
            console: self.console()?,
            trace: std::fs::read(self.path("trace"))?,
            instructions: self.machine.instructions(),
            now: self.machine.now(),
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn console(&self) -> Result<Vec<u8>> {
        Ok(std::fs::read(self.path("console"))?)
    }

    fn console_text(&self) -> String {
        String::from_utf8_lossy(&self.console().unwrap_or_default()).into_owned()
    }
}

/// The initial RAM file system with the agent.
fn initramfs(files: &found::Machine) -> Result<Vec<u8>> {
    let mut cpio = Cpio::new();
    cpio.directory("dev", 0o755);
    cpio.character_device("dev/console", 0o600, (5, 1));
    cpio.character_device("dev/kmsg", 0o600, (1, 11));
    cpio.file("init", 0o755, &std::fs::read(files.agent())?);
    Ok(cpio.finish())
}

fn job() -> Job {
    let bytes = |text: &str| Bytes(text.as_bytes().to_vec());
    Job {
        argv: PROGRAM.map(bytes).into(),
        envp: vec![bytes("PATH=/usr/bin:/bin")],
        cwd: bytes("/"),
        streams: (0..=2).map(null).collect(),
        trace: Some(Trace {
            buffer_size: 4 << 20,
            sched: false,
            scope: Scope::User,
            follow: Follow::None,
            reported_signal: None,
            recorder: Recorder::Kernel,
        }),
        ..Job::default()
    }
}

/// A descriptor that is `/dev/null`.
fn null(fd: u32) -> Stream {
    let kind = StreamKind::Device {
        path: "/dev/null".into(),
        access: FileAccess::Both,
    };
    Stream { fd, kind }
}

/// Runs `guest` until it has files of the host open. Returns its virtual time in ns then.
fn open_files(guest: &mut Guest) -> Result<u64> {
    const STEP: u64 = 1_000_000;
    while guest.machine.board().state().is_ok() {
        let pause = guest.machine.now() + STEP;
        ensure!(guest.run_until(pause)?.is_none(), "no save was refused");
    }
    Ok(guest.machine.now())
}

/// Saves and restores at several points of the boot.
fn compare(files: &found::Machine, processors: u32) -> Result<()> {
    let whole = Guest::new(files, processors)?.finish()?;
    let mounted = open_files(&mut Guest::new(files, processors)?)?;
    for third in 1..3 {
        let mut saved = Guest::new(files, processors)?;
        let end = saved.run_until(mounted * third / 3)?;
        ensure!(end.is_none(), "{end:?} before the save");
        let bytes = saved.machine.save()?.encode()?;
        let before = saved.console()?;
        ensure!(before.len() < whole.console.len(), "the boot is over");

        let mut restored = Guest::new(files, processors)?;
        restored.machine.restore(&MachineState::decode(&bytes)?)?;
        ensure!(restored.machine.now() == saved.machine.now());
        let at = format!("{} ns", saved.machine.now());
        same(&saved.finish()?, &whole).with_context(|| format!("saved at {at}, continued"))?;
        let mut restored = restored.finish()?;
        restored.console.splice(0..0, before);
        same(&restored, &whole).with_context(|| format!("restored at {at}"))?;
    }
    Ok(())
}

/// Checks that two runs have left the same.
fn same(run: &Results, expected: &Results) -> Result<()> {
    ensure!(
        run.console == expected.console,
        "the console differs:\n{}\n---\n{}",
        String::from_utf8_lossy(&run.console),
        String::from_utf8_lossy(&expected.console)
    );
    let counts = |run: &Results| (run.instructions, run.now, run.trace.len());
    ensure!(
        counts(run) == counts(expected),
        "instructions, virtual ns and bytes of the trace: {:?}, {:?}",
        counts(run),
        counts(expected)
    );
    ensure!(run.trace == expected.trace, "the trace differs");
    Ok(())
}

/// A guest that has files of the host open is not saved, and the error names the share.
fn open_host_files(files: &found::Machine) -> Result<()> {
    let mut guest = Guest::new(files, 1)?;
    open_files(&mut guest)?;
    let error = guest.machine.save().err().context("it was saved")?;
    let error = error.to_string();
    ensure!(
        error.contains("the 9P share root") && error.contains("fids"),
        "{error}"
    );
    Ok(())
}
