//! The files of the guests of vbts: kernels, and the programs that become the first process.
//!
//! It finds them, where `guest-kernel/build` leaves them or where they are installed, and makes the
//! initial file system. It does not build or boot them.
//!
//! # Example
//!
//! ```no_run
//! use vbts_guest_files::GuestFiles;
//!
//! # fn main() -> Result<(), vbts_host::exit::Failure> {
//! let model = vbts_cpu::model::model("core2").ok_or_else(|| anyhow::anyhow!("no such model"))?;
//! let files = GuestFiles::find(None, model)?;
//! let initramfs = files.initramfs()?;
//! # Ok(())
//! # }
//! ```

pub mod arch;
mod guest_files;

pub use guest_files::*;
