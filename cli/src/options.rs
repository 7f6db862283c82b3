//! The machine options, which every command that starts a guest accepts, and their conversion to a
//! configuration.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use vbts_cpu::NativeOptions;
use vbts_devices::virtio::net::MacAddress;

use vbts_vmm::config::{
    Accelerator, BtsMode, ClockSource, DEFAULT_MEMORY, DiskConfig, JitMode, LogLevel,
    MachineConfig, NetworkConfig, RandomSource, SandboxMode, ShareConfig, trace_model,
};
use vbts_vmm::memory::Size;

/// The end of the help texts of commands that start a guest.
pub(crate) const EXIT_STATUS: &str = "\
Exit status:
  that of the guest's command, or 128+n if signal n killed it; also
  124  --timeout was reached
  125  bad usage, or an error of vbts itself
  126  this host cannot do what was asked for, or vbts trace cannot execute the program
  127  vbts trace has not found the program
  255  the guest panicked, crashed, or halted without a wake-up source
If the guest's command itself ends with one of these, a line on standard error says so.";

/// Machine options.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Machine options")]
pub(crate) struct MachineArgs {
    /// What executes the guest's instructions
    #[arg(long, value_parser = named::<Accelerator>(), value_name = "ACCEL", default_value = default_of::<Accelerator>())]
    pub accel: Accelerator,
    /// With --accel kvm: use a KVM that has failed its checks
    #[arg(long)]
    pub kvm_unchecked: bool,
    /// What implements the Branch Trace Store
    #[arg(long, value_parser = named::<BtsMode>(), value_name = "MODE", default_value = default_of::<BtsMode>())]
    pub bts: BtsMode,
    /// The guest's clock
    #[arg(long, value_parser = named::<ClockSource>(), value_name = "CLOCK", default_value = default_of::<ClockSource>())]
    pub clock: ClockSource,
    /// Whether the software CPU makes native code of what runs often
    #[arg(long, value_parser = named::<JitMode>(), value_name = "MODE", default_value = default_of::<JitMode>(), overrides_with = "jit")]
    pub jit: JitMode,
    /// Runs of a block of code after which it becomes native code
    #[arg(long, hide = true, value_name = "N", default_value_t = NativeOptions::default().threshold)]
    pub jit_threshold: u32,
    /// Name native code for perf in /tmp/perf-PID.map
    #[arg(long)]
    pub perf_map: bool,
    /// Processor model: pentium-m, pentium4, pentium4-64, core2, conroe, x86-64-v2,
    /// x86-64-v3-basic, x86-64-v3, nehalem, haswell, skylake or max (default: core2; for trace
    /// x86-64-v3, or x86-64-v2 if the host does not have all of it)
    #[arg(long, value_name = "MODEL")]
    pub cpu: Option<String>,
    /// Guest memory, in bytes or with a suffix K, M, G or T
    #[arg(long, value_name = "SIZE", default_value_t = DEFAULT_MEMORY)]
    pub memory: Size,
    /// Number of processors
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub smp: u32,
    /// End the guest after this much host time (fractions are allowed)
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds)]
    pub timeout: Option<Duration>,
    /// What vbts reports about itself on standard error
    #[arg(long, value_parser = named::<LogLevel>(), value_name = "LEVEL", default_value = default_of::<LogLevel>())]
    pub log: LogLevel,
    /// Also write what the guest prints on its serial console to FILE
    #[arg(long, value_name = "FILE")]
    pub console: Option<PathBuf>,
    /// Directory of the host that is the guest's root
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Show DIR of the host at the same place in the guest, read-only, or writable with :rw
    #[arg(long, value_name = "DIR[:rw]", value_parser = share)]
    pub share: Vec<ShareConfig>,
    /// How to confine vbts while the guest runs
    #[arg(long, value_parser = named::<SandboxMode>(), value_name = "MODE", default_value = default_of::<SandboxMode>())]
    pub sandbox: SandboxMode,
}

impl MachineArgs {
    /// The machine in which a program of the host is traced: its root is the host's, unless
    /// `--root` names another one.
    pub(crate) fn config_of_trace(&self) -> MachineConfig {
        let mut machine = self.config(trace_model());
        machine.root.get_or_insert_with(|| "/".into());
        machine
    }

    /// The configuration of these options. The processor is `default_model` unless `--cpu` names
    /// another one.
    pub(crate) fn config(&self, default_model: &str) -> MachineConfig {
        MachineConfig {
            accelerator: self.accel,
            kvm_unchecked: self.kvm_unchecked,
            bts: self.bts,
            clock: self.clock,
            jit: self.jit,
            jit_threshold: self.jit_threshold,
            perf_map: self.perf_map,
            model: self.cpu.as_deref().unwrap_or(default_model).to_owned(),
            memory: self.memory,
            processors: self.smp,
            time_limit: self.timeout,
            console: self.console.clone(),
            root: self.root.clone(),
            shares: self.share.clone(),
            disks: Vec::new(),
            networks: Vec::new(),
            random: RandomSource::Auto,
            start_date: None,
            sandbox: self.sandbox,
            log: self.log,
        }
    }
}

/// A type whose values are chosen by name.
pub(crate) trait Named: Clone + Send + Sync + 'static {
    /// All values in the order of the help, with their names and their help.
    const ALL: &'static [(Self, &'static str, &'static str)];
}

/// The parser of an option whose value is a `T`.
pub(crate) fn named<T: Named>() -> impl TypedValueParser<Value = T> {
    one_of(T::ALL.to_vec())
}

/// Whether the name of an output says that it is a btrace file.
pub(crate) fn is_btrace(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension == "btrace")
}

/// Returns whether an option's output is standard output.
pub(crate) fn is_stdout(path: &Path) -> bool {
    path == "-"
}

/// The parser of an option that has one of these values, each with its name and its help.
pub(crate) fn one_of<T: Clone + Send + Sync + 'static>(
    values: Vec<(T, &'static str, &'static str)>,
) -> impl TypedValueParser<Value = T> {
    let names = values
        .iter()
        .map(|(_, name, help)| PossibleValue::new(*name).help(*help));
    PossibleValuesParser::new(names).try_map(move |given| {
        let found = values.iter().find(|(_, name, _)| *name == given);
        found
            .map(|(value, ..)| value.clone())
            .ok_or("is no value of this option")
    })
}

/// The name of a value.
pub(crate) fn name_of<T: Named + PartialEq>(value: &T) -> &'static str {
    let found = T::ALL.iter().find(|(other, ..)| other == value);
    found.map_or("", |(_, name, _)| name)
}

/// The name of the default value of a `T`.
pub(crate) fn default_of<T: Named + Default + PartialEq>() -> &'static str {
    name_of(&T::default())
}

/// Implements [`Named`]: the name of each value and its help.
macro_rules! values {
    ($($type:ty { $($variant:ident: $name:literal, $help:literal;)* })*) => {$(
        impl $crate::options::Named for $type {
            const ALL: &'static [(Self, &'static str, &'static str)] =
                &[$((Self::$variant, $name, $help)),*];
        }
    )*};
}
pub(super) use values;

values! {
    Accelerator {
        Auto: "auto", "KVM if it passes its checks and is faster, else the software CPU";
        Kvm: "kvm", "The host's KVM";
        Soft: "soft", "The software CPU";
    }
    BtsMode {
        Auto: "auto", "`passthrough` if the host supports it, else `emulate`";
        Emulate: "emulate", "The software CPU of vbts";
        Passthrough: "passthrough", "The host's processor";
        Off: "off", "The guest's processor has no Branch Trace Store";
    }
    ClockSource {
        Auto: "auto", "`virtual` on the software CPU, `host` on KVM";
        Virtual: "virtual", "Retired instructions: processors take turns, and two runs are the same";
        Host: "host", "The host's clock: processors run at the same time, and two runs differ";
    }
    JitMode {
        Auto: "auto", "It does if the host can execute native code; traces are the same";
        On: "on", "It does";
        Off: "off", "It interprets";
        Check: "check", "It does both and compares the results, to debug vbts (slow)";
    }
    SandboxMode {
        Auto: "auto", "To the system calls that it needs, and to the files if the host has Landlock";
        Strict: "strict", "To both; a host without Landlock runs no guest";
        Off: "off", "Not at all, to debug vbts";
    }
    LogLevel {
        Off: "off", "Nothing";
        Error: "error", "Errors";
        Warn: "warn", "Errors and warnings";
        Info: "info", "Decisions as well, such as the accelerator";
        Debug: "debug", "Events as well";
        Trace: "trace", "Every exit of the processor as well";
    }
    RandomSource {
        Auto: "auto", "`fixed` on virtual time, on which two runs are the same; `host` on the host's";
        Fixed: "fixed", "A generator with the same numbers on every run, not fit for secrets";
        Host: "host", "The host's random number generator";
    }
}

/// Parses a positive number of seconds.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    text.parse::<f64>()
        .ok()
        .filter(|seconds| *seconds > 0.0)
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| "write a positive number of seconds".into())
}

/// Parses `DIR[:rw]` or `DIR:ro`.
fn share(text: &str) -> Result<ShareConfig, String> {
    let (directory, writable) = match text.strip_suffix(":rw") {
        Some(directory) => (directory, true),
        None => (text.strip_suffix(":ro").unwrap_or(text), false),
    };
    if directory.is_empty() {
        return Err("write a directory, optionally followed by :rw".into());
    }
    Ok(ShareConfig {
        directory: directory.into(),
        writable,
    })
}

/// Parses `FILE[,ro]`.
pub(super) fn disk(text: &str) -> Result<DiskConfig, String> {
    let (file, writable) = match text.strip_suffix(",ro") {
        Some(file) => (file, false),
        None => (text, true),
    };
    if file.is_empty() {
        return Err("write a file, optionally followed by ,ro".into());
    }
    Ok(DiskConfig {
        file: file.into(),
        writable,
    })
}

/// Parses `tap=NAME[,mac=ADDRESS]`. The default address is derived from the name.
pub(super) fn network(text: &str) -> Result<NetworkConfig, String> {
    let (mut tap, mut address) = (None, None);
    for part in text.split(',') {
        match part.split_once('=') {
            Some(("tap", name)) if !name.is_empty() && tap.is_none() => tap = Some(name),
            Some(("mac", value)) if address.is_none() => address = Some(value.parse()?),
            _ => return Err("write tap=NAME, optionally followed by ,mac=ADDRESS".into()),
        }
    }
    let tap = tap.ok_or("write tap=NAME, the name of a TAP device")?;
    Ok(NetworkConfig {
        tap: tap.into(),
        address: address.unwrap_or_else(|| MacAddress::of_name(tap)),
    })
}

/// Starts reporting to standard error at `level`.
pub(crate) fn start_logging(level: LogLevel) {
    use tracing_subscriber::filter::LevelFilter;
    let level = match level {
        LogLevel::Off => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    // The error of a second call, in tests, leaves the first subscriber.
    let _ = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .without_time()
        .with_target(false)
        .try_init();
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;
    use vbts_vmm::config::DEFAULT_MODEL;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        machine: MachineArgs,
    }

    fn config(words: &[&str]) -> MachineConfig {
        let words = ["x"].iter().chain(words);
        Line::try_parse_from(words)
            .unwrap()
            .machine
            .config(DEFAULT_MODEL)
    }

    #[test]
    fn no_option_gives_the_default_configuration() {
        assert_eq!(config(&[]), MachineConfig::default());
    }

    #[test]
    fn each_option_changes_its_part_of_the_configuration() {
        let words = "--accel soft --kvm-unchecked --bts off --clock host --jit on \
                     --jit-threshold 5 --perf-map --cpu nehalem --memory 1G --smp 4 \
                     --timeout 1.5 --log off --console f --root /r --share /c:rw --share /d:e \
                     --sandbox off";
        let words: Vec<&str> = words.split_whitespace().collect();
        let share = |directory: &str, writable| ShareConfig {
            directory: directory.into(),
            writable,
        };
        assert_eq!(
            config(&words),
            MachineConfig {
                accelerator: Accelerator::Soft,
                kvm_unchecked: true,
                bts: BtsMode::Off,
                clock: ClockSource::Host,
                jit: JitMode::On,
                jit_threshold: 5,
                perf_map: true,
                model: "nehalem".into(),
                memory: Size(1 << 30),
                processors: 4,
                time_limit: Some(Duration::from_millis(1500)),
                console: Some("f".into()),
                root: Some("/r".into()),
                shares: vec![share("/c", true), share("/d:e", false)],
                sandbox: SandboxMode::Off,
                log: LogLevel::Off,
                ..MachineConfig::default()
            }
        );
    }

    #[test]
    fn the_last_jit_counts() {
        assert_eq!(config(&["--jit", "off", "--jit", "on"]).jit, JitMode::On);
    }

    #[test]
    fn the_sandbox_has_modes() {
        assert_eq!(config(&[]).sandbox, SandboxMode::Auto);
        for (name, mode) in [("off", SandboxMode::Off), ("strict", SandboxMode::Strict)] {
            assert_eq!(config(&["--sandbox", name]).sandbox, mode);
        }
    }

    #[test]
    fn networks_have_a_tap_device_and_an_address() {
        let net = |text: &str| network(text).map(|net| (net.tap, net.address.to_string()));
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
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1500)));
        for bad in ["0", "-1", "nan", "inf", "1e400", "x", ""] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn shares_are_read_only_by_default() {
        let share = |text: &str| share(text).map(|s| (s.directory, s.writable));
        assert_eq!(share("/a/b"), Ok(("/a/b".into(), false)));
        assert_eq!(share("/a/b:rw"), Ok(("/a/b".into(), true)));
        assert_eq!(share("a:b:ro"), Ok(("a:b".into(), false)));
        assert!(share(":rw").is_err());
        assert!(share("").is_err());
    }
}
