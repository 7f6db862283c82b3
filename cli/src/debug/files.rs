//! The files of the program for a client: those of the host if they are those of the recorded run,
//! and else those that the recording has.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::BufReader;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::Context as _;
use vbts_debugger::ProgramFiles;
use vbts_host::exit::{Failure, say};
use vbts_host::root::Root;
use vbts_protocol::ROOT_TAG;
use vbts_recording::{Contents, FileContents, Item, Reader};

use crate::recording::OldRecording;

/// Files that a message names.
const NAMED: usize = 4;

/// The files for a client that is to read them in the recording at `path`: because the host has no
/// root of the run any more, or because one of them is missing below `root` or is another one. What
/// the recorded run has not read of a file comes from the host, if that has the same file. Says
/// which files are incomplete, unless `quiet`.
///
/// # Errors
/// The recording cannot be read.
pub(super) fn of_recording(
    path: &Path,
    recording: &OldRecording,
    root: &Path,
    quiet: bool,
) -> Result<Option<ProgramFiles>, Failure> {
    let name = || format!("Cannot read {}", path.display());
    let contents = read(path, recording).with_context(name)?;
    let host_root = Root::open(root).ok();
    let (mut host, mut missing) = (HashMap::new(), Vec::new());
    for (path, recorded) in contents.files() {
        let name = Path::new(OsStr::from_bytes(path));
        let open = |root: &Root| root.open_file(name).ok();
        match host_root.as_ref().and_then(open) {
            Some(file) if is_same(&file, recorded) => {
                host.insert(path.to_vec(), file);
            }
            _ => missing.push((name, recorded)),
        }
    }
    if missing.is_empty() {
        return Ok(None);
    }
    if !quiet {
        say(format_args!(
            "{} not that of the recorded run below {}: the client gets the program's files from \
             the recording",
            named(&missing),
            root.display()
        ));
        missing.retain(|(_, recorded)| recorded.read_bytes() < recorded.size());
        if !missing.is_empty() {
            say(format_args!(
                "{} not in the recording as a whole, because the program has not read all of it: \
                 names of functions may be missing",
                named(&missing)
            ));
        }
    }
    Ok(Some(ProgramFiles::new(
        contents,
        host,
        &recording.directory,
    )))
}

/// The first of some files, and a verb.
fn named(files: &[(&Path, &FileContents)]) -> String {
    let names = files.iter().take(NAMED);
    let names: Vec<String> = names
        .map(|(path, _)| format!("/{}", path.as_os_str().as_bytes().escape_ascii()))
        .collect();
    let more = match files.len().saturating_sub(NAMED) {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    let verb = if files.len() == 1 { "is" } else { "are each" };
    format!("{}{more} {verb}", names.join(", "))
}

/// The programs and libraries in a recording.
fn read(path: &Path, recording: &OldRecording) -> anyhow::Result<Contents> {
    let (_, mut reader) = Reader::new(BufReader::new(File::open(path)?))?;
    let root = (recording.facts.shares.iter()).position(|tag| tag == ROOT_TAG);
    let mut contents = Contents::default();
    while let Some(item) = reader.next()? {
        if let Item::Reply {
            server,
            request,
            reply,
            ..
        } = item
            && Some(usize::from(server)) == root
        {
            contents.follow(&request.start, &reply);
        }
    }
    Ok(contents)
}

/// Returns whether a file of the host has the size and the bytes that the recorded run has read.
fn is_same(file: &File, recorded: &FileContents) -> bool {
    let has_parts = recorded.parts().all(|(at, part)| {
        let mut bytes = vec![0; part.len()];
        file.read_exact_at(&mut bytes, at).is_ok() && bytes == part
    });
    has_parts
        && file
            .metadata()
            .is_ok_and(|metadata| metadata.len() == recorded.size())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_files_are_named() {
        let file = FileContents::default();
        let files: Vec<_> = ["bin/a", "b", "c", "d", "e\n"]
            .iter()
            .map(|path| (Path::new(path), &file))
            .collect();
        assert_eq!(named(&files[..1]), "/bin/a is");
        assert_eq!(named(&files[3..]), "/d, /e\\n are each");
        assert_eq!(named(&files), "/bin/a, /b, /c, /d and 1 more are each");
    }
}
