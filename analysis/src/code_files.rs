//! Reads the code and the symbols of the traced files.
//!
//! The guest could write the files, and they can have changed since the trace. Symbols are read by
//! a process of its own (`trace/symbols`). Code is only read, at most some pages at a time, and
//! given to a disassembler that accepts any bytes.

use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use vbts_trace::CodeSource;
use vbts_trace::profile::code::{Files, Symbol, SymbolKind};
use vbts_trace::profile::inlined::InlinedCall;
use vbts_trace::profile::modules::{Module, ModuleId, ModuleKind, extend_32};

use super::inlined::InlinedNames;
use super::memory_code::MemoryCode;
use super::short_names::short;
use vbts_symbols::elf::Segment;
use vbts_symbols::elf::{build_id, segments};
use vbts_symbols::{Answer, FileSymbols, FunctionKind, InlinedAt, Problem, Problems};

/// Maximum number of files that are open at once.
const MAX_OPEN: usize = 256;
/// Offset of the class in an ELF file, and the class of 32-bit files.
const ELF_CLASS: u64 = 4;
const ELFCLASS32: u8 = 1;

/// The guest's kernel.
#[derive(Debug)]
struct Kernel {
    file: File,
    /// With the addresses that a trace has.
    segments: Vec<Segment>,
    is_64_bit: bool,
}

/// The traced files.
#[derive(Debug)]
pub struct CodeFiles {
    /// Their symbols.
    pub symbols: FileSymbols,
    /// Source files below this directory are named relative to it.
    pub directory: PathBuf,
    /// Names of functions are short, without parameters, results and arguments of templates.
    pub short_names: bool,
    /// Advice for a program that an interpreter has executed: the option that gives its functions
    /// names.
    pub interpreter: Option<String>,
    open: HashMap<String, Option<File>>,
    kernel: Option<Kernel>,
    segments: HashMap<ModuleId, Vec<Segment>>,
    /// Code that is in no file.
    memory: MemoryCode,
    inlined: InlinedNames,
    source_problems: Problems,
}

impl CodeFiles {
    /// The files of `symbols`, as they were at `traced`, for a program that was started in
    /// `directory`.
    pub fn new(
        mut symbols: FileSymbols,
        memory: MemoryCode,
        directory: PathBuf,
        traced: SystemTime,
    ) -> Self {
        symbols.mapped_mut().set_traced(traced);
        Self {
            symbols,
            directory,
            short_names: false,
            interpreter: None,
            open: HashMap::new(),
            kernel: None,
            segments: HashMap::new(),
            memory,
            inlined: InlinedNames::default(),
            source_problems: Problems::default(),
        }
    }

    /// Sets the file of the guest's kernel, which is called `name`.
    pub fn set_kernel(&mut self, file: File, name: &str) {
        if let Ok(copy) = file.try_clone() {
            let mut segments = segments(&copy);
            let is_64_bit = is_64_bit(&copy);
            if !is_64_bit {
                let addresses = segments.iter_mut().map(|segment| &mut segment.address);
                addresses.for_each(|address| *address = extend_32(*address));
            }
            self.kernel = Some(Kernel {
                file: copy,
                segments,
                is_64_bit,
            });
        }
        self.symbols.set_kernel(file, name);
    }

    /// Opens a source file, if there is one. Keeps in mind what is wrong with it.
    pub(crate) fn open_source(&mut self, path: &Path) -> Option<File> {
        let name = path.as_os_str().as_encoded_bytes();
        let files = self.symbols.mapped();
        match files.open_regular(path) {
            Ok((file, metadata)) => {
                if files.is_newer(&metadata) {
                    self.source_problems.add(name, Problem::Changed);
                }
                Some(file)
            }
            Err(error) => {
                if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) {
                    self.source_problems.add(name, Problem::Missing);
                }
                None
            }
        }
    }

    /// The first bytes of a source file, `most` at most; none if there is no such file.
    pub(crate) fn read_source(&mut self, path: &Path, most: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Some(file) = self.open_source(path)
            && file.take(most).read_to_end(&mut bytes).is_err()
        {
            let name = path.as_os_str().as_encoded_bytes();
            self.source_problems.add(name, Problem::Missing);
        }
        bytes
    }

    /// What is wrong with source files.
    pub fn source_problems(&self) -> &Problems {
        &self.source_problems
    }

    /// The loaded segments of a module's file.
    fn segments(&mut self, module: &Module) -> &[Segment] {
        if !self.segments.contains_key(&module.id) {
            let segments = self.file(module).map(segments).unwrap_or_default();
            self.segments.insert(module.id, segments);
        }
        self.segments.get(&module.id).map_or(&[], Vec::as_slice)
    }

    /// The build ID of the file at `path` in the guest, if it has one: that of the traced file, if
    /// the trace has it.
    pub fn build_id(&self, path: &str) -> Option<Vec<u8>> {
        if let Some(traced) = self.symbols.mapped().build_id(path) {
            return Some(traced.to_vec());
        }
        let path = Some(Path::new(path)).filter(|path| path.is_absolute())?;
        let (file, _) = self.symbols.mapped().open_regular(path).ok()?;
        build_id(&file)
    }

    /// The build ID of the kernel.
    pub fn kernel_build_id(&self) -> Option<Vec<u8>> {
        build_id(&self.kernel.as_ref()?.file)
    }

    /// The first address of the kernel's code, and its size in bytes.
    pub fn kernel_code(&self) -> Option<(u64, u64)> {
        let Kernel { segments, .. } = self.kernel.as_ref()?;
        let code = segments.iter().filter(|segment| segment.is_code);
        let code: Vec<&Segment> = code.collect();
        let start = code.iter().map(|segment| segment.address).min()?;
        let ends = code.iter().map(|s| s.address.saturating_add(s.size));
        Some((start, ends.max()?.saturating_sub(start)))
    }

    /// The address of the first loaded segment of a module's file.
    pub fn base(&mut self, module: &Module) -> u64 {
        let addresses = self.segments(module).iter().map(|s| s.address);
        addresses.min().unwrap_or(0)
    }

    /// The address in an ELF file of the code at `offset` in the module.
    pub fn address(&mut self, module: &Module, offset: u64) -> Option<u64> {
        if module.kind != ModuleKind::File {
            return Some(offset);
        }
        let segments = self.segments(module).iter();
        let mut inside = segments.filter(|s| offset.wrapping_sub(s.offset) < s.size);
        let segment = inside.next()?;
        Some(
            segment
                .address
                .wrapping_add(offset.wrapping_sub(segment.offset)),
        )
    }

    /// Calls `each` with the index of an offset in a module and what is there. Offsets without an
    /// answer have no names.
    pub fn find(
        &mut self,
        module: &Module,
        offsets: &[u64],
        each: &mut dyn FnMut(usize, &Answer<'_>),
    ) {
        if module.kind == ModuleKind::File && self.file(module).is_none() {
            return;
        }
        if module.kind != ModuleKind::Generated {
            return self.symbols.find(symbol_path(module), offsets, each);
        }
        for (number, offset) in offsets.iter().enumerate() {
            let function = self.memory.name(module, *offset);
            let line = self.memory.line(module, *offset);
            each(number, &Answer { function, line });
        }
    }

    /// Calls `each` with the source lines of a module: where their code begins, its size, the
    /// number of the line and its path. Ends when `each` returns false.
    pub fn lines(&mut self, module: &Module, each: &mut dyn FnMut(u64, u64, u32, &str) -> bool) {
        if module.kind == ModuleKind::Generated {
            self.memory.lines(module, each);
        } else if module.kind != ModuleKind::File || self.file(module).is_some() {
            self.symbols.lines(symbol_path(module), 0..u64::MAX, each);
        }
    }

    /// The names of the inlined functions.
    pub(crate) fn inlined_names(&self) -> &InlinedNames {
        &self.inlined
    }

    /// The inlined calls whose code is at an offset in a module, the outermost first.
    pub(crate) fn inlined_at(&mut self, module: &Module, offset: u64) -> Vec<InlinedAt> {
        match self.has_file(module) {
            true => self.symbols.inlined_at(symbol_path(module), offset),
            false => Vec::new(),
        }
    }

    /// Returns whether the file of the module can be read.
    fn has_file(&mut self, module: &Module) -> bool {
        match module.kind {
            ModuleKind::File => self.file(module).is_some(),
            ModuleKind::Kernel => true,
            _ => false,
        }
    }

    /// Number of functions of JIT compilers that others have replaced while the program ran.
    pub fn replaced(&self) -> u64 {
        self.memory.replaced()
    }

    fn file(&mut self, module: &Module) -> Option<&File> {
        if self.open.len() >= MAX_OPEN && !self.open.contains_key(&module.name) {
            self.open.clear();
        }
        if !self.open.contains_key(&module.name) {
            let opened = self.symbols.mapped_mut().open(&module.name);
            let file = opened.map(|(file, _)| file);
            self.open.insert(module.name.clone(), file);
        }
        self.open.get(&module.name)?.as_ref()
    }
}

/// Whether an ELF file has 64-bit code. What cannot be read has.
fn is_64_bit(file: &File) -> bool {
    let mut class = [0];
    file.read_exact_at(&mut class, ELF_CLASS).is_err() || class != [ELFCLASS32]
}

/// The path of a module for its symbols; `None` is the kernel.
fn symbol_path(module: &Module) -> Option<&str> {
    (module.kind != ModuleKind::Kernel).then_some(module.name.as_str())
}

impl Files for CodeFiles {
    fn read(&mut self, module: &Module, offset: u64, bytes: &mut [u8]) -> usize {
        let (file, offset, size) = match module.kind {
            ModuleKind::Kernel => {
                let Some(Kernel { file, segments, .. }) = &self.kernel else {
                    return 0;
                };
                let inside = |s: &&Segment| offset.wrapping_sub(s.address) < s.size;
                let Some(segment) = segments.iter().find(inside) else {
                    return 0;
                };
                let distance = offset.wrapping_sub(segment.address);
                let left = segment.size - distance;
                (file, segment.offset.wrapping_add(distance), left)
            }
            ModuleKind::File => match self.file(module) {
                Some(file) => (file, offset, u64::MAX),
                None => return 0,
            },
            _ => return self.memory.read(module, offset, bytes),
        };
        let size = usize::try_from(size).unwrap_or(usize::MAX).min(bytes.len());
        let Some(bytes) = bytes.get_mut(..size) else {
            return 0;
        };
        let mut done = 0;
        while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match file.read_at(rest, offset.wrapping_add(done as u64)) {
                Ok(0) | Err(_) => break,
                Ok(count) => done += count,
            }
        }
        done
    }

    fn is_64_bit(&mut self, module: &Module) -> bool {
        match module.kind {
            ModuleKind::File => self.file(module).is_none_or(is_64_bit),
            ModuleKind::Kernel => (self.kernel.as_ref()).is_none_or(|kernel| kernel.is_64_bit),
            _ => !self.memory.is_32_bit(module),
        }
    }

    fn add_code(&mut self, module: &Module, source: CodeSource, at: u64, bytes: &[u8]) {
        self.memory.add(module, source, at, bytes);
    }

    fn add_build_id(&mut self, path: &[u8], id: Vec<u8>) {
        self.symbols.mapped_mut().add_build_id(path, id);
    }

    fn inlined(&mut self, module: &Module, function: Range<u64>) -> Vec<InlinedCall> {
        let mut calls = Vec::new();
        if !self.has_file(module) {
            return calls;
        }
        let (symbols, names) = (&mut self.symbols, &mut self.inlined);
        let is_short = self.short_names;
        symbols.inlined(symbol_path(module), function, &mut |row| {
            let short = is_short.then(|| short(row.name));
            let name = short.as_deref().unwrap_or(row.name);
            calls.push(InlinedCall {
                outer: row.outer,
                function: names.add(module.id, name),
                code: row.code.clone(),
            });
        });
        calls
    }

    fn symbols(&mut self, module: &Module) -> Vec<Symbol> {
        match module.kind {
            ModuleKind::Kernel => {}
            ModuleKind::File if self.file(module).is_none() => return Vec::new(),
            ModuleKind::File => {}
            ModuleKind::Generated => return self.memory.symbols(module),
            // Without an image, it has no names.
            _ => match self.memory.image(module) {
                Some(image) => self.symbols.add_image(image, &module.name),
                None => return Vec::new(),
            },
        }
        let functions = self.symbols.functions(symbol_path(module));
        let symbols = functions.iter().map(|function| Symbol {
            start: function.start,
            end: function.start.saturating_add(function.size),
            kind: match function.kind {
                FunctionKind::Named => SymbolKind::Function,
                FunctionKind::Part => SymbolKind::Part,
                FunctionKind::Linkage => SymbolKind::Linkage,
                FunctionKind::LinkageHeader => SymbolKind::LinkageHeader,
                FunctionKind::Switch => SymbolKind::Switch,
                FunctionKind::Unnamed => SymbolKind::Unnamed,
            },
        });
        symbols.collect()
    }
}
