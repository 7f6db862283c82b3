//! What a recording contains of the host: files, environment, standard input, signals.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufReader, Read};

use anyhow::{Context as _, anyhow};
use serde_json::{Value, json};
use vbts_host::exit::{Failure, signal_name};
use vbts_host::output::Output;
use vbts_protocol::{Bytes, Decoder, ROOT_TAG, ToGuest};
use vbts_recording::{Access, Error, Header, Item, Paths, Reader};

use super::{ReportArgs, process};
use crate::recording::GuestFacts;

/// Amount of data that was read of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Amount {
    bytes: u64,
    /// Number of requests or pieces.
    times: u64,
}

impl Amount {
    fn add(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.times += 1;
    }
}

/// A file, by the number of its server, its path and what was read.
type FileKey = (u8, Vec<u8>, &'static str);

/// The inputs of a recording.
#[derive(Debug, Default)]
struct Contents {
    /// The guest's own files: its kernel and its initial root file system.
    guest: Amount,
    arguments: Vec<String>,
    /// The environment: names, and the lengths of values in bytes.
    environment: Vec<(String, usize)>,
    files: BTreeMap<FileKey, Amount>,
    /// Replies without contents of files.
    other_replies: Amount,
    /// Bytes for the streams of the program, by their numbers.
    streams: BTreeMap<u32, Amount>,
    /// Bytes for a console.
    console: Amount,
    signals: Vec<u32>,
    window_sizes: u64,
    random: Amount,
    waits: u64,
    /// Virtual time of all waits in ns.
    waited: u64,
    /// The last time in ns.
    time: u64,
    /// The file at which the recording ends, because its contents were kept out.
    excluded: Option<String>,
    is_whole: bool,
}

/// Shows the inputs of the recording `args.file`.
///
/// # Errors
/// The file is no recording or is damaged, or the output fails.
pub(super) fn show(args: &ReportArgs, output: Output) -> Result<(), Failure> {
    let name = args.file.display();
    let file = File::open(&args.file).with_context(|| format!("Cannot open {name}"))?;
    process::restrict_files(args.sandbox, &args.root)?;
    process::restrict_calls(args.sandbox)?;
    let opened = Reader::new(BufReader::new(file));
    if matches!(opened, Err(Error::NotARecording)) {
        let error = anyhow!("inputs: {name} is no recording of vbts record");
        return Err(error.into());
    }
    let cannot_read = || format!("Cannot read {name}");
    let (header, reader) = opened.with_context(cannot_read)?;
    let facts: GuestFacts = serde_json::from_value(header.guest.clone())
        .with_context(|| format!("Cannot read {name}: its configuration is damaged"))?;
    let contents = Contents::read(reader).with_context(cannot_read)?;
    let text = match args.json {
        true => contents.json(&header, &facts),
        false => contents.text(&header, &facts),
    };
    process::write_whole(output, &text)
}

impl Contents {
    fn read(mut reader: Reader<impl Read>) -> Result<Self, Error> {
        let mut contents = Self::default();
        let mut paths: BTreeMap<u8, Paths> = BTreeMap::new();
        let mut frames = Decoder::new();
        while let Some(item) = reader.next()? {
            contents.time = item.time().unwrap_or(contents.time);
            match item {
                Item::File { bytes, .. } => contents.guest.add(bytes.len() as u64),
                Item::Reply {
                    server,
                    request,
                    reply,
                    ..
                } => {
                    let paths = paths.entry(server).or_default();
                    contents.reply(server, paths, &request.start, &reply);
                }
                Item::Random { bytes, .. } => contents.random.add(bytes.len() as u64),
                Item::Wait { time, until } => {
                    contents.waits += 1;
                    contents.waited += until.saturating_sub(time);
                }
                Item::Input { bytes, .. } => contents.input(&mut frames, &bytes),
                Item::Excluded { path, .. } => contents.excluded = Some(path.into_owned()),
                Item::End { .. } => contents.is_whole = true,
                Item::Boot | Item::Mark { .. } => {}
            }
        }
        Ok(contents)
    }

    /// Adds a reply of a server of files.
    fn reply(&mut self, server: u8, paths: &mut Paths, request: &[u8], reply: &[u8]) {
        let Some(got) = paths.follow(request, reply) else {
            self.other_replies.add(reply.len() as u64);
            return;
        };
        let access = match got.access {
            Access::Contents => "contents",
            Access::Names => "names",
            Access::Link => "link",
        };
        let key = (server, got.path.unwrap_or(b"?").to_vec(), access);
        self.files.entry(key).or_default().add(got.bytes);
    }

    /// Adds bytes for the agent's port, or for a console.
    fn input(&mut self, frames: &mut Decoder, bytes: &[u8]) {
        frames.push(bytes);
        loop {
            let message = match frames.next_frame() {
                Ok(Some(payload)) => ToGuest::parse(payload),
                Ok(None) => return,
                Err(_) => {
                    // A machine has no agent.
                    self.console.add(bytes.len() as u64);
                    return;
                }
            };
            match message {
                Ok(ToGuest::Job(job)) => {
                    self.arguments = job.argv.iter().map(printable).collect();
                    self.environment = job.envp.iter().map(variable).collect();
                }
                Ok(ToGuest::Input { fd, bytes }) => {
                    self.streams.entry(fd).or_default().add(bytes.len() as u64);
                }
                Ok(ToGuest::WindowSize(_)) => self.window_sizes += 1,
                Ok(ToGuest::Signal(signal)) => self.signals.push(signal),
                Ok(ToGuest::InputEnd { .. } | ToGuest::OutputClosed { .. } | ToGuest::End)
                | Err(_) => {}
            }
        }
    }

    fn text(&self, header: &Header, facts: &GuestFacts) -> String {
        let mut rows = vec![
            ("command", header.command.join(" ")),
            ("recorded by", header.writer.clone()),
            ("virtual time", format!("{:.6} s", self.time as f64 / 1e9)),
            ("guest's kernel", self.kernel(facts)),
        ];
        if !self.arguments.is_empty() {
            rows.push(("program", self.arguments.join(" ")));
            let size: usize = self
                .environment
                .iter()
                .map(|(name, len)| name.len() + len)
                .sum();
            let names: Vec<&str> = self.environment.iter().map(|(name, _)| &**name).collect();
            let (count, size) = (names.len(), bytes(size as u64));
            rows.push((
                "environment",
                format!("{count} variables, {size}: {}", names.join(" ")),
            ));
        }
        for (stream, Amount { bytes: size, times }) in &self.streams {
            let size = bytes(*size);
            rows.push((
                "input",
                format!("descriptor {stream}: {size} in {times} pieces"),
            ));
        }
        if self.console.times > 0 {
            rows.push(("console", bytes(self.console.bytes)));
        }
        if !self.signals.is_empty() {
            let names: Vec<String> = self
                .signals
                .iter()
                .map(|signal| signal_text(*signal))
                .collect();
            rows.push(("signals", names.join(" ")));
        }
        if self.window_sizes > 0 {
            rows.push(("terminal sizes", self.window_sizes.to_string()));
        }
        if self.random.times > 0 {
            rows.push(("random numbers", bytes(self.random.bytes)));
        }
        let waited = self.waited as f64 / 1e9;
        rows.push((
            "waits",
            format!("{}, {waited:.6} s of virtual time", self.waits),
        ));
        let files: BTreeSet<_> = self
            .files
            .keys()
            .map(|(server, path, _)| (server, path))
            .collect();
        let size: u64 = self.files.values().map(|amount| amount.bytes).sum();
        rows.push(("files", format!("{}, {}", files.len(), bytes(size))));
        if let Some(path) = &self.excluded {
            rows.push((
                "ends at",
                format!("{path}, whose contents were kept out (--exclude)"),
            ));
        } else if !self.is_whole {
            rows.push(("ends", "before the run: the recording was cut off".into()));
        }
        let mut text = String::new();
        for (name, value) in rows {
            let _ = writeln!(text, "{name:<16}{value}");
        }
        let _ = writeln!(
            text,
            "\n{:>14} {:>8} {:<9} file",
            "bytes", "requests", "what"
        );
        for ((server, path, access), Amount { bytes, times }) in self.largest_first() {
            let file = full_path(facts, *server, path);
            let _ = writeln!(text, "{bytes:>14} {times:>8} {access:<9} {file}");
        }
        text
    }

    /// The guest's files, or what the recording has instead.
    fn kernel(&self, facts: &GuestFacts) -> String {
        let present = bytes(self.guest.bytes);
        match &facts.kernel_sha256 {
            None => present,
            Some(hash) => format!("not in the file, SHA-256 {hash}; other files {present}"),
        }
    }

    fn json(&self, header: &Header, facts: &GuestFacts) -> String {
        let mut lines = vec![json!({
            "kind": "recording", "command": header.command, "writer": header.writer,
            "time": self.time, "kernel_bytes": self.guest.bytes,
            "kernel_sha256": facts.kernel_sha256, "program": self.arguments,
            "random_bytes": self.random.bytes, "console_bytes": self.console.bytes,
            "terminal_sizes": self.window_sizes, "waits": self.waits, "waited": self.waited,
            "whole": self.is_whole, "excluded": self.excluded,
        })];
        let variable = |(name, len): &(String, usize)| json!({ "kind": "environment", "name": name, "bytes": len });
        lines.extend(self.environment.iter().map(variable));
        let stream = |(stream, amount): (&u32, &Amount)| {
            json!({ "kind": "input", "descriptor": stream, "bytes": amount.bytes,
                    "pieces": amount.times })
        };
        lines.extend(self.streams.iter().map(stream));
        let signal = |signal: &u32| json!({ "kind": "signal", "signal": signal });
        lines.extend(self.signals.iter().map(signal));
        let file = |((server, path, access), amount): (&FileKey, &Amount)| {
            json!({ "kind": "file", "path": full_path(facts, *server, path), "what": access,
                    "bytes": amount.bytes, "requests": amount.times })
        };
        lines.extend(self.largest_first().into_iter().map(file));
        lines
            .iter()
            .map(|line: &Value| format!("{line}\n"))
            .collect()
    }

    fn largest_first(&self) -> Vec<(&FileKey, &Amount)> {
        let mut files: Vec<_> = self.files.iter().collect();
        files.sort_by_key(|(key, amount)| (std::cmp::Reverse(amount.bytes), *key));
        files
    }
}

/// The path of a file: in the guest's root, or behind the tag of its share.
fn full_path(facts: &GuestFacts, server: u8, path: &[u8]) -> String {
    let path = path.escape_ascii();
    match facts.shares.get(usize::from(server)) {
        Some(tag) if tag == ROOT_TAG => format!("/{path}"),
        Some(tag) => format!("{}:/{path}", tag.escape_debug()),
        None => format!("{server}:/{path}"),
    }
}

fn printable(bytes: &Bytes) -> String {
    bytes.0.escape_ascii().to_string()
}

/// The name of a variable of the environment, and the length of its value.
fn variable(entry: &Bytes) -> (String, usize) {
    let name = entry
        .0
        .split(|byte| *byte == b'=')
        .next()
        .unwrap_or_default();
    let value = entry.0.len().saturating_sub(name.len() + 1);
    (name.escape_ascii().to_string(), value)
}

fn signal_text(signal: u32) -> String {
    i32::try_from(signal).map_or_else(|_| signal.to_string(), signal_name)
}

fn bytes(count: u64) -> String {
    format!("{count} bytes")
}
