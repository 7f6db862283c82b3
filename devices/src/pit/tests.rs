use super::*;
use crate::irqchip::{IrqChip, PicPorts};
use crate::{Shared, lock, shared};

fn pit() -> (Pit, Shared<IrqChip>) {
    let chip = shared(IrqChip::new(1, false));
    PicPorts::master(chip.clone()).write_byte(0, 1, 0xFE);
    (Pit::new(IrqLine::new(chip.clone(), 0)), chip)
}

/// Whether IRQ 0 is pending. Acknowledges it and sends EOI.
fn took_irq(chip: &Shared<IrqChip>) -> bool {
    let taken = lock(chip).acknowledge(0).is_some();
    PicPorts::master(chip.clone()).write_byte(0, 0, 0x20);
    taken
}

fn program(p: &mut Pit, now: u64, control: u8, count: u16) {
    p.write_byte(now, 3, control);
    for byte in count.to_le_bytes() {
        p.write_byte(now, u64::from(control >> 6), byte);
    }
}

fn read16(p: &mut Pit, now: u64, channel: u64) -> u16 {
    u16::from_le_bytes([p.read_byte(now, channel).0, p.read_byte(now, channel).0])
}

#[test]
fn clocks_and_times_agree() {
    for clock in [0, 1, 2, 11_932, PIT_HZ, PIT_HZ * 86_400 * 365] {
        assert_eq!(clocks(time_of(clock)), clock);
        assert!(clock == 0 || clocks(time_of(clock) - 1) == clock - 1);
    }
    assert_eq!(time_of(PIT_HZ), 1_000_000_000);
}

#[test]
fn mode_2_interrupts_without_drift() {
    let (mut p, chip) = pit();
    assert_eq!(p.next_deadline(), None);
    program(&mut p, 0, 0x34, 11_932);
    for n in 1..200 {
        let at = p.next_deadline().unwrap();
        assert_eq!(at, time_of(n * 11_932));
        p.tick(at - 1);
        assert!(!took_irq(&chip));
        p.tick(at);
        assert!(took_irq(&chip));
    }
    p.tick(time_of(10_000_000));
    assert!(took_irq(&chip));
    assert!(!took_irq(&chip), "missed edges are one interrupt");
}

#[test]
fn mode_0_and_4_interrupt_once() {
    for (control, delay) in [(0x30, 1000), (0x38, 1001)] {
        let (mut p, chip) = pit();
        program(&mut p, 0, control, 1000);
        let at = p.next_deadline().unwrap();
        assert_eq!(at, time_of(delay));
        p.tick(at);
        assert!(took_irq(&chip));
        assert_eq!(p.next_deadline(), None);
        p.tick(at + 1_000_000_000);
        assert!(!took_irq(&chip));
    }
}

#[test]
fn reprogramming_stops_the_old_count() {
    let (mut p, _chip) = pit();
    program(&mut p, 0, 0x34, 1000);
    p.write_byte(0, 3, 0x30);
    assert_eq!(p.next_deadline(), None, "no count yet");
    p.write_byte(0, 0, 0);
    assert_eq!(p.next_deadline(), None, "half a count");
    p.write_byte(0, 0, 1);
    assert_eq!(p.next_deadline(), Some(time_of(256)));
}

#[test]
fn counts_latch_and_read_back() {
    let (mut p, _chip) = pit();
    program(&mut p, 0, 0x34, 1000);
    assert_eq!(read16(&mut p, time_of(10), 0), 990);
    p.write_byte(time_of(10), 3, 0x00);
    assert_eq!(read16(&mut p, time_of(500), 0), 990, "latched");
    assert_eq!(read16(&mut p, time_of(500), 0), 500);
    p.write_byte(time_of(20), 3, 0xC2);
    assert_eq!(
        p.read_byte(0, 0).0,
        0xB4,
        "status: OUT high, low/high, mode 2"
    );
    assert_eq!(read16(&mut p, time_of(999), 0), 980);
    p.write_byte(0, 3, 0x34);
    p.write_byte(0, 3, 0xE2);
    assert_eq!(p.read_byte(0, 0).0, 0xF4, "null count");
    assert_eq!(p.read_byte(0, 3).0, 0xFF);
}

#[test]
fn mode_3_is_a_square_wave_and_bcd_counts_in_decimal() {
    let (mut p, _chip) = pit();
    program(&mut p, 0, 0x36, 1000);
    for (clock, count, out) in [
        (0, 1000, true),
        (100, 800, true),
        (500, 1000, false),
        (999, 2, false),
    ] {
        assert_eq!(
            (
                p.state.channels[0].count(clock),
                p.state.channels[0].out(clock)
            ),
            (count, out)
        );
    }
    program(&mut p, 0, 0x31, 0x1000);
    assert_eq!(p.state.channels[0].count(1), 0x0999);
    assert_eq!(p.state.channels[0].count(1001), 0x9999);
}

#[test]
fn linux_calibrates_with_channel_2() {
    let (mut p, _chip) = pit();
    p.write_port61(0, 0x01);
    program(&mut p, 0, 0xB0, 59_659);
    assert_eq!(p.read_port61(time_of(59_658)) & 0x20, 0);
    assert_eq!(p.read_port61(time_of(59_659)) & 0x21, 0x21);
    // The fast calibration reads the high byte only.
    program(&mut p, 0, 0xB0, 0xFFFF);
    let high = |p: &mut Pit, clock| read16(p, time_of(clock), 2) >> 8;
    assert_eq!(
        (high(&mut p, 255), high(&mut p, 256), high(&mut p, 512)),
        (0xFF, 0xFE, 0xFD)
    );
}

#[test]
fn the_gate_pauses_mode_0_and_restarts_mode_2() {
    let (mut p, _chip) = pit();
    p.write_port61(0, 1);
    program(&mut p, 0, 0xB0, 1000);
    p.write_port61(time_of(100), 0);
    assert_eq!(read16(&mut p, time_of(5000), 2), 900);
    p.write_port61(time_of(5000), 1);
    assert_eq!(read16(&mut p, time_of(5100), 2), 800);
    program(&mut p, 0, 0xB4, 1000);
    p.write_port61(time_of(100), 0);
    p.write_port61(time_of(200), 1);
    assert_eq!(read16(&mut p, time_of(201), 2), 999);
}

#[test]
fn the_refresh_bit_toggles() {
    let (p, _chip) = pit();
    assert_ne!(
        p.read_port61(time_of(0)) & 0x10,
        p.read_port61(time_of(18)) & 0x10
    );
}

#[test]
fn no_control_word_or_count_panics() {
    let (mut p, _chip) = pit();
    for control in 0..=255 {
        p.write_byte(u64::MAX, 3, control);
        for channel in 0..3 {
            for value in [0, 1, 0xFF] {
                p.write_byte(u64::MAX, channel, value);
                p.read_byte(u64::MAX, channel);
            }
        }
        p.next_deadline();
        p.read_port61(u64::MAX);
        p.write_port61(u64::MAX, control);
    }
}

#[test]
fn a_restored_timer_continues() {
    let (mut p, _) = pit();
    program(&mut p, 0, 0x34, 1000);
    p.write_byte(0, 3, 0x00);
    p.tick(900_000);
    let (mut restored, chip) = pit();
    restored.restore(&p.state()).unwrap();
    assert_eq!(restored.next_deadline(), p.next_deadline());
    assert_eq!(read16(&mut restored, 900_000, 0), 1000, "the latched count");
    let now = p.next_deadline().unwrap();
    assert!(!took_irq(&chip));
    assert_eq!(restored.tick(now), Effects::INTERRUPTS);
    assert!(took_irq(&chip));
}

#[test]
fn impossible_states_are_refused() {
    let states: [fn(&mut PitState); 2] =
        [|s| s.channels[1].gate = false, |s| s.channels[2].mode = 6];
    for change in states {
        let (mut p, _) = pit();
        let mut state = p.state();
        change(&mut state);
        let error = p.restore(&state).unwrap_err().to_string();
        assert!(error.contains("the 8254"), "{error}");
    }
}
