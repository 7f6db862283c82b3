//! The vbts virtual machine monitor: a Linux guest with a working Intel Branch Trace Store.
//!
//! # Layers
//!
//! A module imports only from modules of the rows below its own; a test checks it. Only [`cli`]
//! knows the library that reads the command line.
//!
//! | modules | contents |
//! |---|---|
//! | [`cli`] | the command line: options into a configuration, and the commands |
//! | [`suite`] | the regression suite of the guest kernel's API: cases, their guests, reports |
//! | [`guest_files`], [`trace`] | our guest kernel and agent; the connection to the agent, and the formats of a trace |
//! | [`launch`] | from a configuration to a machine |
//! | [`accel`] | the choice of the accelerator |
//! | [`machine`], [`network`] | processors, board and run loop; the guest's networks and their TAP devices |
//! | [`board`], [`boot`], [`config`], [`console`], [`sandbox`], [`vcpu`] | devices on their buses; kernel and tables into memory; the configuration of a machine; the serial console; the system calls that a running machine is left with; a processor on either accelerator |
//! | [`host`], [`kvm`], [`program`] | standard input, output, the terminal and signals of the host; its KVM; the program to trace, as `execvp` would find it |
//! | [`exit`], [`memory`], [`root`] | the exit status; guest RAM; the directory that is the guest's root |
//! | [`layout`] | the physical address map |

pub mod accel;
pub mod board;
pub mod boot;
pub mod cli;
pub mod config;
pub mod console;
pub mod exit;
pub mod guest_files;
pub mod host;
pub mod kvm;
pub mod launch;
pub mod layout;
pub mod machine;
pub mod memory;
pub mod network;
pub mod program;
pub mod root;
pub mod sandbox;
pub mod suite;
pub mod trace;
pub mod vcpu;

#[cfg(test)]
mod layers;
