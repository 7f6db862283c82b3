//! Compressed kernels: `bzImage`, entered through the 64-bit boot protocol.

use vm_memory::{Bytes, GuestAddress};

use super::params::{SETUP_HEADER, setup};
use super::{BootError, LoadedKernel, check_kernel_range};
use crate::memory::GuestMemory;

/// `xloadflags` bit 0: the kernel has a 64-bit entry point at +0x200.
const XLF_KERNEL_64: u16 = 1 << 0;
/// Offset of the 64-bit entry point from the start of the protected-mode code.
const ENTRY_64: u64 = 0x200;
/// First protocol version with `xloadflags`.
const VERSION_XLOADFLAGS: u16 = 0x020C;

fn u16_at(image: &[u8], at: usize) -> Option<u16> {
    image
        .get(at..)?
        .first_chunk()
        .copied()
        .map(u16::from_le_bytes)
}

fn u32_at(image: &[u8], at: usize) -> Option<u32> {
    image
        .get(at..)?
        .first_chunk()
        .copied()
        .map(u32::from_le_bytes)
}

fn u64_at(image: &[u8], at: usize) -> Option<u64> {
    image
        .get(at..)?
        .first_chunk()
        .copied()
        .map(u64::from_le_bytes)
}

/// Whether `image` has the boot sector signature and the setup header's magic.
pub fn is_bzimage(image: &[u8]) -> bool {
    u16_at(image, setup::BOOT_FLAG) == Some(0xAA55)
        && image.get(setup::HEADER..setup::HEADER + 4) == Some(b"HdrS")
}

/// Loads the protected-mode part of `image` at the address that it prefers.
///
/// # Errors
/// The file is truncated, too old, for 32-bit processors, or does not fit into memory.
pub fn load(memory: &GuestMemory, image: &[u8]) -> Result<LoadedKernel, BootError> {
    let len = image.len() as u64;
    let header_end = setup::INIT_SIZE + 4;
    let fields = (|| {
        Some((
            u16_at(image, setup::VERSION)?,
            u16_at(image, setup::XLOADFLAGS)?,
            u32_at(image, setup::SYSSIZE)?,
            u32_at(image, setup::INITRD_ADDR_MAX)?,
            u64_at(image, setup::PREF_ADDRESS)?,
            u32_at(image, setup::INIT_SIZE)?,
        ))
    })();
    let (version, xloadflags, syssize, initrd_max, start, init_size) =
        fields.ok_or(BootError::Truncated {
            part: "setup header",
            end: header_end as u64,
            len,
        })?;
    if version < VERSION_XLOADFLAGS || xloadflags & XLF_KERNEL_64 == 0 {
        let [minor, major] = version.to_le_bytes();
        return Err(BootError::No64BitEntry { major, minor });
    }
    let setup_sectors = match image.get(setup::SETUP_SECTS) {
        Some(0) | None => 4,
        Some(&n) => u64::from(n),
    };
    let code_start = (setup_sectors + 1) * 512;
    // `syssize` is rounded up to whole 16-byte paragraphs.
    let code_end = code_start + u64::from(syssize) * 16;
    let code = image
        .get(code_start as usize..code_end.min(len) as usize)
        .filter(|_| len + 16 > code_end)
        .ok_or(BootError::Truncated {
            part: "protected-mode code",
            end: code_end,
            len,
        })?;
    let end = start.saturating_add(u64::from(init_size).max(code.len() as u64));
    check_kernel_range(memory, start, end)?;
    memory.write_slice(code, GuestAddress(start))?;

    // The header's length is in the jump instruction at its start (boot.rst, "jump").
    let header_len =
        usize::from(image.get(0x201).copied().unwrap_or(0)) + 0x202 - SETUP_HEADER.start;
    let header = image
        .get(SETUP_HEADER.start..SETUP_HEADER.start + header_len.min(SETUP_HEADER.len()))
        .unwrap_or_default();
    Ok(LoadedKernel {
        entry: start + ENTRY_64,
        end,
        setup_header: Some(header.to_vec()),
        initrd_max: u64::from(initrd_max),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::memory::{Size, allocate};

    pub(crate) fn image() -> Vec<u8> {
        let mut image = vec![0; 1024 + 0x400];
        let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
        put(setup::SETUP_SECTS, &[1]);
        put(setup::SYSSIZE, &0x40u32.to_le_bytes());
        put(setup::BOOT_FLAG, &0xAA55u16.to_le_bytes());
        put(0x200, &[0xEB, 0x6A]);
        put(setup::HEADER, b"HdrS");
        put(setup::VERSION, &0x020Fu16.to_le_bytes());
        put(setup::INITRD_ADDR_MAX, &0x7FFF_FFFFu32.to_le_bytes());
        put(setup::XLOADFLAGS, &1u16.to_le_bytes());
        put(setup::PREF_ADDRESS, &0x100_0000u64.to_le_bytes());
        put(setup::INIT_SIZE, &0x20_0000u32.to_le_bytes());
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
        assert_eq!(loaded.initrd_max, 0x7FFF_FFFF);
        assert_eq!(loaded.setup_header.unwrap().len(), 0x26C - 0x1F1);
        let mut code = [0; 5];
        memory
            .read_slice(&mut code, GuestAddress(loaded.entry))
            .unwrap();
        assert_eq!(&code, b"entry");
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
        let mut old = image.clone();
        old[setup::XLOADFLAGS] = 0;
        assert!(matches!(
            load(&memory, &old),
            Err(BootError::No64BitEntry {
                major: 2,
                minor: 15
            })
        ));
        let mut big = image;
        big[setup::INIT_SIZE + 3] = 0x10;
        assert!(matches!(
            load(&memory, &big),
            Err(BootError::KernelDoesNotFit { .. })
        ));
    }
}
