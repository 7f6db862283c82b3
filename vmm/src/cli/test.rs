//! `vbts test`: runs the regression suite of the ptrace BTS requests in guests.

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
use crate::host::{Alarm, Output};
use crate::suite::guest::Settings;
use crate::suite::report::{ReportFormat, Reports};
use crate::suite::run::{Offer, Runner};
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
    /// Kernel to test: an uncompressed vmlinux or a bzImage (default: the one that was built with
    /// vbts)
    #[arg(long, value_name = "FILE", help_heading = "Test options")]
    pub kernel: Option<PathBuf>,
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
    let machine = args.machine.config(DEFAULT_MODEL);
    options::start_logging(machine.log);
    let (_, choice) = accel::resolve(&machine)?;
    let program = guest_files::suite()?;
    if args.list {
        return list(args, &program);
    }
    let kernel = guest_files::kernel(args.kernel.as_deref(), args.api.unwrap_or(Api::New))?;
    let cases = suite::select(suite::list(&program)?, &args.filter)?;
    let log_path = console_path(args);
    let mut uses = FileUses::default();
    uses.reads("--kernel", &kernel);
    uses.reads("the program of the suite", &program);
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
        kernel: kernel.clone(),
        program: boot::read_file(&program)?,
        append: args.append.clone(),
        limit: args.case_timeout,
    };
    let alarm = Arc::new(Alarm::new(Arc::default(), args.machine.timeout)?);
    alarm.start_timer()?;
    let log = Output::create(&log_path)
        .context("--console")?
        .interruptible(alarm.clone());
    let mut reports = reports(args, &alarm)?;
    let mut runner = Runner::new(settings, alarm, log);

    let outcome = match runner.probe() {
        Ok(Offer::Api(api)) => {
            of_api(cases, api, args, &kernel).and_then(|cases| runner.run(&cases, &mut reports))
        }
        Ok(Offer::Nothing(why)) => {
            reports.skip_all(&why)?;
            return Err(no_api(&kernel, &why));
        }
        Err(failure) => Err(failure),
    };
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

fn list(args: &TestArgs, program: &Path) -> Result<u8, Failure> {
    let cases = suite::select(suite::list(program)?, &args.filter)?;
    let mut text = String::new();
    for case in cases {
        if args.api.is_none_or(|api| case.api == api) {
            text.push_str(&case.name);
            text.push('\n');
        }
    }
    Output::stdout()
        .and_then(|mut stdout| stdout.write(text.as_bytes()))
        .map_err(crate::host::OutputError::into_failure)?;
    Ok(0)
}

/// Returns those of `cases` that test `api`, the kernel's generation of the API.
fn of_api(
    cases: Vec<Case>,
    api: Api,
    args: &TestArgs,
    kernel: &Path,
) -> Result<Vec<Case>, Failure> {
    if let Some(wanted) = args.api
        && wanted != api
    {
        return Err(anyhow!(
            "--api {wanted}: {} has the API of '{api}'",
            kernel.display()
        )
        .into());
    }
    let cases: Vec<Case> = cases.into_iter().filter(|case| case.api == api).collect();
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

/// The failure of a test of a kernel without the API, with advice.
fn no_api(kernel: &Path, why: &str) -> Failure {
    let kernel = kernel.display();
    if why.contains("not supported") || why.contains("No such device") {
        anyhow!(
            "{kernel}: no case was run, because the kernel finds no Branch Trace Store in this \
             machine, or uses page-table isolation, which excludes it"
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
            of_api(cases.clone(), api, &args(words), Path::new("vmlinux"))
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
