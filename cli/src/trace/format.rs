//! The format of a trace, and what a kept trace says about the run.

use std::path::Path;

use anyhow::Context as _;
use clap::ValueEnum as _;
use vbts_protocol::Job;
use vbts_trace::Run;

use super::args::{ScopeArg, TraceArgs, TraceFormat};
use vbts_capture::btrace::Btrace;
use vbts_capture::format::{Format, Raw, RawWithIndex};
use vbts_capture::json::Json;
use vbts_capture::text::Text;
use vbts_host::exit::Failure;
use vbts_symbols::elf;
use vbts_vmm::accel::Accel;
use vbts_vmm::config::trace_model;
use vbts_vmm::launch::KernelFiles;

/// The format of the trace.
///
/// # Errors
/// The trace cannot be begun.
pub(super) fn format(
    args: &TraceArgs,
    accel: Accel,
    cwd: &Path,
    job: &Job,
    kernel: &KernelFiles,
) -> Result<Box<dyn Format>, Failure> {
    let json = Json::new(accel, args.sched);
    Ok(match args.format() {
        TraceFormat::Text => Box::new(Text::new(args.sched)),
        TraceFormat::Json => Box::new(json),
        TraceFormat::Raw if args.has_task_files() => Box::new(RawWithIndex(json)),
        TraceFormat::Raw => Box::new(Raw),
        TraceFormat::Btrace => {
            let format = Btrace::new(&run(args, accel, cwd, job, kernel));
            Box::new(format.context("Cannot begin the trace")?)
        }
    })
}

/// What a kept trace says about the run.
fn run(args: &TraceArgs, accel: Accel, cwd: &Path, job: &Job, kernel: &KernelFiles) -> Run {
    let words = args.program.iter();
    let scope = args.scope.to_possible_value();
    let mut run = Run {
        writer: concat!("vbts ", env!("CARGO_PKG_VERSION")).into(),
        command: words.map(|word| word.display().to_string()).collect(),
        directory: cwd.display().to_string(),
        scope: scope.map_or_else(String::new, |scope| scope.get_name().into()),
        accel: accel.to_string(),
        sched: args.sched,
        ..Run::default()
    };
    if args.scope != ScopeArg::User {
        add_kernel(&mut run, kernel);
    }
    let config = args.machine.config(trace_model());
    run.other.insert("memory".into(), config.memory.0.into());
    run.other
        .insert("processors".into(), config.processors.into());
    run.other.insert("cpu".into(), config.model.into());
    // Values can be secret, and a trace is shown to others.
    let variables = job.envp.iter().map(|entry| {
        let name = entry.0.split(|byte| *byte == b'=').next();
        String::from_utf8_lossy(name.unwrap_or_default()).into_owned()
    });
    let root = config.root.unwrap_or_else(|| "/".into());
    let follow = args.followed().to_possible_value();
    let environment = serde_json::json!({
        "root": root.display().to_string(),
        "epoch": job.epoch,
        "follow": follow.map(|tasks| tasks.get_name().to_owned()),
        "variables": variables.collect::<Vec<String>>(),
    });
    run.other.insert("environment".into(), environment);
    run
}

/// Says in `run` which kernel is booted.
pub(crate) fn add_kernel(run: &mut Run, kernel: &KernelFiles) {
    let path = std::path::absolute(kernel.path()).unwrap_or_else(|_| kernel.path().to_owned());
    run.kernel = Some(path.display().to_string());
    run.kernel_build_id = elf::build_id_of(kernel.image()).map(elf::digits);
}
