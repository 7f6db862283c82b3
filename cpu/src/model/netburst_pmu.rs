//! Which events the counters of NetBurst can count, as data (SDM Vol. 3B 18.15, and tables 19-28
//! and 19-29).

use super::pmu::{Event, branches};
use crate::state::pmu::branch;

/// Pairs of event selection control registers (ESCRs), in the order of their MSR numbers: the index
/// in [`NetBurstPmu::escr`](crate::state::NetBurstPmu).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EscrPair {
    Bsu,
    Fsb,
    Firm,
    Flame,
    Dac,
    Mob,
    Pmh,
    Saat,
    U2l,
    Bpu,
    Is,
    Itlb,
    /// MSR_CRU_ESCR0 and 1.
    Cru0,
    /// The first models have these (Vol. 4).
    Iq,
    Rat,
    /// There is no MSR_SSU_ESCR1.
    Ssu,
    Ms,
    Tbpu,
    Tc,
    Ix,
    Alf,
    /// MSR_CRU_ESCR2 and 3.
    Cru2,
    /// MSR_CRU_ESCR4 and 5.
    Cru4,
}

/// The ESCRs that the field of a CCCR selects from, for each group of counters: BPU, MS, FLAME and
/// IQ (table 18-63).
const SELECTED: [[Option<EscrPair>; 8]; 4] = {
    use EscrPair::*;
    [
        [
            Some(Bpu),
            Some(Is),
            Some(Mob),
            Some(Itlb),
            Some(Pmh),
            Some(Ix),
            Some(Fsb),
            Some(Bsu),
        ],
        [Some(Ms), Some(Tc), Some(Tbpu), None, None, None, None, None],
        [
            Some(Flame),
            Some(Firm),
            Some(Saat),
            Some(U2l),
            None,
            Some(Dac),
            None,
            None,
        ],
        [
            Some(Iq),
            Some(Alf),
            Some(Rat),
            Some(Ssu),
            Some(Cru0),
            Some(Cru2),
            Some(Cru4),
            None,
        ],
    ]
};

/// The ESCRs from which a CCCR of counter `n` selects number `select`: a pair, and which of the two
/// this counter uses. Counters 0, 1, 4, 5, and so on, use the first.
pub(crate) fn selected(n: usize, select: usize) -> Option<(EscrPair, usize)> {
    let (group, half) = match n {
        16 | 17 => (3, n - 16),
        _ => (n / 4, n / 2 % 2),
    };
    let pair = (*SELECTED.get(group)?.get(select)?)?;
    Some((pair, half))
}

/// The counter whose overflow starts counter `n` if its CCCR has CASCADE (18.15.5.6).
pub(crate) const fn cascades_from(n: usize) -> usize {
    if n < 16 { n ^ 2 } else { n - 2 }
}

/// What an ESCR can select, and this processor counts.
struct Row {
    pair: EscrPair,
    /// The event select field.
    select: u64,
    /// For each bit of the event mask that selects something which happens here: what that is.
    mask: &'static [(u64, Event)],
    /// Only the later models have the event: those with Intel 64.
    later: bool,
}

/// No instruction is bogus, since this processor does not speculate. No instruction is tagged.
/// Each branch is predicted.
const EVENTS: [Row; 5] = {
    use branch::*;
    const CALL: u8 = branches(&[DIRECT_CALL, INDIRECT_CALL]);
    const INDIRECT: u8 = branches(&[RETURN, INDIRECT_CALL, INDIRECT_JUMP]);
    [
        // global_power_events: RUNNING.
        Row {
            pair: EscrPair::Fsb,
            select: 0x13,
            mask: &[(1 << 0, Event::Cycles)],
            later: false,
        },
        // instr_retired: NBOGUSNTAG.
        Row {
            pair: EscrPair::Cru0,
            select: 0x02,
            mask: &[(1 << 0, Event::Instructions)],
            later: false,
        },
        // instr_completed: NBOGUS.
        Row {
            pair: EscrPair::Cru0,
            select: 0x07,
            mask: &[(1 << 0, Event::Instructions)],
            later: true,
        },
        // branch_retired: MMNP, MMTP.
        Row {
            pair: EscrPair::Cru2,
            select: 0x06,
            mask: &[
                (1 << 0, Event::Branches(branches(&[NOT_TAKEN]))),
                (1 << 2, Event::TAKEN_BRANCHES),
            ],
            later: false,
        },
        // retired_branch_type: CONDITIONAL, CALL, RETURN, INDIRECT.
        Row {
            pair: EscrPair::Tbpu,
            select: 0x04,
            mask: &[
                (1 << 1, Event::CONDITIONAL_BRANCHES),
                (1 << 2, Event::Branches(CALL)),
                (1 << 3, Event::Branches(branches(&[RETURN]))),
                (1 << 4, Event::Branches(INDIRECT)),
            ],
            later: false,
        },
    ]
};

/// The event that an ESCR of a pair selects, `None` if it never occurs here. `later`: on a model
/// with Intel 64.
pub(crate) fn event(pair: EscrPair, select: u64, mask: u64, later: bool) -> Option<Event> {
    let there = |row: &&Row| row.pair == pair && row.select == select && (later || !row.later);
    let row = EVENTS.iter().find(there)?;
    let bits = row.mask.iter().filter(|(bit, _)| mask & bit != 0);
    bits.map(|(_, event)| *event).reduce(Event::or)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::model;
    use crate::model::msr::Kind;
    use crate::state::{NetBurstPmu, PmuRegister};

    /// The first MSR of each pair, in the order of [`EscrPair`] (table 18-63).
    const FIRST: [u32; NetBurstPmu::ESCR_PAIRS] = [
        0x3A0, 0x3A2, 0x3A4, 0x3A6, 0x3A8, 0x3AA, 0x3AC, 0x3AE, 0x3B0, 0x3B2, 0x3B4, 0x3B6, 0x3B8,
        0x3BA, 0x3BC, 0x3BE, 0x3C0, 0x3C2, 0x3C4, 0x3C8, 0x3CA, 0x3CC, 0x3E0,
    ];

    #[test]
    fn each_escr_has_its_number() {
        let m = model("pentium4").unwrap();
        for number in 0x3A0..0x3F0 {
            let expected = FIRST
                .iter()
                .position(|first| number & !1 == *first && number != 0x3BF)
                .map(|pair| PmuRegister::Escr(2 * pair + (number & 1) as usize));
            let found = m.msr(number).map(|(row, position)| match row.kind {
                Kind::Pmu(register) => register(position),
                kind => panic!("{number:#x}: {kind:?}"),
            });
            assert_eq!(found, expected, "{number:#x}");
        }
        assert_eq!(EscrPair::Cru4 as usize, FIRST.len() - 1);
    }

    #[test]
    fn a_counter_selects_the_registers_of_its_group() {
        // As in table 18-63: counter, field of the CCCR, MSR.
        let cases = [
            (0, 7, 0x3A0),
            (1, 6, 0x3A2),
            (2, 6, 0x3A3),
            (3, 0, 0x3B3),
            (0, 5, 0x3C8),
            (4, 2, 0x3C2),
            (7, 1, 0x3C5),
            (8, 5, 0x3A8),
            (11, 3, 0x3B1),
            (12, 4, 0x3B8),
            (13, 5, 0x3CC),
            (14, 5, 0x3CD),
            (15, 6, 0x3E1),
            (16, 4, 0x3B8),
            (17, 4, 0x3B9),
        ];
        for (counter, select, number) in cases {
            let (pair, half) = selected(counter, select).unwrap();
            assert_eq!(
                FIRST[pair as usize] + half as u32,
                number,
                "{counter} {select}"
            );
        }
        for (counter, select) in [(4, 3), (8, 4), (8, 6), (12, 7), (17, 7), (18, 0)] {
            assert_eq!(selected(counter, select), None, "{counter} {select}");
        }
        // Each pair serves one group.
        let all = SELECTED.iter().flatten().flatten();
        assert_eq!(all.count(), NetBurstPmu::ESCR_PAIRS);
    }

    #[test]
    fn counters_of_a_block_cascade() {
        for (counter, from) in [
            (0, 2),
            (2, 0),
            (1, 3),
            (13, 15),
            (15, 13),
            (16, 14),
            (17, 15),
        ] {
            assert_eq!(cascades_from(counter), from);
        }
    }

    #[test]
    fn what_the_event_mask_selects() {
        let of = |pair, select, mask| event(pair, select, mask, false);
        assert_eq!(of(EscrPair::Fsb, 0x13, 1), Some(Event::Cycles));
        assert_eq!(of(EscrPair::Fsb, 0x13, 2), None);
        assert_eq!(of(EscrPair::Bpu, 0x13, 1), None);
        // As perf selects instructions: also bogus ones.
        assert_eq!(of(EscrPair::Cru0, 2, 5), Some(Event::Instructions));
        assert_eq!(of(EscrPair::Cru0, 2, 4), None);
        assert_eq!(of(EscrPair::Cru0, 7, 1), None);
        assert_eq!(event(EscrPair::Cru0, 7, 1, true), Some(Event::Instructions));
        // Mispredicted ones never occur.
        assert_eq!(of(EscrPair::Cru2, 6, 0xF), Some(Event::ALL_BRANCHES));
        assert_eq!(of(EscrPair::Cru2, 6, 4), Some(Event::TAKEN_BRANCHES));
        assert_eq!(of(EscrPair::Cru2, 6, 0xA), None);
        // As perf selects branches: all but direct jumps and far ones.
        let near = branches(&[0, 1, 2, 3, 4, 5]);
        assert_eq!(of(EscrPair::Tbpu, 4, 0x1E), Some(Event::Branches(near)));
        assert_eq!(
            of(EscrPair::Tbpu, 4, 0x0C),
            Some(Event::Branches(branches(&[2, 3, 4])))
        );
        assert_eq!(of(EscrPair::Tbpu, 5, 0x1E), None);
    }
}
