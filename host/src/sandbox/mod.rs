//! Confines this process to the system calls that a running machine needs, so that a guest that
//! escapes from its machine can do little on the host.
//!
//! All files that the run needs are opened first. Then [`restrict_files`] leaves the directories of
//! the guest as the only ones where this process can open files, and [`Sandbox::enter`] restricts
//! it to the system calls of `calls::CALLS`. Any other call kills it with SIGSYS.
//! `docs/security.md` describes what the sandbox protects from.

mod calls;
mod files;
mod kvm_ioctls;
mod threads;

use std::collections::BTreeMap;
use std::io;

use libc::c_long;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use vbts_devices::ninep::Access;

pub use self::files::{FileRules, Reach, is_available as can_restrict_files};
pub use self::threads::{ThreadKind, confine_thread};
use crate::exit::Failure;
use calls::{
    CALLS, COMMON_CALLS, Call, Check, DISK_CALLS, KVM_CALLS, NEW_FILE_CALLS, NOT_FOR_REPLAYS,
    NOT_FOR_REPORTS, OPEN_FILE_CALLS, READER_CALLS, STARTER_CALLS, SYMBOL_CALLS, WRITING_CALLS,
};

/// The capabilities that root keeps: those over files, because the guest has access to the files of
/// the user that started vbts. CAP_FSETID is not one of them: see [`drop_fsetid`].
const KEPT_CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER);

/// Size in bytes from which on an allocation has memory of its own, in a process whose heaps do not
/// shrink: the largest value that glibc takes.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 32 << 20;

/// A sandbox for this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sandbox {
    files: Access,
    kvm: bool,
    disks: bool,
    new_files: bool,
    open_files: bool,
    symbols: bool,
    reports: bool,
    replays: bool,
}

/// A process that reads symbols for this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SymbolProcess {
    /// It reads.
    Reader,
    /// It starts those that read.
    Starter,
}

impl Sandbox {
    /// Creates a sandbox that allows opening files for reading. With [`Access::ReadWrite`], for
    /// guests that may write to a directory of the host, it also allows writing. With `kvm` it
    /// allows the use of KVM.
    pub fn new(files: Access, kvm: bool) -> Self {
        Self {
            files,
            kvm,
            disks: false,
            new_files: false,
            open_files: false,
            symbols: false,
            reports: false,
            replays: false,
        }
    }

    /// Creates a sandbox for a replay of a recording, which opens no files.
    pub fn for_replays() -> Self {
        Self {
            replays: true,
            ..Self::new(Access::ReadOnly, false)
        }
    }

    /// Creates a sandbox for a process that runs no guest: it reads a kept trace and the traced
    /// files, and writes to files that are open.
    pub fn for_reports() -> Self {
        Self {
            symbols: true,
            reports: true,
            ..Self::new(Access::ReadOnly, false)
        }
    }

    /// Also allows creating files, for a trace with a file for each task.
    #[must_use]
    pub fn with_new_files(self) -> Self {
        Self {
            new_files: true,
            ..self
        }
    }

    /// Also allows writing to files that this process has open, for the guest.
    #[must_use]
    pub fn with_open_files(self) -> Self {
        Self {
            open_files: true,
            ..self
        }
    }

    /// Also allows passing files to a process that reads symbols.
    #[must_use]
    pub fn with_symbols(self) -> Self {
        Self {
            symbols: true,
            ..self
        }
    }

    /// Also allows writing to disks that are open.
    #[must_use]
    pub fn with_writable_disks(self) -> Self {
        Self {
            disks: true,
            ..self
        }
    }

    /// Confines every thread of this process until it ends. No thread can be started afterwards.
    ///
    /// # Errors
    /// [`Failure::Host`]: the host's kernel cannot filter system calls.
    pub fn enter(self) -> Result<(), Failure> {
        if self.replays {
            keep_heaps();
        }
        let program = program(self.calls().map(Call::rule))?;
        let applied = seccompiler::apply_filter_all_threads(&program).map_err(|error| {
            use seccompiler::Error::{Prctl, Seccomp, ThreadSync};
            let why = match error {
                Prctl(error) | Seccomp(error) => error.to_string(),
                ThreadSync(thread) => format!("thread {thread} has a filter of its own"),
                error => error.to_string(),
            };
            let does = match self.reports {
                true => "reads a trace",
                false => "runs a guest",
            };
            Failure::Host(format!(
                "this host cannot confine vbts to the system calls that it needs (seccomp: \
                 {why}); --sandbox off {does} that you trust without the sandbox"
            ))
        });
        applied.inspect(|()| threads::entered(self))
    }

    fn calls(self) -> impl Iterator<Item = &'static Call> {
        let writing = match self.files {
            Access::ReadOnly => &[][..],
            Access::ReadWrite => WRITING_CALLS,
        };
        let kvm = if self.kvm { KVM_CALLS } else { &[] };
        let disks = if self.disks { DISK_CALLS } else { &[] };
        let new_files = if self.new_files { NEW_FILE_CALLS } else { &[] };
        let open_files = if self.open_files {
            OPEN_FILE_CALLS
        } else {
            &[]
        };
        let symbols = if self.symbols { SYMBOL_CALLS } else { &[] };
        let withheld = match (self.reports, self.replays) {
            (true, _) => NOT_FOR_REPORTS,
            (false, true) => NOT_FOR_REPLAYS,
            (false, false) => &[],
        };
        COMMON_CALLS
            .iter()
            .chain(CALLS)
            .filter(|call| !withheld.contains(&call.number))
            .chain(symbols)
            .chain(kvm)
            .chain(disks)
            .chain(new_files)
            .chain(open_files)
            .chain(writing)
    }
}

/// Has the C library never shrink a heap: before it does, it reads
/// /proc/sys/vm/overcommit_memory (`check_may_shrink_heap` of glibc). A large allocation still has
/// memory of its own, which is returned.
fn keep_heaps() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the function changes numbers of the allocator, under its lock.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX);
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
    }
}

/// The filter that allows `calls` and kills the process at others.
fn program<'a>(
    calls: impl Iterator<Item = (c_long, &'a Check)>,
) -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for (number, check) in calls {
        // A later row replaces an earlier one.
        rules.insert(number, rules_of(check)?);
    }
    SeccompFilter::new(
        rules,
        SeccompAction::KillProcess,
        SeccompAction::Allow,
        TargetArch::x86_64,
    )?
    .try_into()
}

/// Confines this process, which has one thread, to what `process` needs.
///
/// # Errors
/// The host's kernel cannot filter system calls.
pub fn confine(process: SymbolProcess) -> anyhow::Result<()> {
    let more = match process {
        SymbolProcess::Reader => &[][..],
        SymbolProcess::Starter => STARTER_CALLS,
    };
    let calls = COMMON_CALLS.iter().chain(READER_CALLS).chain(more);
    let program = program(calls.map(Call::rule))?;
    Ok(seccompiler::apply_filter(&program)?)
}

/// The seccomp rules of which a call must satisfy one. None if every call is allowed.
fn rules_of(check: &Check) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    use SeccompCmpArgLen::Dword;
    use SeccompCmpOp::{Eq, MaskedEq};
    let rule = |argument, length, operator, value| {
        SeccompRule::new(vec![SeccompCondition::new(
            argument, length, operator, value,
        )?])
    };
    match *check {
        Check::Any => Ok(Vec::new()),
        Check::Clear(argument, bits) => Ok(vec![rule(argument, Dword, MaskedEq(bits.into()), 0)?]),
        Check::OneOf(argument, values) => values
            .iter()
            .map(|&value| rule(argument, Dword, Eq, value.into()))
            .collect(),
        Check::OwnProcess(argument) => {
            Ok(vec![rule(argument, Dword, Eq, std::process::id().into())?])
        }
    }
}

/// Whether this host can kill a process that makes a forbidden system call.
pub fn can_filter_calls() -> bool {
    let action = libc::SECCOMP_RET_KILL_PROCESS;
    // SAFETY: the kernel reads the number that the pointer names.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_ACTION_AVAIL,
            0,
            &raw const action,
        )
    };
    result == 0
}

/// Restricts this thread, and those that it starts later, to the files of `rules`, if the host can
/// do that.
///
/// # Errors
/// [`Failure::Host`]: it cannot, and has to because the sandbox is `strict`.
pub fn restrict_files(rules: FileRules, strict: bool) -> Result<(), Failure> {
    let why = match rules.enter() {
        Ok(true) => return Ok(()),
        Ok(false) => "Landlock is missing or too old".into(),
        Err(error) => format!("Landlock: {error}"),
    };
    tracing::info!(why, "the files that vbts can open are not restricted");
    if !strict {
        return Ok(());
    }
    Err(Failure::Host(format!(
        "this host cannot confine vbts to the files that it needs ({why}); --sandbox auto confines \
         it to the system calls alone"
    )))
}

/// Drops the capabilities of root, except those over files: vbts then has no power over modules,
/// devices, the network and other processes. Threads that start later have none either.
///
/// # Errors
/// The host's kernel rejects the change.
pub fn drop_capabilities() -> io::Result<()> {
    keep_capabilities(KEPT_CAPABILITIES)
}

/// Drops CAP_FSETID. Without it, the host's kernel clears the set-user-ID bit, and the
/// set-group-ID bit of an executable file, when this process writes or truncates the file
/// (`file_remove_privs` in fs/inode.c). With it, a guest could replace the contents of a
/// set-user-ID program of the host that is in a writable share.
///
/// # Errors
/// The host's kernel rejects the change.
pub fn drop_fsetid() -> io::Result<()> {
    keep_capabilities(CapabilitySet::FSETID.complement())
}

/// Drops all capabilities.
///
/// # Errors
/// The host's kernel rejects the change.
pub fn drop_all_capabilities() -> io::Result<()> {
    keep_capabilities(CapabilitySet::empty())
}

/// Drops the capabilities that are not in `kept`.
fn keep_capabilities(kept: CapabilitySet) -> io::Result<()> {
    let now = capabilities(None)?;
    let permitted = now.permitted & kept;
    let sets = CapabilitySets {
        effective: now.effective & permitted,
        permitted,
        inheritable: CapabilitySet::empty(),
    };
    Ok(set_capabilities(None, sets)?)
}

/// Sets the limit of `resource` to `value`, or leaves it as it is if it is lower.
///
/// # Errors
/// The host refuses.
pub fn limit(resource: Resource, value: u64) -> io::Result<()> {
    let value = getrlimit(resource).maximum.unwrap_or(value).min(value);
    let limit = Rlimit {
        current: Some(value),
        maximum: Some(value),
    };
    Ok(setrlimit(resource, limit)?)
}

#[cfg(test)]
mod tests;
