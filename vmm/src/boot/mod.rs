//! Boot loading: writes a kernel and all data that it reads before it has drivers into guest
//! memory.
//!
//! Both formats of kernels are entered through a boot protocol of Linux
//! (Documentation/arch/x86/boot.rst), RSI pointing to `boot_params`: those for x86-64 through the
//! 64-bit one, in long mode with the first 4 GiB identity mapped, and those for i386 through the
//! 32-bit one, in protected mode without paging.

pub mod acpi;
mod bzimage;
pub mod cmdline;
pub mod cpio;
pub(crate) mod elf;
pub mod mptable;
pub mod params;
pub mod registers;

use std::io::Read as _;
use std::path::{Path, PathBuf};

use thiserror::Error;
use vm_memory::{Bytes, GuestAddress};

use crate::layout;
use crate::memory::{self, GuestMemory, Size};
use params::BootParams;
use vbts_host::whole_file;

/// What to boot.
#[derive(Debug)]
pub struct BootSource<'a> {
    /// Contents of the kernel file.
    pub kernel: &'a [u8],
    /// Contents of the initial RAM disk, if there is one.
    pub initrd: Option<&'a [u8]>,
    /// Kernel command line.
    pub cmdline: &'a str,
    /// Number of logical processors.
    pub processors: u8,
    /// I/O APIC input of each virtio-mmio device, in order. The inputs are level-triggered.
    pub level_gsis: &'a [u8],
    /// Seed of the kernel's random number generator.
    pub rng_seed: params::RngSeed,
}

/// Why a machine cannot be booted.
#[derive(Debug, Error)]
pub enum BootError {
    /// A file cannot be read.
    #[error("Cannot read {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the host.
        source: std::io::Error,
    },
    /// The file is neither an ELF file nor a bzImage.
    #[error("not a kernel: neither an ELF vmlinux nor a bzImage (it begins with {0})")]
    NotAKernel(String),
    /// The ELF file cannot be booted.
    #[error("not a kernel: {0}")]
    UnsuitableElf(&'static str),
    /// The file ends before its contents do.
    #[error("truncated kernel: {part} ends at byte {end}, but the file has only {len}")]
    Truncated {
        /// The missing part.
        part: &'static str,
        /// Offset in the file where the part would end.
        end: u64,
        /// File length in bytes.
        len: u64,
    },
    /// The bzImage does not say how much memory it needs.
    #[error("bzImage of boot protocol {major}.{minor:02}: it needs a kernel since Linux 2.6.31")]
    OldProtocol {
        /// Version, high byte.
        major: u8,
        /// Version, low byte.
        minor: u8,
    },
    /// The file is a zImage: its code is loaded below 1 MiB.
    #[error("not a bzImage: its code is for memory below 1 MiB (LOADED_HIGH is clear)")]
    LoadedLow,
    /// The kernel's address range is not free RAM.
    #[error(
        "kernel needs memory from {start:#x} to {end:#x}, but it may use {from:#x} to {to:#x}: \
         give --memory more"
    )]
    KernelDoesNotFit {
        /// First address of the kernel.
        start: u64,
        /// First address after the kernel.
        end: u64,
        /// First address that a kernel may use.
        from: u64,
        /// First address after the memory that a kernel may use.
        to: u64,
    },
    /// The initrd does not fit between the kernel and the end of low memory.
    #[error(
        "initrd of {size} bytes does not fit into the {room} bytes of memory beside the kernel: \
         give --memory more than {memory}"
    )]
    InitrdDoesNotFit {
        /// Size of the initrd in bytes.
        size: u64,
        /// Free bytes.
        room: u64,
        /// Memory of the machine.
        memory: Size,
    },
    /// The command line is too long.
    #[error(
        "kernel command line of {0} bytes is longer than {max}",
        max = layout::COMMAND_LINE_SIZE - 1
    )]
    CommandLineTooLong(usize),
    /// The command line contains a zero byte or a line end.
    #[error("kernel command line contains a control character")]
    CommandLineControl,
    /// The words that vbts adds do not fit on the command line.
    #[error("Cannot build the kernel command line")]
    CommandLine(#[from] linux_loader::cmdline::Error),
    /// A kernel that passed all checks could not be loaded.
    #[error("Cannot load the kernel into guest memory")]
    Loader(#[from] linux_loader::loader::Error),
    /// The boot parameters could not be written.
    #[error("Cannot write the boot parameters")]
    Parameters(#[from] linux_loader::configurator::Error),
    /// Writing guest memory failed.
    #[error("Cannot write guest memory")]
    Memory(#[from] vm_memory::GuestMemoryError),
}

/// The boot protocol through which a kernel is entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// "32-bit Boot Protocol".
    Bits32,
    /// "64-bit Boot Protocol".
    Bits64,
}

/// A kernel in guest memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedKernel {
    /// Guest-physical address of the first instruction.
    pub entry: u64,
    /// How it is entered.
    pub protocol: Protocol,
    /// First guest-physical address after the memory that the kernel uses while it starts.
    pub end: u64,
    /// The kernel's own setup header; a bzImage has one.
    pub setup_header: Option<Vec<u8>>,
    /// Highest address that the initrd may touch.
    pub initrd_max: u64,
}

/// Reads a regular file that is to be booted.
///
/// # Errors
/// [`BootError::Read`].
pub fn read_file(path: &Path) -> Result<Vec<u8>, BootError> {
    whole_file::read(path).map_err(|source| BootError::Read {
        path: path.into(),
        source,
    })
}

/// The protocol by which the kernel in the file `path` is entered.
///
/// # Errors
/// [`BootError::Read`], or [`BootError::NotAKernel`].
pub fn protocol_of(path: &Path) -> Result<Protocol, BootError> {
    let failed = |source| BootError::Read {
        path: path.into(),
        source,
    };
    let mut start = Vec::new();
    let file = whole_file::open(path).map_err(failed)?;
    let mut headers = file.take(bzimage::HEADER_END as u64);
    headers.read_to_end(&mut start).map_err(failed)?;
    if start.starts_with(&object::elf::ELFMAG) {
        Ok(elf::protocol_of(&start))
    } else if bzimage::is_bzimage(&start) {
        Ok(bzimage::protocol_of(&start))
    } else {
        Err(BootError::NotAKernel(describe_start(&start)))
    }
}

/// Loads `source` into `memory` and returns the state in which the boot processor starts.
///
/// # Errors
/// The kernel, the initrd or the command line is unsuitable; the message says why.
pub fn load(
    memory: &GuestMemory,
    source: &BootSource<'_>,
) -> Result<vbts_cpu::ArchState, BootError> {
    let kernel = load_kernel(memory, source.kernel)?;
    let initrd = source
        .initrd
        .map(|data| load_initrd(memory, &kernel, data))
        .transpose()?;
    cmdline::check(source.cmdline)?;
    memory.write_slice(
        source.cmdline.as_bytes(),
        GuestAddress(layout::COMMAND_LINE),
    )?;
    memory.write_slice(
        &params::rng_seed_setup_data(&source.rng_seed),
        GuestAddress(layout::SETUP_DATA),
    )?;
    let table = mptable::build(source.processors, source.level_gsis);
    memory.write_slice(&table, GuestAddress(layout::MP_TABLE))?;
    let tables = acpi::build(source.processors, source.level_gsis);
    memory.write_slice(&tables, GuestAddress(layout::ACPI_TABLES))?;

    let mut params = BootParams::new(kernel.setup_header.as_deref());
    params.set_command_line(layout::COMMAND_LINE, source.cmdline.len());
    params.set_setup_data(layout::SETUP_DATA);
    params.set_rsdp(layout::ACPI_TABLES);
    if let Some((address, len)) = initrd {
        params.set_initrd(address, len);
    }
    params.set_memory_map(&memory::ranges(memory));
    params.write(memory)?;

    registers::write_tables(memory, kernel.protocol)?;
    Ok(registers::initial_state(kernel.entry, kernel.protocol))
}

fn load_kernel(memory: &GuestMemory, image: &[u8]) -> Result<LoadedKernel, BootError> {
    if image.starts_with(&object::elf::ELFMAG) {
        elf::load(memory, image)
    } else if bzimage::is_bzimage(image) {
        bzimage::load(memory, image)
    } else {
        Err(BootError::NotAKernel(describe_start(image)))
    }
}

/// Describes the first bytes of a file, for a message.
fn describe_start(image: &[u8]) -> String {
    match image.get(..image.len().min(8)) {
        None | Some([]) => "nothing: the file is empty".into(),
        Some(bytes) => format!("\"{}\"", bytes.escape_ascii()),
    }
}

/// Checks that `start..end` is RAM above 1 MiB and below the hole for devices.
fn check_kernel_range(memory: &GuestMemory, start: u64, end: u64) -> Result<(), BootError> {
    let (from, to) = (layout::EXTENDED_MEMORY, memory::low_end(memory));
    if start < from || end > to || start > end {
        return Err(BootError::KernelDoesNotFit {
            start,
            end,
            from,
            to,
        });
    }
    Ok(())
}

/// Places the initrd at the highest address below 4 GiB that memory and the kernel allow; returns
/// its address and its length in bytes.
fn load_initrd(
    memory: &GuestMemory,
    kernel: &LoadedKernel,
    data: &[u8],
) -> Result<(u64, u64), BootError> {
    let size = data.len() as u64;
    let top = memory::low_end(memory).min(kernel.initrd_max.saturating_add(1));
    let bottom = kernel.end.next_multiple_of(4096);
    let total = memory::ranges(memory).iter().map(|r| r.1).sum();
    let error = BootError::InitrdDoesNotFit {
        size,
        room: top.saturating_sub(bottom),
        memory: Size(total),
    };
    match top.checked_sub(size).map(|start| start & !0xFFF) {
        Some(start) if start >= bottom => {
            memory.write_slice(data, GuestAddress(start))?;
            Ok((start, size))
        }
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::allocate;

    fn kernel(end: u64, initrd_max: u64) -> LoadedKernel {
        LoadedKernel {
            entry: 0x10_0000,
            protocol: Protocol::Bits64,
            end,
            setup_header: None,
            initrd_max,
        }
    }

    #[test]
    fn an_initrd_is_placed_as_high_as_allowed() {
        let memory = allocate(Size(32 << 20)).unwrap();
        let data = [7; 5000];
        let (start, len) = load_initrd(&memory, &kernel(0x20_0000, u64::MAX), &data).unwrap();
        assert_eq!((start, len), ((32 << 20) - 8192, 5000));
        assert_eq!(
            memory.read_obj::<u8>(GuestAddress(start + 4999)).unwrap(),
            7
        );
        let (start, _) = load_initrd(&memory, &kernel(0x20_0000, 0xFF_FFFF), &data).unwrap();
        assert_eq!(start, 0x100_0000 - 8192);
    }

    #[test]
    fn an_initrd_that_does_not_fit_is_refused() {
        let memory = allocate(Size(16 << 20)).unwrap();
        let data = vec![0; 8 << 20];
        let error = load_initrd(&memory, &kernel(9 << 20, u64::MAX), &data).unwrap_err();
        assert!(error.to_string().contains("8388608 bytes"), "{error}");
        let data = vec![0; 17 << 20];
        assert!(load_initrd(&memory, &kernel(1 << 20, u64::MAX), &data).is_err());
    }

    #[test]
    fn other_files_are_refused_with_their_first_bytes() {
        let memory = allocate(Size(16 << 20)).unwrap();
        for (image, start) in [
            (&b"#!/bin/sh\n"[..], "\"#!/bin/s\""),
            (&[][..], "empty"),
            (&[0; 4096][..], "\\x00"),
        ] {
            let error = load_kernel(&memory, image).unwrap_err().to_string();
            assert!(
                error.contains("not a kernel") && error.contains(start),
                "{error}"
            );
        }
    }

    #[test]
    fn damaged_kernels_never_load_outside_memory() {
        let memory = allocate(Size(16 << 20)).unwrap();
        let seeds = [
            elf::tests::kernel(0x10_0000, &[0; 64], 64),
            bzimage::tests::image(),
            elf::tests::kernel32(0x10_0000, &[0; 64], 64),
        ];
        let mut random = 1u64;
        let mut next = || {
            // Knuth's MMIX generator; the high bits are the good ones.
            random = random
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            random >> 33
        };
        for i in 0..40_000usize {
            let mut image = seeds[i % seeds.len()].clone();
            for _ in 0..=next() % 4 {
                // Damage to the headers is the most effective.
                let at = next() as usize % image.len().min(0x280);
                image[at] = [0, 1, 0x7F, 0x80, 0xFF, next() as u8][next() as usize % 6];
            }
            image.truncate(
                image.len() - (next() as usize % 3) * (next() as usize % image.len()) / 2,
            );
            if let Ok(kernel) = load_kernel(&memory, &image) {
                assert!(kernel.end <= memory::low_end(&memory));
            }
        }
    }
}
