//! Uncompressed kernels: `vmlinux`, an ELF file whose segments say where they go.

use object::LittleEndian as Le;
use object::elf;
use object::pod;
use vm_memory::{Bytes, GuestAddress};

use super::{BootError, LoadedKernel, check_kernel_range};
use crate::memory::GuestMemory;

type Header = elf::FileHeader64<Le>;
type Segment = elf::ProgramHeader64<Le>;

/// The kernel's initrd must lie below this (`initrd_addr_max` of 64-bit kernels).
const INITRD_MAX: u64 = 0x7FFF_FFFF;

/// Loads the segments of the ELF kernel `image` at their physical addresses.
///
/// # Errors
/// The file is truncated, is not an x86-64 kernel, or does not fit into memory.
pub fn load(memory: &GuestMemory, image: &[u8]) -> Result<LoadedKernel, BootError> {
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
        let (start, stop) = load_segment(memory, image, segment)?;
        end = end.max(stop);
        entered |= (start..stop).contains(&entry);
    }
    if !entered {
        return Err(BootError::UnsuitableElf(
            "its entry point is not a physical address inside it",
        ));
    }
    Ok(LoadedKernel {
        entry,
        end,
        setup_header: None,
        initrd_max: INITRD_MAX,
    })
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
        elf::ET_EXEC => Ok(()),
        elf::ET_REL => unsuitable("an ELF object file or kernel module"),
        elf::ET_CORE => unsuitable("an ELF core file"),
        _ => unsuitable("an ELF program or library for user mode"),
    }
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

/// Copies one segment; returns the physical range that it occupies, zero-filled tail included.
fn load_segment(
    memory: &GuestMemory,
    image: &[u8],
    segment: &Segment,
) -> Result<(u64, u64), BootError> {
    let start = segment.p_paddr.get(Le);
    let (offset, filesz) = (segment.p_offset.get(Le), segment.p_filesz.get(Le));
    let stop = start.saturating_add(segment.p_memsz.get(Le).max(filesz));
    check_kernel_range(memory, start, stop)?;
    let file_end = offset.saturating_add(filesz);
    let data = image
        .get(offset as usize..)
        .and_then(|rest| rest.get(..filesz as usize))
        .ok_or(BootError::Truncated {
            part: "a segment",
            end: file_end,
            len: image.len() as u64,
        })?;
    memory.write_slice(data, GuestAddress(start))?;
    Ok((start, stop))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::memory::{Size, allocate};

    /// A kernel of one segment: `code` at `paddr`, entered at its start, `bss` zero bytes after it.
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
    fn other_elf_files_are_no_kernels() {
        let memory = allocate(Size(32 << 20)).unwrap();
        let good = kernel(0x100_0000, b"code", 0);
        for (at, byte, part) in [
            (4, 1, "32-bit"),
            (18, 40, "architecture"),
            (16, 3, "user mode"),
            (16, 1, "object file"),
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
}
