//! Any bytes as native code, for the verifier of native code. What it accepts, a naive second one
//! accepts, too. The input has the places of constants, a link and an entry, and the bytes of two
//! parts. Each part ends with a jump to an exit.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vbts_fuzz::input::Input;
use vbts_testkit::naive_verifier;
use vbts_verifier::{Field, Part, Piece, Rules, Verifier};

/// Addresses of the parts, and of what code can reach.
const PARTS: [u64; 2] = [0x10_0000, 0x11_0000];
const EXIT: u64 = 0x20_0000;
const ROUTINE: u64 = 0x20_0100;
const EXECUTE: u64 = 0x20_0200;
const JUMPS: u64 = 0x30_0000;
const KEY: u64 = 0x40_0000;

const fn field(at: i32, len: u32, writable: bool) -> Field {
    Field { at, len, writable }
}

const RULES: Rules<'_> = Rules {
    frame: &[field(0, 0x28, true), field(0x28, 8, false)],
    processor: &[
        field(0x100, 0x80, true),
        field(-0x80, 8, false),
        field(0x10, 16, false),
    ],
    tlb: -0x80,
    tlb_mask: 0x1_FFC0,
    tlb_entry: 0x40,
    window_index: 0x10,
    window_end: 0x18,
    record: 24,
    jumps: &[JUMPS],
    jump_mask: 0x1_FFFE,
    jump_code: 8,
    target: 0x20,
    mxcsr: 0x40,
    host_mxcsr: 0x30,
    exits: &[EXIT],
    routines: &[ROUTINE],
    common_routine: EXECUTE,
    common_constants: 24,
};

/// `code`, and behind it a jump to the exit.
fn part(address: u64, code: &[u8]) -> Vec<u8> {
    let end = address + code.len() as u64 + 5;
    let displacement = EXIT.wrapping_sub(end) as i32;
    [code, &[0xE9], &displacement.to_le_bytes()].concat()
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let [at, len, link, entry, first] = [(); 5].map(|()| usize::from(input.u8()));
    let hot = part(PARTS[0], input.bytes(first));
    let cold = part(PARTS[1], input.rest());
    // The jump at the end is no constant.
    let constants = [(at, len)];
    let has_constants = len > 0 && at + len + 5 <= cold.len();
    let parts = [
        Part {
            address: PARTS[0],
            code: &hot,
            constants: &[],
        },
        Part {
            address: PARTS[1],
            code: &cold,
            constants: if has_constants { &constants } else { &[] },
        },
    ];
    let piece = Piece {
        parts: &parts,
        entries: &[PARTS[0], PARTS[0] + entry as u64],
        links: if link == 0 {
            &[]
        } else {
            &[PARTS[0] + link as u64]
        },
        keys: &[KEY],
    };
    if Verifier::default().verify(&RULES, &piece).is_ok() {
        assert_eq!(naive_verifier::verify(&RULES, &piece), Ok(()));
    }
});
