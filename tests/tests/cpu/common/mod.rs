//! A machine for tests: RAM, page tables, descriptor tables and handlers for a processor in 64-bit
//! mode, and a platform whose only device raises interrupts when a program asks for them.
//!
//! | linear = physical | what |
//! |---|---|
//! | 0 - 1 MiB | supervisor pages: tables, handlers, kernel code and stacks, DS area |
//! | 1 - 4 MiB | user pages: program and stack |
//!
//! Every vector has a handler that halts. A program ends by HLT or by causing an exception; the
//! test then looks at RIP.

pub mod accel;
pub mod deviations;
pub mod records;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use iced_x86::IcedError;
use iced_x86::code_asm::CodeAssembler;
use vbts_bts::{BtsFields, RECORD_SIZE};
use vbts_cpu::state::{SegAttr, Segment, TableRegister, cr0, cr4, efer};
use vbts_cpu::{Cpu, CpuState, Exit, GuestRam, Model, Platform, Signals, SoftCpu};

use accel::Processor;

/// Size of RAM in bytes.
pub const RAM: u64 = 4 << 20;
const GDT: u64 = 0x1000;
const IDT: u64 = 0x2000;
pub const TSS: u64 = 0x3000;
pub const LDT: u64 = 0x3800;
const PML4: u64 = 0x4000;
const PDPT: u64 = 0x5000;
const PD: u64 = 0x6000;
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

/// Selectors in the GDT; the order is what SYSCALL, SYSRET, SYSENTER and SYSEXIT want.
pub mod selector {
    pub const KERNEL_CS: u16 = 0x10;
    pub const KERNEL_SS: u16 = 0x18;
    pub const USER_CS32: u16 = 0x23;
    pub const USER_SS: u16 = 0x2B;
    pub const USER_CS: u16 = 0x33;
    pub const USER_SS_SYSEXIT: u16 = 0x3B;
    pub const TSS: u16 = 0x40;
    pub const CALL_GATE: u16 = 0x50;
    pub const CONFORMING_CS: u16 = 0x60;
    pub const NOT_PRESENT_CS: u16 = 0x68;
    pub const NOT_PRESENT_DS: u16 = 0x70;
    pub const LDT: u16 = 0x78;
    pub const KERNEL_CS32: u16 = 0x88;
    /// First byte past the GDT.
    pub const END: u16 = 0x90;
}

const DESCRIPTORS: &[(u16, u64)] = &[
    (selector::KERNEL_CS, 0x00AF_9B00_0000_FFFF),
    (selector::KERNEL_SS, 0x00CF_9300_0000_FFFF),
    (selector::USER_CS32, 0x00CF_FB00_0000_FFFF),
    (selector::USER_SS, 0x00CF_F300_0000_FFFF),
    (selector::USER_CS, 0x00AF_FB00_0000_FFFF),
    (selector::USER_SS_SYSEXIT, 0x00CF_F300_0000_FFFF),
    (selector::TSS, 0x0000_8B00_0000_0067 | TSS << 16),
    (selector::CONFORMING_CS, 0x00AF_9F00_0000_FFFF),
    (selector::NOT_PRESENT_CS, 0x00AF_1B00_0000_FFFF),
    (selector::NOT_PRESENT_DS, 0x00CF_1300_0000_FFFF),
    (selector::LDT, 0x0000_8200_0000_0017 | LDT << 16),
    (selector::KERNEL_CS32, 0x00CF_9B00_0000_FFFF),
];

/// A port that raises the interrupt whose vector is written.
pub const INTERRUPT_PORT: i32 = 0x80;
/// A port that raises an NMI.
pub const NMI_PORT: i32 = 0x81;
/// An MSR that cannot be read, and raises an interrupt when that is tried.
pub const INTERRUPTING_MSR: u32 = 0x8FF;
/// The vector of that interrupt.
pub const INTERRUPTING_VECTOR: u8 = 0x60;
/// A port that keeps the bytes that are written: Bochs and QEMU print them.
pub const REPORT_PORT: i32 = 0xE9;

/// Address of the page-table entry of `la`.
pub fn page_table_entry(la: u64) -> u64 {
    PT + 8 * (la >> 12)
}

/// The machine around the processor.
#[derive(Debug, Default)]
pub struct TestPlatform {
    pub signals: Arc<Signals>,
    vectors: Mutex<VecDeque<u8>>,
    nmi: AtomicBool,
    reported: Mutex<Vec<u8>>,
    pub performance_interrupts: AtomicU64,
    /// A performance-monitoring interrupt is an NMI, as LVTPC may have it.
    pub interrupt_is_nmi: AtomicBool,
    pub cr8: AtomicU64,
    pub apic_base: AtomicU64,
    pub deadline: AtomicU64,
}

impl TestPlatform {
    /// Makes it as new.
    fn reset(&self) {
        self.signals.lower(u32::MAX);
        self.vectors.lock().unwrap().clear();
        self.nmi.store(false, Ordering::Relaxed);
        self.interrupt_is_nmi.store(false, Ordering::Relaxed);
        self.reported.lock().unwrap().clear();
        for number in [
            &self.performance_interrupts,
            &self.cr8,
            &self.apic_base,
            &self.deadline,
        ] {
            number.store(0, Ordering::Relaxed);
        }
    }

    pub fn interrupt(&self, vector: u8) {
        self.vectors.lock().unwrap().push_back(vector);
        self.signals.raise(Signals::INTR);
    }

    /// The bytes that were written to [`REPORT_PORT`].
    pub fn reported(&self) -> Vec<u8> {
        self.reported.lock().unwrap().clone()
    }

    pub fn nmi(&self) {
        self.nmi.store(true, Ordering::Relaxed);
        self.signals.raise(Signals::NMI);
    }
}

impl Platform for TestPlatform {
    fn mmio_read(&self, _: u64, _: u64, data: &mut [u8]) {
        data.fill(0xFF);
    }
    fn mmio_write(&self, _: u64, _: u64, _: &[u8]) {}
    fn pio_read(&self, _: u64, _: u16, data: &mut [u8]) {
        data.fill(0xFF);
    }
    fn pio_write(&self, _: u64, port: u16, data: &[u8]) {
        match i32::from(port) {
            INTERRUPT_PORT => self.interrupt(data[0]),
            NMI_PORT => self.nmi(),
            REPORT_PORT => self.reported.lock().unwrap().extend_from_slice(data),
            _ => {}
        }
    }
    fn acknowledge_interrupt(&self, _: u64) -> Option<u8> {
        let mut vectors = self.vectors.lock().unwrap();
        let vector = vectors.pop_front();
        self.signals.set(Signals::INTR, !vectors.is_empty());
        vector
    }
    fn take_nmi(&self) -> bool {
        self.signals.lower(Signals::NMI);
        self.nmi.swap(false, Ordering::Relaxed)
    }
    fn give_back_nmi(&self) {
        self.nmi();
    }
    fn performance_interrupt(&self, _: u64) {
        self.performance_interrupts.fetch_add(1, Ordering::Relaxed);
        if self.interrupt_is_nmi.load(Ordering::Relaxed) {
            self.nmi();
        }
    }
    fn cr8(&self) -> u64 {
        self.cr8.load(Ordering::Relaxed)
    }
    fn set_cr8(&self, _: u64, value: u64) {
        self.cr8.store(value, Ordering::Relaxed);
    }
    fn apic_rdmsr(&self, _: u64, msr: u32) -> Option<u64> {
        match msr {
            0x1B => Some(self.apic_base.load(Ordering::Relaxed)),
            0x6E0 => Some(self.deadline.load(Ordering::Relaxed)),
            INTERRUPTING_MSR => {
                self.interrupt(INTERRUPTING_VECTOR);
                None
            }
            _ => None,
        }
    }
    fn apic_wrmsr(&self, _: u64, msr: u32, value: u64) -> Option<()> {
        match msr {
            0x1B => self.apic_base.store(value, Ordering::Relaxed),
            0x6E0 => self.deadline.store(value, Ordering::Relaxed),
            _ => return None,
        }
        Some(())
    }
}

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
        let soft = Processor::new(model);
        let platform = soft.platform();
        platform.apic_base.store(0xFEE0_0900, Ordering::Relaxed);
        let mut guest = Self { soft, platform };
        guest.build_tables();
        guest.soft.cpu.load_state(&kernel_state());
        guest
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
        guest.assemble(USER, program);
        guest.update(|s| {
            s.sys.seg[1] = segment(selector::USER_CS);
            for i in [0, 2, 3] {
                s.sys.seg[i] = segment(selector::USER_SS);
            }
            s.rip = USER;
            s.gpr[4] = USER_STACK;
        });
        guest
    }

    fn build_tables(&mut self) {
        for &(selector, descriptor) in DESCRIPTORS {
            self.write(GDT + u64::from(selector & !7), descriptor);
        }
        self.write(PML4, PDPT | 7);
        self.write(PDPT, PD | 7);
        for i in 0..RAM >> 21 {
            self.write(PD + 8 * i, (PT + 0x1000 * i) | 7);
        }
        for page in 0..RAM >> 12 {
            let user = if page << 12 >= USER { 4 } else { 0 };
            self.write(PT + 8 * page, page << 12 | 3 | user);
        }
        self.write(TSS + 4, RSP0);
        self.write(TSS + 0x24, IST1);
        for vector in 0..=255 {
            self.gate(vector, Gate::default());
            self.assemble(handler(vector), |a| a.hlt());
        }
    }

    /// Clears memory.
    pub fn clear(&mut self) {
        for page in (0..RAM).step_by(0x1000) {
            self.write_bytes(page, &[0; 0x1000]);
        }
    }

    /// Changes the processor's state.
    pub fn update(&mut self, f: impl FnOnce(&mut CpuState)) {
        let mut state = self.soft.cpu.state();
        f(&mut state);
        self.soft.cpu.load_state(&state);
    }

    /// Reads memory.
    pub fn read(&self, gpa: u64) -> u64 {
        assert!(gpa <= RAM - 8);
        // SAFETY: the quadword lies inside the allocation.
        unsafe {
            self.soft
                .memory()
                .add(gpa as usize)
                .cast::<u64>()
                .read_unaligned()
        }
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

    /// Writes memory, as another processor does: nobody tells this one.
    pub fn write_unseen(&mut self, gpa: u64, bytes: &[u8]) {
        assert!(gpa + bytes.len() as u64 <= RAM);
        // SAFETY: the bytes lie inside the allocation.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.soft.memory().add(gpa as usize).as_ptr(),
                bytes.len(),
            );
        }
    }

    /// Another processor in the same state, with the same memory, which this guest has to outlive.
    pub fn second_processor(&self) -> SoftCpu {
        let platform = Arc::new(TestPlatform::default());
        let signals = platform.signals.clone();
        // SAFETY: the memory lives as long as `self`, and is only accessed through raw pointers.
        let ram = unsafe { GuestRam::new(&[(0, RAM, self.soft.memory())]) };
        let model = self.soft.cpu.model();
        let mut cpu = Cpu::new(model, ram, platform, signals);
        cpu.load_state(&self.soft.cpu.state());
        SoftCpu::new(cpu)
    }

    /// Puts a program at `at`, and tells its end.
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

    /// Sets up a vector's IDT entry.
    pub fn gate(&mut self, vector: u8, g: Gate) {
        let offset = g.offset.unwrap_or(handler(vector));
        let attr = u64::from(g.ty) | u64::from(g.dpl) << 5 | u64::from(g.present) << 7;
        let low = (offset & 0xFFFF)
            | u64::from(g.selector) << 16
            | u64::from(g.ist) << 32
            | attr << 40
            | (offset >> 16 & 0xFFFF) << 48;
        self.write(IDT + 16 * u64::from(vector), low);
        self.write(IDT + 16 * u64::from(vector) + 8, offset >> 32);
    }

    /// Sets up the call gate in the GDT.
    pub fn call_gate(&mut self, code: u16, dpl: u8, offset: u64) {
        let at = GDT + u64::from(selector::CALL_GATE);
        let attr = 0x8C | u64::from(dpl) << 5;
        let low =
            (offset & 0xFFFF) | u64::from(code) << 16 | attr << 40 | (offset >> 16 & 0xFFFF) << 48;
        self.write(at, low);
        self.write(at + 8, offset >> 32);
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
            s.msr.ds_area = DS_AREA;
            s.msr.debugctl = debugctl;
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

    /// Runs until the processor halts, which must happen with the HLT that `label` tells the end
    /// of.
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

/// Assembles a program for code of `bitness` bits.
pub fn assemble(
    bitness: u32,
    at: u64,
    program: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
) -> Vec<u8> {
    let mut a = CodeAssembler::new(bitness).unwrap();
    program(&mut a).unwrap();
    a.assemble(at).unwrap()
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

/// An IDT entry.
#[derive(Debug, Clone, Copy)]
pub struct Gate {
    pub selector: u16,
    pub offset: Option<u64>,
    pub dpl: u8,
    pub ist: u8,
    pub ty: u8,
    pub present: bool,
}

impl Gate {
    pub const INTERRUPT: u8 = 0xE;
    pub const TRAP: u8 = 0xF;
}

impl Default for Gate {
    /// An interrupt gate to the default handler, for the kernel only.
    fn default() -> Self {
        Self {
            selector: selector::KERNEL_CS,
            offset: None,
            dpl: 0,
            ist: 0,
            ty: Self::INTERRUPT,
            present: true,
        }
    }
}

/// Address of a vector's handler.
pub fn handler(vector: u8) -> u64 {
    HANDLERS + HANDLER_SIZE * u64::from(vector)
}

/// A segment register that was loaded with a selector of the GDT.
pub fn segment(selector: u16) -> Segment {
    let d = DESCRIPTORS
        .iter()
        .find(|d| d.0 == selector)
        .map_or(0, |d| d.1);
    Segment {
        selector,
        base: d >> 16 & 0xFF_FFFF,
        limit: if d >> 55 & 1 != 0 {
            u32::MAX
        } else {
            (d & 0xFFFF) as u32
        },
        attr: SegAttr::from_bits_retain((d >> 40) as u32 & 0xF0FF),
    }
}

fn kernel_state() -> CpuState {
    let mut s = CpuState {
        mxcsr: 0x1F80,
        rflags: 2,
        rip: KERNEL,
        ..CpuState::default()
    };
    s.gpr[4] = KERNEL_STACK;
    s.sys.seg = [segment(selector::KERNEL_SS); 6];
    s.sys.seg[1] = segment(selector::KERNEL_CS);
    s.sys.tr = segment(selector::TSS);
    s.sys.ldtr.attr = SegAttr::UNUSABLE;
    s.sys.gdtr = TableRegister {
        base: GDT,
        limit: selector::END - 1,
    };
    s.sys.idtr = TableRegister {
        base: IDT,
        limit: 0xFFF,
    };
    s.sys.cr0 = cr0::PE | cr0::PG | cr0::WP | cr0::NE | cr0::ET;
    s.sys.cr3 = PML4;
    s.sys.cr4 = cr4::PAE | cr4::PGE | cr4::DE | cr4::OSFXSR;
    s.sys.efer = efer::LME | efer::LMA | efer::SCE | efer::NXE;
    s.msr.star = u64::from(selector::USER_CS32) << 48 | u64::from(selector::KERNEL_CS) << 32;
    s.msr.sysenter_cs = selector::KERNEL_CS.into();
    s
}
