//! The contents of programs and libraries that a guest has got of one server of files.

use std::collections::{BTreeMap, HashMap};

use crate::item::{LEN_OF_HEADER, kind};
use crate::paths::{MAX_FIDS, MAX_PATH, Paths, answered, append, long, number, string};

/// The first bytes of an ELF file.
const ELF: &[u8] = b"\x7fELF";
/// Bytes of all files together at most. What is read behind that has no contents here.
const MAX_BYTES: usize = 1 << 30;
/// Symbolic links that are followed in one path, as Linux does.
const MAX_LINKS: usize = 40;
/// Offsets of the mode and the size in a reply to a request for attributes.
const MODE: usize = LEN_OF_HEADER + 21;
const SIZE: usize = LEN_OF_HEADER + 49;

/// Attributes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Attributes {
    mode: u32,
    size: u64,
}

/// Those of a file whose attributes the guest has not asked for.
impl Default for Attributes {
    fn default() -> Self {
        Self {
            mode: 0o100_444,
            size: 0,
        }
    }
}

/// The parts of a file that the guest has read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileContents {
    attributes: Attributes,
    /// By their offsets. They do not overlap.
    parts: BTreeMap<u64, Vec<u8>>,
}

/// The ELF files that the guest has read, by their paths, and the symbolic links.
#[derive(Debug, Default)]
pub struct Contents {
    paths: Paths,
    attributes: HashMap<Vec<u8>, Attributes>,
    files: BTreeMap<Vec<u8>, FileContents>,
    links: HashMap<Vec<u8>, Vec<u8>>,
    /// Bytes of all files.
    bytes: usize,
}

impl FileContents {
    /// Type and permissions, as in Linux's `st_mode`.
    pub fn mode(&self) -> u32 {
        self.attributes.mode
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.attributes.size
    }

    /// The parts, with their offsets.
    pub fn parts(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.parts.iter().map(|(at, part)| (*at, &part[..]))
    }

    /// Number of bytes that the guest has read.
    pub fn read_bytes(&self) -> u64 {
        self.parts.values().map(|part| part.len() as u64).sum()
    }

    /// The bytes from `offset` on, up to the end of their part. `None`: the guest has not read
    /// there.
    pub fn at(&self, offset: u64) -> Option<&[u8]> {
        let (start, part) = self.parts.range(..=offset).next_back()?;
        let at = usize::try_from(offset - start).ok()?;
        part.get(at..).filter(|rest| !rest.is_empty())
    }

    /// The distance from `offset` to the next part.
    pub fn gap(&self, offset: u64) -> Option<u64> {
        let (start, _) = self.parts.range(offset..).next()?;
        Some(start - offset)
    }

    /// Adds bytes, in the place of those that were read before.
    fn add(&mut self, offset: u64, bytes: &[u8]) {
        let Some(end) = offset.checked_add(bytes.len() as u64) else {
            return;
        };
        let before = self.parts.range(..offset).next_back().map(|(at, _)| *at);
        let inside = self.parts.range(offset..end).map(|(at, _)| *at);
        let overlapping: Vec<u64> = before.into_iter().chain(inside).collect();
        for start in overlapping {
            let Some(mut part) = self.parts.remove(&start) else {
                continue;
            };
            let index = |place: u64| usize::try_from(place.saturating_sub(start));
            let len = part.len();
            if let Ok(behind) = index(end)
                && behind < len
            {
                self.parts.insert(end, part.split_off(behind));
            }
            if start < offset {
                part.truncate(index(offset).unwrap_or(len));
                self.parts.insert(start, part);
            }
        }
        self.parts.insert(offset, bytes.to_vec());
        self.attributes.size = self.attributes.size.max(end);
    }
}

impl Contents {
    /// Follows a request, of which `request` has the start, and its reply.
    pub fn follow(&mut self, request: &[u8], reply: &[u8]) {
        self.note(request, reply);
        self.paths.follow(request, reply);
    }

    fn note(&mut self, request: &[u8], reply: &[u8]) -> Option<()> {
        let (message, body) = answered(request, reply)?;
        let path = self.paths.path(number(body, 0)?)?;
        match message {
            kind::GETATTR => {
                let attributes = Attributes {
                    mode: number(reply, MODE)?,
                    size: long(reply, SIZE)?,
                };
                if self.attributes.len() < MAX_FIDS {
                    self.attributes.insert(path.to_vec(), attributes);
                }
            }
            kind::READLINK => {
                let (target, _) = string(reply.get(LEN_OF_HEADER..)?)?;
                if self.links.len() < MAX_FIDS && target.len() <= MAX_PATH {
                    self.links.insert(path.to_vec(), target.to_vec());
                }
            }
            kind::READ => {
                let (offset, bytes) = (long(body, 4)?, reply.get(LEN_OF_HEADER + 4..)?);
                let is_new = !self.files.contains_key(path);
                let is_elf = offset == 0 && bytes.starts_with(ELF);
                let rest = MAX_BYTES - self.bytes;
                if bytes.is_empty() || (is_new && !is_elf) || bytes.len() > rest {
                    return None;
                }
                self.bytes += bytes.len();
                let attributes = self.attributes.get(path).copied().unwrap_or_default();
                let file = self.files.entry(path.to_vec()).or_default();
                let size = file.attributes.size.max(attributes.size);
                file.attributes = Attributes { size, ..attributes };
                file.add(offset, bytes);
            }
            // What it contains from here on is not recorded.
            kind::WRITE => {
                self.files.remove(path);
            }
            _ => {}
        }
        Some(())
    }

    /// The files, by their paths from the root of the server, without a slash at the start.
    pub fn files(&self) -> impl Iterator<Item = (&[u8], &FileContents)> {
        self.files.iter().map(|(path, file)| (&path[..], file))
    }

    /// The path of the file to which the absolute `path` leads, through symbolic links that the
    /// guest has followed, as [`Self::files`] has it.
    pub fn resolve(&self, path: &[u8]) -> Option<Vec<u8>> {
        let mut rest: Vec<Vec<u8>> = names(path).collect();
        let (mut resolved, mut links) = (Vec::new(), 0);
        while let Some(name) = rest.pop() {
            let parent = resolved.clone();
            append(&mut resolved, &name)?;
            let Some(target) = self.links.get(&resolved) else {
                continue;
            };
            links += 1;
            if links > MAX_LINKS {
                return None;
            }
            resolved = match target.first() {
                Some(b'/') => Vec::new(),
                _ => parent,
            };
            rest.extend(names(target));
        }
        Some(resolved)
    }

    /// The contents of the file with a path, as [`Self::files`] has it.
    pub fn get(&self, path: &[u8]) -> Option<&FileContents> {
        self.files.get(path)
    }
}

/// The names of a path, the last one first.
fn names(path: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let names = path.rsplit(|byte| *byte == b'/');
    names.filter(|name| !name.is_empty()).map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[&[u8]]) -> Vec<u8> {
        let body = body.concat();
        let len = (LEN_OF_HEADER + body.len()) as u32;
        [&len.to_le_bytes()[..], &[kind, 1, 0], &body].concat()
    }

    fn fid(n: u32) -> [u8; 4] {
        n.to_le_bytes()
    }

    /// A server of which the guest has the file with fid 1, `path`.
    fn opened(path: &str) -> Contents {
        let mut contents = Contents::default();
        let request = message(kind::ATTACH, &[&fid(0), &[0; 12]]);
        contents.follow(&request, &message(kind::ATTACH + 1, &[&[0; 13]]));
        walk(&mut contents, 1, path);
        contents
    }

    fn walk(contents: &mut Contents, to: u32, path: &str) {
        let names: Vec<&str> = path.split('/').collect();
        let mut request: Vec<u8> = [fid(0), fid(to)].concat();
        request.extend((names.len() as u16).to_le_bytes());
        for name in &names {
            request.extend((name.len() as u16).to_le_bytes());
            request.extend(name.as_bytes());
        }
        let count = (names.len() as u16).to_le_bytes();
        let reply = message(kind::WALK + 1, &[&count]);
        contents.follow(&message(kind::WALK, &[&request]), &reply);
    }

    fn read(contents: &mut Contents, offset: u64, bytes: &[u8]) {
        let request = message(kind::READ, &[&fid(1), &offset.to_le_bytes(), &[0; 4]]);
        let len = (bytes.len() as u32).to_le_bytes();
        contents.follow(&request, &message(kind::READ + 1, &[&len, bytes]));
    }

    fn link(contents: &mut Contents, path: &str, target: &str) {
        walk(contents, 2, path);
        let len = (target.len() as u16).to_le_bytes();
        let reply = message(kind::READLINK + 1, &[&len, target.as_bytes()]);
        contents.follow(&message(kind::READLINK, &[&fid(2)]), &reply);
    }

    #[test]
    fn parts_of_elf_files_are_kept_with_their_attributes() {
        let mut contents = opened("usr/bin/x");
        let mut attributes = [0; 8 + 13 + 132];
        attributes[21..25].copy_from_slice(&0o100_755_u32.to_le_bytes());
        attributes[49..57].copy_from_slice(&20_u64.to_le_bytes());
        let request = message(kind::GETATTR, &[&fid(1), &[0; 8]]);
        contents.follow(&request, &message(kind::GETATTR + 1, &[&attributes]));
        read(&mut contents, 0, b"\x7fELF....");
        read(&mut contents, 16, b"tail");
        let file = contents.get(b"usr/bin/x").unwrap();
        assert_eq!((file.mode(), file.size()), (0o100_755, 20));
        assert_eq!(file.at(4), Some(&b"...."[..]));
        assert_eq!((file.at(8), file.gap(8)), (None, Some(8)));
        assert_eq!((file.at(18), file.at(20)), (Some(&b"il"[..]), None));
        assert_eq!(file.read_bytes(), 12);
        // The guest writes to it, so that its contents are not known.
        let request = message(kind::WRITE, &[&fid(1), &[0; 12]]);
        contents.follow(&request, &message(kind::WRITE + 1, &[&[0; 4]]));
        assert_eq!(contents.get(b"usr/bin/x"), None);
        let mut contents = opened("text");
        read(&mut contents, 0, b"no ELF");
        assert_eq!(contents.files().count(), 0);
    }

    #[test]
    fn parts_do_not_overlap() {
        let mut reference = vec![0_u8; 64];
        let mut file = FileContents::default();
        for (n, (at, len)) in [
            (10, 10),
            (30, 5),
            (5, 8),
            (12, 3),
            (0, 64),
            (20, 20),
            (19, 1),
        ]
        .into_iter()
        .enumerate()
        {
            let bytes = vec![n as u8 + 1; len];
            reference[at..at + len].copy_from_slice(&bytes);
            file.add(at as u64, &bytes);
            for (offset, expected) in (0_u64..).zip(&reference) {
                let found = file.at(offset).map_or(0, |bytes| bytes[0]);
                assert_eq!(found, *expected, "{n} {offset}");
            }
        }
        file.add(u64::MAX, b"xx");
        assert_eq!((file.size(), file.read_bytes()), (64, 64));
    }

    #[test]
    fn symbolic_links_are_followed_in_the_recording() {
        let mut contents = opened("usr/lib/libc.so.6");
        read(&mut contents, 0, b"\x7fELF");
        link(&mut contents, "lib", "usr/lib");
        link(&mut contents, "lib64", "/lib/x/..");
        link(&mut contents, "round", "round");
        let resolved = |path: &str| {
            let path = contents.resolve(path.as_bytes());
            path.map(|path| String::from_utf8(path).unwrap())
        };
        for path in [
            "/lib/libc.so.6",
            "//lib64/./libc.so.6",
            "/../usr/lib/libc.so.6",
        ] {
            assert_eq!(
                resolved(path).as_deref(),
                Some("usr/lib/libc.so.6"),
                "{path}"
            );
        }
        assert_eq!(resolved("/round/x"), None);
        assert_eq!(resolved("/etc/x").as_deref(), Some("etc/x"));
    }

    #[test]
    fn short_messages_are_no_contents() {
        let mut contents = opened("x");
        let request = message(kind::READ, &[&fid(1), &[0; 12]]);
        let reply = message(kind::READ + 1, &[&4_u32.to_le_bytes(), b"\x7fELF"]);
        for len in 0..request.len() - 4 {
            contents.follow(&request[..len], &reply);
        }
        for len in 0..LEN_OF_HEADER + 4 {
            contents.follow(&request, &reply[..len]);
        }
        assert_eq!(contents.files().count(), 0);
        contents.follow(&request, &reply);
        assert_eq!(contents.files().count(), 1);
    }
}
