//! Any file as the program whose symbols are read, or as its separate debug file: ELF headers,
//! symbol tables, the procedure linkage table, compressed sections, and debugging information.
#![no_main]

use std::os::unix::fs::FileExt as _;

use libfuzzer_sys::fuzz_target;
use vbts_fuzz::input::Input;
use vbts_fuzz::object::{look_up, read, unnamed_file};
use vbts_testkit::elf::{CODE, Program};

/// Bits of the first byte: the input is a debug file.
const DEBUG_FILE: u8 = 1;
/// Where the program of the seeds has its code.
const SEED_CODE: u64 = 0x40_0000;
/// Bytes of code that are looked up.
const SIZE: u64 = 0x80;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let flags = input.u8();
    let address = input.u64();
    let file = unnamed_file();
    file.write_all_at(input.rest(), 0).expect("memory");
    let object = if flags & DEBUG_FILE == 0 {
        read(&file, None)
    } else {
        let program = unnamed_file();
        Program::new(&[0x90; 16]).write(&program).expect("memory");
        read(&program, Some(&file))
    };
    let Some(object) = object else {
        return;
    };
    let near = (0..SIZE).flat_map(|n| [SEED_CODE + n, CODE + n]);
    for address in near.chain([address, 0, u64::MAX]) {
        look_up(&object, address);
        if let Some(address) = object.address_of_offset(address) {
            look_up(&object, address);
        }
    }
});
