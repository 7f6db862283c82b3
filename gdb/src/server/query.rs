//! Queries and settings: the packets that begin with `q` or `Q`.

use std::fmt::Write;

use super::objects::OBJECTS;
use super::session::{Match, Outcome, Session};
use super::text::{Arguments, MALFORMED, from_hex};
use super::{branch_trace, memory, objects, packet, process, signals, thread_local, threads};
use crate::resumption::SyscallFilter;
use crate::target::{Capabilities, Result, TargetError};
use Match::{Begin, Whole};

type Handler = fn(&mut Session<'_>, Arguments<'_>) -> Result<Outcome>;

/// The queries and settings. The first match counts.
pub(super) const PACKETS: &[(Match, &str, Handler)] = &[
    (Begin, "qSupported", supported),
    (Whole, "QStartNoAckMode", |_, _| {
        Ok(Outcome::StopAcknowledging)
    }),
    (Begin, "qXfer:", objects::read),
    (Whole, "qC", threads::current),
    (Begin, "qCRC:", memory::checksum),
    (Begin, "qSearch:memory:", memory::search),
    (Whole, "qfThreadInfo", threads::list_first),
    (Whole, "qsThreadInfo", threads::list_next),
    (Begin, "qThreadExtraInfo,", threads::extra),
    // The processes exist whether or not a client is there: it detaches from them at its end.
    (Begin, "qAttached", |_, _| Ok(Outcome::Reply(b"1".to_vec()))),
    (Whole, "qOffsets", process::offsets),
    (Begin, "qRcmd,", monitor),
    (Begin, "qGetTLSAddr:", thread_local::address),
    (Begin, "Qbtrace:", branch_trace::enable),
    (Begin, "Qbtrace-conf:bts:size=", branch_trace::set_size),
    (Begin, "QCatchSyscalls:", catch_syscalls),
    (Begin, "QPassSignals:", pass_signals),
    (Begin, "QThreadEvents:", report_threads),
];

/// Packets that are announced if the target has a capability.
const ANNOUNCED: &[(Capabilities, &str)] = &[
    (Capabilities::REVERSE, "ReverseContinue+;ReverseStep+"),
    (
        Capabilities::BRANCH_TRACE,
        "Qbtrace:bts+;Qbtrace:off+;Qbtrace-conf:bts:size+",
    ),
    (Capabilities::CATCH_SYSCALLS, "QCatchSyscalls+"),
    (Capabilities::PASS_SIGNALS, "QPassSignals+"),
    (Capabilities::THREAD_EVENTS, "QThreadEvents+"),
    (
        Capabilities::PROCESS_EVENTS,
        "fork-events+;vfork-events+;exec-events+",
    ),
    (Capabilities::CONDITIONS, "ConditionalBreakpoints+"),
];

fn supported(session: &mut Session<'_>, mut arguments: Arguments<'_>) -> Result<Outcome> {
    arguments.skip(":");
    while !arguments.is_empty() {
        let client = &mut session.client;
        match arguments.until(b';') {
            b"multiprocess+" => client.multiprocess = true,
            b"swbreak+" => client.software_breakpoints = true,
            b"hwbreak+" => client.hardware_breakpoints = true,
            b"fork-events+" => client.fork_events = true,
            b"vfork-events+" => client.vfork_events = true,
            b"exec-events+" => client.exec_events = true,
            b"no-resumed+" => client.no_resumed = true,
            _ => {}
        }
    }
    let mut reply = format!(
        "PacketSize={:x};QStartNoAckMode+;multiprocess+;swbreak+;hwbreak+;vContSupported+;\
         no-resumed+;binary-upload+",
        packet::MAX_PACKET
    );
    let announced = ANNOUNCED
        .iter()
        .filter(|row| session.capabilities.contains(row.0));
    for (_, packets) in announced {
        reply.push(';');
        reply.push_str(packets);
    }
    let readable = OBJECTS
        .iter()
        .filter(|row| session.capabilities.contains(row.1));
    for (object, ..) in readable {
        // Writing to a string does not fail.
        let _ = write!(reply, ";qXfer:{object}:read+");
    }
    Ok(reply.into())
}

/// `monitor COMMAND`.
fn monitor(session: &mut Session<'_>, arguments: Arguments<'_>) -> Result<Outcome> {
    let command = String::from_utf8(from_hex(arguments.0)?).map_err(|_| MALFORMED)?;
    let thread = session.thread().unwrap_or(session.stop.thread);
    let mut output = Vec::new();
    let result = session.target.monitor(thread, &command, &mut output);
    // The command may have moved the target to another time.
    session.generation += 1;
    match result {
        // GDB shows the text of an error for other packets only.
        Err(error @ (TargetError::Refused(_) | TargetError::Errno(_))) => {
            output.extend(format!("{error}\n").into_bytes());
        }
        result => result?,
    }
    Ok(Outcome::Output(output))
}

fn catch_syscalls(session: &mut Session<'_>, mut arguments: Arguments<'_>) -> Result<Outcome> {
    session.require(Capabilities::CATCH_SYSCALLS)?;
    let process = session.thread()?.process;
    let filter = match arguments.until(b';') {
        b"0" if arguments.is_empty() => SyscallFilter::None,
        b"1" if arguments.is_empty() => SyscallFilter::All,
        b"1" => {
            let mut numbers = hex_list(arguments)?;
            numbers.sort_unstable();
            numbers.dedup();
            SyscallFilter::Numbers(numbers)
        }
        _ => return Err(MALFORMED),
    };
    session.target.catch_syscalls(process, filter)?;
    Outcome::ok()
}

fn pass_signals(session: &mut Session<'_>, arguments: Arguments<'_>) -> Result<Outcome> {
    session.require(Capabilities::PASS_SIGNALS)?;
    let passed = hex_list(arguments)?
        .into_iter()
        .filter_map(|signal| signals::from_gdb(signal.try_into().ok()?))
        .filter(|&signal| signal != 0)
        .fold(0, |passed, signal| passed | 1 << (signal - 1));
    session.target.pass_signals(passed)?;
    Outcome::ok()
}

fn report_threads(session: &mut Session<'_>, arguments: Arguments<'_>) -> Result<Outcome> {
    session.require(Capabilities::THREAD_EVENTS)?;
    let report = match arguments.0 {
        b"0" => false,
        b"1" => true,
        _ => return Err(MALFORMED),
    };
    session.target.report_threads(report)?;
    Outcome::ok()
}

/// Reads numbers with `;` between them.
fn hex_list(mut arguments: Arguments<'_>) -> Result<Vec<u32>> {
    let mut numbers = Vec::new();
    while !arguments.is_empty() {
        let mut number = Arguments(arguments.until(b';'));
        numbers.push(number.number32()?);
        number.end()?;
    }
    Ok(numbers)
}
