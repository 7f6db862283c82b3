//! Processes of their own enter the sandbox and try what it allows and what it forbids.

mod actions;
mod document;

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::mpsc::channel;

use super::*;
use crate::{Alarm, EventLoop};
use actions::{
    ALLOWED, ALLOWED_FOR_TASK_FILES, ALLOWED_ON_DISKS, ALLOWED_TO_WRITE, EVENT_LOOP, FORBIDDEN,
    NOT_FOR_THREADS, cases,
};

/// Names the case for [`in_a_separate_process`].
const CASE: &str = "VBTS_SANDBOX_CASE";
/// Output of a case that reached its end.
const SURVIVED: &str = "survived";

fn alarm() -> Alarm {
    Alarm::new(Arc::default(), None).unwrap()
}

#[test]
#[ignore = "the other tests run each case in a separate process"]
fn in_a_separate_process() {
    let case = std::env::var(CASE).unwrap();
    let mut kind = None;
    let (sandbox, name) = match case.split_once(':') {
        Some(("trace", name)) => {
            kind = Some(ThreadKind::Trace);
            let sandbox = Sandbox::new(Access::ReadWrite, false).with_writable_disks();
            (sandbox, name)
        }
        Some(("vcpu", name)) => {
            kind = Some(ThreadKind::Processor);
            (Sandbox::new(Access::ReadWrite, true), name)
        }
        Some(("rw", name)) => (Sandbox::new(Access::ReadWrite, false), name),
        Some(("replay", name)) => (Sandbox::for_replays(), name),
        Some(("files", name)) => (Sandbox::new(Access::ReadOnly, false).with_new_files(), name),
        Some((_, name)) => (
            Sandbox::new(Access::ReadOnly, false).with_writable_disks(),
            name,
        ),
        None => (Sandbox::new(Access::ReadOnly, false), case.as_str()),
    };
    *EVENT_LOOP.lock().unwrap() = Some(EventLoop::new(Arc::new(alarm())).unwrap());
    // A thread that starts before the sandbox is entered works and ends inside it, and is confined
    // too.
    let (ask, asked) = channel::<()>();
    let (answer, answered) = channel();
    let name = name.to_owned();
    let thread = std::thread::spawn(move || {
        answer.send(()).unwrap();
        asked.recv().unwrap();
        if let Some(kind) = kind {
            assert!(confine_thread(kind).unwrap());
        }
        let more = ALLOWED_ON_DISKS.iter().chain(ALLOWED_FOR_TASK_FILES);
        let mut all = FORBIDDEN
            .iter()
            .copied()
            .chain(cases(Access::ReadWrite))
            .chain(more.copied());
        all.find(|(n, _)| *n == name).unwrap().1();
    });
    answered.recv().unwrap();
    sandbox.enter().unwrap();
    ask.send(()).unwrap();
    thread.join().unwrap();
    let mut stdout = std::io::stdout();
    stdout.write_all(SURVIVED.as_bytes()).unwrap();
    stdout.flush().unwrap();
}

#[test]
#[ignore = "another test runs this in a separate process"]
fn on_a_host_without_seccomp() {
    let rules = BTreeMap::from([(libc::SYS_seccomp, Vec::new())]);
    let refuse = SeccompAction::Errno(libc::ENOSYS as u32);
    let filter =
        SeccompFilter::new(rules, SeccompAction::Allow, refuse, TargetArch::x86_64).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    seccompiler::apply_filter(&program).unwrap();
    let failure = Sandbox::new(Access::ReadOnly, false).enter().unwrap_err();
    assert_eq!(failure.status(), crate::exit::status::HOST);
    let message = failure.to_string();
    assert!(message.contains("Function not implemented"), "{message}");
    assert!(message.contains("--sandbox off"), "{message}");
}

#[test]
#[ignore = "another test runs this in a separate process"]
fn on_a_host_without_landlock() {
    let rules = BTreeMap::from([(libc::SYS_landlock_create_ruleset, Vec::new())]);
    let refuse = SeccompAction::Errno(libc::ENOSYS as u32);
    let filter =
        SeccompFilter::new(rules, SeccompAction::Allow, refuse, TargetArch::x86_64).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    seccompiler::apply_filter(&program).unwrap();
    assert!(!can_restrict_files());
    restrict_files(FileRules::default(), false).unwrap();
    let failure = restrict_files(FileRules::default(), true).unwrap_err();
    assert_eq!(failure.status(), crate::exit::status::HOST);
    let message = failure.to_string();
    assert!(message.contains("Landlock"), "{message}");
    assert!(message.contains("--sandbox auto"), "{message}");
}

fn run(case: &str) -> Output {
    run_test("in_a_separate_process", case)
}

fn run_test(name: &str, case: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            &format!("sandbox::tests::{name}"),
            "--ignored",
            "--nocapture",
        ])
        .env(CASE, case)
        .env("RUST_BACKTRACE", "full")
        .output()
        .unwrap()
}

#[test]
fn other_calls_kill_the_process() {
    for (name, _) in FORBIDDEN {
        let output = run(name);
        assert_eq!(
            output.status.signal(),
            Some(libc::SIGSYS),
            "{name}: {output:?}"
        );
    }
}

#[test]
fn allowed_calls_do_not_kill_the_process() {
    for (prefix, access) in [
        ("", Access::ReadOnly),
        ("rw:", Access::ReadWrite),
        ("disk:", Access::ReadOnly),
        ("files:", Access::ReadOnly),
    ] {
        let more = match prefix {
            "disk:" => ALLOWED_ON_DISKS,
            "files:" => ALLOWED_FOR_TASK_FILES,
            _ => &[],
        };
        for (name, _) in cases(access).chain(more.iter().copied()) {
            let output = run(&format!("{prefix}{name}"));
            assert!(output.status.success(), "{name}: {output:?}");
            assert!(
                String::from_utf8_lossy(&output.stdout).contains(SURVIVED),
                "{name}: {output:?}"
            );
        }
    }
}

#[test]
fn a_replay_opens_no_files() {
    let is_withheld = |name| actions::NOT_FOR_REPLAYS.contains(&name);
    // Those read files for a backtrace.
    let reads = ["a backtrace", "a panic"];
    for (name, _) in ALLOWED.iter().filter(|(name, _)| !reads.contains(name)) {
        let output = run(&format!("replay:{name}"));
        let expected = is_withheld(*name).then_some(libc::SIGSYS);
        assert_eq!(output.status.signal(), expected, "{name}: {output:?}");
    }
}

#[test]
fn a_thread_can_do_less_than_the_process() {
    for (kind, name) in NOT_FOR_THREADS {
        let output = run(&format!("{kind}:{name}"));
        assert_eq!(
            output.status.signal(),
            Some(libc::SIGSYS),
            "{kind} {name}: {output:?}"
        );
    }
    let is_withheld = |kind, name| NOT_FOR_THREADS.contains(&(kind, name));
    for kind in ["trace", "vcpu"] {
        for (name, _) in ALLOWED.iter().filter(|(name, _)| !is_withheld(kind, name)) {
            let output = run(&format!("{kind}:{name}"));
            assert!(output.status.success(), "{kind} {name}: {output:?}");
        }
    }
    let output = run("vcpu:files");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn only_threads_of_processors_use_kvm() {
    let sandbox = Sandbox::new(Access::ReadOnly, true);
    let ioctls = |kind: ThreadKind| match kind.calls(sandbox)[&libc::SYS_ioctl] {
        Check::OneOf(_, values) => values.to_vec(),
        check => panic!("{check:?}"),
    };
    let run = 0xAE80;
    assert!(ioctls(ThreadKind::Processor).contains(&run));
    assert!(!ioctls(ThreadKind::Processor).contains(&(libc::TCSETS as u32)));
    assert!(!ioctls(ThreadKind::Trace).contains(&run));
    assert!(!ioctls(ThreadKind::Service).contains(&run));
}

#[test]
fn writing_is_allowed_only_with_a_writable_device() {
    let files = ALLOWED_TO_WRITE.iter().chain(ALLOWED_FOR_TASK_FILES);
    for (name, _) in files.chain(ALLOWED_ON_DISKS) {
        assert_eq!(run(name).status.signal(), Some(libc::SIGSYS), "{name}");
    }
    // A writable disk does not allow opening files for writing, nor do files of tasks allow
    // creating directories.
    for name in ["disk:files", "disk:a file of a task", "files:files"] {
        let output = run(name);
        assert_eq!(output.status.signal(), Some(libc::SIGSYS), "{name}");
    }
}

#[test]
fn a_panic_is_reported_in_the_sandbox() {
    // No case has this name, so the thread panics.
    let output = run("nothing");
    assert_eq!(output.status.code(), Some(101), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("sandbox/tests.rs"),
        "{output:?}"
    );
}

#[test]
fn a_host_without_seccomp_runs_no_machine() {
    let output = run_test("on_a_host_without_seccomp", "");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_host_without_landlock_runs_no_strict_machine() {
    let output = run_test("on_a_host_without_landlock", "");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn root_keeps_its_capabilities_over_files_only() {
    // Capabilities belong to a thread, so other tests are not affected.
    drop_capabilities().unwrap();
    let left = capabilities(None).unwrap();
    assert_eq!(left.permitted - KEPT_CAPABILITIES, CapabilitySet::empty());
    assert_eq!(left.effective - KEPT_CAPABILITIES, CapabilitySet::empty());
    assert_eq!(left.inheritable, CapabilitySet::empty());
}
