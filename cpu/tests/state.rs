//! Round trips of the architectural state: through bytes, and through a processor.

#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use vbts_cpu::state::{
    Activity, LbrState, MsrState, MtrrRange, MtrrState, NetBurstPmu, PendingEvent, PmuState,
    Progress, SegAttr, Segment, SpinCount, SystemState, TableRegister, Usage, X87State, cr0, cr4,
    efer, rflags,
};
use vbts_cpu::{ArchState, Cpu, model};
use vbts_testkit::{Ram, TestPlatform};

/// A new processor. Its memory is never unmapped.
fn processor() -> Cpu {
    let platform = std::sync::Arc::new(TestPlatform::default());
    let signals = platform.signals.clone();
    let ram = Ram::new(0x1_0000).for_cpu();
    Cpu::new(model("skylake").unwrap(), ram, platform, signals)
}

/// Values that differ from each other, from `seed` on.
fn values<const N: usize>(seed: u64) -> [u64; N] {
    std::array::from_fn(|n| seed + n as u64)
}

fn segment(n: u32) -> Segment {
    Segment {
        selector: 8 * n as u16,
        base: 0x1000 * u64::from(n),
        limit: 0xFFF + n,
        // Ring 3, as CPL follows from SS.
        attr: SegAttr::from_bits_retain(0xA0F3 | n << 16),
    }
}

/// A state in which each field has a value that a new processor does not have, and that a processor
/// can hold. Each field is named, so that a new field has to be added here.
fn state() -> ArchState {
    ArchState {
        gpr: values(0x100),
        rip: 0x1234,
        // The lazy flags hold an overflow and a parity that no result gives.
        rflags: rflags::FIXED | rflags::CF | rflags::PF | rflags::OF | rflags::DF | rflags::IF,
        seg: std::array::from_fn(|n| segment(1 + n as u32)),
        sys: SystemState {
            ldtr: segment(8),
            tr: segment(9),
            gdtr: TableRegister {
                base: 0xA000,
                limit: 0x7F,
            },
            idtr: TableRegister {
                base: 0xB000,
                limit: 0xFF,
            },
            cr0: cr0::PE | cr0::PG | cr0::WP | cr0::ET | cr0::NE,
            cr2: 0xC0DE,
            cr3: 0x9000,
            cr4: cr4::PAE | cr4::OSFXSR | cr4::OSXSAVE,
            xcr0: 7,
            pdpte: values(0xD001),
            efer: efer::LME | efer::LMA | efer::NXE,
            dr: values(0xE001),
            dr6: 0xFFFF_4FF1,
            dr7: 0x455,
        },
        msr: MsrState {
            star: 1,
            lstar: 2,
            cstar: 3,
            fmask: 4,
            kernel_gs_base: 5,
            tsc_aux: 0x1234,
            sysenter_cs: 6,
            sysenter_esp: 7,
            sysenter_eip: 8,
            pat: 9,
            misc_enable: 0x1080,
            mcg_status: 7,
            mtrr: MtrrState {
                default_type: 0xC00,
                fixed: values(0x10),
                variable: std::array::from_fn(|n| MtrrRange {
                    base: 0x1006 + 0x1000 * n as u64,
                    mask: 0x1_1800 + 0x1000 * n as u64,
                }),
            },
            pmu: PmuState {
                evtsel: values(0x41_00C0),
                pmc: values(0x20),
                fixed_ctr: values(0x30),
                fixed_ctr_ctrl: 0xB,
                global_ctrl: 0x1_0001,
                global_status: 2,
                netburst: NetBurstPmu {
                    counter: values(0x110),
                    cccr: values(0x130),
                    escr: std::array::from_fn(|n| [0x150 + n as u64, 0x180 + n as u64]),
                },
            },
            lbr: LbrState {
                from: values(0x50),
                to: values(0x90),
                info: values(0xD0),
                tos: 3,
                select: 0x85,
                recorded_at: 900,
            },
        },
        debugctl: 0xC0,
        ds_area: 0x8000,
        x87: X87State {
            r: std::array::from_fn(|n| 0x1_0000_0000_0000_0000 + n as u128),
            fcw: 0x27F,
            fsw: 3 << 11,
            ftw: 0xF0,
            fop: 0x123,
            fip: 0x456,
            fdp: 0x789,
        },
        xmm: std::array::from_fn(|n| u128::MAX - n as u128),
        ymm_high: std::array::from_fn(|n| u128::MAX / 2 - n as u128),
        mxcsr: 0x1FA0,
        tsc: 0x7777_0000,
        nmi_blocked: true,
        interrupt_shadow: true,
        mov_ss_shadow: true,
        activity: Activity::Halted,
        pending: Some(PendingEvent::Interrupt(0x41)),
        progress: Progress {
            random_numbers: 77,
            instructions: 1000,
            skipped: 2000,
            idle_cycles: 300,
            branches: values(400),
            usage: Usage {
                traced_user: 100,
                traced_kernel: 200,
                user: 300,
                kernel: 400,
            },
            spin: SpinCount {
                pauses: 5,
                since: 600,
            },
            spins: true,
        },
    }
}

/// Exported state, as bytes, read again, imported, and exported again.
fn round_trip(state: &ArchState) -> ArchState {
    let bytes = postcard::to_allocvec(state).unwrap();
    let read: ArchState = postcard::from_bytes(&bytes).unwrap();
    assert_eq!(&read, state, "the state after a round trip through bytes");
    let mut cpu = processor();
    cpu.load_state(&read);
    cpu.state()
}

#[test]
fn a_processor_exports_each_field_as_imported() {
    let state = state();
    assert_eq!(round_trip(&state), state);
}

/// The lines of a state as `Debug` prints it that show a value. `pending` is left out: it has a
/// test of its own, and its lines are more than one.
fn values_of(state: &ArchState) -> Vec<String> {
    let state = ArchState {
        pending: None,
        ..state.clone()
    };
    let text = format!("{state:#?}");
    let lines = text.lines().map(str::trim).map(str::to_owned);
    lines
        .filter(|l| l.ends_with(',') && !matches!(&l[..1], "}" | "]" | ")"))
        .filter(|l| l != "pending: None,")
        .collect()
}

#[test]
fn a_field_that_is_dropped_would_be_noticed() {
    let (set, new) = (values_of(&state()), values_of(&processor().state()));
    assert_eq!(set.len(), new.len());
    for (set, new) in set.iter().zip(&new) {
        assert_ne!(set, new, "the value of a new processor");
    }
}

#[test]
fn each_activity_and_each_pending_event_survives() {
    for activity in [
        Activity::Active,
        Activity::Halted,
        Activity::Shutdown,
        Activity::WaitForSipi,
    ] {
        for pending in [
            None,
            Some(PendingEvent::Interrupt(0x80)),
            Some(PendingEvent::Nmi),
            Some(PendingEvent::Debug(0)),
            Some(PendingEvent::Debug(0x4000)),
            Some(PendingEvent::Exception {
                vector: 17,
                error: Some(0),
            }),
        ] {
            let state = ArchState {
                activity,
                pending,
                ..state()
            };
            assert_eq!(round_trip(&state), state);
        }
    }
}

#[test]
fn each_flag_survives_by_itself() {
    let defaults = processor().state();
    for bit in (0..22).map(|n| 1 << n).filter(|bit| rflags::ALL & bit != 0) {
        let mut defaults = defaults.clone();
        if bit == rflags::VM {
            // There is virtual-8086 mode in protected mode only.
            defaults.sys.cr0 |= cr0::PE;
        }
        let state = ArchState {
            rflags: rflags::FIXED | bit,
            ..defaults
        };
        assert_eq!(round_trip(&state), state, "{bit:#x}");
    }
}

#[test]
fn virtual_time_continues() {
    let mut cpu = processor();
    let state = state();
    cpu.load_state(&state);
    assert_eq!(cpu.now(), 3000);
    assert_eq!(cpu.instructions(), 1000);
    assert_eq!(cpu.usage(), state.progress.usage);
}
