//! The job that the agent in the guest gets.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use rustix::fs::Mode;
use vbts_protocol::{Bytes, Job, Leads, Limit, Recorder, Resource, Share, Trace};

use super::date;
use vbts_capture::output::TraceTo;
use vbts_capture::program::Terminal;
use vbts_capture::{Streams, TraceConfig};
use vbts_host::exit::Failure;
use vbts_host::ignored_signals::ignored_signals;
use vbts_host::process_group;
use vbts_host::root::Root;
use vbts_vmm::launch::SharedDirectory;

/// The path in the guest of the working directory, or `/` if that is outside the guest's root.
///
/// # Errors
/// The host cannot tell the working directory.
pub(super) fn working_directory(root: &Root) -> Result<PathBuf, Failure> {
    let cwd = std::env::current_dir().context("Cannot find the working directory")?;
    Ok(root.guest_path(&cwd).unwrap_or_else(|| {
        tracing::info!(cwd = %cwd.display(), "outside --root: the program starts in /");
        PathBuf::from("/")
    }))
}

/// The directories to share, each with the path where the guest mounts it: its own path, relative
/// to the guest's root if it is inside.
///
/// # Errors
/// The guest has something of its own there.
pub(super) fn guest_shares(shares: &[SharedDirectory], root: &Root) -> Result<Vec<Share>, Failure> {
    let place = |share: &SharedDirectory| {
        let path = root.guest_path(&share.path);
        let path = path.unwrap_or_else(|| share.path.clone());
        match reserved(&path) {
            None => Ok(Share {
                tag: share.tag.clone(),
                path: bytes(path.as_os_str()),
            }),
            Some(reason) => Err(anyhow!("--share {}: {reason}", share.path.display()).into()),
        }
    };
    shares.iter().map(place).collect()
}

/// Why a share cannot be mounted at `path` of the guest.
fn reserved(path: &Path) -> Option<&'static str> {
    if path == Path::new("/") {
        return Some(
            "it is the guest's root, which the program sees anyway, and which only a temporary \
             layer makes writable: share directories in it instead",
        );
    }
    let kernels = ["/proc", "/sys"].iter().any(|own| path.starts_with(own));
    (kernels || path == Path::new("/dev")).then_some("the guest has its own /proc, /sys and /dev")
}

fn bytes(text: &OsStr) -> Bytes {
    Bytes(text.as_bytes().to_vec())
}

/// The supplementary groups of the process. A process can have more than the host tells, but not
/// without privileges.
fn groups() -> Vec<u32> {
    let groups = rustix::process::getgroups().unwrap_or_default();
    groups
        .into_iter()
        .map(rustix::process::Gid::as_raw)
        .collect()
}

/// The file mode creation mask of the process, which can only be read by setting another one.
fn umask() -> u32 {
    let mask = rustix::process::umask(Mode::RWXU.complement());
    rustix::process::umask(mask);
    mask.bits()
}

/// The resource limits of the process that a program may depend on. Limits of memory, time and
/// processes are those of the guest: they would count other things there. The size of files has no
/// limit in the guest, so that only one is told.
fn limits() -> Vec<Limit> {
    use rustix::process::Resource as Of;
    [
        (Resource::Nofile, Of::Nofile),
        (Resource::Stack, Of::Stack),
        (Resource::Core, Of::Core),
        (Resource::Fsize, Of::Fsize),
    ]
    .map(|(resource, of)| {
        let limit = rustix::process::getrlimit(of);
        Limit {
            resource,
            soft: limit.current,
            hard: limit.maximum,
        }
    })
    .into_iter()
    .filter(|limit| limit.resource != Resource::Fsize || limit.soft.is_some())
    .collect()
}

/// What the process `own` leads on the host, of its `session` and its process `group`.
///
/// An ID of 0 is one whose leader is outside of the PID namespace, which no process of it equals.
fn leads(own: libc::pid_t, session: libc::pid_t, group: libc::pid_t) -> Leads {
    if session == own {
        Leads::Session
    } else if group == own {
        Leads::Group
    } else {
        Leads::Nothing
    }
}

/// The job that runs the program of `config` in the directory `cwd` of the guest, with the
/// environment, user, groups, file mode creation mask, resource limits and ignored signals of
/// `vbts`. Its branches are recorded in a replay if the run is `recorded`.
///
/// It must be made before the servers of shares raise the limit of open files.
///
/// # Errors
/// `SOURCE_DATE_EPOCH` is not a date, or the terminal tells no settings.
pub(super) fn job(
    config: &TraceConfig,
    cwd: &Path,
    shares: Vec<Share>,
    streams: &Streams,
    recorded: bool,
) -> Result<Job, Failure> {
    let entry = |(name, value): (OsString, OsString)| {
        let mut entry = name.into_vec();
        entry.push(b'=');
        entry.extend_from_slice(value.as_bytes());
        Bytes(entry)
    };
    let terminal = streams
        .terminal
        .as_ref()
        .map(Terminal::settings)
        .transpose();
    let terminal = terminal.context("Cannot read the settings of the terminal")?;
    Ok(Job {
        argv: config.program.iter().map(|arg| bytes(arg)).collect(),
        envp: std::env::vars_os().map(entry).collect(),
        cwd: bytes(cwd.as_os_str()),
        uid: Some(rustix::process::geteuid().as_raw()),
        gid: Some(rustix::process::getegid().as_raw()),
        groups: groups(),
        umask: Some(umask()),
        limits: limits(),
        ignored_signals: ignored_signals(),
        streams: streams.job.clone(),
        leads: leads(
            rustix::process::getpid().as_raw_pid(),
            process_group::session(),
            process_group::group(),
        ),
        terminal,
        trace: (recorded || config.output != TraceTo::Nowhere).then_some(Trace {
            buffer_size: config.buffer.0,
            sched: config.sched,
            scope: config.scope,
            follow: config.follow,
            reported_signal: config.filters.until_signal,
            recorder: match recorded {
                true => Recorder::Host,
                false => Recorder::Kernel,
            },
        }),
        shares,
        hostname: Some(Bytes(
            rustix::system::uname().nodename().to_bytes().to_vec(),
        )),
        epoch: Some(date::date(config.epoch)?),
        wait_all: config.wait_all,
        ends_at_deadlock: config.ends_at_deadlock,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use vbts_protocol::{Follow, Scope};
    use vbts_vmm::memory::Size;

    #[test]
    fn shares_do_not_hide_what_the_guest_has() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        let place = |path: &Path| {
            let share = SharedDirectory {
                tag: "share0".into(),
                path: path.into(),
                writable: true,
            };
            let shares = guest_shares(&[share], &root).map_err(|error| error.to_string());
            shares.map(|shares| {
                shares
                    .into_iter()
                    .map(|share| share.path)
                    .collect::<Vec<_>>()
            })
        };
        for (path, message) in [
            (root.path(), "it is the guest's root"),
            (&root.path().join("proc/sys"), "its own /proc"),
            (&root.path().join("dev"), "its own /proc"),
        ] {
            let error = place(path).unwrap_err();
            assert!(
                error.starts_with("--share /") && error.contains(message),
                "{error}"
            );
        }
        for (path, within) in [
            (root.path().join("a"), "/a"),
            (root.path().join("dev/shm"), "/dev/shm"),
            ("/outside".into(), "/outside"),
        ] {
            assert_eq!(place(&path).unwrap(), [Bytes::from(within)]);
        }
    }

    #[test]
    fn leaders_outside_of_the_pid_namespace_are_not_this_process() {
        for (own, session, group, expected) in [
            (7, 7, 7, Leads::Session),
            (7, 3, 7, Leads::Group),
            (7, 3, 5, Leads::Nothing),
            (7, 0, 7, Leads::Group),
            (7, 0, 0, Leads::Nothing),
        ] {
            assert_eq!(leads(own, session, group), expected);
        }
    }

    #[test]
    fn the_job_follows_the_configuration() {
        let config = TraceConfig {
            buffer: Size(65536),
            sched: true,
            epoch: Some(7),
            ..TraceConfig::new(["ls", "-l"])
        };
        let streams = Streams::default();
        let job = job(&config, Path::new("/tmp"), Vec::new(), &streams, false).unwrap();
        assert_eq!(job.argv, [Bytes::from("ls"), Bytes::from("-l")]);
        assert_eq!(job.cwd, Bytes::from("/tmp"));
        assert_eq!((job.epoch, job.wait_all), (Some(7), true));
        let trace = job.trace.unwrap();
        assert_eq!((trace.buffer_size, trace.sched), (65536, true));
        assert_eq!((trace.scope, trace.follow), (Scope::User, Follow::All));
        assert!(job.envp.iter().all(|entry| entry.0.contains(&b'=')));

        for scope in [Scope::Kernel, Scope::All] {
            let config = TraceConfig {
                scope,
                wait_all: false,
                ..TraceConfig::new(["ls"])
            };
            let job = self::job(&config, Path::new("/"), Vec::new(), &streams, false).unwrap();
            assert_eq!((job.trace.unwrap().scope, job.wait_all), (scope, false));
        }
    }
}
