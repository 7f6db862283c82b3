//! Whole guests: every test that starts `vbts`. The names of its modules, and of the tests in them,
//! can be filtered by.

use libtest_mimic::Arguments;
use vbts_tests::machine::{Machine, TestModule};

mod answers;
mod at_work;
mod bad_input;
mod btrace;
mod causes;
mod cli;
mod clients;
mod crashes;
mod debug;
mod determinism;
mod endings;
mod files;
mod filters;
mod follow;
mod golden;
mod hostile_agent;
mod i386;
mod kept;
mod kernel_selftests;
mod kernel_trees;
mod left_behind;
mod library;
mod long_trace;
mod loopback;
mod manual_page;
mod many_tasks;
mod native_code;
mod network;
mod not_started;
mod oracle;
mod overwritten;
mod perf_and_gdb;
mod perf_map;
mod processors;
mod ptrace_bts;
mod random_programs;
mod real_programs;
mod record;
mod recorded_machines;
mod recording_contents;
mod recordings;
mod replay_history;
mod sandbox;
mod save_restore;
mod scope;
mod stepped_programs;
mod stock_kernel;
mod strace;
mod streams;
mod surroundings;
mod terminal;
mod vector_programs;

/// Modules that take long, the longest first. They begin before the others, so that nothing is left
/// to wait for at the end.
const LONG: [&str; 10] = [
    "kernel_selftests",
    "ptrace_bts",
    "kernel_trees",
    "at_work",
    "stock_kernel",
    "i386",
    "clients",
    "network",
    "perf_and_gdb",
    "not_started",
];

fn main() {
    // A shell has what it starts in the background ignore them, and vbts would let its guests, too.
    for signal in [libc::SIGINT, libc::SIGQUIT] {
        // SAFETY: the call sets the default action, which runs no code of this process.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    vbts::child_main();
    let arguments = Arguments::from_args();
    if let (Err(error), false) = (Machine::find(), arguments.list) {
        println!("skipped: {error:#}");
    }
    let mut modules: Vec<&TestModule> = inventory::iter.into_iter().collect();
    modules.sort_by_key(|module| {
        let position = LONG.iter().position(|name| *name == module.name());
        (position.unwrap_or(LONG.len()), module.name())
    });
    let trials = modules.into_iter().flat_map(TestModule::trials);
    libtest_mimic::run(&arguments, trials.collect()).exit();
}
