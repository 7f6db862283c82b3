//! Conditions of breakpoints, in the code that GDB compiles them to ("The GDB Agent Expression
//! Mechanism" in its manual): a stack machine with numbers of 64 bits.
//!
//! A target that evaluates them executes on at once where a condition is false. Without it, GDB
//! reads the variables and resumes, each time, which is slow where a breakpoint is hit often, above
//! all backward.

use crate::registers::Registers;
use crate::server::register_file::Row;
use crate::target::{Result, TargetError};

/// Operations that one evaluation executes at most: the code may have loops.
const MAX_EXECUTED: usize = 10_000;
/// Numbers on the stack, at most.
const MAX_STACK: usize = 100;

/// A condition of a breakpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    operations: Vec<Operation>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Binary(Binary),
    LogicalNot,
    BitNot,
    /// Sign extension of so many bits.
    Extend(u8),
    ZeroExtend(u8),
    /// A load of so many bytes.
    Load(usize),
    /// Index of the next operation, if the number on the stack is not 0.
    JumpIf(usize),
    Jump(usize),
    Constant(u64),
    Register(Row),
    End,
    Pop,
    Swap,
    /// Copies the number that is so far below the top.
    Pick(usize),
    Rotate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Binary {
    Add,
    Subtract,
    Multiply,
    DivideSigned,
    DivideUnsigned,
    RemainderSigned,
    RemainderUnsigned,
    ShiftLeft,
    ShiftRightSigned,
    ShiftRightUnsigned,
    And,
    Or,
    Xor,
    Equal,
    LessSigned,
    LessUnsigned,
}

/// Why an evaluation has no result.
#[derive(Debug)]
struct NoValue;

impl Condition {
    /// Translates GDB's code for a process with these registers.
    ///
    /// # Errors
    ///
    /// The code has an operation that conditions do not have, or a jump that leads out of it.
    pub(crate) fn new(code: &[u8], registers: &[Row]) -> Result<Self> {
        let unknown = || TargetError::Refused("a condition has an unknown operation".to_owned());
        let mut offsets = Vec::new();
        let mut operations = Vec::new();
        let mut rest = code;
        while !rest.is_empty() {
            offsets.push(code.len() - rest.len());
            operations.push(Operation::decode(&mut rest, registers).ok_or_else(unknown)?);
        }
        for operation in &mut operations {
            if let Operation::JumpIf(to) | Operation::Jump(to) = operation {
                *to = offsets.binary_search(to).map_err(|_| unknown())?;
            }
        }
        Ok(Self { operations })
    }

    /// Returns whether the condition holds in a thread with these registers. `read_memory` reads
    /// all bytes at an address, and returns whether it can.
    ///
    /// A condition that cannot be evaluated holds, so that the user sees where.
    pub fn holds(
        &self,
        registers: &Registers,
        read_memory: &mut dyn FnMut(u64, &mut [u8]) -> bool,
    ) -> bool {
        self.value(registers, read_memory)
            .map_or(true, |value| value != 0)
    }

    fn value(
        &self,
        registers: &Registers,
        read_memory: &mut dyn FnMut(u64, &mut [u8]) -> bool,
    ) -> std::result::Result<u64, NoValue> {
        let mut stack = Vec::with_capacity(MAX_STACK);
        let mut next = 0;
        for _ in 0..MAX_EXECUTED {
            let operation = *self.operations.get(next).ok_or(NoValue)?;
            next += 1;
            let mut pop = || stack.pop().ok_or(NoValue);
            let value = match operation {
                Operation::End => return pop(),
                Operation::Constant(value) => value,
                Operation::Register(row) => word(&row.get(registers).ok_or(NoValue)?[..row.size()]),
                Operation::Binary(binary) => {
                    let right = pop()?;
                    binary.apply(pop()?, right)?
                }
                Operation::LogicalNot => u64::from(pop()? == 0),
                Operation::BitNot => !pop()?,
                Operation::Extend(bits @ 1..64) => {
                    let unused = 64 - bits;
                    // An arithmetic shift: the number has a sign.
                    ((pop()? << unused) as i64 >> unused) as u64
                }
                Operation::ZeroExtend(bits @ 0..64) => pop()? & !(u64::MAX << bits),
                Operation::Extend(_) | Operation::ZeroExtend(_) => pop()?,
                Operation::Load(size) => {
                    let mut bytes = [0; 8];
                    if !read_memory(pop()?, &mut bytes[..size]) {
                        return Err(NoValue);
                    }
                    u64::from_le_bytes(bytes)
                }
                Operation::Pick(depth) => {
                    let index = stack.len().checked_sub(depth + 1).ok_or(NoValue)?;
                    stack[index]
                }
                Operation::Jump(to) => {
                    next = to;
                    continue;
                }
                Operation::JumpIf(to) => {
                    if pop()? != 0 {
                        next = to;
                    }
                    continue;
                }
                Operation::Pop => {
                    pop()?;
                    continue;
                }
                Operation::Swap => {
                    rotate::<2>(&mut stack)?;
                    continue;
                }
                Operation::Rotate => {
                    rotate::<3>(&mut stack)?;
                    continue;
                }
            };
            if stack.len() == MAX_STACK {
                return Err(NoValue);
            }
            stack.push(value);
        }
        Err(NoValue)
    }
}

/// Moves the top of the stack below the `COUNT - 1` numbers under it.
fn rotate<const COUNT: usize>(stack: &mut [u64]) -> std::result::Result<(), NoValue> {
    let top: &mut [u64; COUNT] = stack.last_chunk_mut().ok_or(NoValue)?;
    top.rotate_right(1);
    Ok(())
}

/// Returns up to 8 bytes as a number, the first one lowest.
fn word(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |word, &byte| word << 8 | u64::from(byte))
}

impl Operation {
    /// Decodes the operation at the front of `code`, and removes it.
    fn decode(code: &mut &[u8], registers: &[Row]) -> Option<Self> {
        // Operands are big endian.
        let mut operand = |size: usize| {
            let (bytes, rest) = code.split_at_checked(size)?;
            *code = rest;
            Some(
                bytes
                    .iter()
                    .fold(0, |value: u64, &byte| value << 8 | u64::from(byte)),
            )
        };
        // Each operand has the number of bytes that its type here can represent.
        Some(match operand(1)? {
            0x02 => Self::Binary(Binary::Add),
            0x03 => Self::Binary(Binary::Subtract),
            0x04 => Self::Binary(Binary::Multiply),
            0x05 => Self::Binary(Binary::DivideSigned),
            0x06 => Self::Binary(Binary::DivideUnsigned),
            0x07 => Self::Binary(Binary::RemainderSigned),
            0x08 => Self::Binary(Binary::RemainderUnsigned),
            0x09 => Self::Binary(Binary::ShiftLeft),
            0x0a => Self::Binary(Binary::ShiftRightSigned),
            0x0b => Self::Binary(Binary::ShiftRightUnsigned),
            0x0e => Self::LogicalNot,
            0x0f => Self::Binary(Binary::And),
            0x10 => Self::Binary(Binary::Or),
            0x11 => Self::Binary(Binary::Xor),
            0x12 => Self::BitNot,
            0x13 => Self::Binary(Binary::Equal),
            0x14 => Self::Binary(Binary::LessSigned),
            0x15 => Self::Binary(Binary::LessUnsigned),
            0x16 => Self::Extend(operand(1)? as u8),
            0x17 => Self::Load(1),
            0x18 => Self::Load(2),
            0x19 => Self::Load(4),
            0x1a => Self::Load(8),
            0x20 => Self::JumpIf(operand(2)? as usize),
            0x21 => Self::Jump(operand(2)? as usize),
            0x22 => Self::Constant(operand(1)?),
            0x23 => Self::Constant(operand(2)?),
            0x24 => Self::Constant(operand(4)?),
            0x25 => Self::Constant(operand(8)?),
            0x26 => {
                let row = *registers.get(operand(2)? as usize)?;
                (row.size() <= 8).then_some(Self::Register(row))?
            }
            0x27 => Self::End,
            0x28 => Self::Pick(0),
            0x29 => Self::Pop,
            0x2a => Self::ZeroExtend(operand(1)? as u8),
            0x2b => Self::Swap,
            0x32 => Self::Pick(operand(1)? as usize),
            0x33 => Self::Rotate,
            _ => return None,
        })
    }
}

impl Binary {
    fn apply(self, left: u64, right: u64) -> std::result::Result<u64, NoValue> {
        let (signed_left, signed_right) = (left as i64, right as i64);
        let shift = u32::try_from(right).unwrap_or(u32::MAX);
        Ok(match self {
            Self::Add => left.wrapping_add(right),
            Self::Subtract => left.wrapping_sub(right),
            Self::Multiply => left.wrapping_mul(right),
            Self::DivideSigned if right != 0 => signed_left.wrapping_div(signed_right) as u64,
            Self::DivideUnsigned => left.checked_div(right).ok_or(NoValue)?,
            Self::RemainderSigned if right != 0 => signed_left.wrapping_rem(signed_right) as u64,
            Self::RemainderUnsigned => left.checked_rem(right).ok_or(NoValue)?,
            Self::DivideSigned | Self::RemainderSigned => return Err(NoValue),
            Self::ShiftLeft => left.checked_shl(shift).unwrap_or(0),
            Self::ShiftRightSigned => (signed_left >> shift.min(63)) as u64,
            Self::ShiftRightUnsigned => left.checked_shr(shift).unwrap_or(0),
            Self::And => left & right,
            Self::Or => left | right,
            Self::Xor => left ^ right,
            Self::Equal => (left == right).into(),
            Self::LessSigned => (signed_left < signed_right).into(),
            Self::LessUnsigned => (left < right).into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registers::RegisterLayout;
    use crate::server::register_file::rows;

    fn rows_64() -> Vec<Row> {
        rows(RegisterLayout {
            is_32_bit: false,
            is_linux: true,
            has_avx: false,
            has_control: false,
        })
    }

    fn evaluate(code: &[u8]) -> Option<u64> {
        let condition = Condition::new(code, &rows_64()).unwrap();
        let registers = Registers {
            rip: 0x1000,
            rflags: 0x8000_0246,
            ..Registers::default()
        };
        // Memory has the low byte of each address, up to 0x100.
        let mut read = |address: u64, bytes: &mut [u8]| {
            (address..).zip(bytes).all(|(address, byte)| {
                *byte = address as u8;
                address < 0x100
            })
        };
        condition.value(&registers, &mut read).ok()
    }

    #[test]
    fn operations_have_their_results() {
        const MINUS_TWO: [u8; 3] = [0x22, 0xfe, 0x16];
        let extended = |rest: &[u8]| evaluate(&[&MINUS_TWO, &[8][..], rest, &[0x27]].concat());
        for (code, value) in [
            (&[][..], -2i64),
            (&[0x22, 3, 0x02], 1),
            (&[0x22, 3, 0x03], -5),
            (&[0x22, 3, 0x04], -6),
            (&[0x22, 2, 0x05], -1),
            (&[0x22, 2, 0x06], i64::MAX),
            (&[0x22, 3, 0x07], -2),
            (&[0x22, 3, 0x08], 2),
            (&[0x22, 4, 0x09], -32),
            (&[0x22, 64, 0x09], 0),
            (&[0x22, 1, 0x0a], -1),
            (&[0x22, 200, 0x0a], -1),
            (&[0x22, 60, 0x0b], 15),
            (&[0x0e], 0),
            (&[0x0e, 0x0e], 1),
            (&[0x22, 7, 0x0f], 6),
            (&[0x22, 1, 0x10], -1),
            (&[0x22, 1, 0x11], -1),
            (&[0x12], 1),
            (&[0x28, 0x13], 1),
            (&[0x22, 1, 0x14], 1),
            (&[0x22, 1, 0x15], 0),
            (&[0x2a, 16], 0xfffe),
            (&[0x2a, 64], -2),
            (&[0x22, 1, 0x2b, 0x03], 3),
            (&[0x22, 1, 0x29], -2),
            (&[0x22, 1, 0x22, 5, 0x32, 2], -2),
            // -2 1 5 becomes 5 -2 1.
            (&[0x22, 1, 0x22, 5, 0x33, 0x29], -2),
        ] {
            assert_eq!(extended(code), Some(value as u64), "{code:x?}");
        }
    }

    #[test]
    fn values_come_from_registers_and_memory() {
        assert_eq!(evaluate(&[0x26, 0, 16, 0x27]), Some(0x1000));
        assert_eq!(evaluate(&[0x26, 0, 17, 0x27]), Some(0x8000_0246));
        assert_eq!(evaluate(&[0x22, 0x10, 0x17, 0x27]), Some(0x10));
        assert_eq!(evaluate(&[0x22, 0x10, 0x18, 0x27]), Some(0x1110));
        assert_eq!(
            evaluate(&[0x22, 0x10, 0x1a, 0x27]),
            Some(0x1716_1514_1312_1110)
        );
        assert_eq!(evaluate(&[0x23, 1, 2, 0x27]), Some(0x102));
        assert_eq!(
            evaluate(&[0x25, 1, 2, 3, 4, 5, 6, 7, 8, 0x27]),
            Some(0x0102_0304_0506_0708)
        );
        // 1 && 0: GDB's code jumps.
        assert_eq!(
            evaluate(&[0x22, 1, 0x20, 0, 8, 0x22, 9, 0x27, 0x22, 0, 0x27]),
            Some(0)
        );
    }

    #[test]
    fn what_has_no_value_holds() {
        for code in [
            // Nothing on the stack, an endless loop, an address without memory, a division by 0, a
            // stack that grows without end, no end.
            &[0x27][..],
            &[0x21, 0, 0],
            &[0x23, 1, 0, 0x17, 0x27],
            &[0x22, 1, 0x22, 0, 0x05, 0x27],
            &[0x22, 1, 0x22, 0, 0x08, 0x27],
            &[0x22, 1, 0x21, 0, 0],
            &[0x22, 0],
            &[0x22, 1, 0x33, 0x27],
            &[0x22, 1, 0x32, 1, 0x27],
            &[],
        ] {
            assert_eq!(evaluate(code), None, "{code:x?}");
            let condition = Condition::new(code, &rows_64()).unwrap();
            assert!(condition.holds(&Registers::default(), &mut |_, _| false));
        }
    }

    #[test]
    fn other_code_is_refused() {
        // An unknown operation, a cut operand, a jump into an operand or to the end, an unknown
        // register, one that is no number.
        for code in [
            &[0x01][..],
            &[0x24, 1, 2, 3],
            &[0x21, 0, 1],
            &[0x21, 0, 3],
            &[0x26, 1, 0],
            &[0x26, 0, 24],
        ] {
            assert!(Condition::new(code, &rows_64()).is_err(), "{code:x?}");
        }
    }
}
