//! Execution: what the client resumes, and the wait for the next stop.

use std::io;

use super::packet::{Attention, Connection, Packets};
use super::session::{Outcome, Session, SessionError};
use super::signals::from_gdb;
use super::text::{Arguments, MALFORMED, ThreadSelector, push_hex};
use super::{packet, session, stop_reply};
use crate::resumption::{Direction, Resumption, ThreadAction};
use crate::stop::{Stop, StopReason};
use crate::target::{Capabilities, Result, TargetError, ThreadId};

/// Actions of one packet.
const MAX_ACTIONS: usize = 4096;

/// `?`.
pub(super) fn last_stop(session: &mut Session<'_>, _: Arguments<'_>) -> Result<Outcome> {
    let stop = session.target.current_stop()?;
    session.stop = stop;
    session.select_stopped();
    Ok(Outcome::Reply(stop_reply::reply(session)?))
}

/// `vCont?`.
pub(super) fn actions(_: &mut Session<'_>, _: Arguments<'_>) -> Result<Outcome> {
    Ok(Outcome::Reply(b"vCont;c;C;s;S;t;r".to_vec()))
}

/// `vCont;ACTION[:THREAD]…`: each thread does the first action that is for it.
pub(super) fn continue_by_thread(
    session: &mut Session<'_>,
    mut arguments: Arguments<'_>,
) -> Result<Outcome> {
    let mut actions = Vec::new();
    while !arguments.is_empty() {
        let mut item = Arguments(arguments.until(b';'));
        let action = action(&mut item)?;
        let selector = if item.skip(":") {
            item.threads()?
        } else {
            ThreadSelector::All
        };
        item.end()?;
        if actions.len() == MAX_ACTIONS {
            return Err(MALFORMED);
        }
        actions.push((selector, action));
    }
    let threads = session.target.threads()?.into_iter().filter_map(|thread| {
        let mut matching = actions
            .iter()
            .filter(|(selector, _)| selector.matches(thread.id));
        matching.next()?.1.clone().map(|action| (thread.id, action))
    });
    let threads = threads.collect();
    Ok(Outcome::Resume(Resumption {
        direction: Direction::Forward,
        threads,
    }))
}

/// Reads an action of `vCont`. `None` leaves the thread where it is.
fn action(item: &mut Arguments<'_>) -> Result<Option<ThreadAction>> {
    let (name, rest) = item.0.split_first().ok_or(MALFORMED)?;
    item.0 = rest;
    Ok(Some(match name {
        b'c' => ThreadAction::Continue { signal: 0 },
        b's' => ThreadAction::Step { signal: 0 },
        b'C' => ThreadAction::Continue {
            signal: signal(item)?,
        },
        b'S' => ThreadAction::Step {
            signal: signal(item)?,
        },
        b'r' => {
            let start = item.number()?;
            item.expect(",")?;
            ThreadAction::StepRange(start..item.number()?)
        }
        b't' => return Ok(None),
        _ => return Err(MALFORMED),
    }))
}

/// Reads GDB's number of a signal and returns Linux's, or 0 for one that Linux does not have.
fn signal(item: &mut Arguments<'_>) -> Result<u8> {
    let number = u8::try_from(item.number()?).map_err(|_| MALFORMED)?;
    Ok(from_gdb(number).unwrap_or(0))
}

pub(super) fn continue_all(session: &mut Session<'_>, _: Arguments<'_>) -> Result<Outcome> {
    resume(
        session,
        Direction::Forward,
        ThreadAction::Continue { signal: 0 },
    )
}

pub(super) fn step(session: &mut Session<'_>, _: Arguments<'_>) -> Result<Outcome> {
    resume(
        session,
        Direction::Forward,
        ThreadAction::Step { signal: 0 },
    )
}

pub(super) fn continue_with_signal(
    session: &mut Session<'_>,
    mut arguments: Arguments<'_>,
) -> Result<Outcome> {
    let signal = signal(&mut arguments)?;
    arguments.end()?;
    resume(
        session,
        Direction::Forward,
        ThreadAction::Continue { signal },
    )
}

pub(super) fn step_with_signal(
    session: &mut Session<'_>,
    mut arguments: Arguments<'_>,
) -> Result<Outcome> {
    let signal = signal(&mut arguments)?;
    arguments.end()?;
    resume(session, Direction::Forward, ThreadAction::Step { signal })
}

pub(super) fn backward_continue(session: &mut Session<'_>, _: Arguments<'_>) -> Result<Outcome> {
    session.require(Capabilities::REVERSE)?;
    resume(
        session,
        Direction::Backward,
        ThreadAction::Continue { signal: 0 },
    )
}

pub(super) fn backward_step(session: &mut Session<'_>, _: Arguments<'_>) -> Result<Outcome> {
    session.require(Capabilities::REVERSE)?;
    resume(
        session,
        Direction::Backward,
        ThreadAction::Step { signal: 0 },
    )
}

/// Resumes by a packet that is for the threads that `Hc` has selected. A step, or a signal, is for
/// one thread: the one that was selected, or that has stopped.
fn resume(
    session: &mut Session<'_>,
    direction: Direction,
    action: ThreadAction,
) -> Result<Outcome> {
    let selector = session.resumed;
    let first = match selector {
        ThreadSelector::All | ThreadSelector::Any => session.stop.thread,
        selector => session.find_thread(selector)?,
    };
    let threads = session.target.threads()?.into_iter().filter_map(|thread| {
        if thread.id == first {
            Some((first, action.clone()))
        } else if selector.matches(thread.id) {
            Some((thread.id, ThreadAction::Continue { signal: 0 }))
        } else {
            None
        }
    });
    Ok(Outcome::Resume(Resumption {
        direction,
        threads: threads.collect(),
    }))
}

/// Executes until a stop and reports it. Returns `false` if the client has left.
pub(super) fn run<C: Connection>(
    session: &mut Session<'_>,
    packets: &mut Packets<C>,
    resumption: &Resumption,
) -> std::result::Result<bool, SessionError> {
    session.generation += 1;
    let reply = match wait(session, packets, resumption) {
        Ok(Some(stop)) => {
            session.stopped(stop);
            stop_reply::reply(session).map_err(Failure::Target)
        }
        Ok(None) => return Ok(false),
        Err(failure) => Err(failure),
    };
    match reply {
        Ok(reply) => packets.send(&reply)?,
        Err(Failure::Io(error)) => return Err(error.into()),
        Err(Failure::Target(TargetError::Fatal(reason))) => {
            // The client sees the end of the connection, and the reason just before.
            send_console(packets, format!("{reason}\n").as_bytes())?;
            return Err(SessionError::Target(reason));
        }
        Err(Failure::Target(error)) => packets.send(&session::error_reply(&error))?,
    }
    Ok(true)
}

enum Failure {
    Io(io::Error),
    Target(TargetError),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<TargetError> for Failure {
    fn from(error: TargetError) -> Self {
        Self::Target(error)
    }
}

/// Executes until a stop that the client can be told of. `None`: the client has left.
fn wait<C: Connection>(
    session: &mut Session<'_>,
    packets: &mut Packets<C>,
    resumption: &Resumption,
) -> std::result::Result<Option<Stop>, Failure> {
    session.target.resume(resumption)?;
    loop {
        let mut console = Vec::new();
        let stop = session.target.run(&mut console);
        send_console(packets, &console)?;
        let stop = match stop {
            Err(error @ TargetError::Fatal(_)) => return Err(error.into()),
            Err(error) => {
                send_console(packets, format!("{error}\n").as_bytes())?;
                Some(session.target.interrupt()?)
            }
            Ok(Some(stop)) => Some(stop),
            Ok(None) => match packets.attention()? {
                Attention::None => None,
                Attention::Interrupt => Some(session.target.interrupt()?),
                Attention::Closed => {
                    session.target.interrupt()?;
                    return Ok(None);
                }
            },
        };
        let Some(stop) = stop else { continue };
        if stop_reply::is_reportable(session.client, &stop.reason) {
            return Ok(Some(stop));
        }
        if let StopReason::Fork { child } | StopReason::Vfork { child } = stop.reason {
            leave(session, child)?;
        }
        session.target.resume(resumption)?;
    }
}

/// Detaches the child of a fork, of which the client cannot be told.
fn leave(session: &mut Session<'_>, child: ThreadId) -> Result<()> {
    session.target.detach(Some(child.process))
}

/// Sends text for the terminal.
pub(super) fn send_console<C: Connection>(packets: &mut Packets<C>, text: &[u8]) -> io::Result<()> {
    for part in text.chunks((packet::MAX_PACKET - 1) / 2) {
        let mut output = vec![b'O'];
        push_hex(&mut output, part);
        packets.send(&output)?;
    }
    Ok(())
}
