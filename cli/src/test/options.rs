//! The options of `vbts test`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::config::{MergeConfig, ReportConfig, TestConfig};
use crate::options::{self, MachineArgs, is_stdout, named, values};
use vbts_guest_files::Api;
use vbts_suite::kcidb::BuildId;
use vbts_suite::kernel_tree::Purpose;
use vbts_suite::report::ReportFormat;
use vbts_suite::shard::Shard;
use vbts_vmm::config::DEFAULT_MODEL;

/// File of the console without `--console`.
const CONSOLE: &str = "vbts-test-console.log";

const AFTER_HELP: &str = "\
The console of all guests is kept in vbts-test-console.log, beside --output or in the working
directory, unless --console names another file. Without these options it is removed if no case has
failed. --timeout is for the whole run.

Exit status:
  0    every case passed, or was skipped because it does not apply
  1    a case failed; a case that crashes or hangs its guest has failed, and so has a flaky one
  124  --timeout was reached
  125  bad usage, a kernel without the API, or an error of vbts itself
  126  this host cannot do what was asked for
  255  the kernel panicked or crashed before the first case";

/// Arguments of `vbts test`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct TestArgs {
    /// Machine options.
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Kernel to test: an uncompressed vmlinux or a bzImage (default: the one of the kernel tree in
    /// the working directory, else the one that was built with vbts). Several are compared
    #[arg(long, value_name = "FILE", help_heading = "Test options")]
    pub kernel: Vec<PathBuf>,
    /// Build the kernel tree in the working directory, in DIR, and test it. DIR keeps its .config;
    /// without one it gets that of x86_64_defconfig. What the suite needs is switched on
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with = "api",
        help_heading = "Test options"
    )]
    pub build: Option<PathBuf>,
    /// Run the KUnit tests that are built into the kernel, instead of the suite. --build switches
    /// on CONFIG_KUNIT and the options in DIR/.kunitconfig
    #[arg(long, conflicts_with = "api", help_heading = "Test options")]
    pub kunit: bool,
    /// Build this target of tools/testing/selftests of the kernel tree in the working directory,
    /// and run its tests instead of the suite. The tests see the root file system of the host, or
    /// --root, and write to a temporary layer. May be given several times
    #[arg(
        long,
        value_name = "TARGET",
        requires = "build",
        conflicts_with_all = ["api", "kunit"],
        help_heading = "Test options"
    )]
    pub kselftest: Vec<String>,
    /// Generation of the API: selects the kernel of guest-kernel/build to test; --kernel FILE must
    /// have it (default: new; with --kernel, the generation of that kernel)
    #[arg(long, value_parser = named::<Api>(), help_heading = "Test options")]
    pub api: Option<Api>,
    /// Run only cases whose name or group matches the shell pattern GLOB; may be given several
    /// times
    #[arg(long, value_name = "GLOB", help_heading = "Test options")]
    pub filter: Vec<String>,
    /// Run only part I of N of the cases: those whose names' hashes, modulo N, are I-1. `auto`
    /// takes I and N from the environment of Slurm, Kubernetes or GitLab
    #[arg(
        long,
        value_name = "I/N|auto",
        value_parser = Shard::of_option,
        help_heading = "Test options"
    )]
    pub shard: Option<Shard>,
    /// Run the cases on each combination of kernels, processor models, numbers of processors and
    /// words of the command line that FILE lists, in JSON
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["kernel", "build", "kunit", "api", "cpu", "smp", "append"],
        help_heading = "Test options"
    )]
    pub matrix: Option<PathBuf>,
    /// Run nothing, and make one report of these JUnit reports of `vbts test`, with one verdict
    #[arg(
        long,
        value_name = "REPORT",
        num_args = 1..,
        conflicts_with_all = ["kernel", "build", "kunit", "api", "filter", "shard", "list", "matrix", "retries"],
        help_heading = "Test options"
    )]
    pub merge: Vec<PathBuf>,
    /// Format of the report (default: ktap; with --merge, junit)
    #[arg(long, value_parser = named::<ReportFormat>(), help_heading = "Test options")]
    pub report: Option<ReportFormat>,
    /// The ID in KernelCI's database of the build that is tested; for --report kcidb
    #[arg(
        long,
        value_name = "ORIGIN:ID",
        value_parser = BuildId::parse,
        required_if_eq("report", "kcidb"),
        help_heading = "Test options"
    )]
    pub kcidb_build: Option<BuildId>,
    /// Write the report to FILE; standard output then has KTAP, whatever the format of the report
    #[arg(long, value_name = "FILE", help_heading = "Test options")]
    pub output: Option<PathBuf>,
    /// Print the names of the cases instead of running them
    #[arg(long, help_heading = "Test options")]
    pub list: bool,
    /// Time after which a case fails (fractions are allowed)
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "120",
        allow_negative_numbers = true,
        value_parser = options::seconds,
        help_heading = "Test options"
    )]
    pub case_timeout: Duration,
    /// Run a case that fails up to N times again, each time in a guest of its own. It has failed in
    /// any case; if a later run does not fail, the reports call it flaky
    #[arg(
        long,
        value_name = "N",
        default_value = "0",
        value_parser = clap::value_parser!(u32).range(..=100),
        help_heading = "Test options"
    )]
    pub retries: u32,
    /// Words to add to the kernel's command line
    #[arg(
        long,
        value_name = "STRING",
        default_value = "",
        allow_hyphen_values = true,
        help_heading = "Test options"
    )]
    pub append: String,
}

impl TestArgs {
    /// The configuration of these options, without `--merge`.
    pub(crate) fn config(&self) -> TestConfig {
        let purpose = if self.kunit {
            Purpose::Kunit
        } else if self.kselftest.is_empty() {
            Purpose::Requests
        } else {
            Purpose::Kselftest(self.kselftest.clone())
        };
        TestConfig {
            machine: self.machine.config(DEFAULT_MODEL),
            purpose,
            kernels: self.kernel.clone(),
            build: self.build.clone(),
            matrix: self.matrix.clone(),
            append: self.append.clone(),
            api: self.api,
            filter: self.filter.clone(),
            shard: self.shard,
            list: self.list,
            case_limit: self.case_timeout,
            retries: self.retries,
            console: self.console(),
            keeps_console: self.machine.console.is_some() || self.output.is_some(),
            report: self.report(),
        }
    }

    /// The configuration of `--merge`, if that is given.
    pub(crate) fn merge(&self) -> Option<MergeConfig> {
        (!self.merge.is_empty()).then(|| MergeConfig {
            reports: self.merge.clone(),
            report: self.report(),
        })
    }

    fn report(&self) -> ReportConfig {
        ReportConfig {
            format: self.report,
            file: self.output.clone().filter(|path| !is_stdout(path)),
            build: self.kcidb_build.clone(),
        }
    }

    fn console(&self) -> PathBuf {
        match (&self.machine.console, &self.output) {
            (Some(console), _) => console.clone(),
            (None, Some(output)) => output.with_file_name(CONSOLE),
            (None, None) => CONSOLE.into(),
        }
    }
}

values! {
    Api {
        New: "new", "`PTRACE_BTS_CONFIG`, `_STATUS`, `_SIZE`, `_GET`, `_CLEAR`, `_DRAIN`";
        November2007: "2007-11", "The requests posted in November 2007";
        Man2007: "2007-man", "The requests of the manual page proposed on 30 November 2007";
        December2007: "2007-12", "The requests posted in December 2007";
    }
    ReportFormat {
        Ktap: "ktap", "Kernel Test Anything Protocol, with a subtest for each group";
        Junit: "junit", "JUnit's XML, which continuous integration systems read";
        Kcidb: "kcidb", "JSON for KCIDB, KernelCI's database of results";
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use super::*;
    use clap::Parser;

    fn args(words: &[&str]) -> TestArgs {
        let words = ["vbts", "test"].iter().chain(words);
        match crate::Cli::try_parse_from(words).unwrap().command {
            crate::Command::Test(args) => args,
            other => panic!("{other:?}"),
        }
    }

    /// The configuration of a command line.
    pub(crate) fn config(words: &[&str]) -> TestConfig {
        args(words).config()
    }

    #[test]
    fn the_console_is_always_kept() {
        for (words, path) in [
            (&[][..], "vbts-test-console.log"),
            (&["--output", "r.xml"], "vbts-test-console.log"),
            (&["--output", "-"], "vbts-test-console.log"),
            (&["--output", "out/r.xml"], "out/vbts-test-console.log"),
            (&["--output", "out/r.xml", "--console", "c"], "c"),
        ] {
            assert_eq!(args(words).config().console, Path::new(path), "{words:?}");
        }
    }
}
