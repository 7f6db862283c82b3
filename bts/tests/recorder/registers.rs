//! IA32_DEBUGCTL and IA32_DS_AREA: the values that a write accepts, and the branches that are
//! stored at each CPL.

use vbts_bts::{DebugCtl, Gp, Microarchitecture, Recorder};

#[test]
fn debugctl_decides_what_is_stored() {
    // value, at CPL 0, at CPL 1, at CPL 3
    const CASES: &[(u64, bool, bool, bool, &str)] = &[
        (
            0x3C0,
            false,
            true,
            true,
            "TR BTS BTINT OFF_OS: perf, user only",
        ),
        (
            0x2C0,
            false,
            true,
            true,
            "TR BTS OFF_OS: perf snapshot, user only",
        ),
        (0x1C0, true, true, true, "TR BTS BTINT"),
        (0x0C0, true, true, true, "TR BTS"),
        (0x4C0, true, false, false, "TR BTS OFF_USR"),
        (0x5C0, true, false, false, "TR BTS BTINT OFF_USR"),
        (
            0x6C0,
            false,
            false,
            false,
            "TR BTS OFF_OS OFF_USR: no branch is stored",
        ),
        (0x7C0, false, false, false, "TR BTS BTINT OFF_OS OFF_USR"),
        (
            0x040,
            false,
            false,
            false,
            "TR only: messages go to the bus",
        ),
        (0x080, false, false, false, "BTS only: no messages"),
        (0x100, false, false, false, "BTINT only"),
        (0x000, false, false, false, "no bit"),
        (0x0C3, true, true, true, "LBR and BTF change nothing"),
        (
            0x58C3,
            true,
            true,
            true,
            "the freeze bits change nothing either",
        ),
    ];
    let mut recorder = Recorder::new(Microarchitecture::Core2);
    for &(value, cpl0, cpl1, cpl3, name) in CASES {
        assert_eq!(recorder.set_debugctl(value), Ok(()), "{name}");
        assert_eq!(recorder.debugctl(), value, "{name}");
        let enabled = [0, 1, 2, 3].map(|cpl| recorder.enabled(cpl));
        assert_eq!(enabled, [cpl0, cpl1, cpl1, cpl3], "{value:#x}: {name}");
    }
}

#[test]
fn each_microarchitecture_accepts_its_bits() {
    use Microarchitecture::{Core2, Nehalem, NetBurst, NetBurst64, PentiumM};
    // Microarchitecture, the bits that a write accepts, the value that stores all branches, the
    // value that stores only user branches.
    const CASES: &[(Microarchitecture, u64, u64, Option<u64>)] = &[
        (NetBurst, 0x001F, 0x0C, None),
        (NetBurst64, 0x007F, 0x0C, Some(0x2C)),
        (PentiumM, 0x01FF, 0xC0, None),
        (Core2, 0x5FC3, 0xC0, Some(0x2C0)),
        (Nehalem, 0x7FC3, 0xC0, Some(0x2C0)),
    ];
    for &(microarchitecture, writable, all, user) in CASES {
        let mut recorder = Recorder::new(microarchitecture);
        for bit in 0..64 {
            let expected = if writable >> bit & 1 != 0 {
                Ok(())
            } else {
                Err(Gp)
            };
            assert_eq!(
                recorder.set_debugctl(1 << bit),
                expected,
                "{microarchitecture:?} bit {bit}"
            );
        }
        assert_eq!(recorder.set_debugctl(all), Ok(()));
        assert_eq!(
            (recorder.enabled(0), recorder.enabled(3)),
            (true, true),
            "{microarchitecture:?}"
        );
        if let Some(user) = user {
            assert_eq!(recorder.set_debugctl(user), Ok(()));
            assert_eq!(
                (recorder.enabled(0), recorder.enabled(3)),
                (false, true),
                "{microarchitecture:?}"
            );
        }
    }
}

/// What follows from the bits of DEBUGCTL that are not of the branch trace.
#[test]
fn each_microarchitecture_has_its_other_controls() {
    use Microarchitecture::{Core2, Nehalem, NetBurst, NetBurst64, PentiumM};
    // DEBUGCTL, whether the LBR stack records, whether TF steps on branches; after a
    // performance-monitoring interrupt: DEBUGCTL, and whether it stops the counters.
    type Case = (&'static [Microarchitecture], u64, bool, bool, u64, bool);
    const CASES: &[Case] = &[
        (
            &[NetBurst, NetBurst64, PentiumM, Core2, Nehalem],
            0x1,
            true,
            false,
            0x1,
            false,
        ),
        (
            &[NetBurst, NetBurst64, PentiumM, Core2, Nehalem],
            0x2,
            false,
            true,
            0x2,
            false,
        ),
        (&[NetBurst, NetBurst64], 0x1C, false, false, 0x1C, false),
        (&[PentiumM], 0x1FC, false, false, 0x1FC, false),
        (&[Core2, Nehalem], 0x0803, true, true, 0x0802, false),
        (&[Core2, Nehalem], 0x1003, true, true, 0x1003, true),
        (&[Core2, Nehalem], 0x1801, true, false, 0x1800, true),
    ];
    for &(processors, value, lbr, btf, after, freezes) in CASES {
        for &microarchitecture in processors {
            let name = format!("{microarchitecture:?} {value:#x}");
            let mut recorder = Recorder::new(microarchitecture);
            assert_eq!(recorder.set_debugctl(value), Ok(()), "{name}");
            assert_eq!(recorder.records_last_branches(), lbr, "{name}");
            assert_eq!(recorder.steps_on_branches(), btf, "{name}");
            assert_eq!(recorder.freeze_on_pmi(), freezes, "{name}");
            assert_eq!(recorder.debugctl(), after, "{name}");
            assert_eq!(recorder.records_last_branches(), after & 1 != 0, "{name}");
            recorder.clear_on_debug_exception();
            assert_eq!(recorder.debugctl(), after & !3, "{name}");
            assert!(!recorder.records_last_branches() && !recorder.steps_on_branches());
        }
    }
}

#[test]
fn a_write_of_a_reserved_bit_changes_nothing() {
    let mut recorder = Recorder::new(Microarchitecture::Core2);
    assert_eq!(recorder.set_debugctl(0x3C0), Ok(()));
    for reserved in [1 << 2, 1 << 5, 1 << 13, 1 << 15, 1 << 63] {
        assert_eq!(recorder.set_debugctl(reserved), Err(Gp));
        assert_eq!(recorder.debugctl(), 0x3C0);
        assert!(recorder.enabled(3) && !recorder.enabled(0));
    }
}

#[test]
fn a_debug_exception_clears_only_lbr_and_btf() {
    let mut recorder = Recorder::new(Microarchitecture::Core2);
    let all = DebugCtl::LBR | DebugCtl::BTF | DebugCtl::TR | DebugCtl::BTS | DebugCtl::BTINT;
    assert_eq!(recorder.set_debugctl(all.bits()), Ok(()));
    recorder.clear_on_debug_exception();
    assert_eq!(recorder.debugctl(), 0x1C0);
    assert!(recorder.enabled(0) && recorder.enabled(3));
}

#[test]
fn the_ds_area_must_be_canonical() {
    let mut recorder = Recorder::new(Microarchitecture::Core2);
    for (la, expected) in [
        (0, Ok(())),
        (0x0000_7FFF_FFFF_FFFF, Ok(())),
        (0x0000_8000_0000_0000, Err(Gp)),
        (0x1234_0000_0000_0000, Err(Gp)),
        (0xFFFF_7FFF_FFFF_FFFF, Err(Gp)),
        (0xFFFF_8000_0000_0000, Ok(())),
        (u64::MAX, Ok(())),
    ] {
        let before = recorder.ds_area();
        assert_eq!(recorder.set_ds_area(la), expected, "{la:#x}");
        assert_eq!(
            recorder.ds_area(),
            if expected.is_ok() { la } else { before }
        );
    }
}
