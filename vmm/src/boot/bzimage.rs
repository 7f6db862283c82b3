//! Compressed kernels: `bzImage`, entered through the 64-bit boot protocol if the kernel has its
//! entry point, else through the 32-bit one (boot.rst).
//!
//! `linux-loader` copies the kernel. This file does three things itself:
//! - It checks the image first. The loader accepts any image with the magic number of the setup
//!   header, and its errors do not say what is missing.
//! - It truncates the file at `syssize`. The loader copies all data after the setup code, which in
//!   a distribution's kernel includes the signature for Secure Boot.
//! - It takes the setup header from the file. The loader returns a structure of fixed length, with
//!   its own load address in `code32_start`.

use std::io::Cursor;
use std::mem::offset_of;
use std::ops::Range;

use linux_loader::bootparam::{LOADED_HIGH, XLF_KERNEL_64, setup_header};
use linux_loader::loader::{BzImage, KernelLoader};
use vm_memory::{ByteValued, GuestAddress};

use super::params::{BOOT_FLAG, HEADER_MAGIC, SETUP_HEADER};
use super::{BootError, LoadedKernel, Protocol, check_kernel_range};
use crate::memory::GuestMemory;

/// Offset of the 64-bit entry point from the start of the protected-mode code.
const ENTRY_64: u64 = 0x200;
/// First protocol version with `xloadflags`.
const VERSION_XLOADFLAGS: u16 = 0x020C;
/// First protocol version with `pref_address` and `init_size`.
const VERSION_INIT_SIZE: u16 = 0x020A;
/// A sector of the setup code, in bytes.
const SECTOR: u64 = 512;
/// Sectors of setup code if the header says zero (boot.rst, "setup_sects").
const DEFAULT_SETUP_SECTORS: u8 = 4;
/// Unit of `syssize`, in bytes.
const PARAGRAPH: u64 = 16;
/// Offset in the file of the end of the last field that protocol 2.10 requires.
pub(super) const HEADER_END: usize = SETUP_HEADER.start + offset_of!(setup_header, init_size) + 4;
/// Offset in the file of the setup header's length, which is the operand of the jump over the
/// header, and of the byte from which this length counts (boot.rst, "The Real-Mode Kernel Header").
const HEADER_LENGTH: usize = SETUP_HEADER.start + offset_of!(setup_header, jump) + 1;
const HEADER_LENGTH_BASE: usize = HEADER_LENGTH + 1;

/// Returns the setup header of `image`. Fields after the end of the file are zero.
fn read_header(image: &[u8]) -> setup_header {
    let mut header = setup_header::default();
    let file = image.get(SETUP_HEADER.start..).unwrap_or_default();
    for (to, from) in header.as_mut_slice().iter_mut().zip(file) {
        *to = *from;
    }
    header
}

/// Returns whether `image` has the boot sector signature and the setup header's magic number.
pub(super) fn is_bzimage(image: &[u8]) -> bool {
    let header = read_header(image);
    header.boot_flag == BOOT_FLAG && header.header == HEADER_MAGIC
}

/// Loads the protected-mode part of `image` at the address that it prefers.
///
/// # Errors
/// The file is truncated, too old, or does not fit into memory.
pub(super) fn load(memory: &GuestMemory, image: &[u8]) -> Result<LoadedKernel, BootError> {
    let header = read_header(image);
    let code = check(image, &header)?;
    let start = header.pref_address;
    let size = u64::from(header.init_size).max(code.len() as u64);
    let end = start.saturating_add(size);
    check_kernel_range(memory, start, end)?;
    let mut file = Cursor::new(image.get(..code.end).unwrap_or_default());
    let loaded = BzImage::load(memory, Some(GuestAddress(start)), &mut file, None)?;
    let protocol = protocol(&header);
    let offset = match protocol {
        Protocol::Bits32 => 0,
        Protocol::Bits64 => ENTRY_64,
    };
    Ok(LoadedKernel {
        entry: loaded.kernel_load.0 + offset,
        protocol,
        end,
        setup_header: Some(header_bytes(image).to_vec()),
        initrd_max: u64::from(header.initrd_addr_max),
    })
}

/// The protocol by which the kernel `image` is entered, of which the first [`HEADER_END`] bytes
/// suffice.
pub(super) fn protocol_of(image: &[u8]) -> Protocol {
    protocol(&read_header(image))
}

fn protocol(header: &setup_header) -> Protocol {
    if header.version >= VERSION_XLOADFLAGS && header.xloadflags & XLF_KERNEL_64 != 0 {
        Protocol::Bits64
    } else {
        Protocol::Bits32
    }
}

/// Checks that the image is complete, and says where it is loaded and how much memory it needs.
/// Returns the range of its protected-mode code in the file.
fn check(image: &[u8], header: &setup_header) -> Result<Range<usize>, BootError> {
    let len = image.len() as u64;
    if image.len() < HEADER_END {
        return Err(BootError::Truncated {
            part: "setup header",
            end: HEADER_END as u64,
            len,
        });
    }
    if header.version < VERSION_INIT_SIZE {
        let [minor, major] = header.version.to_le_bytes();
        return Err(BootError::OldProtocol { major, minor });
    }
    if header.loadflags & LOADED_HIGH == 0 {
        return Err(BootError::LoadedLow);
    }
    let setup_sectors = match header.setup_sects {
        0 => DEFAULT_SETUP_SECTORS,
        n => n,
    };
    let start = (u64::from(setup_sectors) + 1) * SECTOR;
    let end = start + u64::from(header.syssize) * PARAGRAPH;
    // `syssize` is rounded up to whole paragraphs, so the last one may be incomplete.
    if start > len || len + PARAGRAPH <= end {
        return Err(BootError::Truncated {
            part: "protected-mode code",
            end,
            len,
        });
    }
    Ok(start as usize..end.min(len) as usize)
}

/// Returns the bytes of the setup header. Its length is that of the kernel's version.
fn header_bytes(image: &[u8]) -> &[u8] {
    let length = image.get(HEADER_LENGTH).copied().unwrap_or(0);
    let end = HEADER_LENGTH_BASE + usize::from(length);
    let range = SETUP_HEADER.start..end.min(SETUP_HEADER.end);
    image.get(range).unwrap_or_default()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::memory::{Size, allocate};

    use vm_memory::Bytes;

    /// Offsets in the file, from boot.rst.
    mod field {
        pub(super) const SETUP_SECTS: usize = 0x1F1;
        pub(super) const SYSSIZE: usize = 0x1F4;
        pub(super) const BOOT_FLAG: usize = 0x1FE;
        pub(super) const JUMP: usize = 0x200;
        pub(super) const HEADER: usize = 0x202;
        pub(super) const VERSION: usize = 0x206;
        pub(super) const LOADFLAGS: usize = 0x211;
        pub(super) const CODE32_START: usize = 0x214;
        pub(super) const INITRD_ADDR_MAX: usize = 0x22C;
        pub(super) const XLOADFLAGS: usize = 0x236;
        pub(super) const PREF_ADDRESS: usize = 0x258;
        pub(super) const INIT_SIZE: usize = 0x260;
    }

    /// A kernel of one sector of setup code and 1 KiB of protected-mode code.
    pub(crate) fn image() -> Vec<u8> {
        let mut image = vec![0; 1024 + 0x400];
        let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
        put(field::SETUP_SECTS, &[1]);
        put(field::SYSSIZE, &0x40u32.to_le_bytes());
        put(field::BOOT_FLAG, &0xAA55u16.to_le_bytes());
        put(field::JUMP, &[0xEB, 0x6A]);
        put(field::HEADER, b"HdrS");
        put(field::VERSION, &0x020Fu16.to_le_bytes());
        put(field::LOADFLAGS, &[1]);
        put(field::CODE32_START, &0x10_0000u32.to_le_bytes());
        put(field::INITRD_ADDR_MAX, &0x7FFF_FFFFu32.to_le_bytes());
        put(field::XLOADFLAGS, &1u16.to_le_bytes());
        put(field::PREF_ADDRESS, &0x100_0000u64.to_le_bytes());
        put(field::INIT_SIZE, &0x20_0000u32.to_le_bytes());
        put(1024 + 0x200, b"entry");
        image
    }

    #[test]
    fn the_64_bit_entry_is_found() {
        let memory = allocate(Size(32 << 20)).unwrap();
        let image = image();
        assert!(is_bzimage(&image));
        let loaded = load(&memory, &image).unwrap();
        assert_eq!((loaded.entry, loaded.end), (0x100_0200, 0x120_0000));
        assert_eq!(loaded.protocol, Protocol::Bits64);
        assert_eq!(loaded.initrd_max, 0x7FFF_FFFF);
        assert_eq!(loaded.setup_header.unwrap().len(), 0x26C - 0x1F1);
        let mut code = [0; 5];
        memory
            .read_slice(&mut code, GuestAddress(loaded.entry))
            .unwrap();
        assert_eq!(&code, b"entry");
    }

    #[test]
    fn other_kernels_are_entered_at_their_32_bit_entry() {
        let memory = allocate(Size(32 << 20)).unwrap();
        let mut image = image();
        image[field::XLOADFLAGS] = 4;
        let loaded = load(&memory, &image).unwrap();
        assert_eq!((loaded.entry, loaded.end), (0x100_0000, 0x120_0000));
        assert_eq!(loaded.protocol, Protocol::Bits32);
        // Before protocol 2.12 the word has another meaning.
        image[field::XLOADFLAGS] = 1;
        image[field::VERSION] = 0xB;
        assert_eq!(load(&memory, &image).unwrap().protocol, Protocol::Bits32);
    }

    #[test]
    fn unusable_images_are_refused() {
        let memory = allocate(Size(32 << 20)).unwrap();
        let image = image();
        for len in [0x206, 0x230, 1023, image.len() - 16] {
            let error = load(&memory, &image[..len]).unwrap_err();
            assert!(
                matches!(error, BootError::Truncated { .. }),
                "{len}: {error}"
            );
        }
        let mut low = image.clone();
        low[field::LOADFLAGS] = 0;
        assert!(matches!(load(&memory, &low), Err(BootError::LoadedLow)));
        let mut old = image.clone();
        old[field::VERSION] = 9;
        assert!(matches!(
            load(&memory, &old),
            Err(BootError::OldProtocol { major: 2, minor: 9 })
        ));
        let mut big = image;
        big[field::INIT_SIZE + 3] = 0x10;
        assert!(matches!(
            load(&memory, &big),
            Err(BootError::KernelDoesNotFit { .. })
        ));
    }

    #[test]
    fn data_after_the_code_is_not_loaded() {
        let mut image = image();
        let code_end = image.len() as u64 - 1024;
        image.extend_from_slice(b"signature");
        for ours in [true, false] {
            let memory = allocate(Size(32 << 20)).unwrap();
            let start = GuestAddress(0x100_0000);
            if ours {
                load(&memory, &image).unwrap();
            } else {
                BzImage::load(&memory, Some(start), &mut Cursor::new(&image), None).unwrap();
            }
            let mut after = [0; 9];
            let end = GuestAddress(start.0 + code_end);
            memory.read_slice(&mut after, end).unwrap();
            assert_eq!(after == *b"signature", !ours, "{after:?}");
        }
    }

    #[test]
    fn the_setup_header_is_that_of_the_file() {
        let memory = allocate(Size(32 << 20)).unwrap();
        let mut image = image();
        // Protocol 2.12: the header ends before kernel_info_offset, where its code begins.
        image[field::JUMP + 1] = 0x66;
        image[0x268] = 0xCC;
        let header = load(&memory, &image).unwrap().setup_header.unwrap();
        assert_eq!(header, image[0x1F1..0x268]);
        let start = GuestAddress(0x100_0000);
        let loaded = BzImage::load(&memory, Some(start), &mut Cursor::new(&image), None).unwrap();
        let theirs = loaded.setup_header.unwrap();
        assert_eq!({ theirs.kernel_info_offset }, 0xCC);
        assert_eq!({ theirs.code32_start }, 0x100_0000);
    }
}
