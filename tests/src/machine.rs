//! Running `vbts` and looking at what it did.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::{Completion, Failed, Trial};

use crate::skips;

/// No test needs longer than this, on a slow and busy machine.
const LIMIT: Duration = Duration::from_secs(300);

/// A `vbts` binary with a guest kernel and agent.
#[derive(Clone, Debug)]
pub struct Machine {
    binary: PathBuf,
    kernel: PathBuf,
    agent: PathBuf,
    accel: String,
    jit: Option<String>,
}

/// The commands of `vbts` that make a machine.
const STARTS_MACHINE: [&str; 5] = ["record", "run", "stat", "test", "trace"];

/// What a run of `vbts` did.
#[derive(Debug)]
pub struct Run {
    /// Exit status; `None` if a signal killed it.
    pub status: Option<i32>,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: String,
}

/// The build directory that this test belongs to.
fn target_directory() -> PathBuf {
    let from_test = std::env::current_exe()
        .ok()
        // target/PROFILE/deps/TEST
        .and_then(|test| Some(test.ancestors().nth(3)?.to_owned()));
    from_test.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"))
}

/// The first of: what the environment says, a file below this test's build directory, one below the
/// workspace's.
///
/// # Errors
/// If there is none: the reason to skip a test.
pub fn find(variable: &str, below: &str) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(variable) {
        return Ok(path.into());
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    [target_directory(), workspace]
        .iter()
        .map(|directory| directory.join(below))
        .find(|path| path.exists())
        .with_context(|| {
            format!(
                "no {below} in a target directory (ci/setup builds it; {variable} names another)"
            )
        })
}

/// A file of the 32-bit guest, in the directory of an earlier API's generation if `name` has one.
///
/// # Errors
/// The test is to be skipped, because the file is missing.
pub fn find_i386(variable: &str, name: &str) -> Result<PathBuf> {
    find(variable, &format!("guest-i386/{name}")).map_err(|_| {
        let api = name.split_once('/').map(|(api, _)| format!(" --api {api}"));
        let build = format!("guest-kernel/build --arch i386{}", api.unwrap_or_default());
        Skip(format!("there is no guest-i386/{name}: {build}")).into()
    })
}

impl Machine {
    /// Finds the binary (`VBTS_BIN`), the kernel (`VBTS_KERNEL`) and the agent (`VBTS_AGENT`).
    /// `VBTS_ACCEL` selects the accelerator of [`Self::trace`]. The default is `soft`, which every
    /// host has. `VBTS_JIT` is `--jit` of each machine whose test does not say another.
    ///
    /// # Errors
    /// What is missing: the reason to skip a test.
    pub fn find() -> Result<Self> {
        Ok(Self {
            binary: find("VBTS_BIN", "release/vbts")?,
            kernel: find("VBTS_KERNEL", "guest/vmlinux")?,
            agent: find("VBTS_AGENT", "guest/agent")?,
            accel: std::env::var("VBTS_ACCEL").unwrap_or_else(|_| "soft".into()),
            jit: std::env::var("VBTS_JIT").ok(),
        })
    }

    /// This one with a 32-bit kernel and agent (`VBTS_KERNEL_I386`, `VBTS_AGENT_I386`).
    ///
    /// # Errors
    /// The test is to be skipped, because they are missing.
    pub fn i386(&self) -> Result<Self> {
        Ok(Self {
            kernel: find_i386("VBTS_KERNEL_I386", "vmlinux")?,
            agent: find_i386("VBTS_AGENT_I386", "agent")?,
            ..self.clone()
        })
    }

    /// The guest kernel.
    #[must_use]
    pub fn kernel(&self) -> &Path {
        &self.kernel
    }

    /// The agent.
    #[must_use]
    pub fn agent(&self) -> &Path {
        &self.agent
    }

    /// What [`Self::trace`] runs on.
    #[must_use]
    pub fn accel(&self) -> &str {
        &self.accel
    }

    /// The executable of `vbts`.
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// A command line of `vbts`, in a process group of its own.
    #[must_use]
    pub fn command<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(&self, arguments: I) -> Command {
        let mut command = Command::new(&self.binary);
        let mut arguments = arguments.into_iter();
        if let Some(name) = arguments.next() {
            command.arg(&name);
            if let Some(jit) = &self.jit
                && STARTS_MACHINE.iter().any(|start| name.as_ref() == *start)
            {
                // The last `--jit` counts.
                command.args(["--jit", jit]);
            }
        }
        command
            .args(arguments)
            .env("VBTS_KERNEL", &self.kernel)
            .env("VBTS_AGENT", &self.agent)
            .stdin(Stdio::null());
        command
    }

    /// Runs `vbts` to its end.
    ///
    /// # Errors
    /// If it cannot be started or does not end in time.
    pub fn run<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(&self, arguments: I) -> Result<Run> {
        finish(self.command(arguments))
    }

    /// Runs `vbts trace` with `options` on `program`; the trace goes to `output`.
    ///
    /// # Errors
    /// As [`Machine::run`].
    pub fn trace<S: AsRef<OsStr>>(
        &self,
        format: &str,
        output: &Path,
        options: &[&str],
        program: &[S],
    ) -> Result<Run> {
        let mut command = self.command([
            "trace",
            "--accel",
            &self.accel,
            "--format",
            format,
            "--output",
        ]);
        command.arg(output).args(options).arg("--").args(program);
        finish(command)
    }
}

/// The environment variables that a command sets. `vbts` finds its own files by them.
pub fn variables(command: &Command) -> impl Iterator<Item = (&OsStr, &OsStr)> {
    let variables = command.get_envs();
    variables.filter_map(|(name, value)| Some((name, value?)))
}

/// Appends `command` to `launcher`, which executes the command that its arguments end with.
pub fn append<'a>(launcher: &'a mut Command, command: &Command) -> &'a mut Command {
    launcher
        .arg(command.get_program())
        .args(command.get_args())
        .envs(variables(command))
}

/// A process that is killed at the end of its test.
#[derive(Debug)]
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a command to its end.
///
/// # Errors
/// If it cannot be started or does not end in time.
pub fn finish(command: Command) -> Result<Run> {
    finish_within(command, LIMIT)
}

/// Runs a command to its end, for which it has `limit`.
///
/// # Errors
/// If it cannot be started, or does not end in time: with what it has printed.
pub fn finish_within(mut command: Command, limit: Duration) -> Result<Run> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start {command:?}"))?;
    let stdout = drain(child.stdout.take());
    let stderr = drain(child.stderr.take());
    let status = wait(&mut child, limit);
    let collect = |reader: JoinHandle<Vec<u8>>| reader.join().unwrap_or_default();
    let (stdout, stderr) = (collect(stdout), collect(stderr));
    let stderr = String::from_utf8_lossy(&stderr).into_owned();
    Ok(Run {
        status: status.with_context(|| {
            let stdout = String::from_utf8_lossy(&stdout);
            format!("{command:?} printed:\n{stdout}{stderr}")
        })?,
        stdout,
        stderr,
    })
}

/// Waits for a child, and kills it after `limit`.
///
/// # Errors
/// If it has not ended by itself.
pub fn wait(child: &mut Child, limit: Duration) -> Result<Option<i32>> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code());
        }
        if start.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            bail!("still running after {} s", limit.as_secs());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn drain<R: Read + Send + 'static>(pipe: Option<R>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // What has arrived before an error is still worth showing.
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

impl Run {
    /// Checks the exit status.
    ///
    /// # Errors
    /// If it is another; the message has what was printed.
    pub fn expect(self, status: i32) -> Result<Self> {
        ensure!(
            self.status == Some(status),
            "exit status {:?} instead of {status}\n--- stdout\n{}\n--- stderr\n{}",
            self.status,
            String::from_utf8_lossy(&self.stdout),
            self.stderr
        );
        Ok(self)
    }

    /// What was printed, on both outputs.
    #[must_use]
    pub fn printed(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned() + &self.stderr
    }
}

/// The value of an environment variable, if it is set.
///
/// # Errors
/// If it cannot be parsed.
pub fn setting<T>(name: &str) -> Result<Option<T>>
where
    T: FromStr,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    let Ok(text) = std::env::var(name) else {
        return Ok(None);
    };
    let value = text.parse().with_context(|| format!("{name}={text}"))?;
    Ok(Some(value))
}

/// What a test cannot do without and has not got: with this error it is reported as ignored.
#[derive(Debug)]
pub struct Skip(pub String);

impl Skip {
    /// The error of a test that lacks a program: a skip, or a failure if `VBTS_REQUIRE_PROGRAMS`
    /// asks for all programs.
    pub fn program(why: String) -> anyhow::Error {
        if std::env::var_os("VBTS_REQUIRE_PROGRAMS").is_some() {
            return anyhow::Error::msg(why);
        }
        Self(why).into()
    }
}

impl std::fmt::Display for Skip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skip {}

/// Named tests of a module that need a [`Machine`]. Without one they are reported as ignored, with
/// the reason, or fail (see [`skips`]).
#[must_use]
pub fn trials(module: &str, tests: Vec<(String, Test)>) -> Vec<Trial> {
    tests
        .into_iter()
        .map(|(name, test)| {
            let name = format!("{module}::{name}");
            Trial::ignorable_test(name.clone(), move || match Machine::find() {
                Ok(machine) => match test(&machine) {
                    Ok(()) => Ok(Completion::Completed),
                    Err(error) if error.is::<Skip>() => {
                        println!("skipped: {error}");
                        Ok(skips::ignored(&name, &error.to_string()))
                    }
                    Err(error) => Err(Failed::from(format!("{error:#}"))),
                },
                Err(reason) => skips::without_machine(&name, &format!("{reason:#}")),
            })
        })
        .collect()
}

/// The tests of a module, which registers them with `inventory::submit!`.
#[derive(Debug, Clone, Copy)]
pub struct TestModule {
    /// As `module_path!` has it.
    path: &'static str,
    trials: fn(&str) -> Vec<Trial>,
}

inventory::collect!(TestModule);

impl TestModule {
    /// The tests that `trials` returns for the name of the module at `path`, a `module_path!`.
    #[must_use]
    pub const fn new(path: &'static str, trials: fn(&str) -> Vec<Trial>) -> Self {
        Self { path, trials }
    }

    /// The name of the module, with which the names of its tests begin: its path without the crate.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.path
            .split_once("::")
            .map_or(self.path, |(_, name)| name)
    }

    /// The tests.
    #[must_use]
    pub fn trials(&self) -> Vec<Trial> {
        (self.trials)(self.name())
    }
}

/// A test of the whole system.
pub type Test = Box<dyn Fn(&Machine) -> Result<()> + Send>;

/// A test that needs nothing but a machine.
pub type TestFunction = fn(&Machine) -> Result<()>;

/// [`trials`] for tests that are functions.
#[must_use]
pub fn trials_of(module: &str, tests: &[(&str, TestFunction)]) -> Vec<Trial> {
    let boxed = tests
        .iter()
        .map(|&(name, test)| (name.to_owned(), Box::new(test) as Test));
    trials(module, boxed.collect())
}
