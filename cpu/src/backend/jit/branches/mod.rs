//! Branches, their records, and the ends of blocks.

mod exits;
mod near;
mod record;
