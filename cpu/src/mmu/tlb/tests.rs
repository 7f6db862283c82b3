//! Tests of the TLB.

use super::*;
use crate::mmu::ram::GuestRam;
use crate::mmu::translations::{Translation, Translations};

const CLASS: Privilege = Privilege::Supervisor;

fn hit(gpa: u64, write_tracked: bool) -> Hit {
    Hit {
        host: std::ptr::without_provenance_mut(0x7000),
        gpa,
        write_tracked,
        global: false,
    }
}

#[test]
fn write_tracked_pages_are_found_and_not_hit() {
    let pages = [0, 0x7FFF_FFFF_F000, !0 << 47, !0xFFF];
    for la in pages {
        let mut tlb = Tlb::new();
        let write = |tlb: &Tlb, la| tlb.fast(la, 1, Access::Write).is_some();
        let found = |tlb: &Tlb, la| {
            let hit = tlb.find(la, Access::Write, CLASS);
            hit.map(|hit| (hit.gpa, hit.write_tracked))
        };
        for other in pages {
            assert!(!write(&tlb, other) && found(&tlb, other).is_none());
        }
        for tracked in [false, true] {
            tlb.insert(la, Access::Write, CLASS, hit(0x5000, tracked), false);
            for at in [tracked, !tracked, tracked] {
                tlb.set_write_tracked(0x6000, !at);
                tlb.set_write_tracked(0x5000, at);
                tlb.update_write_tracked(|gpa| (gpa == 0x5000) == at);
                assert_eq!(found(&tlb, la + 8), Some((0x5008, at)));
                assert_eq!(write(&tlb, la), !at);
                assert!(tlb.fast(la, 1, Access::Read).is_none());
                // The access ends in another page, and the page is none of another address.
                assert!(tlb.fast(la + 0xFFF, 2, Access::Write).is_none());
                assert_eq!(found(&tlb, la ^ 1 << 62), None);
                assert_eq!(found(&tlb, la ^ 1 << 63), None);
            }
            tlb.flush_page(la ^ 0x1000);
            assert!(found(&tlb, la).is_some());
            tlb.flush_page(la);
            assert_eq!(found(&tlb, la), None);
        }
    }
}

#[test]
fn translations_are_loaded_as_they_were_saved() {
    let mut memory = vec![0u128; 0x8000 / 16];
    let host = std::ptr::NonNull::new(memory.as_mut_ptr().cast()).unwrap();
    // SAFETY: the memory is not accessed meanwhile.
    let ram = unsafe { GuestRam::new(&[(0x10_0000, 0x8000, host)]) };
    let mut tlb = Tlb::new();
    let entries = [
        (0, Access::Read, Privilege::Supervisor, 0x10_0000, false),
        (
            0x7000_0000_0000,
            Access::Write,
            Privilege::User,
            0x10_1000,
            false,
        ),
        (
            !0xFFF,
            Access::Write,
            Privilege::SupervisorPages,
            0x10_2000,
            true,
        ),
        (
            !0xFFF,
            Access::Execute,
            Privilege::Supervisor,
            0x10_3000,
            true,
        ),
        (0x1000, Access::Execute, Privilege::User, 0x10_4000, false),
    ];
    let enter = |tlb: &mut Tlb| {
        for (la, kind, class, gpa, global) in entries {
            let hit = Hit {
                global,
                ..hit(gpa, false)
            };
            match kind {
                Access::Execute => assert!(!tlb.insert_fetched(la, class, hit)),
                _ => tlb.insert(la, kind, class, hit, false),
            }
        }
    };
    enter(&mut tlb);
    // What was flushed counts, and global translations stay.
    tlb.flush(true);
    let global = tlb.save();
    enter(&mut tlb);
    tlb.insert_large(0x40_0000);
    let all = tlb.save();
    for saved in [&all, &global, &all] {
        let mut loaded = Tlb::new();
        loaded.insert(0x5000, Access::Read, CLASS, hit(0x10_0000, false), false);
        assert!(loaded.load(saved, &ram, |gpa| gpa == 0x10_1000));
        assert_eq!(loaded.save(), *saved);
        assert!(loaded.find(0x5000, Access::Read, CLASS).is_none());
        for (la, kind, class, gpa, is_global) in entries {
            let found = match kind {
                Access::Execute => loaded.find_fetched(la, class),
                _ => loaded.find(la, kind, class),
            };
            assert_eq!(found.is_some(), is_global || saved == &all);
            if let Some(hit) = found {
                assert_eq!((hit.gpa, hit.global), (gpa, is_global));
                assert_eq!(
                    hit.host.addr(),
                    host.as_ptr().addr() + gpa as usize - 0x10_0000
                );
                assert_eq!(hit.write_tracked, gpa == 0x10_1000);
            }
        }
        let mut writable = Vec::new();
        loaded.writable_pages(|gpa| writable.push(gpa));
        let both = [0x10_1000, 0x10_2000];
        assert_eq!(writable, if saved == &all { &both[..] } else { &both[1..] });
    }
    let other = [
        Translation::new(0, 0x20_0000, false, Access::Read, CLASS),
        Translation::new(1 << 50, 0x10_0000, false, Access::Read, CLASS),
        Translation::new(0, 0x10_0000, false, Access::Read, Privilege::UserAligned),
    ];
    for data in other {
        let saved = Translations {
            data: vec![data],
            ..all.clone()
        };
        assert!(!tlb.load(&saved, &ram, |_| false), "{data:?}");
    }
    let large = vec![0];
    assert!(!tlb.load(&Translations { large, ..all }, &ram, |_| false));
}

#[test]
fn a_flush_keeps_global_entries_of_each_kind() {
    let kinds = [Access::Read, Access::Write, Access::Execute];
    let mut tlb = Tlb::new();
    for (n, kind) in (1u64..).zip(kinds) {
        let global = kind == Access::Write;
        let hit = Hit {
            global,
            ..hit(n << 12, false)
        };
        tlb.insert(0x40_0000, kind, CLASS, hit, false);
    }
    let left = |tlb: &Tlb| kinds.map(|kind| tlb.find(0x40_0000, kind, CLASS).map(|hit| hit.gpa));
    assert_eq!(left(&tlb), [Some(0x1000), Some(0x2000), Some(0x3000)]);
    tlb.flush(true);
    assert_eq!(left(&tlb), [None, Some(0x2000), None]);
    tlb.insert_large(0x40_0000);
    assert!(tlb.flush_page(0x5F_F000));
    assert_eq!(left(&tlb), [None; 3]);
}
