//! The stop points of the client for the processors, and what a stop at one of them is for it.

use vbts_cpu::{Breakpoint, StopCause, StopPoints, WatchKind, Watchpoint};
use vbts_gdb::{Stop, StopPoint, StopReason, ThreadId, WatchAccess};

use crate::debugger::Debugger;
use crate::logged::is_kernel;

impl Debugger {
    /// The stop points of the user, for the processors.
    pub(crate) fn stop_points(&self, with_user_mode: bool) -> StopPoints {
        let space = match self.is_kernel_view {
            true => None,
            false => match self.space() {
                Some(space) => Some(space),
                None => return StopPoints::default(),
            },
        };
        let mut points = StopPoints {
            user_mode_of: space.filter(|_| with_user_mode),
            breakpoints: space.map_or_else(Vec::new, |space| self.call_breakpoints(space)),
            ..StopPoints::default()
        };
        for point in self.points.iter() {
            match *point {
                StopPoint::Breakpoint { address } | StopPoint::HardwareBreakpoint { address } => {
                    points.breakpoints.push(Breakpoint { address, space });
                }
                StopPoint::Watchpoint {
                    address,
                    length,
                    access,
                } => points.watchpoints.push(Watchpoint {
                    address,
                    len: length,
                    kind: match self.writes_alone {
                        true if access == WatchAccess::ReadWrite => WatchKind::Write,
                        _ => kind(access),
                    },
                    space,
                }),
            }
        }
        points
    }

    /// The stop for `causes`, unless another process has caused them, or a thread that the client
    /// has not resumed.
    pub(crate) fn stop_for(&self, causes: &[StopCause]) -> Option<Stop> {
        let thread = self.current_thread()?;
        if thread.process != self.process || self.stopped_threads.contains(&thread) {
            return None;
        }
        let mut causes = causes.iter().filter(|cause| self.holds(thread, cause));
        let reason = causes.find_map(|cause| self.reason(cause))?;
        Some(Stop { thread, reason })
    }

    /// Returns whether a condition of the breakpoint that has caused a stop holds, or it has none.
    fn holds(&self, thread: ThreadId, cause: &StopCause) -> bool {
        let StopCause::Breakpoint { address } = cause else {
            return true;
        };
        let Some(conditions) = self.points.conditions_at(*address) else {
            return true;
        };
        let Some(registers) = self.registers_of(thread) else {
            return true;
        };
        let mut read = |address, bytes: &mut [u8]| {
            let len = bytes.len();
            self.read_as(thread, address, bytes) == len
        };
        conditions
            .iter()
            .any(|condition| condition.holds(&registers, &mut read))
    }

    fn reason(&self, cause: &StopCause) -> Option<StopReason> {
        match *cause {
            StopCause::Breakpoint { address } if !self.is_kernel_view && is_kernel(address) => {
                self.caught_call(address)
            }
            StopCause::Breakpoint { address } => {
                let is_hardware = self
                    .points
                    .contains(StopPoint::HardwareBreakpoint { address });
                Some(match is_hardware {
                    true => StopReason::HardwareBreakpoint,
                    false => StopReason::Breakpoint,
                })
            }
            StopCause::Watchpoint { watchpoint, .. } => Some(StopReason::Watchpoint {
                access: match watchpoint.kind {
                    WatchKind::Write if self.writes_alone => WatchAccess::ReadWrite,
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
