//! Tests of whole guests that this machine cannot run.

use libtest_mimic::{Completion, Failed};
use vbts_testkit::skips;

/// Reports that `test` is left out, to the harness and to the script that runs the tests.
#[must_use]
pub fn ignored(test: &str, why: &str) -> Completion {
    skips::note(test, why);
    Completion::ignored_with(format!("skipped: {why}"))
}

/// Reports that `test` has no `vbts`, guest kernel or agent. A script that counts the tests that
/// are left out has built these, so the test has failed then.
///
/// # Errors
/// A script runs the tests.
pub fn without_machine(test: &str, why: &str) -> Result<Completion, Failed> {
    if std::env::var_os(skips::FILE).is_some() {
        return Err(Failed::from(why));
    }
    Ok(ignored(test, why))
}
