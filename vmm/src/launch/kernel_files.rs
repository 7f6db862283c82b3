//! The kernel that a machine boots, and its initial RAM disk.

use std::path::{Path, PathBuf};

use vbts_host::exit::Failure;

use crate::boot::read_file;
use crate::config::{Initrd, KernelConfig};

/// A kernel to boot, and its initial RAM disk.
#[derive(Debug)]
pub struct KernelFiles {
    path: PathBuf,
    image: Vec<u8>,
    initrd: Option<Vec<u8>>,
    append: String,
}

impl KernelFiles {
    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn read(kernel: KernelConfig) -> Result<Self, Failure> {
        let initrd = match kernel.initrd {
            Some(Initrd::File(path)) => Some(read_file(&path)?),
            Some(Initrd::Contents(archive)) => Some(archive),
            None => None,
        };
        Ok(Self {
            image: read_file(&kernel.image)?,
            path: kernel.image,
            initrd,
            append: kernel.append,
        })
    }

    /// The path of the kernel's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The kernel and the initial RAM disk of a recorded run, whose kernel had the path `path`.
    pub fn recorded(
        path: PathBuf,
        image: Vec<u8>,
        initrd: Option<Vec<u8>>,
        append: String,
    ) -> Self {
        Self {
            path,
            image,
            initrd,
            append,
        }
    }

    /// The contents of the initial RAM disk.
    pub fn initrd(&self) -> Option<&[u8]> {
        self.initrd.as_deref()
    }

    /// Words that are added to the kernel's command line.
    pub fn append(&self) -> &str {
        &self.append
    }

    /// The contents of the kernel's file.
    pub fn image(&self) -> &[u8] {
        &self.image
    }
}
