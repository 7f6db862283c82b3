//! `vbts test`: runs the regression suite of the ptrace BTS requests in guests, or the kernel's own
//! tests.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use clap::Args;

use super::file_uses::FileUses;
use super::options::{self, MachineArgs, values};
use crate::accel;
use crate::boot;
use crate::config::{DEFAULT_MODEL, MachineConfig};
use crate::exit::{Failure, say};
use crate::guest_files::{self, Api};
use crate::host::{Alarm, Event, Output};
use crate::kernel_tree::{self, Purpose};
use crate::suite::guest::Settings;
use crate::suite::report::{ReportFormat, Reports};
use crate::suite::run::{Offer, Runner};
use crate::suite::source::Source;
use crate::suite::{self, Case};

/// File of the console without `--console`.
const CONSOLE: &str = "vbts-test-console.log";

const AFTER_HELP: &str = "\
The console of all guests is kept in vbts-test-console.log, beside --output or in the working
directory, unless --console names another file. --timeout is for the whole run.

Exit status:
  0    every case passed, or was skipped because it does not apply
  1    a case failed; a case that crashes or hangs its guest has failed
  124  --timeout was reached
  125  bad usage, a kernel without the API, or an error of vbts itself
  126  this host cannot do what was asked for
  255  the kernel panicked or crashed before the first case";

/// Arguments of `vbts test`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct TestArgs {
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
    #[arg(long, value_enum, help_heading = "Test options")]
    pub api: Option<Api>,
    /// Run only cases whose name or group matches the shell pattern GLOB; may be given several
    /// times
    #[arg(long, value_name = "GLOB", help_heading = "Test options")]
    pub filter: Vec<String>,
    /// Format of the report
    #[arg(
        long,
        value_enum,
        default_value = "ktap",
        help_heading = "Test options"
    )]
    pub report: ReportFormat,
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
    }
}

/// Runs the command.
///
/// # Errors
/// See [`Failure`].
pub fn main(args: &TestArgs) -> Result<u8, Failure> {
    let began = Instant::now();
    let mut machine = args.machine.config(DEFAULT_MODEL);
    options::start_logging(machine.log);
    let (_, choice) = accel::resolve(&machine)?;
    let log_path = console_path(args);
    let mut uses = FileUses::default();
    let mut read_suite = || -> Result<PathBuf, Failure> {
        let program = guest_files::suite()?;
        uses.reads("the program of the suite", &program);
        Ok(program)
    };
    let purpose = purpose(args);
    let mut cases = Vec::new();
    if purpose == Purpose::Requests {
        cases = suite::select(suite::list(&guest_files::suite()?)?, &args.filter)?;
        if args.list {
            let of_api = |case: &&Case| args.api.is_none_or(|api| case.api == api);
            return list(cases.iter().filter(of_api));
        }
    }
    let kernels = kernels(args, purpose)?;
    let source = match purpose {
        Purpose::Requests => Source::Requests(boot::read_file(&read_suite()?)?),
        Purpose::Kunit => Source::Kunit,
        Purpose::Kselftest(targets) => {
            machine.root.get_or_insert_with(|| "/".into());
            kselftests(args, targets, &read_suite()?)?
        }
    };
    for kernel in &kernels {
        uses.reads("--kernel", kernel);
    }
    uses.writes("--console", &log_path);
    if let Some(path) = report_path(args) {
        uses.writes("--output", path);
    }
    uses.check()?;
    let settings = Settings {
        machine: MachineConfig {
            accelerator: choice.accel.into(),
            // The limit and the console file are for the whole run.
            time_limit: None,
            console: None,
            ..machine
        },
        kernel: PathBuf::new(),
        append: args.append.clone(),
        limit: args.case_timeout,
    };
    let alarm = Arc::new(Alarm::new(Arc::default(), args.machine.timeout)?);
    alarm.start_timer()?;
    let log = Output::create(&log_path)
        .context("--console")?
        .interruptible(alarm.clone());
    let mut runner = Runner::new(source, settings, alarm.clone(), log);
    if args.list {
        return list_of_kernels(args, &kernels, &mut runner);
    }
    let mut reports = reports(args, &alarm)?;

    let outcome = run(args, &kernels, &cases, &mut runner, &mut reports);
    let bad = match &outcome {
        Ok(event) => {
            summarise(&reports, began.elapsed(), &choice.accel.to_string());
            event.is_some() || !reports.is_good()
        }
        Err(_) => true,
    };
    if bad {
        say(format_args!("console log: {}", log_path.display()));
    }
    match outcome? {
        Some(event) => Err(runner.failure_of(event)),
        None => Ok(u8::from(bad)),
    }
}

/// The kernels to test. One of `--build` is for `purpose`.
fn kernels(args: &TestArgs, purpose: Purpose<'_>) -> Result<Vec<PathBuf>, Failure> {
    let mut kernels = Vec::new();
    for path in &args.kernel {
        let kernel = guest_files::kernel(Some(path), Api::New)?;
        if kernels.contains(&kernel) {
            return Err(anyhow!("--kernel {}: named twice", kernel.display()).into());
        }
        kernels.push(kernel);
    }
    let tree = Path::new(".");
    if let Some(directory) = &args.build {
        let built = kernel_tree::build(tree, directory, purpose)?;
        say(format_args!(
            "built {} ({})",
            built.path.display(),
            built.release
        ));
        kernels.push(built.path);
    }
    if kernels.is_empty()
        && args.api.is_none()
        && !guest_files::has_default_kernel_variable()
        && let Some(found) = kernel_tree::find(tree)?
    {
        say(format_args!(
            "testing ./vmlinux of this kernel tree ({})",
            found.release
        ));
        kernels.push(found.path);
    }
    if kernels.is_empty() {
        kernels.push(guest_files::kernel(None, args.api.unwrap_or(Api::New))?);
    }
    Ok(kernels)
}

/// What to run.
fn purpose(args: &TestArgs) -> Purpose<'_> {
    if args.kunit {
        Purpose::Kunit
    } else if args.kselftest.is_empty() {
        Purpose::Requests
    } else {
        Purpose::Kselftest(&args.kselftest)
    }
}

/// Builds `targets` of the kernel's selftests. `program` is that of the suite.
fn kselftests(args: &TestArgs, targets: &[String], program: &Path) -> Result<Source, Failure> {
    let output = args.build.as_deref().context("--kselftest needs --build")?;
    let (directory, names) = kernel_tree::install_selftests(Path::new("."), output, targets)?;
    say(format_args!(
        "installed {} tests in {}",
        names.len(),
        directory.display()
    ));
    Ok(Source::Kselftest {
        program: boot::read_file(program)?,
        directory,
        cases: names.into_iter().map(Case::of_the_kernel).collect(),
    })
}

/// Runs those of `cases` that test a kernel's generation of the API, on each of `kernels`. Returns
/// the event that has ended the run early.
fn run(
    args: &TestArgs,
    kernels: &[PathBuf],
    cases: &[Case],
    runner: &mut Runner,
    reports: &mut Reports,
) -> Result<Option<Event>, Failure> {
    let mut tested = Vec::new();
    for kernel in kernels {
        runner.select_kernel(kernel)?;
        match runner.probe()? {
            Offer::Api(api) => tested.push((kernel, of_api(cases, api, args, kernel)?)),
            Offer::Cases(cases) => tested.push((kernel, suite::select(cases, &args.filter)?)),
            Offer::Nothing(why) => {
                reports.skip_all(&why)?;
                return Err(nothing(args, kernel, &why));
            }
        }
    }
    let groups = tested
        .iter()
        .map(|(_, cases)| suite::run::groups(cases).count());
    reports.begin(groups.sum())?;
    let mut event = None;
    for (kernel, cases) in &tested {
        if tested.len() > 1 {
            runner.select_kernel(kernel)?;
            reports.kernel(&kernel.display().to_string());
        }
        event = runner.run(cases, event, reports)?;
    }
    reports.end()?;
    Ok(event)
}

fn list<'a>(cases: impl Iterator<Item = &'a Case>) -> Result<u8, Failure> {
    let text: String = cases.flat_map(|case| [&case.name, "\n"]).collect();
    Output::stdout()
        .and_then(|mut stdout| stdout.write(text.as_bytes()))
        .map_err(crate::host::OutputError::into_failure)?;
    Ok(0)
}

/// Lists the cases that the kernels have themselves, each once.
fn list_of_kernels(
    args: &TestArgs,
    kernels: &[PathBuf],
    runner: &mut Runner,
) -> Result<u8, Failure> {
    let mut all: Vec<Case> = Vec::new();
    for kernel in kernels {
        runner.select_kernel(kernel)?;
        match runner.probe()? {
            Offer::Cases(cases) => {
                let new = cases.into_iter().filter(|case| !all.contains(case));
                all.extend(new.collect::<Vec<_>>());
            }
            Offer::Api(_) => {}
            Offer::Nothing(why) => return Err(nothing(args, kernel, &why)),
        }
    }
    list(suite::select(all, &args.filter)?.iter())
}

/// Returns those of `cases` that test `api`, the kernel's generation of the API.
fn of_api(cases: &[Case], api: Api, args: &TestArgs, kernel: &Path) -> Result<Vec<Case>, Failure> {
    if let Some(wanted) = args.api
        && wanted != api
    {
        return Err(anyhow!(
            "--api {wanted}: {} has the API of '{api}'",
            kernel.display()
        )
        .into());
    }
    let of_api = cases.iter().filter(|case| case.api == api);
    let cases: Vec<Case> = of_api.cloned().collect();
    if cases.is_empty() {
        let filter = args.filter.join(" ");
        return Err(anyhow!(
            "--filter {filter}: no such case tests the API of {}, which is '{api}'",
            kernel.display()
        )
        .into());
    }
    Ok(cases)
}

/// The failure of a test of a kernel that can run no case, with advice.
fn nothing(args: &TestArgs, kernel: &Path, why: &str) -> Failure {
    let kernel = kernel.display();
    if args.kunit {
        anyhow!(
            "{kernel}: no case was run, because this kernel has no KUnit: it needs CONFIG_KUNIT=y and \
             tests that are built in, such as CONFIG_LIST_KUNIT_TEST=y ({why})"
        )
    } else if why.contains("not supported") || why.contains("No such device") {
        anyhow!(
            "{kernel}: no case was run, because the kernel finds no Branch Trace Store in this \
             machine"
        )
    } else {
        anyhow!(
            "{kernel}: no case was run, because this kernel has no PTRACE_BTS requests: it needs the \
             patches of guest-kernel/patches and CONFIG_X86_PTRACE_BTS=y (guest-kernel/build --source \
             DIR applies and builds them)"
        )
    }
    .into()
}

fn console_path(args: &TestArgs) -> PathBuf {
    match (&args.machine.console, &args.output) {
        (Some(console), _) => console.clone(),
        (None, Some(output)) => output.with_file_name(CONSOLE),
        (None, None) => CONSOLE.into(),
    }
}

/// The file of `--output`; `None` if that is standard output.
fn report_path(args: &TestArgs) -> Option<&Path> {
    let output = args.output.as_deref();
    output.filter(|path| *path != Path::new("-"))
}

fn reports(args: &TestArgs, alarm: &Arc<Alarm>) -> Result<Reports, Failure> {
    let stdout = Output::stdout()?.interruptible(alarm.clone());
    Ok(Reports::new(match report_path(args) {
        None => vec![(stdout, args.report)],
        Some(path) => {
            let file = Output::create(path).context("--output")?;
            vec![
                (stdout, ReportFormat::Ktap),
                (file.interruptible(alarm.clone()), args.report),
            ]
        }
    }))
}

fn summarise(reports: &Reports, took: Duration, accel: &str) {
    if !reports.failed().is_empty() {
        say(format_args!("failed: {}", reports.failed().join(", ")));
    }
    for error in reports.errors() {
        say(error);
    }
    let comparison = reports.comparison();
    if comparison.kernels() > 1 {
        let differences = comparison.differences();
        differences.iter().for_each(say);
        say(match differences.len() {
            0 => "all cases have the same outcome on all kernels".to_owned(),
            1 => "1 case differs between the kernels".to_owned(),
            n => format!("{n} cases differ between the kernels"),
        });
    }
    say(format_args!(
        "{} ({:.1} s, {accel})",
        reports.counts(),
        took.as_secs_f64()
    ));
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn args(words: &[&str]) -> TestArgs {
        let words = ["vbts", "test"].iter().chain(words);
        match super::super::Cli::try_parse_from(words).unwrap().command {
            super::super::Command::Test(args) => args,
            other => panic!("{other:?}"),
        }
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
            assert_eq!(console_path(&args(words)), Path::new(path), "{words:?}");
        }
    }

    #[test]
    fn a_kernel_of_another_generation_is_refused() {
        let cases = vec![suite::tests::case("a.b")];
        let of = |words: &[&str], api| {
            of_api(&cases, api, &args(words), Path::new("vmlinux"))
                .map_err(|failure| failure.to_string())
        };
        assert_eq!(of(&[], Api::New).unwrap().len(), 1);
        let error = of(&["--api", "2007-11"], Api::New).unwrap_err();
        assert!(
            error.contains("--api 2007-11: vmlinux has the API of 'new'"),
            "{error}"
        );
        let error = of(&["--filter", "a.b"], Api::December2007).unwrap_err();
        assert!(error.contains("--filter a.b"), "{error}");
    }
}
