use std::os::fd::BorrowedFd;

use iced_x86::code_asm::*;
use vbts_host::Event;
use vbts_testkit::Emit;

use super::super::tests::{assembled, machine};
use super::*;
use crate::board::Board;
use crate::layout::EXTENDED_MEMORY;
use crate::memory::MemoryContents;

/// An observer that counts exits.
#[derive(Default)]
pub(super) struct Counter(u64);

impl RunObserver for Counter {
    fn after_exit(&mut self, _: &Board, _: u64) -> Result<(), Failure> {
        self.0 += 1;
        Ok(())
    }
    fn event(&mut self, _: &Board, event: Event) -> Result<(), Failure> {
        panic!("{event:?}")
    }
    fn awaited_inputs(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}

impl ReplayObserver for Counter {
    fn save(&mut self) -> Vec<u8> {
        self.0.to_le_bytes().to_vec()
    }
    fn restore(&mut self, state: &[u8]) -> Result<(), Failure> {
        self.0 = u64::from_le_bytes(state.try_into().unwrap());
        Ok(())
    }
}

/// The page that [`busy`] writes first, and the distance to the next.
const DATA: u64 = 4 << 20;
const STEP: u64 = 3 << 12;

/// Code that writes pages and its own code, and prints. It reads a page again and again while it
/// clears the accessed flag of that page, which a flush of the TLB would set.
pub(super) fn busy(a: &mut CodeAssembler) -> Emit {
    let (mut again, mut inner, mut patched) =
        (a.create_label(), a.create_label(), a.create_label());
    // RDI: the entry of the page directory for DATA.
    a.mov(rax, cr3)?;
    for _ in 0..2 {
        a.mov(rax, qword_ptr(rax))?;
        a.and(rax, -0x1000)?;
    }
    a.lea(rdi, qword_ptr(rax + 8 * (DATA >> 21)))?;
    a.mov(rbx, DATA)?;
    a.mov(r9, DATA)?;
    a.mov(ebp, 40)?;
    a.set_label(&mut again)?;
    a.mov(ecx, 300)?;
    a.set_label(&mut inner)?;
    a.add(qword_ptr(rbx), rcx)?;
    a.and(qword_ptr(rdi), !0x20)?;
    a.mov(rdx, qword_ptr(r9))?;
    a.dec(ecx)?;
    a.jnz(inner)?;
    // Changes the number in the instruction at `patched`.
    a.lea(rax, qword_ptr(patched))?;
    a.inc(dword_ptr(rax + 1))?;
    a.set_label(&mut patched)?;
    a.mov(esi, 0x1000)?;
    a.mov(qword_ptr(rbx + 8), rsi)?;
    a.add(rbx, STEP as i32)?;
    a.mov(dx, 0x3F8)?;
    a.mov(al, u32::from(b'.'))?;
    a.out(dx, al)?;
    a.dec(ebp)?;
    a.jnz(again)?;
    a.mov(eax, 3)?;
    a.out(0xF4, eax)?;
    a.hlt()
}

/// Everything of a machine that a guest can observe, and how often it has left the processor.
pub(super) fn picture(
    machine: &Machine,
    observer: &Counter,
) -> (u64, u64, Vec<u8>, MemoryContents) {
    let state = machine.vcpus[0].soft().snapshot();
    (
        machine.now(),
        observer.0,
        postcard::to_allocvec(&state).unwrap(),
        MemoryContents::save(&machine.memory).unwrap(),
    )
}

/// Pictures of a run of `code` at `times`, in order, and the time of its end.
fn pictures(code: &[u8], times: &[u64]) -> Vec<(u64, u64, Vec<u8>, MemoryContents)> {
    let mut pictures = Vec::new();
    for time in times {
        let (mut machine, mut observer) = (machine(code, None), Counter::default());
        machine.run_until(*time, &mut observer).unwrap();
        pictures.push(picture(&machine, &observer));
    }
    pictures
}

/// Numbers that look random.
fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |below| {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
        (state >> 33) % below
    }
}

fn end_of(code: &[u8]) -> u64 {
    let mut machine = machine(code, None);
    machine.run(&mut Counter::default()).unwrap();
    machine.now()
}

#[test]
fn a_pause_is_no_exit() {
    let code = assembled(busy);
    let end = end_of(&code);
    let [expected] = &pictures(&code, &[u64::MAX])[..] else {
        panic!()
    };
    let mut number = numbers(7);
    let (mut machine, mut observer) = (machine(&code, None), Counter::default());
    while machine.now() < end {
        let pause = machine.now() + number(50);
        machine.run_until(pause, &mut observer).unwrap();
    }
    assert_eq!(picture(&machine, &observer), *expected);
}

#[test]
fn any_time_is_reached_again() {
    let code = assembled(busy);
    let end = end_of(&code);
    let mut number = numbers(3);
    let mut times: Vec<u64> = (0..12).map(|_| number(end)).collect();
    times.extend([0, end]);
    let expected = pictures(&code, &times);
    // Without room, and with.
    for limit in [0, 1 << 30] {
        let (mut machine, mut observer) = (machine(&code, None), Counter::default());
        let mut history = History::new(limit);
        let run_end = history
            .run_until(&mut machine, u64::MAX, &mut observer)
            .unwrap();
        assert_eq!(run_end, Some(End::Status(3)));
        assert_eq!(history.end(), Some((end, End::Status(3))));
        for _ in 0..60 {
            let n = number(times.len() as u64) as usize;
            history.seek(&mut machine, times[n], &mut observer).unwrap();
            if number(2) == 0 {
                history.take(&mut machine, &mut observer).unwrap();
            }
            assert!(picture(&machine, &observer) == expected[n], "{}", times[n]);
            if number(3) == 0 {
                let until = machine.now() + number(5000);
                history
                    .run_until(&mut machine, until, &mut observer)
                    .unwrap();
            }
            let place = number(history.snapshots.len() as u64) as usize;
            let is_inner = place > 0 && place + 1 < history.snapshots.len();
            if is_inner && history.snapshots[place].time != history.since && number(4) == 0 {
                history.drop_snapshot(place);
            }
        }
        assert!(limit == 0 || history.times().len() > 3);
    }
}

#[test]
fn what_a_debugger_changes_is_dropped() {
    let code = assembled(busy);
    let times = [2000, 9000];
    let expected = pictures(&code, &times);
    let (mut machine, mut observer) = (machine(&code, None), Counter::default());
    let mut history = History::new(1 << 30);
    history
        .run_until(&mut machine, 9000, &mut observer)
        .unwrap();
    history.seek(&mut machine, 2000, &mut observer).unwrap();
    history.leave(&machine);
    machine
        .write_memory(EXTENDED_MEMORY, &[0xF4; 4096])
        .unwrap();
    let mut state = machine.current_processor().unwrap().1.state();
    state.rip += 1;
    machine.set_state(0, &state);
    history
        .run_until(&mut machine, 3000, &mut observer)
        .unwrap_err();
    for (time, expected) in times.iter().zip(&expected) {
        history.seek(&mut machine, *time, &mut observer).unwrap();
        assert!(!history.has_left() && picture(&machine, &observer) == *expected);
    }
}

#[test]
fn snapshots_are_dense_close_to_the_present() {
    // A loop that writes a page at each turn, and never ends.
    let code = assembled(|a| {
        let (mut again, mut wait) = (a.create_label(), a.create_label());
        a.mov(rbx, DATA)?;
        a.set_label(&mut again)?;
        a.add(qword_ptr(rbx), 1)?;
        a.mov(ecx, 10_000_000)?;
        a.set_label(&mut wait)?;
        a.dec(ecx)?;
        a.jnz(wait)?;
        a.add(rbx, 0x1000)?;
        a.and(rbx, (DATA | 0xF000) as i32)?;
        a.jmp(again)
    });
    let (mut machine, mut observer) = (machine(&code, None), Counter::default());
    let mut history = History::new(0);
    history.run_until(&mut machine, 1, &mut observer).unwrap();
    let limit = history.size() + 500_000;
    history.limit = limit;
    let end = 40 * INTERVAL;
    history.run_until(&mut machine, end, &mut observer).unwrap();
    let gaps = |history: &History| {
        let times: Vec<u64> = history.times().collect();
        let gaps: Vec<u64> = times.windows(2).map(|two| two[1] - two[0]).collect();
        (times.len(), gaps[1], gaps[gaps.len() - 1])
    };
    let (count, first, last) = gaps(&history);
    assert!(
        (5..30).contains(&count) && history.size() <= limit,
        "{count}"
    );
    assert!(first > 2 * last && last == INTERVAL, "{first} {last}");
    // Going back makes them denser there.
    history
        .seek(&mut machine, 5 * INTERVAL + 1, &mut observer)
        .unwrap();
    let (count, first, last) = gaps(&history);
    assert!(count < 30 && history.size() <= limit);
    assert!(first < last, "{first} {last}");
}

#[test]
fn times_before_the_first_snapshot_are_refused() {
    let code = assembled(busy);
    let (mut machine, mut observer) = (machine(&code, None), Counter::default());
    machine.run_until(100, &mut observer).unwrap();
    let mut history = History::new(0);
    history.run_until(&mut machine, 200, &mut observer).unwrap();
    let error = history.seek(&mut machine, 99, &mut observer).unwrap_err();
    assert!(error.to_string().contains("before 100 ns"), "{error}");
    history.seek(&mut machine, 100, &mut observer).unwrap();
    assert_eq!(machine.now(), 100);
    machine.use_host_clock();
    let mut history = History::new(0);
    assert!(history.seek(&mut machine, 100, &mut observer).is_err());
}
