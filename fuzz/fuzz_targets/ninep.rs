//! 9P messages, for a read-only share and for a writable one.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use vbts_devices::ninep::Access;
use vbts_fuzz::input::Input;
use vbts_fuzz::ninep::Session;
use vbts_fuzz::tree::Tree;

const MESSAGES: usize = 100;

static TREE: LazyLock<Tree> = LazyLock::new(Tree::new);

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let flags = input.u8();
    let writable = flags & 1 != 0;
    let (root, access) = if writable {
        (TREE.empty(), Access::ReadWrite)
    } else {
        (TREE.share(), Access::ReadOnly)
    };
    // With few descriptors the server closes files and opens them again.
    let descriptors = if flags & 4 != 0 { 8 } else { 1000 };
    let mut session = Session::new(&root, access, descriptors);
    if flags & 2 == 0 {
        session.attach();
    }
    session.exchange_all(&mut input, MESSAGES);
    drop(session);
    if writable {
        TREE.clean();
    }
    TREE.assert_unchanged();
});
