//! Traces programs, branch by branch, in a virtual machine with a working Intel Branch Trace Store.
//!
//! [`Tracer`] runs a program in a guest, [`Machine`] boots a kernel, and [`Trace`] is what was
//! executed: each taken branch, in order, or the functions with their exact counts.
//!
//! Guests run in processes of their own. This library puts no sandbox around its caller, starts no
//! thread in it, and can be used from several threads. The processes are the program `vbts`, which
//! this package installs, or the caller's own program if that calls [`child_main`] first.
//!
//! The package is the front of others: `vbts-vmm` is the virtual machine, `vbts-capture` the trace
//! of a program in it, `vbts-symbols` names addresses, `vbts-trace` has the format of kept traces,
//! `vbts-analysis` the reports, `vbts-suite` the regression suite for kernels, and `vbts-cli` the
//! command line.
//!
//! # Examples
//!
//! The functions of `ls` that execute most instructions:
//!
//! ```no_run
//! fn main() -> Result<(), vbts::Error> {
//!     vbts::child_main();
//!     let trace = vbts::Tracer::new("/bin/ls").arg("/").run()?;
//!     for function in trace.functions(10)? {
//!         println!("{:>10} {}", function.instructions, function.name);
//!     }
//!     Ok(())
//! }
//! ```
//!
//! The branches of a kept trace, here of one that the example writes itself:
//!
//! ```
//! use vbts::{Branch, End, Item, Run, Summary, Trace};
//!
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("loop.btrace");
//! let mut writer = vbts_trace::Writer::new(std::fs::File::create(&path)?, &Run::default())?;
//! writer.branches(0, &[Branch { from: 0x1010, to: 0x1000 }; 7])?;
//! writer.finish(&Summary { exit: Some(0), ..Summary::default() })?;
//!
//! let trace = Trace::open(path)?;
//! assert_eq!(trace.end(), End::Exited(0));
//! let mut reader = trace.reader()?;
//! while let Some(item) = reader.next_item()? {
//!     if let Item::Branches { branches, .. } = item {
//!         assert!(branches.iter().all(|branch| branch.to < branch.from));
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod child;
mod error;
mod function;
mod launch;
mod machine;
mod trace;
mod tracer;

pub use child::child_main;
pub use error::Error;
pub use function::Function;
pub use launch::Launch;
pub use machine::{Kernel, Machine};
pub use trace::{End, Trace};
pub use tracer::{Program, Scope, Tracer};
pub use vbts_trace::{Branch, Event, Item, Reader, Run, Summary};
