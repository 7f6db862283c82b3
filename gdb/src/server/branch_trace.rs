//! GDB's branch trace (`record btrace bts`): the branches of a thread as blocks.
//!
//! A block is a run of instructions without a taken branch, from the target of one branch to the
//! next branch instruction. The newest block comes first and ends at the program counter. GDB reads
//! all blocks once, and afterwards those since its last read, of which the oldest has the beginning
//! 0: GDB continues its own last block there (`btrace_stitch_bts` in its source).

use std::collections::HashMap;
use std::fmt::Write;

use super::objects::UNKNOWN_ANNEX;
use super::session::{Outcome, Session};
use super::text::{Arguments, MALFORMED};
use crate::target::{BranchHistory, Capabilities, Result, TargetError, ThreadId};

/// Size of a record in the buffer of a processor: GDB gives the size of the buffer.
const RECORD_SIZE: u32 = 24;
/// Size of the buffer in bytes if the client chooses none, as GDB's own.
const DEFAULT_SIZE: u32 = 64 << 10;
/// Maximum size of the buffer in bytes: a million records.
const MAX_SIZE: u32 = 24 << 20;
/// Threads that are traced at the same time.
const MAX_THREADS: usize = 4096;

/// Settings of the client.
#[derive(Debug)]
pub(super) struct Settings {
    size: u32,
    /// The threads that are traced, and what of each the client has read.
    threads: HashMap<ThreadId, Progress>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            size: DEFAULT_SIZE,
            threads: HashMap::new(),
        }
    }
}

/// Position up to which the client has read a thread's branches.
#[derive(Debug, Clone, Copy)]
struct Progress {
    /// Position of the thread at the last read, or `None` if there are branches from before the
    /// recording began, which the client must read as a whole.
    position: Option<u64>,
    /// The session's generation then.
    generation: u64,
}

/// `Qbtrace:bts`, `Qbtrace:off`.
pub(super) fn enable(session: &mut Session<'_>, arguments: Arguments<'_>) -> Result<Outcome> {
    session.require(Capabilities::BRANCH_TRACE)?;
    let thread = session.thread()?;
    match arguments.0 {
        b"bts" => {
            if session.branch_trace.threads.len() == MAX_THREADS {
                return Err(TargetError::Refused(
                    "too many threads are traced".to_owned(),
                ));
            }
            session.target.trace_branches(thread, true)?;
            let history = session.target.branches(thread, None, 1)?;
            let position = history.branches.is_empty().then_some(history.position);
            let progress = Progress {
                position,
                generation: session.generation,
            };
            session.branch_trace.threads.insert(thread, progress);
        }
        b"off" => {
            if session.branch_trace.threads.remove(&thread).is_none() {
                return Err(not_enabled());
            }
            session.target.trace_branches(thread, false)?;
        }
        _ => {
            return Err(TargetError::Refused(
                "only bts and off are supported".to_owned(),
            ));
        }
    }
    Outcome::ok()
}

fn not_enabled() -> TargetError {
    TargetError::Refused("Btrace not enabled.".to_owned())
}

/// `Qbtrace-conf:bts:size=SIZE`: the size of the buffer in bytes.
pub(super) fn set_size(session: &mut Session<'_>, mut arguments: Arguments<'_>) -> Result<Outcome> {
    session.require(Capabilities::BRANCH_TRACE)?;
    // GDB is alone in writing this number so.
    arguments.skip("0x");
    let size = arguments.number32()?;
    arguments.end()?;
    session.branch_trace.size = size.clamp(RECORD_SIZE, MAX_SIZE);
    Outcome::ok()
}

/// The object `btrace-conf`.
pub(super) fn read_configuration(session: &mut Session<'_>, annex: &[u8]) -> Result<Vec<u8>> {
    if !annex.is_empty() {
        return Err(UNKNOWN_ANNEX);
    }
    let thread = session.thread()?;
    if !session.branch_trace.threads.contains_key(&thread) {
        return Err(not_enabled());
    }
    let size = session.branch_trace.size;
    Ok(format!(
        "<!DOCTYPE btrace-conf SYSTEM \"btrace-conf.dtd\">\n<btrace-conf version=\"1.0\">\n\
         <bts size=\"{size:#x}\"/>\n</btrace-conf>\n"
    )
    .into_bytes())
}

/// The object `btrace`: `all` blocks, all of them if there are `new` ones, or the `delta` since the
/// last read.
pub(super) fn read(session: &mut Session<'_>, annex: &[u8]) -> Result<Vec<u8>> {
    let thread = session.thread()?;
    let progress = *session
        .branch_trace
        .threads
        .get(&thread)
        .ok_or_else(not_enabled)?;
    let limit = (session.branch_trace.size / RECORD_SIZE) as usize;
    let since = match annex {
        b"all" => None,
        b"new" if progress.position.is_some() && progress.generation == session.generation => {
            return Ok(document(&[]));
        }
        b"new" => None,
        b"delta" => {
            // GDB reads everything after this answer.
            let overflow = || TargetError::Refused("Overflow.".to_owned());
            Some(progress.position.ok_or_else(overflow)?)
        }
        _ => return Err(MALFORMED),
    };
    let history = session.target.branches(thread, since, limit)?;
    let program_counter = session.target.read_registers(thread)?.rip;
    // GDB fills in the beginning of the oldest block of a delta.
    let oldest = since.map_or(history.first, |_| Some(0));
    let blocks = blocks(&history, program_counter, oldest);
    let position = Some(history.position);
    let progress = Progress {
        position,
        generation: session.generation,
    };
    session.branch_trace.threads.insert(thread, progress);
    Ok(document(&blocks))
}

/// Returns the first and the last instruction of each block, the newest block first. The block
/// before the first branch is included if it has a beginning: `oldest`.
fn blocks(history: &BranchHistory, program_counter: u64, oldest: Option<u64>) -> Vec<(u64, u64)> {
    let mut blocks = Vec::with_capacity(history.branches.len() + 1);
    let mut end = program_counter;
    for branch in history.branches.iter().rev() {
        blocks.push((branch.to, end));
        end = branch.from;
    }
    blocks.extend(oldest.map(|begin| (begin, end)));
    blocks
}

fn document(blocks: &[(u64, u64)]) -> Vec<u8> {
    let mut document =
        String::from("<!DOCTYPE btrace SYSTEM \"btrace.dtd\">\n<btrace version=\"1.0\">\n");
    for (begin, end) in blocks {
        // Writing to a string does not fail.
        let _ = writeln!(document, "<block begin=\"{begin:#x}\" end=\"{end:#x}\"/>");
    }
    document.push_str("</btrace>\n");
    document.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Branch;

    #[test]
    fn blocks_lie_between_branches() {
        let branches = vec![Branch { from: 10, to: 50 }, Branch { from: 60, to: 20 }];
        let history = BranchHistory {
            branches,
            first: None,
            position: 7,
        };
        assert_eq!(blocks(&history, 25, None), [(20, 25), (50, 60)]);
        assert_eq!(blocks(&history, 25, Some(0)), [(20, 25), (50, 60), (0, 10)]);
        assert_eq!(blocks(&BranchHistory::default(), 25, Some(5)), [(5, 25)]);
    }
}
