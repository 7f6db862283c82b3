//! A pager for what does not fit on a terminal, as git has it.

use std::ffi::OsString;
use std::io::{IsTerminal as _, stdout};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use signal_hook::consts::{SIGINT, SIGQUIT};
use signal_hook::flag;
use signal_hook::low_level::unregister;

use super::colours::PAGER_IN_USE;
use super::{Cli, Command as VbtsCommand, own_program};
use vbts_host::exit::status;

/// Command of the pager if no variable names one.
const DEFAULT: &str = "if command -v less >/dev/null; then less; else cat; fi";
/// How that is called: it ends if all is on one screen, and leaves that there.
const LESS: (&str, &str) = ("LESS", "FRX");
/// Commands of a user for the pager; an empty one, or `cat`, is none.
const VARIABLES: [&str; 2] = ["VBTS_PAGER", "PAGER"];

/// The pager for this command, if there is to be one.
fn wanted(cli: &Cli) -> Option<String> {
    let is_for_people = match &cli.command {
        VbtsCommand::Report(args) => args.output.is_none(),
        VbtsCommand::Help(args) => args.topic.is_some(),
        _ => false,
    };
    if cli.no_pager || !is_for_people || !stdout().is_terminal() {
        return None;
    }
    let chosen = VARIABLES.iter().find_map(std::env::var_os);
    let pager = chosen.map_or(Ok(DEFAULT.to_owned()), OsString::into_string);
    pager
        .ok()
        .filter(|pager| !pager.is_empty() && pager != "cat")
}

/// Runs the command line `args` in a process whose output the user's pager shows. Returns the exit
/// status, or `None` if there is no pager to be used.
pub(crate) fn run(cli: &Cli, args: &[OsString]) -> Option<u8> {
    let pager = wanted(cli)?;
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(&pager).stdin(Stdio::piped());
    if std::env::var_os(LESS.0).is_none() {
        shell.env(LESS.0, LESS.1);
    }
    // Keys are for the pager. A child that is started from here has them as they were.
    let handlers = [SIGINT, SIGQUIT].map(|signal| flag::register(signal, Arc::default()));
    let mut pager = shell.spawn().ok()?;
    let shown = pager.stdin.take().map(|pipe| report(args, pipe.into()));
    // The pager has all when the report has ended, and ends when its user wants that.
    let _ = pager.wait();
    for handler in handlers.into_iter().flatten() {
        unregister(handler);
    }
    shown?
}

/// Runs vbts with its output to the pager, and waits for it.
fn report(args: &[OsString], pipe: Stdio) -> Option<u8> {
    let child: Child = own_program()
        .arg("--no-pager")
        .env(PAGER_IN_USE, "1")
        .args(args.iter().skip(1))
        .stdout(pipe)
        .spawn()
        .ok()?;
    let output = child.wait_with_output().ok()?;
    let signal = output.status.signal().map(|signal| 128 + signal);
    let code = output.status.code().or(signal)?;
    Some(u8::try_from(code).unwrap_or(status::ERROR))
}
