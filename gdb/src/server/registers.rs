//! Registers: reads and writes of one or all.

use super::register_file::{Row, rows};
use super::session::{Outcome, Session};
use super::text::{Arguments, MALFORMED, from_hex, push_hex};
use crate::registers::Registers;
use crate::target::Result;

/// Appends the value of a register: digits, or `x` for those that are not known.
fn push_value(reply: &mut Vec<u8>, row: Row, registers: &Registers) {
    match row.get(registers) {
        Some(value) => push_hex(reply, &value[..row.size()]),
        None => reply.resize(reply.len() + 2 * row.size(), b'x'),
    }
}

/// `g`: all registers.
pub(super) fn read_all(session: &mut Session<'_>, _: Arguments<'_>) -> Result<Outcome> {
    let thread = session.thread()?;
    let layout = session.layout(thread)?;
    let registers = session.target.read_registers(thread)?;
    let mut reply = Vec::new();
    for row in rows(layout) {
        push_value(&mut reply, row, &registers);
    }
    Ok(Outcome::Reply(reply))
}

/// `G`: writes all registers. Those whose digits are `x` keep their values.
pub(super) fn write_all(session: &mut Session<'_>, arguments: Arguments<'_>) -> Result<Outcome> {
    let thread = session.thread()?;
    let layout = session.layout(thread)?;
    let mut registers = session.target.read_registers(thread)?;
    let mut text = arguments.0;
    for row in rows(layout) {
        let (value, rest) = text.split_at_checked(2 * row.size()).ok_or(MALFORMED)?;
        text = rest;
        if !value.contains(&b'x') {
            row.set(&mut registers, &from_hex(value)?);
        }
    }
    session.target.write_registers(thread, &registers)?;
    Outcome::ok()
}

/// `p`: one register.
pub(super) fn read_one(session: &mut Session<'_>, mut arguments: Arguments<'_>) -> Result<Outcome> {
    let number = arguments.number()?;
    arguments.end()?;
    let thread = session.thread()?;
    let row = row(session.layout(thread)?, number)?;
    let registers = session.target.read_registers(thread)?;
    let mut reply = Vec::new();
    push_value(&mut reply, row, &registers);
    Ok(Outcome::Reply(reply))
}

/// `P`: writes one register.
pub(super) fn write_one(
    session: &mut Session<'_>,
    mut arguments: Arguments<'_>,
) -> Result<Outcome> {
    let number = arguments.number()?;
    arguments.expect("=")?;
    let value = from_hex(arguments.0)?;
    let thread = session.thread()?;
    let row = row(session.layout(thread)?, number)?;
    if value.len() != row.size() {
        return Err(MALFORMED);
    }
    let mut registers = session.target.read_registers(thread)?;
    row.set(&mut registers, &value);
    session.target.write_registers(thread, &registers)?;
    Outcome::ok()
}

fn row(layout: crate::RegisterLayout, number: u64) -> Result<Row> {
    let rows = rows(layout);
    usize::try_from(number)
        .ok()
        .and_then(|number| rows.get(number).copied())
        .ok_or(MALFORMED)
}

/// Appends the registers that GDB needs at each stop: stack pointer, frame pointer, program
/// counter.
pub(super) fn push_expedited(reply: &mut Vec<u8>, layout: crate::RegisterLayout, of: &Registers) {
    for (number, row) in rows(layout).into_iter().enumerate() {
        if matches!(row.name, "rsp" | "rbp" | "rip" | "esp" | "ebp" | "eip") {
            reply.extend(format!("{number:x}:").into_bytes());
            push_value(reply, row, of);
            reply.push(b';');
        }
    }
}
