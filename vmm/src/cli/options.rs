//! Options of the machine, which every command that starts a guest takes.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use vbts_devices::virtio::net::MacAddress;

use crate::accel::{self, Accel, Choice, ThisHost};
use crate::exit::Failure;
use crate::kvm::device;
use crate::memory::Size;

/// What executes the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Accelerator {
    /// The best that this host offers
    Auto,
    /// The host's KVM
    Kvm,
    /// The software CPU
    Soft,
}

/// Who implements the Branch Trace Store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BtsMode {
    /// `passthrough` if the host can, else `emulate`
    Auto,
    /// vbts
    Emulate,
    /// The host's processor
    Passthrough,
    /// Nobody: the guest's processor has none
    Off,
}

/// Host time in which the software CPU is measured, if that decides.
const MEASURE: Duration = Duration::from_millis(5);

/// Machine options.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Machine options")]
pub struct MachineArgs {
    /// What executes the guest's instructions
    #[arg(long, value_enum, value_name = "ACCEL", default_value = "auto")]
    pub accel: Accelerator,
    /// With --accel kvm: take a KVM that has failed its checks
    #[arg(long)]
    pub kvm_unchecked: bool,
    /// Who implements the Branch Trace Store
    #[arg(long, value_enum, value_name = "MODE", default_value = "auto")]
    pub bts: BtsMode,
    /// Processor model: core2, x86-64-v2 or nehalem
    #[arg(long, value_name = "MODEL", default_value = vbts_cpu::MODELS[0])]
    pub cpu: String,
    /// Guest memory, in bytes or with a suffix K, M, G or T
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    pub memory: Size,
    /// Number of processors
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub smp: u32,
    /// End the guest after so many seconds of the host's time (fractions are allowed)
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub timeout: Option<Seconds>,
    /// What vbts reports about itself on standard error
    #[arg(long, value_enum, value_name = "LEVEL", default_value = "warn")]
    pub log: LogLevel,
    /// Also write what the guest prints on its serial console to FILE
    #[arg(long, value_name = "FILE")]
    pub console: Option<PathBuf>,
    /// Directory of the host that is the guest's root
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Show DIR of the host at the same place in the guest, read-only, or writable with :rw
    #[arg(long, value_name = "DIR[:rw]")]
    pub share: Vec<ShareArg>,
    /// Do not confine vbts to the system calls that it needs while the guest runs (for debugging
    /// vbts)
    #[arg(long)]
    pub no_sandbox: bool,
}

/// Levels of `--log`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// Nothing
    Off,
    /// Errors
    Error,
    /// And warnings
    Warn,
    /// And what was chosen
    Info,
    /// And what happens
    Debug,
    /// And every exit of the processor
    Trace,
}

/// A number of seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Seconds(pub Duration);

impl FromStr for Seconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse::<f64>()
            .ok()
            .filter(|seconds| *seconds > 0.0)
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            .map(Self)
            .ok_or_else(|| "write a positive number of seconds".into())
    }
}

/// A directory that the guest shares with the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareArg {
    /// On the host.
    pub directory: PathBuf,
    /// The guest may write.
    pub writable: bool,
}

impl FromStr for ShareArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (directory, writable) = match text.strip_suffix(":rw") {
            Some(directory) => (directory, true),
            None => (text.strip_suffix(":ro").unwrap_or(text), false),
        };
        if directory.is_empty() {
            return Err("write a directory, optionally followed by :rw".into());
        }
        Ok(Self {
            directory: directory.into(),
            writable,
        })
    }
}

/// A disk of the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskArg {
    /// On the host.
    pub file: PathBuf,
    /// The guest may write.
    pub writable: bool,
}

impl FromStr for DiskArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (file, writable) = match text.strip_suffix(",ro") {
            Some(file) => (file, false),
            None => (text, true),
        };
        if file.is_empty() {
            return Err("write a file, optionally followed by ,ro".into());
        }
        Ok(Self {
            file: file.into(),
            writable,
        })
    }
}

/// A network of the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetArg {
    /// Name of the host's TAP device.
    pub tap: String,
    /// The guest's address.
    pub address: MacAddress,
}

impl FromStr for NetArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mut tap, mut address) = (None, None);
        for part in text.split(',') {
            match part.split_once('=') {
                Some(("tap", name)) if !name.is_empty() && tap.is_none() => tap = Some(name),
                Some(("mac", value)) if address.is_none() => address = Some(value.parse()?),
                _ => return Err("write tap=NAME, optionally followed by ,mac=ADDRESS".into()),
            }
        }
        let tap = tap.ok_or("write tap=NAME, the name of a TAP device")?;
        Ok(Self {
            tap: tap.into(),
            address: address.unwrap_or_else(|| MacAddress::of_name(tap)),
        })
    }
}

/// Where a guest's random numbers come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Rng {
    /// `fixed` on the software CPU, whose runs are all the same, `host` on KVM
    Auto,
    /// A generator that gives the same numbers on every run: for no secret
    Fixed,
    /// The host
    Host,
}

impl MachineArgs {
    /// Starts reporting to standard error at the chosen level.
    pub fn start_logging(&self) {
        use tracing_subscriber::filter::LevelFilter;
        let level = match self.log {
            LogLevel::Off => LevelFilter::OFF,
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
            LogLevel::Trace => LevelFilter::TRACE,
        };
        // A second call (in tests) keeps the first subscriber.
        let _ = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_writer(std::io::stderr)
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .without_time()
            .with_target(false)
            .try_init();
    }

    /// The same options for the command line of another `vbts`, on the accelerator `accel`. Not the
    /// time limit and the console, which are this one's.
    pub fn arguments(&self, accel: Accel) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = Vec::new();
        let mut add = |name: &str, value: OsString| arguments.extend([name.into(), value]);
        add("--accel", accel.to_string().into());
        add("--bts", name_of(self.bts).into());
        add("--cpu", (&self.cpu).into());
        add("--memory", self.memory.to_string().into());
        add("--smp", self.smp.to_string().into());
        add("--log", name_of(self.log).into());
        if let Some(root) = &self.root {
            add("--root", root.into());
        }
        for share in &self.share {
            let mut value = share.directory.clone().into_os_string();
            value.push(if share.writable { ":rw" } else { ":ro" });
            add("--share", value);
        }
        for (name, given) in [
            ("--kvm-unchecked", self.kvm_unchecked),
            ("--no-sandbox", self.no_sandbox),
        ] {
            if given {
                arguments.push(name.into());
            }
        }
        arguments
    }

    /// Refuses what no machine of this build on this host can be, and returns the processor model,
    /// and what executes the guest.
    ///
    /// # Errors
    /// [`Failure::Host`] for what this host cannot do, [`Failure::Error`] for the rest.
    pub fn check(&self) -> Result<(&'static vbts_cpu::Model, Choice), Failure> {
        let most = crate::layout::MAX_PROCESSORS;
        if !(1..=most.into()).contains(&self.smp) {
            let n = self.smp;
            return Err(anyhow::anyhow!("--smp {n}: a machine has 1 to {most} processors").into());
        }
        let find = if self.bts == BtsMode::Off {
            vbts_cpu::model_without_bts
        } else {
            vbts_cpu::model
        };
        let model = find(&self.cpu).ok_or_else(|| {
            let known = vbts_cpu::MODELS.join(", ");
            anyhow::anyhow!("--cpu {}: unknown model; the models are: {known}", self.cpu)
        })?;
        if let Some(what) = model.unsupported() {
            return Err(Failure::Host(format!(
                "--cpu {}: the software CPU has the host's processor compute for it, and that has no {what}",
                self.cpu
            )));
        }
        let mut host = ThisHost::new(Path::new(device::DEVICE), MEASURE);
        let lacks = model.missing_on_host();
        let choice = accel::choose(self.accel, self.bts, self.kvm_unchecked, &lacks, &mut host)?;
        tracing::info!("accelerator: {} ({})", choice.accel, choice.why);
        Ok((model, choice))
    }
}

/// How a value is written on the command line.
fn name_of(value: impl ValueEnum) -> String {
    value
        .to_possible_value()
        .map_or_else(String::new, |value| value.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_can_be_passed_on() {
        #[derive(Debug, clap::Parser)]
        struct Line {
            #[command(flatten)]
            machine: MachineArgs,
        }
        let parse = |words: &[OsString]| {
            let words = std::iter::once(OsString::from("x")).chain(words.iter().cloned());
            <Line as clap::Parser>::try_parse_from(words)
                .unwrap()
                .machine
        };
        for words in [
            &[][..],
            &[
                "--bts", "off", "--memory", "1G", "--smp", "4", "--log", "off",
            ],
            &["--root", "/a b", "--share", "/c:rw", "--share", "/d:e"],
            &[
                "--kvm-unchecked",
                "--no-sandbox",
                "--timeout",
                "3",
                "--console",
                "f",
            ],
        ] {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            let first = parse(&words);
            let second = parse(&first.arguments(Accel::Soft));
            let expected = MachineArgs {
                accel: Accelerator::Soft,
                timeout: None,
                console: None,
                ..first
            };
            assert_eq!(format!("{second:?}"), format!("{expected:?}"));
        }
    }

    #[test]
    fn networks_have_a_tap_device_and_an_address() {
        let net = |text: &str| {
            text.parse::<NetArg>()
                .map(|net| (net.tap, net.address.to_string()))
        };
        let address = MacAddress::of_name("tap0").to_string();
        assert_eq!(net("tap=tap0"), Ok(("tap0".into(), address)));
        for text in ["tap=t,mac=52:54:00:12:34:56", "mac=52:54:00:12:34:56,tap=t"] {
            let expected = ("t".into(), "52:54:00:12:34:56".into());
            assert_eq!(net(text), Ok(expected));
        }
        for bad in [
            "",
            "tap0",
            "tap=",
            "tap=a,tap=b",
            "mac=52:54:00:12:34:56",
            "tap=a,mac=1",
            "tap=a,mac=ff:ff:ff:ff:ff:ff",
            "tap=a,x=y",
            "tap=a,",
            "user",
        ] {
            assert!(net(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn seconds_are_positive() {
        assert_eq!("1.5".parse(), Ok(Seconds(Duration::from_millis(1500))));
        for bad in ["0", "-1", "nan", "inf", "1e400", "x", ""] {
            assert!(bad.parse::<Seconds>().is_err(), "{bad}");
        }
    }

    #[test]
    fn shares_are_read_only_unless_told_otherwise() {
        let share = |text: &str| text.parse::<ShareArg>().map(|s| (s.directory, s.writable));
        assert_eq!(share("/a/b"), Ok(("/a/b".into(), false)));
        assert_eq!(share("/a/b:rw"), Ok(("/a/b".into(), true)));
        assert_eq!(share("a:b:ro"), Ok(("a:b".into(), false)));
        assert!(share(":rw").is_err());
        assert!(share("").is_err());
    }
}
