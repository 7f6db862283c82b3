//! What two processors may disagree on, and a description of what they do disagree on.

use std::fmt::Write;

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, RflagsBits};

use super::generate::Case;
use super::layout::{CODE, DATA};
use super::vendor::{Behaviour, Vendor};
use super::{Event, FloatState, Mode, Outcome, State};

/// The flags that are compared: the arithmetic ones, DF, NT and AC.
const FLAGS: u64 = 0x4_4CD5;

/// The status word's condition codes.
const C0: u16 = 1 << 8;
const C2: u16 = 1 << 10;
const C3: u16 = 1 << 14;

/// RFLAGS, from iced's numbering.
fn rflags(bits: u32) -> u64 {
    const TABLE: [(u32, u64); 6] = [
        (RflagsBits::OF, 1 << 11),
        (RflagsBits::SF, 1 << 7),
        (RflagsBits::ZF, 1 << 6),
        (RflagsBits::AF, 1 << 4),
        (RflagsBits::CF, 1 << 0),
        (RflagsBits::PF, 1 << 2),
    ];
    TABLE
        .iter()
        .filter(|(bit, _)| bits & bit != 0)
        .map(|(_, flag)| flag)
        .sum()
}

/// Which flags are undefined after `instruction` if `before` were undefined before it (iced's
/// numbering).
#[must_use]
pub fn undefined_after(instruction: &Instruction, before: u32) -> u32 {
    let mut undefined = instruction.rflags_undefined();
    let mut defined =
        instruction.rflags_written() | instruction.rflags_cleared() | instruction.rflags_set();
    match instruction.mnemonic() {
        // A count of zero leaves every flag alone, and one above the operand size leaves CF
        // undefined.
        Mnemonic::Shl | Mnemonic::Shr | Mnemonic::Sal => {
            let (count, known) = immediate_count(instruction);
            if !known {
                defined = 0;
            }
            if (!known || count >= operand_bits(instruction)) && operand_bits(instruction) < 32 {
                undefined |= RflagsBits::CF;
            }
            if !known || count > 1 {
                undefined |= RflagsBits::OF;
            }
        }
        Mnemonic::Sar
        | Mnemonic::Rol
        | Mnemonic::Ror
        | Mnemonic::Rcl
        | Mnemonic::Rcr
        | Mnemonic::Shld
        | Mnemonic::Shrd => {
            let (count, known) = immediate_count(instruction);
            if !known {
                defined = 0;
            }
            if !known || count > 1 {
                undefined |= RflagsBits::OF;
            }
            // Beyond the operand size everything is undefined; `shrd_beyond` leaves those out.
        }
        _ if instruction.is_string_instruction() => defined = 0,
        _ => {}
    }
    (before & !defined) | undefined
}

/// The count of a shift, and whether it is in the instruction.
fn immediate_count(instruction: &Instruction) -> (u32, bool) {
    let last = instruction.op_count() - 1;
    if instruction.op_kind(last) == OpKind::Immediate8 {
        let mask = if operand_bits(instruction) == 64 {
            63
        } else {
            31
        };
        (u32::from(instruction.immediate8()) & mask, true)
    } else {
        (0, false)
    }
}

fn operand_bits(instruction: &Instruction) -> u32 {
    let size = match instruction.op0_kind() {
        OpKind::Register => instruction.op0_register().size(),
        _ => instruction.memory_size().size(),
    };
    size as u32 * 8
}

/// What differs between the outcome on a host of `vendor` and ours, or `None`.
#[must_use]
pub fn difference(vendor: Vendor, case: &Case, host: &Outcome, soft: &Outcome) -> Option<String> {
    if vendor.may_differ(Behaviour::CancelledStore)
        && case.state.float.fcw & 0x3F != 0x3F
        && host.event.is_memory_fault()
        && stopped_at(case, host).is_some_and(stores_x87)
    {
        return None;
    }
    let mut text = String::new();
    if !same_event(vendor, case, host, soft) {
        let _ = writeln!(
            text,
            "    event: host {:x?}, soft {:x?}",
            host.event, soft.event
        );
    }
    let (h, s) = (&host.state, &soft.state);
    let mask = case.state.mode.mask();
    let counters = [1, 6, 7];
    let halves = vendor.may_differ(Behaviour::UpperHalvesOfRepeat)
        && case.instructions.iter().any(repeats_with_32_bits);
    if h.rip != s.rip {
        let _ = writeln!(text, "    rip: host {:#x}, soft {:#x}", h.rip, s.rip);
    }
    for (n, (name, (h, s))) in (0..).zip(GPR_NAMES.iter().zip(h.gpr.iter().zip(&s.gpr))) {
        let mask = if halves && counters.contains(&n) {
            0xFFFF_FFFF
        } else {
            mask
        };
        if (h ^ s) & mask != 0 {
            let _ = writeln!(text, "    {name}: host {h:#x}, soft {s:#x}");
        }
    }
    let undefined = undefined_flags(case, h);
    let mut flags = FLAGS & !rflags(undefined);
    if vendor.may_differ(Behaviour::FlagsInsideRepeat)
        && stopped_at(case, host).is_some_and(repeats_a_comparison)
    {
        flags &= !0x8D5;
    }
    if (h.rflags ^ s.rflags) & flags != 0 {
        let _ = writeln!(
            text,
            "    rflags: host {}, soft {} (compared: {})",
            flag_names(h.rflags & flags),
            flag_names(s.rflags & flags),
            flag_names(flags)
        );
    }
    float_difference(vendor, case, host, soft, &mut text);
    let partial = match (soft.event, stopped_at(case, soft)) {
        (Event::GeneralProtection, Some(instruction))
            if vendor.may_differ(Behaviour::FaultingCall)
                && instruction.flow_control() == FlowControl::IndirectCall =>
        {
            let stack = s.gpr[4];
            stack.saturating_sub(8)..stack
        }
        (Event::Page(la), Some(instruction))
            if vendor.may_differ(Behaviour::PartialStore)
                && stores_x87(instruction)
                && instruction.memory_size().size() == 10 =>
        {
            la.saturating_sub(10)..la
        }
        _ => 0..0,
    };
    for (at, (h, s)) in h
        .memory
        .iter()
        .zip(&s.memory)
        .enumerate()
        .filter(|(at, (h, s))| h != s && !partial.contains(&(DATA + *at as u64)))
        .take(16)
    {
        let _ = writeln!(
            text,
            "    memory {:#x}: host {h:#04x}, soft {s:#04x}",
            DATA + at as u64
        );
    }
    (!text.is_empty()).then_some(text)
}

/// The flags that are undefined where the case ended (iced's numbering).
fn undefined_flags(case: &Case, host: &State) -> u32 {
    let behind = case.instructions.last().map_or(CODE, Instruction::next_ip);
    let stopped_inside = (CODE..behind).contains(&host.rip);
    let mut undefined = 0;
    let mut branched = false;
    for instruction in &case.instructions {
        if stopped_inside && instruction.ip() >= host.rip {
            break;
        }
        // Behind a branch an instruction may have run or not.
        let after = undefined_after(instruction, undefined);
        undefined = if branched { undefined | after } else { after };
        branched |= instruction.flow_control() != FlowControl::Next;
    }
    undefined
}

/// A signal does not tell #MF from #XM.
fn same_event(vendor: Vendor, case: &Case, host: &Outcome, soft: &Outcome) -> bool {
    let beyond_limit = vendor.may_differ(Behaviour::LimitOf4GBytes)
        && case.state.mode == Mode::Bits32
        && matches!(soft.event, Event::Stack | Event::GeneralProtection);
    let cmps = vendor.may_differ(Behaviour::CmpsOrder)
        && host.event.is_memory_fault()
        && soft.event.is_memory_fault()
        && stopped_at(case, host).is_some_and(compares_strings);
    // #BR is the same signal as #GP.
    let bound = vendor.may_differ(Behaviour::BoundOrder)
        && host.event.is_memory_fault()
        && soft.event == Event::GeneralProtection
        && stopped_at(case, host).is_some_and(|i| i.mnemonic() == Mnemonic::Bound);
    let reserved = vendor.may_differ(Behaviour::LengthOfReserved)
        && host.event == Event::GeneralProtection
        && soft.event == Event::InvalidOpcode
        && stopped_at(case, host).is_some_and(may_be_too_long);
    host.event == soft.event
        || bound
        || reserved
        || host.event == Event::X87 && soft.event == Event::Simd
        || host.event == Event::GeneralProtection && beyond_limit
        || matches!(host.event, Event::Page(la) if la >= 0xFFFF_FFF0) && beyond_limit
        || cmps
}

/// The instruction before which the case ended, if it did not complete.
fn stopped_at<'a>(case: &'a Case, outcome: &Outcome) -> Option<&'a Instruction> {
    let mut instructions = case.instructions.iter();
    instructions.find(|instruction| instruction.ip() == outcome.state.rip)
}

/// A reserved opcode of which the decoder does not know the operands: at most a SIB byte, a
/// displacement and an immediate of four bytes each.
fn may_be_too_long(instruction: &Instruction) -> bool {
    instruction.is_invalid() && instruction.len() + 9 > 15
}

fn compares_strings(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    instruction.is_string_instruction()
        && matches!(
            instruction.mnemonic(),
            M::Cmpsb | M::Cmpsw | M::Cmpsd | M::Cmpsq
        )
}

fn is_repeated(instruction: &Instruction) -> bool {
    instruction.is_string_instruction()
        && (instruction.has_rep_prefix() || instruction.has_repne_prefix())
}

fn repeats_a_comparison(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    is_repeated(instruction)
        && (compares_strings(instruction)
            || matches!(
                instruction.mnemonic(),
                M::Scasb | M::Scasw | M::Scasd | M::Scasq
            ))
}

fn repeats_with_32_bits(instruction: &Instruction) -> bool {
    use OpKind as K;
    is_repeated(instruction)
        && instruction
            .op_kinds()
            .any(|kind| matches!(kind, K::MemorySegESI | K::MemorySegEDI | K::MemoryESEDI))
}

fn stores_x87(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    instruction.op0_kind() == OpKind::Memory
        && matches!(
            instruction.mnemonic(),
            M::Fst | M::Fstp | M::Fist | M::Fistp | M::Fisttp | M::Fbstp
        )
}

fn stores_mmx(instruction: &Instruction) -> bool {
    instruction.op0_kind() == OpKind::Memory && instruction.op1_register().is_mm()
}

fn float_difference(
    vendor: Vendor,
    case: &Case,
    host: &Outcome,
    soft: &Outcome,
    text: &mut String,
) {
    let (h, mut s) = (&host.state.float, soft.state.float);
    if vendor.may_differ(Behaviour::FaultingMmxStore)
        && soft.event.is_memory_fault()
        && stopped_at(case, soft).is_some_and(stores_mmx)
    {
        let by = (top(h) + 8 - top(&s)) % 8;
        s.st.rotate_left(by);
        s.fsw = s.fsw & !TOP | h.fsw & TOP;
    }
    if vendor.may_differ(Behaviour::FaultingMmxConversion)
        && soft.event == Event::Simd
        && case.instructions.iter().any(converts_to_mmx)
    {
        s.fsw = s.fsw & !TOP | h.fsw & TOP;
        (s.ftw, s.st) = (h.ftw, h.st);
    }
    const UE_OE_PE: u32 = 0x38;
    if vendor.may_differ(Behaviour::SuppressedInexact)
        && soft.event == Event::Simd
        && (h.mxcsr ^ s.mxcsr) == UE_OE_PE & 0x20
        && h.mxcsr & UE_OE_PE & !0x20 != 0
    {
        s.mxcsr = h.mxcsr;
    }
    let s = &s;
    let mut row = |name: &str, host: u64, soft: u64| {
        if host != soft {
            let _ = writeln!(text, "    {name}: host {host:#x}, soft {soft:#x}");
        }
    };
    // Instructions that leave some condition codes undefined say so in the manual; the host's are
    // what it happens to do.
    let undefined = case.instructions.iter().fold(0, |bits, instruction| {
        bits | undefined_conditions(instruction)
    });
    row("fcw", h.fcw.into(), s.fcw.into());
    row(
        "fsw",
        (h.fsw & !undefined).into(),
        (s.fsw & !undefined).into(),
    );
    row("ftw", h.ftw.into(), s.ftw.into());
    row("mxcsr", h.mxcsr.into(), s.mxcsr.into());
    // In the order of the physical registers: TOP has been compared.
    for n in 0..8 {
        let (h, s) = (h.st[(n + 8 - top(h)) % 8], s.st[(n + 8 - top(s)) % 8]);
        if h != s {
            let _ = writeln!(text, "    r{n}: host {}, soft {}", hex(&h), hex(&s));
        }
    }
    for (n, (h, s)) in h.xmm.iter().zip(&s.xmm).enumerate() {
        if h != s {
            let _ = writeln!(text, "    xmm{n}: host {h:#034x}, soft {s:#034x}");
        }
    }
}

/// The status word's stack pointer.
const TOP: u16 = 7 << 11;

fn top(float: &FloatState) -> usize {
    usize::from((float.fsw & TOP) >> 11)
}

fn converts_to_mmx(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    matches!(
        instruction.mnemonic(),
        M::Cvtpd2pi | M::Cvttpd2pi | M::Cvtps2pi | M::Cvttps2pi | M::Cvtpi2ps | M::Cvtpi2pd
    )
}

/// Condition codes that an x87 instruction leaves undefined (SDM Vol. 2, "FPU Flags Affected").
fn undefined_conditions(instruction: &Instruction) -> u16 {
    use Mnemonic as M;
    match instruction.mnemonic() {
        M::Fcom
        | M::Fcomp
        | M::Fcompp
        | M::Fucom
        | M::Fucomp
        | M::Fucompp
        | M::Ficom
        | M::Ficomp
        | M::Ftst
        | M::Fxam => 0,
        M::Fprem | M::Fprem1 => 0,
        M::Fsin | M::Fcos | M::Fsincos | M::Fptan => C0 | C3,
        M::Fninit | M::Fnclex | M::Fstcw | M::Fnstcw | M::Fnstsw => 0,
        _ if format!("{:?}", instruction.mnemonic()).starts_with('F') => C0 | C2 | C3,
        _ => 0,
    }
}

const GPR_NAMES: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];

fn hex(bytes: &[u8; 10]) -> String {
    bytes.iter().rev().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn flag_names(flags: u64) -> String {
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
                && (i.op_register(n).is_xmm()
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
                if instruction.op_kind(n) == OpKind::Register && register.is_xmm() {
                    let _ = writeln!(
                        text,
                        "    {register:?}={:032x}",
                        float.xmm[register.number()]
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

fn memory_operand(case: &Case, instruction: &Instruction) -> Option<u64> {
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
