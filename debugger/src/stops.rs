//! The stop points of the client, and what a stop at one of them is for it.

use vbts_cpu::{Breakpoint, StopCause, StopPoints, WatchKind, Watchpoint};
use vbts_gdb::{Stop, StopPoint, StopReason, WatchAccess};

use crate::debugger::Debugger;

impl Debugger {
    /// The stop points of the user, for the processors.
    pub(crate) fn stop_points(&self, with_user_mode: bool) -> StopPoints {
        let Some(space) = self.space() else {
            return StopPoints::default();
        };
        let mut points = StopPoints {
            user_mode_of: with_user_mode.then_some(space),
            ..StopPoints::default()
        };
        for point in &self.points {
            match *point {
                StopPoint::Breakpoint { address } | StopPoint::HardwareBreakpoint { address } => {
                    points.breakpoints.push(Breakpoint {
                        address,
                        space: Some(space),
                    });
                }
                StopPoint::Watchpoint {
                    address,
                    length,
                    access,
                } => points.watchpoints.push(Watchpoint {
                    address,
                    len: length,
                    kind: kind(access),
                    space: Some(space),
                }),
            }
        }
        points
    }

    /// The stop for `causes`, unless another process has caused them, or a thread that the client
    /// has not resumed.
    pub(crate) fn stop_for(&self, causes: &[StopCause]) -> Option<Stop> {
        let tasks = self.replay.tasks()?;
        let thread = tasks.current().and_then(|task| tasks.id(task))?;
        if thread.process != self.process || self.stopped_threads.contains(&thread) {
            return None;
        }
        let mut causes = causes.iter().filter(|cause| self.holds(cause));
        let reason = causes.find_map(|cause| self.reason(cause))?;
        Some(Stop { thread, reason })
    }

    /// Returns whether a condition of the breakpoint that has caused a stop holds, or it has none.
    fn holds(&self, cause: &StopCause) -> bool {
        let StopCause::Breakpoint { address } = cause else {
            return true;
        };
        let Some(conditions) = self.conditions.get(address) else {
            return true;
        };
        let (Some(tasks), Some(space)) = (self.replay.tasks(), self.space()) else {
            return true;
        };
        let current = tasks.current();
        let Some(registers) = current.and_then(|task| tasks.registers(task)) else {
            return true;
        };
        let mut read = |address, bytes: &mut [u8]| {
            let len = bytes.len();
            tasks.read(space, address, bytes) == len
        };
        conditions
            .iter()
            .any(|condition| condition.holds(&registers, &mut read))
    }

    fn reason(&self, cause: &StopCause) -> Option<StopReason> {
        match *cause {
            StopCause::Breakpoint { address } => {
                let is_hardware = self
                    .points
                    .contains(&StopPoint::HardwareBreakpoint { address });
                Some(match is_hardware {
                    true => StopReason::HardwareBreakpoint,
                    false => StopReason::Breakpoint,
                })
            }
            StopCause::Watchpoint { watchpoint, .. } => Some(StopReason::Watchpoint {
                access: match watchpoint.kind {
                    WatchKind::Write => WatchAccess::Write,
                    WatchKind::Read => WatchAccess::Read,
                    WatchKind::Access => WatchAccess::ReadWrite,
                },
                address: watchpoint.address,
            }),
            StopCause::EntersUserMode | StopCause::LeavesUserMode => None,
        }
    }
}

fn kind(access: WatchAccess) -> WatchKind {
    match access {
        WatchAccess::Write => WatchKind::Write,
        WatchAccess::Read => WatchKind::Read,
        WatchAccess::ReadWrite => WatchKind::Access,
    }
}
