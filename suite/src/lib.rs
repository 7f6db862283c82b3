//! The regression suite of the guest kernel's `ptrace` BTS requests (guest-kernel/tests): its
//! cases, the guests that run them, and the reports. KUnit and the kernel's selftests run in the
//! same way.
//!
//! A kernel under test may hang or crash its guest, so that each guest has a process of its own.
//! The crate does not know how a trace is made, nor the command line.
//!
//! | module | contents |
//! |---|---|
//! | `case`, `outcome` | cases, and how they ended |
//! | `lines` | the lines of a guest's console |
//! | `guest` | a guest in a process of its own |
//! | `supervisor` | boots guests and waits for their output, their end, and limits |
//! | `group` | a group of cases and the case that runs |
//! | `source` | where the cases come from: the suite, KUnit (`kunit`), the kernel's selftests |
//! | `kernel_tree` | builds a kernel and its selftests from their sources |
//! | `guest_run` | applies what a guest prints, and its end, to its group |
//! | `run` | runs all cases |
//! | `comparison` | what differs between several kernels |
//! | `shard`, `merge` | parts of the suite, and one report of theirs |
//! | `report` | reports as KTAP (`ktap`), JUnit's XML (`junit`), and for KernelCI (`kcidb`) |
//!
//! # Example
//!
//! The cases of a group, and those of them that the first of two jobs runs:
//!
//! ```
//! use vbts_suite::shard::Shard;
//! use vbts_suite::{Case, select};
//!
//! let names = ["basic.wrap", "basic.errors", "signal.wrap"];
//! let cases = names.map(|name| Case::of_the_kernel(name.into()));
//! let basic = select(cases.to_vec(), &["basic".into()])?;
//! assert_eq!(basic.len(), 2);
//!
//! let shards: [Shard; 2] = ["1/2".parse()?, "2/2".parse()?];
//! for case in &basic {
//!     let jobs = shards.iter().filter(|shard| shard.has(&case.name));
//!     assert_eq!(jobs.count(), 1);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(unreachable_pub)]

mod case;
mod comparison;
mod group;
pub mod guest;
mod guest_run;
mod junit;
pub mod kcidb;
pub mod kernel_tree;
mod ktap;
mod kunit;
mod lines;
pub mod merge;
mod outcome;
pub mod report;
pub mod run;
pub mod shard;
pub mod source;
mod supervisor;

pub use case::{Case, Needs, list, select};
pub use outcome::{CaseResult, Counts, Outcome, Run};
