//! Files of the target that the client reads: the program, its libraries, `/proc/PID/maps`.

use super::packet::MAX_PACKET;
use super::session::{Outcome, Session};
use super::text::{Arguments, MALFORMED, from_hex, push_binary};
use crate::file::{FileStatus, TargetFile};
use crate::target::{Result, TargetError};

/// Files that may be open at the same time. GDB keeps one open for each library.
const MAX_OPEN: usize = 4096;

// GDB's numbers of errors ("Errno Values" in its manual), which differ from Linux's in the last
// three.
const EBADF: u32 = 9;
const EMFILE: u32 = 24;
const EROFS: u32 = 30;
const ENAMETOOLONG: u32 = 91;
const ENOSYS: u32 = 88;
const EUNKNOWN: u32 = 9999;

/// `O_WRONLY | O_RDWR | O_APPEND | O_CREAT | O_TRUNC` in GDB's numbers ("Open Flags").
const WRITE_FLAGS: u64 = 0x1 | 0x2 | 0x8 | 0x200 | 0x400;

/// Files that are open, by descriptor.
#[derive(Default)]
pub(super) struct OpenFiles {
    files: Vec<Option<Box<dyn TargetFile>>>,
    /// The process whose files the client means, or `None` for any.
    process: Option<u32>,
}

/// Result of an operation on files.
enum Answer {
    Number(usize),
    Data(Vec<u8>),
}

/// Why an operation on files fails.
enum Failure {
    Number(u32),
    Target(TargetError),
}

impl From<TargetError> for Failure {
    fn from(error: TargetError) -> Self {
        match error {
            TargetError::Errno(number) => Self::Number(match number {
                // EIO, which GDB knows as 9999 in older versions.
                5 => EUNKNOWN,
                36 => ENAMETOOLONG,
                38 => ENOSYS,
                number => number.into(),
            }),
            TargetError::Refused(_) => Self::Number(EUNKNOWN),
            error => Self::Target(error),
        }
    }
}

/// `vFile:OPERATION:ARGUMENTS`.
pub(super) fn answer(session: &mut Session<'_>, mut arguments: Arguments<'_>) -> Result<Outcome> {
    let operation = arguments.until(b':');
    let answer = match operation {
        b"setfs" => set_process(session, arguments),
        b"open" => open(session, arguments),
        b"close" => close(session, arguments),
        b"pread" => read(session, arguments),
        b"fstat" => descriptor_status(session, arguments),
        b"stat" | b"lstat" => path_status(session, arguments),
        b"readlink" => read_link(session, arguments),
        b"pwrite" | b"unlink" => Err(Failure::Number(EROFS)),
        _ => return Err(TargetError::Unsupported),
    };
    match answer {
        Ok(Answer::Number(number)) => Ok(format!("F{number:x}").into()),
        Ok(Answer::Data(data)) => {
            // The count is that of the data before it is escaped, and comes first.
            let limit = MAX_PACKET - "F20000;".len();
            let mut escaped = Vec::new();
            let count = push_binary(&mut escaped, &data, limit);
            let mut reply = format!("F{count:x};").into_bytes();
            reply.extend(escaped);
            Ok(Outcome::Reply(reply))
        }
        Err(Failure::Number(number)) => Ok(format!("F-1,{number:x}").into()),
        Err(Failure::Target(error)) => Err(error),
    }
}

fn set_process(
    session: &mut Session<'_>,
    mut arguments: Arguments<'_>,
) -> std::result::Result<Answer, Failure> {
    let process = arguments.number32()?;
    arguments.end()?;
    session.files.process = (process != 0).then_some(process);
    Ok(Answer::Number(0))
}

fn open(
    session: &mut Session<'_>,
    mut arguments: Arguments<'_>,
) -> std::result::Result<Answer, Failure> {
    let path = from_hex(arguments.until(b','))?;
    let flags = arguments.number()?;
    arguments.expect(",")?;
    arguments.number()?;
    arguments.end()?;
    if flags & WRITE_FLAGS != 0 {
        return Err(Failure::Number(EROFS));
    }
    let files = &mut session.files.files;
    let free = files
        .iter()
        .position(Option::is_none)
        .unwrap_or(files.len());
    if free == MAX_OPEN {
        return Err(Failure::Number(EMFILE));
    }
    let file = session.target.open_file(session.files.process, &path)?;
    if free == files.len() {
        files.push(None);
    }
    files[free] = Some(file);
    Ok(Answer::Number(free))
}

/// Reads a descriptor and returns its place in the table.
fn descriptor<'s>(
    session: &'s mut Session<'_>,
    arguments: &mut Arguments<'_>,
) -> std::result::Result<&'s mut Option<Box<dyn TargetFile>>, Failure> {
    let number = usize::try_from(arguments.number()?).map_err(|_| MALFORMED)?;
    let place = session.files.files.get_mut(number);
    place
        .filter(|place| place.is_some())
        .ok_or(Failure::Number(EBADF))
}

fn file<'s>(
    session: &'s mut Session<'_>,
    arguments: &mut Arguments<'_>,
) -> std::result::Result<&'s mut dyn TargetFile, Failure> {
    match descriptor(session, arguments)? {
        Some(file) => Ok(&mut **file),
        None => Err(Failure::Number(EBADF)),
    }
}

fn close(
    session: &mut Session<'_>,
    mut arguments: Arguments<'_>,
) -> std::result::Result<Answer, Failure> {
    *descriptor(session, &mut arguments)? = None;
    Ok(Answer::Number(0))
}

fn read(
    session: &mut Session<'_>,
    mut arguments: Arguments<'_>,
) -> std::result::Result<Answer, Failure> {
    let file = file(session, &mut arguments)?;
    arguments.expect(",")?;
    let count = usize::try_from(arguments.number()?)
        .unwrap_or(usize::MAX)
        .min(MAX_PACKET);
    arguments.expect(",")?;
    let offset = arguments.number()?;
    arguments.end()?;
    let mut data = vec![0; count];
    let count = file.read_at(offset, &mut data)?;
    data.truncate(count);
    Ok(Answer::Data(data))
}

fn descriptor_status(
    session: &mut Session<'_>,
    mut arguments: Arguments<'_>,
) -> std::result::Result<Answer, Failure> {
    let file = file(session, &mut arguments)?;
    arguments.end()?;
    Ok(Answer::Data(encode(file.status()?)))
}

fn path_status(
    session: &mut Session<'_>,
    arguments: Arguments<'_>,
) -> std::result::Result<Answer, Failure> {
    let path = from_hex(arguments.0)?;
    let mut file = session.target.open_file(session.files.process, &path)?;
    Ok(Answer::Data(encode(file.status()?)))
}

fn read_link(
    session: &mut Session<'_>,
    arguments: Arguments<'_>,
) -> std::result::Result<Answer, Failure> {
    let path = from_hex(arguments.0)?;
    let link = session.target.read_link(session.files.process, &path)?;
    Ok(Answer::Data(link))
}

/// Returns the attributes as GDB's `struct stat` ("struct stat" in its manual), big endian.
fn encode(status: FileStatus) -> Vec<u8> {
    let FileStatus {
        mode,
        size,
        device,
        inode,
        modified,
    } = status;
    let mut bytes = Vec::with_capacity(64);
    // A number of 32 bits: the lower half of an inode's identifies it well enough.
    for number in [device, inode as u32, mode, 1, 0, 0, 0] {
        bytes.extend(number.to_be_bytes());
    }
    for number in [size, 4096, size.div_ceil(512)] {
        bytes.extend(number.to_be_bytes());
    }
    for time in [modified; 3] {
        bytes.extend(time.to_be_bytes());
    }
    bytes
}
