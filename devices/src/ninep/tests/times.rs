//! The times of files that the guest changes, on its own clock.

use super::*;
use crate::ninep::times::NS_PER_SECOND;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

const S: i64 = NS_PER_SECOND;
/// What the guest's clock shows at virtual time 0: long before the host's.
const START: i64 = 1000 * S;

const MODE: u32 = 0o644;
/// Where Rgetattr has the times: after valid, qid, mode, uid, gid and five numbers.
const AT: usize = 8 + Qid::LEN + 3 * 4 + 5 * 8;

struct Guest {
    client: Client,
    directory: TempDir,
    clock: GuestClock,
}

impl Guest {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        write_file(&directory, "old", b"data");
        // Its times are before those of the server.
        std::thread::sleep(Duration::from_millis(20));
        let clock = GuestClock::default();
        let server = Server::new(directory.path(), Access::ReadWrite).unwrap();
        let client = Client::attached(server.with_clock(clock.clone()));
        clock.set(START, 0);
        Self {
            client,
            directory,
            clock,
        }
    }

    /// The guest's clock shows `time` seconds after its start.
    fn at(&mut self, time: u64) -> &mut Client {
        self.client.server.advance_to(time * S.unsigned_abs());
        &mut self.client
    }

    fn create(&mut self, fid: u32, name: &str) {
        self.client.walk(ROOT, fid, &[]).unwrap();
        let body = b().u32(fid).s(name).u32(open::READ_WRITE).u32(MODE).u32(0);
        self.client.ok(t::LCREATE, body);
    }

    fn write(&mut self, fid: u32) {
        self.client
            .ok(t::WRITE, b().u32(fid).u64(0).u32(1).u8(b'X'));
    }

    /// Sets the time of modification; to the present if it is not given.
    fn set(&mut self, fid: u32, time: Option<i64>) {
        let given = if time.is_some() {
            setattr::MTIME_SET
        } else {
            0
        };
        let time = time.unwrap_or_default();
        let set = SetAttr {
            valid: setattr::MTIME | given,
            mtime: ((time / S) as u64, (time % S) as u64),
            ..SetAttr::default()
        };
        self.client.ok(t::SETATTR, set.body(fid));
    }

    /// Times of access, modification and status change in seconds after the start of the clock.
    fn times(&mut self, fid: u32) -> [i64; 3] {
        let reply = self.client.ok(t::GETATTR, b().u32(fid).u64(0x7FF));
        let word = |at: usize| i64::from_le_bytes(reply[at..at + 8].try_into().unwrap());
        [0, 1, 2].map(|n| word(AT + n * 16) - START / S)
    }

    /// The host's time of modification in ns.
    fn host(&self, name: &str) -> i64 {
        let file = self.directory.path().join(name).metadata().unwrap();
        file.mtime() * S + file.mtime_nsec()
    }

    /// The host's time of the last change of a file's attributes, in ns.
    fn changed(&self, name: &str) -> i64 {
        let file = self.directory.path().join(name).metadata().unwrap();
        file.ctime() * S + file.ctime_nsec()
    }
}

#[test]
fn changed_files_have_times_of_the_guest() {
    let mut guest = Guest::new();
    guest.at(5);
    guest.create(1, "new");
    assert_eq!(guest.times(1), [5, 5, 5]);
    assert_eq!(guest.times(ROOT)[1..], [5, 5]);
    guest.at(7);
    guest.write(1);
    assert_eq!(guest.times(1), [5, 7, 7]);
    guest.at(9);
    assert_eq!(guest.times(1), [5, 7, 7]);
    guest
        .client
        .ok(t::MKDIR, b().u32(ROOT).s("d").u32(0o755).u32(0));
    guest.client.walk(ROOT, 2, &[b"d"]).unwrap();
    assert_eq!((guest.times(2), guest.times(ROOT)[1]), ([9, 9, 9], 9));
    guest.at(11);
    guest
        .client
        .ok(t::RENAMEAT, b().u32(ROOT).s("new").u32(2).s("moved"));
    assert_eq!((guest.times(2)[1], guest.times(ROOT)[1]), (11, 11));
    assert_eq!(guest.times(1), [5, 7, 11]);
    guest.at(12);
    guest.client.ok(t::UNLINKAT, b().u32(2).s("moved").u32(0));
    assert_eq!(guest.times(2)[1], 12);
}

#[test]
fn other_files_have_times_of_the_host() {
    let mut guest = Guest::new();
    let client = guest.at(5);
    client.walk(ROOT, 1, &[b"old"]).unwrap();
    let host = guest.host("old") / S - START / S;
    assert_eq!(guest.times(1), [host; 3]);
    // Only the status changes.
    let set = SetAttr {
        valid: setattr::MODE,
        mode: 0o600,
        ..SetAttr::default()
    };
    guest.client.ok(t::SETATTR, set.body(1));
    assert_eq!(guest.times(1), [host, host, 5]);
    // The host's own changes are later than the guest's.
    guest.set(1, None);
    assert_eq!(guest.times(1)[1..], [5, 5]);
    std::thread::sleep(Duration::from_millis(20));
    write_file(&guest.directory, "old", b"more");
    assert!(guest.times(1)[1] >= host);
}

#[test]
fn the_host_has_its_own_times_in_the_order_of_the_guest() {
    let mut guest = Guest::new();
    guest.at(5);
    guest.create(1, "a");
    std::thread::sleep(Duration::from_millis(20));
    guest.at(7);
    guest.create(2, "b");
    std::thread::sleep(Duration::from_millis(20));
    guest.at(8);
    guest.create(3, "copy");
    // The time of a, that of b, one between, one before all, one that is to come. The host's clock
    // can tick between the creation of a file and the first change of its attributes.
    let (a, b) = (guest.changed("a"), guest.changed("b"));
    assert!(a < b && guest.host("old") < a);
    for (time, host) in [
        (START + 5 * S, a),
        (START + 7 * S, b),
        (START + 6 * S, a),
        (START, START),
        (START + 9 * S, START + 9 * S),
    ] {
        guest.set(3, Some(time));
        assert_eq!(guest.times(3)[1], (time - START) / S);
        assert_eq!(guest.host("copy"), host, "{time}");
    }
}

#[test]
fn the_first_change_has_the_time_of_its_file() {
    let clock = GuestClock::default();
    clock.set(START, 0);
    let mut times = Times::new(clock);
    let directory = tempfile::tempdir().unwrap();
    write_file(&directory, "a", b"data");
    // The host's clock ticks before the server sees the attributes.
    std::thread::sleep(Duration::from_millis(20));
    let path = directory.path().join("a");
    times.changed(&rustix::fs::stat(&path).unwrap());
    let metadata = path.metadata().unwrap();
    let host = metadata.ctime() * S + metadata.ctime_nsec();
    assert_eq!(times.host_time(START), host);
}

#[test]
fn a_clock_that_is_not_known_or_out_of_range_changes_nothing() {
    let mut guest = Guest::new();
    guest.clock.set(i64::MAX, 1);
    guest.clock.set(1, u64::MAX);
    guest.at(3);
    guest.create(1, "a");
    assert_eq!(guest.times(1)[1], guest.host("a") / S - START / S);
    let mut unknown = Guest::new();
    unknown.client.server.times = Times::new(GuestClock::default());
    unknown.create(1, "a");
    assert_eq!(unknown.times(1)[1], unknown.host("a") / S - START / S);
}

#[test]
fn the_clock_does_not_go_back() {
    let mut guest = Guest::new();
    guest.at(5);
    guest.create(1, "a");
    guest.clock.set(START, S.unsigned_abs());
    guest.at(5);
    guest.create(2, "b");
    assert_eq!(guest.times(2)[1], 5);
}

#[test]
fn memory_is_bounded() {
    let mut guest = Guest::new();
    guest.at(5);
    for n in 0..100 {
        guest.create(1, "a");
        guest.client.ok(t::CLUNK, b().u32(1));
        guest.at(5 + n);
        guest.client.ok(t::UNLINKAT, b().u32(ROOT).s("a").u32(0));
    }
    // The root is left.
    assert_eq!(guest.client.server.times.files(), 1);
}
