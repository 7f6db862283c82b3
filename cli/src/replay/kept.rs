//! Traces of recordings, which are kept in the user's cache: the first question about a recording
//! replays it, and the second one does not.

use std::fs::{self, File};
use std::io::{BufReader, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use vbts_host::exit::Failure;
use vbts_protocol::{Follow, Scope};
use vbts_recording::{MAGIC, REPLAY_VERSION, Reader};
use vbts_symbols::elf::digits;
use vbts_vmm::config::{Accelerator, MachineConfig};

use super::run::{Branches, ProgramOutput, Replay, TaskTrace};
use super::trace::is_replayed;
use crate::cache;
use crate::options::name_of;
use crate::report::{self, ReportArgs};
use crate::sha256::of_file;
use crate::trace::{TraceDirectory, in_child};

/// The directory in the cache.
const DIRECTORY: &str = "replays";
/// Bytes of all traces that are kept at most, except the last one.
const MAX_SIZE: u64 = 4 << 30;

/// Makes a report of a trace or of a recording.
///
/// # Errors
/// See [`report::main`]; or the recording cannot be replayed.
pub(crate) fn report(args: &ReportArgs) -> Result<u8, Failure> {
    if args.what.is_of_recording() {
        return report::main(&args.of_recording()?);
    }
    let is_recorded = is_recording(&args.file);
    let other_is_recorded = args.other.as_deref().is_some_and(is_recording);
    if !is_recorded && !other_is_recorded {
        if args.scope.is_some() {
            return Err(anyhow!("--scope: a trace has the branches that were recorded").into());
        }
        return report::main(args);
    }
    args.check_options()?;
    let mut args = args.clone();
    // It lives until the reports are made.
    let mut temporary = None;
    let scope_of = |path: &Path| args.scope.unwrap_or_else(|| default_scope(path));
    let (scope, other_scope) = (scope_of(&args.file), args.other.as_deref().map(scope_of));
    let mut recording = None;
    if is_recorded {
        let trace = trace_of(&args, &args.file, scope, &mut temporary)?;
        recording = Some(std::mem::replace(&mut args.file, trace));
    }
    if let Some(other) = args.other.as_deref().filter(|_| other_is_recorded) {
        let scope = other_scope.unwrap_or(scope);
        args.other = Some(trace_of(&args, other, scope, &mut temporary)?);
    }
    match recording {
        Some(recording) => report::of_recording(&args, &recording),
        None => report::main(&args),
    }
}

/// The branches of a recording that are of interest: the program's, or all of a machine.
pub(super) fn default_scope(recording: &Path) -> Scope {
    let header = File::open(recording).ok().and_then(|file| {
        let read = Reader::new(BufReader::new(file));
        read.ok().map(|(header, _)| header)
    });
    let is_machine = header.is_some_and(|header| header.guest["is_machine"] == true);
    match is_machine {
        true => Scope::All,
        false => Scope::User,
    }
}

/// Returns whether a file is a recording.
pub(crate) fn is_recording(path: &Path) -> bool {
    let mut start = [0; MAGIC.len()];
    // What is no file is refused as a trace. A pipe cannot be read twice.
    let is_file = fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
    is_file
        && File::open(path).is_ok_and(|mut file| file.read_exact(&mut start).is_ok())
        && start == MAGIC
}

/// The trace of a recording: from the cache, or from a replay. Without a cache it is in the
/// directory `temporary`.
fn trace_of(
    args: &ReportArgs,
    recording: &Path,
    scope: Scope,
    temporary: &mut Option<TraceDirectory>,
) -> Result<PathBuf, Failure> {
    let cannot_read = || format!("Cannot read {}", recording.display());
    let name = name_of_trace(recording, scope).with_context(cannot_read)?;
    let Some(directory) = cache::directory(DIRECTORY) else {
        let directory = match temporary {
            Some(directory) => directory,
            None => temporary.insert(TraceDirectory::create()?),
        };
        let path = directory.file(&name);
        replay(args, recording, scope, &path)?;
        return Ok(path);
    };
    let path = directory.join(&name);
    if let Ok(file) = File::options().append(true).open(&path) {
        cache::note_use(&file).context("Cannot use the cache")?;
        return Ok(path);
    }
    // A second process may make the same trace.
    let unfinished = directory.join(format!("{name}.{}", std::process::id()));
    let made = replay(args, recording, scope, &unfinished).and_then(|()| {
        let renamed = fs::rename(&unfinished, &path);
        Ok(renamed.context("Cannot keep a trace in the cache")?)
    });
    if made.is_err() {
        // It may not exist.
        let _ = fs::remove_file(&unfinished);
    }
    made?;
    cache::shrink(&directory, &path, MAX_SIZE);
    Ok(path)
}

/// The name of the trace of a recording: it tells the contents, the branches, and the program that
/// replays.
fn name_of_trace(recording: &Path, scope: Scope) -> std::io::Result<String> {
    let contents = of_file(&mut File::open(recording)?)?;
    Ok(format!(
        "{}-{}-{}-{REPLAY_VERSION}.btrace",
        digits(&contents[..16]),
        name_of(&scope),
        env!("CARGO_PKG_VERSION")
    ))
}

/// Replays a recording, and writes its trace to `path`.
fn replay(args: &ReportArgs, recording: &Path, scope: Scope, path: &Path) -> Result<(), Failure> {
    let replay = Replay {
        file: recording.to_path_buf(),
        machine: MachineConfig {
            accelerator: Accelerator::Soft,
            time_limit: Some(args.timeout),
            sandbox: args.sandbox,
            ..MachineConfig::default()
        },
        branches: Branches::Tasks(TaskTrace {
            path: Some(path.to_path_buf()),
            scope,
            follow: Follow::All,
            sched: false,
            signal: args.filters.until_signal,
        }),
        program_output: ProgramOutput::Nowhere,
        quiet: true,
    };
    let file = recording.to_path_buf();
    let code = in_child(|| {
        let replayed = replay.run()?;
        if let Err(cut) = replayed.status(&file) {
            cut.report();
        }
        Ok(0)
    })?;
    match code {
        0 if is_replayed(recording, path)? => Ok(()),
        _ => Err(anyhow!("{} cannot be replayed to its end", recording.display()).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_trace_tells_recording_and_branches() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let name = |contents: &[u8], scope| {
            fs::write(&path, contents).unwrap();
            name_of_trace(&path, scope).unwrap()
        };
        let first = name(b"one", Scope::User);
        assert_eq!(first, name(b"one", Scope::User));
        assert_ne!(first, name(b"two", Scope::User));
        assert_ne!(first, name(b"one", Scope::All));
    }

    /// A recording has an agent in it, which speaks the protocol of its time.
    #[test]
    fn another_protocol_of_the_agent_has_another_replay_version() {
        let versions = (vbts_protocol::VERSION, REPLAY_VERSION);
        assert_eq!(
            versions,
            ("vbts-agent 15", 5),
            "change both, and then this test"
        );
    }

    #[test]
    fn recordings_are_known_by_their_first_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        for (contents, expected) in [
            (&b"vbts-rec and more"[..], true),
            (b"vbts-re", false),
            (b"\x93BTRC", false),
        ] {
            fs::write(&path, contents).unwrap();
            assert_eq!(is_recording(&path), expected);
        }
        assert!(!is_recording(directory.path()));
    }
}
