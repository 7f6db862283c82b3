//! Random requests for a share whose files the host replaces, moves and links elsewhere meanwhile.
//! The fuzz target `ninep_race` does the same for longer, with messages that are damaged, too.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, Mode, RenameFlags, mknodat, renameat_with};

use super::*;

const SECRET: &[u8] = b"the contents of a file outside of the share";
/// The files beside the share that no request may reach.
const OUTSIDE: [&str; 5] = [
    "outside",
    "outside/f",
    "outside/g",
    "outside/e",
    "outside/e/g",
];
/// Pairs that the host exchanges, and exchanges back.
const EXCHANGED: [(&str, &str); 6] = [
    ("share/d", "share/to_outside"),
    ("share/f", "share/to_file"),
    ("share/d/g", "share/d/to_file"),
    ("share/d/e", "share/to_outside"),
    ("share/d/e", "share/f"),
    ("share/f", "share/p"),
];
/// What the host moves out of the share, and back.
const MOVED: [(&str, &str); 2] = [("share/d/e", "away/e"), ("share/d", "away/d")];
const NAMES: [&str; 10] = [
    "d",
    "e",
    "f",
    "g",
    "to_outside",
    "to_file",
    "p",
    "n",
    "..",
    "d/../..",
];

/// Makes the files beside the share.
fn make_outside(top: &Path) {
    fs::create_dir_all(top.join("outside/e")).unwrap();
    for name in ["f", "g", "e/g"] {
        fs::write(top.join("outside").join(name), SECRET).unwrap();
    }
}

/// Makes the share anew: the guest and the host have moved and removed its files.
fn fill(top: &Path) {
    for name in ["share", "away"] {
        let _ = fs::remove_dir_all(top.join(name));
    }
    for name in ["share/d/e", "away"] {
        fs::create_dir_all(top.join(name)).unwrap();
    }
    let share = top.join("share");
    for name in ["f", "d/g", "d/e/g"] {
        fs::write(share.join(name), "contents").unwrap();
    }
    symlink("../outside", share.join("to_outside")).unwrap();
    symlink(top.join("outside/f"), share.join("to_file")).unwrap();
    symlink("../../outside/g", share.join("d/to_file")).unwrap();
    mknodat(CWD, share.join("p"), FileType::Fifo, Mode::RUSR, 0).unwrap();
}

/// What a request to a file outside could change, and its inode number.
fn outside(top: &Path) -> Vec<(u64, u32, u64, i64, u64)> {
    let stamp = |name: &&str| {
        let it = fs::symlink_metadata(top.join(name)).unwrap();
        (it.ino(), it.mode(), it.size(), it.ctime_nsec(), it.nlink())
    };
    OUTSIDE.iter().map(stamp).collect()
}

/// Renames files until the session has ended.
fn change(top: &Path, ended: &AtomicBool) {
    let paths = |(a, b): (&str, &str)| -> (PathBuf, PathBuf) { (top.join(a), top.join(b)) };
    let exchanged = EXCHANGED.map(|pair| (paths(pair), RenameFlags::EXCHANGE));
    let moved = MOVED.map(|pair| (paths(pair), RenameFlags::NOREPLACE));
    while !ended.load(Ordering::Relaxed) {
        for ((a, b), flags) in exchanged.iter().chain(&moved) {
            // The guest may have removed the files.
            let _ = renameat_with(CWD, a, CWD, b, *flags);
            let _ = renameat_with(CWD, b, CWD, a, *flags);
        }
    }
}

/// Ends a session.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The inode numbers in the qids of an answer to Twalk.
fn inodes(reply: &[u8]) -> Vec<u64> {
    let qids = reply.get(2..).unwrap_or_default().chunks_exact(Qid::LEN);
    let path = |qid: &[u8]| u64::from_le_bytes(qid[5..].try_into().unwrap());
    qids.map(path).collect()
}

#[test]
fn nothing_leads_out_of_a_tree_that_changes() {
    /// Fids of a session.
    const FIDS: usize = 6;
    const SESSIONS: usize = 25;
    const REQUESTS: usize = 400;
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 8) as usize % below
    };
    for (access, by_handle, descriptors) in [
        (Access::ReadOnly, true, 8),
        (Access::ReadWrite, true, 8),
        (Access::ReadWrite, false, 8),
        (Access::ReadWrite, false, 1000),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path();
        make_outside(top);
        let before = outside(top);
        let mut done = 0;
        for _ in 0..SESSIONS {
            fill(top);
            let server = Server::with_descriptors(&top.join("share"), access, descriptors);
            let mut server = server.unwrap();
            if !by_handle {
                server.tree.open_by_name_only();
            }
            let mut c = Client::attached(server);
            let ended = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| change(top, &ended));
                // Also if an assertion fails.
                let _end = EndOnDrop(&ended);
                for _ in 0..REQUESTS {
                    let new = 1 + random(FIDS - 1) as u32;
                    let fid = [ROOT, random(FIDS) as u32][random(2)];
                    let names = [(); 3].map(|()| NAMES[random(NAMES.len())]);
                    let (kind, body) = request(&mut c, random(20), random(3), fid, new, names);
                    let Ok(reply) = c.call(kind, body) else {
                        continue;
                    };
                    done += 1;
                    let found = reply.windows(SECRET.len()).any(|part| part == SECRET);
                    assert!(!found, "{access:?}: a request of type {kind} read it");
                    let reached = if kind == t::WALK {
                        inodes(&reply)
                    } else {
                        vec![]
                    };
                    let is_outside = |inode: &u64| before.iter().any(|it| it.0 == *inode);
                    assert!(
                        !reached.iter().any(is_outside),
                        "{access:?}: a walk led out"
                    );
                }
            });
        }
        assert_eq!(outside(top), before, "{access:?}");
        let all = SESSIONS * REQUESTS;
        assert!(
            done > all / 10,
            "only {done} of {all} requests did something"
        );
    }
}

/// A request of `kind`, of 20, with an `option`, of 3.
fn request(
    c: &mut Client,
    kind: usize,
    option: usize,
    fid: u32,
    new: u32,
    [name, other, third]: [&str; 3],
) -> (u8, Body) {
    match kind {
        0 => (t::CLUNK, b().u32(new)),
        1..=6 => {
            if fid != new {
                // Often there is one already.
                let _ = c.call(t::CLUNK, b().u32(new));
            }
            let walk = b().u32(fid).u32(new).u16(option as u16 + 1);
            let names = [name, other, third].into_iter().take(option + 1);
            (t::WALK, names.fold(walk, Body::s))
        }
        7 | 8 => {
            let flags = [0, 2, open::TRUNCATE | 1][option];
            (t::LOPEN, b().u32(new).u32(flags))
        }
        9 | 10 => (t::READ, b().u32(new).u64(0).u32(100)),
        11 => (t::READDIR, b().u32(new).u64(0).u32(1000)),
        12 => (t::GETATTR, b().u32(fid).u64(u64::MAX)),
        13 => (t::WRITE, b().u32(new).u64(0).u32(1).u8(b'x')),
        14 => (t::LCREATE, b().u32(new).s(name).u32(2).u32(0o600).u32(0)),
        15 => (t::UNLINKAT, b().u32(fid).s("n").u32(0)),
        16 => (t::RENAMEAT, b().u32(fid).s(name).u32(new).s(other)),
        17 => (t::LINK, b().u32(fid).u32(new).s("n")),
        18 => {
            let set = SetAttr {
                valid: setattr::MODE | setattr::SIZE,
                mode: 0o700,
                size: 3,
                ..SetAttr::default()
            };
            (t::SETATTR, set.body(fid))
        }
        _ => (t::SYMLINK, b().u32(fid).s("n").s("../outside/f").u32(0)),
    }
}
