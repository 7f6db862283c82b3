//! `--perf-map`: a file from which perf reads the names of native code (jit-interface.txt in the
//! kernel's tools/perf/Documentation).

use std::fs::{File, OpenOptions, remove_file};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use vbts_cpu::{NativeCode, NativeListener, NativePart};

use vbts_host::exit::say;

/// Directory in which perf looks for the file.
const DIRECTORY: &str = "/tmp";
/// The largest size of the file in bytes.
const LIMIT: u64 = 64 << 20;

/// The file. Nothing is written any more after an error, or when it is full.
#[derive(Debug)]
pub(crate) struct PerfMap<W: Write> {
    /// For messages.
    path: PathBuf,
    out: Option<BufWriter<W>>,
    /// Bytes that may still be written.
    left: u64,
}

impl PerfMap<File> {
    /// Makes the file of this process.
    ///
    /// # Errors
    /// It cannot be made, or belongs to another user.
    pub(crate) fn create() -> anyhow::Result<Self> {
        let path = Path::new(DIRECTORY).join(format!("perf-{}.map", std::process::id()));
        // That of an earlier process. Every user can make a symbolic link there.
        let _ = remove_file(&path);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .with_context(|| format!("--perf-map: cannot create {}", path.display()))?;
        Ok(Self::new(path, file, LIMIT))
    }
}

impl<W: Write> PerfMap<W> {
    fn new(path: PathBuf, file: W, left: u64) -> Self {
        let out = Some(BufWriter::new(file));
        Self { path, out, left }
    }

    /// Ends the file early.
    fn end(&mut self, why: impl std::fmt::Display) {
        let path = self.path.display();
        say(format_args!("{path} ends here: {why}"));
        // What is buffered belongs to it, unless the error is that it cannot be written.
        if let Some(mut out) = self.out.take() {
            let _ = out.flush();
        }
    }

    fn check(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            self.end(error);
        }
    }
}

/// A line of the file: address, length and name.
fn line(code: NativeCode) -> String {
    let NativeCode { address, len, part } = code;
    match part {
        NativePart::Routines => format!("{address:x} {len:x} vbts:routines\n"),
        NativePart::Block { rip, cpl } => {
            format!("{address:x} {len:x} guest:{rip:#x}:cpl{cpl}\n")
        }
        NativePart::Rare { rip, cpl } => {
            format!("{address:x} {len:x} guest:{rip:#x}:cpl{cpl}:rare\n")
        }
    }
}

impl<W: Write + Send> NativeListener for PerfMap<W> {
    fn made(&mut self, code: NativeCode) {
        let Some(out) = &mut self.out else {
            return;
        };
        let line = line(code);
        match self.left.checked_sub(line.len() as u64) {
            Some(left) => {
                self.left = left;
                let result = out.write_all(line.as_bytes());
                self.check(result);
            }
            None => self.end("it has reached its largest size"),
        }
    }
}

impl<W: Write> Drop for PerfMap<W> {
    fn drop(&mut self) {
        if let Some(out) = &mut self.out {
            let result = out.flush();
            self.check(result);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// A file in memory, which has room for so many bytes.
    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>, usize);

    impl Memory {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut all = self.0.lock().unwrap();
            if all.len() + bytes.len() > self.1 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            all.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn code(address: u64, part: NativePart) -> NativeCode {
        let len = 0x2F;
        NativeCode { address, len, part }
    }

    const RIP: u64 = 0xFFFF_FFFF_8100_0040;

    #[test]
    fn each_line_has_an_address_a_length_and_a_name() {
        let memory = Memory(Arc::default(), 1000);
        let mut map = PerfMap::new("x".into(), memory.clone(), 1000);
        let (rip, cpl) = (RIP, 0);
        for (address, part) in [
            (0x7F00_0000_0000, NativePart::Routines),
            (0x7F00_0000_0100, NativePart::Block { rip, cpl }),
            (0x7F00_0200_0000, NativePart::Rare { rip, cpl }),
            (
                0x7F00_0000_0200,
                NativePart::Block {
                    rip: 0x401000,
                    cpl: 3,
                },
            ),
        ] {
            map.made(code(address, part));
        }
        drop(map);
        let expected = "\
7f0000000000 2f vbts:routines
7f0000000100 2f guest:0xffffffff81000040:cpl0
7f0002000000 2f guest:0xffffffff81000040:cpl0:rare
7f0000000200 2f guest:0x401000:cpl3
";
        assert_eq!(memory.text(), expected);
    }

    #[test]
    fn the_file_ends_with_a_whole_line_when_it_is_full() {
        let memory = Memory(Arc::default(), 1000);
        let mut map = PerfMap::new("x".into(), memory.clone(), 40);
        for _ in 0..10 {
            map.made(code(0x1000, NativePart::Routines));
        }
        assert_eq!(memory.text(), "1000 2f vbts:routines\n");
        assert!(map.out.is_none());
    }

    #[test]
    fn an_error_ends_the_file() {
        let memory = Memory(Arc::default(), 10);
        let mut map = PerfMap::new("x".into(), memory.clone(), 1 << 20);
        for _ in 0..1000 {
            map.made(code(0x1000, NativePart::Routines));
        }
        assert!(map.out.is_none());
        assert_eq!(memory.text(), "");
    }
}
