//! Whether this host can execute native code of the software CPU, and does it right.

use vbts_cpu::state::gpr;
use vbts_cpu::{ArchState, DebugCtl, Exit, NativeOptions, NativeStats};
use vm_memory::{Bytes, GuestAddress};

use super::host::scratch;
use vbts_host::exit::Failure;

/// Memory of the test: what its code writes and its stack, then the DS area and its records.
const DATA: u64 = 0x20_0000;
const STACK: u64 = DATA + 0x1000;
const DS_AREA: u64 = DATA + 0x1000;
const RECORDS: u64 = DATA + 0x2000;
const RECORDS_END: u64 = RECORDS + 0x3000;
const LEN: usize = 0x5000;

/// Loads, stores, calls, returns and jumps of a loop, 64 times.
#[rustfmt::skip]
const CODE: &[u8] = &[
    0xB9, 0x40, 0, 0, 0,                // MOV ECX, 64
    0x48, 0xC7, 0xC7, 0, 0, 0x20, 0,    // MOV RDI, DATA
    0x48, 0x89, 0x0C, 0xCF,             // MOV [RDI + 8 * RCX], RCX
    0x48, 0x03, 0x04, 0xCF,             // ADD RAX, [RDI + 8 * RCX]
    0xE8, 5, 0, 0, 0,                   // CALL, behind HLT
    0xFF, 0xC9,                         // DEC ECX
    0x75, 0xEF,                         // JNZ, to the first MOV of the loop
    0xF4,                               // HLT
    0x48, 0x31, 0xC8,                   // XOR RAX, RCX
    0xC3,                               // RET
];

/// Virtual time in ns that is more than enough for the test.
const DEADLINE: u64 = 1_000_000;

/// The end of the test: the registers and the memory.
#[derive(PartialEq, Eq)]
struct Outcome {
    gpr: [u64; 16],
    memory: Vec<u8>,
}

/// Executes [`CODE`], with native code if there are options. Branches are recorded.
fn run(options: Option<NativeOptions>) -> Result<(Outcome, NativeStats), Failure> {
    let prepare = |state: &mut ArchState| {
        state.gpr[gpr::RSP] = STACK;
        state.debugctl = (DebugCtl::TR | DebugCtl::BTS).bits();
        state.ds_area = DS_AREA;
    };
    let (mut soft, memory) = scratch(CODE, prepare)?;
    // Base, index, absolute maximum and threshold of the BTS buffer.
    for (at, field) in (DS_AREA..)
        .step_by(8)
        .zip([RECORDS, RECORDS, RECORDS_END, RECORDS_END])
    {
        memory.write_obj(field, GuestAddress(at))?;
    }
    if let Some(options) = options {
        let translated = soft.translate_blocks(options);
        translated.map_err(|error| Failure::Host(error.to_string()))?;
    }
    let exit = soft.run(DEADLINE);
    if !matches!(exit, Exit::Halt { .. }) {
        return Err(anyhow::anyhow!("unexpected exit from a test: {exit:?}").into());
    }
    let mut bytes = vec![0; LEN];
    memory.read_slice(&mut bytes, GuestAddress(DATA))?;
    let outcome = Outcome {
        gpr: soft.cpu.state().gpr,
        memory: bytes,
    };
    Ok((outcome, soft.native_code()))
}

/// Executes a small program in native code, and compares the result with the interpreter's. It
/// takes some milliseconds.
///
/// # Errors
/// The host refuses, as [`vbts_cpu::SoftCpu::translate_blocks`] says, or the results differ.
pub fn check() -> Result<(), Failure> {
    let options = NativeOptions {
        threshold: 1,
        memory: 1 << 20,
        ..NativeOptions::default()
    };
    let (native, stats) = run(Some(options))?;
    let (interpreted, _) = run(None)?;
    if stats.blocks == 0 || stats.refused != 0 || native != interpreted {
        return Err(Failure::Host(
            "a test program has another result than in the interpreter".into(),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_program_stores_records() {
        let (outcome, _) = run(None).unwrap();
        let index = &outcome.memory[(DS_AREA + 8 - DATA) as usize..][..8];
        let index = u64::from_le_bytes(index.try_into().unwrap());
        // A call and a return in each round, and a jump in all but the last.
        assert_eq!(index - RECORDS, 24 * (3 * 64 - 1));
        assert_eq!(outcome.gpr[gpr::RCX], 0);
    }

    #[test]
    fn this_host_executes_native_code() {
        check().unwrap();
    }
}
