//! Any text as the mangled name of a function, in C++ and in both forms of Rust.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vbts_fuzz::object::{look_up, read, unnamed_file};
use vbts_testkit::elf::{CODE, Program};

fuzz_target!(|data: &[u8]| {
    let Ok(name) = str::from_utf8(data) else {
        return;
    };
    let file = unnamed_file();
    let program = Program::new(&[0x90; 16]).functions(&[(CODE, 16, name)]);
    program.write(&file).expect("memory");
    let object = read(&file, None).expect("the file is well-formed");
    look_up(&object, CODE);
});
