//! `qXfer`: objects that the client reads in parts.

use super::session::{Outcome, Session};
use super::text::{Arguments, MALFORMED, push_binary};
use super::{branch_trace, description, packet, process, threads};
use crate::target::{Capabilities, Result, TargetError};

/// The error for an annex that an object does not have: ENOENT.
pub(super) const UNKNOWN_ANNEX: TargetError = TargetError::Errno(2);

type Reader = fn(&mut Session<'_>, annex: &[u8]) -> Result<Vec<u8>>;

/// The objects, and what the target must implement for each.
pub(super) const OBJECTS: &[(&str, Capabilities, Reader)] = &[
    ("features", Capabilities::empty(), features),
    ("threads", Capabilities::empty(), threads::threads_xml),
    (
        "auxv",
        Capabilities::AUXILIARY_VECTOR,
        process::auxiliary_vector,
    ),
    ("exec-file", Capabilities::EXECUTABLE, process::executable),
    (
        "siginfo",
        Capabilities::SIGNAL_INFORMATION,
        process::signal_information,
    ),
    ("osdata", Capabilities::PROCESSES, threads::os_data),
    ("btrace", Capabilities::BRANCH_TRACE, branch_trace::read),
    (
        "btrace-conf",
        Capabilities::BRANCH_TRACE,
        branch_trace::read_configuration,
    ),
];

/// The object that is being read.
#[derive(Debug, Default)]
pub(super) struct Cache {
    /// Its name and annex.
    key: Vec<u8>,
    contents: Vec<u8>,
}

/// `qXfer:OBJECT:read:ANNEX:OFFSET,LENGTH`.
pub(super) fn read(session: &mut Session<'_>, mut arguments: Arguments<'_>) -> Result<Outcome> {
    let name = arguments.until(b':');
    let &(_, capability, reader) = OBJECTS
        .iter()
        .find(|(object, ..)| object.as_bytes() == name)
        .ok_or(TargetError::Unsupported)?;
    session.require(capability)?;
    if !arguments.skip("read:") {
        // Nothing can be written.
        return Err(TargetError::Unsupported);
    }
    let annex = arguments.until(b':');
    let offset = usize::try_from(arguments.number()?).map_err(|_| MALFORMED)?;
    arguments.expect(",")?;
    let length = usize::try_from(arguments.number()?).unwrap_or(usize::MAX);
    arguments.end()?;

    let key = [name, b":", annex].concat();
    if offset == 0 || session.objects.key != key {
        let contents = reader(session, annex)?;
        session.objects = Cache { key, contents };
    }
    let contents = &session.objects.contents;
    let rest = contents.get(offset..).ok_or(MALFORMED)?;
    let part = &rest[..length.min(rest.len())];
    let mut reply = vec![b'm'];
    let sent = push_binary(&mut reply, part, packet::MAX_PACKET);
    if sent == rest.len() {
        reply[0] = b'l';
        session.objects = Cache::default();
    }
    Ok(Outcome::Reply(reply))
}

fn features(session: &mut Session<'_>, annex: &[u8]) -> Result<Vec<u8>> {
    if annex != b"target.xml" {
        return Err(UNKNOWN_ANNEX);
    }
    let thread = session.thread()?;
    let layout = session.layout(thread)?;
    Ok(description::target_xml(layout).into_bytes())
}
