//! Uncompressed kernels: `vmlinux`, an ELF file whose program headers have the physical address of
//! each segment.
//!
//! `linux-loader` copies the segments. This file does three things itself:
//! - It checks the file first. The loader accepts files for other processors and user programs, and
//!   its errors do not say what is missing.
//! - It finds the end of the kernel. The loader ignores a segment that has only zeros (`.bss` in a
//!   segment of its own), so that the initrd would be placed on it.
//! - It passes an offset of zero to the loader. Without an offset the loader searches the notes for
//!   a PVH entry point and refuses a kernel with a damaged note, although the 64-bit entry point
//!   needs no note.

use std::io::Cursor;
use std::ops::Range;

use linux_loader::loader::{Elf, KernelLoader};
use object::LittleEndian as Le;
use object::elf;
use object::pod;
use vm_memory::GuestAddress;

use super::{BootError, LoadedKernel, check_kernel_range};
use crate::memory::GuestMemory;

type Header = elf::FileHeader64<Le>;
type Segment = elf::ProgramHeader64<Le>;

/// Highest address that the initrd may touch (`initrd_addr_max` of 64-bit kernels).
const INITRD_MAX: u64 = 0x7FFF_FFFF;

/// Loads the segments of the ELF kernel `image` at their physical addresses.
///
/// # Errors
/// The file is truncated, is not an x86-64 kernel, or does not fit into memory.
pub fn load(memory: &GuestMemory, image: &[u8]) -> Result<LoadedKernel, BootError> {
    let end = check(memory, image)?;
    let no_offset = Some(GuestAddress(0));
    let loaded = Elf::load(memory, no_offset, &mut Cursor::new(image), None)?;
    Ok(LoadedKernel {
        entry: loaded.kernel_load.0,
        end,
        setup_header: None,
        initrd_max: INITRD_MAX,
    })
}

/// Checks that the file is complete, is a kernel and fits into `memory`. Returns the first physical
/// address after it.
fn check(memory: &GuestMemory, image: &[u8]) -> Result<u64, BootError> {
    let len = image.len() as u64;
    let truncated = |part, end| BootError::Truncated { part, end, len };
    let (header, _) = pod::from_bytes::<Header>(image)
        .map_err(|()| truncated("ELF header", size_of::<Header>() as u64))?;
    check_header(header)?;
    let segments = program_headers(image, header)
        .ok_or_else(|| truncated("program header table", header.e_phoff.get(Le)))?;
    if segments
        .iter()
        .any(|s| matches!(s.p_type.get(Le), elf::PT_INTERP | elf::PT_TLS))
    {
        return Err(BootError::UnsuitableElf("an ELF program for user mode"));
    }

    let entry = header.e_entry.get(Le);
    let (mut end, mut entered) = (0, false);
    for segment in segments.iter().filter(|s| s.p_type.get(Le) == elf::PT_LOAD) {
        let range = check_segment(memory, image, segment)?;
        end = end.max(range.end);
        entered |= range.contains(&entry);
    }
    if !entered {
        return Err(BootError::UnsuitableElf(
            "its entry point is not a physical address inside it",
        ));
    }
    Ok(end)
}

fn check_header(header: &Header) -> Result<(), BootError> {
    let unsuitable = |why| Err(BootError::UnsuitableElf(why));
    if header.e_ident.class != elf::ELFCLASS64 {
        return unsuitable("a 32-bit ELF file: only x86-64 kernels can run");
    }
    if header.e_ident.data != elf::ELFDATA2LSB || header.e_machine.get(Le) != elf::EM_X86_64 {
        return unsuitable("an ELF file for another architecture: only x86-64 kernels can run");
    }
    match header.e_type.get(Le) {
        elf::ET_EXEC => {}
        elf::ET_REL => return unsuitable("an ELF object file or kernel module"),
        elf::ET_CORE => return unsuitable("an ELF core file"),
        _ => return unsuitable("an ELF program or library for user mode"),
    }
    if header.e_phoff.get(Le) < size_of::<Header>() as u64 {
        return unsuitable("its program headers overlap its ELF header");
    }
    Ok(())
}

fn program_headers<'a>(image: &'a [u8], header: &Header) -> Option<&'a [Segment]> {
    let offset = usize::try_from(header.e_phoff.get(Le)).ok()?;
    let count = usize::from(header.e_phnum.get(Le));
    if usize::from(header.e_phentsize.get(Le)) != size_of::<Segment>() {
        return None;
    }
    pod::slice_from_bytes(image.get(offset..)?, count)
        .ok()
        .map(|(headers, _)| headers)
}

/// Checks that a segment's data is in the file and that its memory is free. Returns its physical
/// range, with the part that is filled with zeros.
fn check_segment(
    memory: &GuestMemory,
    image: &[u8],
    segment: &Segment,
) -> Result<Range<u64>, BootError> {
    let start = segment.p_paddr.get(Le);
    let filesz = segment.p_filesz.get(Le);
    let stop = start.saturating_add(segment.p_memsz.get(Le).max(filesz));
    check_kernel_range(memory, start, stop)?;
    let (len, file_end) = (
        image.len() as u64,
        segment.p_offset.get(Le).saturating_add(filesz),
    );
    if file_end > len {
        return Err(BootError::Truncated {
            part: "a segment",
            end: file_end,
            len,
        });
    }
    Ok(start..stop)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::memory::{Size, allocate};
    use vm_memory::Bytes;

    /// A kernel of one segment: `code` at `paddr`, entered at its start, and `bss` zero bytes after
    /// it.
    pub(crate) fn kernel(paddr: u64, code: &[u8], bss: u64) -> Vec<u8> {
        let mut image = vec![0; 64 + 56];
        let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, b"\x7fELF\x02\x01\x01");
        put(16, &2u16.to_le_bytes());
        put(18, &62u16.to_le_bytes());
        put(20, &1u32.to_le_bytes());
        put(24, &paddr.to_le_bytes());
        put(32, &64u64.to_le_bytes());
        put(52, &64u16.to_le_bytes());
        put(54, &56u16.to_le_bytes());
        put(56, &1u16.to_le_bytes());
        put(64, &1u32.to_le_bytes());
        put(72, &120u64.to_le_bytes());
        put(80, &paddr.wrapping_sub(0x8000_0000).to_le_bytes());
        put(88, &paddr.to_le_bytes());
        put(96, &(code.len() as u64).to_le_bytes());
        put(104, &(code.len() as u64 + bss).to_le_bytes());
        image.extend_from_slice(code);
        image
    }

    #[test]
    fn a_kernel_is_loaded_at_its_physical_address() {
        let memory = allocate(Size(32 << 20)).unwrap();
        let loaded = load(&memory, &kernel(0x100_0000, b"code", 100)).unwrap();
        assert_eq!((loaded.entry, loaded.end), (0x100_0000, 0x100_0000 + 104));
        let mut code = [0; 4];
        memory
            .read_slice(&mut code, GuestAddress(0x100_0000))
            .unwrap();
        assert_eq!(&code, b"code");
    }

    #[test]
    fn every_truncation_is_reported() {
        let memory = allocate(Size(32 << 20)).unwrap();
        let image = kernel(0x100_0000, b"code", 0);
        for len in 4..image.len() {
            let error = load(&memory, &image[..len]).unwrap_err();
            assert!(
                matches!(error, BootError::Truncated { .. }),
                "{len}: {error}"
            );
        }
    }

    #[test]
    fn a_kernel_must_fit() {
        let memory = allocate(Size(16 << 20)).unwrap();
        for (paddr, bss) in [
            (0x100_0000, 0),
            (0x80_0000, 9 << 20),
            (0x1000, 0),
            (u64::MAX - 8, 0),
        ] {
            let error = load(&memory, &kernel(paddr, b"code", bss)).unwrap_err();
            assert!(
                matches!(error, BootError::KernelDoesNotFit { .. }),
                "{error}"
            );
        }
    }

    #[test]
    fn other_elf_files_are_refused() {
        let memory = allocate(Size(32 << 20)).unwrap();
        let good = kernel(0x100_0000, b"code", 0);
        for (at, byte, part) in [
            (4, 1, "32-bit"),
            (18, 40, "architecture"),
            (16, 3, "user mode"),
            (16, 1, "object file"),
            (32, 8, "overlap"),
            (64, 0, "entry"),
        ] {
            let mut image = good.clone();
            image[at] = byte;
            let error = load(&memory, &image).unwrap_err().to_string();
            assert!(
                error.contains("not a kernel") && error.contains(part),
                "{error}"
            );
        }
        let own = std::fs::read("/proc/self/exe").unwrap();
        assert!(
            load(&memory, &own)
                .unwrap_err()
                .to_string()
                .contains("user mode")
        );
    }

    /// `kernel` with a second program header of this type, file offset, size in the file, physical
    /// address and size in memory.
    fn with_segment(kind: elf::ProgramType, [offset, filesz, paddr, memsz]: [u64; 4]) -> Vec<u8> {
        let mut image = kernel(0x100_0000, b"code", 0);
        let mut second = image[64..120].to_vec();
        second[..4].copy_from_slice(&kind.0.to_le_bytes());
        for (at, value) in [(8, offset), (24, paddr), (32, filesz), (40, memsz)] {
            second[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        // The table goes to the end of the file, where there is room for two.
        let table = image.len() as u64;
        image.extend_from_within(64..120);
        image.extend_from_slice(&second);
        image[32..40].copy_from_slice(&table.to_le_bytes());
        image[56] = 2;
        image
    }

    #[test]
    fn a_segment_of_zeros_belongs_to_the_kernel() {
        let memory = allocate(Size(32 << 20)).unwrap();
        let image = with_segment(elf::PT_LOAD, [0, 0, 0x110_0000, 0x1000]);
        assert_eq!(load(&memory, &image).unwrap().end, 0x110_1000);
        // The loader's own result shows why it is not used.
        let theirs = Elf::load(&memory, None, &mut Cursor::new(&image), None).unwrap();
        assert_eq!(theirs.kernel_end, 0x100_0004);
    }

    #[test]
    fn damaged_notes_do_not_matter() {
        let memory = allocate(Size(32 << 20)).unwrap();
        let image = with_segment(elf::PT_NOTE, [1 << 20, 12, 0, 12]);
        assert_eq!(load(&memory, &image).unwrap().entry, 0x100_0000);
        // Without an offset, the loader refuses the kernel.
        assert!(Elf::load(&memory, None, &mut Cursor::new(&image), None).is_err());
    }
}
