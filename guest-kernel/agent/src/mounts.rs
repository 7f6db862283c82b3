//! Mounts file systems: those of the agent, then the host's root under a temporary writable layer.

use std::ffi::{CStr, CString, OsStr};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount, mount_move};
use vbts_protocol::{Bytes, ErrorKind, FILES_TAG, Job, ROOT_TAG, Stream, StreamKind};

use crate::failure::Failure;
use crate::layer::Layer;

/// Mounts the file systems that the agent needs before it has the job.
pub fn early() -> Result<(), Failure> {
    mount_at("/proc", c"proc", c"proc", MountFlags::empty(), None)?;
    mount_at("/sys", c"sysfs", c"sysfs", MountFlags::empty(), None)?;
    mount_at("/dev", c"devtmpfs", c"devtmpfs", MountFlags::empty(), None)
}

/// Mounts the regular files among the program's descriptors where no process of the job can reach
/// them by a name. Returns their directory, if there are any.
pub fn files(job: &Job) -> Result<Option<OwnedFd>, Failure> {
    let is_file = |stream: &Stream| matches!(stream.kind, StreamKind::File { .. });
    if !job.streams.iter().any(is_file) {
        return Ok(None);
    }
    let tag = CString::new(FILES_TAG).map_err(|_| Failure::new(ErrorKind::Internal, "tag"))?;
    // Files can be mapped, and what the program writes reaches the host at once. Before Linux 6.4,
    // which does not know cache=readahead, cache=mmap does that.
    let options = c"trans=virtio,version=9p2000.L,cache=readahead,access=any,msize=512000";
    let older = c"trans=virtio,version=9p2000.L,cache=mmap,access=any,msize=512000";
    let path = "/files";
    mount_at(path, &tag, c"9p", MountFlags::empty(), Some(options)).or_else(
        |failure| match failure.is(Errno::INVAL) {
            true => mount_at(path, &tag, c"9p", MountFlags::empty(), Some(older)),
            false => Err(failure),
        },
    )?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
        .map(Some)
        .map_err(|error| Failure::os(ErrorKind::Mount, path, error))
}

/// Builds the job's root and makes it this process's root. Returns its writable layer.
pub fn enter_root(job: &Job) -> Result<Layer, Failure> {
    let mut layer = mount_root()?;
    mount_system()?;
    for share in &job.shares {
        let tag = CString::new(share.tag.as_str()).map_err(|_| {
            Failure::new(ErrorKind::Mount, format_args!("share tag {:?}", share.tag))
        })?;
        // cache=mmap: files can be mapped for writing. What the job writes reaches the host when it
        // closes the file at the latest, so that little is lost if the machine is stopped.
        let options = c"trans=virtio,version=9p2000.L,cache=mmap,access=any,msize=512000";
        mount_at(
            &inside(&share.path)?,
            &tag,
            c"9p",
            MountFlags::empty(),
            Some(options),
        )?;
    }
    let switch = || -> rustix::io::Result<()> {
        rustix::process::chdir("/root")?;
        mount_move(".", "/")?;
        rustix::process::chroot(".")?;
        rustix::process::chdir("/")
    };
    switch()
        .map_err(|error| Failure::os(ErrorKind::Mount, "cannot switch to the new root", error))?;
    layer.note_mount_points();
    Ok(layer)
}

/// Mounts the host's root at `/root`, under a temporary writable layer.
fn mount_root() -> Result<Layer, Failure> {
    mount_at(
        "/layer",
        c"tmpfs",
        c"tmpfs",
        MountFlags::empty(),
        Some(c"mode=0755"),
    )?;
    for name in ["upper", "work"] {
        make_dir(&Path::new("/layer").join(name))?;
    }
    // cache=loose: the guest may assume that the host's files do not change. msize: the maximum of
    // the transport (128 descriptors minus those of the headers). access=any: one attach as root,
    // and the overlay checks permissions.
    let tag = CString::new(ROOT_TAG).map_err(|_| Failure::new(ErrorKind::Internal, "root tag"))?;
    let options = c"trans=virtio,version=9p2000.L,cache=loose,access=any,msize=512000";
    mount_at("/lower", &tag, c"9p", MountFlags::RDONLY, Some(options))?;
    // volatile: the layer is lost with the machine, so it need not be synced.
    let options = c"lowerdir=/lower,upperdir=/layer/upper,workdir=/layer/work,volatile";
    mount_at(
        "/root",
        c"root",
        c"overlay",
        MountFlags::empty(),
        Some(options),
    )?;
    Layer::open(Path::new("/layer/upper"), Path::new("/lower"))
}

/// Mounts the file systems of the kernel in the job's root and adds the links that udev would make.
fn mount_system() -> Result<(), Failure> {
    mount_at("/root/proc", c"proc", c"proc", MountFlags::empty(), None)?;
    mount_at("/root/sys", c"sysfs", c"sysfs", MountFlags::empty(), None)?;
    mount_at(
        "/root/dev",
        c"devtmpfs",
        c"devtmpfs",
        MountFlags::empty(),
        None,
    )?;
    mount_at(
        "/root/dev/pts",
        c"devpts",
        c"devpts",
        MountFlags::empty(),
        Some(c"ptmxmode=0666"),
    )?;
    mount_at(
        "/root/dev/shm",
        c"tmpfs",
        c"tmpfs",
        MountFlags::empty(),
        Some(c"mode=1777"),
    )?;
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        let path = Path::new("/root/dev").join(name);
        if !path.is_symlink() {
            std::os::unix::fs::symlink(target, &path)
                .map_err(|error| Failure::os(ErrorKind::Mount, path.display(), error))?;
        }
    }
    Ok(())
}

/// The path, before the switch of the root, of an absolute path of the job.
fn inside(path: &Bytes) -> Result<std::path::PathBuf, Failure> {
    let path = Path::new(OsStr::from_bytes(&path.0));
    path.strip_prefix("/")
        .map(|relative| Path::new("/root").join(relative))
        .map_err(|_| {
            Failure::new(
                ErrorKind::Mount,
                format_args!("{}: not an absolute path", path.display()),
            )
        })
}

fn make_dir(path: &Path) -> Result<(), Failure> {
    fs::create_dir_all(path).map_err(|error| {
        Failure::os(
            ErrorKind::Mount,
            format_args!("cannot create {}", path.display()),
            error,
        )
    })
}

fn mount_at(
    target: impl AsRef<Path>,
    source: &CStr,
    kind: &CStr,
    flags: MountFlags,
    options: Option<&CStr>,
) -> Result<(), Failure> {
    let target = target.as_ref();
    make_dir(target)?;
    mount(source, target, kind, flags, options).map_err(|error| {
        let what = format!(
            "cannot mount {} {} at {}",
            kind.to_string_lossy(),
            source.to_string_lossy(),
            target.display()
        );
        Failure::os(ErrorKind::Mount, what, error)
    })
}
