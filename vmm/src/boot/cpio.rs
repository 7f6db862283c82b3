//! Builds an initial RAM file system in memory, in the "newc" format of cpio
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

/// File type bits of `st_mode`.
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const CHARACTER: u32 = 0o020_000;

/// An archive under construction. All files belong to root and have no time, so that equal contents
/// give equal archives.
#[derive(Debug, Default)]
pub struct Cpio {
    bytes: Vec<u8>,
    entries: u32,
}

impl Cpio {
    /// An archive without files.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a directory.
    pub fn directory(&mut self, name: &str, permissions: u32) {
        self.entry(name, DIRECTORY | permissions, (0, 0), &[]);
    }

    /// Adds a regular file.
    pub fn file(&mut self, name: &str, permissions: u32, contents: &[u8]) {
        self.entry(name, REGULAR | permissions, (0, 0), contents);
    }

    /// Adds a character device.
    pub fn character_device(&mut self, name: &str, permissions: u32, device: (u32, u32)) {
        self.entry(name, CHARACTER | permissions, device, &[]);
    }

    /// The finished archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entries = 0;
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, (major, minor): (u32, u32), contents: &[u8]) {
        let links = if mode & DIRECTORY != 0 { 2 } else { 1 };
        let name_size = name.len() as u32 + 1;
        let fields = [
            self.entries,
            mode,
            0, // uid
            0, // gid
            links,
            0, // mtime
            contents.len() as u32,
            0, // device of the file system
            0,
            major,
            minor,
            name_size,
            0, // checksum, unused by this format
        ];
        self.entries += 1;
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(contents);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, mode, device and contents.
    type Entry = (String, u32, (u32, u32), Vec<u8>);

    fn entries(mut bytes: &[u8]) -> Vec<Entry> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            assert_eq!(&bytes[..6], b"070701");
            let field = |i: usize| {
                let text = std::str::from_utf8(&bytes[6 + i * 8..][..8]).unwrap();
                u32::from_str_radix(text, 16).unwrap()
            };
            let (name_len, len) = (field(11) as usize, field(6) as usize);
            let data = (110 + name_len).next_multiple_of(4);
            let name = String::from_utf8(bytes[110..110 + name_len - 1].to_vec()).unwrap();
            let contents = bytes[data..data + len].to_vec();
            found.push((name, field(1), (field(9), field(10)), contents));
            bytes = &bytes[(data + len).next_multiple_of(4)..];
        }
        found
    }

    #[test]
    fn an_archive_has_its_files() {
        let mut cpio = Cpio::new();
        cpio.directory("dev", 0o755);
        cpio.character_device("dev/console", 0o600, (5, 1));
        cpio.file("init", 0o755, b"hello");
        let found = entries(&cpio.finish());
        assert_eq!(
            found,
            [
                ("dev".into(), 0o040_755, (0, 0), vec![]),
                ("dev/console".into(), 0o020_600, (5, 1), vec![]),
                ("init".into(), 0o100_755, (0, 0), b"hello".to_vec()),
                ("TRAILER!!!".into(), 0, (0, 0), vec![]),
            ]
        );
    }
}
