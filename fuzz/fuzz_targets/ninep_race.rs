//! 9P messages for a share whose files the host replaces and moves meanwhile.
//!
//! The input chooses what the host does, not when. So an input does not always reproduce what it
//! has found.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use vbts_devices::ninep::Access;
use vbts_fuzz::input::Input;
use vbts_fuzz::moving_tree::MovingTree;
use vbts_fuzz::ninep::Session;

const MESSAGES: usize = 200;

static TREE: LazyLock<MovingTree> = LazyLock::new(MovingTree::new);

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let flags = input.u8();
    let changes = input.u8();
    let access = if flags & 1 != 0 {
        Access::ReadWrite
    } else {
        Access::ReadOnly
    };
    let descriptors = if flags & 4 != 0 { 8 } else { 1000 };
    TREE.fill();
    let mut session = Session::new(&TREE.share(), access, descriptors);
    session.attach();
    TREE.change_during(changes, || session.exchange_all(&mut input, MESSAGES));
    drop(session);
    TREE.assert_outside_unchanged();
});
