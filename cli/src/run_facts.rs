//! The facts about a run that its trace or its recording has.

use vbts_capture::RunEnd;
use vbts_protocol::Scope;
use vbts_trace::{Run, Streams, Summary};
use vbts_vmm::accel::Accel;
use vbts_vmm::config::MachineConfig;
use vbts_vmm::launch::KernelFiles;

use crate::kernel_file;
use crate::options::name_of;

/// The program that writes a trace or a recording, with its version.
pub(crate) const WRITER: &str = concat!("vbts ", env!("CARGO_PKG_VERSION"));

/// The words of the command line of this process, and its working directory.
pub(crate) fn command() -> (Vec<String>, String) {
    let words = std::env::args_os().map(|word| word.display().to_string());
    let directory = std::env::current_dir().unwrap_or_default();
    (words.collect(), directory.display().to_string())
}

/// Adds the facts about `machine`.
pub(crate) fn add_machine(run: &mut Run, machine: &MachineConfig) {
    for (name, value) in [
        ("memory", machine.memory.0.into()),
        ("processors", machine.processors.into()),
        ("cpu", machine.model.clone().into()),
    ] {
        run.other.insert(name.into(), value);
    }
}

/// The facts about a run whose streams are processors: of `machine`, which boots `kernel`. The
/// `command` has a working directory.
pub(crate) fn of_machine(
    machine: &MachineConfig,
    kernel: &KernelFiles,
    scope: Scope,
    accel: Accel,
    (command, directory): (Vec<String>, String),
) -> Run {
    let mut run = Run {
        writer: WRITER.into(),
        command,
        directory,
        scope: name_of(&scope).into(),
        accel: accel.to_string(),
        streams: Streams::Processors,
        ..Run::default()
    };
    kernel_file::identify(kernel, &mut run);
    add_machine(&mut run, machine);
    run
}

/// The summary of a run of a machine that ended so.
pub(crate) fn summary(end: RunEnd) -> Summary {
    Summary {
        end: end.name().into(),
        exit: end.exit(),
        ..Summary::default()
    }
}
