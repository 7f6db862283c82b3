//! `vbts report where`: the stack at a moment. Of a recording it also has the functions of a Python
//! program, which are in the program's memory: gdb reads them in a replay, as python-frames in
//! `vbts debug` does.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context as _, anyhow};
use vbts_analysis::{Stacks, names_python};
use vbts_host::Output;
use vbts_host::exit::{Failure, say};
use vbts_protocol::Scope;
use vbts_trace::Reader;

use super::analysis::watched;
use super::gdb_rows::{GdbRows, done};
use super::tasks::TaskPattern;
use super::{ReportArgs, process};
use crate::debug::{Answer, field, quoted};

/// Advice for a Python program in a trace.
const NEEDS_RECORDING: &str = "the Python functions of the stack are in the program's memory, \
    which a trace does not have: vbts report where of a recording (vbts record) shows those of \
    CPython 3.13";

/// Shows the stack that the trace of `args` ends with.
///
/// # Errors
/// The trace is damaged, or the output fails.
pub(super) fn show_stack(args: &ReportArgs, output: Output) -> Result<(), Failure> {
    stack(args, Some(NEEDS_RECORDING), output)
}

/// Shows the stack, and says `advice` if it is of a Python program.
fn stack(args: &ReportArgs, advice: Option<&str>, output: Output) -> Result<(), Failure> {
    watched(args, output, Stacks::default(), |trace, out| {
        let is_python = vbts_analysis::moment(&mut trace.profile, out)?;
        if is_python {
            trace.profile.code().0.files.interpreter = advice.map(str::to_owned);
        }
        Ok(())
    })
}

/// Shows the stack, and the Python functions at the same moment of `recording`, of which
/// `args.file` is the trace. Returns the exit status.
///
/// # Errors
/// See [`show_stack`].
pub(super) fn show(
    args: &ReportArgs,
    recording: &Path,
    output: Option<&Path>,
) -> Result<u8, Failure> {
    let (status, text) = process::read(args.timeout, |output| {
        stack(args, None, output)?;
        Ok(0)
    })?;
    if status != 0 {
        return Ok(status);
    }
    let mut text = String::from_utf8(text).context("The stack is no text")?;
    process::run(output, args.timeout, |output| {
        if names_python(&text) {
            match python_functions(args, recording, &text) {
                Ok(functions) => text += &functions,
                Err(failure) => say(format_args!(
                    "the Python functions of the stack are not shown: {failure}"
                )),
            }
        }
        process::write_whole(output, &text)?;
        Ok(0)
    })
}

/// The Python functions that the task of a report executes.
fn python_functions(args: &ReportArgs, recording: &Path, report: &str) -> Result<String, Failure> {
    if args.scope.is_some_and(|scope| scope != Scope::User) {
        return Err(anyhow!("--scope: the replay counts the branches of the program").into());
    }
    let end = (|| {
        let mut reader = Reader::new(BufReader::new(File::open(&args.file)?))?;
        Ok::<_, vbts_trace::Error>(args.range(&mut reader)?.end)
    })();
    let end = end.with_context(|| format!("Cannot read {}", args.file.display()))?;
    let task = task_of(report).context("the report has no task")?;
    let args = ReportArgs {
        file: recording.into(),
        task: Some(TaskPattern::Id(task)),
        ..args.clone()
    };
    let mut session = GdbRows::start(&args)?;
    session.go_to_branch(end)?;
    let gdb = &mut session.gdb;
    let address = quoted("(unsigned long) &_PyRuntime");
    let runtime = match gdb.execute(&format!("-data-evaluate-expression {address}"))? {
        Answer::Done { result, .. } => field(&result, "value").unwrap_or_default(),
        Answer::Refused(why) => return Err(anyhow!("gdb: {why}").into()),
    };
    let frames = done(gdb.console(&format!("monitor python-frames {runtime} {task}"))?)?;
    let lines = frames.lines().filter_map(|line| line.strip_prefix('#'));
    let lines = lines.filter_map(|line| line.split_once("  "));
    let lines: String = lines
        .map(|(number, function)| format!("  {number:>4}  {function}\n"))
        .collect();
    if lines.is_empty() {
        // gdb prints what the replay refuses.
        return Err(anyhow!("{}", frames.trim().escape_debug()).into());
    }
    Ok(format!("  Python:\n{lines}"))
}

/// The thread ID in the first line of a report.
fn task_of(report: &str) -> Option<u32> {
    let (number, _) = report.strip_prefix("task ")?.split_once(' ')?;
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_task_is_in_the_first_line() {
        assert_eq!(task_of("task 30 (python3.13)\n    call"), Some(30));
        assert_eq!(task_of(""), None);
        assert_eq!(task_of("task x (y)\n"), None);
    }
}
