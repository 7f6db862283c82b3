//! The executable mappings of a traced process.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::rc::Rc;

use libc::pid_t;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use vbts_protocol::MAX_TEXT;

const PROCMAP_QUERY: Opcode = opcode::read_write::<Query>(b'f', 17);
const VMA_EXECUTABLE: u64 = 0x4;
const COVERING_OR_NEXT_VMA: u64 = 0x10;

/// `struct procmap_query` (include/uapi/linux/fs.h): a query, and a mapping as its result.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[repr(C)]
struct Query {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

/// Maximum length in bytes of a path, with a zero.
const MAX_PATH: usize = 4096;
/// Maximum size in bytes of a build ID (`BUILD_ID_SIZE_MAX` of the kernel).
const MAX_BUILD_ID: usize = 20;

/// A file that is mapped as code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeFile {
    /// Its build ID.
    pub build_id: Vec<u8>,
    /// The name of the mapping.
    pub name: Vec<u8>,
}

/// A file: the numbers of its device and of its inode.
pub type FileNumber = (u32, u32, u64);

/// `/proc/PID/maps` of one process, with its last contents.
#[derive(Debug)]
pub struct Maps {
    /// The file of the program that the process executed when it was opened. It also serves when
    /// the first thread has ended, after which a new file would be empty.
    file: Option<File>,
    known: Contents,
    /// `known` describes this process, and not only the one that has started it.
    sent: bool,
}

/// Mappings, which a process shares with the one that has started it until they change.
#[derive(Debug, Clone, Default)]
struct Contents {
    /// The executable mappings; `None` on kernels before 6.11, which have no PROCMAP_QUERY.
    executable: Option<Rc<[Query]>>,
    text: Rc<[u8]>,
}

impl Maps {
    /// The mappings of process `pid`, which are not read yet.
    pub fn new(pid: pid_t) -> Self {
        Self {
            file: File::open(format!("/proc/{pid}/maps")).ok(),
            known: Contents::default(),
            sent: false,
        }
    }

    /// The mappings of process `pid` if this process has started it. They are not read yet.
    pub fn child(&self, pid: pid_t) -> Self {
        Self {
            known: self.known.clone(),
            ..Self::new(pid)
        }
    }

    /// Returns whether [`Self::changed`] has returned the text of this process.
    pub fn is_sent(&self) -> bool {
        self.sent
    }

    /// Makes [`Self::changed`] return the text also if it has returned it before.
    pub fn send_again(&mut self) {
        self.sent = false;
    }

    /// The text that [`Self::changed`] has returned last.
    pub fn text(&self) -> Rc<[u8]> {
        self.known.text.clone()
    }

    /// Returns the executable files that have a build ID and are not among the `known` ones, and
    /// adds them there. It is empty on kernels before 6.11.
    pub fn new_files(&self, known: &mut BTreeSet<FileNumber>) -> Vec<CodeFile> {
        let mappings = self.known.executable.as_deref().unwrap_or_default();
        let mut found = Vec::new();
        for mapping in mappings.iter().filter(|mapping| mapping.inode != 0) {
            let number = (mapping.dev_major, mapping.dev_minor, mapping.inode);
            if let Some(file) = &self.file
                && known.insert(number)
            {
                found.extend(code_file(file, mapping.vma_start));
            }
        }
        found
    }

    /// Returns the text of `/proc/PID/maps`, cut to the complete lines that fit into a frame, if it
    /// was not returned yet or the executable mappings have changed. The kernel formats the text
    /// much more slowly than it answers the queries, and the mappings rarely change between two
    /// drains, or between a fork and the first instruction of the child.
    pub fn changed(&mut self) -> Option<Rc<[u8]>> {
        let file = self.file.as_mut()?;
        let executable = executable(file).ok();
        let same =
            executable.is_some() && executable.as_deref() == self.known.executable.as_deref();
        if same && self.sent {
            return None;
        }
        if !same {
            // It is empty if the process has ended, or has executed another program.
            let text = text(file).ok().filter(|text| !text.is_empty())?;
            self.known.executable = executable.map(Rc::from);
            if self.sent && *text == *self.known.text {
                return None;
            }
            self.known.text = text.into();
        }
        self.sent = true;
        Some(self.known.text.clone())
    }
}

fn executable(file: &File) -> Result<Vec<Query>, Errno> {
    let mut found = Vec::new();
    let mut next = 0;
    loop {
        let mut query = Query {
            size: size_of::<Query>() as u64,
            query_flags: VMA_EXECUTABLE | COVERING_OR_NEXT_VMA,
            query_addr: next,
            ..Query::default()
        };
        // SAFETY: PROCMAP_QUERY reads and writes a struct procmap_query. It does not follow
        // addresses that are zero.
        let answer = unsafe { ioctl(file, Updater::<PROCMAP_QUERY, Query>::new(&mut query)) };
        match answer {
            Ok(()) => next = query.vma_end,
            Err(Errno::NOENT) => return Ok(found),
            Err(error) => return Err(error),
        }
        found.push(query);
    }
}

/// The file that is mapped at an address, if it has a build ID.
fn code_file(file: &File, address: u64) -> Option<CodeFile> {
    let mut name = vec![0; MAX_PATH];
    let mut build_id = vec![0; MAX_BUILD_ID];
    let mut query = Query {
        size: size_of::<Query>() as u64,
        query_addr: address,
        vma_name_size: MAX_PATH as u32,
        build_id_size: MAX_BUILD_ID as u32,
        vma_name_addr: name.as_mut_ptr() as u64,
        build_id_addr: build_id.as_mut_ptr() as u64,
        ..Query::default()
    };
    // SAFETY: PROCMAP_QUERY reads and writes a struct procmap_query, and writes at most as many
    // bytes to the two buffers as their sizes say.
    unsafe { ioctl(file, Updater::<PROCMAP_QUERY, Query>::new(&mut query)) }.ok()?;
    build_id.truncate(query.build_id_size as usize);
    // The size counts the zero.
    name.truncate((query.vma_name_size as usize).checked_sub(1)?);
    (!build_id.is_empty()).then_some(CodeFile { build_id, name })
}

fn text(file: &mut File) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut text)?;
    if text.len() > MAX_TEXT {
        text.truncate(MAX_TEXT);
        let end_of_line = text.iter().rposition(|&byte| byte == b'\n');
        text.truncate(end_of_line.map_or(0, |at| at + 1));
    }
    Ok(text)
}
