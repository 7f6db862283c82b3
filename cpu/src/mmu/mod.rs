//! Linear memory: paging, the software TLB, and guest RAM.

pub(crate) mod access;
pub(crate) mod code_map;
pub(crate) mod fetched;
pub(crate) mod flushed;
pub(crate) mod host_access;
pub(crate) mod paging;
pub mod ram;
pub(crate) mod region_filter;
pub mod reservation;
pub(crate) mod tlb;
pub mod translations;
pub(crate) mod written_pages;
