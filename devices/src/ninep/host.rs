//! The server's access to the host's file system. No function follows a symbolic link or takes a
//! path of more than one component, so no request leaves the exported tree.

use std::ffi::{CStr, CString};
use std::path::Path;
use std::sync::Arc;

use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{self, AtFlags, CWD, FileType, Mode, OFlags, Stat, StatFs, XattrFlags};
use rustix::io::Errno;

use super::wire::Qid;

/// File systems whose files are interfaces of the host's kernel: some have no end, some block, some
/// are the memory of other processes (Linux: include/uapi/linux/magic.h).
const KERNEL_FILE_SYSTEMS: [u32; 16] = [
    0x0000_9FA0, // proc
    0x6265_6572, // sysfs
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0x0027_E0EB, // cgroup
    0x6367_7270, // cgroup2
    0xCAFE_4A11, // bpf
    0x6165_676C, // pstore
    0xDE5E_81E4, // efivarfs
    0x6265_6570, // configfs
    0x1980_0202, // mqueue
    0x6573_5543, // fusectl
    0x0000_1CD1, // devpts
    0x4249_4E4D, // binfmt_misc
    0xF97C_FF8C, // selinuxfs
];

/// Longest value of an extended attribute, and longest list of their names (XATTR_SIZE_MAX,
/// XATTR_LIST_MAX).
pub(super) const MAX_XATTR: usize = 64 * 1024;

/// A file of the tree, held by a descriptor: an `O_PATH` one, or that of the open file.
#[derive(Debug)]
pub(super) struct Descriptor {
    pub fd: Arc<OwnedFd>,
    pub kind: FileType,
}

/// The file system of the host as the guest sees it.
#[derive(Debug)]
pub(super) struct Host {
    /// /proc/self/fd, the way to open an `O_PATH` descriptor for reading or writing.
    proc_fds: OwnedFd,
    /// Device numbers of the file systems so far. The position is part of a qid.
    file_systems: Vec<u64>,
    /// Hides access times and free space, which change without a request of the guest.
    stable: bool,
}

const PATH_FLAGS: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A file name: one component that is neither `.` nor `..`.
pub(super) fn name(bytes: &[u8]) -> Result<Arc<CStr>, Errno> {
    match bytes {
        b"" | b"." | b".." => return Err(Errno::INVAL),
        _ if bytes.contains(&b'/') => return Err(Errno::INVAL),
        _ if bytes.len() > 255 => return Err(Errno::NAMETOOLONG),
        _ => {}
    }
    let name = CString::new(bytes).map_err(|_| Errno::INVAL)?;
    Ok(name.into())
}

/// Refuses to open for a guest anything except regular files and directories, since others could
/// block or reach a device, and refuses the files that are interfaces of the host's kernel. `place`
/// is of kind `kind`.
///
/// # Errors
/// ELOOP for a symbolic link, EACCES for the rest.
pub fn check_openable(place: impl AsFd, kind: FileType) -> Result<(), Errno> {
    match kind {
        FileType::RegularFile | FileType::Directory => {}
        FileType::Symlink => return Err(Errno::LOOP),
        _ => return Err(Errno::ACCESS),
    }
    if KERNEL_FILE_SYSTEMS.contains(&(fs::fstatfs(place)?.f_type as u32)) {
        return Err(Errno::ACCESS);
    }
    Ok(())
}

/// Writes all of `data` at byte `offset` of an open file. If the host takes only a part, that is an
/// error, too: Linux's client would continue at the wrong offset (v9fs_issue_write in 6.12).
pub(super) fn write_all(file: impl AsFd, data: &[u8], offset: u64) -> Result<(), Errno> {
    let mut done = 0;
    while let Some(rest @ [_, ..]) = data.get(done..) {
        let at = offset.saturating_add(done as u64);
        match rustix::io::pwrite(&file, rest, at) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

impl Host {
    /// `stable` hides access times and free space, which reads by the guest and other users of the
    /// host change.
    pub(super) fn new(stable: bool) -> Result<Self, Errno> {
        let proc_fds = fs::openat(
            CWD,
            c"/proc/self/fd",
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        Ok(Self {
            proc_fds,
            file_systems: Vec::new(),
            stable,
        })
    }

    /// Opens the directory that is exported.
    pub(super) fn open_root(root: &Path) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        fs::openat(CWD, root, flags, Mode::empty())
    }

    /// Opens the entry `name` of the directory `parent` for its place alone. It opens a symbolic
    /// link itself.
    pub(super) fn find(parent: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
        fs::openat(parent, name, PATH_FLAGS, Mode::empty())
    }

    pub(super) fn stat(&self, file: impl AsFd) -> Result<Stat, Errno> {
        let mut stat = fs::fstat(file)?;
        if self.stable {
            stat.st_atime = stat.st_mtime;
            stat.st_atime_nsec = stat.st_mtime_nsec;
        }
        Ok(stat)
    }

    pub(super) fn statfs(&self, file: impl AsFd) -> Result<StatFs, Errno> {
        let mut stat = fs::fstatfs(file)?;
        if self.stable {
            stat.f_bfree = 0;
            stat.f_bavail = 0;
            stat.f_ffree = 0;
        }
        Ok(stat)
    }

    /// The device numbers of the file systems so far.
    pub(super) fn file_systems(&self) -> &[u64] {
        &self.file_systems
    }

    /// Replaces the device numbers of the file systems.
    pub(super) fn set_file_systems(&mut self, file_systems: Vec<u64>) {
        self.file_systems = file_systems;
    }

    /// Inode numbers are unique on one file system only, and a tree can contain several. So the
    /// upper bits contain the number of the file system.
    fn qid_path(&mut self, device: u64, inode: u64) -> u64 {
        let known = self.file_systems.iter().position(|d| *d == device);
        let index = known.unwrap_or_else(|| {
            self.file_systems.push(device);
            self.file_systems.len() - 1
        });
        inode ^ (index as u64) << 48
    }

    pub(super) fn qid(&mut self, stat: &Stat) -> Qid {
        Qid {
            kind: qid_kind(FileType::from_raw_mode(stat.st_mode)),
            version: stat.st_mtime as u32,
            path: self.qid_path(stat.st_dev, stat.st_ino),
        }
    }

    /// The qid of a directory entry, of which a client uses only the inode number.
    pub(super) fn entry_qid(&mut self, directory: &Stat, kind: FileType, inode: u64) -> Qid {
        let path = self.qid_path(directory.st_dev, inode);
        Qid {
            kind: qid_kind(kind),
            version: 0,
            path,
        }
    }

    /// Opens a regular file or a directory.
    pub(super) fn open(&self, file: &Descriptor, flags: OFlags) -> Result<OwnedFd, Errno> {
        check_openable(&file.fd, file.kind)?;
        self.reopen(&file.fd, flags)
    }

    /// Opens a file again, by its descriptor.
    pub(super) fn reopen(&self, fd: &OwnedFd, flags: OFlags) -> Result<OwnedFd, Errno> {
        // Non-blocking: a lease or a lock on the host must not stop the machine.
        let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        fs::openat(&self.proc_fds, proc_name(fd), flags, Mode::empty())
    }

    pub(super) fn readlink(&self, file: impl AsFd) -> Result<CString, Errno> {
        fs::readlinkat(file, c"", Vec::new())
    }

    /// The value of an extended attribute of a regular file or a directory.
    pub(super) fn xattr(fd: &OwnedFd, name: &CStr) -> Result<Vec<u8>, Errno> {
        let mut value = vec![0; MAX_XATTR];
        let len = fs::getxattr(proc_path(fd), name, value.as_mut_slice())?;
        value.truncate(len);
        Ok(value)
    }

    /// The names of the extended attributes of a regular file or a directory, each with a zero.
    pub(super) fn list_xattrs(fd: &OwnedFd) -> Result<Vec<u8>, Errno> {
        let mut names = vec![0; MAX_XATTR];
        let len = fs::listxattr(proc_path(fd), names.as_mut_slice())?;
        names.truncate(len);
        Ok(names)
    }

    // The following functions are for writable shares only.

    /// Creates and opens a regular file.
    pub(super) fn create(
        parent: impl AsFd,
        name: &CStr,
        flags: OFlags,
        mode: u32,
    ) -> Result<OwnedFd, Errno> {
        let flags = flags
            | OFlags::CREATE
            | OFlags::EXCL
            | OFlags::NOFOLLOW
            | OFlags::CLOEXEC
            | OFlags::NOCTTY
            | OFlags::NONBLOCK;
        fs::openat(parent, name, flags, permissions(mode))
    }

    pub(super) fn mkdir(parent: impl AsFd, name: &CStr, mode: u32) -> Result<(), Errno> {
        fs::mkdirat(parent, name, permissions(mode))
    }

    pub(super) fn mknod(
        parent: impl AsFd,
        name: &CStr,
        kind: FileType,
        mode: u32,
    ) -> Result<(), Errno> {
        fs::mknodat(parent, name, kind, permissions(mode), 0)
    }

    pub(super) fn symlink(parent: impl AsFd, name: &CStr, target: &CStr) -> Result<(), Errno> {
        fs::symlinkat(target, parent, name)
    }

    pub(super) fn link(
        &self,
        file: &Descriptor,
        parent: impl AsFd,
        name: &CStr,
    ) -> Result<(), Errno> {
        if file.kind != FileType::RegularFile {
            return Err(Errno::PERM);
        }
        let flags = AtFlags::SYMLINK_FOLLOW;
        fs::linkat(&self.proc_fds, proc_name(&file.fd), parent, name, flags)
    }

    pub(super) fn unlink(parent: impl AsFd, name: &CStr, directory: bool) -> Result<(), Errno> {
        let flags = if directory {
            AtFlags::REMOVEDIR
        } else {
            AtFlags::empty()
        };
        fs::unlinkat(parent, name, flags)
    }

    pub(super) fn rename(
        from: impl AsFd,
        name: &CStr,
        to: impl AsFd,
        new_name: &CStr,
    ) -> Result<(), Errno> {
        fs::renameat(from, name, to, new_name)
    }

    pub(super) fn chmod(&self, file: &Descriptor, mode: u32) -> Result<(), Errno> {
        if file.kind == FileType::Symlink {
            return Err(Errno::OPNOTSUPP);
        }
        let (name, mode) = (proc_name(&file.fd), permissions(mode));
        fs::chmodat(&self.proc_fds, name, mode, AtFlags::empty())
    }

    pub(super) fn chown(file: impl AsFd, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
        let (uid, gid) = (uid.map(fs::Uid::from_raw), gid.map(fs::Gid::from_raw));
        fs::chownat(file, c"", uid, gid, AtFlags::EMPTY_PATH)
    }

    pub(super) fn truncate(&self, file: &Descriptor, size: u64) -> Result<(), Errno> {
        if file.kind == FileType::Directory {
            return Err(Errno::ISDIR);
        }
        fs::ftruncate(self.open(file, OFlags::WRONLY)?, size)
    }

    pub(super) fn set_times(&self, file: &Descriptor, times: &fs::Timestamps) -> Result<(), Errno> {
        // Before Linux 5.8 a path could not be empty.
        if file.kind == FileType::Symlink {
            return fs::utimensat(&file.fd, c"", times, AtFlags::EMPTY_PATH);
        }
        let name = proc_name(&file.fd);
        fs::utimensat(&self.proc_fds, name, times, AtFlags::empty())
    }

    pub(super) fn set_xattr(
        fd: &OwnedFd,
        name: &CStr,
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<(), Errno> {
        fs::setxattr(proc_path(fd), name, value, flags)
    }

    pub(super) fn remove_xattr(fd: &OwnedFd, name: &CStr) -> Result<(), Errno> {
        fs::removexattr(proc_path(fd), name)
    }
}

/// The path of a descriptor, for system calls on extended attributes, which take no `O_PATH`
/// descriptor.
fn proc_path(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// The name of a descriptor in /proc/self/fd.
fn proc_name(fd: &OwnedFd) -> String {
    fd.as_raw_fd().to_string()
}

/// Permission bits without set-user-ID and set-group-ID: a guest must not create programs on the
/// host that run with the rights of the VMM's user.
fn permissions(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o1777)
}

fn qid_kind(kind: FileType) -> u8 {
    match kind {
        FileType::Directory => Qid::DIRECTORY,
        FileType::Symlink => Qid::SYMLINK,
        _ => Qid::FILE,
    }
}
