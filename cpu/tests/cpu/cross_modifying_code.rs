//! Code that another processor of the machine changes, on virtual time: the change is visible at
//! the start of the next turn, without a serializing instruction.

use crate::common::{DATA, Guest, KERNEL};
use iced_x86::code_asm::*;
use vbts_cpu::{NativeOptions, SoftCpu};

/// A page of kernel memory for the code that changes.
const CODE: u64 = 0x3_0000;
/// Where the program of the writer starts.
const WRITER: u64 = KERNEL + 0x800;
/// A turn in instructions, which each round of both programs is shorter than.
const TURN: u64 = 40;

/// `mov eax, value; ret`.
fn function(value: u32) -> Vec<u8> {
    let mut code = vec![0xB8];
    code.extend(value.to_le_bytes());
    code.push(0xC3);
    code
}

fn turn(soft: &mut SoftCpu) {
    let deadline = soft.cpu.now() + TURN;
    soft.run(deadline);
}

/// A reader that calls the function at `code` for ever and stores its result at [`DATA`], and a
/// writer that executes `change` once for each call of [`write`], with the address of the function
/// in RSI. The writer has written to the page before the reader calls the function.
fn reader_and_writer(
    code: u64,
    native: bool,
    change: impl Fn(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>,
) -> (Guest, [SoftCpu; 2]) {
    let mut g = Guest::kernel(|a| {
        let mut again = a.create_label();
        a.mov(rbx, DATA)?;
        a.set_label(&mut again)?;
        a.mov(rsi, code)?;
        a.call(rsi)?;
        a.mov(dword_ptr(rbx), eax)?;
        a.jmp(again)
    });
    g.assemble(WRITER, |a| {
        let mut again = a.create_label();
        a.mov(rbx, DATA)?;
        a.mov(rsi, code)?;
        a.mov(byte_ptr(rsi - 0x100), 1)?;
        a.xor(r8d, r8d)?;
        a.set_label(&mut again)?;
        a.cmp(r8d, dword_ptr(rbx + 8))?;
        a.je(again)?;
        a.inc(r8d)?;
        change(a)?;
        a.jmp(again)
    });
    g.write_bytes(code, &function(1));
    let [mut reader, mut writer] = g.processors();
    if native {
        for soft in [&mut reader, &mut writer] {
            let options = NativeOptions {
                threshold: 1,
                check: false,
                memory: 1 << 20,
            };
            soft.translate_blocks(options).unwrap();
        }
    }
    let mut state = writer.cpu.state();
    state.rip = WRITER;
    // Both use the same stack page, at other addresses.
    state.gpr[4] -= 0x800;
    writer.cpu.load_state(&state);
    turn(&mut writer);
    (g, [reader, writer])
}

/// Has the writer write once.
fn write(g: &mut Guest, writer: &mut SoftCpu) {
    let rounds = g.read(DATA + 8) + 1;
    g.write_unseen(DATA + 8, &rounds.to_le_bytes());
    turn(writer);
}

#[test]
fn a_store_of_another_processor_is_seen_at_the_next_turn() {
    for native in [false, true] {
        // In one page, and across two.
        for code in [CODE + 0x200, CODE + 0xFFE] {
            let (mut g, [mut reader, mut writer]) =
                reader_and_writer(code, native, |a| a.inc(dword_ptr(rsi + 1)));
            for round in 1..50 {
                turn(&mut reader);
                assert_eq!(g.read(DATA) as u32, round, "{native} {code:#x}");
                write(&mut g, &mut writer);
            }
        }
    }
}

/// The writer executes the code that it changes, too.
#[test]
fn both_processors_see_a_change_of_code_that_both_execute() {
    for native in [false, true] {
        let (mut g, [mut reader, mut writer]) = reader_and_writer(CODE + 0x200, native, |a| {
            a.inc(dword_ptr(rsi + 1))?;
            a.call(rsi)?;
            a.mov(r9d, eax)
        });
        for round in 1..50 {
            turn(&mut reader);
            assert_eq!(g.read(DATA) as u32, round, "{native}");
            write(&mut g, &mut writer);
            assert_eq!(writer.cpu.gpr[9], u64::from(round) + 1, "{native}");
        }
    }
}

#[test]
fn a_device_write_that_one_processor_observes_invalidates_the_code_of_all() {
    for native in [false, true] {
        let (mut g, [mut reader, mut writer]) = reader_and_writer(CODE + 0x200, native, |a| {
            a.call(rsi)?;
            a.mov(r9d, eax)
        });
        for round in 1..50 {
            turn(&mut reader);
            assert_eq!(g.read(DATA) as u32, round, "{native}");
            write(&mut g, &mut writer);
            assert_eq!(writer.cpu.gpr[9], u64::from(round), "{native}");
            g.write_unseen(CODE + 0x200, &function(round + 1));
            [&mut reader, &mut writer][round as usize % 2].invalidate_page(CODE);
        }
    }
}

/// A page that a processor writes again and again, beside code of another one: the writes are
/// tracked, and the code stays.
#[test]
fn data_beside_code_of_another_processor_can_be_written() {
    for native in [false, true] {
        let (mut g, [mut reader, mut writer]) =
            reader_and_writer(CODE + 0x200, native, |a| a.inc(dword_ptr(rsi + 0x400)));
        for round in 1..50 {
            turn(&mut reader);
            assert_eq!(g.read(DATA) as u32, 1, "{native}");
            write(&mut g, &mut writer);
            assert_eq!(g.read(CODE + 0x600), round, "{native}");
        }
    }
}
