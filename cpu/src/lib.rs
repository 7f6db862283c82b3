//! A full-system x86-64 CPU in software that sees every branch, so it can store every branch.
//!
//! # Map
//!
//! | module | what it models |
//! |---|---|
//! | [`state`] | the architectural state, in the one form that every accelerator exchanges |
//! | [`platform`] | what the CPU needs from the machine around it: physical bus and local APIC |
//! | [`ram`] | guest-physical RAM |
//! | [`clock`] | where time comes from: instructions, or the host |
//! | `cpu` | [`Cpu`]: registers and the helpers that instructions are written with |
//! | `flags` | RFLAGS, the arithmetic ones evaluated lazily |
//! | `tlb`, `paging`, `mem` | linear memory: software TLB, page walk, loads and stores |
//! | [`insn`], `decode` | the decoded instruction as data, decoding with iced-x86 |
//! | [`backend::interpreter`] | operations: instructions in the form that the interpreter executes |
//! | [`dispatch`] | from one operation of a block to the next |
//! | `block` | the cache of decoded blocks |
//! | `engine` | [`SoftCpu`]: the run loop |
//! | `exec` | the instructions, a file a family |
//! | `exception`, `interrupt`, `debug` | events and their delivery |
//! | `segment`, `frame` | protected-mode structures: descriptors, and the stack as far transfers use it |
//! | `reset` | RESET, INIT and the start-up IPI |
//! | `cpuid`, `msr` | the CPU models as data |
//! | `pmu` | performance monitoring: what the counters count, and when they interrupt |
//! | `record` | where a taken branch meets the Branch Trace Store |
//!
//! # What is left out
//!
//! Virtual-8086 mode and hardware task switches. IRET to a frame with VM set, IRET with NT set, a
//! far transfer to a TSS or a task gate, and a task gate in the IDT are #GP in protected mode, as
//! most of them are in IA-32e mode (SDM Vol. 3A 7.7).
//!
//! # How an instruction runs
//!
//! A block of guest code is decoded once into [`insn::Insn`]s, which the interpreter lowers to
//! operations and caches by physical address. The handler of an operation gets `&mut Cpu` and the
//! `&Insn`, and returns [`insn::Flow`], or [`insn::Abort`] after it has put the reason into the CPU.
//! The code of each operation continues with the next one (see [`dispatch`]), until one jumps. The run loop goes from block to block, by the link of a direct
//! branch or, for others, a table of targets. A handler either completes or leaves no trace: it
//! computes first, stores to memory next, and commits registers and flags last, so that a faulting
//! instruction can be restarted (SDM Vol. 3A 6.5).

pub mod backend;
mod decode;
pub mod engine;
mod exec;
pub mod insn;
pub mod mmu;
pub mod model;
pub mod processor;
pub mod state;

pub use engine::{Exit, SoftCpu};
pub use mmu::ram::GuestRam;
pub use model::{Leaf, MODELS, Model, TSC_HZ, Topology, model, model_without_bts};
pub use processor::clock::{Clock, HostClock};
pub use processor::cpu::Cpu;
pub use processor::platform::{Platform, Signals, Startup};
pub use processor::usage::Usage;
pub use state::ArchState;
