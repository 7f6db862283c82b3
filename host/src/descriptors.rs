//! The descriptors with which this process was started.

use std::fs::{File, read_dir};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::fs::{FileType, OFlags, SeekFrom, Stat, fcntl_getfl, fstat, seek};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_getfd};
use rustix::termios::isatty;

/// The standard descriptors that were closed: bit *n* is descriptor *n*.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// Notes the closed standard descriptors before Rust's runtime opens `/dev/null` in their place.
extern "C" fn note_closed() {
    for fd in 0..=2 {
        // SAFETY: F_GETFD takes no pointers. The call fails for a closed descriptor.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            CLOSED.fetch_or(1 << fd, Ordering::Relaxed);
        }
    }
}

// SAFETY: the C library calls the functions of this section before `main`, with arguments that a
// function may ignore. `note_closed` uses nothing of Rust's runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE_CLOSED: extern "C" fn() = note_closed;

/// Numbers of the devices that every Linux machine has, with their paths
/// (Documentation/admin-guide/devices.txt).
const DEVICES: [(u32, u32, &str); 5] = [
    (1, 3, "/dev/null"),
    (1, 5, "/dev/zero"),
    (1, 7, "/dev/full"),
    (1, 8, "/dev/random"),
    (1, 9, "/dev/urandom"),
];

/// What a descriptor refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A pipe.
    Pipe,
    /// A regular file.
    Regular,
    /// A terminal, by its device number.
    Terminal(u64),
    /// A device that every machine has, by its path.
    Device(&'static str),
    /// Something else, with its name for messages.
    Other(&'static str),
}

/// A descriptor with which this process was started.
#[derive(Debug)]
pub struct Inherited {
    /// Its number.
    pub number: u32,
    /// A duplicate.
    pub fd: OwnedFd,
    /// What it refers to.
    pub kind: Kind,
    /// The flags of the open file.
    pub flags: OFlags,
    device: u64,
    inode: u64,
}

impl Inherited {
    /// The open descriptors that a program would get from this process, in the order of their
    /// numbers.
    ///
    /// # Errors
    /// There is no /proc, or the process is out of descriptors.
    pub fn all() -> io::Result<Vec<Self>> {
        let closed = CLOSED.load(Ordering::Relaxed);
        let mut numbers: Vec<RawFd> = read_dir("/proc/self/fd")?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|fd| *fd > 2 || closed & (1u8 << fd) == 0)
            .collect();
        numbers.sort_unstable();
        let mut all = Vec::new();
        for number in numbers {
            // SAFETY: the descriptor is not closed here. If another thread has closed it, the calls
            // fail.
            let fd = unsafe { BorrowedFd::borrow_raw(number) };
            // Those of the standard library and of this crate are closed by execve.
            if fcntl_getfd(fd).is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC)) {
                all.push(Self::new(
                    number.unsigned_abs(),
                    fcntl_dupfd_cloexec(fd, 3)?,
                )?);
            }
        }
        Ok(all)
    }

    /// The descriptor `number`, of which `fd` is a duplicate.
    ///
    /// # Errors
    /// The host does not tell what it refers to.
    pub fn new(number: u32, fd: OwnedFd) -> io::Result<Self> {
        let stat = fstat(&fd)?;
        Ok(Self {
            number,
            kind: kind(&fd, &stat),
            flags: fcntl_getfl(&fd)?,
            device: stat.st_dev,
            inode: stat.st_ino,
            fd,
        })
    }

    /// The descriptor as a file.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn file(&self) -> io::Result<File> {
        Ok(self.fd.try_clone()?.into())
    }

    /// The file offset in bytes.
    ///
    /// # Errors
    /// The file has none.
    pub fn offset(&self) -> io::Result<u64> {
        Ok(seek(&self.fd, SeekFrom::Current(0))?)
    }

    /// Whether both descriptors refer to one open file, as those of `2>&1` do.
    pub fn is_same_open_file(&self, other: &Self) -> bool {
        const KCMP_FILE: libc::c_int = 0;
        if (self.device, self.inode) != (other.device, other.inode) {
            return false;
        }
        let process = rustix::process::getpid().as_raw_nonzero().get();
        let (one, two) = (self.fd.as_raw_fd(), other.fd.as_raw_fd());
        // SAFETY: kcmp takes numbers only.
        match unsafe { libc::syscall(libc::SYS_kcmp, process, process, KCMP_FILE, one, two) } {
            0 => true,
            1.. => false,
            // A kernel without kcmp. Two open files can have the same offset by chance: then the
            // program sees them as one, which matters only if it moves one of them.
            _ => self.flags == other.flags && self.offset().ok() == other.offset().ok(),
        }
    }
}

fn kind(fd: impl AsFd, stat: &Stat) -> Kind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Fifo => Kind::Pipe,
        FileType::RegularFile => Kind::Regular,
        FileType::CharacterDevice if isatty(fd) => Kind::Terminal(stat.st_rdev),
        FileType::CharacterDevice => {
            let (major, minor) = (libc::major(stat.st_rdev), libc::minor(stat.st_rdev));
            let device = DEVICES.iter().find(|d| (d.0, d.1) == (major, minor));
            device.map_or(Kind::Other("a device"), |device| Kind::Device(device.2))
        }
        FileType::BlockDevice => Kind::Other("a device"),
        FileType::Socket => Kind::Other("a socket"),
        FileType::Directory => Kind::Other("a directory"),
        _ => Kind::Other("an object of the kernel"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inherited(fd: impl Into<OwnedFd>) -> Inherited {
        Inherited::new(7, fd.into()).unwrap()
    }

    #[test]
    fn descriptors_are_told_apart() {
        let (reader, _writer) = io::pipe().unwrap();
        assert_eq!(inherited(reader).kind, Kind::Pipe);
        let null = inherited(File::open("/dev/null").unwrap());
        assert_eq!(null.kind, Kind::Device("/dev/null"));
        let directory = inherited(File::open("/").unwrap());
        assert_eq!(directory.kind, Kind::Other("a directory"));
    }

    #[test]
    fn one_open_file_is_not_two_of_one_name() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || File::options().append(true).open(file.path()).unwrap();
        let one = inherited(open());
        assert_eq!(one.kind, Kind::Regular);
        assert!(one.flags.contains(OFlags::APPEND));
        assert!(one.is_same_open_file(&inherited(one.file().unwrap())));
        assert!(!one.is_same_open_file(&inherited(open())));
    }

    #[test]
    fn descriptors_that_execve_closes_are_not_inherited() {
        let file = tempfile::tempfile().unwrap();
        let number = file.as_raw_fd().unsigned_abs();
        let all = Inherited::all().unwrap();
        assert!(all.iter().all(|inherited| inherited.number != number));
        rustix::io::fcntl_setfd(&file, FdFlags::empty()).unwrap();
        let all = Inherited::all().unwrap();
        assert!(all.iter().any(|inherited| inherited.number == number));
    }
}
