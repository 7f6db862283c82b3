//! Control registers, MSRs, CPUID, and what only the kernel may do.

mod control;
mod cpuid;
mod msrs;
mod privilege;
