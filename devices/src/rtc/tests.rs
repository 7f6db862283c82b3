use super::civil::DAY;
use super::*;
use crate::irqchip::{IrqChip, PicPorts};
use crate::{Shared, lock, shared};

const SECOND: u64 = NS_PER_SECOND;
/// 2026-11-20 13:58:47 UTC, a Friday.
const EPOCH: u64 = 1_795_183_127;

fn rtc() -> (Rtc, Shared<IrqChip>) {
    let chip = shared(IrqChip::new(1, false));
    PicPorts::master(chip.clone()).write_byte(0, 1, 0xFB);
    PicPorts::slave(chip.clone()).write_byte(0, 1, 0xFE);
    (Rtc::new(IrqLine::new(chip.clone(), 8), EPOCH), chip)
}

fn get(r: &mut Rtc, now: u64, index: u8) -> u8 {
    r.write_byte(now, 0, index);
    r.read_byte(now, 1).0
}

fn set(r: &mut Rtc, now: u64, index: u8, value: u8) {
    r.write_byte(now, 0, index);
    r.write_byte(now, 1, value);
}

fn time(r: &mut Rtc, now: u64) -> [u8; 8] {
    [
        CENTURY,
        YEAR,
        MONTH,
        DAY_OF_MONTH,
        DAY_OF_WEEK,
        HOURS,
        MINUTES,
        SECONDS,
    ]
    .map(|index| get(r, now, index))
}

#[test]
fn civil_dates_round_trip() {
    for (epoch, year, month, day, weekday) in [
        (0, 1970, 1, 1, 5),
        (951_782_400, 2000, 2, 29, 3),
        (4_107_542_400, 2100, 3, 1, 2),
        (1_795_183_127, 2026, 11, 20, 6),
    ] {
        let t = Civil::from_epoch(epoch);
        assert_eq!(
            (t.year, t.month, t.day, t.day_of_week()),
            (year, month, day, weekday)
        );
        assert_eq!(t.epoch(), epoch);
    }
    for days in -200_000..200_000 {
        assert_eq!(Civil::from_epoch(days * DAY).epoch(), days * DAY);
    }
}

#[test]
fn the_clock_runs_on_virtual_time() {
    let (mut r, _chip) = rtc();
    assert_eq!(
        time(&mut r, 0),
        [0x20, 0x26, 0x11, 0x20, 6, 0x13, 0x58, 0x47]
    );
    assert_eq!(
        time(&mut r, 73 * SECOND),
        [0x20, 0x26, 0x11, 0x20, 6, 0x14, 0x00, 0x00]
    );
    set(&mut r, 0, STATUS_B, B_BINARY);
    assert_eq!(
        time(&mut r, 0),
        [20, 26, 11, 20, 6, 0x81, 58, 47],
        "12-hour, 1 p.m."
    );
    assert_eq!(get(&mut r, 0, STATUS_D), D_VALID);
}

#[test]
fn update_in_progress_precedes_the_second() {
    let (mut r, _chip) = rtc();
    assert_eq!(get(&mut r, SECOND - UIP_NS - 1, STATUS_A), A_RESET);
    assert_eq!(get(&mut r, SECOND - UIP_NS, STATUS_A), A_RESET | A_UIP);
    assert_eq!(get(&mut r, SECOND, STATUS_A), A_RESET);
}

#[test]
fn the_time_can_be_set() {
    let (mut r, _chip) = rtc();
    set(&mut r, 0, STATUS_B, B_SET | B_24_HOURS);
    let values = [
        (CENTURY, 0x19),
        (YEAR, 0x99),
        (MONTH, 0x12),
        (DAY_OF_MONTH, 0x31),
    ];
    for (index, value) in
        values
            .into_iter()
            .chain([(HOURS, 0x23), (MINUTES, 0x59), (SECONDS, 0x58)])
    {
        set(&mut r, 10 * SECOND, index, value);
    }
    assert_eq!(get(&mut r, 20 * SECOND, SECONDS), 0x58, "stopped");
    set(&mut r, 20 * SECOND, STATUS_B, B_24_HOURS);
    assert_eq!(time(&mut r, 22 * SECOND), [0x20, 0, 1, 1, 7, 0, 0, 0]);
}

#[test]
fn hostile_time_values_do_not_panic() {
    let (mut r, _chip) = rtc();
    for value in [0, 0x7F, 0x9A, 0xFF] {
        for b in [0, B_SET, B_BINARY, B_24_HOURS] {
            set(&mut r, 0, STATUS_B, b | PERIODIC | ALARM | UPDATE);
            for index in 0..128 {
                if index != STATUS_B {
                    set(&mut r, 0, index, value);
                    get(&mut r, u64::MAX, index);
                    r.next_deadline();
                }
            }
        }
    }
}

#[test]
fn memory_reads_back() {
    let (mut r, _chip) = rtc();
    set(&mut r, 0, 0x8F, 0xA5);
    assert_eq!(get(&mut r, 0, 0x0F), 0xA5);
    assert_eq!(r.read_byte(0, 0).0, 0xFF);
}

#[test]
fn an_update_interrupts_once_until_status_c_is_read() {
    let (mut r, chip) = rtc();
    assert_eq!(r.next_deadline(), None);
    set(&mut r, 100, STATUS_B, B_24_HOURS | UPDATE);
    assert_eq!(r.next_deadline(), Some(SECOND));
    r.tick(SECOND - 1);
    assert!(!lock(&chip).intr_pending(0));
    r.tick(SECOND);
    assert!(lock(&chip).intr_pending(0));
    assert_eq!(
        r.next_deadline(),
        None,
        "no interrupt until the flag is read"
    );
    assert_eq!(
        get(&mut r, SECOND, STATUS_C) & (C_IRQF | UPDATE),
        C_IRQF | UPDATE
    );
    assert_eq!(get(&mut r, SECOND, STATUS_C), 0);
    assert_eq!(r.next_deadline(), Some(2 * SECOND));
}

#[test]
fn the_alarm_interrupts_when_its_fields_match() {
    let (mut r, chip) = rtc();
    set(&mut r, 0, STATUS_B, B_24_HOURS | ALARM);
    for (fields, seconds) in [
        ([0x50, 0x58, 0x13], 3),
        ([0x46, 0x58, 0x13], DAY as u64 - 1),
        ([0x00, 0xFF, 0xFF], 13),
        ([0xC0, 0x00, 0x14], 73),
        ([0xFF, 0xFF, 0xFF], 1),
    ] {
        for (index, value) in [SECONDS_ALARM, MINUTES_ALARM, HOURS_ALARM]
            .into_iter()
            .zip(fields)
        {
            set(&mut r, 0, index, value);
        }
        assert_eq!(r.next_deadline(), Some(seconds * SECOND), "{fields:x?}");
    }
    set(&mut r, 0, SECONDS_ALARM, 0x99);
    assert_eq!(r.next_deadline(), None, "never matches");
    set(&mut r, 0, SECONDS_ALARM, 0x48);
    r.tick(SECOND);
    assert!(lock(&chip).intr_pending(0));
    assert_ne!(get(&mut r, SECOND, STATUS_C) & ALARM, 0);
}

#[test]
fn each_rate_has_its_period() {
    let (mut r, _chip) = rtc();
    set(&mut r, 0, STATUS_B, B_24_HOURS | PERIODIC);
    for (rate, hz) in [(6, 1024), (15, 2), (3, 8192), (1, 256), (2, 128)] {
        set(&mut r, 0, STATUS_A, 0x20 | rate);
        assert_eq!(r.next_deadline(), Some(SECOND / hz), "rate {rate}");
    }
    set(&mut r, 0, STATUS_A, 0x20);
    assert_eq!(r.next_deadline(), None);
}

#[test]
fn a_restored_clock_continues() {
    let (mut r, _) = rtc();
    set(&mut r, 0, STATUS_B, B_24_HOURS | UPDATE);
    set(&mut r, 0, 0x7F, 0x5A);
    r.tick(SECOND);
    let (mut restored, chip) = rtc();
    restored.restore(&r.state()).unwrap();
    assert_eq!(restored.state(), r.state());
    assert_eq!(get(&mut restored, SECOND, 0x7F), 0x5A);
    assert_eq!(time(&mut restored, SECOND), time(&mut r, SECOND));
    // The line was restored to its high level: reading status C lowers it.
    restored.write_byte(SECOND, 0, STATUS_C);
    assert_eq!(
        restored.read_byte(SECOND, 1),
        (C_IRQF | UPDATE | PERIODIC, Effects::INTERRUPTS)
    );
    assert!(lock(&chip).acknowledge(0).is_none());
}

#[test]
fn impossible_states_are_refused() {
    let far = |year| Civil {
        year,
        ..Civil::from_epoch(0)
    };
    let stop = |s: &mut RtcState, time| {
        s.status_b |= B_SET;
        s.stopped = Some(time);
    };
    let states: [&dyn Fn(&mut RtcState); 9] = [
        &|s| s.index = 0x80,
        &|s| s.status_a = A_UIP,
        &|s| s.status_c = C_IRQF,
        &|s| s.epoch = i64::MAX,
        &|s| s.epoch = i64::MIN,
        &|s| s.status_b = B_SET,
        &|s| s.stopped = Some(far(2000)),
        &|s| stop(s, far(i64::MIN)),
        &|s| stop(s, Civil { day: -1, ..far(1) }),
    ];
    for (n, change) in states.iter().enumerate() {
        let (mut r, _) = rtc();
        let mut state = r.state();
        change(&mut state);
        assert!(r.restore(&state).is_err(), "{n}");
    }
}

#[test]
fn the_limits_of_a_restored_time_do_not_overflow() {
    let limit = 1 << 37;
    for year in [-limit, limit] {
        let (mut r, _) = rtc();
        let mut state = r.state();
        state.status_b |= B_SET;
        let most = 267;
        state.stopped = Some(Civil {
            year,
            month: most,
            day: most,
            hour: most,
            minute: most,
            second: most,
        });
        r.restore(&state).unwrap();
        time(&mut r, SECOND);
        set(&mut r, SECOND, STATUS_B, B_24_HOURS | ALARM);
        r.next_deadline();
        r.tick(u64::MAX);
        time(&mut r, u64::MAX);
    }
    for epoch in [-(1 << 62), 1 << 62] {
        let (mut r, _) = rtc();
        let state = RtcState {
            epoch,
            status_b: ALARM,
            ..r.state()
        };
        r.restore(&state).unwrap();
        r.next_deadline();
        r.tick(u64::MAX);
        time(&mut r, u64::MAX);
    }
}
