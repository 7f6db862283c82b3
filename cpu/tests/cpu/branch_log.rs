//! The log of branches for the VMM. `common/records.rs` compares it with the records of the Branch
//! Trace Store for each kind of transfer.

use crate::common::log::Log;
use crate::common::{DATA, Guest, KERNEL, TSS};
use iced_x86::code_asm::{cr3, ecx, rax, rsi};
use vbts_cpu::{Exit, LogEntry, LogScope, Probe, ProbeAction};

/// A loop of so many rounds.
const ROUNDS: u32 = 100_000;

fn looping() -> Guest {
    Guest::kernel(|a| {
        let mut again = a.create_label();
        a.mov(ecx, ROUNDS)?; // +0
        a.set_label(&mut again)?;
        a.dec(ecx)?; // +5
        a.jnz(again)?; // +7
        a.hlt()
    })
}

#[test]
fn a_log_has_more_branches_than_a_buffer() {
    let mut g = looping();
    let log = Log::attach(&mut g, LogScope::all(), Vec::new());
    g.run_to(KERNEL + 10);
    let branches = log.branches(&mut g);
    assert_eq!(branches.len(), ROUNDS as usize - 1);
    assert!(branches.iter().all(|b| *b == (KERNEL + 7, KERNEL + 5)));
    let entries = log.entries(&mut g);
    let processor = |e: &&LogEntry| matches!(e, LogEntry::Processor { id: 0, .. });
    assert!(entries.iter().filter(processor).count() > 3);
    let space = g.soft.cpu.state().sys.cr3;
    let first = LogEntry::AddressSpace {
        cr3: space,
        time: 0,
    };
    assert_eq!(entries[1], first);
}

#[test]
fn a_log_does_not_change_what_the_processor_does() {
    let run = |logged: bool| {
        let mut g = looping();
        g.trace(0, 64);
        let _log = logged.then(|| Log::attach(&mut g, LogScope::all(), Vec::new()));
        g.run_to(KERNEL + 10);
        g.soft.cpu.state()
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn a_detached_log_gets_no_more() {
    let mut g = looping();
    let log = Log::attach(&mut g, LogScope::all(), Vec::new());
    let mut detached = g.soft.cpu.detach_log().unwrap();
    g.run_to(KERNEL + 10);
    g.soft.cpu.attach_log(detached);
    assert_eq!(log.branches(&mut g), []);
    detached = g.soft.cpu.detach_log().unwrap();
    drop(detached);
    g.soft.cpu.flush_log();
}

#[test]
fn address_spaces_are_logged_where_they_change() {
    let mut g = Guest::kernel(|a| {
        let mut next = a.create_label();
        a.mov(rax, cr3)?; // +0
        a.mov(cr3, rax)?; // +3
        a.or(rax, 8)?; // +6
        a.mov(cr3, rax)?; // +12
        a.jmp(next)?; // +15
        a.set_label(&mut next)?;
        a.hlt()
    });
    let log = Log::attach(&mut g, LogScope::all(), Vec::new());
    g.run_to(KERNEL + 18);
    let last = g.soft.cpu.state().sys.cr3;
    let entries = log.entries(&mut g);
    let spaces: Vec<u64> = entries
        .iter()
        .filter_map(|entry| match entry {
            LogEntry::AddressSpace { cr3: space, .. } => Some(*space),
            _ => None,
        })
        .collect();
    assert_eq!(spaces, [last & !8, last]);
    let branch = LogEntry::Branch {
        from: KERNEL + 15,
        to: KERNEL + 17,
    };
    assert_eq!(entries.iter().position(|e| *e == branch), Some(3));
}

/// Calls a function twice with RSI = [`DATA`].
fn calling() -> Guest {
    Guest::kernel(|a| {
        let mut function = a.create_label();
        a.mov(rsi, DATA)?; // +0
        a.call(function)?; // +10
        a.call(function)?; // +15
        a.hlt()?; // +20
        a.set_label(&mut function)?;
        a.ret() // +21
    })
}

#[test]
fn a_log_begins_where_it_is_told() {
    let mut g = calling();
    let start = |nth| Probe {
        address: KERNEL + 21,
        action: ProbeAction::Start { nth },
    };
    let log = Log::attach(&mut g, LogScope::all(), vec![start(1)]);
    g.run_to(KERNEL + 21);
    let all = [
        (KERNEL + 21, KERNEL + 15),
        (KERNEL + 15, KERNEL + 21),
        (KERNEL + 21, KERNEL + 20),
    ];
    assert_eq!(log.branches(&mut g), all);
    for (nth, expected) in [(2, &all[2..]), (3, &[])] {
        let mut g = calling();
        let log = Log::attach(&mut g, LogScope::all(), vec![start(nth)]);
        g.run_to(KERNEL + 21);
        assert_eq!(log.branches(&mut g), expected, "{nth}");
    }
}

#[test]
fn a_processor_stops_where_it_is_told() {
    let branches = [
        (KERNEL + 10, KERNEL + 21),
        (KERNEL + 21, KERNEL + 15),
        (KERNEL + 15, KERNEL + 21),
    ];
    let function = |action| Probe {
        address: KERNEL + 21,
        action,
    };
    let stop = |nth| function(ProbeAction::Stop { nth });
    let start = function(ProbeAction::Start { nth: 1 });
    for (probes, expected) in [
        (vec![stop(1)], &branches[..1]),
        (vec![stop(2)], &branches[..]),
        // A log does not end where it begins.
        (vec![stop(1), start], &branches[1..]),
        (vec![start, stop(1)], &branches[1..]),
    ] {
        // In pieces of one instruction, and at once.
        for piece in [1, 1_000_000] {
            let mut g = calling();
            let log = Log::attach(&mut g, LogScope::all(), probes.clone());
            let exits = std::iter::repeat_with(|| {
                let now = g.soft.cpu.now();
                g.soft.run(now + piece)
            });
            let exit = exits.take(100).find(|exit| *exit != Exit::Deadline);
            assert_eq!(exit, Some(Exit::Stop));
            assert_eq!(g.soft.cpu.rip, KERNEL + 21);
            assert_eq!(log.branches(&mut g), expected, "{probes:?} {piece}");
        }
    }
    // As often as never.
    let mut g = calling();
    Log::attach(&mut g, LogScope::all(), vec![stop(3)]);
    g.run_to(KERNEL + 21);
}

#[test]
fn tasks_are_read_without_a_change_of_the_page_tables() {
    let mut g = calling();
    g.write(DATA + 0x10, 7 << 32 | 5);
    g.write_bytes(DATA + 0x20, b"init\0");
    let entry = g.page_entry(DATA);
    let switch = Probe {
        address: KERNEL + 21,
        action: ProbeAction::SwitchTask {
            ids: 0x10,
            name: 0x20,
        },
    };
    let log = Log::attach(&mut g, LogScope::all(), vec![switch]);
    g.run_to(KERNEL + 21);
    assert_eq!(g.page_entry(DATA), entry);
    let entries = log.entries(&mut g);
    let mut name = [0; 16];
    name[..4].copy_from_slice(b"init");
    let tasks = entries
        .windows(2)
        .filter(|e| matches!(e, [LogEntry::Name(n), LogEntry::Task { ids, .. }] if *n == name && *ids == 7 << 32 | 5));
    assert_eq!(tasks.count(), 2);
}

#[test]
fn a_log_that_begins_at_a_task_notes_it() {
    let mut g = calling();
    g.write(DATA + 0x10, 7 << 32 | 5);
    let actions = [
        ProbeAction::SwitchTask {
            ids: 0x10,
            name: 0x20,
        },
        ProbeAction::Start { nth: 1 },
    ];
    let probes = actions.map(|action| Probe {
        address: KERNEL + 21,
        action,
    });
    let log = Log::attach(&mut g, LogScope::all(), probes.to_vec());
    g.run_to(KERNEL + 21);
    let entries = log.entries(&mut g);
    let tasks = entries
        .iter()
        .filter(|e| matches!(e, LogEntry::Task { ids, .. } if *ids == 7 << 32 | 5));
    assert_eq!(tasks.count(), 2);
    let branches = entries
        .iter()
        .filter(|e| matches!(e, LogEntry::Branch { .. }));
    assert_eq!(branches.count(), 3);
}

#[test]
fn a_task_outside_memory_is_no_task() {
    let mut g = calling();
    g.page(DATA, 0);
    let switch = Probe {
        address: KERNEL + 21,
        action: ProbeAction::SwitchTask { ids: 0, name: TSS },
    };
    let log = Log::attach(&mut g, LogScope::all(), vec![switch]);
    g.run_to(KERNEL + 21);
    let tasks = log.entries(&mut g);
    assert!(!tasks.iter().any(|e| matches!(e, LogEntry::Task { .. })));
}
