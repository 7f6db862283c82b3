//! Native code of a block that continues in another block's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::common::{Guest, KERNEL};
use crate::native_code::native;
use iced_x86::code_asm::*;
use vbts_cpu::{Exit, NativeCode, NativeListener, NativePart};

/// The length of the frequent code of each block, by RIP.
#[derive(Default)]
struct Lengths(HashMap<u64, usize>);

impl NativeListener for Lengths {
    fn made(&mut self, code: NativeCode) {
        if let NativePart::Block { rip, .. } = code.part {
            self.0.insert(rip, code.len);
        }
    }
}

/// A loop whose head falls into a tail, which runs first. Returns the lengths of both blocks.
fn head_and_tail(tail: i32, check: bool) -> [usize; 2] {
    let mut guest = Guest::new();
    guest.assemble(KERNEL, |a| {
        let (mut head, mut second, mut end) =
            (a.create_label(), a.create_label(), a.create_label());
        a.mov(ecx, 5)?;
        a.jmp(second)?;
        a.set_label(&mut head)?;
        // Three bytes, and flags that a long tail reads.
        a.add(rbx, rcx)?;
        a.set_label(&mut second)?;
        for n in 0..tail {
            a.adc(rbx, 1)?;
            a.lea(rbx, ptr(rbx + rbx * 2 + n))?;
        }
        a.dec(ecx)?;
        a.jnz(head)?;
        a.jmp(end)?;
        a.set_label(&mut end)?;
        a.hlt()
    });
    let mut soft = native(&guest, check, 1 << 20);
    let lengths = Arc::<Mutex<Lengths>>::default();
    soft.listen_to_native_code(lengths.clone());
    let mut interpreter = guest.second_processor();
    for soft in [&mut soft, &mut interpreter] {
        let exit = soft.run(1000);
        assert!(matches!(exit, Exit::Halt { .. }), "{exit:?}");
    }
    assert_eq!(interpreter.cpu.state(), soft.cpu.state());
    let head = KERNEL + 7;
    let lengths = &lengths.lock().unwrap().0;
    [head, head + 3].map(|rip| lengths[&rip])
}

#[test]
fn a_block_ends_where_one_with_native_code_begins() {
    let [head, tail] = head_and_tail(20, false);
    assert!(head < tail / 2, "{head} {tail}");
}

#[test]
fn a_block_has_few_instructions_of_another_block_itself() {
    let [head, tail] = head_and_tail(0, false);
    assert!(head > tail * 3 / 4, "{head} {tail}");
}

#[test]
fn the_check_compares_whole_blocks() {
    let [head, tail] = head_and_tail(20, true);
    assert!(head > tail / 2, "{head} {tail}");
}
