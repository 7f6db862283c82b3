//! The system calls of a recorded program, in the form of strace(1).

use anyhow::anyhow;
use serde_json::{Value, json};
use vbts_debugger::strace::{Happening, Line, SystemCallTrace};
use vbts_host::exit::Failure;
use vbts_host::output::{Output, OutputError};
use vbts_vmm::config::{Accelerator, MachineConfig};

use super::ReportArgs;
use crate::recording::OldRecording;
use crate::replay::{ObservedMachine, is_recording};

/// Bytes of the list that are written at once.
const PIECE: usize = 64 << 10;

/// Replays the recording `args.file`, and shows its system calls.
///
/// # Errors
/// The file is no recording of a 64-bit program, the replay differs, or the output fails.
pub(super) fn show(args: &ReportArgs, mut output: Output) -> Result<(), Failure> {
    let name = args.file.display();
    if !is_recording(&args.file) {
        return Err(anyhow!(
            "strace: {name} has no arguments and results: it needs a recording of vbts record"
        )
        .into());
    }
    if args.task.is_some() {
        return Err(anyhow!("strace: --task: each line begins with the number of its task").into());
    }
    let recording = OldRecording::open(&args.file)?;
    if recording.facts.is_machine || recording.facts.is_32_bit {
        return Err(anyhow!(
            "strace: {name} is a recording of a machine, or has a 32-bit kernel: only system calls \
             of programs can be shown"
        )
        .into());
    }
    let host = MachineConfig {
        accelerator: Accelerator::Soft,
        sandbox: args.sandbox,
        ..MachineConfig::default()
    };
    let ObservedMachine {
        machine,
        connection,
        ..
    } = ObservedMachine::of(&recording, &host)?;
    let kernel = recording.kernel.image();
    let inputs = recording.inputs.clone();
    let calls = SystemCallTrace::new(machine, connection, inputs, kernel)?;
    output.truncate().map_err(OutputError::into_failure)?;
    let mut text = String::new();
    calls.run(&mut |line| {
        if args.json {
            text += &json(&line).to_string();
        } else {
            text += &format!("{} {line}", line.thread.thread);
        }
        text.push('\n');
        if text.len() < PIECE {
            return Ok(());
        }
        let written = output.write(std::mem::take(&mut text).as_bytes());
        written.map_err(OutputError::into_failure)
    })?;
    output
        .write(text.as_bytes())
        .map_err(OutputError::into_failure)
}

/// A line as a JSON object.
fn json(line: &Line) -> Value {
    let mut object = match &line.happening {
        Happening::Call {
            name,
            arguments,
            result,
        } => json!({"type": "call", "name": name, "arguments": arguments, "result": result}),
        Happening::Signal { name, info } => {
            json!({"type": "signal", "name": name, "info": info})
        }
        Happening::End(Ok(status)) => json!({"type": "end", "status": status}),
        Happening::End(Err(signal)) => json!({"type": "end", "signal": signal}),
    };
    object["time"] = line.time.into();
    object["process"] = line.thread.process.into();
    object["task"] = line.thread.thread.into();
    object
}
