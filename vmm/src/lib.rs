//! The vbts virtual machine monitor: a Linux guest with a working Intel Branch Trace Store.
//!
//! # Map
//!
//! | module | what it is |
//! |---|---|
//! | [`layout`], [`memory`] | the physical address map and the RAM in it |
//! | [`boot`] | kernel, initrd, command line and tables into memory; the processor at its first instruction |
//! | [`board`], [`machine`] | the devices on their buses; processor, board and run loop |
//! | [`vcpu`], [`kvm`] | a processor on either of the two accelerators; the host's KVM |
//! | [`accel`] | which of them runs the guest, and why |
//! | [`network`] | the guest's networks, and the TAP devices that they are connected to |
//! | [`console`] | the guest's serial console: its end, and whether it shows a panic |
//! | [`host`] | standard input, the terminal and signals of the host |
//! | [`launch`], [`guest_files`] | from options to a machine; our own guest kernel and agent |
//! | [`program`], [`walk`] | the program to trace, as `execvp` would find it; paths inside the guest's root |
//! | [`sandbox`] | the system calls that a running machine is left with |
//! | [`suite`] | the regression suite of the guest kernel's API: cases, the guests for them, reports |
//! | [`trace`] | the conversation with the guest's agent, and the formats of a trace |
//! | [`cli`], [`exit`] | the command line and its exit status |

pub mod accel;
pub mod board;
pub mod boot;
pub mod cli;
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
pub mod sandbox;
pub mod suite;
pub mod trace;
pub mod vcpu;
pub mod walk;
