//! The program's descriptors: what each of those that `vbts` was started with becomes in the guest.
//!
//! | On the host | In the guest |
//! |---|---|
//! | regular file | the same file, by 9P |
//! | pipe, or as a standard descriptor anything else (a socket) | pipe for one direction |
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
use crate::output::{StdoutUse, StreamOutput};
use vbts_host::descriptors::{Inherited, Kind};
use vbts_host::output::Output;

/// The program's descriptors and their host side.
#[derive(Debug, Default)]
pub struct Streams {
    /// The program's descriptors, for the job.
    pub job: Vec<Stream>,
    /// What the program reads from pipes, by the number of the stream.
    pub inputs: BTreeMap<u32, File>,
    /// Where the bytes go that the program writes to a stream.
    pub outputs: BTreeMap<u32, StreamOutput>,
    /// Regular files.
    pub files: BTreeMap<u32, OwnedFd>,
    /// The terminal.
    pub terminal: Option<Terminal>,
    /// Descriptors that the program does not get, with their kinds.
    pub left_out: Vec<(u32, &'static str)>,
}

impl Streams {
    /// The streams of a program that gets the descriptors `inherited`. `stdout` says what is
    /// written to standard output.
    ///
    /// # Errors
    /// The process is out of descriptors, or a file has no offset.
    pub fn new(inherited: &[Inherited], stdout: StdoutUse) -> io::Result<Self> {
        let mut streams = Self::default();
        streams.add_terminal(inherited, stdout)?;
        let find = |number| inherited.iter().find(|i| i.number == number);
        // The trace writes to this open file, too, and does not know what the program writes. In a
        // recorded run, the recording has what the program writes.
        let piped: &[u32] = match stdout {
            StdoutUse::Program => &[],
            StdoutUse::Both | StdoutUse::Trace => &[1],
            StdoutUse::Recorded => &[1, 2],
        };
        for (at, descriptor) in inherited.iter().enumerate() {
            let fd = descriptor.number;
            if fd == 1 && stdout == StdoutUse::Trace {
                continue;
            }
            let earlier = inherited.iter().take(at).find(|earlier| {
                earlier.is_same_open_file(descriptor)
                    && streams.can_share(earlier.number, descriptor)
            });
            let kind = if matches!(descriptor.kind, Kind::Terminal(_)) {
                streams.kind(descriptor)?
            } else if piped
                .iter()
                .filter_map(|number| find(*number))
                .any(|piped| piped.is_same_open_file(descriptor))
                && (earlier.is_none() || stdout != StdoutUse::Recorded)
            {
                streams.pipe(descriptor)?
            } else if let Some(earlier) = earlier {
                let fd = earlier.number;
                Some(StreamKind::Same { fd })
            } else {
                streams.kind(descriptor)?
            };
            streams.job.extend(kind.map(|kind| Stream { fd, kind }));
        }
        // The agent opens what a stream shares before that stream.
        if stdout == StdoutUse::Trace && find(2).is_some() {
            let kind = StreamKind::Same { fd: 2 };
            streams.job.push(Stream { fd: 1, kind });
        }
        Ok(streams)
    }

    /// Whether `descriptor`, which is the same open file as the stream `earlier`, can be that
    /// stream. A pipe has one direction: a socket that is both standard input and output becomes
    /// two.
    fn can_share(&self, earlier: u32, descriptor: &Inherited) -> bool {
        let stream = self.job.iter().find(|stream| stream.fd == earlier);
        stream.is_some_and(|stream| match stream.kind {
            StreamKind::Input => reads(descriptor),
            StreamKind::Output => !reads(descriptor),
            _ => true,
        })
    }

    fn add_terminal(&mut self, inherited: &[Inherited], stdout: StdoutUse) -> io::Result<()> {
        let shared = matches!(stdout, StdoutUse::Both | StdoutUse::Trace);
        self.terminal = Terminal::find(inherited, shared)?;
        let Some(terminal) = &self.terminal else {
            return Ok(());
        };
        self.inputs.insert(terminal.stream(), terminal.file()?);
        self.outputs.insert(terminal.stream(), terminal.output()?);
        Ok(())
    }

    fn kind(&mut self, descriptor: &Inherited) -> io::Result<Option<StreamKind>> {
        let number = descriptor.number;
        if self.terminal.as_ref().is_some_and(|t| t.is(descriptor)) {
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
        if reads(descriptor) {
            self.inputs.insert(number, descriptor.file()?);
            return Ok(Some(StreamKind::Input));
        }
        let output = match number {
            1 => StreamOutput::Stdout,
            2 => StreamOutput::Stderr,
            _ => {
                let name = format!("descriptor {number}");
                StreamOutput::Other(Output::new(descriptor.file()?, &name))
            }
        };
        self.outputs.insert(number, output);
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

/// Whether a pipe in the place of `descriptor` is one to read.
fn reads(descriptor: &Inherited) -> bool {
    match access(descriptor.flags) {
        FileAccess::Read => true,
        FileAccess::Write => false,
        FileAccess::Both => descriptor.number == 0,
    }
}

fn access(flags: OFlags) -> FileAccess {
    match flags & OFlags::RWMODE {
        OFlags::RDONLY => FileAccess::Read,
        OFlags::WRONLY => FileAccess::Write,
        _ => FileAccess::Both,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The descriptors of a process, by number.
    fn inherited(descriptors: Vec<(u32, OwnedFd)>) -> Vec<Inherited> {
        let inherited = |(number, fd)| Inherited::new(number, fd).unwrap();
        descriptors.into_iter().map(inherited).collect()
    }

    fn kinds(streams: &Streams) -> Vec<(u32, StreamKind)> {
        let kind = |stream: &Stream| (stream.fd, stream.kind.clone());
        streams.job.iter().map(kind).collect()
    }

    /// Both ends of a new terminal. The first one must stay open.
    fn terminal() -> (OwnedFd, OwnedFd) {
        use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
        let host = openpt(flags).unwrap();
        grantpt(&host).unwrap();
        unlockpt(&host).unwrap();
        let program = ioctl_tiocgptpeer(&host, flags).unwrap();
        (host, program)
    }

    #[test]
    fn each_kind_of_descriptor_has_a_stream() {
        let (reader, writer) = io::pipe().unwrap();
        let file = tempfile::tempfile().unwrap();
        seek(&file, SeekFrom::Start(5)).unwrap();
        let directory = File::open("/").unwrap();
        let inherited = inherited(vec![
            (0, reader.into()),
            (1, file.try_clone().unwrap().into()),
            (2, file.into()),
            (5, writer.into()),
            (6, File::open("/dev/null").unwrap().into()),
            (7, directory.into()),
        ]);
        let streams = Streams::new(&inherited, StdoutUse::Program).unwrap();
        let both = StreamKind::File {
            access: FileAccess::Both,
            append: false,
            offset: 5,
        };
        let null = StreamKind::Device {
            path: Bytes::from("/dev/null"),
            access: FileAccess::Read,
        };
        assert_eq!(
            kinds(&streams),
            [
                (0, StreamKind::Input),
                (1, both),
                (2, StreamKind::Same { fd: 1 }),
                (5, StreamKind::Output),
                (6, null),
            ]
        );
        assert_eq!(streams.left_out, [(7, "a directory")]);
        assert_eq!(streams.inputs.keys().collect::<Vec<_>>(), [&0]);
        assert_eq!(streams.files.keys().collect::<Vec<_>>(), [&1]);
        assert!(matches!(streams.outputs[&5], StreamOutput::Other(_)));
    }

    #[test]
    fn a_socket_that_is_input_and_output_becomes_two_pipes() {
        let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        let copy = || socket.try_clone().unwrap().into();
        let inherited = inherited(vec![(0, copy()), (1, copy()), (2, copy())]);
        let streams = Streams::new(&inherited, StdoutUse::Program).unwrap();
        assert_eq!(
            kinds(&streams),
            [
                (0, StreamKind::Input),
                (1, StreamKind::Output),
                (2, StreamKind::Same { fd: 1 })
            ]
        );
    }

    #[test]
    fn the_program_gets_no_file_to_which_the_trace_goes() {
        for (stdout, expected) in [
            (
                StdoutUse::Both,
                [(1, StreamKind::Output), (2, StreamKind::Output)],
            ),
            (
                StdoutUse::Trace,
                [(2, StreamKind::Output), (1, StreamKind::Same { fd: 2 })],
            ),
        ] {
            let file = tempfile::tempfile().unwrap();
            let same = file.try_clone().unwrap();
            let inherited = inherited(vec![(1, file.into()), (2, same.into())]);
            let streams = Streams::new(&inherited, stdout).unwrap();
            assert_eq!(kinds(&streams), expected);
            assert!(streams.files.is_empty());
        }
    }

    #[test]
    fn the_output_of_a_recorded_program_passes_through_pipes() {
        let [first, second] = [0, 1].map(|_| tempfile::tempfile().unwrap());
        let copy = || first.try_clone().unwrap().into();
        let same = inherited(vec![(1, copy()), (2, copy())]);
        let streams = Streams::new(&same, StdoutUse::Recorded).unwrap();
        let expected = [(1, StreamKind::Output), (2, StreamKind::Same { fd: 1 })];
        assert_eq!(kinds(&streams), expected);
        let two = inherited(vec![(1, copy()), (2, second.into())]);
        let streams = Streams::new(&two, StdoutUse::Recorded).unwrap();
        let expected = [(1, StreamKind::Output), (2, StreamKind::Output)];
        assert_eq!(kinds(&streams), expected);
        assert!(streams.files.is_empty());
    }

    #[test]
    fn a_terminal_is_one_on_any_standard_descriptor() {
        let (_host, program) = terminal();
        let copy = || program.try_clone().unwrap();
        let all = inherited(vec![(0, copy()), (1, copy()), (2, copy())]);
        let streams = Streams::new(&all, StdoutUse::Both).unwrap();
        let three = [0, 1, 2].map(|fd| (fd, StreamKind::Terminal));
        assert_eq!(kinds(&streams), three);
        assert_eq!(streams.inputs.keys().collect::<Vec<_>>(), [&0]);
        assert!(matches!(streams.outputs[&0], StreamOutput::Stdout));

        let (_reader, pipe) = io::pipe().unwrap();
        let pipe = || pipe.try_clone().unwrap().into();
        let piped = inherited(vec![(0, copy()), (1, pipe()), (2, copy())]);
        let streams = Streams::new(&piped, StdoutUse::Program).unwrap();
        assert_eq!(
            kinds(&streams),
            [
                (0, StreamKind::Terminal),
                (1, StreamKind::Output),
                (2, StreamKind::Terminal)
            ]
        );
        assert!(matches!(streams.outputs[&0], StreamOutput::Stderr));

        let piped = inherited(vec![(0, copy()), (1, pipe()), (2, pipe())]);
        let streams = Streams::new(&piped, StdoutUse::Program).unwrap();
        assert_eq!(kinds(&streams)[0], (0, StreamKind::Terminal));
        assert!(matches!(streams.outputs[&0], StreamOutput::Other(_)));
    }
}
