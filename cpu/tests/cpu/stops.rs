//! Where a run ends changes nothing that follows: a guest with a timer, devices, a performance
//! counter, branch records and code that changes itself runs once as a whole and once with stops
//! after random numbers of instructions.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use iced_x86::code_asm::*;
use vbts_cpu::state::{ArchState, vector};
use vbts_cpu::{
    Breakpoint, Cpu, Exit, NativeOptions, Platform, Signals, SoftCpu, StopCause, StopPoints,
    WatchKind, Watchpoint,
};
use vbts_testkit::{Emit, Ram};

use crate::common::{
    BTS_BUFFER, DATA, DS_AREA, Gate, Guest, KERNEL, RAM, handler, page_table_entry,
};

/// A page of registers of the device, at this linear and guest-physical address.
const DEVICE: u64 = 0x30_0000;
const DEVICE_GPA: u64 = 0xFEE0_0000;
/// A write sets the timer to so many nanoseconds from now.
const TIMER: u64 = 0;
/// A read returns the time.
const TIME: u64 = 8;
/// A write interrupts at once.
const INTERRUPT: u64 = 16;
const TIMER_VECTOR: u8 = 0x40;
const DEVICE_VECTOR: u8 = 0x41;
const PMI_VECTOR: u8 = 0x42;
/// Where handlers count, and keep the next interval of the timer.
const COUNTERS: u64 = DATA + 0x8000;
/// Code that the program changes.
const CHANGED: u64 = 0x3_0000;
/// Memory for string instructions, which has code in it.
const BUFFER: u64 = DATA + 0x2_0000;
/// Virtual time at which each run ends.
const END: u64 = 150_000;

/// Numbers that depend on a seed alone (xorshift64*).
#[derive(Debug, Clone)]
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % n
    }
}

/// An access to the platform: its time, what it is, and where.
type Event = (u64, &'static str, u64, u64);

/// A timer, a device that interrupts, and a log of all accesses.
#[derive(Debug, Default)]
struct Device {
    signals: Arc<Signals>,
    log: Mutex<Vec<Event>>,
    deadline: Mutex<Option<u64>>,
    pending: Mutex<VecDeque<u8>>,
}

impl Device {
    fn note(&self, event: Event) {
        self.log.lock().unwrap().push(event);
    }

    fn interrupt(&self, vector: u8) {
        let mut pending = self.pending.lock().unwrap();
        if !pending.contains(&vector) {
            pending.push_back(vector);
        }
        self.signals.raise(Signals::INTR);
    }

    /// Expires the timer if it is due.
    fn tick(&self, now: u64) {
        let mut deadline = self.deadline.lock().unwrap();
        if deadline.take_if(|at| *at <= now).is_some() {
            self.interrupt(TIMER_VECTOR);
        }
    }
}

impl Platform for Device {
    fn mmio_read(&self, now: u64, gpa: u64, data: &mut [u8]) {
        self.note((now, "mmio read", gpa, data.len() as u64));
        let value = now.to_le_bytes();
        data.copy_from_slice(&value[..data.len()]);
    }
    fn mmio_write(&self, now: u64, gpa: u64, data: &[u8]) {
        let mut value = [0; 8];
        value[..data.len()].copy_from_slice(data);
        let value = u64::from_le_bytes(value);
        self.note((now, "mmio write", gpa, value));
        match gpa - DEVICE_GPA {
            TIMER => *self.deadline.lock().unwrap() = Some(now + (value & 0xFFF)),
            INTERRUPT => self.interrupt(DEVICE_VECTOR),
            _ => {}
        }
    }
    fn pio_read(&self, now: u64, port: u16, data: &mut [u8]) {
        self.note((now, "pio read", port.into(), data.len() as u64));
        data.fill(now as u8);
    }
    fn pio_write(&self, now: u64, port: u16, data: &[u8]) {
        self.note((now, "pio write", port.into(), data[0].into()));
    }
    fn acknowledge_interrupt(&self, now: u64) -> Option<u8> {
        let mut pending = self.pending.lock().unwrap();
        let vector = pending.pop_front();
        self.signals.set(Signals::INTR, !pending.is_empty());
        self.note((now, "interrupt", vector?.into(), 0));
        vector
    }
    fn take_nmi(&self) -> bool {
        self.signals.lower(Signals::NMI);
        true
    }
    fn give_back_nmi(&self) {
        self.signals.raise(Signals::NMI);
    }
    fn performance_interrupt(&self, now: u64) {
        self.note((now, "PMI", 0, 0));
        self.interrupt(PMI_VECTOR);
    }
    fn cr8(&self) -> u64 {
        0
    }
    fn set_cr8(&self, now: u64, value: u64) {
        self.note((now, "CR8", value, 0));
    }
    fn apic_rdmsr(&self, now: u64, msr: u32) -> Option<u64> {
        self.note((now, "RDMSR", msr.into(), 0));
        Some(0xFEE0_0900)
    }
    fn apic_wrmsr(&self, now: u64, msr: u32, value: u64) -> Option<()> {
        self.note((now, "WRMSR", msr.into(), value));
        Some(())
    }
}

/// Emits one of the things that depend on the time, or on when work is looked for.
fn step(a: &mut CodeAssembler, numbers: &mut Numbers) -> Emit {
    match numbers.below(24) {
        0 => a.mov(ecx, dword_ptr(DEVICE + TIME)),
        1 => {
            a.mov(ecx, dword_ptr(COUNTERS + 0x40))?;
            a.add(r8, rcx)?;
            a.add(r8, qword_ptr(DEVICE + TIME))
        }
        2 => a.mov(dword_ptr(DEVICE + INTERRUPT), eax),
        3 => {
            a.in_(al, 0x70)?;
            a.add(r9, rax)
        }
        4 => a.out(0x80, al),
        5 => {
            a.rdtsc()?;
            a.xor(r10, rax)
        }
        6 => {
            a.sti()?;
            a.nop()?;
            a.add(r11, 1)?;
            a.cli()?;
            a.sti()
        }
        7 => {
            a.mov(eax, ss)?;
            a.mov(ss, eax)?;
            a.inc(r12)
        }
        // More iterations than there are between two checks for interrupts, over code.
        8 => {
            a.mov(rdi, BUFFER + numbers.below(64))?;
            a.mov(ecx, 0x1_0000 + numbers.below(0x2000) as u32)?;
            a.rep().stosb()
        }
        9 => {
            a.mov(rsi, DATA)?;
            a.mov(rdi, DATA + 0x1000 + numbers.below(3000))?;
            a.mov(ecx, numbers.below(700) as u32)?;
            a.rep().movsb()
        }
        // The code that it changes may be that behind it.
        10 => {
            a.mov(rdi, CHANGED)?;
            a.inc(byte_ptr(rdi + 1))?;
            a.call(CHANGED)?;
            a.add(r13, rax)
        }
        // The accessed flag is cleared without INVLPG.
        11 => {
            let page = DATA + 0x1000 * numbers.below(4);
            a.mov(rsi, page_table_entry(page))?;
            a.and(qword_ptr(rsi), !0x20)?;
            a.mov(rax, page)?;
            a.add(r14, qword_ptr(rax))?;
            a.add(r14, qword_ptr(rsi))
        }
        // Clears the accessed flag of a page of code, and fetches from it.
        12 => {
            a.mov(rsi, page_table_entry(CHANGED))?;
            a.and(qword_ptr(rsi), !0x20)?;
            a.call(CHANGED)?;
            a.add(r14, qword_ptr(rsi))
        }
        13 => {
            a.mov(rax, cr3)?;
            a.mov(cr3, rax)
        }
        14 => {
            a.mov(rax, DATA + 0x1000 * numbers.below(4))?;
            a.invlpg(byte_ptr(rax))
        }
        15 => {
            a.mov(ecx, 1)?;
            a.rdpmc()?;
            a.xor(r15, rax)
        }
        16 => {
            a.mov(ecx, 0x1B)?;
            a.rdmsr()?;
            a.wrmsr()
        }
        17 => {
            a.mov(eax, 3)?;
            a.mov(cr8, rax)
        }
        18 => a.int(0x50),
        19 => a.pause(),
        20 => a.ud2(),
        21 => a.hlt(),
        // INS to the registers of the device.
        22 => {
            a.mov(edx, 0x60)?;
            a.mov(rdi, DEVICE + 0x100)?;
            a.mov(ecx, numbers.below(4) as u32)?;
            a.rep().insd()
        }
        _ => {
            let mut again = a.create_label();
            a.mov(ecx, 1 + numbers.below(20) as u32)?;
            a.set_label(&mut again)?;
            a.add(qword_ptr(COUNTERS + 0x80), rcx)?;
            a.push(rcx)?;
            a.push(rax)?;
            a.pop(rax)?;
            a.pop(rcx)?;
            a.dec(ecx)?;
            a.jnz(again)
        }
    }
}

/// A guest whose program has random steps, and handlers that count.
fn guest(seed: u64) -> Guest {
    let mut numbers = Numbers(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut g = Guest::new();
    g.write(page_table_entry(DEVICE), DEVICE_GPA | 3);
    g.write(COUNTERS + 0x40, 700);
    // MOV EAX, imm32; RET
    g.write_bytes(CHANGED, &[0xB8, 0, 0, 0, 0, 0xC3]);
    // In the middle of the buffer, too.
    g.write_bytes(BUFFER + 0x5800, &[0xC3]);
    for vector in [TIMER_VECTOR, DEVICE_VECTOR, PMI_VECTOR, 0x50, vector::UD] {
        g.gate(vector, Gate::to(0));
        g.assemble(handler(vector), |a| {
            a.inc(qword_ptr(COUNTERS + 8 * u64::from(vector & 7)))?;
            match vector {
                TIMER_VECTOR => {
                    a.push(rax)?;
                    a.imul_3(eax, dword_ptr(COUNTERS + 0x40), 1103)?;
                    a.add(eax, 12345)?;
                    a.mov(dword_ptr(COUNTERS + 0x40), eax)?;
                    a.mov(dword_ptr(DEVICE + TIMER), eax)?;
                    a.pop(rax)?;
                }
                // #UD: UD2 has two bytes.
                vector::UD => a.add(qword_ptr(rsp), 2)?,
                PMI_VECTOR => {
                    // The buffer is empty again, and the counter overflows soon.
                    a.push(rax)?;
                    a.push(rcx)?;
                    a.push(rdx)?;
                    a.mov(rax, BTS_BUFFER)?;
                    a.mov(qword_ptr(DS_AREA + 8), rax)?;
                    a.mov(ecx, 0xC1)?;
                    a.mov(eax, -333)?;
                    a.cdq()?;
                    a.wrmsr()?;
                    a.pop(rdx)?;
                    a.pop(rcx)?;
                    a.pop(rax)?;
                }
                _ => {}
            }
            a.iretq()
        });
    }
    let steps = 10 + numbers.below(30);
    g.assemble(KERNEL, |a| {
        let mut again = a.create_label();
        a.mov(dword_ptr(DEVICE + TIMER), 100)?;
        a.sti()?;
        a.set_label(&mut again)?;
        for _ in 0..steps {
            step(a, &mut numbers)?;
        }
        a.mov(rax, BUFFER + 0x5800)?;
        a.mov(byte_ptr(rax), 0xC3)?;
        a.call(rax)?;
        a.sti()?;
        a.jmp(again)
    });
    // Records, and a counter of branches (for even seeds) or instructions that interrupts.
    if !seed.is_multiple_of(3) {
        // TR, BTS and BTINT.
        g.trace(0x1C0, 60);
        g.write(DS_AREA + 24, BTS_BUFFER + 50 * 24);
    }
    let event = [0xC4, 0xC0][(seed % 2) as usize];
    g.update(|s| {
        // EN, INT, OS and USR; EN, OS and USR.
        s.msr.pmu.evtsel = [0x53_0000 | event, 0x43_00C0, 0, 0];
        s.msr.pmu.global_ctrl = 3;
        s.msr.pmu.pmc[0] = (1 << 40) - 500;
    });
    g
}

/// A processor with its device and its memory.
struct Machine {
    soft: SoftCpu,
    device: Arc<Device>,
    ram: Ram,
    /// Stops at breakpoints, and at watchpoints.
    hits: [u64; 2],
}

impl Machine {
    /// The machine of `g`, with native code of each block or without.
    fn new(g: &Guest, native: bool) -> Self {
        Self::of(g, &g.soft.cpu.state(), g.soft.ram(), native)
    }

    fn of(g: &Guest, state: &ArchState, memory: &Ram, native: bool) -> Self {
        let ram = Ram::new(RAM as usize);
        ram.write(0, &memory.read(0, RAM as usize));
        let device = Arc::new(Device::default());
        let (platform, signals) = (device.clone(), device.signals.clone());
        let cpu = Cpu::new(g.soft.cpu.model(), ram.for_cpu(), platform, signals);
        let mut soft = SoftCpu::new(cpu);
        if native {
            soft.translate_blocks(NativeOptions {
                threshold: 1,
                ..NativeOptions::default()
            })
            .unwrap();
        }
        soft.cpu.load_state(state);
        Self {
            soft,
            device,
            ram,
            hits: [0; 2],
        }
    }

    /// Runs to virtual time `end`, as a VMM does, with stops at most `gap` instructions apart.
    fn run(&mut self, end: u64, mut gap: impl FnMut() -> u64) {
        while self.soft.cpu.now() < end {
            let now = self.soft.cpu.now();
            let deadline = self.device.deadline.lock().unwrap().unwrap_or(end).min(end);
            let limit = deadline.min(now.saturating_add(gap()));
            match self.soft.run(limit) {
                Exit::Halt { .. } => self.soft.advance_to(deadline),
                Exit::Deadline => assert_eq!(self.soft.cpu.now(), limit.max(now)),
                Exit::Bus => {}
                Exit::Stop => self.pass_stop(),
                exit => panic!("{exit:?} {:?}", self.soft.cpu),
            }
            self.device.tick(self.soft.cpu.now());
        }
    }

    /// Counts the causes of a stop, and goes on.
    fn pass_stop(&mut self) {
        let causes = self.soft.cpu.take_stop_causes();
        assert!(!causes.is_empty());
        for cause in causes {
            match cause {
                StopCause::Breakpoint { address } => {
                    assert_eq!(address, self.soft.cpu.rip);
                    self.hits[0] += 1;
                }
                _ => self.hits[1] += 1,
            }
        }
        self.soft.cpu.leave_stop();
    }

    /// Compares everything that a guest can observe, and the times at which it has observed it.
    fn assert_same(&self, other: &Self, what: &str) {
        let (a, b) = (
            self.device.log.lock().unwrap(),
            other.device.log.lock().unwrap(),
        );
        let differs = a.iter().zip(b.iter()).position(|(a, b)| a != b);
        let at = differs.unwrap_or(a.len().min(b.len()));
        assert_eq!(a.get(at), b.get(at), "{what}: event {at}");
        assert_eq!(self.soft.cpu.state(), other.soft.cpu.state(), "{what}");
        for page in (0..RAM).step_by(0x1000) {
            let (a, b) = (self.ram.read(page, 0x1000), other.ram.read(page, 0x1000));
            assert!(a == b, "{what}: memory at {page:#x}");
        }
    }
}

#[test]
fn a_stop_changes_nothing_that_follows() {
    let (mut events, mut interrupts) = (0, 0);
    for seed in 1..=24 {
        let g = guest(seed);
        let mut straight = Machine::new(&g, false);
        straight.run(END, || u64::MAX);
        for (native, mean) in [
            (false, 3),
            (false, 100),
            (true, u64::MAX),
            (true, 150),
            (true, 9),
        ] {
            let mut other = Machine::new(&g, native);
            let mut numbers = Numbers(seed ^ mean | 1);
            other.run(END, || match mean {
                u64::MAX => u64::MAX,
                mean => 1 + numbers.below(2 * mean),
            });
            straight.assert_same(
                &other,
                &format!("seed {seed}, native {native}, stops {mean}"),
            );
            // A run that counts branches has no native code, nor has one of less than a block.
            let runs_native = native && mean > 48 && seed % 2 != 0;
            assert_eq!(other.soft.native_code().blocks > 0, runs_native);
        }
        let log = straight.device.log.lock().unwrap();
        events += log.len();
        interrupts += log.iter().filter(|event| event.1 == "interrupt").count();
    }
    assert!(
        events > 10_000 && interrupts > 1000,
        "{events} {interrupts}"
    );
}

#[test]
fn stop_points_of_a_debugger_change_nothing() {
    let mut hits = [0; 2];
    for seed in 1..=24 {
        let g = guest(seed);
        let mut straight = Machine::new(&g, false);
        straight.run(END, || u64::MAX);
        for native in [false, true] {
            let mut other = Machine::new(&g, native);
            let mut numbers = Numbers(seed | 1 << 20);
            // They are set, moved and removed while the code is hot. Some of the addresses are in
            // the middle of an instruction, where there is no stop.
            for part in 1..=6 {
                let mut points = StopPoints::default();
                if part % 3 != 0 {
                    for _ in 0..numbers.below(6) {
                        let code = [KERNEL, handler(TIMER_VECTOR), CHANGED];
                        let base = code[numbers.below(3) as usize];
                        points.breakpoints.push(Breakpoint {
                            address: base + numbers.below(40),
                            space: None,
                        });
                    }
                    for _ in 0..numbers.below(3) {
                        let data = [COUNTERS, BUFFER, BUFFER + 0x5800, DATA, BTS_BUFFER];
                        points.watchpoints.push(Watchpoint {
                            address: data[numbers.below(5) as usize] + numbers.below(64),
                            len: 1 + numbers.below(100),
                            kind: [WatchKind::Write, WatchKind::Read, WatchKind::Access]
                                [numbers.below(3) as usize],
                            space: None,
                        });
                    }
                }
                other.soft.set_stop_points(points);
                other.run(END * part / 6, || u64::MAX);
            }
            straight.assert_same(&other, &format!("seed {seed}, native {native}"));
            hits = [hits[0] + other.hits[0], hits[1] + other.hits[1]];
        }
    }
    assert!(hits.iter().all(|n| *n > 1000), "{hits:?}");
}

#[test]
fn a_saved_state_continues_as_the_processor_does() {
    for seed in 1..=12 {
        let g = guest(seed);
        let mut numbers = Numbers(seed | 1 << 40);
        let native = seed % 2 == 0;
        let mut original = Machine::new(&g, native);
        original.run(numbers.below(END), || u64::MAX);
        let state = original.soft.checkpoint();
        let mut restored = Machine::of(&g, &state, &original.ram, !native);
        let (from, to) = (&original.device, &restored.device);
        *to.deadline.lock().unwrap() = *from.deadline.lock().unwrap();
        *to.pending.lock().unwrap() = from.pending.lock().unwrap().clone();
        to.signals.raise(from.signals.get());
        from.log.lock().unwrap().clear();
        original.run(END + 50_000, || u64::MAX);
        restored.run(END + 50_000, || u64::MAX);
        original.assert_same(&restored, &format!("seed {seed}"));
    }
}

#[test]
fn a_run_retires_what_it_was_asked_for() {
    for native in [false, true] {
        for n in (1..=150).chain([1000, 4999]) {
            let mut g = Guest::new();
            g.assemble(KERNEL, |a| {
                let mut again = a.create_label();
                a.set_label(&mut again)?;
                for _ in 0..5 {
                    a.inc(rax)?;
                }
                a.cmp(rax, rbx)?;
                a.jne(again)?;
                a.jmp(again)
            });
            let mut machine = Machine::new(&g, native);
            for end in [n, 2 * n, 2 * n + 1] {
                assert_eq!(machine.soft.run(end), Exit::Deadline);
                assert_eq!(machine.soft.cpu.instructions(), end, "{n}");
            }
        }
    }
}
