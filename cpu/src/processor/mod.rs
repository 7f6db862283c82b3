//! The processor that instructions act on: registers, memory access, segmentation, events,
//! model-specific registers, counters and branch recording.

mod arch_state;
pub mod armed;
pub mod branch_log;
pub(crate) mod branch_trace;
pub mod clock;
pub mod cpu;
mod cpuid;
pub(crate) mod debug;
mod ds_memory;
pub(crate) mod exception;
pub(crate) mod fault;
pub(crate) mod frame;
pub(crate) mod interrupt;
pub(crate) mod jump_keys;
pub(crate) mod last_branches;
pub(crate) mod memory;
mod mode;
pub(crate) mod msr;
pub(crate) mod pending_work;
pub mod platform;
pub(crate) mod pmu;
mod read_modify_write;
mod registers;
pub(crate) mod segment;
pub(crate) mod spin;
mod split_lock;
pub mod stop_points;
pub(crate) mod task_switch;
mod translation;
pub mod usage;
pub(crate) mod virtual_8086;
pub(crate) mod xsave;
