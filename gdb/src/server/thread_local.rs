//! Addresses of thread-local variables in processes with glibc.
//!
//! FS points to the thread's descriptor, which has at offset 8 the address of its vector of blocks
//! (DTV): 16 bytes for each library with such variables, by the library's number, of which the
//! first 8 are the address of the block ("ELF Handling For Thread-Local Storage", and
//! sysdeps/x86_64/nptl/tls.h in glibc's source).
//!
//! The number is in the library's `struct link_map`, at an offset that each version of glibc has
//! another one of. glibc tells debuggers in constants, but these are in pages that a program does
//! not read, so that they are often not in its memory. The server instead finds the offset from
//! what is known to be equal: a library that was loaded with the program has its block at a fixed
//! distance below the descriptor, the distance is in the word before the number
//! (`l_tls_offset`, `l_tls_modid`), and the DTV has the same block at that number.

use super::session::{Outcome, Session};
use super::text::Arguments;
use crate::target::{Result, TargetError, ThreadId};

/// Offset of the DTV's address in the thread's descriptor.
const VECTOR: u64 = 8;
/// Size of an element of the DTV.
const ELEMENT_SIZE: u64 = 16;
/// Libraries with thread-local variables, at most.
const MAX_NUMBER: u64 = 1 << 16;
/// Offsets of the next and of the previous library in `struct link_map`, which are the same in each
/// version.
const NEXT: u64 = 24;
const PREVIOUS: u64 = 32;
/// Libraries that are looked at.
const MAX_LIBRARIES: usize = 1000;
/// Size of the part of `struct link_map` in which the number may be.
const LINK_MAP_SIZE: usize = 0x800;

/// `qGetTLSAddr:THREAD,OFFSET,LINK_MAP`: the address of a variable.
pub(super) fn address(session: &mut Session<'_>, mut arguments: Arguments<'_>) -> Result<Outcome> {
    let selector = arguments.threads()?;
    arguments.expect(",")?;
    let offset = arguments.number()?;
    arguments.expect(",")?;
    let link_map = arguments.number()?;
    arguments.end()?;
    let thread = session.find_thread(selector)?;
    if session.layout(thread)?.is_32_bit {
        return Err(TargetError::Unsupported);
    }
    let descriptor = session.target.read_registers(thread)?.fs_base;
    let vector = read(session, thread, descriptor.wrapping_add(VECTOR))?;
    let blocks = Blocks {
        thread,
        descriptor,
        vector,
    };
    let block = blocks.of(session, link_map)?;
    Ok(format!("{:x}", block.wrapping_add(offset)).into())
}

/// The blocks of a thread.
struct Blocks {
    thread: ThreadId,
    descriptor: u64,
    vector: u64,
}

impl Blocks {
    /// Returns the address of the block of a library.
    fn of(&self, session: &mut Session<'_>, link_map: u64) -> Result<u64> {
        // A static program has no link map: its block is the first.
        if link_map == 0 {
            return self.numbered(session, 1);
        }
        let unknown = || TargetError::Refused("the C library is not one that is known".to_owned());
        let place = self.find_number(session, link_map)?.ok_or_else(unknown)?;
        let number = read(session, self.thread, link_map.wrapping_add(place))?;
        let block = self.numbered(session, number)?;
        // All ones: the library was loaded later, and the thread has not used its variables.
        if number == 0 || block == 0 || block == u64::MAX {
            let why = "the thread has not used variables of this library yet";
            return Err(TargetError::Refused(why.to_owned()));
        }
        Ok(block)
    }

    fn numbered(&self, session: &mut Session<'_>, number: u64) -> Result<u64> {
        let offset = number.wrapping_mul(ELEMENT_SIZE);
        read(session, self.thread, self.vector.wrapping_add(offset))
    }

    /// Returns the offset of `l_tls_modid`, from the first library of the chain that shows it.
    fn find_number(&self, session: &mut Session<'_>, link_map: u64) -> Result<Option<u64>> {
        let mut map = link_map;
        for _ in 0..MAX_LIBRARIES {
            match read(session, self.thread, map.wrapping_add(PREVIOUS))? {
                0 => break,
                previous => map = previous,
            }
        }
        for _ in 0..MAX_LIBRARIES {
            if map == 0 {
                break;
            }
            let mut bytes = [0; LINK_MAP_SIZE];
            let count = session.target.read_memory(self.thread, map, &mut bytes)?;
            let words: Vec<u64> = bytes[..count]
                .as_chunks()
                .0
                .iter()
                .map(|word| u64::from_le_bytes(*word))
                .collect();
            for (index, pair) in words.windows(2).enumerate() {
                let &[distance, number] = pair else { continue };
                if distance != 0
                    && (1..MAX_NUMBER).contains(&number)
                    && self.numbered(session, number).ok()
                        == Some(self.descriptor.wrapping_sub(distance))
                {
                    return Ok(Some(8 * (index as u64 + 1)));
                }
            }
            map = read(session, self.thread, map.wrapping_add(NEXT))?;
        }
        Ok(None)
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
