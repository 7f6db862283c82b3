//! The processor that instructions act on: registers, memory access, segmentation, events,
//! model-specific registers, counters and branch recording.

pub(crate) mod branch_trace;
pub mod clock;
pub mod cpu;
pub(crate) mod debug;
pub(crate) mod exception;
pub(crate) mod frame;
pub(crate) mod interrupt;
pub(crate) mod memory;
pub(crate) mod msr;
pub mod platform;
pub(crate) mod pmu;
pub(crate) mod reset;
pub(crate) mod segment;
pub mod usage;
