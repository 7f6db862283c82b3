//! The stop points that the client sets in a process, with the conditions of its breakpoints.

use std::collections::BTreeMap;

use vbts_gdb::{Condition, Result, StopPoint, TargetError};

/// Stop points of a client at most, so that it cannot make each access slow without end.
const MAX_STOP_POINTS: usize = 4096;
/// Length in bytes of a watchpoint at most.
const MAX_WATCHED: u64 = 1 << 20;

/// The stop points of a process.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClientPoints {
    points: Vec<StopPoint>,
    /// The conditions of the breakpoints at an address, one of which must hold for a stop.
    conditions: BTreeMap<u64, Vec<Condition>>,
}

impl ClientPoints {
    /// All stop points.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &StopPoint> {
        self.points.iter()
    }

    pub(crate) fn contains(&self, point: StopPoint) -> bool {
        self.points.contains(&point)
    }

    /// The conditions of the breakpoints at an address, if they have any.
    pub(crate) fn conditions_at(&self, address: u64) -> Option<&[Condition]> {
        self.conditions.get(&address).map(Vec::as_slice)
    }

    /// Adds a stop point.
    pub(crate) fn add(&mut self, point: StopPoint) -> Result<()> {
        if self.contains(point) {
            return Ok(());
        }
        let is_too_long = matches!(point, StopPoint::Watchpoint { length, .. }
            if length == 0 || length > MAX_WATCHED);
        if self.points.len() >= MAX_STOP_POINTS || is_too_long {
            return Err(TargetError::Refused(
                "there are too many stop points, or a watchpoint is too long".into(),
            ));
        }
        self.points.push(point);
        Ok(())
    }

    /// Removes a stop point, and the conditions that have no breakpoint then.
    pub(crate) fn remove(&mut self, point: StopPoint) {
        self.points.retain(|other| *other != point);
        let points = &self.points;
        self.conditions.retain(|address, _| {
            let address = *address;
            points.contains(&StopPoint::Breakpoint { address })
                || points.contains(&StopPoint::HardwareBreakpoint { address })
        });
    }

    /// Replaces the conditions of the breakpoints at an address.
    pub(crate) fn set_conditions(
        &mut self,
        address: u64,
        conditions: Vec<Condition>,
    ) -> Result<()> {
        if conditions.is_empty() {
            self.conditions.remove(&address);
        } else if self.conditions.len() < MAX_STOP_POINTS || self.conditions.contains_key(&address)
        {
            self.conditions.insert(address, conditions);
        } else {
            return Err(TargetError::Refused("there are too many conditions".into()));
        }
        Ok(())
    }
}
