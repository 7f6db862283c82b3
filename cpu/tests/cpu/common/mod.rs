//! The machine of the tiny guests: where its page tables, descriptor tables, handlers, programs and
//! stacks lie, and how a test changes them and reads them.
//!
//! | linear = physical | what |
//! |---|---|
//! | 0 - 1 MiB | supervisor pages: tables, handlers, kernel code and stacks, DS area |
//! | 1 - 4 MiB | user pages: program and stack |
//!
//! Every vector has a handler that halts. A program ends by HLT or by causing an exception; the
//! test then looks at RIP.

pub mod deviations;
pub mod log;
pub mod records;

use std::sync::{Arc, LazyLock};

use iced_x86::IcedError;
use iced_x86::code_asm::CodeAssembler;
use vbts_bts::{BtsFields, RECORD_SIZE};
use vbts_cpu::state::{Segment, cr4};
use vbts_cpu::{ArchState, Clock, Exit, HostClock, Model, SoftCpu, Topology};
pub use vbts_testkit::assemble;
pub use vbts_testkit::descriptor::Gate;
use vbts_testkit::descriptor::{self, tss};
use vbts_testkit::environment::{Tss, soft_cpu, soft_cpu_of};
pub use vbts_testkit::platform::{
    INTERRUPT_PORT, INTERRUPTING_MSR, INTERRUPTING_VECTOR, NMI_PORT, TestPlatform,
};
use vbts_testkit::{Environment, Processor};

/// Size of RAM in bytes.
pub const RAM: u64 = 4 << 20;
const GDT: u64 = 0x1000;
const IDT: u64 = 0x2000;
pub const TSS: u64 = 0x3000;
pub const LDT: u64 = 0x3800;
/// PML4, page-directory-pointer table and page directory.
const PML4: u64 = 0x4000;
/// Page tables of 4-KByte pages for all RAM.
const PT: u64 = 0x7000;
/// The handler of vector `n` is at `HANDLERS + n * HANDLER_SIZE`.
const HANDLERS: u64 = 0x1_0000;
const HANDLER_SIZE: u64 = 0x40;
/// Where a kernel program starts.
pub const KERNEL: u64 = 0x2_0000;
/// Top of the stack of a kernel program.
pub const KERNEL_STACK: u64 = 0x4_0000;
/// RSP0 in the TSS: the stack of handlers entered from user code.
pub const RSP0: u64 = 0x5_0000;
/// IST1 in the TSS.
pub const IST1: u64 = 0x6_0000;
pub const DS_AREA: u64 = 0x7_0000;
pub const BTS_BUFFER: u64 = 0x8_0000;
/// Where a user program starts.
pub const USER: u64 = 0x10_0000;
/// Top of the stack of a user program.
pub const USER_STACK: u64 = 0x20_0000;
/// User data.
pub const DATA: u64 = 0x28_0000;

/// Selectors in the GDT.
pub mod selector {
    pub use vbts_testkit::descriptor::selector::*;
    pub const CALL_GATE: u16 = 0x50;
    pub const CONFORMING_CS: u16 = 0x60;
    pub const NOT_PRESENT_CS: u16 = 0x68;
    pub const NOT_PRESENT_DS: u16 = 0x70;
    pub const LDT: u16 = 0x78;
    pub const KERNEL_CS32: u16 = 0x88;
}

const DESCRIPTORS: &[(u16, u64)] = &[
    (selector::KERNEL_CS, descriptor::KERNEL_CODE64),
    (selector::KERNEL_SS, descriptor::KERNEL_DATA),
    (selector::USER_CS32, descriptor::USER_CODE32),
    (selector::USER_SS, descriptor::USER_DATA),
    (selector::USER_CS, descriptor::USER_CODE64),
    (selector::USER_SS_SYSEXIT, descriptor::USER_DATA),
    (selector::TSS, tss(TSS)),
    (selector::CONFORMING_CS, 0x00AF_9F00_0000_FFFF),
    (selector::NOT_PRESENT_CS, 0x00AF_1B00_0000_FFFF),
    (selector::NOT_PRESENT_DS, 0x00CF_1300_0000_FFFF),
    (selector::LDT, 0x0000_8200_0000_0017 | LDT << 16),
    (selector::KERNEL_CS32, descriptor::KERNEL_CODE32),
];

/// Address of the page-table entry of `la`.
pub fn page_table_entry(la: u64) -> u64 {
    PT + 8 * (la >> 12)
}

/// Memory and processor before a program is there.
static ENVIRONMENT: LazyLock<Environment> = LazyLock::new(|| {
    let mut e = Environment::new(RAM as usize);
    e.gdt(GDT, DESCRIPTORS, selector::KERNEL_CS32);
    // Programs at CPL 3 use the platform's ports.
    let io_map = 0;
    let (rsp0, ist1) = (RSP0, IST1);
    e.tss(selector::TSS, Tss { rsp0, ist1, io_map });
    e.page_tables(PML4, |page| if page >= USER { 7 } else { 3 });
    e.idt(IDT, |vector| Gate::to(handler(vector)));
    for vector in 0..=255 {
        e.assemble(64, handler(vector), |a| a.hlt());
    }
    e.start(
        selector::KERNEL_CS,
        selector::KERNEL_SS,
        KERNEL,
        KERNEL_STACK,
    );
    e.state.sys.cr4 |= cr4::PGE | cr4::DE;
    let m = &mut e.state.msr;
    m.star = u64::from(selector::USER_CS32) << 48 | u64::from(selector::KERNEL_CS) << 32;
    m.sysenter_cs = selector::KERNEL_CS.into();
    e
});

/// A machine with one processor.
#[derive(Debug)]
pub struct Guest {
    pub soft: Processor,
    pub platform: Arc<TestPlatform>,
}

impl Guest {
    /// A machine at CPL 0 in 64-bit mode, about to run what is at [`KERNEL`].
    pub fn new() -> Self {
        Self::of(vbts_cpu::model("core2").unwrap())
    }

    /// As [`Guest::new`], with another model of processor.
    pub fn of(model: &'static Model) -> Self {
        let mut soft = Processor::new(&ENVIRONMENT, model);
        deviations::apply(&mut soft);
        let platform = soft.platform().clone();
        Self { soft, platform }
    }

    /// As [`Guest::new`], with a program to run at CPL 0.
    pub fn kernel(program: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) -> Self {
        let mut guest = Self::new();
        guest.assemble(KERNEL, program);
        guest
    }

    /// As [`Guest::new`], with a program to run at CPL 3.
    pub fn user(program: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) -> Self {
        let mut guest = Self::new();
        guest.start_user(program);
        guest
    }

    /// Makes the machine run a program at CPL 3.
    pub fn start_user(
        &mut self,
        program: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
    ) {
        self.assemble(USER, program);
        self.update(|s| {
            s.seg[1] = segment(selector::USER_CS);
            for i in [0, 2, 3] {
                s.seg[i] = segment(selector::USER_SS);
            }
            s.rip = USER;
            s.gpr[4] = USER_STACK;
        });
    }

    /// Clears memory.
    pub fn clear(&mut self) {
        for page in (0..RAM).step_by(0x1000) {
            self.write_bytes(page, &[0; 0x1000]);
        }
    }

    /// Changes the processor's state.
    pub fn update(&mut self, f: impl FnOnce(&mut ArchState)) {
        let mut state = self.soft.cpu.state();
        f(&mut state);
        self.soft.cpu.load_state(&state);
    }

    /// Reads memory.
    pub fn read(&self, gpa: u64) -> u64 {
        self.soft.ram().read_u64(gpa)
    }

    /// Writes memory, as a device would.
    pub fn write(&mut self, gpa: u64, value: u64) {
        self.write_bytes(gpa, &value.to_le_bytes());
    }

    /// Writes memory, as a device would.
    pub fn write_bytes(&mut self, gpa: u64, bytes: &[u8]) {
        self.write_unseen(gpa, bytes);
        self.soft.invalidate_page(gpa);
    }

    /// Writes memory as another processor does: the write does not invalidate this processor's
    /// decoded code.
    pub fn write_unseen(&mut self, gpa: u64, bytes: &[u8]) {
        self.soft.ram().write(gpa, bytes);
    }

    /// Another processor in the same state, with the same memory.
    pub fn second_processor(&self) -> SoftCpu {
        let model = self.soft.cpu.model();
        let mut second = soft_cpu(model, self.soft.ram(), &Arc::default());
        second.cpu.load_state(&self.soft.cpu.state());
        second
    }

    /// The processors of a machine with this memory, each in the same state.
    pub fn processors<const N: usize>(&self) -> [SoftCpu; N] {
        let (model, ram) = (self.soft.cpu.model(), self.soft.ram().for_cpu());
        std::array::from_fn(|id| {
            let mut soft = soft_cpu_of(model, ram.clone(), &Arc::default());
            soft.cpu.load_state(&self.soft.cpu.state());
            let (id, count) = (id as u8, N as u8);
            soft.cpu.set_topology(Topology { id, count });
            soft
        })
    }

    /// A processor in the same state, with the same memory. It is one of two, each in a thread of
    /// its own.
    pub fn one_of_two(&self) -> SoftCpu {
        let mut soft = self.second_processor();
        soft.cpu.set_topology(Topology { id: 0, count: 2 });
        soft.cpu.set_clock(Clock::Host(HostClock::in_nanoseconds()));
        soft
    }

    /// Puts a program at `at`, and returns the address of its end.
    pub fn assemble(
        &mut self,
        at: u64,
        program: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
    ) -> u64 {
        let bytes = assemble(64, at, program);
        self.write_bytes(at, &bytes);
        at + bytes.len() as u64
    }

    /// Changes the flags of a page-table entry.
    pub fn page(&mut self, la: u64, flags: u64) {
        self.map(la, la, flags);
    }

    /// Maps the page of `la` to that of `gpa`.
    pub fn map(&mut self, la: u64, gpa: u64, flags: u64) {
        self.write(page_table_entry(la), (gpa & !0xFFF) | flags);
        self.soft.cpu.flush_tlb(false);
    }

    /// Maps at the linear address `at` what is mapped at 0.
    pub fn mirror(&mut self, at: u64) {
        self.write(PML4 + 8 * (at >> 39 & 0x1FF), self.read(PML4));
    }

    /// The page-table entry of `la`.
    pub fn page_entry(&self, la: u64) -> u64 {
        self.read(page_table_entry(la))
    }

    /// Sets up a vector's IDT entry. An offset of 0 stands for the vector's own handler.
    pub fn gate(&mut self, vector: u8, mut gate: Gate) {
        if gate.offset == 0 {
            gate.offset = handler(vector);
        }
        self.write_bytes(IDT + 16 * u64::from(vector), &gate.to_bytes());
    }

    /// Sets up the call gate in the GDT.
    pub fn call_gate(&mut self, code: u16, dpl: u8, offset: u64) {
        let gate = Gate {
            selector: code,
            dpl,
            ty: Gate::CALL,
            ..Gate::to(offset)
        };
        self.write_bytes(GDT + u64::from(selector::CALL_GATE), &gate.to_bytes());
    }

    /// Turns on branch tracing into a buffer of `records`.
    pub fn trace(&mut self, debugctl: u64, records: u64) {
        let fields = BtsFields {
            base: BTS_BUFFER,
            index: BTS_BUFFER,
            absolute_maximum: BTS_BUFFER + records * RECORD_SIZE,
            threshold: BTS_BUFFER + records * RECORD_SIZE + 1,
        };
        self.write_bytes(DS_AREA, &fields.to_bytes());
        self.update(|s| {
            s.ds_area = DS_AREA;
            s.debugctl = debugctl;
        });
    }

    /// The branches in the buffer up to the index.
    pub fn records(&self) -> Vec<(u64, u64)> {
        let index = self.read(DS_AREA + 8);
        let slots = (BTS_BUFFER..index).step_by(RECORD_SIZE as usize);
        slots.map(|at| (self.read(at), self.read(at + 8))).collect()
    }

    /// Runs until the processor halts or shuts down.
    pub fn run(&mut self) -> Exit {
        self.soft.run_to_end()
    }

    /// Runs until the processor halts, which must happen with the HLT that ends at `after_hlt`.
    pub fn run_to(&mut self, after_hlt: u64) {
        let exit = self.run();
        assert!(
            matches!(exit, Exit::Halt { .. }),
            "{exit:?} {:?}",
            self.soft.cpu
        );
        assert_eq!(self.soft.cpu.rip, after_hlt, "{:?}", self.soft.cpu);
    }

    /// Runs until a handler halts: that of `vector`, entered with `error` (if it pushes one).
    /// Returns the frame.
    pub fn run_to_exception(&mut self, vector: u8, error: Option<u64>) -> Frame {
        self.run_to(handler(vector) + 1);
        let mut at = self.soft.cpu.gpr[4];
        if let Some(error) = error {
            assert_eq!(self.read(at), error, "error code of vector {vector}");
            at += 8;
        }
        let word = |n: u64| self.read(at + 8 * n);
        Frame {
            rip: word(0),
            cs: word(1),
            rflags: word(2),
            rsp: word(3),
            ss: word(4),
            at,
        }
    }

    /// The RFLAGS of the processor.
    pub fn rflags(&self) -> u64 {
        self.soft.cpu.rflags()
    }
}

/// What an event has pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    pub rip: u64,
    pub cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u64,
    /// Address of the pushed RIP.
    pub at: u64,
}

/// Address of a vector's handler.
pub fn handler(vector: u8) -> u64 {
    HANDLERS + HANDLER_SIZE * u64::from(vector)
}

/// The segment register that a selector of the GDT loads.
pub fn segment(selector: u16) -> Segment {
    ENVIRONMENT.segment(selector)
}

/// Runs a processor until it halts.
pub fn run_to_halt(soft: &mut SoftCpu) {
    while !matches!(soft.run(u64::MAX), Exit::Halt { .. }) {}
}
