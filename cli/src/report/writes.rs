//! `vbts report writes`: each write to a variable of a recorded program, also of the value that it
//! has.

use anyhow::anyhow;
use vbts_host::Output;
use vbts_host::exit::Failure;

use super::ReportArgs;
use super::gdb_rows::{GdbRows, Row, base, done, text};
use crate::debug::{Answer, Gdb, Stopped, field};

/// The columns besides those of all rows.
const COLUMNS: [&str; 2] = ["before", "after"];

/// Prints the writes.
pub(super) fn show(args: &ReportArgs, output: Output) -> Result<(), Failure> {
    let variable = text(args)?;
    let mut session = GdbRows::start(args)?;
    let refused = |why: String| Failure::Error(anyhow!("{variable}: {why}"));
    // The variable is the one that the name has where the session opens, wherever it is written.
    let place = match is_number(variable) {
        true => format!("(unsigned long *) {variable}"),
        false => format!("&({variable})"),
    };
    if let Answer::Refused(why) = session
        .gdb
        .console(&format!("set $vbts_written = {place}"))?
    {
        return Err(refused(why));
    }
    session.go_to_start()?;
    done(session.gdb.console("monitor watch writes")?)?;
    if let Answer::Refused(why) = session.gdb.console("awatch -l *$vbts_written")? {
        return Err(refused(why));
    }
    session.each_stop("access-watchpoint-trigger", complete)?;
    let columns = COLUMNS.map(str::to_owned);
    session.finish(&columns, "nothing writes to it", output)
}

/// Adds the values and the place of a write to its row.
fn complete(gdb: &mut Gdb, stopped: &Stopped, row: &mut Row) -> Result<(), Failure> {
    let after = stopped.field("new").unwrap_or_default();
    // gdb names one value if it is the same.
    let before = stopped.field("old").unwrap_or_else(|| after.clone());
    row.values = vec![before, after];
    row.function = stopped.field("func").unwrap_or_default();
    // The program is behind the instruction.
    let address = done(gdb.console("monitor accessed-by")?)?;
    let address = address.trim();
    if is_of_kernel(address) {
        row.place = "in the kernel".into();
        return Ok(());
    }
    row.place = address.to_owned();
    let command = format!("-data-disassemble -s {address} -e {address}+1 -- 5");
    if let Answer::Done { result, .. } = gdb.execute(&command)? {
        row.function = field(&result, "func-name").unwrap_or_default();
        if let (Some(file), Some(line)) = (field(&result, "file"), field(&result, "line")) {
            row.place = format!("{}:{line}", base(&file));
        }
    }
    Ok(())
}

/// Returns whether `text` is a number, decimal or hexadecimal.
fn is_number(text: &str) -> bool {
    let hexadecimal = text.strip_prefix("0x").filter(|digits| !digits.is_empty());
    match hexadecimal {
        Some(digits) => digits.chars().all(|c| c.is_ascii_hexdigit()),
        None => text.chars().all(|c| c.is_ascii_digit()),
    }
}

/// Returns whether Linux has the address for itself.
fn is_of_kernel(address: &str) -> bool {
    let digits = address.strip_prefix("0x").unwrap_or(address);
    u64::from_str_radix(digits, 16).is_ok_and(|address| (address as i64) < 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_from_names() {
        assert!(is_number("4096") && is_number("0x40aF"));
        for name in ["x", "0x", "4x", "*(int *)0x4040"] {
            assert!(!is_number(name), "{name}");
        }
        assert!(is_of_kernel("0xffffffff81000000") && !is_of_kernel("0x401000"));
        assert!(!is_of_kernel(""));
    }
}
