//! Addresses of thread-local variables, with what glibc tells debuggers of its structures.
//!
//! glibc has symbols (nptl_db/structs.def in its source) that describe fields, each by the size in
//! bits, the number of elements, and the offset in bytes. The client looks the symbols up
//! (`qSymbol`), and the server follows the structures: from the thread's descriptor, to which FS
//! points, to its vector of blocks (DTV), and there to the block of the library.

use std::collections::HashMap;

use super::session::{Outcome, Session};
use super::text::{Arguments, MALFORMED, from_hex, push_hex};
use crate::target::{Result, TargetError, ThreadId};

/// Number of the library in the DTV, in `struct link_map`.
const MODULE: usize = 0;
/// Place of the library in static thread-local memory, in `struct link_map`.
const STATIC_OFFSET: usize = 1;
/// The DTV, in the thread's descriptor.
const VECTOR: usize = 2;
/// An element of the DTV: its size is that of the field.
const ELEMENT: usize = 3;
/// The address of the block, in an element.
const POINTER: usize = 4;

const SYMBOLS: [&str; 5] = [
    "_thread_db_link_map_l_tls_modid",
    "_thread_db_link_map_l_tls_offset",
    "_thread_db_pthread_dtvp",
    "_thread_db_dtv_dtv",
    "_thread_db_dtv_t_pointer_val",
];
/// Processes whose symbols are kept.
const MAX_PROCESSES: usize = 4096;

/// Addresses of the symbols, by process.
#[derive(Debug, Default)]
pub(super) struct Symbols(HashMap<u32, [Option<u64>; SYMBOLS.len()]>);

/// `qSymbol::`, by which the client offers to look symbols up, and `qSymbol:ADDRESS:NAME`, the
/// answer for one. The reply asks for the next one, or is `OK`.
pub(super) fn symbol(session: &mut Session<'_>, mut arguments: Arguments<'_>) -> Result<Outcome> {
    let process = session.thread()?.process;
    let known = &mut session.symbols.0;
    if known.len() == MAX_PROCESSES && !known.contains_key(&process) {
        return Outcome::ok();
    }
    let known = known.entry(process).or_default();
    let value = arguments.until(b':');
    let next = if arguments.is_empty() {
        *known = Default::default();
        0
    } else {
        let name = from_hex(arguments.0)?;
        let index = SYMBOLS
            .iter()
            .position(|symbol| symbol.as_bytes() == name)
            .ok_or(MALFORMED)?;
        if value.is_empty() {
            // Without the first symbol there is no glibc, or not yet.
            return Outcome::ok();
        }
        known[index] = Some(Arguments(value).number()?);
        index + 1
    };
    match SYMBOLS.get(next) {
        Some(name) => {
            let mut reply = b"qSymbol:".to_vec();
            push_hex(&mut reply, name.as_bytes());
            Ok(Outcome::Reply(reply))
        }
        None => Outcome::ok(),
    }
}

/// `qGetTLSAddr:THREAD,OFFSET,LINK_MAP`: the address of a variable.
pub(super) fn address(session: &mut Session<'_>, mut arguments: Arguments<'_>) -> Result<Outcome> {
    let selector = arguments.threads()?;
    arguments.expect(",")?;
    let offset = arguments.number()?;
    arguments.expect(",")?;
    let link_map = arguments.number()?;
    arguments.end()?;
    let thread = session.find_thread(selector)?;
    let block = block(session, thread, link_map)?;
    Ok(format!("{:x}", block.wrapping_add(offset)).into())
}

/// Returns the address of a library's block of thread-local variables.
fn block(session: &mut Session<'_>, thread: ThreadId, link_map: u64) -> Result<u64> {
    let layout = session.layout(thread)?;
    if layout.is_32_bit {
        return Err(TargetError::Unsupported);
    }
    let known = session
        .symbols
        .0
        .get(&thread.process)
        .copied()
        .unwrap_or_default();
    let mut field = |index: usize| -> Result<Field> {
        let address = known[index].ok_or(TargetError::Unsupported)?;
        Field::read(session, thread, address)
    };
    let (module, vector) = (field(MODULE)?, field(VECTOR)?);
    let (element, pointer, static_offset) =
        (field(ELEMENT)?, field(POINTER)?, field(STATIC_OFFSET)?);

    let descriptor = session.target.read_registers(thread)?.fs_base;
    // A static program has no link map: its block is the first.
    let number = match link_map {
        0 => 1,
        map => read(session, thread, map.wrapping_add(module.offset))?,
    };
    let vector = read(session, thread, descriptor.wrapping_add(vector.offset))?;
    let place = number
        .wrapping_mul(u64::from(element.bits / 8))
        .wrapping_add(element.offset);
    let block = read(
        session,
        thread,
        vector.wrapping_add(place).wrapping_add(pointer.offset),
    )?;
    // The thread has not used the library's variables yet, and none or all ones is there.
    if block != 0 && block != u64::MAX {
        return Ok(block);
    }
    let offset = match link_map {
        0 => 0,
        map => read(session, thread, map.wrapping_add(static_offset.offset))?,
    };
    // 0, -1 and -2 are no places: NO_TLS_OFFSET, FORCED_DYNAMIC_TLS_OFFSET.
    if offset == 0 || offset >= u64::MAX - 1 {
        let why = "the thread has not used variables of this library yet";
        return Err(TargetError::Refused(why.to_owned()));
    }
    Ok(descriptor.wrapping_sub(offset))
}

/// A field of a structure of glibc.
struct Field {
    bits: u32,
    offset: u64,
}

impl Field {
    fn read(session: &mut Session<'_>, thread: ThreadId, address: u64) -> Result<Self> {
        // Three numbers of 32 bits: size, count, offset. The casts take one of the two that were
        // read.
        let bits = read(session, thread, address)? as u32;
        let offset = read(session, thread, address.wrapping_add(4))? >> 32;
        Ok(Self { bits, offset })
    }
}

/// Reads 8 bytes of memory.
fn read(session: &mut Session<'_>, thread: ThreadId, address: u64) -> Result<u64> {
    let mut bytes = [0; 8];
    if session.target.read_memory(thread, address, &mut bytes)? < 8 {
        return Err(TargetError::Errno(14));
    }
    Ok(u64::from_le_bytes(bytes))
}
