//! A full-system x86-64 CPU in software that sees every branch, so it can store every branch.
//!
//! # Map
//!
//! The modules are layers, from the lowest to the highest. A file imports only from its own layer
//! and from those below it; `tests/layers.rs` checks that and lists the exceptions.
//!
//! | layer | contents |
//! |---|---|
//! | [`state`] | [`ArchState`], the architectural state; registers' bits, MSR numbers, lazy flags |
//! | [`mod@model`] | the processor models: CPUID leaves, features and MSRs |
//! | [`mmu`] | paging, the software TLB, guest RAM, the map of decoded code |
//! | [`insn`] | the decoded instruction as data |
//! | `decode` | bytes to [`insn::Insn`], with iced-x86 |
//! | [`processor`] | [`Cpu`], the processor that instructions act on, and the [`Platform`] around it |
//! | `exec` | what each instruction does, a file for each family of the manual |
//! | [`backend`] | the interpreter: operations and the dispatch from one to the next; native code |
//! | [`engine`] | [`SoftCpu`]: the run loop, cached blocks, links, invalidation |
//!
//! # Example
//!
//! A loop of three iterations in real-address mode, with its two taken branches recorded:
//!
//! ```
//! use std::sync::Arc;
//!
//! use vbts_cpu::{ArchState, Cpu, DebugCtl, Exit, SoftCpu, model};
//! use vbts_testkit::{Ram, TestPlatform};
//!
//! // MOV CX, 3; LOOP to itself, at offset 3; HLT
//! const CODE: [u8; 6] = [0xB9, 3, 0, 0xE2, 0xFE, 0xF4];
//! const DS_AREA: u64 = 0x1000;
//! const BUFFER: u64 = 0x2000;
//! const RECORD: u64 = 24;
//!
//! let ram = Ram::new(0x10000);
//! ram.write(0x7000, &CODE);
//! // Base, index, absolute maximum and threshold of the BTS buffer.
//! let end = BUFFER + 16 * RECORD;
//! for (at, field) in (DS_AREA..).step_by(8).zip([BUFFER, BUFFER, end, end]) {
//!     ram.write(at, &field.to_le_bytes());
//! }
//!
//! let model = model("core2").unwrap();
//! let mut state = ArchState::after_reset(model);
//! // A start-up IPI with vector 7 starts at address 0x7000.
//! state.start_up(7);
//! state.debugctl = (DebugCtl::TR | DebugCtl::BTS).bits();
//! state.ds_area = DS_AREA;
//!
//! let platform = Arc::new(TestPlatform::default());
//! let signals = platform.signals.clone();
//! let mut soft = SoftCpu::new(Cpu::new(model, ram.for_cpu(), platform, signals));
//! soft.cpu.load_state(&state);
//! assert_eq!(soft.run(1000), Exit::Halt { interrupts_off: true });
//!
//! // The index is past two records; the source and the target of the first are LOOP.
//! assert_eq!(ram.read_u64(DS_AREA + 8), BUFFER + 2 * RECORD);
//! assert_eq!(ram.read_u64(BUFFER), 0x7003);
//! assert_eq!(ram.read_u64(BUFFER + 8), 0x7003);
//! assert_eq!(soft.cpu.instructions(), 5);
//! ```
//!
//! # What is left out
//!
//! Virtual-8086 mode and hardware task switches. IRET to a frame with VM set, IRET with NT set, a
//! far transfer to a TSS or a task gate, and a task gate in the IDT are #GP in protected mode, as
//! most of them are in IA-32e mode (SDM Vol. 3A 7.7).
//!
//! # How an instruction runs
//!
//! A block of guest code is decoded once into [`insn::Insn`]s. The interpreter lowers them to
//! operations, which the engine caches by physical address. The handler of an operation gets
//! `&mut Cpu` and the `&Insn`. It returns [`insn::Flow`], or [`insn::Abort`] after it has put the
//! reason into the CPU. The code of each operation continues with the next one until one jumps (see
//! [`backend::interpreter::dispatch`]). The run loop goes from block to block, by the link of a
//! direct branch or by a table of targets for other branches. A handler either completes or changes
//! nothing: it computes first, stores to memory next, and commits registers and flags last, so that
//! a faulting instruction can be restarted (SDM Vol. 3A 6.5).

#![warn(unreachable_pub)]

pub mod backend;
mod decode;
pub mod engine;
mod exec;
pub mod insn;
pub mod mmu;
pub mod model;
pub mod processor;
pub mod state;

pub use backend::jit::{NativeCode, NativeListener, NativeOptions, NativePart, NativeStats};
pub use engine::{Exit, Snapshot, SoftCpu};
pub use mmu::access::canonical;
pub use mmu::ram::GuestRam;
pub use mmu::reservation::{ARCH_SET_GS, Reservation, ReservedMemory};
pub use model::{Leaf, MODELS, Model, TSC_HZ, Topology, host_has, model, model_without_bts};
pub use processor::armed::MalformedDsArea;
pub use processor::branch_log::{
    BranchLog, LogBuffer, LogEntry, LogScope, LogSink, Probe, ProbeAction,
};
pub use processor::clock::{Clock, HostClock};
pub use processor::cpu::Cpu;
pub use processor::platform::{Platform, Signals, Startup};
pub use processor::stop_points::{Breakpoint, StopCause, StopPoints, WatchKind, Watchpoint};
pub use state::{Activity, ArchState, Usage};
pub use vbts_bts::DebugCtl;
