//! What two processors may disagree on, and a description of what they do disagree on.

mod describe;
mod kinds;
mod undefined;

pub use self::describe::describe;
pub use self::kinds::{reads_string_registers, repeats_with_32_bits};
pub use self::undefined::undefined_after;

use std::fmt::Write;

use super::generate::Case;
use super::layout::DATA;

use self::describe::{GPR_NAMES, flag_names, hex};
use self::kinds::{
    changed_by_gather, compares_strings, converts_to_halves, converts_to_mmx, estimates, is_sha,
    loads_mxcsr, may_be_too_long, moves_by_a_mask, moves_by_a_mask_in_64_kbytes,
    repeats_a_comparison, stores_mmx, stores_x87,
};
use self::undefined::{rflags, undefined_conditions, undefined_flags};
use super::vendor::{Behaviour, MISALIGNED_MODE, Vendor};
use super::{Event, FloatState, Mode, Outcome};
use iced_x86::{FlowControl, Instruction, Mnemonic};

/// The flags that are compared: the arithmetic ones, DF, NT and AC.
const FLAGS: u64 = 0x4_4CD5;

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
    if vendor.may_differ(Behaviour::MisalignedSha)
        && soft.event == Event::GeneralProtection
        && stopped_at(case, soft).is_some_and(is_sha)
    {
        return None;
    }
    // Another instruction of the case may have stored what this one loads.
    if vendor.may_differ(Behaviour::MisalignedMode)
        && soft.event == Event::GeneralProtection
        && stopped_at(case, soft).is_some_and(loads_mxcsr)
        && host.state.float.mxcsr & MISALIGNED_MODE != 0
    {
        return None;
    }
    if vendor.may_differ(Behaviour::WrappedMaskedMove)
        && case.instructions.iter().any(moves_by_a_mask_in_64_kbytes)
    {
        return None;
    }
    if case.instructions.iter().any(estimates) {
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
    // Comparing the whole is much faster, and nearly always enough.
    if h.memory == s.memory {
        return (!text.is_empty()).then_some(text);
    }
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
    let masked = vendor.may_differ(Behaviour::MaskedAddress)
        && matches!((host.event, soft.event), (Event::Page(_), Event::Page(_)))
        && stopped_at(case, host).is_some_and(moves_by_a_mask);
    let above_4_gbytes = |host: u64, soft: u64| soft.wrapping_sub(host) == 1 << 32;
    let wrapped = vendor.may_differ(Behaviour::WrappedMaskedMove)
        && matches!(
            (host.event, soft.event),
            (Event::Page(host), Event::Page(soft)) if above_4_gbytes(host, soft)
        )
        && stopped_at(case, host).is_some_and(moves_by_a_mask);
    let conversion = vendor.may_differ(Behaviour::FaultingConversion)
        && (host.event.is_memory_fault() && soft.event == Event::Simd
            || host.event == Event::X87 && soft.event.is_memory_fault())
        && stopped_at(case, host).is_some_and(converts_to_halves);
    host.event == soft.event
        || bound
        || reserved
        || host.event == Event::X87 && soft.event == Event::Simd
        || host.event == Event::GeneralProtection && beyond_limit
        || matches!(host.event, Event::Page(0..0x20 | 0xFFFF_FFE0..)) && beyond_limit
        || masked
        || wrapped
        || conversion
        || cmps
}

/// The instruction before which the case ended, if it did not complete.
fn stopped_at<'a>(case: &'a Case, outcome: &Outcome) -> Option<&'a Instruction> {
    let mut instructions = case.instructions.iter();
    instructions.find(|instruction| instruction.ip() == outcome.state.rip)
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
    if vendor.may_differ(Behaviour::FaultingGather)
        && soft.event.is_memory_fault()
        && let Some(instruction) = stopped_at(case, soft)
        && let Some(registers) = changed_by_gather(instruction)
    {
        for n in registers {
            (s.xmm[n], s.ymm_high[n]) = (h.xmm[n], h.ymm_high[n]);
        }
    }
    const EXCEPTIONS: u32 = 0x3F;
    if vendor.may_differ(Behaviour::FaultingConversion)
        && (host.event.is_memory_fault() || soft.event.is_memory_fault())
        && (h.mxcsr ^ s.mxcsr) & !EXCEPTIONS == 0
        && stopped_at(case, host).is_some_and(converts_to_halves)
    {
        s.mxcsr = h.mxcsr;
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
    for (n, (h, s)) in h.ymm_high.iter().zip(&s.ymm_high).enumerate() {
        if h != s {
            let _ = writeln!(
                text,
                "    ymm{n}, upper half: host {h:#034x}, soft {s:#034x}"
            );
        }
    }
}

/// The status word's stack pointer.
const TOP: u16 = 7 << 11;

fn top(float: &FloatState) -> usize {
    usize::from((float.fsw & TOP) >> 11)
}
