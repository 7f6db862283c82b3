//! The files whose symbols are known to the process that reads them.
//!
//! A file can be the death of that process. Then it is tried once more without the others, once
//! more without its source lines, and after that it has no names.

mod questions;

pub use questions::{INLINED, InlinedAt};

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;

use super::connection::Gone;
use super::debug_files::DebugFiles;
use super::mapped_files::{MappedFiles, Problem};
use super::protocol::{Action, Inlined, Refusal, Reply};
use super::source::Source;
use super::unnamed::Unnamed;
use crate::elf::MAX_BUILD_ID;
use vbts_host::root::Root;

/// Maximum number of names of files that are kept. When it is reached, all are dropped.
const MAX_NAMES: usize = 1 << 10;
/// Number of times that all files are forgotten to make room for one.
const MAX_RESETS: u32 = 64;

const TOO_LARGE: &str = "its symbols are too large";
const NO_LINES: &str = "no source lines: its debugging information is too large";
const LARGE_INLINED: &str =
    "no inlined functions: its debugging information is compressed and larger than 64 MiB";
const SPLIT: &str = "no inlined functions: its debugging information is split (-gsplit-dwarf)";
const UNREADABLE: &str = "it cannot be read";
const PARTLY_UNREADABLE: &str = "a part of it cannot be read";
const NO_DEBUG_FILE: &str = "its debug file cannot be opened";
const NO_SYMBOLS: &str = "it has no symbols";
const NOT_OPENED: &str = "it cannot be opened";
const NOT_TRACED: &str = "it is not the file that was traced, by its build ID";
const CLOSED: &str = "symbols are not read any more";

/// Number of a file.
pub(crate) type FileId = u32;

/// What is the same for all names of a file, and changes with its contents.
type Identity = (u64, u64, u64, i64, i64);

/// A file with symbols.
#[derive(Debug)]
struct SymbolFile {
    /// One of its names.
    name: String,
    place: Place,
    state: State,
    /// Its source lines are read.
    lines: bool,
    /// It can be asked about inlined functions.
    inlined: Inlined,
}

#[derive(Debug)]
enum Place {
    /// It is mapped in the guest.
    Guest,
    /// The guest's kernel.
    Kernel(File),
    /// Another file that is not in the guest.
    Image(File),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Unread,
    /// It was read in this epoch.
    Read(u32),
    /// It has no names.
    Bad,
}

/// The files whose symbols are known to the process that reads them.
#[derive(Debug)]
pub(crate) struct Files {
    mapped: MappedFiles,
    debug_files: DebugFiles,
    source: Source,
    /// Mapped files by their names; `None` if a file cannot have symbols.
    names: HashMap<String, Option<FileId>>,
    identities: HashMap<Identity, FileId>,
    files: HashMap<FileId, SymbolFile>,
    /// Number of files so far.
    count: FileId,
    /// Number of times that the process has lost its files.
    epoch: u32,
    /// Number of files that it has.
    loaded: u32,
    resets: u32,
    /// Number of times that the process was given a file to read.
    reads: u64,
    unnamed: Unnamed,
}

impl Files {
    /// No files yet. Those below `root` are read by `source`.
    pub(crate) fn new(root: Root, source: Source) -> Self {
        Self {
            mapped: MappedFiles::new(root),
            debug_files: DebugFiles::of_environment(),
            source,
            names: HashMap::new(),
            identities: HashMap::new(),
            files: HashMap::new(),
            count: 0,
            epoch: 0,
            loaded: 0,
            resets: 0,
            reads: 0,
            unnamed: Unnamed::default(),
        }
    }

    /// The number of times that the process was given a file to read.
    pub(crate) fn reads(&self) -> u64 {
        self.reads
    }

    /// Sets what reads symbols.
    pub(crate) fn set_source(&mut self, source: Source) {
        self.source = source;
    }

    /// What reads symbols.
    pub(crate) fn source(&mut self) -> &mut Source {
        &mut self.source
    }

    /// The files without names that can be opened.
    pub(crate) fn unnamed(&self) -> &Unnamed {
        &self.unnamed
    }

    /// The files without names.
    pub(crate) fn all_unnamed(&self) -> Unnamed {
        let mut all = self.unnamed.clone();
        for (name, problem) in self.mapped.problems().iter() {
            match problem {
                Problem::Missing => all.add(name, NOT_OPENED),
                Problem::Replaced => all.add(name, NOT_TRACED),
                Problem::Changed => {}
            }
        }
        all
    }

    /// The mapped files.
    pub(crate) fn mapped(&self) -> &MappedFiles {
        &self.mapped
    }

    /// The mapped files.
    pub(crate) fn mapped_mut(&mut self) -> &mut MappedFiles {
        &mut self.mapped
    }

    /// Adds the file of the guest's kernel, which is called `name`.
    pub(crate) fn add_kernel(&mut self, file: File, name: &str) -> FileId {
        self.add(name, Place::Kernel(file))
    }

    /// Adds a file that is not in the guest, which is called `name`.
    pub(crate) fn add_image(&mut self, file: File, name: &str) -> FileId {
        self.add(name, Place::Image(file))
    }

    fn add(&mut self, name: &str, place: Place) -> FileId {
        let file = SymbolFile {
            name: name.to_owned(),
            place,
            state: State::Unread,
            lines: true,
            inlined: Inlined::None,
        };
        self.count = self.count.wrapping_add(1);
        self.files.insert(self.count, file);
        self.count
    }

    /// The mapped file called `name`; `None` if it cannot have symbols.
    pub(crate) fn get(&mut self, name: &str) -> Option<FileId> {
        if let Some(known) = self.names.get(name) {
            return *known;
        }
        if self.names.len() >= MAX_NAMES {
            self.names.clear();
        }
        let id = self.open(name);
        self.names.insert(name.to_owned(), id);
        id
    }

    fn open(&mut self, name: &str) -> Option<FileId> {
        let (_, metadata) = self.mapped.open(name)?;
        let identity = (
            metadata.dev(),
            metadata.ino(),
            metadata.size(),
            metadata.mtime(),
            metadata.mtime_nsec(),
        );
        if let Some(id) = self.identities.get(&identity) {
            return Some(*id);
        }
        if self.identities.len() >= MAX_NAMES {
            self.identities.clear();
            self.names.clear();
            self.files
                .retain(|_, file| !matches!(file.place, Place::Guest));
            self.forget();
        }
        let id = self.add(name, Place::Guest);
        self.identities.insert(identity, id);
        Some(id)
    }

    /// Makes sure that the process has read the file. Returns whether it has.
    fn is_loaded(&mut self, id: FileId) -> bool {
        loop {
            match self.files.get(&id).map(|file| file.state) {
                None | Some(State::Bad) => return false,
                Some(State::Read(epoch)) if epoch == self.epoch => return true,
                Some(_) => {}
            }
            if let Err(gone) = self.load(id) {
                self.failed(id, gone);
            }
        }
    }

    /// Makes the process read the file, or gives it up.
    fn load(&mut self, id: FileId) -> Result<(), Gone> {
        let Some(file) = self.files.get_mut(&id) else {
            return Ok(());
        };
        let open = Action::Open { file: id };
        match &file.place {
            Place::Kernel(file) | Place::Image(file) => self.source.send(open, Some(file))?,
            Place::Guest => match self.mapped.open(&file.name) {
                Some((opened, _)) => self.source.send(open, Some(&opened))?,
                None => {
                    file.state = State::Bad;
                    return Ok(());
                }
            },
        }
        self.reads += 1;
        let is_kernel = matches!(file.place, Place::Kernel(_));
        let lines = file.lines;
        let debug_file = match self.source.receive()? {
            Reply::Opened {
                refused: None,
                build_id,
            } if build_id.len() <= MAX_BUILD_ID => {
                // The file that the user names as the kernel has what there is.
                let found = match is_kernel {
                    true => Ok(None),
                    false => self.debug_files.open(self.mapped.root(), build_id),
                };
                found.unwrap_or_else(|_| {
                    self.unnamed.add(&file.name, NO_DEBUG_FILE);
                    None
                })
            }
            Reply::Opened {
                refused: Some(refusal),
                ..
            } => {
                self.refused(id, refusal);
                return Ok(());
            }
            _ => return Err(Gone::Closed),
        };
        let finish = Action::Finish { file: id, lines };
        self.source.send(finish, debug_file.as_ref())?;
        let Reply::Finished {
            refused,
            functions,
            inlined,
        } = self.source.receive()?
        else {
            return Err(Gone::Closed);
        };
        if refused == Some(Refusal::TooLarge) && self.reset() {
            return Ok(());
        }
        self.loaded += 1;
        let Some(file) = self.files.get_mut(&id) else {
            return Ok(());
        };
        file.state = State::Read(self.epoch);
        file.inlined = inlined;
        if is_kernel && functions == 0 {
            self.unnamed.add(&file.name, NO_SYMBOLS);
        } else if refused == Some(Refusal::TooLarge) && file.lines {
            file.lines = false;
            self.unnamed.add(&file.name, NO_LINES);
        } else if refused == Some(Refusal::Unreadable) {
            self.unnamed.add(&file.name, PARTLY_UNREADABLE);
        }
        Ok(())
    }

    fn is_kernel(&self, id: FileId) -> bool {
        let file = self.files.get(&id);
        file.is_some_and(|file| matches!(file.place, Place::Kernel(_)))
    }

    /// Whether a file that was read can be asked about inlined functions. Those that it has and
    /// that are not read are missing.
    fn has_inlined(&mut self, id: FileId) -> bool {
        let Some(file) = self.files.get_mut(&id) else {
            return false;
        };
        let reason = match file.inlined {
            Inlined::Known => return true,
            Inlined::None => return false,
            Inlined::Compressed => LARGE_INLINED,
            Inlined::Split => SPLIT,
        };
        file.inlined = Inlined::None;
        self.unnamed.add(&file.name, reason);
        false
    }

    fn refused(&mut self, id: FileId, refusal: Refusal) {
        let is_kernel = self.is_kernel(id);
        match refusal {
            Refusal::TooLarge if self.reset() => {}
            Refusal::TooLarge => self.give_up(id, TOO_LARGE),
            Refusal::Unreadable => self.give_up(id, UNREADABLE),
            Refusal::NotElf if is_kernel => self.give_up(id, NO_SYMBOLS),
            // It can be executable code in another format.
            Refusal::NotElf => {
                if let Some(file) = self.files.get_mut(&id) {
                    file.state = State::Bad;
                }
            }
        }
    }

    /// Makes the process forget all files, if it has some, so that there is more room for one.
    fn reset(&mut self) -> bool {
        if self.loaded == 0 || self.resets == MAX_RESETS {
            return false;
        }
        self.resets += 1;
        self.forget();
        true
    }

    fn forget(&mut self) {
        // An error shows at the next request.
        let _ = self.source.send(Action::Forget, None);
        self.epoch += 1;
        self.loaded = 0;
    }

    /// Decides what becomes of a file at which the process has died.
    fn failed(&mut self, id: FileId, gone: Gone) {
        let others = std::mem::take(&mut self.loaded) > 1;
        self.epoch += 1;
        let Gone::Died(signal) = gone else {
            self.give_up_all();
            return;
        };
        let reason = match signal {
            libc::SIGABRT => TOO_LARGE,
            libc::SIGPROF => "its symbols take too long",
            _ => "its symbols cannot be read",
        };
        match self.files.get_mut(&id) {
            // Another file may have taken the memory.
            Some(_) if others && signal == libc::SIGABRT => {}
            Some(file) if file.lines => {
                file.lines = false;
                self.unnamed.add(&file.name, NO_LINES);
            }
            _ => self.give_up(id, reason),
        }
    }

    fn give_up(&mut self, id: FileId, reason: &'static str) {
        if let Some(file) = self.files.get_mut(&id) {
            file.state = State::Bad;
            self.unnamed.add(&file.name, reason);
        }
    }

    fn give_up_all(&mut self) {
        let files = self.files.values_mut();
        files.for_each(|file| file.state = State::Bad);
        if !self.source.is_absent() {
            self.unnamed.add("further files", CLOSED);
        }
        self.source = Source::Absent;
    }
}
