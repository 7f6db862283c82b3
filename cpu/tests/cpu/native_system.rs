//! Instructions of an operating system in native code and in the interpreter.

use iced_x86::code_asm::*;
use vbts_cpu::state::{cr4, vector};
use vbts_cpu::{ArchState, Exit, Topology};
use vbts_testkit::Emit;

use crate::common::{DATA, Guest, KERNEL, handler};
use crate::native_code::{begin_rounds, compare, native};

/// The flags of a page-table entry for all accesses at CPL 0.
const SUPERVISOR: u64 = 3;

/// A guest with these flags of CR4 set. The page behind [`DATA`] is one of CPL 3.
fn guest_with(flags: u64) -> Guest {
    let mut guest = Guest::of(vbts_cpu::model("x86-64-v3").unwrap());
    guest.page(DATA, SUPERVISOR);
    guest.update(|s| {
        s.sys.cr4 |= flags;
        s.msr.tsc_aux = 0x1_2345_6789;
    });
    guest
}

/// The time-stamp counter, STI and CLI, PAUSE, and STAC and CLAC around accesses to pages of CPL 3.
fn short_functions(a: &mut CodeAssembler) -> Emit {
    a.rdtsc()?;
    a.add(r8, rax)?;
    a.adc(r8, rdx)?;
    a.stac()?;
    a.add(qword_ptr(rbx + rcx * 8 + 0x1000), r8)?;
    a.pushfq()?;
    a.pop(r9)?;
    a.adc(r9, qword_ptr(rbx + 0x1010))?;
    a.stac()?;
    a.push(qword_ptr(rbx + 0x1008))?;
    a.clac()?;
    a.pop(qword_ptr(rbx + rcx * 8))?;
    a.add(r8, r9)?;
    a.pause()?;
    a.rdtscp()?;
    a.add(r8, rax)?;
    a.sti()?;
    a.adc(r8, rdx)?;
    a.clac()?;
    a.sti()?;
    a.xor(rcx, r8)?;
    a.cli()?;
    a.add(qword_ptr(rbx + 8), rcx)
}

fn rounds(flags: u64) -> Guest {
    let mut guest = guest_with(flags);
    guest.assemble(KERNEL, |a| {
        let (mut outer, mut inner) = (a.create_label(), a.create_label());
        a.mov(rbx, DATA)?;
        begin_rounds(a, &mut outer, &mut inner)?;
        a.push(rcx)?;
        short_functions(a)?;
        a.pop(rcx)?;
        a.dec(ecx)?;
        a.jnz(inner)?;
        a.jmp(outer)
    });
    guest
}

#[test]
fn short_functions_do_what_they_do_in_the_interpreter() {
    compare(|| rounds(0));
    compare(|| rounds(cr4::SMAP));
}

/// The state after a fault of what `make` makes, with native code.
fn fault(name: &str, make: fn() -> Guest) -> ArchState {
    let end = |native_code: bool| {
        let guest = make();
        let mut soft = match native_code {
            true => native(&guest, false, 1 << 20),
            false => guest.second_processor(),
        };
        assert!(matches!(soft.run(100), Exit::Halt { .. }), "{name}");
        soft.cpu.state()
    };
    let state = end(true);
    assert_eq!(state, end(false), "{name}");
    state
}

#[test]
fn short_functions_fault_as_in_the_interpreter() {
    type Make = fn() -> Guest;
    let table: [(&str, u8, Make); 5] = [
        ("RDTSC with CR4.TSD", vector::GP, || {
            let mut guest = Guest::user(|a| {
                a.mov(ecx, 3)?;
                a.rdtsc()
            });
            guest.update(|s| s.sys.cr4 |= cr4::TSD);
            guest
        }),
        ("STI", vector::GP, || {
            Guest::user(|a| {
                a.mov(ecx, 3)?;
                a.sti()
            })
        }),
        ("STAC", vector::UD, || {
            let mut guest = guest_with(0);
            guest.start_user(|a| {
                a.mov(ecx, 3)?;
                a.stac()
            });
            guest
        }),
        ("no STAC", vector::UD, || {
            Guest::kernel(|a| {
                a.mov(ecx, 3)?;
                a.stac()
            })
        }),
        ("user page after CLAC", vector::PF, || {
            let mut guest = guest_with(cr4::SMAP);
            guest.assemble(KERNEL, |a| {
                a.mov(rbx, DATA + 0x1000)?;
                a.stac()?;
                a.mov(rax, qword_ptr(rbx))?;
                a.clac()?;
                a.mov(rax, qword_ptr(rbx + 8))
            });
            guest
        }),
    ];
    for (name, vector, make) in table {
        assert_eq!(fault(name, make).rip, handler(vector) + 1, "{name}");
    }
}

#[test]
fn the_time_stamp_counter_can_be_read_at_cpl_0_with_tsd() {
    let state = fault("RDTSC", || {
        let mut guest = guest_with(cr4::TSD);
        guest.assemble(KERNEL, |a| {
            a.nop()?;
            a.rdtsc()?;
            a.hlt()
        });
        guest
    });
    assert_eq!((state.gpr[0], state.gpr[2]), (1, 0));
}

/// A processor that waits for another returns after the same PAUSE.
#[test]
fn a_processor_spins_as_in_the_interpreter() {
    let guest = Guest::kernel(|a| {
        let mut again = a.create_label();
        a.set_label(&mut again)?;
        a.add(rax, 1)?;
        a.pause()?;
        a.adc(rax, 0)?;
        a.jmp(again)
    });
    for check in [false, true] {
        let mut interpreter = guest.second_processor();
        let mut native = native(&guest, check, 1 << 20);
        let topology = Topology { id: 0, count: 2 };
        interpreter.cpu.set_topology(topology);
        native.cpu.set_topology(topology);
        let mut returned = 0;
        for deadline in (100..10_000).step_by(700) {
            let exit = interpreter.run(deadline);
            returned += u32::from(exit != Exit::Deadline);
            assert_eq!(native.run(deadline), exit);
            assert_eq!(native.cpu.state(), interpreter.cpu.state());
        }
        assert!(returned > 0);
        assert!(native.native_code().blocks > 0);
    }
}
