//! The records that a program's transfers leave under each CPL filter.

use vbts_bts::DebugCtl;
use vbts_cpu::LogScope;
use vbts_testkit::processor::{Accel, accel};

use super::Guest;
use super::log::Log;

/// Branch tracing at every level.
pub const ALL: DebugCtl = DebugCtl::TR.union(DebugCtl::BTS);
/// Not at CPL 0.
pub const USER_ONLY: DebugCtl = ALL.union(DebugCtl::BTS_OFF_OS);
/// Not at CPL 1 to 3.
pub const KERNEL_ONLY: DebugCtl = ALL.union(DebugCtl::BTS_OFF_USR);
const NONE: DebugCtl = USER_ONLY.union(DebugCtl::BTS_OFF_USR);

/// A transfer that the processor makes, and the CPL it leads to.
pub type Transfer = (u64, u64, u8);

/// Whether a transfer to a level is recorded with a value of IA32_DEBUGCTL (SDM Vol. 3B tables 17-5
/// and 17-6).
pub fn records_at(debugctl: DebugCtl, cpl: u8) -> bool {
    let off = if cpl == 0 {
        DebugCtl::BTS_OFF_OS
    } else {
        DebugCtl::BTS_OFF_USR
    };
    debugctl.contains(ALL) && !debugctl.contains(off)
}

/// Runs what `make` gives under each filter until it halts, and compares the records with those of
/// `transfers` that the filter lets through. What else is to be checked of each guest is done by
/// `after`.
pub fn check_and(make: impl Fn() -> Guest, transfers: &[Transfer], after: impl Fn(&Guest)) {
    for debugctl in [
        ALL,
        USER_ONLY,
        KERNEL_ONLY,
        NONE,
        DebugCtl::TR,
        DebugCtl::BTS,
    ] {
        let mut g = make();
        g.trace(debugctl.bits(), 64);
        g.run();
        let expected: Vec<_> = transfers
            .iter()
            .filter(|t| records_at(debugctl, t.2))
            .map(|t| (t.0, t.1))
            .collect();
        assert_eq!(g.records(), expected, "{debugctl:?}");
        after(&g);
        check_log(&make, transfers, debugctl, &expected);
    }
}

/// Checks that a log of the VMM gets the transfers of its scope, whatever the guest records, and
/// that the guest gets `expected` as without one.
fn check_log(
    make: &impl Fn() -> Guest,
    transfers: &[Transfer],
    debugctl: DebugCtl,
    expected: &[(u64, u64)],
) {
    if accel() != Accel::Soft {
        // A log has the transfers that the software CPU executes.
        return;
    }
    for scope in [LogScope::all(), LogScope::USER, LogScope::KERNEL] {
        let mut g = make();
        g.trace(debugctl.bits(), 64);
        let log = Log::attach(&mut g, scope, Vec::new());
        g.run();
        assert_eq!(g.records(), expected, "{debugctl:?}, {scope:?}");
        let arrives_in = |cpl| match cpl {
            0 => scope.contains(LogScope::KERNEL),
            _ => scope.contains(LogScope::USER),
        };
        let logged: Vec<_> = transfers
            .iter()
            .filter(|t| arrives_in(t.2))
            .map(|t| (t.0, t.1))
            .collect();
        assert_eq!(log.branches(&mut g), logged, "{debugctl:?}, {scope:?}");
    }
}

/// As [`check_and`], for the records alone.
pub fn check(make: impl Fn() -> Guest, transfers: &[Transfer]) {
    check_and(make, transfers, |_| {});
}
