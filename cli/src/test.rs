//! `vbts test`: runs the regression suite of the ptrace BTS requests in guests, or the kernel's own
//! tests.

mod args;
mod kernels;
mod merge;
mod targets;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::file_uses::FileUses;
use super::options;
use super::rescue;
pub use args::TestArgs;
use kernels::{kernels, kselftests, nothing, of_api};
use targets::Target;
use vbts_guest_files::arch::Arch;
use vbts_host::exit::{Failure, say};
use vbts_host::{Alarm, Event, Output};
use vbts_suite::Case;
use vbts_suite::guest::Settings;
use vbts_suite::kernel_tree::Purpose;
use vbts_suite::report::{ReportFormat, Reports, Subject};
use vbts_suite::run::{Offer, Runner};
use vbts_suite::source::Source;
use vbts_vmm::accel;
use vbts_vmm::boot;
use vbts_vmm::config::{DEFAULT_MODEL, MachineConfig};

/// File of the console without `--console`.
const CONSOLE: &str = "vbts-test-console.log";

/// Runs the command.
///
/// # Errors
/// See [`Failure`].
pub fn main(args: &TestArgs) -> Result<u8, Failure> {
    if !args.merge.is_empty() {
        return merge::main(args);
    }
    let began = Instant::now();
    let mut machine = args.machine.config(DEFAULT_MODEL);
    options::start_logging(machine.log);
    let (_, choice) = accel::resolve(&machine)?;
    let log_path = console_path(args);
    let mut uses = FileUses::default();
    let purpose = purpose(args);
    let mut cases = Vec::new();
    if purpose == Purpose::Requests {
        let program = vbts_guest_files::suite(arch(&machine))?;
        cases = vbts_suite::select(vbts_suite::list(&program)?, &args.filter)?;
        if args.list {
            let is_run = |case: &&Case| {
                args.api.is_none_or(|api| case.api == api) && is_in_shard(args, case)
            };
            return list(cases.iter().filter(is_run));
        }
    }
    let mut targets = targets(args, purpose, &machine)?;
    let source = match purpose {
        Purpose::Requests => Source::Requests,
        Purpose::Kunit => Source::Kunit,
        Purpose::Kselftest(targets) => {
            machine.root.get_or_insert_with(|| "/".into());
            kselftests(args, targets)?
        }
    };
    for target in &targets {
        uses.reads("--kernel", &target.kernel);
    }
    if purpose != Purpose::Kunit {
        read_programs(&mut targets, &mut uses)?;
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
        program: Arc::default(),
        append: args.append.clone(),
        limit: args.case_timeout,
    };
    let alarm = Arc::new(Alarm::new(Arc::default(), args.machine.timeout)?);
    alarm.start_timer()?;
    let limit = args.machine.timeout;
    // The guests end with this process.
    alarm.set_rescue(
        Box::new(move |event| {
            rescue::end(&rescue::failure(event, limit));
        }),
        rescue::give_up,
    );
    let log = Output::create(&log_path)
        .context("--console")?
        .interruptible(alarm.clone());
    let mut runner = Runner::new(source, settings.clone(), alarm.clone(), log, args.retries);
    if args.list {
        return list_of_kernels(args, &targets, &settings, &mut runner);
    }
    let mut reports = reports(args, &alarm)?;

    let outcome = run(args, &targets, &settings, &cases, &mut runner, &mut reports);
    alarm.end_run();
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

/// The targets of the options, whose machine is `machine`.
fn targets(
    args: &TestArgs,
    purpose: Purpose<'_>,
    machine: &MachineConfig,
) -> Result<Vec<Target>, Failure> {
    if let Some(path) = &args.matrix {
        return Ok(targets::of_matrix(path, machine).context("--matrix")?);
    }
    let kernels = kernels(args, purpose, arch(machine))?.into_iter();
    let target = |kernel| Target::of_kernel(kernel, machine, &args.append);
    Ok(kernels.map(target).collect())
}

/// The architecture of the default kernel of a machine.
fn arch(machine: &MachineConfig) -> Arch {
    vbts_cpu::model(&machine.model).map_or(Arch::X86_64, Arch::of_model)
}

/// Gives each target the suite's program for its kernel.
fn read_programs(targets: &mut [Target], uses: &mut FileUses) -> Result<(), Failure> {
    for arch in Arch::ALL {
        let mut on_it = (targets.iter_mut())
            .filter(|target| target.arch() == arch)
            .peekable();
        if on_it.peek().is_none() {
            continue;
        }
        let path = vbts_guest_files::suite(arch)?;
        let program: Arc<[u8]> = boot::read_file(&path)?.into();
        uses.reads("the program of the suite", &path);
        on_it.for_each(|target| target.program = Arc::clone(&program));
    }
    Ok(())
}

/// Runs those of `cases` that test a kernel's generation of the API, on each of `targets`. Returns
/// the event that has ended the run early.
fn run(
    args: &TestArgs,
    targets: &[Target],
    settings: &Settings,
    cases: &[Case],
    runner: &mut Runner,
    reports: &mut Reports,
) -> Result<Option<Event>, Failure> {
    let mut tested: Vec<(&Target, Vec<Case>)> = Vec::new();
    for target in targets {
        let kernel = &target.kernel;
        // What a kernel can run does not depend on the machine.
        if let Some((_, cases)) = tested.iter().find(|(other, _)| other.kernel == *kernel) {
            let cases = cases.clone();
            tested.push((target, cases));
            continue;
        }
        runner.select(target.settings(settings))?;
        match runner.probe()? {
            Offer::Api(api) => tested.push((target, of_api(cases, api, args, kernel)?)),
            Offer::Cases(cases) => tested.push((target, vbts_suite::select(cases, &args.filter)?)),
            Offer::Nothing(why) => {
                reports.skip_all(&why)?;
                return Err(nothing(args, kernel, &why));
            }
        }
    }
    for (_, cases) in &mut tested {
        cases.retain(|case| is_in_shard(args, case));
    }
    let groups = tested
        .iter()
        .map(|(_, cases)| vbts_suite::run::groups(cases).count());
    reports.begin(groups.sum())?;
    let mut event = None;
    for (target, cases) in &tested {
        if tested.len() > 1 {
            runner.select(target.settings(settings))?;
            // A case can need several processors, so machines are not compared.
            reports.target(&target.title, args.matrix.is_none());
        }
        event = runner.run(cases, event, reports)?;
    }
    reports.end()?;
    Ok(event)
}

/// Whether the case belongs to the part of `--shard`.
fn is_in_shard(args: &TestArgs, case: &Case) -> bool {
    args.shard.is_none_or(|shard| shard.has(&case.name))
}

fn list<'a>(cases: impl Iterator<Item = &'a Case>) -> Result<u8, Failure> {
    let text: String = cases.flat_map(|case| [&case.name, "\n"]).collect();
    super::print(text.as_bytes())
}

/// Lists the cases that the kernels have themselves, each once.
fn list_of_kernels(
    args: &TestArgs,
    targets: &[Target],
    settings: &Settings,
    runner: &mut Runner,
) -> Result<u8, Failure> {
    let mut all: Vec<Case> = Vec::new();
    for target in targets {
        runner.select(target.settings(settings))?;
        match runner.probe()? {
            Offer::Cases(cases) => {
                let new = cases.into_iter().filter(|case| !all.contains(case));
                all.extend(new.collect::<Vec<_>>());
            }
            Offer::Api(_) => {}
            Offer::Nothing(why) => return Err(nothing(args, &target.kernel, &why)),
        }
    }
    let selected = vbts_suite::select(all, &args.filter)?;
    list(selected.iter().filter(|case| is_in_shard(args, case)))
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
    let format = args.report.unwrap_or(ReportFormat::Ktap);
    let outputs = match report_path(args) {
        None => vec![(stdout, format)],
        Some(path) => {
            let file = Output::open(path).context("--output")?;
            file.truncate().context("--output")?;
            vec![
                (stdout, ReportFormat::Ktap),
                (file.interruptible(alarm.clone()), format),
            ]
        }
    };
    let subject = Subject {
        shard: args.shard,
        build: args.kcidb_build.clone(),
    };
    Ok(Reports::new(outputs, subject))
}

fn summarise(reports: &Reports, took: Duration, accel: &str) {
    if !reports.failed().is_empty() {
        say(format_args!("failed: {}", reports.failed().join(", ")));
    }
    if !reports.flaky().is_empty() {
        say(format_args!("flaky: {}", reports.flaky().join(", ")));
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

    /// The arguments of a command line.
    pub fn args(words: &[&str]) -> TestArgs {
        let words = ["vbts", "test"].iter().chain(words);
        match crate::Cli::try_parse_from(words).unwrap().command {
            crate::Command::Test(args) => args,
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
}
