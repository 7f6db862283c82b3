//! The `vbts` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    vbts_cli::main(std::env::args_os()).into()
}
