//! The format of a trace for programs: one JSON object a line.

use serde_json::json;
use vbts_protocol::ExitStatus;
use vbts_trace::{Branch, Event, Status};

use super::{Format, push_decimal, push_hex};
use crate::summary::{RunEnd, Summary};
use crate::task::Task;
use vbts_host::escape::is_printable;
use vbts_host::exit::signal_name;
use vbts_symbols::Symbolizer;
use vbts_vmm::accel::Accel;

/// One JSON object a line.
#[derive(Debug)]
pub struct Json {
    accel: Accel,
    /// Show when tasks arrive on a processor and depart from it.
    sched: bool,
    /// The task of the last records, and the end of each of their lines.
    task: u32,
    line_end: Vec<u8>,
    /// What a branch has the number of: `task` or `processor`.
    key: &'static str,
}

impl Json {
    /// An empty trace of a guest on `accel`, which shows when tasks arrive on a processor and
    /// depart from it if `sched`.
    pub fn new(accel: Accel, sched: bool) -> Self {
        Self {
            accel,
            sched,
            task: 0,
            line_end: Vec::new(),
            key: "task",
        }
    }

    /// The trace of a machine: processors are in the place of tasks.
    #[must_use]
    pub fn of_machine(self) -> Self {
        Self {
            key: "processor",
            ..self
        }
    }

    /// Makes `task` the one of the next records.
    fn enter(&mut self, task: u32) {
        if self.task != task || self.line_end.is_empty() {
            self.task = task;
            self.line_end.clear();
            self.line_end.extend_from_slice(b",\"");
            self.line_end.extend_from_slice(self.key.as_bytes());
            self.line_end.extend_from_slice(b"\":");
            push_decimal(&mut self.line_end, task.into());
            self.line_end.extend_from_slice(b"}\n");
        }
    }
}

/// A JSON string with these bytes; those that are not UTF-8 are replaced. What is not printable is
/// escaped: JSON itself only requires that of some control characters.
fn string(bytes: &[u8]) -> String {
    let text = json!(String::from_utf8_lossy(bytes)).to_string();
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_printable(c) {
            out.push(c);
        } else {
            let mut units = [0; 2];
            let units = c.encode_utf16(&mut units).iter();
            out.extend(units.map(|unit| format!("\\u{unit:04x}")));
        }
    }
    out
}

fn hex(value: u64) -> String {
    format!("\"{value:#x}\"")
}

/// The line of an event, without its end; `None` for an event that is not shown.
fn line(task: &Task, event: &Event) -> Option<String> {
    let id = task.id;
    Some(match event {
        Event::Start {
            parent,
            process,
            time,
            ..
        } => format!(
            "{{\"kind\":\"start\",\"task\":{id},\"parent\":{parent},\"process\":{process},\
             \"time\":{time}}}"
        ),
        Event::Exec {
            former, time, name, ..
        } => {
            let former = match former {
                former if *former == id => String::new(),
                former => format!(",\"former\":{former}"),
            };
            let name = string(name);
            format!("{{\"kind\":\"exec\",\"task\":{id}{former},\"name\":{name},\"time\":{time}}}")
        }
        Event::Name(name) => {
            let name = string(name);
            format!("{{\"kind\":\"name\",\"task\":{id},\"name\":{name}}}")
        }
        Event::ThreadName(name) => {
            let name = string(name);
            format!("{{\"kind\":\"thread_name\",\"task\":{id},\"name\":{name}}}")
        }
        Event::Signal { time, signal } => {
            let signal = signal_name(signal.cast_signed());
            format!("{{\"kind\":\"signal\",\"task\":{id},\"signal\":\"{signal}\",\"time\":{time}}}")
        }
        Event::End { time, status } => {
            let (name, value) = match status {
                Status::Exited(code) => ("exit", code),
                Status::Killed(signal) => ("signal", signal),
            };
            format!("{{\"kind\":\"end\",\"task\":{id},\"{name}\":{value},\"time\":{time}}}")
        }
        Event::Crash(crash) => {
            let signal = signal_name(crash.signal.cast_signed());
            let rip = crash.registers.get(crate::pipeline::report::RIP).copied();
            format!(
                "{{\"kind\":\"crash\",\"task\":{id},\"signal\":\"{signal}\",\"code\":{},\
                 \"address\":{},\"rip\":{}}}",
                crash.code,
                hex(crash.address),
                hex(rip.unwrap_or_default())
            )
        }
        Event::Standing { syscall, name } => format!(
            "{{\"kind\":\"standing\",\"task\":{id},\"name\":{},\"syscall\":{}}}",
            string(name),
            string(syscall)
        ),
        Event::Lost(n) => format!("{{\"kind\":\"lost\",\"task\":{id},\"at_least\":{n}}}"),
        Event::Untraced {
            id,
            parent,
            time,
            name,
            reason,
        } => format!(
            "{{\"kind\":\"untraced\",\"task\":{id},\"parent\":{parent},\"name\":{},\
             \"reason\":{},\"time\":{time}}}",
            string(name),
            string(reason)
        ),
        Event::AddressSpace { cr3, time } => of_processor(
            id,
            "address_space",
            &format!("\"cr3\":{}", hex(*cr3)),
            *time,
        ),
        Event::Switch {
            id: thread,
            process,
            name,
            time,
        } => {
            let name = string(name);
            let fields = format!("\"id\":{thread},\"process\":{process},\"name\":{name}");
            of_processor(id, "switch", &fields, *time)
        }
        Event::Gap { duration, time } => {
            of_processor(id, "gap", &format!("\"duration\":{duration}"), *time)
        }
        // These have the places of records, or are for reports about kept traces.
        Event::Arrive { .. }
        | Event::Depart { .. }
        | Event::Filtered(_)
        | Event::Invalid
        | Event::Maps { .. }
        | Event::ProcessEnd { .. }
        | Event::KernelCode { .. }
        | Event::KernelFile { .. }
        | Event::Code { .. }
        | Event::BuildId { .. } => return None,
    })
}

/// The line of an event of a processor.
fn of_processor(processor: u32, kind: &str, fields: &str, time: u64) -> String {
    format!("{{\"kind\":\"{kind}\",\"processor\":{processor},{fields},\"time\":{time}}}")
}

impl Format for Json {
    fn branches(
        &mut self,
        task: &Task,
        branches: &[Branch],
        _symbols: &mut Symbolizer,
        out: &mut Vec<u8>,
    ) -> usize {
        self.enter(task.id);
        for Branch { from, to } in branches {
            out.extend_from_slice(b"{\"kind\":\"branch\",\"from\":\"0x");
            push_hex(out, *from);
            out.extend_from_slice(b"\",\"to\":\"0x");
            push_hex(out, *to);
            out.push(b'"');
            out.extend_from_slice(&self.line_end);
        }
        branches.len()
    }

    fn event(&mut self, task: &Task, event: &Event, out: &mut Vec<u8>) {
        let (start, value) = match event {
            Event::Arrive { time } if self.sched => ("arrive\",\"time", time),
            Event::Depart { time } if self.sched => ("depart\",\"time", time),
            Event::Filtered(branches) => ("filtered\",\"branches", branches),
            event => {
                if let Some(line) = line(task, event) {
                    out.extend_from_slice(line.as_bytes());
                    out.push(b'\n');
                }
                return;
            }
        };
        self.enter(task.id);
        out.extend_from_slice(b"{\"kind\":\"");
        out.extend_from_slice(start.as_bytes());
        out.extend_from_slice(b"\":");
        push_decimal(out, *value);
        out.extend_from_slice(&self.line_end);
    }

    fn summary(&mut self, s: &Summary, out: &mut Vec<u8>) {
        use std::io::Write as _;
        // Writing to a `Vec` does not fail.
        let _ = write!(
            out,
            "{{\"kind\":\"summary\",\"records\":{},\"lost\":{}",
            s.records, s.lost
        );
        if let Some(filtered) = s.filtered {
            let _ = write!(out, ",\"filtered\":{filtered}");
        }
        if s.lost_more {
            out.extend_from_slice(b",\"lost_at_least\":true");
        }
        if s.undrained > 0 {
            let _ = write!(out, ",\"undrained_at_most\":{}", s.undrained);
        }
        if s.untraced > 0 {
            let _ = write!(out, ",\"untraced\":{}", s.untraced);
        }
        if s.unordered {
            out.extend_from_slice(b",\"unordered\":true");
        }
        let _ = write!(out, ",\"tasks\":{},\"end\":\"{}\"", s.tasks, s.end.name());
        if let Some(exit) = s.end.exit() {
            let _ = write!(out, ",\"exit\":{exit}");
        }
        if let RunEnd::Program(ExitStatus::Signal(signal)) = s.end {
            let _ = write!(out, ",\"signal\":{signal}");
        }
        let _ = writeln!(out, ",\"accel\":\"{}\"}}", self.accel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::tests::{SAMPLE, format_records, symbols};
    use crate::records::tests::records;
    use crate::task::tests::task;
    use vbts_trace::Crash;

    #[test]
    fn json_is_one_object_a_line() {
        let mut out = Vec::new();
        let mut json = Json::new(Accel::Kvm, true);
        let (first, second) = (task(7, "sh"), task(8, "a\"b"));
        let start = Event::Start {
            id: 7,
            parent: 0,
            process: 1,
            time: 5,
        };
        json.event(&first, &start, &mut out);
        for former in [8, 10] {
            let exec = Event::Exec {
                id: 8,
                former,
                time: 6,
                name: second.name.clone(),
            };
            json.event(&second, &exec, &mut out);
        }
        let (sample, others) = (records(SAMPLE), records(&[[1, 1, 2], [2, 3, 0]]));
        format_records(&mut json, &first, &sample, &mut symbols(), &mut out);
        format_records(&mut json, &second, &others, &mut symbols(), &mut out);
        for (status, time) in [(Status::Exited(3), 9), (Status::Killed(11), 10)] {
            json.event(&second, &Event::End { time, status }, &mut out);
        }
        json.event(&second, &Event::Lost(1), &mut out);
        let standing = Event::Standing {
            syscall: b"running".to_vec(),
            name: b"sh".to_vec(),
        };
        json.event(&first, &standing, &mut out);
        let crash = Crash {
            signal: 11,
            code: 1,
            address: 0x10,
            registers: (0..19).collect(),
            instruction: Vec::new(),
        };
        json.event(&first, &Event::Crash(Box::new(crash)), &mut out);
        let untraced = Event::Untraced {
            id: 9,
            parent: 8,
            time: 4,
            name: b"\xff".to_vec(),
            reason: b"traced by task 8".to_vec(),
        };
        json.event(&Task::default(), &untraced, &mut out);
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                r#"{"kind":"start","task":7,"parent":0,"process":1,"time":5}"#,
                r#"{"kind":"exec","task":8,"name":"/bin/a\"b","time":6}"#,
                r#"{"kind":"exec","task":8,"former":10,"name":"/bin/a\"b","time":6}"#,
                r#"{"kind":"arrive","time":4294937296,"task":7}"#,
                r#"{"kind":"branch","from":"0x401000","to":"0xffff800000000000","task":7}"#,
                r#"{"kind":"depart","time":7,"task":7}"#,
                r#"{"kind":"branch","from":"0x0","to":"0xa","task":7}"#,
                r#"{"kind":"branch","from":"0x1","to":"0x2","task":8}"#,
                r#"{"kind":"arrive","time":3,"task":8}"#,
                r#"{"kind":"end","task":8,"exit":3,"time":9}"#,
                r#"{"kind":"end","task":8,"signal":11,"time":10}"#,
                r#"{"kind":"lost","task":8,"at_least":1}"#,
                r#"{"kind":"standing","task":7,"name":"sh","syscall":"running"}"#,
                r#"{"kind":"crash","task":7,"signal":"SIGSEGV","code":1,"address":"0x10","rip":"0x10"}"#,
                "{\"kind\":\"untraced\",\"task\":9,\"parent\":8,\"name\":\"\u{fffd}\",\"reason\":\"traced by task 8\",\"time\":4}",
            ]
        );
        for line in lines {
            serde_json::from_str::<serde_json::Value>(line).unwrap();
        }
    }

    #[test]
    fn strings_are_printable() {
        let name = "a\n\x1b\x7f\u{9b}\u{202e}\u{2028}\u{e0041}\"\\ö";
        let json = string(name.as_bytes());
        assert!(json.chars().all(is_printable), "{json}");
        assert_eq!(
            json,
            r#""a\n\u001b\u007f\u009b\u202e\u2028\udb40\udc41\"\\ö""#
        );
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), name);
    }

    #[test]
    fn the_summary_says_how_the_run_ended() {
        let line = |end, lost_more| {
            let summary = Summary {
                records: 3,
                lost: 1,
                lost_more,
                untraced: u64::from(lost_more) * 2,
                undrained: u64::from(lost_more) * 10,
                unordered: lost_more,
                tasks: 2,
                end,
                ..Summary::default()
            };
            let mut out = Vec::new();
            Json::new(Accel::Soft, false).summary(&summary, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(
            line(RunEnd::Program(ExitStatus::Code(200)), false),
            "{\"kind\":\"summary\",\"records\":3,\"lost\":1,\"tasks\":2,\"end\":\"exited\",\
             \"exit\":200,\"accel\":\"soft\"}\n"
        );
        assert_eq!(
            line(RunEnd::Timeout, true),
            "{\"kind\":\"summary\",\"records\":3,\"lost\":1,\"lost_at_least\":true,\
             \"undrained_at_most\":10,\"untraced\":2,\"unordered\":true,\"tasks\":2,\
             \"end\":\"timeout\",\"accel\":\"soft\"}\n"
        );
        let killed = line(RunEnd::Program(ExitStatus::Signal(9)), false);
        assert!(
            killed.contains("\"end\":\"signal\",\"exit\":137,\"signal\":9,"),
            "{killed}"
        );
    }
}
