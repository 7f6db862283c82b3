//! The recorder, on memory that the tests provide.
//!
//! All tests are one program, because linking one program for each file takes much longer.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a panic fails the test"
)]

mod addresses;
mod buffer;
mod common;
mod formats;
mod memory;
mod model;
mod registers;
mod window;
