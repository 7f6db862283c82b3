//! The mappings of the traced task, as far as branches can lead there.

use std::fs::File;
use std::io::{self, Read, Seek};

use libc::pid_t;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use vbts_protocol::MAX_PAYLOAD;

const PROCMAP_QUERY: Opcode = opcode::read_write::<Query>(b'f', 17);
const VMA_EXECUTABLE: u64 = 0x4;
const COVERING_OR_NEXT_VMA: u64 = 0x10;

/// `struct procmap_query` (include/uapi/linux/fs.h): a question, and a mapping as the answer.
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

/// `/proc/PID/maps` of one task, and what it last said.
#[derive(Debug)]
pub struct Maps {
    pid: pid_t,
    /// Of the program that the task executed when this was opened.
    file: Option<File>,
    /// Kernels before 6.11 don't tell.
    executable: Option<Vec<Query>>,
    text: Vec<u8>,
}

impl Maps {
    /// The mappings of a task, of which nothing is known yet.
    pub fn new(pid: pid_t) -> Self {
        Self {
            pid,
            file: None,
            executable: None,
            text: Vec::new(),
        }
    }

    /// The task executes another program.
    pub fn replaced(&mut self) {
        self.file = File::open(format!("/proc/{}/maps", self.pid)).ok();
        self.executable = None;
    }

    /// The text of `/proc/PID/maps`, whole lines of it that fit a frame, if the executable mappings
    /// are not what they were. The text takes the kernel many times as long as to say that they are
    /// the same, which they nearly always are when a full buffer is drained.
    pub fn changed(&mut self) -> Option<&[u8]> {
        let file = self.file.as_mut()?;
        let executable = executable(file).ok();
        if executable.is_some() && executable == self.executable {
            return None;
        }
        let text = text(file).ok()?;
        self.executable = executable;
        if text == self.text {
            return None;
        }
        self.text = text;
        Some(&self.text)
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
        // SAFETY: PROCMAP_QUERY reads and writes a struct procmap_query, and follows no address
        // that is zero.
        let answer = unsafe { ioctl(file, Updater::<PROCMAP_QUERY, Query>::new(&mut query)) };
        match answer {
            Ok(()) => next = query.vma_end,
            Err(Errno::NOENT) => return Ok(found),
            Err(error) => return Err(error),
        }
        found.push(query);
    }
}

fn text(file: &mut File) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut text)?;
    let room = MAX_PAYLOAD - size_of::<u32>();
    if text.len() > room {
        text.truncate(room);
        let end_of_line = text.iter().rposition(|&byte| byte == b'\n');
        text.truncate(end_of_line.map_or(0, |at| at + 1));
    }
    Ok(text)
}
