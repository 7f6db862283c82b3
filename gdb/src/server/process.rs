//! Processes: files, vectors, their end and a new start.

use super::objects::UNKNOWN_ANNEX;
use super::session::{Outcome, Session};
use super::stop_reply;
use super::text::{Arguments, MALFORMED, from_hex, push_hex};
use crate::registers::RegisterLayout;
use crate::stop::Stop;
use crate::target::Result;

/// `!`: the client uses the extended protocol: the session goes on after the last process.
pub(super) fn extended(_: &mut Session<'_>, _: Arguments<'_>) -> Result<Outcome> {
    Outcome::ok()
}

/// `D`, `D;PROCESS`: detaches.
pub(super) fn detach(session: &mut Session<'_>, mut arguments: Arguments<'_>) -> Result<Outcome> {
    session.generation += 1;
    if arguments.is_empty() {
        session.target.detach(None)?;
        return Ok(Outcome::Detached);
    }
    arguments.expect(";")?;
    let process = arguments.number32()?;
    arguments.end()?;
    session.target.detach(Some(process))?;
    if session.target.threads()?.is_empty() {
        Ok(Outcome::Detached)
    } else {
        Outcome::ok()
    }
}

/// `k`: kills everything.
pub(super) fn kill(session: &mut Session<'_>, _: Arguments<'_>) -> Result<Outcome> {
    session.target.kill(None)?;
    Ok(Outcome::Killed)
}

/// `vKill`: kills a process.
pub(super) fn kill_one(session: &mut Session<'_>, mut arguments: Arguments<'_>) -> Result<Outcome> {
    let process = arguments.number32()?;
    arguments.end()?;
    session.target.kill(Some(process))?;
    session.generation += 1;
    Outcome::ok()
}

/// `vAttach`: debugs a further process.
pub(super) fn attach(session: &mut Session<'_>, mut arguments: Arguments<'_>) -> Result<Outcome> {
    let process = arguments.number32()?;
    arguments.end()?;
    let stop = session.target.attach(process)?;
    report(session, stop)
}

/// `vRun;FILE;ARGUMENT…`: starts again. The file is always the recorded one.
pub(super) fn run(session: &mut Session<'_>, mut arguments: Arguments<'_>) -> Result<Outcome> {
    from_hex(arguments.until(b';'))?;
    let mut words = Vec::new();
    while !arguments.is_empty() {
        words.push(from_hex(arguments.until(b';'))?);
    }
    let stop = session.target.restart(&words)?;
    report(session, stop)
}

/// `R`: starts again, without a reply in the protocol. GDB sends it if there is no `vRun`.
pub(super) fn restart(session: &mut Session<'_>, _: Arguments<'_>) -> Result<Outcome> {
    let stop = session.target.restart(&[])?;
    report(session, stop)
}

fn report(session: &mut Session<'_>, stop: Stop) -> Result<Outcome> {
    session.stopped(stop);
    Ok(Outcome::Reply(stop_reply::reply(session)?))
}

/// `qOffsets`.
pub(super) fn offsets(session: &mut Session<'_>, _: Arguments<'_>) -> Result<Outcome> {
    let offset = session.target.relocation()?;
    Ok(format!("Text={offset:x};Data={offset:x};Bss={offset:x}").into())
}

/// `qHostInfo`, by which LLDB learns the system that programs run on, which GDB has from the target
/// description.
pub(super) fn host(session: &mut Session<'_>, _: Arguments<'_>) -> Result<Outcome> {
    let thread = session.thread()?;
    let layout = session.layout(thread)?;
    Ok(system(layout).into())
}

/// `qProcessInfo`, the same for a process.
pub(super) fn information(session: &mut Session<'_>, _: Arguments<'_>) -> Result<Outcome> {
    let thread = session.thread()?;
    let layout = session.layout(thread)?;
    let ostype = if layout.is_linux { "ostype:linux;" } else { "" };
    Ok(format!("pid:{:x};{}{ostype}", thread.process, system(layout)).into())
}

fn system(layout: RegisterLayout) -> String {
    let (processor, size) = if layout.is_32_bit {
        ("i386", 4)
    } else {
        ("x86_64", 8)
    };
    let system = if layout.is_linux {
        "pc-linux-gnu"
    } else {
        "unknown-unknown"
    };
    let mut triple = Vec::new();
    push_hex(&mut triple, format!("{processor}-{system}").as_bytes());
    // Digits are ASCII.
    format!(
        "triple:{};ptrsize:{size};endian:little;",
        String::from_utf8_lossy(&triple)
    )
}

/// The object `auxv`.
pub(super) fn auxiliary_vector(session: &mut Session<'_>, annex: &[u8]) -> Result<Vec<u8>> {
    if !annex.is_empty() {
        return Err(UNKNOWN_ANNEX);
    }
    let process = session.thread()?.process;
    session.target.auxiliary_vector(process)
}

/// The object `exec-file`: the annex is the number of a process.
pub(super) fn executable(session: &mut Session<'_>, annex: &[u8]) -> Result<Vec<u8>> {
    let process = if annex.is_empty() {
        session.thread()?.process
    } else {
        let mut annex = Arguments(annex);
        let process = annex.number32()?;
        annex.end()?;
        process
    };
    session.target.executable(process)
}

/// The object `siginfo`.
pub(super) fn signal_information(session: &mut Session<'_>, annex: &[u8]) -> Result<Vec<u8>> {
    if !annex.is_empty() {
        return Err(MALFORMED);
    }
    let thread = session.thread()?;
    session.target.signal_information(thread)
}
