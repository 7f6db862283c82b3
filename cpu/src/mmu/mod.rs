//! Linear memory: paging, the software TLB, and guest RAM.

pub(crate) mod paging;
pub mod ram;
pub(crate) mod tlb;
