//! Rights at every level of the tables, absent entries, reserved bits, accessed and dirty flags,
//! page-fault error codes.

use super::bench::{Bench, Setting};
use super::{A, D, FULL, NX, P, PS, Size, U, W, error};
use crate::common::records::{ALL, KERNEL_ONLY, USER_ONLY};

/// Every combination of rights in the entries of `levels` levels.
fn combinations(levels: usize) -> impl Iterator<Item = Vec<u64>> {
    (0..1usize << (3 * levels)).map(move |bits| {
        (0..levels)
            .map(|level| {
                let rights = bits >> (3 * level) & 7;
                P | if rights & 1 != 0 { W } else { 0 }
                    | if rights & 2 != 0 { U } else { 0 }
                    | if rights & 4 != 0 { NX } else { 0 }
            })
            .collect()
    })
}

fn every_combination_of_rights(size: Size) {
    let mut bench = Bench::new();
    // Each filter meets each setting: 24 settings, 3 filters, and a number of combinations that
    // neither divides.
    let mut filters = [ALL, USER_ONLY, KERNEL_ONLY].into_iter().cycle();
    for flags in combinations(size.levels()) {
        for setting in Setting::all() {
            let fault = setting.fault(&flags);
            if let Some(filter) = filters.next() {
                bench.check(size, &flags, setting, fault, filter);
            }
        }
        filters.next();
    }
}

#[test]
fn rights_of_all_levels_combine_for_a_page_of_4_kbytes() {
    every_combination_of_rights(Size::Small);
}

#[test]
fn rights_of_all_levels_combine_for_a_page_of_2_mbytes() {
    every_combination_of_rights(Size::Large);
}

#[test]
fn an_entry_without_p_faults_at_any_level() {
    let mut bench = Bench::new();
    for size in [Size::Small, Size::Large] {
        for level in 0..size.levels() {
            for rest in [0, W | U, NX, 1 << 51, u64::MAX << 12 & !NX] {
                for setting in Setting::all() {
                    let mut flags = vec![FULL; size.levels()];
                    flags[level] = rest;
                    bench.check(size, &flags, setting, Some(setting.error(0)), ALL);
                }
            }
        }
    }
}

#[test]
fn reserved_bits_fault_at_any_level() {
    let address = (40..52).map(|n| 1u64 << n);
    let mut bench = Bench::new();
    for size in [Size::Small, Size::Large] {
        for level in 0..size.levels() {
            let leaf = level == size.levels() - 1;
            let own: Vec<u64> = match (size, level) {
                // No pages of 512 or 1 GBytes.
                (_, 0 | 1) => vec![PS],
                (Size::Large, _) => (13..21).map(|n| 1 << n).collect(),
                _ => vec![],
            };
            for bit in address.clone().chain(own) {
                for setting in Setting::all() {
                    let mut flags = vec![FULL; size.levels()];
                    flags[level] |= bit;
                    let fault = setting.error(error::P | error::RSVD);
                    bench.check(size, &flags, setting, Some(fault), USER_ONLY);
                }
            }
            // PWT, PCD, bits that software may use, PAT; above the page, dirty and global mean
            // nothing.
            let pat = match (size, leaf) {
                (_, false) => D | 1 << 8,
                (Size::Small, true) => PS,
                (Size::Large, true) => 1 << 12,
            };
            for bit in [1 << 3, 1 << 4, 7 << 9, 0x7FF << 52, pat] {
                for setting in Setting::all() {
                    let mut flags = vec![FULL; size.levels()];
                    flags[level] |= bit;
                    bench.check(size, &flags, setting, None, KERNEL_ONLY);
                }
            }
        }
    }
}

#[test]
fn flags_that_are_set_stay_set() {
    let mut bench = Bench::new();
    for size in [Size::Small, Size::Large] {
        let mut flags = vec![FULL | A; size.levels()];
        flags[size.levels() - 1] |= D;
        for setting in Setting::all() {
            bench.check(size, &flags, setting, None, ALL);
        }
    }
}
