//! The analysis of a kept trace: which functions ran, how often, and from where.
//!
//! `vbts_trace::profile` counts; this crate names and shows. It does not know how a trace was
//! captured, nor the command line.
//!
//! | module | contents |
//! |---|---|
//! | `code_files` | reads the code and the symbols of the traced files |
//! | `memory_code` | code that is in no file, with its names |
//! | `decode`, `load` | reads a trace, on all processors |
//! | `recent` | the last branches of the tasks of a long trace |
//! | `names`, `inlined` | names of functions, modules and programs; of inlined functions |
//! | `interpreters` | what names the functions that an interpreter executes |
//! | `short_names` | short forms of demangled names |
//! | `functions`, `calls` | functions with their counts; the call tree |
//! | `stat` | the counts of a run, and their difference from those of another |
//! | `call_trace`, `syscalls` | calls and returns in order; system calls |
//! | `folded`, `flamegraph`, `timeline`, `firefox` | call stacks for other tools; pictures of them |
//! | `callgrind`, `line_costs` | the call graph, for KCachegrind; costs of its source lines |
//! | `counts`, `coverage` | how often instructions and source lines were executed |
//! | `source_paths` | paths of source files by number |
//! | `lines`, `html`, `lcov` | source files and assembly with counts; coverage for other tools |
//! | `bolt` | profiles for tools that optimise and show binary code |
//! | `perf`, `perf_data` | the trace as a file of Linux perf |
//! | `open_calls` | the open calls of each task |
//! | `linkage` | joins a call through the procedure linkage table |
//! | `moment`, `diff` | the stacks at a moment; what two runs have executed differently |
//!
//! # Example
//!
//! Text in an HTML report:
//!
//! ```
//! assert_eq!(vbts_analysis::Xml("a<b>").to_string(), "a&lt;b&gt;");
//! ```

#![warn(unreachable_pub)]

mod bolt;
mod call_trace;
mod callgrind;
mod calls;
mod code_files;
mod counts;
mod coverage;
mod decode;
mod diff;
mod firefox;
mod flamegraph;
mod folded;
mod functions;
mod html;
mod inlined;
mod interpreters;
mod lcov;
mod line_costs;
mod lines;
mod linkage;
mod load;
mod memory_code;
mod moment;
mod names;
mod open_calls;
mod perf;
mod perf_data;
mod recent;
mod short_names;
mod source_paths;
mod stat;
mod syscalls;
mod timeline;

pub use bolt::{autofdo, bolt, drcov, find_module};
pub use call_trace::{CallTrace, Choice, call_trace};
pub use callgrind::callgrind;
pub use calls::calls;
pub use code_files::CodeFiles;
pub use coverage::{Coverage, Selection, coverage};
pub use diff::{Executions, Windows, diff, was_executed};
pub use firefox::{Samples, firefox};
pub use flamegraph::flamegraph;
pub use folded::folded;
pub use functions::{By, SortBy, Tasks, functions};
pub use html::html;
pub use interpreters::names_python;
pub use lcov::{cobertura, lcov};
pub use lines::{assembly, lines};
pub use load::{Loaded, Range, load};
pub use memory_code::MemoryCode;
pub use moment::{Stacks, Tail, moment, tail};
pub use names::Names;
pub use perf::{PerfError, perf};
pub use stat::{Stat, stat};
pub use syscalls::{SystemCalls, system_calls};
pub use timeline::{Timeline, timeline};

use std::fmt;
use std::io::Write;

/// What an answer is written to.
pub type Out<'a> = dyn Write + 'a;

/// A part of a whole in percent.
fn percent(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        _ => 100.0 * part as f64 / whole as f64,
    }
}

/// Text in an XML or HTML document.
#[derive(Debug, Clone, Copy)]
pub struct Xml<'a>(pub &'a str);

impl fmt::Display for Xml<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        while let Some(at) = rest.find(['&', '<', '>', '"', '\'']) {
            let (plain, from) = rest.split_at(at);
            f.write_str(plain)?;
            let mut chars = from.chars();
            match chars.next() {
                Some('&') => f.write_str("&amp;")?,
                Some('<') => f.write_str("&lt;")?,
                Some('>') => f.write_str("&gt;")?,
                Some('"') => f.write_str("&quot;")?,
                _ => f.write_str("&#39;")?,
            }
            rest = chars.as_str();
        }
        f.write_str(rest)
    }
}
