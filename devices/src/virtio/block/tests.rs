use super::super::budget::{Budget, MAX_BYTES_AT_ONCE};
use super::super::mmio::VirtioTransport;
use super::super::testing::{Driver, NEXT, WRITE};
use super::*;
use crate::disk::tests::TemporaryFile;

const SECTORS: usize = 512;

/// A disk. All bytes of sector *n* have the value *n*.
fn file() -> TemporaryFile {
    let contents: Vec<u8> = (0..SECTORS)
        .flat_map(|n| [n as u8; SECTOR as usize])
        .collect();
    TemporaryFile::new(&contents)
}

fn driver(file: &TemporaryFile, writable: bool) -> Driver<Block> {
    let disk = Disk::open(file.path(), writable).unwrap();
    let mut driver = Driver::new(Block::new(disk, "test"));
    driver.start();
    driver
}

fn header(kind: u32, sector: u64) -> Vec<u8> {
    let mut header = kind.to_le_bytes().to_vec();
    header.extend([0; 4]);
    header.extend(sector.to_le_bytes());
    header
}

fn out(kind: u32, sector: u64, data: &[u8]) -> Vec<u8> {
    [header(kind, sector), data.to_vec()].concat()
}

fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    let mut range = sector.to_le_bytes().to_vec();
    range.extend(sectors.to_le_bytes());
    range.extend(flags.to_le_bytes());
    range
}

/// The status of a request, which is the only byte that it writes.
fn status_of(driver: &mut Driver<Block>, request: &[u8]) -> u8 {
    let answer = driver.exchange(0, request, 1);
    assert_eq!(answer.len(), 1);
    answer[0]
}

#[test]
fn the_configuration_tells_size_and_limits() {
    let file = file();
    let mut d = driver(&file, true);
    assert_eq!(d.get(0x008), 2);
    assert_eq!((d.get(0x100), d.get(0x104)), (SECTORS as u32, 0));
    assert_eq!((d.get(0x108), d.get(0x10C)), (SIZE_MAX, SEG_MAX));
    assert_eq!(d.get(0x114), 512);
    assert_eq!(
        [0x124, 0x128, 0x12C].map(|at| d.get(at)),
        [MAX_DISCARD_SECTORS, MAX_DISCARD_RANGES, 1]
    );
    assert_eq!(
        [0x130, 0x134, 0x138].map(|at| d.get(at)),
        [MAX_ZERO_SECTORS, MAX_ZERO_RANGES, 1]
    );
    d.set(0x014, 0);
    let features = u64::from(d.get(0x010));
    assert_eq!(features & feature::RO, 0);
    assert_ne!(features & feature::DISCARD, 0);
    const { assert!((SIZE_MAX as u64) * (SEG_MAX as u64) + 17 <= 4 << 20) };
}

#[test]
fn sectors_are_read_and_written() {
    let file = file();
    let mut d = driver(&file, true);
    let answer = d.exchange(0, &header(request::IN, 7), 1025);
    assert_eq!(answer[..512], [7; 512]);
    assert_eq!(answer[512..], [&[8; 512][..], &[0]].concat());
    assert_eq!(
        status_of(&mut d, &out(request::OUT, 7, &[0xAA; 1024])),
        request::OK
    );
    let contents = file.contents();
    assert_eq!(contents[7 * 512 - 1..=7 * 512], [6, 0xAA]);
    assert_eq!(contents[9 * 512 - 1..=9 * 512], [0xAA, 9]);
    // More than a piece.
    let all = d.exchange(0, &header(request::IN, 0), SECTORS * 512 + 1);
    assert_eq!(
        (&all[..SECTORS * 512], all.last()),
        (&contents[..], Some(&0))
    );
    let new: Vec<u8> = (0..200 * 512).map(|n| n as u8 ^ 0x5A).collect();
    assert_eq!(
        status_of(&mut d, &out(request::OUT, 300, &new)),
        request::OK
    );
    assert_eq!(file.contents()[300 * 512..500 * 512], new);
    assert_eq!(status_of(&mut d, &header(request::FLUSH, 0)), request::OK);
}

#[test]
fn sectors_outside_the_disk_are_errors() {
    let file = file();
    let before = file.contents();
    let mut d = driver(&file, true);
    let last = SECTORS as u64 - 1;
    for sector in [SECTORS as u64, last + 7, 1 << 55, u64::MAX] {
        let request = d.submit(0, &header(request::IN, sector), 513);
        d.notify(0);
        assert_eq!(d.used(0), Some((request.head, 0)));
        let status = vm_memory::GuestAddress(request.reply.0 + 512);
        assert_eq!(d.bytes(status, 1), [request::IOERR]);
        let write = out(request::OUT, sector, &[1; 512]);
        assert_eq!(status_of(&mut d, &write), request::IOERR);
    }
    for (sector, len) in [(last, 1024), (0, 511), (0, 1)] {
        let write = out(request::OUT, sector, &vec![1; len]);
        assert_eq!(status_of(&mut d, &write), request::IOERR);
    }
    assert_eq!(file.contents(), before);
    assert!(!d.device.is_broken());
}

#[test]
fn a_read_only_disk_is_not_written() {
    let file = file();
    let before = file.contents();
    let mut d = driver(&file, false);
    d.set(0x014, 0);
    let features = u64::from(d.get(0x010));
    assert_ne!(features & feature::RO, 0);
    assert_eq!(features & (feature::DISCARD | feature::WRITE_ZEROES), 0);
    for request in [
        out(request::OUT, 0, &[1; 512]),
        out(request::DISCARD, 0, &range(0, 1, 0)),
        out(request::WRITE_ZEROES, 0, &range(0, 1, 0)),
    ] {
        assert_eq!(status_of(&mut d, &request), request::IOERR);
    }
    assert_eq!(status_of(&mut d, &header(request::FLUSH, 0)), request::OK);
    assert_eq!(d.exchange(0, &header(request::IN, 3), 513)[511..], [3, 0]);
    assert_eq!(file.contents(), before);
}

#[test]
fn ranges_become_zero() {
    let file = file();
    let mut d = driver(&file, true);
    for flags in [0, UNMAP] {
        let zeros = range(2 + u64::from(flags), 1, flags);
        let request = out(request::WRITE_ZEROES, 0, &zeros);
        assert_eq!(status_of(&mut d, &request), request::OK);
    }
    let two = [range(8, 1, 0), range(16, 1, 0)].concat();
    assert_eq!(
        status_of(&mut d, &out(request::DISCARD, 0, &two)),
        request::OK
    );
    let contents = file.contents();
    let sector = |n: usize| contents[n * 512];
    assert_eq!([1, 2, 3, 4, 9, 17].map(sector), [1, 0, 0, 4, 9, 17]);
    assert_eq!(contents.len(), SECTORS * 512);
}

#[test]
fn bad_ranges_are_refused() {
    let file = file();
    let before = file.contents();
    let mut d = driver(&file, true);
    let many = [range(0, 1, 0)].concat().repeat(33);
    for (kind, data, expected) in [
        (request::DISCARD, range(0, 1, UNMAP), request::UNSUPP),
        (request::DISCARD, range(511, 2, 0), request::IOERR),
        (request::DISCARD, range(u64::MAX, 1, 0), request::IOERR),
        (request::DISCARD, vec![], request::IOERR),
        (request::DISCARD, vec![0; 17], request::IOERR),
        (request::DISCARD, many, request::IOERR),
        (request::WRITE_ZEROES, range(0, 1, 2), request::UNSUPP),
        (request::WRITE_ZEROES, range(1, 512, 0), request::IOERR),
        (
            request::WRITE_ZEROES,
            [range(0, 1, 0), range(1, 1, 0)].concat(),
            request::IOERR,
        ),
    ] {
        assert_eq!(status_of(&mut d, &out(kind, 0, &data)), expected);
    }
    assert_eq!(file.contents(), before);
}

#[test]
fn the_id_is_read_and_bad_requests_are_refused() {
    let file = file();
    let mut d = driver(&file, true);
    let answer = d.exchange(0, &header(request::GET_ID, 0), 21);
    assert_eq!(&answer[..5], b"test\0");
    assert_eq!((answer.len(), answer[20]), (21, 0));
    assert_eq!(status_of(&mut d, &header(99, 0)), request::UNSUPP);
    assert_eq!(status_of(&mut d, &[0; 15]), request::IOERR, "short header");
    assert_eq!(d.exchange(0, &header(request::IN, 0), 0), []);
}

#[test]
fn a_shortened_file_is_an_io_error() {
    let file = file();
    let mut d = driver(&file, true);
    std::fs::OpenOptions::new()
        .write(true)
        .open(file.path())
        .unwrap()
        .set_len(512)
        .unwrap();
    let request = d.submit(0, &header(request::IN, 4), 513);
    d.notify(0);
    d.used(0).unwrap();
    let status = vm_memory::GuestAddress(request.reply.0 + 512);
    assert_eq!(d.bytes(status, 1), [request::IOERR]);
    assert_eq!(
        d.exchange(0, &header(request::IN, 0), 513)[512],
        request::OK
    );
}

#[test]
fn a_restored_device_writes_through_as_before() {
    let file = file();
    let device = || Block::new(Disk::open(file.path(), false).unwrap(), "test");
    for unused in [0, feature::FLUSH] {
        let mut d = Driver::new(device());
        d.set(0x070, 3);
        let features = d.get(0x010) & !(unused as u32);
        d.set(0x020, features);
        d.set(0x024, 1);
        d.set(0x020, 1);
        d.set(0x070, 0xB);
        d.set(0x070, 0xF);
        d.replace(device());
        assert_eq!(d.device.device_mut().write_through, unused != 0);
    }
}

#[test]
fn the_disk_has_to_be_the_same() {
    let file = file();
    let state = driver(&file, false).device.state().unwrap();
    let smaller = TemporaryFile::new(&[0; 512]);
    let mut other = driver(&smaller, true);
    let error = other.device.restore(&state).unwrap_err().to_string();
    assert!(error.contains("configured differently"), "{error}");
    let mut writable = driver(&file, true);
    let error = writable.device.restore(&state).unwrap_err().to_string();
    assert!(error.contains("features"), "{error}");
}

#[test]
fn an_error_of_the_host_is_an_error_of_the_request() {
    let mut d = Driver::new(Block::new(Disk::broken(), "test"));
    d.start();
    for request in [
        out(request::OUT, 0, &[1; 512]),
        out(request::WRITE_ZEROES, 0, &range(0, 1, 0)),
        header(request::FLUSH, 0),
    ] {
        assert_eq!(status_of(&mut d, &request), request::IOERR, "{request:?}");
    }
    let room = 512 + 1;
    let read = d.submit(0, &header(request::IN, 0), room);
    d.notify(0);
    // Nothing was read, so that the length does not count the status, which is the last byte.
    assert_eq!(d.used(0), Some((read.head, 0)));
    assert_eq!(d.bytes(read.reply, room)[512], request::IOERR);
    // The device goes on.
    assert!(!d.device.is_broken());
    assert_eq!(
        d.exchange(0, &header(request::GET_ID, 0), 21)[20],
        request::OK
    );
}

/// Bytes of a request of [`occupied`].
const LONG: u32 = 7 << 19;

/// A disk that shares `budget`, with a read of [`LONG`] bytes that is available a hundred times.
fn occupied(file: &TemporaryFile, budget: &Budget) -> Driver<Block> {
    const SEGMENT: u32 = 1 << 19;
    let device = Block::new(Disk::open(file.path(), false).unwrap(), "disk");
    let mut d = Driver::within(device, budget.clone());
    d.start();
    let (place, data) = (0x10_0000, 0x10_1000);
    let request = vm_memory::GuestAddress(place);
    vm_memory::Bytes::write_slice(&d.ram, &header(request::IN, 0), request).unwrap();
    d.write_descriptor(0, 0, place, HEADER as u32, NEXT, 1);
    let segments = (LONG / SEGMENT) as u16;
    for n in 1..=segments {
        d.write_descriptor(0, n, data, SEGMENT, NEXT | WRITE, n + 1);
    }
    d.write_descriptor(0, segments + 1, data, 1, WRITE, 0);
    (0..100).for_each(|_| d.make_available(0, 0));
    d
}

/// Requests that the device has served since the last call.
fn served(d: &mut Driver<Block>) -> u64 {
    std::iter::from_fn(|| d.used(0)).count() as u64
}

/// Requests that the devices serve until the run loop returns.
const AT_ONCE: u64 = MAX_BYTES_AT_ONCE.div_ceil(LONG as u64 + HEADER as u64 + 1);

#[test]
fn a_long_request_that_is_repeated_does_not_occupy_the_device() {
    let file = TemporaryFile::new(&vec![0; LONG as usize]);
    let mut d = occupied(&file, &Budget::default());
    // A block notifies the device with each of its instructions.
    (0..48).for_each(|_| d.notify_in_block(0));
    assert_eq!(served(&mut d), AT_ONCE);
    // The others are served when the run loop has returned.
    d.grant_budgets();
    assert_eq!(served(&mut d), AT_ONCE);
    assert!(!d.device.is_broken());
}

#[test]
fn many_devices_do_no_more_at_once_than_one() {
    let file = TemporaryFile::new(&vec![0; LONG as usize]);
    let budget = Budget::default();
    let mut disks: Vec<_> = (0..3).map(|_| occupied(&file, &budget)).collect();
    let all = |disks: &mut Vec<Driver<Block>>| disks.iter_mut().map(served).sum::<u64>();
    for _ in 0..48 {
        disks.iter_mut().for_each(|d| d.notify_in_block(0));
    }
    assert_eq!(all(&mut disks), AT_ONCE);
    let mut times = 1;
    loop {
        budget.renew();
        for disk in &mut disks {
            disk.device.grant_budget(0);
        }
        match all(&mut disks) {
            0 => break,
            some => assert!(some <= AT_ONCE, "{some}"),
        }
        times += 1;
    }
    assert_eq!(times, 300_u64.div_ceil(AT_ONCE), "all were served");
}
