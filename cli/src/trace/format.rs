//! The format of a trace, and what a kept trace says about the run.

use std::path::Path;

use anyhow::Context as _;
use vbts_protocol::{Job, Scope};
use vbts_trace::Run;

use crate::kernel_file;
use crate::options::name_of;
use crate::run_facts::{WRITER, add_machine};
use vbts_capture::format::{Btrace, Format, Json, Nothing, Raw, RawWithIndex, Text};
use vbts_capture::output::TraceTo;
use vbts_capture::{TraceConfig, TraceFormat};
use vbts_host::exit::Failure;
use vbts_vmm::accel::Accel;
use vbts_vmm::launch::KernelFiles;

/// The format of the trace.
///
/// # Errors
/// The trace cannot be begun.
pub(super) fn format(
    config: &TraceConfig,
    accel: Accel,
    cwd: &Path,
    job: &Job,
    kernel: &KernelFiles,
) -> Result<Box<dyn Format>, Failure> {
    if config.output == TraceTo::Nowhere {
        return Ok(Box::new(Nothing));
    }
    let json = Json::new(accel, config.sched);
    Ok(match config.format {
        TraceFormat::Text => Box::new(Text::new(config.sched)),
        TraceFormat::Json => Box::new(json),
        TraceFormat::Raw if config.has_task_files() => Box::new(RawWithIndex(json)),
        TraceFormat::Raw => Box::new(Raw),
        TraceFormat::Btrace => {
            let format = Btrace::new(&facts(config, accel, cwd, job, kernel));
            Box::new(format.context("Cannot begin the trace")?)
        }
    })
}

/// What a kept trace says about the run.
pub(super) fn facts(
    config: &TraceConfig,
    accel: Accel,
    cwd: &Path,
    job: &Job,
    kernel: &KernelFiles,
) -> Run {
    let words = config.program.iter();
    let mut run = Run {
        writer: WRITER.into(),
        command: words.map(|word| word.display().to_string()).collect(),
        directory: cwd.display().to_string(),
        scope: name_of(&config.scope).into(),
        accel: accel.to_string(),
        sched: config.sched,
        ..Run::default()
    };
    if config.scope != Scope::User {
        kernel_file::identify(kernel, &mut run);
    }
    add_machine(&mut run, &config.machine);
    // Values can be secret, and a trace is shown to others.
    let variables = job.envp.iter().map(|entry| {
        let name = entry.0.split(|byte| *byte == b'=').next();
        String::from_utf8_lossy(name.unwrap_or_default()).into_owned()
    });
    let environment = serde_json::json!({
        "root": config.root().display().to_string(),
        "epoch": job.epoch,
        "follow": name_of(&config.follow),
        "variables": variables.collect::<Vec<String>>(),
    });
    run.other.insert("environment".into(), environment);
    run
}
