//! Reports skipped tests to the scripts that run them.
//!
//! A test that cannot run on this machine passes or is ignored, and the harness exits with status
//! 0. So that a script can count these tests, each is a line of the file that `VBTS_CI_SKIPS`
//! names, as for the function `skipped` of `ci/common.sh`.

use std::fs::File;
use std::io::Write;

/// The variable with the file's name. A script that sets it has built what the tests need.
pub const FILE: &str = "VBTS_CI_SKIPS";

/// Notes that a test, or a part of it, is left out. Does nothing without [`FILE`].
///
/// # Panics
/// The file cannot be written.
pub fn note(test: &str, why: &str) {
    let Some(path) = std::env::var_os(FILE) else {
        return;
    };
    let line = format!("{test}: {}\n", why.replace('\n', " "));
    let mut file = File::options()
        .create(true)
        .append(true)
        .open(&path)
        .unwrap();
    // One write, because test programs run beside each other.
    file.write_all(line.as_bytes()).unwrap();
}
