//! Whole guests: every test that starts `vbts`. The names of its modules, and of the tests in them,
//! can be filtered by.

use libtest_mimic::{Arguments, Trial};
use vbts_tests::machine::Machine;

mod answers;
mod at_work;
mod bad_input;
mod btrace;
mod causes;
mod cli;
mod clients;
mod crashes;
mod determinism;
mod endings;
mod files;
mod filters;
mod follow;
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
mod sandbox;
mod save_restore;
mod scope;
mod stepped_programs;
mod stock_kernel;
mod streams;
mod surroundings;
mod terminal;
mod vector_programs;

/// Tests of a module, whose name is given.
type Trials = fn(&str) -> Vec<Trial>;

/// The modules. Those that take long come first, so that nothing is left to wait for at the end.
const MODULES: [(&str, Trials); 45] = [
    ("kernel_selftests", kernel_selftests::trials),
    ("ptrace_bts", ptrace_bts::trials),
    ("kernel_trees", kernel_trees::trials),
    ("at_work", at_work::trials),
    ("stock_kernel", stock_kernel::trials),
    ("i386", i386::trials),
    ("clients", clients::trials),
    ("network", network::trials),
    ("perf_and_gdb", perf_and_gdb::trials),
    ("not_started", not_started::trials),
    ("many_tasks", many_tasks::trials),
    ("follow", follow::trials),
    ("endings", endings::trials),
    ("kept", kept::trials),
    ("vector_programs", vector_programs::trials),
    ("crashes", crashes::trials),
    ("hostile_agent", hostile_agent::trials),
    ("scope", scope::trials),
    ("sandbox", sandbox::trials),
    ("files", files::trials),
    ("filters", filters::trials),
    ("oracle", oracle::trials),
    ("random_programs", random_programs::trials),
    ("stepped_programs", stepped_programs::trials),
    ("answers", answers::trials),
    ("btrace", btrace::trials),
    ("record", record::trials),
    ("bad_input", bad_input::trials),
    ("real_programs", real_programs::trials),
    ("cli", cli::trials),
    ("overwritten", overwritten::trials),
    ("native_code", native_code::trials),
    ("perf_map", perf_map::trials),
    ("processors", processors::trials),
    ("long_trace", long_trace::trials),
    ("determinism", determinism::trials),
    ("save_restore", save_restore::trials),
    ("manual_page", manual_page::trials),
    ("streams", streams::trials),
    ("surroundings", surroundings::trials),
    ("terminal", terminal::trials),
    ("loopback", loopback::trials),
    ("left_behind", left_behind::trials),
    ("library", library::trials),
    ("causes", causes::trials),
];

fn main() {
    vbts::child_main();
    let arguments = Arguments::from_args();
    if let (Err(error), false) = (Machine::find(), arguments.list) {
        println!("skipped: {error:#}");
    }
    let trials = MODULES.iter().flat_map(|(name, trials)| trials(name));
    libtest_mimic::run(&arguments, trials.collect()).exit();
}
