use super::*;

fn select(io: &mut IoApic, index: u8, value: u32) {
    io.write(IOREGSEL, u32::from(index));
    io.write(IOWIN, value);
}

fn get(io: &mut IoApic, index: u8) -> u32 {
    io.write(IOREGSEL, u32::from(index));
    io.read(IOWIN)
}

#[test]
fn registers_after_reset() {
    let mut io = IoApic::new();
    assert_eq!(get(&mut io, INDEX_VERSION), 0x0017_0020);
    assert_eq!(get(&mut io, INDEX_ID), 0);
    for index in 0x10..0x40 {
        assert_eq!(
            get(&mut io, index),
            if index % 2 == 0 { 0x1_0000 } else { 0 }
        );
    }
    for index in [3, 0x0F, 0x40, 0xFF] {
        select(&mut io, index, u32::MAX);
        assert_eq!(get(&mut io, index), 0);
    }
    select(&mut io, INDEX_ID, u32::MAX);
    assert_eq!(get(&mut io, INDEX_ID), 0x0F00_0000);
    select(&mut io, 0x10, u32::MAX);
    assert_eq!(get(&mut io, 0x10), 0x1_AFFF);
    select(&mut io, 0x11, u32::MAX);
    assert_eq!(get(&mut io, 0x11), 0xFF00_0000);
}

#[test]
fn an_edge_is_delivered_once_and_lost_when_masked() {
    let mut io = IoApic::new();
    io.set_line(4, true);
    select(&mut io, 0x18, 0x34);
    assert_eq!(io.next_message(0), None, "the edge came while masked");
    io.set_line(4, false);
    io.set_line(4, true);
    io.set_line(4, false);
    let (pin, message) = io.next_message(0).unwrap();
    assert_eq!((pin, message.vector, message.level), (4, 0x34, false));
    assert_eq!(message.destination, Destination::Physical(0));
    assert_eq!(io.next_message(5), None);
    io.delivered(4);
    assert_eq!(io.next_message(0), None);
}

#[test]
fn a_level_waits_for_eoi_and_returns_while_asserted() {
    let mut io = IoApic::new();
    select(&mut io, 0x1B, 0x0300_0000);
    select(&mut io, 0x1A, 0x8841);
    io.set_line(5, true);
    let (pin, message) = io.next_message(0).unwrap();
    assert_eq!(message.destination, Destination::Logical(3));
    assert!(message.level);
    io.delivered(pin);
    assert_eq!(get(&mut io, 0x1A), 0xC841);
    assert_eq!(io.next_message(0), None);
    io.eoi(0x40);
    assert_eq!(io.next_message(0), None, "another vector");
    io.write(EOIR, 0x41);
    assert!(io.next_message(0).is_some(), "still asserted");
    io.set_line(5, false);
    assert_eq!(io.next_message(0), None);
}

#[test]
fn switching_to_edge_clears_remote_irr() {
    let mut io = IoApic::new();
    select(&mut io, 0x1A, 0x8041);
    io.set_line(5, true);
    io.delivered(5);
    select(&mut io, 0x1A, 0x1_0041);
    select(&mut io, 0x1A, 0x1_8041);
    assert_eq!(get(&mut io, 0x1A), 0x1_8041);
}

#[test]
fn pins_that_do_not_exist_are_ignored() {
    let mut io = IoApic::new();
    io.set_line(24, true);
    io.set_line(u32::MAX, true);
    io.delivered(31);
    assert_eq!(io.next_message(0), None);
    assert_eq!(io.next_message(32), None);
}

#[test]
fn impossible_states_are_refused() {
    let states: [fn(&mut IoApicState); 3] = [
        |s| s.id = 0x10,
        |s| s.edges = 1 << 24,
        |s| s.redirection[3] = 1 << 12,
    ];
    for change in states {
        let mut io = IoApic::new();
        let mut state = io.state();
        change(&mut state);
        let error = io.restore(&state).unwrap_err().to_string();
        assert!(error.contains("the I/O APIC"), "{error}");
    }
}
