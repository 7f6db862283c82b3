//! Any contents of the sections of debugging information, in a file that is well-formed otherwise:
//! abbreviations, units, line programs and ranges.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vbts_fuzz::input::Input;
use vbts_fuzz::object::{look_up, read, unnamed_file};
use vbts_testkit::elf::{CODE, Program};

/// The sections, in the order in which the input has them.
const SECTIONS: [&str; 11] = [
    ".debug_abbrev",
    ".debug_info",
    ".debug_line",
    ".debug_str",
    ".debug_line_str",
    ".debug_ranges",
    ".debug_rnglists",
    ".debug_addr",
    ".debug_aranges",
    ".debug_str_offsets",
    ".debug_types",
];
/// Bytes of code.
const SIZE: u64 = 0x100;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let mut program = Program::new(&[0x90; SIZE as usize]).functions(&[(CODE, SIZE, "start")]);
    for name in SECTIONS {
        let size = input.u16();
        program = program.debug(name, input.bytes(size.into()).to_vec());
    }
    let file = unnamed_file();
    program.write(&file).expect("memory");
    let object = read(&file, None).expect("the file is well-formed");
    assert_eq!(object.functions(), 1);
    for address in (CODE..CODE + SIZE).step_by(4).chain([0, 1, u64::MAX]) {
        look_up(&object, address);
    }
});
