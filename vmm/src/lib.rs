//! The virtual machine: a Linux guest with a working Intel Branch Trace Store.
//!
//! [`config::MachineConfig`] describes a machine, [`launch::Launch`] builds it, and
//! [`machine::Machine`] runs it. The crate contains neither instructions, which `vbts-cpu` has, nor
//! device models, which `vbts-devices` has, nor anything about a traced program.
//!
//! # Example
//!
//! Boots a kernel with its console on standard output, and without input:
//!
//! ```no_run
//! use vbts_vmm::board::Board;
//! use vbts_vmm::config::{Accelerator, KernelConfig, MachineConfig};
//! use vbts_host::exit::Failure;
//! use vbts_vmm::launch::{KernelFiles, Launch};
//! use vbts_vmm::machine::{End, RunObserver};
//!
//! /// Ends the run at the first signal.
//! struct Unattended;
//!
//! impl RunObserver for Unattended {
//!     fn after_exit(&mut self, _: &Board, _: u64) -> Result<(), Failure> {
//!         Ok(())
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
//! A module imports only from modules of the rows below its own. A test checks this.
//!
//! | modules | contents |
//! |---|---|
//! | [`launch`] | from a configuration to a machine |
//! | [`accel`] | the choice of the accelerator |
//! | [`machine`], [`network`] | run loops; networks and their TAP devices |
//! | [`board`], [`boot`], [`config`], [`console`], [`vcpu`] | the parts of a machine |
//! | [`kvm`], `perf_map`, [`inputs`] | KVM; names of native code for perf; recorded inputs |
//! | [`memory`] | guest RAM |
//! | [`layout`] | addresses |

#![warn(unreachable_pub)]

pub mod accel;
pub mod board;
pub mod boot;
pub mod config;
pub mod console;
pub mod inputs;
pub mod kvm;
pub mod launch;
pub mod layout;
pub mod machine;
pub mod memory;
pub mod network;
mod perf_map;
pub mod vcpu;

#[cfg(test)]
mod layers;
