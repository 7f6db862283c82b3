//! The vbts virtual machine monitor: a Linux guest with a working Intel Branch Trace Store.
//!
//! [`config::MachineConfig`] describes a machine, [`launch::Launch`] builds it, and
//! [`machine::Machine`] runs it. The command line ([`cli`]) and the tests are users of these types.
//!
//! # Example
//!
//! Boots a kernel with its console on standard output, and without input:
//!
//! ```no_run
//! use std::os::fd::BorrowedFd;
//!
//! use vbts::board::Board;
//! use vbts::config::{Accelerator, KernelConfig, MachineConfig};
//! use vbts::exit::Failure;
//! use vbts::host::Event;
//! use vbts::launch::{KernelFiles, Launch};
//! use vbts::machine::{End, RunObserver};
//!
//! /// Ends the run at the first signal.
//! struct Unattended;
//!
//! impl RunObserver for Unattended {
//!     fn after_exit(&mut self, _: &Board, _: u64) -> Result<(), Failure> {
//!         Ok(())
//!     }
//!     fn event(&mut self, _: &Board, event: Event) -> Result<(), Failure> {
//!         match event {
//!             Event::Signal(signal) => Err(Failure::Signal(signal)),
//!             Event::Timeout => Ok(()),
//!         }
//!     }
//!     fn awaited_inputs(&self) -> Vec<BorrowedFd<'_>> {
//!         Vec::new()
//!     }
//! }
//!
//! fn boot() -> Result<End, Failure> {
//!     let config = MachineConfig {
//!         accelerator: Accelerator::Soft,
//!         processors: 2,
//!         ..MachineConfig::default()
//!     };
//!     let kernel = KernelConfig {
//!         image: "vmlinux".into(),
//!         initrd: None,
//!         append: "quiet".into(),
//!     };
//!     let mut machine = Launch::new(&config, true)?.boot(&KernelFiles::read(kernel)?)?;
//!     machine.run(&mut Unattended)
//! }
//! # let _ = boot;
//! ```
//!
//! # Layers
//!
//! A module imports only from modules of the rows below its own. A test checks this, and that only
//! [`cli`] names the library that reads the command line.
//!
//! | modules | contents |
//! |---|---|
//! | [`cli`] | the command line: options and commands |
//! | [`answers`], `suite` | answers from kept traces; the regression suite of the guest kernel's API |
//! | `guest_files`, `kernel_tree`, [`trace`] | vbts's guest files; kernel trees; traces of programs |
//! | [`launch`] | from a configuration to a machine |
//! | [`accel`] | the choice of the accelerator |
//! | [`machine`], `network` | run loops; networks and their TAP devices |
//! | [`board`], [`boot`], [`config`], `console`, `sandbox`, [`vcpu`] | the parts of a machine |
//! | [`host`], [`kvm`], `perf_map`, `program` | the host: I/O, KVM, perf; the program to trace |
//! | [`exit`], [`memory`], [`root`] | exit statuses; guest RAM; the guest's root directory |
//! | `arch`, `elf`, `escape`, [`layout`] | architectures; ELF headers; printable text; addresses |

pub mod accel;
pub mod answers;
mod arch;
pub mod board;
pub mod boot;
pub mod cli;
pub mod config;
mod console;
mod elf;
mod escape;
pub mod exit;
mod guest_files;
pub mod host;
mod kernel_tree;
pub mod kvm;
pub mod launch;
pub mod layout;
pub mod machine;
pub mod memory;
mod network;
mod perf_map;
mod program;
pub mod root;
mod sandbox;
mod suite;
pub mod trace;
pub mod vcpu;

#[cfg(test)]
mod layers;
