//! The program's file on the host: where its `main` is.

use object::{Object as _, ObjectSymbol as _};

/// The distance of `main` from the entry point of the program in `file`, if its symbols tell.
pub fn distance_of_main(file: &[u8]) -> Option<u64> {
    let file = object::File::parse(file).ok()?;
    let main = file.symbol_by_name("main")?;
    (main.address() != 0).then(|| main.address().wrapping_sub(file.entry()))
}
