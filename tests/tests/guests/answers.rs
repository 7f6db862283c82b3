//! `vbts report`: answers from a trace, compared with those of other tools about the same program,
//! and with what is known of it (`programs/answers.c`).

pub mod bolt;
mod browser;
mod build_ids;
mod call_trace;
mod counts;
mod coverage;
mod debuginfod;
mod different_branch;
mod forks;
mod generated;
mod guide;
mod inlined;
mod kernel;
mod kernel_lines;
mod languages;
mod linkage;
mod long_trace;
mod mappings;
mod moments;
mod names;
mod profiles;
mod stat;
mod syscalls;
mod thread_names;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use vbts_tests::machine::{self, Machine, Skip, TestModule};
use vbts_tests::programs;

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("callgrind", counts::callgrind),
            ("callgrind_lines", counts::callgrind_lines),
            ("callgrind_report", counts::callgrind_report),
            ("callgrind_of_programs", counts::callgrind_of_programs),
            ("gcov", coverage::gcov),
            ("llvm_cov", coverage::llvm_cov),
            ("debuginfod_is_asked", debuginfod::fetches),
            ("debug_information", coverage::debug_information),
            ("genhtml", coverage::genhtml),
            ("kinds_of_calls", counts::kinds_of_calls),
            ("forks", forks::no_gaps),
            ("patched_kernel", kernel::patched),
            ("system_calls_differ", kernel::system_calls_differ),
            ("the_kernel_is_found", kernel::found),
            ("kernel_lines", kernel_lines::system_call),
            ("kernel_lines_of_a_boot", kernel_lines::boot),
            ("two_runs", moments::two_runs),
            ("two_runs_of_tasks", moments::two_runs_of_tasks),
            ("the_branch_that_differs", different_branch::is_found),
            ("moments", moments::moments),
            (
                "a_long_trace_is_read_from_its_end",
                long_trace::is_read_from_its_end,
            ),
            ("stat", stat::counts),
            ("calls_as_the_program_says", call_trace::as_the_program_says),
            ("calls_of_a_function_behind_many", call_trace::late),
            ("inlined_functions_have_frames", inlined::have_frames),
            (
                "inlined_functions_are_in_the_stack",
                inlined::are_in_the_stack,
            ),
            ("inlined_functions_have_scopes", inlined::have_scopes),
            ("inlined_functions_that_are_split", inlined::that_are_split),
            ("the_linkage_is_no_caller", linkage::is_no_caller),
            (
                "the_linkage_of_a_stripped_linker",
                linkage::of_a_stripped_linker,
            ),
            ("the_linkage_is_no_difference", linkage::is_no_difference),
            (
                "mappings_of_closed_libraries",
                mappings::of_closed_libraries,
            ),
            (
                "mappings_of_replaced_programs",
                mappings::of_replaced_programs,
            ),
            ("hostile_names", names::hostile_names),
            ("thread_names", thread_names::of_a_c_program),
            ("thread_names_of_a_recording", thread_names::of_a_recording),
            ("thread_names_of_java", thread_names::of_a_java_program),
            ("stripped", names::stripped),
            (
                "moved_part_of_a_stripped_program",
                names::moved_part_of_a_stripped_program,
            ),
            (
                "tail_call_of_a_moved_part",
                names::tail_call_of_a_moved_part,
            ),
            (
                "positions_in_a_stripped_program",
                names::positions_in_a_stripped_program,
            ),
            (
                "the_end_of_a_stripped_program",
                names::end_of_a_stripped_program,
            ),
            ("optimised", bolt::optimised),
            ("firefox", profiles::firefox),
            ("perfetto", profiles::perfetto),
            ("flamegraph_in_a_browser", browser::flamegraph),
            ("coverage_in_a_browser", browser::coverage),
            ("autofdo", profiles::autofdo),
            ("perf", profiles::perf),
            ("llvm_profile", profiles::llvm_profile),
            ("guide_readme", guide::readme),
            ("guide_what_ran", guide::what_ran),
            ("guide_languages", guide::languages),
            ("guide_coverage", guide::coverage),
            ("guide_what_happened", guide::what_happened),
            ("guide_compare_runs", guide::compare_runs),
            ("guide_where_time_goes", guide::where_time_goes),
            ("guide_optimise", guide::optimise),
            ("guide_record_and_replay", guide::record_and_replay),
            ("jit", generated::jit),
            ("methods_of_java", generated::java),
            ("vdso", generated::vdso),
            ("code_that_was_written_over", generated::written_over),
            ("replaced_files", build_ids::replaced),
            ("changed_source", build_ids::changed_source),
            ("debuginfod", build_ids::debuginfod),
            ("at_once", languages::at_once),
            ("system_calls", syscalls::are_counted),
            ("rows_are_sorted", languages::sorted),
            ("several_reports_of_one_run", languages::several_reports),
            ("ia32", languages::ia32),
            ("cpp", languages::cpp),
            ("rust", languages::rust),
            ("coroutines", languages::coroutines),
            ("go", languages::go),
        ],
    )
}

/// What `vbts report` says where the code does not lead from one branch to the next.
const GAPS: &str = " times the code does not lead from one branch to the next";

/// The number of such places in a trace.
fn gaps(machine: &Machine, trace: &Path) -> Result<u64> {
    let mut command = machine.command(["report", "functions", "--kernel"]);
    command.arg(machine.kernel()).arg(trace);
    let run = machine::finish(command)?.expect(0)?;
    let mut lines = run.stderr.lines();
    let count = lines.find_map(|line| line.strip_prefix("vbts: ")?.strip_suffix(GAPS));
    Ok(count.map_or(Ok(0), str::parse)?)
}

/// A program, and a trace of it.
struct Traced {
    directory: tempfile::TempDir,
    program: PathBuf,
    trace: PathBuf,
}

/// Compiles the program with `flags` and traces it with `arguments`.
fn traced(machine: &Machine, flags: &[&str], arguments: &[&str]) -> Result<Traced> {
    let directory = tempfile::tempdir()?;
    let program = directory.path().join("answers");
    programs::gcc(&programs::source("answers.c"), &program, flags)?;
    let trace = directory.path().join("answers.btrace");
    let words = [&[program.to_str().context("a path")?], arguments].concat();
    let options = ["--epoch", "0"];
    machine
        .trace("btrace", &trace, &options, &words)?
        .expect(0)?;
    Ok(Traced {
        directory,
        program,
        trace,
    })
}

/// The output of `vbts report`, which must have nothing to complain of.
fn report(machine: &Machine, words: &[&str], trace: &Path) -> Result<String> {
    let mut command = machine.command(["report"]);
    command.args(words).arg(trace);
    let run = machine::finish(command)?.expect(0)?;
    ensure!(run.stderr.is_empty(), "{words:?}: {}", run.stderr);
    Ok(String::from_utf8(run.stdout)?)
}

/// A tool of the host, if it is there.
pub fn tool(name: &str, arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(name);
    command.args(arguments).stdin(Stdio::null());
    let found = Command::new(name).arg("--version").output();
    if !found.is_ok_and(|output| output.status.success()) {
        bail!(Skip(format!("{name} is not installed")));
    }
    Ok(command)
}

/// The tools of LLVM with these names, of the newest version that has them all: one version does
/// not read each file of another one. A tool must have its own path: by another name, it is another
/// program.
fn llvm<const N: usize>(names: [&str; N]) -> Result<[PathBuf; N]> {
    let tools = |version: u32| {
        names.map(|name| PathBuf::from(format!("/usr/lib/llvm-{version}/bin/{name}")))
    };
    let mut versions = (14..40).rev().map(tools);
    versions
        .find(|tools| tools.iter().all(|path| path.exists()))
        .ok_or_else(|| Skip(format!("no LLVM here has {}", names.join(", "))).into())
}

/// The argument that gives an option of a tool a path.
pub fn option(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}

/// Calls and instructions of functions, by their names.
pub type Counts = HashMap<String, (u64, u64)>;

/// Calls and instructions of each function, by its name.
pub fn functions(machine: &Machine, trace: &Path) -> Result<Counts> {
    function_rows(&report(machine, &FUNCTIONS, trace)?)
}

/// What asks for the rows of all functions.
const FUNCTIONS: [&str; 5] = ["functions", "--json", "--limit", "1000000", "--no-inline"];

fn function_rows(rows: &str) -> Result<Counts> {
    let mut functions = Counts::new();
    for line in rows.lines() {
        let row: Value = serde_json::from_str(line)?;
        let number = |name: &str| row[name].as_u64().context("no number");
        let name = row["name"].as_str().context("no name")?;
        let sum = functions.entry(name.to_owned()).or_default();
        *sum = (sum.0 + number("calls")?, sum.1 + number("instructions")?);
    }
    Ok(functions)
}
