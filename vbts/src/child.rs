//! The processes that do the work.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// The environment variable with the path of the program `vbts`.
const PROGRAM_VARIABLE: &str = "VBTS";

/// Whether this program becomes `vbts` when it is started as a part of that.
static HAS_CHILD_MAIN: AtomicBool = AtomicBool::new(false);

/// Makes this program its own `vbts`: call it first in `main`, before any thread is started.
///
/// In a process that the library has started, it does the work and ends the process. In all others
/// it returns at once. Without it the library starts the program that the environment variable
/// `VBTS` names, or else `vbts` in `PATH`.
pub fn child_main() {
    let mut args = std::env::args_os();
    if args.next().is_some_and(|name| name == vbts_cli::PART_NAME) {
        let status = vbts_cli::main(std::env::args_os());
        std::process::exit(status.into());
    }
    HAS_CHILD_MAIN.store(true, Ordering::Relaxed);
}

/// The command that starts `vbts`, which is at `path` if that is given.
pub fn command(path: Option<&Path>) -> Command {
    if let Some(path) = path {
        return Command::new(path);
    }
    if HAS_CHILD_MAIN.load(Ordering::Relaxed) {
        let mut command = Command::new("/proc/self/exe");
        command.arg0(vbts_cli::PART_NAME);
        return command;
    }
    let program = std::env::var_os(PROGRAM_VARIABLE);
    Command::new(program.unwrap_or_else(|| OsString::from("vbts")))
}
