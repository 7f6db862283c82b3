//! `vbts report --debuginfod`: has debuginfod's client fetch the debugging information of the files
//! that a trace has executed. Reports find it in the cache of the client.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::process::{Command, Stdio};

use anyhow::anyhow;
use vbts_host::exit::{Failure, say};
use vbts_symbols::DebugFiles;

use super::files::open_root;
use super::{ReportArgs, build_ids, process};
use crate::progress::progress;

/// The client (debuginfod-find(1)).
const CLIENT: &str = "debuginfod-find";
/// Names the servers for the client.
const SERVERS: &str = "DEBUGINFOD_URLS";
/// Message of the client for a file that no server has.
const UNKNOWN: &str = "No such file or directory";

/// Fetches what neither the packages of the distribution nor the cache of the client have.
///
/// # Errors
/// No server is set, the client is not installed, or the trace cannot be read. What a server does
/// not have is no error.
pub(super) fn fetch(args: &ReportArgs) -> Result<u8, Failure> {
    if std::env::var_os(SERVERS).is_none_or(|servers| servers.is_empty()) {
        let message = format!("--debuginfod: the variable {SERVERS} names no server");
        return Err(anyhow!(message).into());
    }
    let mut wanted = BTreeSet::new();
    for file in [Some(&args.file), args.other.as_ref()]
        .into_iter()
        .flatten()
    {
        let args = ReportArgs {
            file: file.clone(),
            ..args.clone()
        };
        // The trace is hostile: only the confined process reads it.
        let (status, list) = process::read(args.timeout, |output| {
            build_ids::show(&args, output)?;
            Ok(0)
        })?;
        if status != 0 {
            return Ok(status);
        }
        let list = String::from_utf8_lossy(&list);
        let digits = list.lines().filter_map(|line| line.split(' ').next());
        let digits = digits.filter(|id| id.bytes().all(|digit| digit.is_ascii_hexdigit()));
        wanted.extend(digits.map(str::to_owned));
    }
    let (root, files) = (open_root(args)?, DebugFiles::of_environment());
    wanted.retain(|id| !matches!(files.open(&root, &bytes(id)), Ok(Some(_))));
    let (mut fetched, mut problem) = (0, None);
    let shown = progress("debuginfod: {pos} of {len} files", true);
    shown.set_length(wanted.len() as u64);
    for id in &wanted {
        match ask(id)? {
            Answer::Fetched => fetched += 1,
            Answer::Unknown => {}
            Answer::Failed(text) => problem = Some(text),
        }
        shown.inc(1);
    }
    shown.finish_and_clear();
    if !wanted.is_empty() {
        say(format_args!(
            "debuginfod: fetched the debugging information of {fetched} of {} files",
            wanted.len()
        ));
    }
    if let Some(problem) = problem {
        say(format_args!("debuginfod: {problem}"));
    }
    Ok(0)
}

/// Answer of the client.
enum Answer {
    /// The file is in its cache.
    Fetched,
    /// No server has it.
    Unknown,
    /// A server was not reached, for example: its message.
    Failed(String),
}

/// Asks the client for the debugging information of the file with this build ID, in hexadecimal
/// digits.
fn ask(build_id: &str) -> Result<Answer, Failure> {
    let mut client = Command::new(CLIENT);
    let ran = client
        .args(["debuginfo", build_id])
        .stdin(Stdio::null())
        .output();
    let output = ran.map_err(|error| match error.kind() {
        ErrorKind::NotFound => Failure::Host(format!(
            "--debuginfod: {CLIENT} is not installed: install the package debuginfod"
        )),
        _ => anyhow!("--debuginfod: cannot run {CLIENT}: {error}").into(),
    })?;
    if output.status.success() {
        return Ok(Answer::Fetched);
    }
    let message = String::from_utf8_lossy(&output.stderr);
    match message.lines().next_back() {
        Some(line) if !line.ends_with(UNKNOWN) => Ok(Answer::Failed(line.to_owned())),
        _ => Ok(Answer::Unknown),
    }
}

/// The bytes of hexadecimal digits.
fn bytes(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks_exact(2);
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.map_while(byte).collect()
}
