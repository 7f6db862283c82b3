//! A gdb that this program drives, on a recording, through GDB's machine interface (GDB/MI).

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::anyhow;
use clap::Parser as _;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use vbts_host::exit::Failure;

use super::client::{end_server, find, serve_gdb};
use crate::trace::TraceDirectory;
use crate::{Cli, Command as VbtsCommand};

/// Longest line of gdb in bytes.
const MAX_LINE: u64 = 64 << 20;
/// Time for which the server of a gdb that has ended may take to end.
const END_TIME: Duration = Duration::from_secs(1);

/// An answer of gdb to a command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The result record, and what the command has printed.
    Done { result: String, printed: String },
    /// The message of an error.
    Refused(String),
}

/// The state in which a resumed program has stopped.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stopped(String);

impl Stopped {
    /// The value of a field, such as `reason` or `line`.
    pub(crate) fn field(&self, name: &str) -> Option<String> {
        field(&self.0, name)
    }
}

/// A gdb that is connected to a replay.
#[derive(Debug)]
pub(crate) struct Gdb {
    child: Child,
    commands: ChildStdin,
    output: BufReader<ChildStdout>,
    /// The process that replays.
    server: Pid,
    /// Number of the last command.
    token: u32,
}

impl Gdb {
    /// Starts gdb on `recording`, and waits until it is connected.
    ///
    /// # Errors
    /// gdb is not installed, or the recording cannot be debugged.
    pub(crate) fn start(recording: &Path, options: &[&str]) -> Result<Self, Failure> {
        let gdb = find("gdb".as_ref(), "")?;
        let words = ["vbts", "debug"].iter().chain(options).map(OsString::from);
        let words = words.chain([recording.as_os_str().to_owned()]);
        let parsed = Cli::try_parse_from(words).map_err(|error| anyhow!("{error}"))?;
        let VbtsCommand::Debug(args) = parsed.command else {
            return Err(anyhow!("the recording cannot be debugged").into());
        };
        let directory = TraceDirectory::create()?;
        let (server, commands) = serve_gdb(&args, recording, &directory)?;
        let mut command = Command::new(&gdb);
        command.args(["-q", "-nx", "--interpreter=mi2"]);
        // What gdb would change is no longer the recorded run.
        for what in ["write-registers", "write-memory", "call-functions"] {
            command.arg("-iex").arg(format!("set may-{what} off"));
        }
        command.arg("-x").arg(&commands);
        // Some answers are texts.
        command.env("LC_ALL", "C.UTF-8");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::null());
        let started = command.spawn().and_then(|mut child| {
            let pipes = (child.stdin.take(), child.stdout.take());
            match pipes {
                (Some(stdin), Some(stdout)) => Ok((child, stdin, stdout)),
                _ => Err(std::io::Error::other("it has no pipes")),
            }
        });
        let (child, commands, output) = match started {
            Ok(started) => started,
            Err(error) => {
                // It may have ended.
                let _ = kill_process(server, Signal::TERM);
                let why = format!("Cannot start {}", gdb.display());
                return Err(Failure::Error(anyhow::Error::new(error).context(why)));
            }
        };
        let mut gdb = Self {
            child,
            commands,
            output: BufReader::new(output),
            server,
            token: 0,
        };
        // The first answer comes when the script has ended. Then gdb is connected, or not.
        match gdb.console("monitor when")? {
            Answer::Done { .. } => Ok(gdb),
            Answer::Refused(why) => Err(gdb.failure(&why)),
        }
    }

    /// The reason for which the session has ended: that of the replay, if it has said one.
    fn failure(&mut self, why: &str) -> Failure {
        let served = waitpid(Some(self.server), WaitOptions::NOHANG);
        let status = match served {
            Ok(Some((_, status))) => status.exit_status().and_then(|s| u8::try_from(s).ok()),
            _ => None,
        };
        match status.filter(|status| *status != 0) {
            Some(126) => Failure::Host("the recording cannot be replayed here".into()),
            Some(_) => anyhow!("the recording cannot be debugged").into(),
            None => anyhow!("gdb: {why}").into(),
        }
    }

    /// Executes a command of the machine interface.
    ///
    /// # Errors
    /// gdb has ended.
    pub(crate) fn execute(&mut self, command: &str) -> Result<Answer, Failure> {
        self.token += 1;
        let token = self.token;
        let lost = |_| Failure::Error(anyhow!("gdb has ended"));
        writeln!(self.commands, "{token}{command}").map_err(lost)?;
        let mut printed = String::new();
        loop {
            let line = self.line()?;
            if let Some(text) = line.strip_prefix(['~', '@']) {
                printed += &unquoted(text);
                continue;
            }
            let number = token.to_string();
            let Some(result) = line.strip_prefix(&number).and_then(|r| r.strip_prefix('^')) else {
                continue;
            };
            return Ok(match result.strip_prefix("error") {
                Some(error) => Answer::Refused(field(error, "msg").unwrap_or_default()),
                None => Answer::Done {
                    result: result.into(),
                    printed,
                },
            });
        }
    }

    /// Executes a command as a user types it. Returns what it prints.
    ///
    /// # Errors
    /// gdb has ended.
    pub(crate) fn console(&mut self, command: &str) -> Result<Answer, Failure> {
        self.execute(&format!("-interpreter-exec console {}", quoted(command)))
    }

    /// Lets the program run to its next stop.
    ///
    /// # Errors
    /// gdb has ended, or refuses.
    pub(crate) fn resume(&mut self) -> Result<Stopped, Failure> {
        if let Answer::Refused(why) = self.execute("-exec-continue")? {
            return Err(self.failure(&why));
        }
        loop {
            if let Some(stopped) = self.line()?.strip_prefix("*stopped") {
                return Ok(Stopped(stopped.to_owned()));
            }
        }
    }

    /// The next line of gdb.
    fn line(&mut self) -> Result<String, Failure> {
        let mut line = Vec::new();
        let mut limited = std::io::Read::take(&mut self.output, MAX_LINE);
        let read = limited.read_until(b'\n', &mut line);
        if !matches!(read, Ok(1..)) {
            return Err(self.failure("it has ended"));
        }
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }
}

impl Drop for Gdb {
    fn drop(&mut self) {
        // Either may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Without gdb the server ends, unless it is busy.
        end_server(self.server, END_TIME);
    }
}

/// The value of the first field `name` of a record. A quotation mark inside of a value has a
/// backslash before it, so no value looks like a field.
pub(crate) fn field(record: &str, name: &str) -> Option<String> {
    let starts = [format!(",{name}=\""), format!("{{{name}=\"")];
    let at = starts.iter().filter_map(|start| {
        let at = record.find(start)?;
        Some(at + start.len() - 1)
    });
    Some(unquoted(record.get(at.min()?..)?))
}

/// The contents of the quoted string with which `text` begins.
fn unquoted(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes().skip(1).peekable();
    while let Some(byte) = rest.next().filter(|byte| *byte != b'"') {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        match rest.next() {
            Some(b'n') => bytes.push(b'\n'),
            Some(b't') => bytes.push(b'\t'),
            Some(b'r') => bytes.push(b'\r'),
            Some(first @ b'0'..=b'7') => {
                let mut value = u32::from(first - b'0');
                for _ in 0..2 {
                    let Some(digit) = rest.next_if(|digit| (b'0'..=b'7').contains(digit)) else {
                        break;
                    };
                    value = value * 8 + u32::from(digit - b'0');
                }
                bytes.push(value as u8);
            }
            Some(other) => bytes.push(other),
            None => break,
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The text as a quoted string.
pub(crate) fn quoted(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{escaped}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_beside_values_that_look_like_them() {
        let record = r#",reason="breakpoint-hit",frame={addr="0x1",func="f",args=[{name="s",value="0x2 \",line=\"7\\""}],line="42"}"#;
        assert_eq!(field(record, "reason").as_deref(), Some("breakpoint-hit"));
        assert_eq!(field(record, "addr").as_deref(), Some("0x1"));
        assert_eq!(field(record, "value").as_deref(), Some("0x2 \",line=\"7\\"));
        assert_eq!(field(record, "line").as_deref(), Some("42"));
        assert_eq!(field(record, "fullname"), None);
    }

    #[test]
    fn strings_are_quoted_and_unquoted() {
        assert_eq!(unquoted(r#""a\tb\n\303\274\0\\\"c"rest"#), "a\tb\nü\0\\\"c");
        assert_eq!(unquoted("\"open"), "open");
        assert_eq!(unquoted("\"\\"), "");
        for text in ["plain", "a \"b\" \\ c"] {
            assert_eq!(unquoted(&quoted(text)), text);
        }
    }
}
