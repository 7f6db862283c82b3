//! A case, and flags, as text that a person can read.

use std::fmt::Write;

use crate::differential::generate::Case;

use super::super::layout::{CODE, DATA};
use iced_x86::{Instruction, OpKind};

pub(super) const GPR_NAMES: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];

pub(super) fn hex(bytes: &[u8; 10]) -> String {
    bytes.iter().rev().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub(super) fn flag_names(flags: u64) -> String {
    const NAMES: [(u64, &str); 10] = [
        (1, "CF"),
        (4, "PF"),
        (0x10, "AF"),
        (0x40, "ZF"),
        (0x80, "SF"),
        (0x400, "DF"),
        (0x800, "OF"),
        (0x4000, "NT"),
        (1 << 18, "AC"),
        (1 << 21, "ID"),
    ];
    let set: Vec<&str> = NAMES
        .iter()
        .filter(|(bit, _)| flags & bit != 0)
        .map(|&(_, name)| name)
        .collect();
    if set.is_empty() {
        "-".to_owned()
    } else {
        set.join(" ")
    }
}

/// A case as a person can read it: the instructions, their bytes, and the registers they look at.
#[must_use]
pub fn describe(case: &Case) -> String {
    let mut text = String::new();
    for instruction in &case.instructions {
        let at = (instruction.ip() - CODE) as usize;
        let bytes: Vec<String> = case.code[at..at + instruction.len()]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let _ = writeln!(
            text,
            "    {instruction}   [{}]  {:?}",
            bytes.join(" "),
            instruction.code()
        );
    }
    let state = &case.state;
    for (row, names) in state.gpr.chunks(4).zip(GPR_NAMES.chunks(4)) {
        let cells: Vec<String> = names
            .iter()
            .zip(row)
            .map(|(name, value)| format!("{name:>3}={value:016x}"))
            .collect();
        let _ = writeln!(text, "    {}", cells.join(" "));
    }
    let _ = writeln!(text, "    rflags={}", flag_names(state.rflags));
    let uses_float = case.instructions.iter().any(|i| {
        (0..i.op_count()).any(|n| {
            i.op_kind(n) == OpKind::Register
                && (i.op_register(n).is_vector_register()
                    || i.op_register(n).is_mm()
                    || i.op_register(n).is_st())
        }) || format!("{:?}", i.mnemonic()).starts_with('F')
    });
    if uses_float {
        let float = &state.float;
        let _ = writeln!(
            text,
            "    fcw={:04x} fsw={:04x} ftw={:02x} mxcsr={:04x}",
            float.fcw, float.fsw, float.ftw, float.mxcsr
        );
        for (n, st) in float.st.iter().enumerate() {
            let _ = write!(
                text,
                "{}st{n}={}",
                if n % 4 == 0 { "    " } else { " " },
                hex(st)
            );
            if n % 4 == 3 {
                text.push('\n');
            }
        }
        for instruction in &case.instructions {
            for n in 0..instruction.op_count() {
                let register = instruction.op_register(n);
                if instruction.op_kind(n) == OpKind::Register && register.is_vector_register() {
                    let n = register.number();
                    let _ = writeln!(
                        text,
                        "    {register:?}={:032x}_{:032x}",
                        float.ymm_high[n], float.xmm[n]
                    );
                }
            }
        }
    }
    for instruction in &case.instructions {
        if let Some(address) = memory_operand(case, instruction)
            && let Some(bytes) = state
                .memory
                .get((address.wrapping_sub(DATA)) as usize..)
                .and_then(|rest| rest.first_chunk::<16>())
        {
            let _ = writeln!(
                text,
                "    [{address:#x}]={:032x}",
                u128::from_le_bytes(*bytes)
            );
        }
    }
    text
}

pub(super) fn memory_operand(case: &Case, instruction: &Instruction) -> Option<u64> {
    let n = (0..instruction.op_count()).find(|&n| instruction.op_kind(n) == OpKind::Memory)?;
    instruction.virtual_address(n, 0, |register, _, _| {
        if register.is_segment_register() {
            return Some(0);
        }
        let value = *case.state.gpr.get(register.full_register().number())?;
        Some(match register.size() {
            1 => value & 0xFF,
            4 => value & 0xFFFF_FFFF,
            _ => value,
        })
    })
}
