//! Snapshots of a replay: a machine that goes back to a time is as it was there, and a replay that
//! pauses and goes back ends like the recorded run.

use std::fs::File;
use std::io::{BufReader, Read as _, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use libtest_mimic::Trial;
use nix::pty::openpty;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use vbts_cpu::{BranchLog, LogBuffer, LogEntry, LogScope, LogSink};
use vbts_devices::virtio::console::{Console, ConsolePort};
use vbts_devices::virtio::mmio::MmioTransport;
use vbts_devices::{ByteSink, Shared, lock, shared};
use vbts_host::exit::Failure;
use vbts_protocol::PORT_NAME;
use vbts_recording::Reader;
use vbts_tests::machine::{self as found, Killed, TestModule};
use vbts_vmm::board::Board;
use vbts_vmm::config::{Accelerator, MachineConfig, SandboxMode};
use vbts_vmm::inputs::Inputs;
use vbts_vmm::launch::{KernelFiles, Launch};
use vbts_vmm::machine::{End, History, Machine, ReplayObserver, RunObserver};
use vm_memory::{Bytes as _, GuestAddress, GuestMemoryBackend as _, GuestMemoryRegion as _};

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    found::trials_of(
        module,
        &[
            ("any_time_is_reached_again", |machine| {
                revisited(machine, "1")
            }),
            ("any_time_with_four_processors", |machine| {
                revisited(machine, "4")
            }),
            ("pauses_change_nothing", |machine| paused(machine, "1")),
            ("pauses_with_four_processors", |machine| {
                paused(machine, "4")
            }),
        ],
    )
}

/// Size of guest memory: all of it is compared.
const MEMORY: &str = "160M";
/// Port of the console device that is the agent's.
const AGENT_PORT: usize = 0;

/// The bytes that the guest has sent, and their checksum.
#[derive(Debug)]
struct Output {
    inputs: Inputs,
    hasher: crc32fast::Hasher,
}

impl ByteSink for Output {
    fn put(&mut self, bytes: &[u8]) -> usize {
        self.inputs.note_output(bytes);
        self.hasher.update(bytes);
        bytes.len()
    }
}

/// The host's side of a replay.
struct Observer {
    output: Shared<Output>,
    port: Shared<MmioTransport<Console>>,
    inputs: Inputs,
    outbox: Vec<u8>,
}

impl RunObserver for Observer {
    fn after_exit(&mut self, board: &Board, _now: u64) -> Result<(), Failure> {
        while let Some(bytes) = self.inputs.take_input() {
            self.outbox.extend_from_slice(&bytes);
            let (taken, effects) = lock(&self.port).push_input(AGENT_PORT, &self.outbox);
            self.outbox.drain(..taken);
            board.apply(effects);
        }
        Ok(())
    }
}

impl ReplayObserver for Observer {
    fn save(&mut self) -> Vec<u8> {
        let checksum = lock(&self.output).hasher.clone().finalize();
        [&checksum.to_le_bytes()[..], &self.outbox].concat()
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), Failure> {
        let Some((checksum, outbox)) = state.split_first_chunk() else {
            return Err(anyhow!("the state of the observer is too short").into());
        };
        let checksum = u32::from_le_bytes(*checksum);
        lock(&self.output).hasher = crc32fast::Hasher::new_with_initial(checksum);
        self.outbox = outbox.to_vec();
        Ok(())
    }
}

/// A replay.
struct Replay {
    machine: Machine,
    observer: Observer,
    memory: vbts_devices::GuestRam,
}

/// What is compared of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Picture {
    now: u64,
    instructions: u64,
    /// Checksums of the registers of each processor, of memory and of the output.
    registers: u32,
    memory: u32,
    output: u32,
}

impl Replay {
    fn open(path: &Path) -> Result<Self> {
        let (header, mut reader) = Reader::new(BufReader::new(File::open(path)?))?;
        let recorded: MachineConfig = serde_json::from_value(header.machine)?;
        let text = |name: &str| header.guest[name].as_str().unwrap_or_default().to_owned();
        let files: [Vec<u8>; 2] = reader.files(2)?.try_into().ok().context("other files")?;
        let [image, initrd] = files;
        let initrd = Some(initrd).filter(|initrd| !initrd.is_empty());
        let kernel = KernelFiles::recorded(text("kernel").into(), image, initrd, text("append"));
        let config = MachineConfig {
            accelerator: Accelerator::Soft,
            bts: recorded.bts,
            model: recorded.model,
            memory: recorded.memory,
            processors: recorded.processors,
            start_date: recorded.start_date,
            sandbox: SandboxMode::Off,
            ..MachineConfig::default()
        };
        let inputs = Inputs::replayed(reader);
        let error = |error: Failure| anyhow!("{error}");
        let mut launch = Launch::new(&config, false).map_err(error)?;
        launch.set_inputs(inputs.clone()).map_err(error)?;
        let output = shared(Output {
            inputs: inputs.clone(),
            hasher: crc32fast::Hasher::new(),
        });
        let port = ConsolePort::named(PORT_NAME, Box::new(output.clone()));
        let port = launch.board.add_console(vec![port])?;
        let shares: Vec<String> = serde_json::from_value(header.guest["shares"].clone())?;
        launch.add_replayed_shares(&shares).map_err(error)?;
        let memory = launch.memory().clone();
        let machine = launch.boot(&kernel).map_err(error)?;
        let observer = Observer {
            output,
            port,
            inputs,
            outbox: Vec::new(),
        };
        Ok(Self {
            machine,
            observer,
            memory,
        })
    }

    fn run_until(&mut self, time: u64) -> Result<Option<End>> {
        let ended = self.machine.run_until(time, &mut self.observer);
        ended.map_err(|error| anyhow!("{error}"))
    }

    /// Compares the end with that of the recorded run.
    fn compare_end(&self) -> Result<()> {
        let end = self.machine.compare_end();
        let end = end.map_err(|error| anyhow!("{error}"))?;
        ensure!(end.status.is_some(), "{end:?}");
        Ok(())
    }

    fn picture(&self) -> Result<Picture> {
        let mut memory = crc32fast::Hasher::new();
        let mut piece = vec![0; 1 << 20];
        for region in self.memory.iter() {
            for at in (0..region.len()).step_by(piece.len()) {
                let start = GuestAddress(region.start_addr().0 + at);
                let len = piece.len().min((region.len() - at) as usize);
                self.memory.read_slice(&mut piece[..len], start)?;
                memory.update(&piece[..len]);
            }
        }
        Ok(Picture {
            now: self.machine.now(),
            instructions: self.machine.instructions(),
            registers: self.machine.registers(),
            memory: memory.finalize(),
            output: lock(&self.observer.output).hasher.clone().finalize(),
        })
    }
}

/// Counts branches, and makes a checksum of them.
#[derive(Debug, Clone, Default)]
struct Branches {
    count: u64,
    hasher: crc32fast::Hasher,
}

#[derive(Debug)]
struct Counter(Shared<Branches>);

impl LogSink for Counter {
    fn exchange(&mut self, full: LogBuffer) -> LogBuffer {
        let mut branches = lock(&self.0);
        for entry in full.entries() {
            if let LogEntry::Branch { from, to } = entry {
                branches.count += 1;
                branches.hasher.update(&from.to_le_bytes());
                branches.hasher.update(&to.to_le_bytes());
            }
        }
        full
    }
}

/// Numbers that look random.
fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |below| {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
        (state >> 33) % below
    }
}

/// Processes, pipes, signals, timers and a terminal.
const SCRIPT: &str = "trap 'echo t' USR1; trap 'int=1; echo int' INT; read line; echo $line
    (sleep 0.03; kill -USR1 $$) & seq 1 300 | sort -n | tail -1; wait
    i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done
    echo waits; until [ $int ]; do sleep 0.01; done
    read line; echo $line; ls / | wc -l; exit 5";

/// Records [`SCRIPT`] on a terminal, where it gets input and a signal of the host late.
fn recorded(machine: &found::Machine, processors: &str) -> Result<TempDir> {
    let directory = tempfile::tempdir()?;
    let mut command = machine.command(["record", "--quiet", "--memory", MEMORY]);
    command
        .args(["--smp", processors, "-o"])
        .arg(file(&directory));
    command.args(["--", "/bin/sh", "-c", SCRIPT]);
    let pty = openpty(None, None)?;
    command.stdin(pty.slave.try_clone()?);
    command.stdout(pty.slave.try_clone()?);
    let mut child = Killed(command.spawn()?);
    let pid = Pid::from_raw(i32::try_from(child.0.id())?);
    // The end of the terminal is read when no process has it.
    drop((command, pty.slave));
    let mut terminal = File::from(pty.master);
    let mut shown = String::new();
    let mut wait_for = |terminal: &mut File, text: &str, count: usize| -> Result<()> {
        while shown.matches(text).count() < count {
            let mut piece = [0; 4096];
            let len = terminal.read(&mut piece).context("the terminal's end")?;
            shown.push_str(std::str::from_utf8(&piece[..len])?);
        }
        Ok(())
    };
    std::thread::sleep(Duration::from_millis(500));
    terminal.write_all(b"one\r")?;
    wait_for(&mut terminal, "waits", 1)?;
    kill(pid, Signal::SIGINT)?;
    wait_for(&mut terminal, "int", 1)?;
    terminal.write_all(b"two\r")?;
    // Once by the terminal's echo, and once by the script.
    wait_for(&mut terminal, "two", 2)?;
    let status = found::wait(&mut child.0, Duration::from_secs(60))?;
    ensure!(status == Some(5), "{status:?} {shown}");
    Ok(directory)
}

fn file(directory: &TempDir) -> std::path::PathBuf {
    directory.path().join("run.vbts")
}

/// Compares a machine that goes to times in any order with one that runs to them in order.
fn revisited(machine: &found::Machine, processors: &str) -> Result<()> {
    const TIMES: usize = 10;
    let directory = recorded(machine, processors)?;
    let mut history = History::new(256 << 20);
    let mut replay = Replay::open(&file(&directory))?;
    let run = |history: &mut History, replay: &mut Replay, until| {
        let end = history.run_until(&mut replay.machine, until, &mut replay.observer);
        end.map_err(|error| anyhow!("{error}"))
    };
    ensure!(run(&mut history, &mut replay, u64::MAX)?.is_some());
    replay.compare_end()?;
    let (end, _) = history.end().context("no end")?;
    let last = replay.picture()?;
    ensure!(
        history.times().len() > 3,
        "{} snapshots",
        history.times().len()
    );

    let mut number = numbers(11);
    let mut times: Vec<u64> = (0..TIMES).map(|_| number(end)).collect();
    times.sort_unstable();
    let mut straight = Replay::open(&file(&directory))?;
    let mut expected = Vec::new();
    for time in &times {
        straight.run_until(*time)?;
        expected.push((*time, straight.picture()?));
    }
    for _ in 0..2 * TIMES {
        let (time, picture) = &expected[number(TIMES as u64) as usize];
        let sought = history.seek(&mut replay.machine, *time, &mut replay.observer);
        sought.map_err(|error| anyhow!("{error}"))?;
        let found = replay.picture()?;
        ensure!(found == *picture, "{found:?}\ninstead of\n{picture:?}");
    }
    ensure!(run(&mut history, &mut replay, u64::MAX)?.is_some());
    replay.compare_end()?;
    let found = replay.picture()?;
    ensure!(found == last, "{found:?}\ninstead of\n{last:?}");
    Ok(())
}

/// Compares a replay that pauses at many odd times with one that does not, and their branches.
fn paused(machine: &found::Machine, processors: &str) -> Result<()> {
    let directory = recorded(machine, processors)?;
    let run = |pauses: bool| {
        let mut replay = Replay::open(&file(&directory))?;
        let branches = Shared::<Branches>::default();
        let sink = Box::new(Counter(branches.clone()));
        let log = BranchLog::new(LogScope::all(), Vec::new(), sink);
        replay.machine.record_in(Box::new(log));
        let (mut number, mut count) = (numbers(5), 0);
        loop {
            // Many close to each other, and few in a boot.
            let step = if number(4) == 0 { 400_000 } else { 3_000 };
            let until = replay.machine.now() + 1 + number(step);
            let until = if pauses { until } else { u64::MAX };
            count += 1;
            if replay.run_until(until)?.is_some() {
                break;
            }
        }
        replay.machine.end_recording();
        replay.compare_end()?;
        let branches = lock(&branches).clone();
        let branches = (branches.count, branches.hasher.finalize());
        anyhow::Ok((replay.picture()?, branches, count))
    };
    let (expected, expected_branches, _) = run(false)?;
    let (found, branches, count) = run(true)?;
    ensure!(count > 2000, "{count} pauses");
    ensure!(found == expected, "{found:?}\ninstead of\n{expected:?}");
    ensure!(
        branches == expected_branches && branches.0 > 1_000_000,
        "{branches:?} instead of {expected_branches:?}"
    );
    Ok(())
}
