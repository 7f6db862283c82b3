//! Breakpoints and watchpoints of a debugger outside of the guest: where exactly the processor
//! stops.
//! `stops.rs` shows that the guest does not observe them.

use iced_x86::code_asm::*;
use vbts_cpu::state::{rflags, vector};
use vbts_cpu::{Breakpoint, Exit, SoftCpu, StopCause, StopPoints, WatchKind, Watchpoint};

use crate::common::{DATA, Guest, KERNEL, USER, page_table_entry};
use crate::native_code::native;

/// Entry of a page table: the page is not executable.
const NX: u64 = 1 << 63;
/// Rounds of the loop of [`looping`].
const ROUNDS: u64 = 5000;

/// A loop that reads the word at [`DATA`] and writes the one behind it.
fn looping() -> Guest {
    Guest::kernel(|a| {
        let mut again = a.create_label();
        a.mov(rbx, DATA)?; // +0
        a.mov(ecx, ROUNDS as u32)?; // +10
        a.set_label(&mut again)?;
        a.mov(rax, qword_ptr(rbx))?; // +15
        a.add(rax, rcx)?; // +18
        a.mov(qword_ptr(rbx + 8), rax)?; // +21
        a.inc(rdx)?; // +25
        a.dec(ecx)?; // +28
        a.jnz(again)?; // +30
        a.hlt() // +32
    })
}

/// Runs to HLT. Returns the time, RIP and causes of each stop.
fn stops(soft: &mut SoftCpu) -> Vec<(u64, u64, Vec<StopCause>)> {
    let mut stops = Vec::new();
    loop {
        match soft.run(u64::MAX) {
            Exit::Stop => {
                let causes = soft.cpu.take_stop_causes();
                stops.push((soft.cpu.now(), soft.cpu.rip, causes));
            }
            Exit::Halt { .. } => return stops,
            exit => assert_eq!(exit, Exit::Deadline),
        }
    }
}

fn breakpoint(address: u64) -> StopPoints {
    StopPoints {
        breakpoints: vec![Breakpoint {
            address,
            space: None,
        }],
        ..StopPoints::default()
    }
}

fn watch(address: u64, len: u64, kind: WatchKind) -> StopPoints {
    StopPoints {
        watchpoints: vec![Watchpoint {
            address,
            len,
            kind,
            space: None,
        }],
        ..StopPoints::default()
    }
}

/// A processor in the interpreter, one with native code, and one whose native code is hot already.
fn processors(guest: &Guest) -> [SoftCpu; 3] {
    let mut hot = native(guest, false, 1 << 20);
    let start = guest.soft.cpu.state();
    while !matches!(hot.run(u64::MAX), Exit::Halt { .. }) {}
    assert!(hot.native_code().blocks > 0);
    hot.cpu.load_state(&start);
    [guest.second_processor(), native(guest, false, 1 << 20), hot]
}

#[test]
fn a_breakpoint_in_the_middle_of_a_block_stops_before_its_instruction() {
    let guest = looping();
    for soft in &mut processors(&guest) {
        soft.set_stop_points(breakpoint(KERNEL + 21));
        let stops = stops(soft);
        assert_eq!(stops.len() as u64, ROUNDS);
        for (round, (time, rip, causes)) in stops.iter().enumerate() {
            // Two instructions before the loop, six in each round, two before the breakpoint.
            assert_eq!((*time, *rip), (6 * round as u64 + 4, KERNEL + 21));
            let address = KERNEL + 21;
            assert_eq!(causes, &[StopCause::Breakpoint { address }]);
        }
        assert_eq!(soft.cpu.instructions(), 2 + 6 * ROUNDS + 1);
        // Without it, the code runs as before.
        soft.cpu.load_state(&guest.soft.cpu.state());
        soft.set_stop_points(StopPoints::default());
        assert_eq!(self::stops(soft), []);
    }
}

#[test]
fn a_breakpoint_of_another_address_space_does_not_stop() {
    let guest = looping();
    let own = guest.soft.cpu.state().sys.cr3;
    for soft in &mut processors(&guest) {
        for (space, expected) in [(Some(own), ROUNDS), (Some(own + 0x1000), 0), (None, ROUNDS)] {
            soft.cpu.load_state(&guest.soft.cpu.state());
            let mut points = breakpoint(KERNEL + 18);
            points.breakpoints[0].space = space;
            soft.set_stop_points(points);
            assert_eq!(stops(soft).len() as u64, expected, "{space:?}");
            soft.cpu.load_state(&guest.soft.cpu.state());
            let mut points = watch(DATA, 8, WatchKind::Read);
            points.watchpoints[0].space = space;
            soft.set_stop_points(points);
            assert_eq!(stops(soft).len() as u64, expected, "{space:?}");
        }
    }
}

/// Native code of a page has jumps that are not looked up. A breakpoint that is set later is hit.
#[test]
fn code_of_before_does_not_pass_a_breakpoint() {
    const LAPS: u64 = 3;
    let guest = Guest::kernel(|a| {
        let (mut again, mut function) = (a.create_label(), a.create_label());
        a.mov(ecx, (2 * LAPS * ROUNDS) as u32)?; // +0
        a.set_label(&mut again)?;
        a.call(function)?; // +5
        a.dec(ecx)?; // +10
        a.jnz(again)?; // +12
        a.hlt()?; // +14
        a.set_label(&mut function)?;
        a.inc(rdx)?; // +15
        a.inc(rdx)?; // +18
        a.ret() // +21
    });
    for mut soft in processors(&guest) {
        for lap in 1..=LAPS {
            // A round has 6 instructions. The first of all is MOV.
            soft.set_stop_points(StopPoints::default());
            let until = 1 + 6 * (2 * lap - 1) * ROUNDS;
            assert_eq!(soft.run(until), Exit::Deadline);
            assert_eq!((soft.cpu.now(), soft.cpu.rip), (until, KERNEL + 5));
            soft.set_stop_points(breakpoint(KERNEL + 18));
            for round in 0..ROUNDS {
                assert_eq!(soft.run(u64::MAX), Exit::Stop);
                let place = (soft.cpu.now(), soft.cpu.rip);
                assert_eq!(place, (until + 6 * round + 2, KERNEL + 18));
            }
        }
        assert!(matches!(soft.run(u64::MAX), Exit::Halt { .. }));
    }
}

#[test]
fn a_watchpoint_stops_behind_the_instruction() {
    let guest = looping();
    // Word, length and kind; RIP behind the instruction, and instructions of the round up to it.
    let read = (KERNEL + 18, 1);
    let write = (KERNEL + 25, 3);
    for (at, len, kind, expected) in [
        (DATA, 8, WatchKind::Read, Some(read)),
        (DATA + 7, 1, WatchKind::Access, Some(read)),
        (DATA, 8, WatchKind::Write, None),
        (DATA + 8, 8, WatchKind::Write, Some(write)),
        (DATA + 15, 3, WatchKind::Access, Some(write)),
        (DATA + 8, 8, WatchKind::Read, None),
        (DATA - 1, 1, WatchKind::Access, None),
        (DATA + 16, 4000, WatchKind::Access, None),
    ] {
        for soft in &mut processors(&guest) {
            soft.set_stop_points(watch(at, len, kind));
            let stops = stops(soft);
            let expected_count = expected.map_or(0, |_| ROUNDS);
            assert_eq!(stops.len() as u64, expected_count, "{at:#x} {len} {kind:?}");
            for (round, (time, rip, causes)) in stops.iter().enumerate() {
                let (behind, count) = expected.unwrap();
                assert_eq!((*time, *rip), (2 + 6 * round as u64 + count, behind));
                let is_write = behind == write.0;
                assert!(
                    matches!(causes[..], [StopCause::Watchpoint { watchpoint, is_write: w, .. }]
                        if watchpoint.address == at && w == is_write)
                );
            }
            assert_eq!(soft.cpu.instructions(), 2 + 6 * ROUNDS + 1);
        }
    }
}

#[test]
fn both_halves_of_an_access_to_two_pages_are_watched() {
    let mut guest = Guest::kernel(|a| {
        a.mov(rbx, DATA + 0xFFC)?;
        a.mov(rax, qword_ptr(rbx))?;
        a.inc(qword_ptr(rbx))?;
        a.lock().add(qword_ptr(rbx), rax)?;
        a.hlt()
    });
    guest.write(DATA + 0xFFC, 1);
    for (at, len) in [(DATA + 0xFFF, 1), (DATA + 0x1000, 1), (DATA + 0x1003, 8)] {
        let mut soft = guest.second_processor();
        soft.set_stop_points(watch(at, len, WatchKind::Read));
        let times: Vec<u64> = stops(&mut soft).iter().map(|stop| stop.0).collect();
        assert_eq!(times, [2, 3, 4], "{at:#x}");
    }
}

#[test]
fn a_string_instruction_stops_at_its_end() {
    let guest = Guest::kernel(|a| {
        a.mov(rdi, DATA)?;
        a.mov(ecx, 300)?;
        a.rep().stosq()?;
        a.hlt()
    });
    let mut soft = guest.second_processor();
    soft.set_stop_points(watch(DATA + 1000, 1, WatchKind::Write));
    let stops = stops(&mut soft);
    assert_eq!(stops.len(), 1);
    assert_eq!(stops[0].0, 3);
    assert_eq!(soft.cpu.gpr[1], 0);
}

#[test]
fn an_instruction_that_faults_and_is_repeated_is_hit_once() {
    let mut guest = Guest::kernel(|a| {
        a.mov(rbx, DATA)?; // +0
        a.mov(qword_ptr(rbx), rax)?; // +10
        a.mov(qword_ptr(rbx + 8), rax)?; // +13
        a.hlt()
    });
    let entry = guest.page_entry(DATA);
    guest.page(DATA, 0);
    guest.gate(vector::PF, vbts_testkit::descriptor::Gate::to(0));
    guest.assemble(crate::common::handler(vector::PF), |a| {
        a.push(rax)?;
        a.mov(rax, entry)?;
        a.mov(qword_ptr(page_table_entry(DATA)), rax)?;
        a.invlpg(qword_ptr(rbx))?;
        a.pop(rax)?;
        a.add(rsp, 8)?;
        a.iretq()
    });
    let mut soft = guest.second_processor();
    soft.set_stop_points(breakpoint(KERNEL + 10));
    let hits: Vec<_> = stops(&mut soft).iter().map(|s| (s.0, s.1)).collect();
    assert_eq!(hits, [(1, KERNEL + 10)]);
    assert_eq!(soft.cpu.rip, KERNEL + 18);
}

/// A guest that jumps to a HLT at DATA, and enters the page there again after a page fault.
/// Returns the entry of its page table, too.
fn jumps_to_data() -> (Guest, u64) {
    let mut guest = Guest::kernel(|a| {
        a.mov(rbx, DATA)?; // +0
        a.jmp(rbx) // +10
    });
    let entry = guest.page_entry(DATA);
    guest.assemble(DATA, |a| a.hlt());
    guest.gate(vector::PF, vbts_testkit::descriptor::Gate::to(0));
    guest.assemble(crate::common::handler(vector::PF), |a| {
        a.mov(rax, entry)?;
        a.mov(qword_ptr(page_table_entry(DATA)), rax)?;
        a.invlpg(qword_ptr(rbx))?;
        a.add(rsp, 8)?;
        a.iretq()
    });
    (guest, entry)
}

#[test]
fn an_instruction_whose_page_is_not_there_yet_is_hit() {
    let (mut guest, _) = jumps_to_data();
    guest.page(DATA, 0);
    let mut soft = guest.second_processor();
    soft.set_stop_points(breakpoint(DATA));
    let hits: Vec<u64> = stops(&mut soft).iter().map(|stop| stop.1).collect();
    assert_eq!(hits, [DATA]);
}

/// A debugger has a function that it calls return to such a breakpoint, on the stack.
#[test]
fn a_breakpoint_in_a_page_that_is_not_executable_is_hit_before_the_fault() {
    let (mut guest, entry) = jumps_to_data();
    for mut soft in [guest.second_processor(), native(&guest, false, 1 << 20)] {
        guest.page(DATA, entry | NX);
        soft.set_stop_points(breakpoint(DATA));
        // The instruction begins again after the fault, which is no second hit.
        let hits: Vec<_> = stops(&mut soft).iter().map(|s| (s.0, s.1)).collect();
        assert_eq!(hits, [(2, DATA)]);
        assert_eq!(soft.cpu.rip, DATA + 1);
    }
}

#[test]
fn a_loop_in_front_of_a_breakpoint_has_native_code() {
    let guest = looping();
    let mut soft = native(&guest, false, 1 << 20);
    soft.set_stop_points(breakpoint(KERNEL + 32));
    assert_eq!(stops(&mut soft).len(), 1);
    assert!(soft.native_code().blocks > 0);
}

#[test]
fn a_run_from_a_breakpoint_does_not_stop_there() {
    let guest = looping();
    let mut soft = guest.second_processor();
    assert_eq!(soft.run(4), Exit::Deadline);
    assert_eq!(soft.cpu.rip, KERNEL + 21);
    soft.set_stop_points(breakpoint(KERNEL + 21));
    soft.cpu.leave_stop();
    assert_eq!(soft.run(u64::MAX), Exit::Stop);
    assert_eq!((soft.cpu.now(), soft.cpu.rip), (10, KERNEL + 21));
}

#[test]
fn stays_in_user_mode_begin_and_end_with_stops() {
    let mut guest = Guest::user(|a| {
        a.inc(rbx)?; // +0
        a.syscall()?; // +3
        a.inc(rbx)?; // +5
        a.ud2() // +8
    });
    guest.assemble(KERNEL, |a| {
        a.inc(rbp)?;
        a.sysretq()
    });
    guest.update(|s| {
        s.msr.lstar = KERNEL;
        s.msr.fmask = rflags::IF;
    });
    let space = guest.soft.cpu.state().sys.cr3;
    let mut soft = guest.second_processor();
    soft.set_stop_points(StopPoints {
        user_mode_of: Some(space),
        ..StopPoints::default()
    });
    let stops: Vec<_> = stops(&mut soft)
        .into_iter()
        .map(|(time, rip, causes)| (time, rip, causes[0]))
        .collect();
    let ud = crate::common::handler(vector::UD);
    assert_eq!(
        stops,
        [
            (2, KERNEL, StopCause::LeavesUserMode),
            (4, USER + 5, StopCause::EntersUserMode),
            (6, ud, StopCause::LeavesUserMode),
        ]
    );
}

#[test]
fn memory_of_another_address_space_is_read() {
    let mut guest = looping();
    guest.write(DATA, 0x1122_3344);
    guest.write(DATA + 0xFFC, 0x5566_7788_99AA);
    let state = guest.soft.cpu.state();
    let mut bytes = [0; 8];
    assert!(
        guest
            .soft
            .cpu
            .read_in(state.sys.cr3, DATA + 0xFFC, &mut bytes)
    );
    assert_eq!(u64::from_le_bytes(bytes), 0x5566_7788_99AA);
    // An empty table.
    assert!(!guest.soft.cpu.read_in(0x30_0000, DATA, &mut bytes));
    assert_eq!(guest.soft.cpu.state(), state);
}
