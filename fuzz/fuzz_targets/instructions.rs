//! Any bytes as code, in every mode, with any registers, while branches are recorded.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| vbts_fuzz::code::run(data, |_| {}));
