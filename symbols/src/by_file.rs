//! Symbols of files by the offset in them, for what does not depend on processes.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::process::Command;

use super::connection::Connection;
use super::files::{FileId, Files, InlinedAt};
use super::mapped_files::MappedFiles;
use super::protocol::{Answer, FunctionRange, InlinedRow};
use super::source::Source;
use super::unnamed::Unnamed;
use vbts_host::root::Root;

/// Maximum number of functions that are listed of all files together.
const MAX_FUNCTIONS: usize = 1 << 22;

/// Symbols of files by the offset in them.
#[derive(Debug)]
pub struct FileSymbols {
    files: Files,
    kernel: Option<FileId>,
    /// Files that are not in the guest, such as the vDSO, by the names of their mappings.
    images: HashMap<String, FileId>,
    /// Number of functions that can still be listed.
    left: usize,
}

impl FileSymbols {
    /// Looks up files below `root`. The program `vbts` reads their symbols, in a sandbox if
    /// `confined`.
    ///
    /// # Errors
    /// The host starts no process.
    pub fn new(root: Root, vbts: &mut Command, confined: bool) -> io::Result<Self> {
        let connection = Connection::start(vbts, confined)?;
        Ok(Self {
            files: Files::new(root, Source::Process(connection)),
            kernel: None,
            images: HashMap::new(),
            left: MAX_FUNCTIONS,
        })
    }

    /// Sets the file of the guest's kernel. Its offsets are addresses.
    pub fn set_kernel(&mut self, file: File, name: &str) {
        self.kernel = Some(self.files.add_kernel(file, name));
    }

    /// Adds a file that is not in the guest, with the name of a mapping.
    pub fn add_image(&mut self, file: File, name: &str) {
        let id = self.files.add_image(file, name);
        self.images.insert(name.to_owned(), id);
    }

    /// The files whose names are missing although they can be opened.
    pub fn unnamed(&self) -> &Unnamed {
        self.files.unnamed()
    }

    /// The mapped files.
    pub fn mapped(&self) -> &MappedFiles {
        self.files.mapped()
    }

    /// The mapped files.
    pub fn mapped_mut(&mut self) -> &mut MappedFiles {
        self.files.mapped_mut()
    }

    /// The file with this path in the guest; `None` is the kernel.
    fn id(&mut self, path: Option<&str>) -> Option<FileId> {
        match path {
            Some(path) => match self.images.get(path) {
                Some(id) => Some(*id),
                None => self.files.get(path),
            },
            None => self.kernel,
        }
    }

    /// The functions of a file, sorted by their start.
    pub fn functions(&mut self, path: Option<&str>) -> Vec<FunctionRange> {
        let Some(id) = self.id(path) else {
            return Vec::new();
        };
        let functions = self.files.functions(id, self.left);
        self.left = self.left.saturating_sub(functions.len());
        functions
    }

    /// Calls `each` with the index of an offset and what is there. Offsets without an answer have
    /// no names.
    pub fn find(
        &mut self,
        path: Option<&str>,
        offsets: &[u64],
        each: &mut dyn FnMut(usize, &Answer<'_>),
    ) {
        if let Some(id) = self.id(path) {
            self.files.find(id, offsets, each);
        }
    }

    /// Calls `each` with the source lines of a part of a file: where their code begins, its size,
    /// the number of the line and its path. Ends when `each` returns false.
    pub fn lines(
        &mut self,
        path: Option<&str>,
        range: Range<u64>,
        each: &mut dyn FnMut(u64, u64, u32, &str) -> bool,
    ) {
        if let Some(id) = self.id(path) {
            self.files.lines(id, range, each);
        }
    }

    /// Calls `each` with the inlined calls that have code in a function, or in a part of it, the
    /// outer ones first.
    pub fn inlined(
        &mut self,
        path: Option<&str>,
        range: Range<u64>,
        each: &mut dyn FnMut(&InlinedRow<'_>),
    ) {
        if let Some(id) = self.id(path) {
            self.files.inlined(id, range, each);
        }
    }

    /// The inlined calls whose code is at an offset, the outermost first.
    pub fn inlined_at(&mut self, path: Option<&str>, offset: u64) -> Vec<InlinedAt> {
        let id = self.id(path);
        id.map_or_else(Vec::new, |id| self.files.inlined_at(id, offset))
    }
}
