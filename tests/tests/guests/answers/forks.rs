//! Children of a program.

use anyhow::{Result, ensure};
use vbts_tests::machine::Machine;

use super::gaps;

/// A child continues behind the system call with which its parent has made it, whatever the parent
/// does before the child's first instruction.
pub(super) fn no_gaps(machine: &Machine) -> Result<()> {
    let script = "for i in 1 2 3 4 5 6; do (exit $i) & :; (exit $i); done; wait; /bin/true";
    for processors in ["1", "2"] {
        let directory = tempfile::tempdir()?;
        let trace = directory.path().join("a.btrace");
        let options = ["--smp", processors];
        machine
            .trace("btrace", &trace, &options, &["/bin/sh", "-c", script])?
            .expect(0)?;
        let missing = gaps(machine, &trace)?;
        ensure!(missing == 0, "{missing} gaps with {processors} processors");
    }
    Ok(())
}
