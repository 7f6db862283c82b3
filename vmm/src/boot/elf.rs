//! Uncompressed kernels: `vmlinux`, an ELF file whose program headers have the physical address of
//! each segment. It has 32 or 64 bits, as its kernel.
//!
//! `linux-loader` is not used: it reads files of 64 bits only, accepts those for other processors
//! and user programs, ignores a segment of zeros (`.bss` in a segment of its own) when it finds the
//! end of the kernel, and refuses a kernel with damaged notes, which nothing here needs.

use std::ops::Range;

use object::LittleEndian as Le;
use object::elf;
use object::pod;
use object::read::elf::{FileHeader, ProgramHeader};
use vm_memory::{Bytes, GuestAddress};

use super::{BootError, LoadedKernel, Protocol, check_kernel_range};
use crate::memory::GuestMemory;

/// Highest address that the initrd may touch (`initrd_addr_max` of both architectures).
const INITRD_MAX: u64 = 0x7FFF_FFFF;

/// What differs between files of 32 and of 64 bits.
trait Kernel: FileHeader<Endian = Le> {
    const PROTOCOL: Protocol;
    const MACHINE: elf::Machine;
}

impl Kernel for elf::FileHeader32<Le> {
    const PROTOCOL: Protocol = Protocol::Bits32;
    const MACHINE: elf::Machine = elf::EM_386;
}

impl Kernel for elf::FileHeader64<Le> {
    const PROTOCOL: Protocol = Protocol::Bits64;
    const MACHINE: elf::Machine = elf::EM_X86_64;
}

/// Loads the segments of the ELF kernel `image` at their physical addresses.
///
/// # Errors
/// The file is truncated, is not an x86 kernel, or does not fit into memory.
pub(crate) fn load(memory: &GuestMemory, image: &[u8]) -> Result<LoadedKernel, BootError> {
    match protocol_of(image) {
        Protocol::Bits32 => load_class::<elf::FileHeader32<Le>>(memory, image),
        Protocol::Bits64 => load_class::<elf::FileHeader64<Le>>(memory, image),
    }
}

/// The protocol by which the kernel `image` is entered, of which the first bytes suffice.
pub(crate) fn protocol_of(image: &[u8]) -> Protocol {
    /// Offset of the byte that says whether the file has 32 or 64 bits.
    const CLASS: usize = 4;
    match image.get(CLASS).copied().map(elf::FileClass) {
        Some(elf::ELFCLASS32) => Protocol::Bits32,
        _ => Protocol::Bits64,
    }
}

fn load_class<H: Kernel>(memory: &GuestMemory, image: &[u8]) -> Result<LoadedKernel, BootError> {
    let len = image.len() as u64;
    let truncated = |part, end| BootError::Truncated { part, end, len };
    let (header, _) =
        pod::from_bytes::<H>(image).map_err(|()| truncated("ELF header", size_of::<H>() as u64))?;
    check_header(header)?;
    let segments = program_headers(image, header)
        .ok_or_else(|| truncated("program header table", header.e_phoff(Le).into()))?;
    let unsuitable = |why| Err(BootError::UnsuitableElf(why));
    let is_for_user_mode =
        |s: &H::ProgramHeader| matches!(s.p_type(Le), elf::PT_INTERP | elf::PT_TLS);
    if segments.iter().any(is_for_user_mode) {
        return unsuitable("an ELF program for user mode");
    }
    let entry = header.e_entry(Le).into();
    let (mut end, mut entered) = (0, false);
    let loaded = || segments.iter().filter(|s| s.p_type(Le) == elf::PT_LOAD);
    for segment in loaded() {
        let range = check_segment::<H>(memory, image, segment)?;
        end = end.max(range.end);
        entered |= range.contains(&entry);
    }
    if !entered {
        return unsuitable("its entry point is not a physical address inside it");
    }
    for segment in loaded() {
        let from = segment.p_offset(Le).into() as usize;
        let data = image.get(from..).unwrap_or_default();
        let data = data.get(..segment.p_filesz(Le).into() as usize);
        let start = GuestAddress(segment.p_paddr(Le).into());
        memory.write_slice(data.unwrap_or_default(), start)?;
    }
    Ok(LoadedKernel {
        entry,
        protocol: H::PROTOCOL,
        end,
        setup_header: None,
        initrd_max: INITRD_MAX,
    })
}

fn check_header<H: Kernel>(header: &H) -> Result<(), BootError> {
    let unsuitable = |why| Err(BootError::UnsuitableElf(why));
    if header.e_ident().data != elf::ELFDATA2LSB || header.e_machine(Le) != H::MACHINE {
        return unsuitable("an ELF file for another architecture: only x86 kernels can run");
    }
    match header.e_type(Le) {
        elf::ET_EXEC => {}
        elf::ET_REL => return unsuitable("an ELF object file or kernel module"),
        elf::ET_CORE => return unsuitable("an ELF core file"),
        _ => return unsuitable("an ELF program or library for user mode"),
    }
    if header.e_phoff(Le).into() < size_of::<H>() as u64 {
        return unsuitable("its program headers overlap its ELF header");
    }
    Ok(())
}

fn program_headers<'a, H: Kernel>(image: &'a [u8], header: &H) -> Option<&'a [H::ProgramHeader]> {
    let offset = usize::try_from(header.e_phoff(Le).into()).ok()?;
    let count = usize::from(header.e_phnum(Le));
    if usize::from(header.e_phentsize(Le)) != size_of::<H::ProgramHeader>() {
        return None;
    }
    pod::slice_from_bytes(image.get(offset..)?, count)
        .ok()
        .map(|(headers, _)| headers)
}

/// Checks that a segment's data is in the file and that its memory is free. Returns its physical
/// range, with the part that is filled with zeros.
fn check_segment<H: Kernel>(
    memory: &GuestMemory,
    image: &[u8],
    segment: &H::ProgramHeader,
) -> Result<Range<u64>, BootError> {
    let start: u64 = segment.p_paddr(Le).into();
    let filesz: u64 = segment.p_filesz(Le).into();
    let stop = start.saturating_add(filesz.max(segment.p_memsz(Le).into()));
    check_kernel_range(memory, start, stop)?;
    let offset: u64 = segment.p_offset(Le).into();
    let (len, file_end) = (image.len() as u64, offset.saturating_add(filesz));
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

    /// As [`kernel`], of 32 bits.
    pub(crate) fn kernel32(paddr: u32, code: &[u8], bss: u32) -> Vec<u8> {
        let mut image = vec![0; 52 + 32];
        let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, b"\x7fELF\x01\x01\x01");
        put(16, &2u16.to_le_bytes());
        put(18, &3u16.to_le_bytes());
        put(20, &1u32.to_le_bytes());
        put(24, &paddr.to_le_bytes());
        put(28, &52u32.to_le_bytes());
        put(40, &52u16.to_le_bytes());
        put(42, &32u16.to_le_bytes());
        put(44, &1u16.to_le_bytes());
        let len = code.len() as u32;
        let segment = [
            1,
            84,
            paddr.wrapping_add(0xC000_0000),
            paddr,
            len,
            len + bss,
        ];
        for (at, word) in (52..).step_by(4).zip(segment) {
            put(at, &word.to_le_bytes());
        }
        image.extend_from_slice(code);
        image
    }

    #[test]
    fn a_kernel_of_32_bits_is_entered_by_its_protocol() {
        let memory = allocate(Size(32 << 20)).unwrap();
        let loaded = load(&memory, &kernel32(0x100_0000, b"code", 100)).unwrap();
        assert_eq!((loaded.entry, loaded.end), (0x100_0000, 0x100_0000 + 104));
        assert_eq!(loaded.protocol, Protocol::Bits32);
        let mut code = [0; 4];
        memory
            .read_slice(&mut code, GuestAddress(0x100_0000))
            .unwrap();
        assert_eq!(&code, b"code");
    }

    #[test]
    fn every_truncation_is_reported() {
        let memory = allocate(Size(32 << 20)).unwrap();
        for image in [
            kernel(0x100_0000, b"code", 0),
            kernel32(0x100_0000, b"code", 0),
        ] {
            for len in 4..image.len() {
                let error = load(&memory, &image[..len]).unwrap_err();
                assert!(
                    matches!(error, BootError::Truncated { .. }),
                    "{len}: {error}"
                );
            }
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
            (4, 1, "architecture"),
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
    }

    #[test]
    fn damaged_notes_do_not_matter() {
        let memory = allocate(Size(32 << 20)).unwrap();
        let image = with_segment(elf::PT_NOTE, [1 << 20, 12, 0, 12]);
        assert_eq!(load(&memory, &image).unwrap().entry, 0x100_0000);
    }
}
