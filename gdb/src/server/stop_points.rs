//! Breakpoints and watchpoints.

use super::session::{Outcome, Session};
use super::text::{Arguments, MALFORMED};
use crate::resumption::{StopPoint, WatchAccess};
use crate::target::{Result, TargetError};

/// Reads `TYPE,ADDRESS,KIND`, of which the kind is the length of a watchpoint.
fn point(mut arguments: Arguments<'_>) -> Result<StopPoint> {
    let kind = arguments.number()?;
    arguments.expect(",")?;
    let address = arguments.number()?;
    arguments.expect(",")?;
    let length = arguments.number()?;
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

/// `Z`.
pub(super) fn add(session: &mut Session<'_>, arguments: Arguments<'_>) -> Result<Outcome> {
    let point = point(arguments)?;
    let process = session.thread()?.process;
    session.target.add_stop_point(process, point)?;
    Outcome::ok()
}

/// `z`.
pub(super) fn remove(session: &mut Session<'_>, arguments: Arguments<'_>) -> Result<Outcome> {
    let point = point(arguments)?;
    let process = session.thread()?.process;
    session.target.remove_stop_point(process, point)?;
    Outcome::ok()
}
