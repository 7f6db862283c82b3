//! `vbts test`: runs the regression suite of the ptrace BTS requests in guests, or the kernel's own
//! tests.
//!
//! | module | contents |
//! |---|---|
//! | `options` | the options, and the configuration that they make |
//! | `config` | the configuration |
//! | `kernels`, `targets` | the kernels, and the machines in which they are tested |
//! | `merge` | `--merge`: a report of several reports |

mod config;
mod kernels;
mod merge;
mod options;
mod targets;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::file_uses::FileUses;
use super::options::start_logging;
use super::rescue;
use config::TestConfig;
use kernels::{kernels, kselftests, nothing, of_api};
pub(crate) use options::TestArgs;
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
use vbts_vmm::config::MachineConfig;

/// Runs the command.
///
/// # Errors
/// See [`Failure`].
pub(crate) fn main(args: &TestArgs) -> Result<u8, Failure> {
    match args.merge() {
        Some(config) => merge::merge(&config),
        None => test(&args.config()),
    }
}

/// Runs the cases of `config`. Returns the exit status.
///
/// # Errors
/// See [`Failure`].
fn test(config: &TestConfig) -> Result<u8, Failure> {
    let began = Instant::now();
    let mut machine = config.machine.clone();
    start_logging(machine.log);
    let (_, choice) = accel::resolve(&machine)?;
    let mut uses = FileUses::default();
    let mut cases = Vec::new();
    if config.purpose == Purpose::Requests {
        let program = vbts_guest_files::suite(arch(&machine))?;
        cases = vbts_suite::select(vbts_suite::list(&program)?, &config.filter)?;
        if config.list {
            let is_run = |case: &&Case| {
                config.api.is_none_or(|api| case.api == api) && config.is_in_shard(case)
            };
            return list(cases.iter().filter(is_run));
        }
    }
    let mut targets = targets(config, &machine)?;
    let source = match &config.purpose {
        Purpose::Requests => Source::Requests,
        Purpose::Kunit => Source::Kunit,
        Purpose::Kselftest(targets) => {
            machine.root.get_or_insert_with(|| "/".into());
            kselftests(config, targets)?
        }
    };
    for target in &targets {
        uses.reads("--kernel", &target.kernel);
    }
    if config.purpose != Purpose::Kunit {
        read_programs(&mut targets, &mut uses)?;
    }
    uses.writes("--console", &config.console);
    if let Some(path) = config.report.path() {
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
        append: config.append.clone(),
        limit: config.case_limit,
    };
    let alarm = Arc::new(Alarm::new(Arc::default(), config.machine.time_limit)?);
    alarm.start_timer()?;
    let limit = config.machine.time_limit;
    // The guests end with this process.
    alarm.set_rescue(
        Box::new(move |event| {
            rescue::end(&rescue::failure(event, limit));
        }),
        rescue::give_up,
    );
    let log = Output::create(&config.console)
        .context("--console")?
        .interruptible(alarm.clone());
    let mut runner = Runner::new(source, settings.clone(), alarm.clone(), log, config.retries);
    if config.list {
        let listed = list_of_kernels(config, &targets, &settings, &mut runner);
        if listed.is_ok() {
            remove_console(config);
        }
        return listed;
    }
    let mut reports = reports(config, &alarm)?;

    let outcome = run(
        config,
        &targets,
        &settings,
        &cases,
        &mut runner,
        &mut reports,
    );
    alarm.end_run();
    let bad = match &outcome {
        Ok(event) => {
            summarise(&reports, began.elapsed(), &choice.accel.to_string());
            event.is_some() || !reports.is_good()
        }
        Err(_) => true,
    };
    if bad {
        say(format_args!("console log: {}", config.console.display()));
    } else {
        remove_console(config);
    }
    match outcome? {
        Some(event) => Err(runner.failure_of(event)),
        None => Ok(u8::from(bad)),
    }
}

/// Removes the console log of a run in which nothing has failed, unless the user wants it.
fn remove_console(config: &TestConfig) {
    if !config.keeps_console {
        // What is left is only a file.
        let _ = std::fs::remove_file(&config.console);
    }
}

/// The targets of the options, whose machine is `machine`.
fn targets(config: &TestConfig, machine: &MachineConfig) -> Result<Vec<Target>, Failure> {
    if let Some(path) = &config.matrix {
        return Ok(targets::of_matrix(path, machine).context("--matrix")?);
    }
    let kernels = kernels(config, arch(machine))?.into_iter();
    let target = |kernel| Target::of_kernel(kernel, machine, &config.append);
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
    config: &TestConfig,
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
            Offer::Api(api) => tested.push((target, of_api(cases, api, config, kernel)?)),
            Offer::Cases(cases) => {
                tested.push((target, vbts_suite::select(cases, &config.filter)?))
            }
            Offer::Nothing(why) => {
                reports.skip_all(&why)?;
                return Err(nothing(config, kernel, &why));
            }
        }
    }
    for (_, cases) in &mut tested {
        cases.retain(|case| config.is_in_shard(case));
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
            reports.target(&target.title, config.matrix.is_none());
        }
        event = runner.run(cases, event, reports)?;
    }
    reports.end()?;
    Ok(event)
}

fn list<'a>(cases: impl Iterator<Item = &'a Case>) -> Result<u8, Failure> {
    let text: String = cases.flat_map(|case| [&case.name, "\n"]).collect();
    super::print(text.as_bytes())
}

/// Lists the cases that the kernels have themselves, each once.
fn list_of_kernels(
    config: &TestConfig,
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
            Offer::Nothing(why) => return Err(nothing(config, &target.kernel, &why)),
        }
    }
    let selected = vbts_suite::select(all, &config.filter)?;
    list(selected.iter().filter(|case| config.is_in_shard(case)))
}

fn reports(config: &TestConfig, alarm: &Arc<Alarm>) -> Result<Reports, Failure> {
    let stdout = Output::stdout()?.interruptible(alarm.clone());
    let format = config.report.format.unwrap_or(ReportFormat::Ktap);
    let outputs = match config.report.open()? {
        None => vec![(stdout, format)],
        Some(file) => vec![
            (stdout, ReportFormat::Ktap),
            (file.interruptible(alarm.clone()), format),
        ],
    };
    let subject = Subject {
        shard: config.shard,
        build: config.report.build.clone(),
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
