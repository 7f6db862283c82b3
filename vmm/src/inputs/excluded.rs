//! Files whose contents a recording does not have.

use std::collections::BTreeMap;

use vbts_recording::{Access, Paths};

/// The files to keep out of a recording: paths from the roots of servers, by the numbers of these.
#[derive(Debug, Default)]
pub struct Exclusions(BTreeMap<u8, Server>);

#[derive(Debug, Default)]
struct Server {
    excluded: Vec<Vec<u8>>,
    paths: Paths,
}

impl Exclusions {
    /// Keeps out what is at and below `path`, which has no slash at its start and its end. An empty
    /// path is all of the server.
    pub fn add(&mut self, server: u8, path: Vec<u8>) {
        self.0.entry(server).or_default().excluded.push(path);
    }

    /// Follows a request and its reply. Returns the path of the file whose contents the reply has,
    /// if they are kept out.
    pub(super) fn reads(&mut self, server: u8, request: &[u8], reply: &[u8]) -> Option<String> {
        let Server { excluded, paths } = self.0.get_mut(&server)?;
        let got = paths.follow(request, reply)?;
        let is_below = |path: &[u8], top: &[u8]| match path.strip_prefix(top) {
            Some(rest) => top.is_empty() || rest.is_empty() || rest.starts_with(b"/"),
            None => false,
        };
        // A file whose path is not known may be one of them.
        let is_excluded = got.path.is_none_or(|path| {
            let mut all = excluded.iter();
            all.any(|top| is_below(path, top))
        });
        let path = got.path.unwrap_or(b"?");
        (got.access == Access::Contents && is_excluded).then(|| path.escape_ascii().to_string())
    }
}
