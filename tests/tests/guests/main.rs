//! Whole guests: every test that starts `vbts`. The names of its modules, and of the tests in them, can be filtered by.

use libtest_mimic::{Arguments, Trial};
use vbts_tests::machine::Machine;

/// What is in each module. Those that take long come first, so that nothing is left to wait for at the end.
macro_rules! modules {
    ($($module:ident),* $(,)?) => {
        $(mod $module;)*

        fn trials() -> Vec<Trial> {
            let mut trials = Vec::new();
            $(trials.extend($module::trials(stringify!($module)));)*
            trials
        }
    };
}

modules!(
    kernel_selftests,
    ptrace_bts,
    stock_kernel,
    clients,
    scope,
    sandbox,
    oracle,
    bad_input,
    real_programs,
    cli,
    processors,
    long_trace,
    determinism,
    manual_page,
);

fn main() {
    let arguments = Arguments::from_args();
    if let (Err(error), false) = (Machine::find(), arguments.list) {
        println!("skipped: {error:#}");
    }
    libtest_mimic::run(&arguments, trials()).exit();
}
