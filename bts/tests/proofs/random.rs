//! Random arguments.

use proptest::prelude::*;
use vbts_bts::BtsFields;

use crate::values::{Given, HOLE, HOLE_END, NEHALEM};

/// Any address, more often one near another one or near the end of a half.
fn address(near: u64) -> impl Strategy<Value = u64> {
    let around = move |middle: u64| (0u64..400).prop_map(move |n| middle.wrapping_add(n) - 200);
    prop_oneof![
        4 => around(near),
        1 => around(HOLE),
        1 => around(HOLE_END),
        1 => any::<u64>(),
        1 => 0u64..400,
        1 => (0u64..400).prop_map(|n| !n),
    ]
}

/// Random arguments of the properties.
pub fn given() -> impl Strategy<Value = (Given, u64)> {
    let middle = prop_oneof![Just(0x1000u64), Just(HOLE), Just(HOLE_END), any::<u64>()];
    middle
        .prop_filter("room below", |near| *near >= 200)
        .prop_flat_map(|near| {
            let debugctl = prop_oneof![0u64..0x8000, any::<u64>()];
            let fields = [(); 5].map(|()| address(near).prop_map(|a| a & !3));
            (address(near), debugctl, fields)
        })
        .prop_map(
            |(ds_area, debugctl, [base, index, end, threshold, other])| {
                let fields = BtsFields {
                    base,
                    index,
                    absolute_maximum: end,
                    threshold,
                };
                (
                    Given {
                        processor: NEHALEM,
                        ds_area,
                        debugctl,
                        fields,
                    },
                    other,
                )
            },
        )
}
