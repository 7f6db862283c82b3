//! Answers about the guest's kernel.

use anyhow::{Context, Result, ensure};
use vbts_tests::machine::{self, Machine};
use vbts_tests::{guest_program, programs};

use super::gaps;

/// The kernel has patched its code, and the straight lines in it are those that were executed.
pub(super) fn patched(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let trace = directory.path().join("a.btrace");
    let options = ["--scope", "all"];
    machine
        .trace("btrace", &trace, &options, &["/bin/true"])?
        .expect(0)?;
    let missing = gaps(machine, &trace)?;
    ensure!(missing == 0, "{missing} gaps in a program's trace");
    // While the kernel boots, it executes its code before and after the patches.
    let source = directory.path().join("end.S");
    std::fs::write(&source, ".globl _start\n_start: ud2\n")?;
    let flags = ["-nostdlib", "-static", "-no-pie"];
    let program = programs::gcc(&source, &directory.path().join("end"), &flags)?;
    let mut command = guest_program::command(machine, "soft", machine.kernel(), &program, "")?;
    command.arg("--record").arg(&trace);
    // The kernel panics when PID 1 ends.
    machine::finish(command)?.expect(255)?;
    let file = std::fs::File::open(&trace).context("no recording")?;
    let reader = vbts_trace::Reader::new(std::io::BufReader::new(file))?;
    ensure!(reader.records() > 1_000_000, "{}", reader.records());
    let missing = gaps(machine, &trace)?;
    ensure!(missing < 100, "{missing} gaps in a recording");
    Ok(())
}
