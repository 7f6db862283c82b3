//! Processes that a test has started.

#![allow(clippy::unwrap_used, reason = "only tests use it")]

use std::path::Path;
use std::process::{Command, Stdio};

/// The children of a process.
pub fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let lists = tasks.into_iter().flatten().flatten().map(|task| {
        let list = std::fs::read_to_string(task.path().join("children"));
        list.unwrap_or_default()
    });
    let numbers = |list: String| {
        let numbers = list.split_whitespace().map(|n| n.parse().unwrap());
        numbers.collect::<Vec<u32>>()
    };
    lists.flat_map(numbers).collect()
}

/// Sends `signal`, such as "-TERM", to a process.
pub fn send_signal(signal: &str, pid: u32) {
    let status = Command::new("kill")
        .args([signal, &pid.to_string()])
        .status();
    assert!(status.unwrap().success());
}

/// Stops a process, which may have ended.
pub fn stop(pid: u32) {
    let done = Command::new("kill")
        .args(["-STOP", &pid.to_string()])
        .stderr(Stdio::null())
        .status();
    done.unwrap();
}

/// Returns whether there is such a process, or its end was not waited for.
pub fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}
