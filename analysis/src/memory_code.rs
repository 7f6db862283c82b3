//! Code that is in no file: the kernel's vDSO, and what programs have made while they ran.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write as _};

use rustix::fs::{MemfdFlags, memfd_create};
use vbts_trace::CodeSource;
use vbts_trace::profile::code::Symbol;
use vbts_trace::profile::generated::{Generated, MAX_GENERATED};
use vbts_trace::profile::modules::{Module, ModuleId};

/// Offset of the class in an ELF file, and the class of 32-bit files.
const ELF_CLASS: usize = 4;
const ELFCLASS32: u8 = 1;

/// The image of a vDSO.
#[derive(Debug, Default)]
struct Image {
    /// Where it is mapped.
    start: u64,
    bytes: Vec<u8>,
}

/// Number of vDSOs: that of 64-bit programs, and that of 32-bit programs.
const VDSOS: usize = 2;

/// Code that is in no file, by its module.
#[derive(Debug)]
pub struct MemoryCode {
    /// Empty files for images.
    files: Vec<File>,
    images: HashMap<ModuleId, Image>,
    generated: HashMap<ModuleId, Generated>,
    /// Bytes so far.
    size: usize,
}

impl MemoryCode {
    /// No code so far. It makes files, which a confined process cannot.
    ///
    /// # Errors
    /// The host gives no memory.
    pub fn new() -> io::Result<Self> {
        let file = |_| Ok(File::from(memfd_create("vdso", MemfdFlags::CLOEXEC)?));
        Ok(Self {
            files: (0..VDSOS).map(file).collect::<io::Result<_>>()?,
            images: HashMap::new(),
            generated: HashMap::new(),
            size: 0,
        })
    }

    /// Takes a part of a module's code, or of what its compiler says about it.
    pub fn add(&mut self, module: &Module, source: CodeSource, at: u64, bytes: &[u8]) {
        self.size = self.size.saturating_add(bytes.len());
        if self.size > MAX_GENERATED {
            return;
        }
        if source != CodeSource::Vdso {
            let generated = self.generated.entry(module.id).or_default();
            return generated.add(source, bytes);
        }
        let image = self.images.entry(module.id).or_insert_with(|| Image {
            start: at,
            bytes: Vec::new(),
        });
        // Pages of zeros are left out.
        let offset = at.checked_sub(image.start).map(usize::try_from);
        if let Some(Ok(offset @ ..MAX_GENERATED)) = offset {
            let end = offset.saturating_add(bytes.len());
            image.bytes.resize(image.bytes.len().max(end), 0);
            if let Some(room) = image.bytes.get_mut(offset..end) {
                room.copy_from_slice(bytes);
            }
        }
    }

    /// A file with the image of a module's vDSO, once.
    pub fn image(&mut self, module: &Module) -> Option<File> {
        let image = self.images.get(&module.id)?;
        let mut file = self.files.pop()?;
        file.write_all(&image.bytes).ok()?;
        Some(file)
    }

    /// Whether a module's code is 32-bit code.
    pub fn is_32_bit(&self, module: &Module) -> bool {
        let image = self.images.get(&module.id);
        image.is_some_and(|image| image.bytes.get(ELF_CLASS) == Some(&ELFCLASS32))
    }

    /// Reads code of a module. Returns the number of bytes.
    pub fn read(&mut self, module: &Module, offset: u64, bytes: &mut [u8]) -> usize {
        let code = match self.generated.get_mut(&module.id) {
            // The profile reads pages.
            Some(generated) => {
                generated.read_files();
                generated.page(offset)
            }
            None => {
                let image = self.images.get(&module.id).map(|i| i.bytes.as_slice());
                let offset = usize::try_from(offset).unwrap_or(usize::MAX);
                image
                    .and_then(|image| image.get(offset..))
                    .unwrap_or_default()
            }
        };
        let size = code.len().min(bytes.len());
        for (byte, from) in bytes.iter_mut().zip(code) {
            *byte = *from;
        }
        size
    }

    /// The functions of code that a program has made.
    pub fn symbols(&mut self, module: &Module) -> Vec<Symbol> {
        let generated = self.generated.get_mut(&module.id);
        generated.map_or_else(Vec::new, |generated| {
            generated.read_files();
            generated.symbols()
        })
    }

    /// The function at an address in code that a program has made, and the distance from its start.
    pub fn name(&self, module: &Module, address: u64) -> Option<(&str, u64)> {
        self.generated.get(&module.id)?.name(address)
    }

    /// The source line of an address in code that a program has made: path and number.
    pub fn line(&self, module: &Module, address: u64) -> Option<(&str, u32)> {
        self.generated.get(&module.id)?.line(address)
    }

    /// Calls `each` with the source lines of such code, as [`super::CodeFiles::lines`] does.
    pub fn lines(&self, module: &Module, each: &mut dyn FnMut(u64, u64, u32, &str) -> bool) {
        let lines = self.generated.get(&module.id).map(Generated::lines);
        for (start, size, line, path) in lines.into_iter().flatten() {
            if !each(start, size, line, path) {
                return;
            }
        }
    }

    /// Number of functions that others have replaced while the program ran.
    pub fn replaced(&self) -> u64 {
        self.generated.values().map(Generated::replaced).sum()
    }
}
