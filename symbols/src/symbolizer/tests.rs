//! Tests of labels, with symbols that this process reads.

use super::*;
use crate::source::local::Local;
use vbts_testkit::elf::Program;

fn own_maps() -> Vec<u8> {
    std::fs::read("/proc/self/maps").unwrap()
}

fn label(symbols: &mut Symbolizer, pid: u32, address: u64) -> String {
    symbols.label(pid, address, &mut Vec::new).to_owned()
}

fn symbolizer() -> Symbolizer {
    let mut symbols = Symbolizer::new(Root::open(Path::new("/")).unwrap(), Path::new("/"));
    symbols
        .files
        .set_source(Source::Local(Box::<Local>::default()));
    symbols
}

#[test]
fn a_test_finds_its_own_function() {
    let mut symbols = symbolizer();
    symbols.set_maps(1, &own_maps());
    let address = a_test_finds_its_own_function as fn() as usize as u64;
    let found = label(&mut symbols, 1, address);
    assert!(
        found.contains("a_test_finds_its_own_function+0x0"),
        "{found}"
    );
    assert!(
        found.contains("symbols/src/symbolizer/tests.rs:"),
        "{found}"
    );
    assert_eq!(label(&mut symbols, 1, address), found, "from the cache");
}

#[test]
fn a_library_function_is_found_in_its_library() {
    let mut symbols = symbolizer();
    symbols.set_maps(1, &own_maps());
    let label = label(&mut symbols, 1, libc::getpid as *const () as usize as u64);
    assert!(label.contains("getpid"), "{label}");
}

#[test]
fn memory_for_a_hostile_guest_is_bounded() {
    let mut symbols = symbolizer();
    for n in 0..2500 {
        symbols.set_maps(
            1,
            format!("1000-2000 r-xp 0 0:0 0 /nonexistent/{n}\n").as_bytes(),
        );
        assert_eq!(label(&mut symbols, 1, 0x1000), format!("{n}+0x0"));
    }
    // As many mappings as a message can have, twice, take linear time.
    let many: String = (0..200_000)
        .map(|n| format!("{n:x}-{:x} r-xp 0 0 0\n", n + 1))
        .collect();
    symbols.set_maps(1, many.as_bytes());
    symbols.set_maps(1, many.as_bytes());
    assert_eq!(label(&mut symbols, 1, 199_999), "[anonymous]+0x0");
    for pid in 2..10 {
        symbols.set_maps(pid, many.as_bytes());
        assert_eq!(label(&mut symbols, pid, 199_999), "[anonymous]+0x0");
        assert!(symbols.mapping_bytes <= MAX_OTHER_MAPPINGS);
    }
    for pid in 0..10 {
        symbols.remove(pid);
    }
    assert!(symbols.others.is_empty());
    assert_eq!((symbols.mapping_bytes, symbols.label_bytes), (0, 0));
}

#[test]
fn unknown_addresses_have_no_label_until_they_are_mapped() {
    let mut symbols = symbolizer();
    assert_eq!(label(&mut symbols, 1, 0x1234), "");
    symbols.set_maps(1, b"1000-2000 r-xp 00000000 00:00 0\n");
    assert_eq!(label(&mut symbols, 1, 0x1234), "[anonymous]+0x234");
    symbols.set_maps(1, b"1000-2000 r-xp 00005000 00:01 9 /nonexistent\n");
    assert_eq!(label(&mut symbols, 1, 0x1234), "nonexistent+0x5234");
    symbols.set_maps(1, b"1000-2000 r-xp ffffffffffffffff 00:01 9 /nonexistent\n");
    assert_eq!(label(&mut symbols, 1, 0x1234), "nonexistent+0x233");
    symbols.set_maps(2, b"1000-2000 r-xp 00000000 00:00 0 [vdso]\n");
    assert_eq!(label(&mut symbols, 2, 0x1234), "[vdso]+0x234");
    assert_eq!(label(&mut symbols, 1, u64::MAX), "[kernel]");
    symbols.set_maps(
        1,
        b"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n",
    );
    assert_eq!(
        label(&mut symbols, 1, 0xFFFF_FFFF_FF60_0400),
        "[vsyscall]+0x400"
    );
}

#[test]
fn addresses_of_the_kernel_are_named_by_its_file() {
    let mut symbols = symbolizer();
    let start = 0xFFFF_FFFF_8100_0000;
    assert_eq!(label(&mut symbols, 1, start), "[kernel]");
    let kernel = tempfile::tempfile().unwrap();
    let program = Program::new(&[0; 16]).at(start);
    let program = program.functions(&[(start, 16, "entry_SYSCALL_64")]);
    program.write(&kernel).unwrap();
    symbols.set_kernel(kernel, "vmlinux");
    assert_eq!(
        label(&mut symbols, 1, start),
        "entry_SYSCALL_64+0x0 [kernel]"
    );
    assert_eq!(
        label(&mut symbols, 2, start + 4),
        "entry_SYSCALL_64+0x4 [kernel]"
    );
    assert_eq!(label(&mut symbols, 2, start + 16), "[kernel]");
    assert_eq!(label(&mut symbols, 1, start + 0x10_0000), "[kernel]");
    assert_eq!(label(&mut symbols, 1, u64::MAX), "[kernel]");
}
