//! Notes about a run for the user: processes that outlive the program, and changes to files that
//! are lost.

use std::time::{Duration, Instant};

use vbts_protocol::Names;

use vbts_host::escape::printable;

/// Time for which a run waits for processes before a note says so.
const UNANNOUNCED: Duration = Duration::from_secs(1);
/// Number of names that a note has at most.
const NAMED: usize = 8;
/// Length of a name in characters.
const NAME_LENGTH: usize = 200;

/// The notes about a run.
#[derive(Debug, Default)]
pub struct Notes {
    /// The run waits for these processes, since then.
    waiting: Option<(String, Instant)>,
    ended: Option<String>,
    discarded: Option<String>,
}

impl Notes {
    /// Takes a message about processes that have outlived the program's first one. The run has
    /// `ended` them, or it waits for them.
    pub(crate) fn outlived(&mut self, ended: bool, count: u32, names: Names<'_>) {
        let processes = if count == 1 { "process" } else { "processes" };
        let list = list(count, false, names);
        if ended {
            let text = format!("ended {count} {processes} that outlived the program: {list}");
            self.ended = Some(text);
        } else {
            let text = format!(
                "the program has ended; waiting for {count} {processes} that it has left: {list} \
                 (Ctrl-C ends them, and so does --wait first)"
            );
            self.waiting = Some((text, Instant::now()));
        }
    }

    /// Takes a message about files whose changes are lost.
    pub(crate) fn discarded(&mut self, count: u32, more: bool, names: Names<'_>) {
        let files = if count == 1 { "file" } else { "files" };
        let least = if more { "at least " } else { "" };
        let list = list(count, more, names);
        self.discarded = Some(format!(
            "discarded changes to {least}{count} {files} outside of writable shares: {list} \
             (--share DIR:rw keeps those in DIR)"
        ));
    }

    /// The note that the run waits, once it is due.
    pub(crate) fn take_waiting(&mut self) -> Option<String> {
        let (_, since) = self.waiting.as_ref()?;
        if since.elapsed() < UNANNOUNCED {
            return None;
        }
        self.waiting.take().map(|(text, _)| text)
    }

    /// The notes for the end of the run.
    pub fn at_end(&self) -> impl Iterator<Item = &str> {
        [&self.ended, &self.discarded]
            .into_iter()
            .flatten()
            .map(String::as_str)
    }
}

/// The first names of `count`, or of more, in one line.
fn list(count: u32, more: bool, names: Names<'_>) -> String {
    let mut shown: Vec<String> = names.iter().take(NAMED).map(shortened).collect();
    if more || shown.len() < count as usize {
        shown.push("…".into());
    }
    shown.join(", ")
}

fn shortened(name: &[u8]) -> String {
    let name = printable(name);
    match name.char_indices().nth(NAME_LENGTH) {
        Some((end, _)) => format!("{}…", name.get(..end).unwrap_or_default()),
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(names: &[&[u8]], test: impl FnOnce(Names<'_>)) {
        let mut bytes = Vec::new();
        names.iter().for_each(|name| Names::push(&mut bytes, name));
        test(Names::new(&bytes).unwrap());
    }

    #[test]
    fn notes_name_the_first_files() {
        let mut notes = Notes::default();
        with(&[b"/a\n", b"/b/"], |names| {
            notes.discarded(3, false, names);
        });
        assert_eq!(
            notes.at_end().collect::<Vec<_>>(),
            [
                "discarded changes to 3 files outside of writable shares: /a\\n, /b/, … \
                 (--share DIR:rw keeps those in DIR)"
            ]
        );
        with(&[&[b'x'; 1000]], |names| notes.discarded(1, true, names));
        let text = notes.at_end().next().unwrap();
        assert!(text.starts_with("discarded changes to at least 1 file outside"));
        assert!(text.contains(&format!(": {}…, … (", "x".repeat(NAME_LENGTH))));
    }

    #[test]
    fn processes_are_waited_for_or_ended() {
        let mut notes = Notes::default();
        with(&[b"27 (sleep)"], |names| notes.outlived(false, 1, names));
        assert_eq!(notes.take_waiting(), None);
        assert_eq!(notes.at_end().count(), 0);
        if let Some((_, since)) = &mut notes.waiting {
            *since -= UNANNOUNCED;
        }
        let text = notes.take_waiting().unwrap();
        assert!(
            text.contains("waiting for 1 process that it has left: 27 (sleep) ("),
            "{text}"
        );
        assert_eq!(notes.take_waiting(), None);
        with(&[b"27 (sleep)", b"28 (a)"], |names| {
            notes.outlived(true, 2, names);
        });
        assert_eq!(
            notes.at_end().collect::<Vec<_>>(),
            ["ended 2 processes that outlived the program: 27 (sleep), 28 (a)"]
        );
    }
}
