//! The exit statuses of `vbts`, and the failures that lead to them.

use std::fmt;
use std::io::Write as _;
use std::time::Duration;

use crate::escape::Message;

/// Exit statuses of `vbts` itself.
pub mod status {
    /// The guest did not end within `--timeout`.
    pub const TIMEOUT: u8 = 124;
    /// Bad usage, or an error of the VMM itself.
    pub const ERROR: u8 = 125;
    /// The host cannot do what was asked for, or the program cannot be executed.
    pub const HOST: u8 = 126;
    /// The program does not exist.
    pub const NOT_FOUND: u8 = 127;
    /// The guest panicked, had a triple fault, or halted without a wake-up source.
    pub const GUEST: u8 = 255;
}

/// Why a command did not end with the status of its guest.
///
/// It does not implement `std::error::Error`, so that `?` can convert any error to it.
#[derive(Debug)]
pub enum Failure {
    /// Bad usage or an error of the VMM.
    Error(anyhow::Error),
    /// The host cannot do what was asked for.
    Host(String),
    /// The program does not exist.
    NotFound(anyhow::Error),
    /// The program cannot be executed.
    NotExecutable(anyhow::Error),
    /// `--timeout` was reached.
    Timeout {
        /// The time limit.
        after: Duration,
        /// The end of the guest's console, if it may explain that.
        console: Option<String>,
    },
    /// `--timeout` was reached while the trace of a run that had ended was written.
    WritingTimeout {
        /// The time limit.
        after: Duration,
    },
    /// `--timeout` was reached while a report was made.
    ReportTimeout {
        /// The time limit.
        after: Duration,
    },
    /// The guest crashed.
    Guest {
        /// The message of the crash.
        reason: String,
        /// The end of the guest's console.
        console: String,
    },
    /// All tasks of the program waited for each other for ever.
    Deadlock,
    /// The user ended the guest with Ctrl-A x.
    Quit,
    /// A signal or the time limit ended the wait for a reader of the output.
    Interrupted,
    /// A signal ended `vbts`.
    Signal(i32),
    /// A signal killed the process that makes a report.
    Killed(i32),
}

impl Failure {
    /// The exit status of `vbts`.
    pub fn status(&self) -> u8 {
        match self {
            Self::Error(_) | Self::Interrupted | Self::Deadlock => status::ERROR,
            Self::Host(_) | Self::NotExecutable(_) => status::HOST,
            Self::NotFound(_) => status::NOT_FOUND,
            Self::Timeout { .. } | Self::WritingTimeout { .. } | Self::ReportTimeout { .. } => {
                status::TIMEOUT
            }
            Self::Guest { .. } => status::GUEST,
            Self::Quit => killed_by(signal_hook::consts::SIGINT),
            Self::Signal(signal) | Self::Killed(signal) => killed_by(*signal),
        }
    }

    /// Whether a signal, the user or a time limit has ended the run. Something that does not read
    /// may be at the other end of the output then.
    pub fn is_interruption(&self) -> bool {
        match self {
            Self::Timeout { .. }
            | Self::WritingTimeout { .. }
            | Self::ReportTimeout { .. }
            | Self::Signal(_)
            | Self::Interrupted
            | Self::Quit => true,
            Self::Error(_)
            | Self::Host(_)
            | Self::NotFound(_)
            | Self::NotExecutable(_)
            | Self::Guest { .. }
            | Self::Deadlock
            | Self::Killed(_) => false,
        }
    }

    /// The end of the guest's console, for failures that it can explain.
    fn console(&self) -> Option<&str> {
        match self {
            Self::Timeout { console, .. } => console.as_deref(),
            Self::Guest { console, .. } => Some(console),
            _ => None,
        }
    }

    /// Forgets the end of the console if the guest was still running at the time limit, and its
    /// kernel has not complained about anything there.
    #[must_use]
    pub fn if_complaint(mut self) -> Self {
        if let Self::Timeout { console, .. } = &mut self {
            *console = console.take().filter(|console| has_complaint(console));
        }
        self
    }

    /// Prints the error, and the end of the guest's console if there is one, to standard error.
    pub fn report(&self) {
        // Other programs in a pipe end without a message too when the reader closes it.
        if matches!(self, Self::Signal(signal_hook::consts::SIGPIPE)) {
            return;
        }
        if let Some(console) = self.console() {
            if console.trim().is_empty() {
                say("the guest has written nothing to its console");
            } else {
                let lines: String = console
                    .lines()
                    .map(|line| format!("\n  | {line}"))
                    .collect();
                say(format_args!("the end of the guest's console:{lines}"));
            }
        }
        say(self);
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(error) | Self::NotFound(error) | Self::NotExecutable(error) => {
                write!(f, "{error:#}")
            }
            Self::Host(message) => f.write_str(message),
            Self::Timeout { after, .. } => {
                write!(
                    f,
                    "timeout: the guest was still running after {} s",
                    after.as_secs_f64()
                )
            }
            Self::WritingTimeout { after } => {
                write!(
                    f,
                    "timeout: the trace was not written within {} s",
                    after.as_secs_f64()
                )
            }
            Self::ReportTimeout { after } => {
                write!(
                    f,
                    "timeout: the report was not complete after {} s",
                    after.as_secs_f64()
                )
            }
            Self::Guest { reason, .. } => f.write_str(reason),
            Self::Deadlock => f.write_str(
                "deadlock: all tasks of the program wait for each other, without a time limit; \
                 --wait-forever waits on",
            ),
            Self::Quit => f.write_str("ended by Ctrl-A x"),
            Self::Interrupted => f.write_str("interrupted while writing"),
            Self::Signal(signal) => write!(f, "interrupted by {}", signal_name(*signal)),
            Self::Killed(signal) => {
                write!(f, "the report was ended by {}", signal_name(*signal))
            }
        }
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Error(error.into())
    }
}

/// What the lines contain with which Linux reports that something is wrong with itself.
const COMPLAINTS: [&str; 9] = [
    "BUG:",
    "WARNING:",
    "Oops:",
    "Call Trace:",
    "Kernel panic",
    "general protection fault",
    "detected stall",
    "blocked for more than",
    "Out of memory",
];

/// Whether the kernel has complained on its console.
fn has_complaint(console: &str) -> bool {
    COMPLAINTS.iter().any(|text| console.contains(text))
}

/// The status that shells report for a process killed by `signal`.
pub fn killed_by(signal: i32) -> u8 {
    128u8.wrapping_add(signal as u8 & 0x7F)
}

/// The name of `signal`, such as `SIGINT`.
pub fn signal_name(signal: i32) -> String {
    signal_hook::low_level::signal_name(signal)
        .map_or_else(|| format!("signal {signal}"), String::from)
}

/// Prints `message` on standard error, with escapes for what is not printable. An error of the
/// write is ignored. One write has all of the message: a thread that writes the trace can still
/// print a report, which must not tear it.
pub fn say(message: impl fmt::Display) {
    let text = format!("vbts: {}\n", Message(message));
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Reports the failure of a command, if it failed, and returns its exit status.
pub fn conclude(outcome: Result<u8, Failure>) -> u8 {
    outcome.unwrap_or_else(|failure| {
        failure.report();
        failure.status()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_follow_the_contract() {
        let guest = Failure::Guest {
            reason: "kernel panic".into(),
            console: String::new(),
        };
        let timeout = Failure::Timeout {
            after: Duration::from_millis(1500),
            console: None,
        };
        assert_eq!(
            timeout.to_string(),
            "timeout: the guest was still running after 1.5 s"
        );
        let failures = [
            Failure::Error(anyhow::anyhow!("x")),
            Failure::Host("x".into()),
            Failure::NotExecutable(anyhow::anyhow!("x")),
            Failure::NotFound(anyhow::anyhow!("x")),
            timeout,
            Failure::WritingTimeout {
                after: Duration::from_secs(1),
            },
            Failure::ReportTimeout {
                after: Duration::from_secs(1),
            },
            guest,
            Failure::Signal(2),
            Failure::Killed(6),
        ];
        assert_eq!(
            failures.map(|f| f.status()),
            [125, 126, 126, 127, 124, 124, 124, 255, 130, 134]
        );
    }

    #[test]
    fn the_console_explains_a_time_limit_if_the_kernel_has_complained() {
        for (console, shown) in [
            (
                "Linux version 6.12\n[    1.2] random: crng init done\n",
                false,
            ),
            ("[    1.2] BUG: kernel NULL pointer dereference\n", true),
            (
                "[    1.2] rcu: INFO: rcu_sched detected stalls on CPUs\n",
                true,
            ),
        ] {
            let failure = Failure::Timeout {
                after: Duration::from_secs(1),
                console: Some(console.into()),
            };
            assert!(failure.console().is_some());
            assert_eq!(
                failure.if_complaint().console().is_some(),
                shown,
                "{console}"
            );
        }
    }

    #[test]
    fn signals_have_names() {
        assert_eq!(signal_name(2), "SIGINT");
        assert_eq!(Failure::Signal(15).to_string(), "interrupted by SIGTERM");
    }
}
