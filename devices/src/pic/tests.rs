use super::PicPort::*;
use super::*;

/// A pair as Linux initializes it: vectors 0x30 and 0x38, normal EOI, no input masked.
fn initialized() -> DualPic {
    let mut p = DualPic::new();
    for (port, values) in [
        (MasterCommand, &[0x11][..]),
        (MasterData, &[0x30, 4, 1, 0]),
        (SlaveCommand, &[0x11]),
        (SlaveData, &[0x38, 2, 1, 0]),
    ] {
        values.iter().for_each(|v| p.write(port, *v));
    }
    p
}

fn pulse(p: &mut DualPic, input: u8) {
    p.set_line(input, true);
    p.set_line(input, false);
}

#[test]
fn the_mask_register_reads_back() {
    // Linux detects an 8259A by this.
    let mut p = DualPic::new();
    p.write(SlaveData, 0xFF);
    p.write(MasterData, 0xFB);
    assert_eq!((p.read(MasterData), p.read(SlaveData)), (0xFB, 0xFF));
}

#[test]
fn priorities_nest_and_the_cascade_works() {
    let mut p = initialized();
    pulse(&mut p, 4);
    pulse(&mut p, 8);
    assert!(p.intr());
    assert_eq!(p.acknowledge(), 0x38, "the slave is on IR2, above IR4");
    assert!(!p.intr(), "IR4 waits");
    pulse(&mut p, 0);
    assert_eq!(p.acknowledge(), 0x30);
    p.write(MasterCommand, 0x60);
    p.write(SlaveCommand, 0x60);
    assert!(!p.intr());
    p.write(MasterCommand, 0x62);
    assert_eq!(p.acknowledge(), 0x34);
    p.write(MasterCommand, 0x20);
    assert!(!p.intr());
}

#[test]
fn a_masked_edge_stays_pending() {
    let mut p = initialized();
    p.write(MasterData, 0x10);
    pulse(&mut p, 4);
    assert!(!p.intr());
    p.write(MasterData, 0);
    assert_eq!(p.acknowledge(), 0x34);
}

#[test]
fn a_level_returns_until_it_is_deasserted() {
    let mut p = initialized();
    p.write(MasterElcr, 0xFF);
    assert_eq!(p.read(MasterElcr), 0xF8);
    p.set_line(5, true);
    assert_eq!(p.acknowledge(), 0x35);
    p.write(MasterCommand, 0x65);
    assert!(p.intr());
    p.set_line(5, false);
    assert!(!p.intr());
    assert_eq!(p.acknowledge(), 0x37, "spurious");
    p.write(MasterCommand, 0x0B);
    assert_eq!(
        p.read(MasterCommand),
        0,
        "a spurious interrupt is not in service"
    );
}

#[test]
fn a_spurious_slave_interrupt_is_ir15() {
    let mut p = initialized();
    p.write(SlaveElcr, 0xFF);
    assert_eq!(p.read(SlaveElcr), 0xDE);
    p.set_line(9, true);
    assert!(p.intr());
    p.set_line(9, false);
    assert!(!p.intr());
}

#[test]
fn registers_read_through_ocw3() {
    let mut p = initialized();
    pulse(&mut p, 3);
    pulse(&mut p, 6);
    assert_eq!(p.read(MasterCommand), 0x48);
    p.acknowledge();
    assert_eq!(p.read(MasterCommand), 0x40);
    p.write(MasterCommand, 0x0B);
    assert_eq!(p.read(MasterCommand), 0x08);
    p.write(MasterCommand, 0x0A);
    assert_eq!(p.read(MasterCommand), 0x40);
}

#[test]
fn polling_acknowledges() {
    let mut p = initialized();
    pulse(&mut p, 1);
    p.write(MasterCommand, 0x0C);
    assert_eq!(p.read(MasterCommand), 0x81);
    assert!(!p.intr());
    p.write(MasterCommand, 0x0C);
    assert_eq!(p.read(MasterCommand), 0);
}

#[test]
fn auto_eoi_and_rotation() {
    let mut p = initialized();
    p.write(MasterCommand, 0x11);
    [0x30, 4, 3].iter().for_each(|v| p.write(MasterData, *v));
    p.write(MasterCommand, 0x80);
    pulse(&mut p, 0);
    pulse(&mut p, 1);
    assert_eq!(p.acknowledge(), 0x30);
    pulse(&mut p, 0);
    assert_eq!(p.acknowledge(), 0x31, "IR0 went to the end of the queue");
    assert_eq!(p.acknowledge(), 0x30);
}

#[test]
fn special_mask_mode_lets_lower_priorities_through() {
    let mut p = initialized();
    pulse(&mut p, 1);
    p.acknowledge();
    pulse(&mut p, 5);
    assert!(!p.intr());
    p.write(MasterData, 0x02);
    p.write(MasterCommand, 0x68);
    assert_eq!(p.acknowledge(), 0x35);
}

#[test]
fn a_restored_pair_continues() {
    let mut p = initialized();
    pulse(&mut p, 4);
    assert_eq!(p.acknowledge(), 0x34);
    pulse(&mut p, 3);
    pulse(&mut p, 9);
    let mut restored = DualPic::new();
    restored.restore(&p.state()).unwrap();
    assert_eq!(restored.state(), p.state());
    assert_eq!(restored.acknowledge(), 0x39, "above IR4, in service");
    restored.write(SlaveCommand, 0x20);
    restored.write(MasterCommand, 0x20);
    assert_eq!(restored.acknowledge(), 0x33);
}

#[test]
fn impossible_states_are_refused() {
    let states: [fn(&mut PicState); 4] = [
        |s| s.master.lowest = 8,
        |s| s.slave.lowest = 255,
        |s| s.master.vector_base = 1,
        |s| s.slave.elcr = 1,
    ];
    for change in states {
        let mut p = DualPic::new();
        let mut state = p.state();
        change(&mut state);
        let error = p.restore(&state).unwrap_err().to_string();
        assert!(error.contains("the 8259A pair"), "{error}");
    }
}
