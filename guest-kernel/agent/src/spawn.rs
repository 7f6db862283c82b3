//! Starts the job's program.

use std::ffi::CString;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr;

use rustix::pipe::{PipeFlags, pipe_with};
use vbts_protocol::{Bytes, ErrorKind, Job, Limit, MAX_OPEN_FILES, Resource};

use crate::failure::{Failure, check};
use crate::process_group::ProcessGroup;
use crate::streams::Descriptors;
use crate::{machine, ptrace};

/// Directories that `execvp` searches if there is no `PATH`.
const DEFAULT_PATH: &[u8] = b"/bin:/usr/bin";
const DEFAULT_UMASK: libc::mode_t = 0o022;

/// Steps of the child before `execve` succeeds. Their numbers are in its report.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
enum Step {
    Prepare = 0,
    WorkingDirectory = 1,
    Execute = 2,
}

/// The data that the child needs, allocated before `fork`.
struct Plan {
    programs: Vec<CString>,
    argv: Vec<CString>,
    envp: Vec<CString>,
    cwd: CString,
    uid: libc::uid_t,
    gid: libc::gid_t,
    groups: Vec<libc::gid_t>,
    umask: libc::mode_t,
    /// The descriptors of the program: (number, descriptor of the agent).
    descriptors: Vec<(RawFd, RawFd)>,
    /// The number of a descriptor that is the controlling terminal.
    terminal: Option<RawFd>,
    group: ProcessGroup,
    limits: Vec<(libc::__rlimit_resource_t, libc::rlimit64)>,
    ignored_signals: u64,
}

/// Starts the job with `descriptors`, and returns the ID of its process. The descriptor `terminal`,
/// if there is one, is its controlling terminal. If `seize`, the process stops in
/// `PTRACE_EVENT_EXEC` before its first instruction.
pub fn spawn(
    job: &Job,
    descriptors: &Descriptors,
    terminal: Option<u32>,
    seize: bool,
) -> Result<libc::pid_t, Failure> {
    let group = ProcessGroup::new(
        job.leads,
        terminal.and_then(|terminal| descriptors.get(&terminal)),
    )
    .map_err(|error| Failure::os(ErrorKind::Internal, "process group", error))?;
    let mut plan = Plan::new(job, group)?;
    plan.descriptors = descriptors
        .iter()
        .map(|(fd, descriptor)| (fd.cast_signed(), descriptor.as_raw_fd()))
        .collect();
    plan.terminal = terminal.map(u32::cast_signed);
    let pipe = || {
        pipe_with(PipeFlags::CLOEXEC)
            .map_err(|error| Failure::os(ErrorKind::Internal, "pipe", error))
    };
    // The child waits until `going` is closed. A successful execve closes `failing`.
    let (go, going) = pipe()?;
    let (failed, failing) = pipe()?;

    // SAFETY: this process has one thread, so all functions are safe in the child.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        drop(going);
        plan.run_child(go, failing);
        // SAFETY: _exit does not run the parent's destructors.
        unsafe { libc::_exit(127) };
    }
    if pid < 0 {
        return Err(Failure::os(
            ErrorKind::Internal,
            "fork",
            io::Error::last_os_error(),
        ));
    }
    drop((go, failing));
    if seize {
        ptrace::seize(pid)
            .map_err(|error| Failure::os(ErrorKind::Trace, "ptrace(PTRACE_SEIZE)", error))?;
    }
    drop(going);

    let mut report = Vec::new();
    std::fs::File::from(failed)
        .read_to_end(&mut report)
        .map_err(|error| Failure::os(ErrorKind::Internal, "pipe of the child", error))?;
    match *report {
        [] => Ok(pid),
        [step, e0, e1, e2, e3] => {
            let error = io::Error::from_raw_os_error(i32::from_le_bytes([e0, e1, e2, e3]));
            Err(plan.failure(step, error))
        }
        _ => Err(Failure::new(
            ErrorKind::Internal,
            "the child's report is garbled",
        )),
    }
}

impl Plan {
    fn new(job: &Job, group: ProcessGroup) -> Result<Self, Failure> {
        let strings = |list: &[Bytes]| list.iter().map(string).collect::<Result<Vec<_>, _>>();
        let program = job
            .argv
            .first()
            .ok_or_else(|| Failure::new(ErrorKind::Protocol, "the job has no program"))?;
        Ok(Self {
            programs: candidates(&program.0, &job.envp)
                .into_iter()
                .map(|path| string(&Bytes(path)))
                .collect::<Result<_, _>>()?,
            argv: strings(&job.argv)?,
            envp: strings(&job.envp)?,
            cwd: string(&job.cwd)?,
            uid: job.uid.unwrap_or(0),
            gid: job.gid.unwrap_or(0),
            groups: job.groups.clone(),
            umask: job.umask.unwrap_or(DEFAULT_UMASK),
            descriptors: Vec::new(),
            terminal: None,
            group,
            limits: job.limits.iter().map(limit).collect(),
            ignored_signals: job.ignored_signals,
        })
    }

    /// Executes the program in the child. If that fails, reports on `failing` why, and returns.
    fn run_child(&self, go: OwnedFd, failing: OwnedFd) {
        // The descriptors that the child itself uses must not have numbers that the program's get.
        let Ok((go, failing)) = self.above(go).and_then(|go| Ok((go, self.above(failing)?))) else {
            return;
        };
        let (step, error) = self.execute(&go);
        let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
        let [e0, e1, e2, e3] = errno.to_le_bytes();
        // If the write fails, the parent gets the exit status.
        let _ = rustix::io::write(&failing, &[step as u8, e0, e1, e2, e3]);
    }

    /// A duplicate of `fd` whose number is above those of the program's descriptors.
    fn above(&self, fd: impl IntoRawFd) -> io::Result<OwnedFd> {
        let highest = self.descriptors.last().map_or(2, |(fd, _)| *fd).max(2);
        // SAFETY: the descriptor is open. It is not closed here, so no other one can be affected.
        let fd = unsafe { BorrowedFd::borrow_raw(fd.into_raw_fd()) };
        Ok(rustix::io::fcntl_dupfd_cloexec(fd, highest + 1)?)
    }

    /// Executes the program. Returns only if a step fails.
    fn execute(&self, go: &OwnedFd) -> (Step, io::Error) {
        if let Err(error) = self.prepare(go) {
            return (Step::Prepare, error);
        }
        // SAFETY: a NUL-terminated path.
        if unsafe { libc::chdir(self.cwd.as_ptr()) } != 0 {
            return (Step::WorkingDirectory, io::Error::last_os_error());
        }
        let argv = pointers(&self.argv);
        let envp = pointers(&self.envp);
        // Like execvp: tries the next path if a file does not exist, and reports EACCES rather than
        // ENOENT.
        let mut worst = io::Error::from_raw_os_error(libc::ENOENT);
        for program in &self.programs {
            // SAFETY: NUL-terminated strings and null-terminated arrays of them.
            unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENOTDIR) => {}
                Some(libc::EACCES) => worst = error,
                _ => return (Step::Execute, error),
            }
        }
        (Step::Execute, worst)
    }

    fn prepare(&self, go: &OwnedFd) -> io::Result<()> {
        machine::disable_exit_port()?;
        self.set_descriptors()?;
        self.group.join(self.terminal)?;
        // SAFETY: the calls change attributes of this process only. Each pointer is to a live value
        // of the right type.
        unsafe {
            // Without this, addresses depend on the random numbers that the boot has used.
            check(libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong))?;
            for (resource, limit) in &self.limits {
                check(libc::setrlimit64(*resource, limit))?;
            }
            check(libc::setgroups(self.groups.len(), self.groups.as_ptr()))?;
            check(libc::setgid(self.gid))?;
            check(libc::setuid(self.uid))?;
            libc::umask(self.umask);
            // The Rust runtime ignores SIGPIPE, and the agent blocks SIGCHLD.
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            for signal in (1..=64).filter(|n| self.ignored_signals & 1 << (n - 1) != 0) {
                libc::signal(signal, libc::SIG_IGN);
            }
            let mut none = std::mem::zeroed();
            libc::sigemptyset(&mut none);
            check(libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut()))?;
        }
        // Waits until the parent has seized this process.
        rustix::io::read(go, &mut [0u8; 1])
            .map(drop)
            .map_err(io::Error::from)
    }

    /// Gives the program's descriptors their numbers, and closes the standard ones that it does not
    /// have. execve closes all others.
    fn set_descriptors(&self) -> io::Result<()> {
        // First out of the way of each other.
        let sources: Vec<_> = self
            .descriptors
            .iter()
            .map(|(fd, source)| Ok((*fd, self.above(*source)?)))
            .collect::<io::Result<_>>()?;
        for (fd, source) in &sources {
            // SAFETY: dup2 takes no pointers. What it closes is a copy of the agent's descriptor.
            check(unsafe { libc::dup2(source.as_raw_fd(), *fd) })?;
        }
        for fd in 0..=2 {
            if sources.iter().all(|(given, _)| *given != fd) {
                // SAFETY: close takes no pointers. The agent's console is not used in the child.
                unsafe { libc::close(fd) };
            }
        }
        Ok(())
    }

    fn failure(&self, step: u8, error: io::Error) -> Failure {
        let program = self
            .argv
            .first()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        if step == Step::WorkingDirectory as u8 {
            let what = format!("working directory {}", self.cwd.to_string_lossy());
            return Failure::os(ErrorKind::WorkingDirectory, what, error);
        }
        if step != Step::Execute as u8 {
            return Failure::os(
                ErrorKind::Start,
                format_args!("cannot prepare {program}"),
                error,
            );
        }
        let kind = match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => ErrorKind::NotFound,
            Some(libc::EACCES | libc::EPERM) => ErrorKind::PermissionDenied,
            Some(libc::ENOEXEC | libc::ELIBBAD) => ErrorKind::NotExecutable,
            _ => ErrorKind::Start,
        };
        Failure::os(kind, program, error)
    }
}

/// The paths to try for a program, in order.
fn candidates(program: &[u8], envp: &[Bytes]) -> Vec<Vec<u8>> {
    if program.contains(&b'/') {
        return vec![program.to_vec()];
    }
    let path = envp
        .iter()
        .find_map(|entry| entry.0.strip_prefix(b"PATH="))
        .unwrap_or(DEFAULT_PATH);
    path.split(|&byte| byte == b':')
        .map(|dir| match dir {
            // POSIX: an empty entry is the working directory.
            b"" => program.to_vec(),
            _ => [dir, b"/", program].concat(),
        })
        .collect()
}

fn string(bytes: &Bytes) -> Result<CString, Failure> {
    CString::new(bytes.0.clone()).map_err(|_| {
        Failure::new(
            ErrorKind::Protocol,
            format_args!("{bytes:?} has a NUL byte"),
        )
    })
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings
        .iter()
        .map(|text| text.as_ptr())
        .chain([ptr::null()])
        .collect()
}

/// A limit as setrlimit64 takes it. The guest's kernel permits fewer open files than a host may.
fn limit(limit: &Limit) -> (libc::__rlimit_resource_t, libc::rlimit64) {
    let (resource, most) = match limit.resource {
        Resource::Nofile => (libc::RLIMIT_NOFILE, MAX_OPEN_FILES.into()),
        Resource::Stack => (libc::RLIMIT_STACK, libc::RLIM64_INFINITY),
        Resource::Core => (libc::RLIMIT_CORE, libc::RLIM64_INFINITY),
        Resource::Fsize => (libc::RLIMIT_FSIZE, libc::RLIM64_INFINITY),
    };
    let value = |value: Option<u64>| value.unwrap_or(libc::RLIM64_INFINITY).min(most);
    let limit = libc::rlimit64 {
        rlim_cur: value(limit.soft),
        rlim_max: value(limit.hard),
    };
    (resource, limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(program: &str, envp: &[&str]) -> Vec<String> {
        let envp: Vec<Bytes> = envp.iter().map(|&entry| entry.into()).collect();
        candidates(program.as_bytes(), &envp)
            .into_iter()
            .map(|path| String::from_utf8(path).unwrap())
            .collect()
    }

    #[test]
    fn a_program_with_a_slash_is_not_looked_up() {
        assert_eq!(paths("./a", &["PATH=/bin"]), ["./a"]);
    }

    #[test]
    fn the_path_of_the_job_counts_and_an_empty_entry_is_the_working_directory() {
        assert_eq!(
            paths("a", &["HOME=/", "PATH=/x::/y/z"]),
            ["/x/a", "a", "/y/z/a"]
        );
        assert_eq!(paths("a", &[]), ["/bin/a", "/usr/bin/a"]);
    }
}
