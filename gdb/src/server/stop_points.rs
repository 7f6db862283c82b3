//! Breakpoints and watchpoints.

use super::register_file::{Row, rows};
use super::session::{Outcome, Session};
use super::text::{Arguments, MALFORMED, from_hex};
use crate::condition::Condition;
use crate::resumption::{StopPoint, WatchAccess};
use crate::target::{Capabilities, Result, TargetError};

/// Reads `TYPE,ADDRESS,KIND`, of which the kind is the length of a watchpoint.
fn point(mut arguments: Arguments<'_>) -> Result<StopPoint> {
    let kind = arguments.number()?;
    arguments.expect(",")?;
    let address = arguments.number()?;
    arguments.expect(",")?;
    let length = arguments.number()?;
    arguments.end()?;
    let watchpoint = |access| {
        if length == 0 || address.checked_add(length - 1).is_none() {
            Err(MALFORMED)
        } else {
            Ok(StopPoint::Watchpoint {
                address,
                length,
                access,
            })
        }
    };
    match kind {
        0 => Ok(StopPoint::Breakpoint { address }),
        1 => Ok(StopPoint::HardwareBreakpoint { address }),
        2 => watchpoint(WatchAccess::Write),
        3 => watchpoint(WatchAccess::Read),
        4 => watchpoint(WatchAccess::ReadWrite),
        _ => Err(TargetError::Unsupported),
    }
}

/// Conditions of a breakpoint, at most.
const MAX_CONDITIONS: usize = 256;

/// Reads `;X` and the length and code of each condition.
fn conditions(text: &[u8], rows: &[Row]) -> Result<Vec<Condition>> {
    let mut conditions = Vec::new();
    let mut text = Arguments(text);
    while !text.is_empty() {
        // GDB separates the list from the packet alone.
        text.skip(";");
        text.expect("X")?;
        let digits = usize::try_from(text.number()?)
            .ok()
            .and_then(|length| length.checked_mul(2));
        text.expect(",")?;
        let (code, rest) = digits
            .and_then(|digits| text.0.split_at_checked(digits))
            .ok_or(MALFORMED)?;
        text.0 = rest;
        if conditions.len() == MAX_CONDITIONS {
            return Err(MALFORMED);
        }
        conditions.push(Condition::new(&from_hex(code)?, rows)?);
    }
    Ok(conditions)
}

/// `Z`.
pub(super) fn add(session: &mut Session<'_>, mut arguments: Arguments<'_>) -> Result<Outcome> {
    let point = point(Arguments(arguments.until(b';')))?;
    let thread = session.thread()?;
    let address = match point {
        StopPoint::Breakpoint { address } | StopPoint::HardwareBreakpoint { address } => {
            Some(address)
        }
        StopPoint::Watchpoint { .. } => None,
    };
    if let Some(address) = address.filter(|_| session.require(Capabilities::CONDITIONS).is_ok()) {
        let rows = rows(session.layout(thread)?);
        let conditions = conditions(arguments.0, &rows)?;
        session
            .target
            .set_conditions(thread.process, address, conditions)?;
    } else if !arguments.is_empty() {
        return Err(MALFORMED);
    }
    session.target.add_stop_point(thread.process, point)?;
    Outcome::ok()
}

/// `z`.
pub(super) fn remove(session: &mut Session<'_>, arguments: Arguments<'_>) -> Result<Outcome> {
    let point = point(arguments)?;
    let process = session.thread()?.process;
    session.target.remove_stop_point(process, point)?;
    Outcome::ok()
}
