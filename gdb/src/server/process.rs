//! Processes: files, vectors, their end and a new start.

use super::objects::UNKNOWN_ANNEX;
use super::session::{Outcome, Session};
use super::stop_reply;
use super::text::{Arguments, MALFORMED, from_hex};
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
