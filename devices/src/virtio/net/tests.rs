use std::os::unix::net::UnixDatagram;

use vm_memory::GuestAddress;

use super::super::testing::{Driver, RAM_SIZE};
use super::*;

const WRITE: u16 = 2;

/// A guest, and the host's end of its network.
fn network() -> (Driver<Net>, UnixDatagram) {
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    for end in [&ours, &theirs] {
        end.set_nonblocking(true).unwrap();
    }
    let address = "02:11:22:33:44:55".parse().unwrap();
    let mut driver = Driver::new(Net::new(Tap::from_fd(ours.into()), address));
    driver.start();
    (driver, theirs)
}

fn frame(len: usize, fill: u8) -> Vec<u8> {
    vec![fill; len]
}

/// The bytes that the guest sends for `frame`. The device ignores the header.
fn packet(frame: &[u8]) -> Vec<u8> {
    [&[0xFF; HEADER], frame].concat()
}

fn received(host: &UnixDatagram) -> Option<Vec<u8>> {
    let mut buffer = [0; 4096];
    let n = host.recv(&mut buffer).ok()?;
    Some(buffer[..n].to_vec())
}

#[test]
fn addresses_round_trip_through_text() {
    for text in ["02:00:00:00:00:01", "52:54:00:ab:cd:ef"] {
        assert_eq!(text.parse::<MacAddress>().unwrap().to_string(), text);
    }
    for bad in [
        "",
        "02:00:00:00:00",
        "02:00:00:00:00:01:02",
        "02:00:00:00:00:1",
        "02:00:00:00:00:+1",
        "02-00-00-00-00-01",
        "01:00:5e:00:00:01",
        "ff:ff:ff:ff:ff:ff",
        "00:00:00:00:00:00",
    ] {
        assert!(bad.parse::<MacAddress>().is_err(), "{bad}");
    }
    let of_name = |name| MacAddress::of_name(name).to_string();
    assert_eq!(of_name("tap0"), "02:d9:63:fc:ef:07");
    assert_ne!(of_name("tap0"), of_name("tap1"));
    assert!(of_name("tap1").parse::<MacAddress>().is_ok());
}

#[test]
fn the_configuration_has_the_address() {
    let (mut d, _host) = network();
    assert_eq!(d.get(0x008), 1);
    assert_eq!(d.get(0x100), 0x3322_1102);
    assert_eq!(d.get(0x104) & 0xFFFF, 0x5544);
    assert_eq!(d.get(0x108) >> 16, 1500);
    d.set(0x014, 0);
    assert_eq!(d.get(0x010) & 0x0FFF_FFFF, 1 << 3 | 1 << 5, "no offloads");
}

#[test]
fn transmitted_frames_reach_the_host() {
    let (mut d, host) = network();
    for len in [SHORTEST_FRAME, 60, 1514, LONGEST_FRAME] {
        d.exchange(TRANSMIT, &packet(&frame(len, 0xA5)), 0);
        assert_eq!(received(&host), Some(frame(len, 0xA5)));
    }
    // A chain of another length is completed and dropped.
    for len in [0, 1, SHORTEST_FRAME - 1, LONGEST_FRAME + 1, 65536] {
        d.exchange(TRANSMIT, &packet(&frame(len, 1)), 0);
    }
    d.exchange(TRANSMIT, &[0; HEADER - 1], 0);
    d.exchange(TRANSMIT, &[], 64);
    assert_eq!(received(&host), None);
    assert!(!d.device.is_broken());
}

#[test]
fn frames_of_the_host_are_received() {
    let (mut d, host) = network();
    let first = d.submit(RECEIVE, &[], 1526);
    let second = d.submit(RECEIVE, &[], 1526);
    d.notify(RECEIVE);
    assert_eq!(d.used(RECEIVE), None);
    assert!(d.device.awaits_frames());
    for (fill, request) in [(1, first), (2, second)] {
        host.send(&frame(60, fill)).unwrap();
        d.device.poll();
        assert_eq!(d.used(RECEIVE), Some((request.head, 72)));
        let mut expected = vec![0; HEADER];
        expected[NUM_BUFFERS] = 1;
        expected.extend(frame(60, fill));
        assert_eq!(d.bytes(request.reply, 72), expected);
    }
    // One more frame waits for a buffer. Meanwhile the device reads no frame from the host.
    host.send(&frame(60, 3)).unwrap();
    host.send(&frame(61, 4)).unwrap();
    d.device.poll();
    assert_eq!(d.used(RECEIVE), None);
    assert!(!d.device.awaits_frames());
    for len in [72, 73] {
        let request = d.submit(RECEIVE, &[], 1526);
        d.notify(RECEIVE);
        assert_eq!(d.used(RECEIVE), Some((request.head, len)));
    }
    assert!(d.device.awaits_frames());
}

#[test]
fn frames_without_room_are_lost() {
    let (mut d, host) = network();
    for len in [1, SHORTEST_FRAME - 1, LONGEST_FRAME + 1, 4000] {
        host.send(&frame(len, 1)).unwrap();
    }
    host.send(&frame(LONGEST_FRAME, 2)).unwrap();
    let small = d.submit(RECEIVE, &[], HEADER + LONGEST_FRAME - 1);
    let large = d.submit(RECEIVE, &[], HEADER + LONGEST_FRAME);
    d.notify(RECEIVE);
    assert_eq!(d.used(RECEIVE), Some((small.head, 0)));
    assert_eq!(d.used(RECEIVE), None);
    host.send(&frame(LONGEST_FRAME, 3)).unwrap();
    d.device.poll();
    let len = (HEADER + LONGEST_FRAME) as u32;
    assert_eq!(d.used(RECEIVE), Some((large.head, len)));
    // A chain without a writable buffer has no room.
    let none = d.submit(RECEIVE, &[7; 64], 0);
    host.send(&frame(60, 4)).unwrap();
    d.notify(RECEIVE);
    assert_eq!(d.used(RECEIVE), Some((none.head, 0)));
    assert!(!d.device.is_broken());
}

#[test]
fn frames_beyond_the_buffers_wait_on_the_host() {
    let (mut d, host) = network();
    for _ in 0..4 {
        d.submit(RECEIVE, &[], 1526);
    }
    let mut sent = 0;
    while host.send(&frame(60, 5)).is_ok() {
        sent += 1;
    }
    assert!(sent > 5);
    d.notify(RECEIVE);
    let taken = std::iter::from_fn(|| d.used(RECEIVE)).count();
    assert_eq!(taken, 4);
    // The device has one, and the others wait on the host.
    let mut more = 0;
    while host.send(&frame(60, 5)).is_ok() {
        more += 1;
    }
    assert_eq!(more, 5);
}

#[test]
fn a_device_without_a_driver_or_broken_receives_no_frames() {
    let (mut d, host) = network();
    host.send(&frame(60, 1)).unwrap();
    d.device.poll();
    assert!(!d.device.awaits_frames(), "a frame waits");
    d.set(0x070, 0);
    assert!(!d.device.awaits_frames(), "there is no driver");
    d.start();
    assert!(
        d.device.awaits_frames(),
        "the frame of the old driver is lost"
    );
    let request = d.submit(RECEIVE, &[], 1526);
    d.notify(RECEIVE);
    assert_eq!(d.used(RECEIVE), None);
    host.send(&frame(60, 2)).unwrap();
    d.device.poll();
    assert_eq!(d.used(RECEIVE), Some((request.head, 72)));

    // Buffers outside of memory, to write and to read.
    for queue in [RECEIVE, TRANSMIT] {
        d.start();
        let flags = if queue == RECEIVE { WRITE } else { 0 };
        d.write_descriptor(queue, 0, RAM_SIZE as u64 - 4, 1526, flags, 0);
        d.make_available(queue, 0);
        host.send(&frame(60, 3)).unwrap();
        d.notify(queue);
        assert!(d.device.is_broken());
        assert!(!d.device.awaits_frames());
    }
}

#[test]
fn endless_rings_are_bounded() {
    let (mut d, host) = network();
    // A chain that leads to itself.
    d.write_descriptor(TRANSMIT, 0, 0x10_0000, 16, 1, 0);
    d.make_available(TRANSMIT, 0);
    d.notify(TRANSMIT);
    assert!(received(&host).is_none_or(|frame| frame.len() <= LONGEST_FRAME));
    // The available ring lies where the used ring does, so that the device itself adds to it.
    d.start();
    let rings = Driver::<Net>::used_ring(TRANSMIT);
    d.set(0x030, TRANSMIT as u32);
    d.set(0x044, 0);
    d.set(0x090, rings as u32);
    d.set(0x044, 1);
    d.write_descriptor(TRANSMIT, 0, 0x10_0000, 72, 0, 0);
    let index = GuestAddress(rings + 2);
    vm_memory::Bytes::write_obj(&d.ram, 1u16, index).unwrap();
    d.notify(TRANSMIT);
    let sent = std::iter::from_fn(|| received(&host)).count();
    assert!(sent <= usize::from(QUEUE_SIZE), "{sent}");
}

#[test]
fn a_deleted_tap_device_is_not_polled() {
    let file = std::fs::File::open("/dev/null").unwrap();
    let address = MacAddress::of_name("x");
    let mut d = Driver::new(Net::new(Tap::from_fd(file.into()), address));
    d.start();
    d.submit(RECEIVE, &[], 1526);
    d.notify(RECEIVE);
    assert!(!d.device.awaits_frames(), "its descriptor is always ready");
    d.exchange(TRANSMIT, &packet(&frame(60, 1)), 0);
}

#[test]
fn a_restored_device_still_has_the_frame_that_waits() {
    let (mut d, host) = network();
    host.send(&frame(60, 7)).unwrap();
    // There is no buffer for it yet.
    d.device.poll();
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let address = "02:11:22:33:44:55".parse().unwrap();
    d.replace(Net::new(Tap::from_fd(ours.into()), address));
    let request = d.submit(RECEIVE, &[], 2000);
    d.notify(RECEIVE);
    assert_eq!(d.used(RECEIVE), Some((request.head, 72)));
    let bytes = d.bytes(request.reply, 72);
    assert_eq!((bytes[NUM_BUFFERS], &bytes[HEADER..]), (1, &[7; 60][..]));
    d.exchange(TRANSMIT, &packet(&frame(60, 9)), 0);
    theirs.set_nonblocking(true).unwrap();
    assert_eq!(received(&theirs), Some(frame(60, 9)));
}

#[test]
fn impossible_states_are_refused() {
    let (mut d, _host) = network();
    for len in [1, SHORTEST_FRAME - 1, LONGEST_FRAME + 1] {
        let waiting = vec![0; len];
        let state = DeviceState::Net(NetState { waiting });
        assert!(d.device.device_mut().restore(&state).is_err(), "{len}");
    }
    let other = DeviceState::Stateless;
    assert!(d.device.device_mut().restore(&other).is_err());
}
