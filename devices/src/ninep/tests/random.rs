//! Random requests to a server with few descriptors and to one with many.

use super::reopening::others;
use super::*;

/// Requests of a guest have the same answers with few descriptors and with many.
#[test]
fn answers_do_not_depend_on_the_number_of_descriptors() {
    /// Few enough that all can be of removed files, which keep their descriptors.
    const FIDS: u32 = 10;
    const DESCRIPTORS: usize = 16;
    const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    for by_handle in [true, false] {
        let dirs = [others(), others()];
        let [few, many] = [0, 1].map(|i| {
            let descriptors = if i == 0 { DESCRIPTORS } else { 1000 };
            let path = dirs[i].path();
            Server::with_descriptors(path, Access::ReadWrite, descriptors).unwrap()
        });
        let mut clients = [few, many].map(|mut server| {
            if !by_handle {
                server.tree.open_by_name_only();
            }
            Client::attached(server)
        });
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 8) as usize % below
        };
        let mut done = 0;
        for step in 0..6_000 {
            let (kind, fid, other) = (random(11), random(FIDS as usize), random(FIDS as usize));
            let fid = if random(3) == 0 { ROOT } else { fid as u32 };
            let other = other as u32;
            let (name, new_name) = (NAMES[random(6)], NAMES[random(6)]);
            let answers = clients.each_mut().map(|c| match kind {
                0..=2 => c
                    .walk(fid, 1 + other, &[name.as_bytes()])
                    .map(|n| vec![n as u8]),
                3 if fid == ROOT => Ok(Vec::new()),
                3 => c.call(t::CLUNK, b().u32(fid)),
                4 => c
                    .call(t::MKDIR, b().u32(fid).s(name).u32(0o755).u32(0))
                    .map(|_| Vec::new()),
                5 if fid == ROOT => Ok(Vec::new()),
                5 => {
                    let create = b().u32(fid).s(name).u32(2).u32(0o644).u32(0);
                    let created = c.call(t::LCREATE, create);
                    let data = format!("{step}");
                    let write = b().u32(fid).u64(0).u32(data.len() as u32);
                    let write = data.bytes().fold(write, Body::u8);
                    created.and_then(|_| c.call(t::WRITE, write))
                }
                6 => c.call(t::UNLINKAT, b().u32(fid).s(name).u32(0)),
                7 => c.call(t::UNLINKAT, b().u32(fid).s(name).u32(AT_REMOVEDIR)),
                8 => {
                    let rename = b().u32(fid).s(name).u32(other).s(new_name);
                    c.call(t::RENAMEAT, rename)
                }
                9 => c.call(t::LINK, b().u32(fid).u32(other).s(name)),
                _ => c.contents(fid).or_else(|_| {
                    let (_, links, _) = c.attributes(fid)?;
                    Ok(vec![links as u8])
                }),
            });
            assert_eq!(
                answers[0], answers[1],
                "step {step}, kind {kind}, fid {fid}"
            );
            done += usize::from(answers[0].is_ok());
            if step % 10 == 0 {
                clients.iter_mut().for_each(Client::walk_others);
            }
            // Open files need descriptors, so not too many stay open.
            if clients[1].server.tree.open_files() > 2 {
                for fid in 1..=FIDS {
                    let answers = clients.each_mut().map(|c| c.call(t::CLUNK, b().u32(fid)));
                    assert_eq!(answers[0], answers[1]);
                }
            }
        }
        assert!(done > 1500, "only {done} requests did something");
        assert!(clients[0].server.tree.descriptors() <= DESCRIPTORS);
    }
}
