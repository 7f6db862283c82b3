//! Threads: lists, names, and the selection of one.

use std::fmt::Write;

use super::objects;
use super::session::{NO_SUCH_THREAD, Outcome, Session};
use super::text::{Arguments, MALFORMED, ThreadSelector, push_hex, xml};
use crate::target::{Result, ThreadId, ThreadInfo};

/// Thread ids in one packet of a list.
const LISTED_AT_ONCE: usize = 1000;

/// The rest of a list of threads that the client reads in several packets.
#[derive(Debug, Default)]
pub(super) struct Listing(Vec<ThreadId>);

impl Session<'_> {
    /// Returns the text of a thread id as the client understands it.
    pub(super) fn thread_id(&self, id: ThreadId) -> String {
        if self.client.multiprocess {
            format!("p{:x}.{:x}", id.process, id.thread)
        } else {
            format!("{:x}", id.thread)
        }
    }
}

fn find(session: &mut Session<'_>, selector: ThreadSelector) -> Result<ThreadInfo> {
    let mut threads = session.target.threads()?.into_iter();
    threads
        .find(|thread| selector.matches(thread.id))
        .ok_or(NO_SUCH_THREAD)
}

/// `H`: selects threads for later packets.
pub(super) fn select(session: &mut Session<'_>, mut arguments: Arguments<'_>) -> Result<Outcome> {
    let for_registers = arguments.skip("g");
    if !for_registers {
        arguments.expect("c")?;
    }
    let selector = arguments.threads()?;
    arguments.end()?;
    if let ThreadSelector::Process(_) | ThreadSelector::Thread(..) = selector {
        find(session, selector)?;
    }
    match (for_registers, selector) {
        // GDB selects any thread if it has none, and means the one that has stopped.
        (true, ThreadSelector::Any | ThreadSelector::All) => session.select_stopped(),
        (true, _) => session.general = selector,
        (false, _) => session.resumed = selector,
    }
    Outcome::ok()
}

/// `T`: whether a thread exists.
pub(super) fn is_alive(session: &mut Session<'_>, mut arguments: Arguments<'_>) -> Result<Outcome> {
    let selector = arguments.threads()?;
    arguments.end()?;
    find(session, selector)?;
    Outcome::ok()
}

/// `qC`: the current thread.
pub(super) fn current(session: &mut Session<'_>, _: Arguments<'_>) -> Result<Outcome> {
    let thread = session.thread()?;
    Ok(format!("QC{}", session.thread_id(thread)).into())
}

/// `qfThreadInfo`: the first threads.
pub(super) fn list_first(session: &mut Session<'_>, _: Arguments<'_>) -> Result<Outcome> {
    let threads = session.target.threads()?;
    session.thread_list.0 = threads.into_iter().map(|thread| thread.id).rev().collect();
    list_next(session, Arguments(b""))
}

/// `qsThreadInfo`: further threads.
pub(super) fn list_next(session: &mut Session<'_>, _: Arguments<'_>) -> Result<Outcome> {
    let list = &mut session.thread_list.0;
    let mut next = list.split_off(list.len().saturating_sub(LISTED_AT_ONCE));
    next.reverse();
    if next.is_empty() {
        return Ok(Outcome::Reply(b"l".to_vec()));
    }
    let ids: Vec<String> = next.into_iter().map(|id| session.thread_id(id)).collect();
    Ok(format!("m{}", ids.join(",")).into())
}

/// `qThreadExtraInfo`: name and state of a thread, for clients that read no XML.
pub(super) fn extra(session: &mut Session<'_>, mut arguments: Arguments<'_>) -> Result<Outcome> {
    let selector = arguments.threads()?;
    arguments.end()?;
    let thread = find(session, selector)?;
    let mut text = thread.name.clone();
    if !text.is_empty() && !thread.state.is_empty() {
        text.push_str(": ");
    }
    text.push_str(&thread.state);
    let mut reply = Vec::new();
    push_hex(&mut reply, text.as_bytes());
    Ok(Outcome::Reply(reply))
}

/// The object `threads`.
pub(super) fn threads_xml(session: &mut Session<'_>, annex: &[u8]) -> Result<Vec<u8>> {
    if !annex.is_empty() {
        return Err(MALFORMED);
    }
    let mut document = String::from("<?xml version=\"1.0\"?>\n<threads>\n");
    for ThreadInfo {
        id,
        name,
        processor,
        state,
    } in session.target.threads()?
    {
        // Writing to a string does not fail.
        let _ = write!(document, "<thread id=\"{}\"", session.thread_id(id));
        if let Some(processor) = processor {
            let _ = write!(document, " core=\"{processor}\"");
        }
        if !name.is_empty() {
            let _ = write!(document, " name=\"{}\"", xml(&name));
        }
        let _ = writeln!(document, ">{}</thread>", xml(&state));
    }
    document.push_str("</threads>\n");
    Ok(document.into_bytes())
}

/// The object `osdata`: `info os` and `info os processes`.
pub(super) fn os_data(session: &mut Session<'_>, annex: &[u8]) -> Result<Vec<u8>> {
    match annex {
        b"" | b"types" => Ok(os_table(
            "types",
            &[&[
                ("Type", "processes"),
                ("Description", "Listing of all processes"),
            ]],
        )),
        b"processes" => {
            let processes = session.target.processes()?;
            let texts: Vec<[String; 4]> = processes
                .into_iter()
                .map(|process| {
                    let processors: Vec<String> =
                        process.processors.iter().map(u32::to_string).collect();
                    let number = process.process.to_string();
                    [number, process.user, process.command, processors.join(",")]
                })
                .collect();
            let rows: Vec<[(&str, &str); 4]> = texts
                .iter()
                .map(|[number, user, command, cores]| {
                    [
                        ("pid", &**number),
                        ("user", user),
                        ("command", command),
                        ("cores", cores),
                    ]
                })
                .collect();
            let rows: Vec<&[(&str, &str)]> = rows.iter().map(|row| &row[..]).collect();
            Ok(os_table("processes", &rows))
        }
        _ => Err(objects::UNKNOWN_ANNEX),
    }
}

fn os_table(kind: &str, rows: &[&[(&str, &str)]]) -> Vec<u8> {
    let mut document = format!(
        "<?xml version=\"1.0\"?>\n<!DOCTYPE osdata SYSTEM \"osdata.dtd\">\n\
         <osdata type=\"{kind}\">\n"
    );
    for row in rows {
        document.push_str("<item>\n");
        for (name, value) in *row {
            let _ = writeln!(document, "<column name=\"{name}\">{}</column>", xml(value));
        }
        document.push_str("</item>\n");
    }
    document.push_str("</osdata>\n");
    document.into_bytes()
}
