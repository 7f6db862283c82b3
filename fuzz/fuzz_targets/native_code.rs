//! Any bytes as code, as in `instructions`, which is translated to native code at its first run.
//! Each block is compared with the interpreter; a difference is a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vbts_cpu::NativeOptions;

fuzz_target!(|data: &[u8]| vbts_fuzz::code::run(data, |guest| {
    let options = NativeOptions {
        threshold: 1,
        check: true,
        memory: 1 << 20,
    };
    let soft = &mut guest.machine.soft;
    soft.translate_blocks(options).expect("executable memory");
}));
