//! The program's descriptors: what each of those that `vbts` was started with becomes in the guest.
//!
//! | On the host | In the guest |
//! |---|---|
//! | regular file | the same file, by 9P |
//! | pipe, or as a standard descriptor anything else that can be read or written | pipe |
//! | terminal | pseudoterminal |
//! | `/dev/null` and the like | the guest's own |
//! | closed | closed |

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{OFlags, SeekFrom, seek};
use vbts_protocol::{Bytes, FileAccess, Stream, StreamKind};

use super::terminal::Terminal;
use crate::host::descriptors::{Inherited, Kind};

/// Where the trace goes, as far as the program's descriptors are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceOutput {
    /// Somewhere else.
    Elsewhere,
    /// To standard output, together with what the program writes there.
    Shared,
    /// To standard output alone. What the program writes there goes to standard error.
    Stdout,
}

/// The program's descriptors and their host side.
#[derive(Debug, Default)]
pub struct Streams {
    /// The program's descriptors, for the job.
    pub job: Vec<Stream>,
    /// What the program reads from pipes, by the number of the stream.
    pub inputs: BTreeMap<u32, File>,
    /// Where the bytes go that the program writes to a stream.
    pub outputs: BTreeMap<u32, Sink>,
    /// Regular files.
    pub files: BTreeMap<u32, OwnedFd>,
    /// The terminal.
    pub terminal: Option<Terminal>,
    /// What the terminal is, and whether the program reads from it.
    terminal_kind: Option<(Kind, bool)>,
    /// Descriptors that the program does not get, with their kinds.
    pub left_out: Vec<(u32, &'static str)>,
}

/// Where the bytes of a stream go.
#[derive(Debug)]
pub enum Sink {
    /// To standard output. If the trace goes there too, they are mixed by lines.
    Stdout,
    /// To standard error.
    Stderr,
    /// To another descriptor.
    Other(File),
}

impl Streams {
    /// The streams of a program that gets the descriptors `inherited`.
    ///
    /// # Errors
    /// The process is out of descriptors, or a file has no offset.
    pub fn new(inherited: &[Inherited], trace: TraceOutput) -> io::Result<Self> {
        let mut streams = Self::default();
        let has = |number| inherited.iter().find(|i| i.number == number);
        let stdout = has(1);
        streams.add_terminal(inherited, trace)?;
        for (at, descriptor) in inherited.iter().enumerate() {
            let number = descriptor.number;
            if number == 1 && trace == TraceOutput::Stdout {
                continue;
            }
            let same = |other: &&Inherited| other.is_same_open_file(descriptor);
            // The trace writes to this open file, too, and does not know what the program writes.
            let shared = trace != TraceOutput::Elsewhere
                && stdout.is_some_and(|stdout| same(&stdout))
                && !matches!(descriptor.kind, Kind::Terminal(_));
            let earlier = inherited[..at]
                .iter()
                .find(|i| same(i) && streams.job.iter().any(|s| s.fd == i.number));
            let kind = match (earlier, descriptor.kind) {
                (Some(_), Kind::Terminal(_)) => streams.kind(descriptor)?,
                (Some(earlier), _) if !shared => {
                    let fd = earlier.number;
                    Some(StreamKind::Same { fd })
                }
                _ if shared => streams.pipe(descriptor)?,
                _ => streams.kind(descriptor)?,
            };
            if let Some(kind) = kind {
                streams.job.push(Stream { fd: number, kind });
            }
        }
        // The agent opens what a stream shares before that stream.
        if trace == TraceOutput::Stdout && has(2).is_some() {
            let kind = StreamKind::Same { fd: 2 };
            streams.job.push(Stream { fd: 1, kind });
        }
        Ok(streams)
    }

    /// Finds the program's terminal, which is that of its standard output, or else of its standard
    /// error. If standard output goes elsewhere, another program may read what is typed, such as
    /// `less` at the other end of a pipe. Then the terminal is for output only.
    fn add_terminal(&mut self, inherited: &[Inherited], trace: TraceOutput) -> io::Result<()> {
        let is_terminal = |i: &&Inherited| matches!(i.kind, Kind::Terminal(_));
        let standard = |number| inherited.iter().find(|i| i.number == number);
        let (output, error) = (standard(1), standard(2));
        let Some(terminal) = output.filter(is_terminal).or(error.filter(is_terminal)) else {
            return Ok(());
        };
        let reads = terminal.number == 1;
        let first = inherited
            .iter()
            .find(|i| i.kind == terminal.kind && (reads || i.number > 0))
            .map_or(terminal.number, |first| first.number);
        let shared = trace != TraceOutput::Elsewhere;
        self.terminal = Some(Terminal::new(first, terminal.file()?, shared, reads));
        self.terminal_kind = Some((terminal.kind, reads));
        let sink = if reads { Sink::Stdout } else { Sink::Stderr };
        self.outputs.insert(first, sink);
        if reads {
            self.inputs.insert(first, terminal.file()?);
        }
        Ok(())
    }

    fn kind(&mut self, descriptor: &Inherited) -> io::Result<Option<StreamKind>> {
        let number = descriptor.number;
        if let Some((kind, reads)) = self.terminal_kind
            && kind == descriptor.kind
            && (reads || number > 0)
        {
            return Ok(Some(StreamKind::Terminal));
        }
        let access = access(descriptor.flags);
        Ok(match descriptor.kind {
            Kind::Regular => {
                self.files.insert(number, descriptor.fd.try_clone()?);
                Some(StreamKind::File {
                    access,
                    append: descriptor.flags.contains(OFlags::APPEND),
                    offset: descriptor.offset()?,
                })
            }
            Kind::Device(path) => Some(StreamKind::Device {
                path: Bytes::from(path),
                access,
            }),
            Kind::Pipe => self.pipe(descriptor)?,
            Kind::Terminal(_) | Kind::Other(_) if number <= 2 => self.pipe(descriptor)?,
            Kind::Terminal(_) => self.leave_out(number, "a terminal"),
            Kind::Other(name) => self.leave_out(number, name),
        })
    }

    fn leave_out(&mut self, number: u32, name: &'static str) -> Option<StreamKind> {
        self.left_out.push((number, name));
        None
    }

    fn pipe(&mut self, descriptor: &Inherited) -> io::Result<Option<StreamKind>> {
        let number = descriptor.number;
        let reads = match access(descriptor.flags) {
            FileAccess::Read => true,
            FileAccess::Write => false,
            FileAccess::Both => number == 0,
        };
        if reads {
            self.inputs.insert(number, descriptor.file()?);
            return Ok(Some(StreamKind::Input));
        }
        let sink = match number {
            1 => Sink::Stdout,
            2 => Sink::Stderr,
            _ => Sink::Other(descriptor.file()?),
        };
        self.outputs.insert(number, sink);
        Ok(Some(StreamKind::Output))
    }
}

/// The regular files of the host that the program writes, and where it stands in each.
#[derive(Debug, Default)]
pub struct Positions(BTreeMap<u32, OwnedFd>);

impl Positions {
    /// The offsets of `files`, by the numbers of their streams.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn new(files: &BTreeMap<u32, OwnedFd>) -> io::Result<Self> {
        let duplicate = |(number, fd): (&u32, &OwnedFd)| Ok((*number, fd.try_clone()?));
        files
            .iter()
            .map(duplicate)
            .collect::<io::Result<_>>()
            .map(Self)
    }

    /// Moves the host's file to where the program has left it: the next command of a shell goes on
    /// from there.
    pub fn set(&mut self, number: u32, offset: u64) {
        if let Some(fd) = self.0.remove(&number) {
            let _ = seek(fd, SeekFrom::Start(offset));
        }
    }

    /// Moves the files of which the guest has not told the offset to their ends, so that messages
    /// do not overwrite what the program wrote.
    pub fn settle(&mut self) {
        for fd in std::mem::take(&mut self.0).into_values() {
            let writes =
                rustix::fs::fcntl_getfl(&fd).is_ok_and(|flags| access(flags) != FileAccess::Read);
            if writes {
                let _ = seek(fd, SeekFrom::End(0));
            }
        }
    }
}

fn access(flags: OFlags) -> FileAccess {
    match flags & OFlags::RWMODE {
        OFlags::RDONLY => FileAccess::Read,
        OFlags::WRONLY => FileAccess::Write,
        _ => FileAccess::Both,
    }
}
