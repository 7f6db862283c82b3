//! Random programs in native code as users run it and in the interpreter, in lock step. The input
//! is the recipe of a program: its family, a seed of everything but the steps, and a seed of each
//! step.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vbts_testkit::lockstep::{Recipe, check, reduce};

fuzz_target!(|data: &[u8]| {
    if let Some(recipe) = Recipe::of_bytes(data)
        && let Err(difference) = check(&recipe)
    {
        panic!("{}", reduce(difference));
    }
});
