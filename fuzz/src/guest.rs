//! A small machine: a software CPU with everything that system software sets up before it runs a
//! program.
//!
//! | linear = physical | what |
//! |---|---|
//! | 0x00000 - 0x00FFF | a page directory for 32-bit paging |
//! | 0x01000 - 0x0FFFF | supervisor pages: tables, handlers, DS area and its buffer, stacks |
//! | 0x10000 - 0x3FFFF | user pages: code and data |
//!
//! A fault halts; software interrupts, #DB and #BP return, and so do SYSCALL and SYSENTER.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use vbts_bts::{BtsFields, RECORD_SIZE};
use vbts_cpu::state::{SegAttr, Segment, TableRegister, cr0, cr4, efer};
use vbts_cpu::{ArchState, Cpu, Exit, Platform, Signals, SoftCpu};

use crate::memory::GuardedRam;
use crate::walk::{Purpose, Walker};

/// Size of RAM in bytes.
pub const RAM: usize = 0x4_0000;
const GDT: u64 = 0x1000;
const IDT: u64 = 0x2000;
const TSS: u64 = 0x3000;
/// The first of four pages of page tables: PML4, page-directory-pointer table, page directory, page
/// table.
pub const PML4: u64 = 0x4000;
const PDPT: u64 = 0x5000;
const PD: u64 = 0x6000;
/// The page table of the first 2 MiB.
pub const PT: u64 = 0x7000;
/// The handlers: one halts, one returns, one returns from SYSCALL, one from SYSENTER.
const HANDLERS: u64 = 0x8000;
const HALT: u64 = HANDLERS;
const RETURN: u64 = HANDLERS + 0x10;
const SYSRET: u64 = HANDLERS + 0x20;
const SYSEXIT: u64 = HANDLERS + 0x30;
/// Those of protected mode and of real-address mode.
const LEGACY_HALT: u64 = HANDLERS + 0x40;
const LEGACY_RETURN: u64 = HANDLERS + 0x50;
/// What other modes than IA-32e mode use, beside the structures of that: TSS, IDT, and the
/// interrupt vectors of real-address mode.
const TSS32: u64 = TSS + 0x100;
const IDT32: u64 = TSS + 0x400;
const VECTORS: u64 = TSS + 0xC00;
/// The page directory of 32-bit paging: one page of 4 MBytes.
const DIRECTORY32: u64 = 0;
/// The page-directory-pointer table of PAE paging, which leads to the same page table.
const POINTERS: u64 = PDPT + 0x800;
/// The DS management area.
pub const DS_AREA: u64 = 0x9000;
/// The BTS buffer.
pub const BTS_BUFFER: u64 = 0xA000;
const BTS_RECORDS: u64 = 16;
/// Top of the stack of code at CPL 0.
pub const KERNEL_STACK: u64 = 0xD000;
const RSP0: u64 = 0xE000;
const IST1: u64 = 0xF000;
/// Where code goes.
pub const CODE: u64 = 0x1_0000;
/// Where data goes.
pub const DATA: u64 = 0x2_0000;
/// Top of the stack of code at CPL 3.
pub const USER_STACK: u64 = 0x3_0000;

const KERNEL_CS: u16 = 0x10;
const KERNEL_SS: u16 = 0x18;
const USER_CS32: u16 = 0x23;
const USER_SS: u16 = 0x2B;
const USER_CS: u16 = 0x33;
const TSS_SELECTOR: u16 = 0x40;
const KERNEL_CS32: u16 = 0x60;
const USER_CS16: u16 = 0x6B;
const KERNEL_CS16: u16 = 0x70;
const KERNEL_SS16: u16 = 0x78;
const TSS32_SELECTOR: u16 = 0x80;
const CALL_GATE32: u16 = 0x88;
const GDT_END: u16 = 0x90;

const DESCRIPTORS: &[(u16, u64)] = &[
    (KERNEL_CS, 0x00AF_9B00_0000_FFFF),
    (KERNEL_SS, 0x00CF_9300_0000_FFFF),
    (USER_CS32, 0x00CF_FB00_0000_FFFF),
    (USER_SS, 0x00CF_F300_0000_FFFF),
    (USER_CS, 0x00AF_FB00_0000_FFFF),
    (0x38, 0x00CF_F300_0000_FFFF),
    (TSS_SELECTOR, 0x0000_8B00_0000_0067 | TSS << 16),
    (KERNEL_CS32, 0x00CF_9B00_0000_FFFF),
    (USER_CS16, 0x000F_FB00_0000_FFFF),
    (KERNEL_CS16, 0x0000_9B01_0000_FFFF),
    (KERNEL_SS16, 0x0000_9301_0000_FFFF),
    (TSS32_SELECTOR, 0x0000_8B00_0000_0067 | TSS32 << 16),
    // Two parameters.
    (CALL_GATE32, 0x0000_EC02_0060_0000 | LEGACY_HALT),
];
/// The selector of a call gate to the handler that halts.
const CALL_GATE: u16 = 0x50;

/// What the processor runs as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// 64-bit mode, CPL 0.
    Kernel64,
    /// 64-bit mode, CPL 3.
    User64,
    /// Compatibility mode, CPL 0.
    Kernel32,
    /// Compatibility mode, CPL 3.
    User32,
    /// Compatibility mode with 16-bit operands and addresses, CPL 3.
    User16,
    /// Real-address mode.
    Real,
    /// Protected mode without paging, CPL 0.
    Protected,
    /// Protected mode with 32-bit paging, CPL 3.
    Paged,
    /// Protected mode with PAE paging, CPL 3.
    Pae,
    /// Protected mode with PAE paging, 16-bit code at CPL 0.
    Pae16,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Kernel64,
        Self::User64,
        Self::Kernel32,
        Self::User32,
        Self::User16,
        Self::Real,
        Self::Protected,
        Self::Paged,
        Self::Pae,
        Self::Pae16,
    ];

    /// IA-32e mode.
    pub fn is_ia32e(self) -> bool {
        matches!(
            self,
            Self::Kernel64 | Self::User64 | Self::Kernel32 | Self::User32 | Self::User16
        )
    }

    fn selectors(self) -> (u16, u16) {
        match self {
            Self::Protected => (KERNEL_CS32, KERNEL_SS),
            Self::Paged | Self::Pae => (USER_CS32, USER_SS),
            Self::Real | Self::Pae16 => (KERNEL_CS16, KERNEL_SS16),
            Self::Kernel64 => (KERNEL_CS, KERNEL_SS),
            Self::User64 => (USER_CS, USER_SS),
            Self::Kernel32 => (KERNEL_CS32, KERNEL_SS),
            Self::User32 => (USER_CS32, USER_SS),
            Self::User16 => (USER_CS16, USER_SS),
        }
    }
}

/// A machine around the processor whose only device raises interrupts: a write to port 0x80 that of
/// the vector that was written, a write to port 0x81 an NMI.
#[derive(Debug, Default)]
pub struct Devices {
    signals: Arc<Signals>,
    /// The pending vector, and 0x100.
    vector: AtomicU64,
    nmi: AtomicBool,
    cr8: AtomicU64,
    apic_base: AtomicU64,
}

impl Platform for Devices {
    fn mmio_read(&self, now: u64, gpa: u64, data: &mut [u8]) {
        data.fill((now ^ gpa) as u8);
    }
    fn mmio_write(&self, _: u64, _: u64, _: &[u8]) {}
    fn pio_read(&self, now: u64, port: u16, data: &mut [u8]) {
        data.fill(now as u8 ^ port as u8);
    }
    fn pio_write(&self, _: u64, port: u16, data: &[u8]) {
        match port {
            0x80 => {
                self.vector
                    .store(0x100 | u64::from(data[0]), Ordering::Relaxed);
                self.signals.raise(Signals::INTR);
            }
            0x81 => {
                self.nmi.store(true, Ordering::Relaxed);
                self.signals.raise(Signals::NMI);
            }
            _ => {}
        }
    }
    fn acknowledge_interrupt(&self, _: u64) -> Option<u8> {
        self.signals.lower(Signals::INTR);
        let vector = self.vector.swap(0, Ordering::Relaxed);
        (vector != 0).then_some(vector as u8)
    }
    fn take_nmi(&self) -> bool {
        self.signals.lower(Signals::NMI);
        self.nmi.swap(false, Ordering::Relaxed)
    }
    fn give_back_nmi(&self) {
        self.performance_interrupt(0);
    }
    fn performance_interrupt(&self, _: u64) {
        self.nmi.store(true, Ordering::Relaxed);
        self.signals.raise(Signals::NMI);
    }
    fn cr8(&self) -> u64 {
        self.cr8.load(Ordering::Relaxed)
    }
    fn set_cr8(&self, _: u64, value: u64) {
        self.cr8.store(value, Ordering::Relaxed);
    }
    fn apic_rdmsr(&self, _: u64, msr: u32) -> Option<u64> {
        (msr == 0x1B).then(|| self.apic_base.load(Ordering::Relaxed))
    }
    fn apic_wrmsr(&self, _: u64, msr: u32, value: u64) -> Option<()> {
        (msr == 0x1B).then(|| self.apic_base.store(value, Ordering::Relaxed))
    }
}

static MEMORY: LazyLock<GuardedRam> = LazyLock::new(|| GuardedRam::new(RAM));
static PRISTINE: LazyLock<Vec<u8>> = LazyLock::new(pristine);

/// The contents of RAM before a program runs.
fn pristine() -> Vec<u8> {
    let mut ram = vec![0; RAM];
    let mut put = |at: u64, bytes: &[u8]| ram[at as usize..][..bytes.len()].copy_from_slice(bytes);
    for &(selector, descriptor) in DESCRIPTORS {
        put(GDT + u64::from(selector & !7), &descriptor.to_le_bytes());
    }
    let gate = HALT | u64::from(KERNEL_CS) << 16 | 0xEC00 << 32;
    put(GDT + u64::from(CALL_GATE), &gate.to_le_bytes());
    for (at, entry) in [(PML4, PDPT), (PDPT, PD), (PD, PT)] {
        put(at, &(entry | 7).to_le_bytes());
    }
    for page in 0..RAM as u64 >> 12 {
        let user = if page << 12 >= CODE { 4 } else { 0 };
        put(PT + 8 * page, &(page << 12 | 3 | user).to_le_bytes());
    }
    put(TSS + 4, &RSP0.to_le_bytes());
    put(TSS + 0x24, &IST1.to_le_bytes());
    put(HALT, &[0xF4]);
    put(RETURN, &[0x48, 0xCF]); // IRETQ
    put(SYSRET, &[0x48, 0x0F, 0x07]);
    put(SYSEXIT, &[0x48, 0x0F, 0x35]);
    put(LEGACY_HALT, &[0xF4]);
    put(LEGACY_RETURN, &[0xCF]);
    put(TSS32 + 4, &RSP0.to_le_bytes()[..4]);
    put(TSS32 + 8, &KERNEL_SS.to_le_bytes());
    put(DIRECTORY32, &0x87u32.to_le_bytes());
    put(POINTERS, &(PD | 1).to_le_bytes());
    for vector in 0..256u64 {
        let handler = match vector {
            1..=3 | 32.. => RETURN,
            _ => HALT,
        };
        // Present, DPL 3, interrupt gate; the double fault and the NMI have a stack of their own.
        let ist = u64::from(vector == 2 || vector == 8);
        let low = handler | u64::from(KERNEL_CS) << 16 | ist << 32 | 0xEE << 40;
        put(IDT + 16 * vector, &low.to_le_bytes());
        let handler = if handler == RETURN {
            LEGACY_RETURN
        } else {
            LEGACY_HALT
        };
        // Of 16 bits for some.
        let kind = if vector % 7 == 5 { 0xE6 } else { 0xEE };
        let gate = handler | u64::from(KERNEL_CS32) << 16 | kind << 40;
        put(IDT32 + 8 * vector, &gate.to_le_bytes());
        let pointer = (handler & 0xF) | (handler >> 4) << 16;
        put(VECTORS + 4 * vector, &(pointer as u32).to_le_bytes());
    }
    put(DS_AREA, &ds_fields().to_bytes());
    for (i, word) in (0u64..).zip(ram[DATA as usize..].chunks_exact_mut(8)) {
        // Every data word is an address that is mapped.
        word.copy_from_slice(&(DATA + i * 8 % 0x1_0000).to_le_bytes());
    }
    ram
}

/// The DS area that a machine starts with: room for a few records.
pub fn ds_fields() -> BtsFields {
    BtsFields {
        base: BTS_BUFFER,
        index: BTS_BUFFER,
        absolute_maximum: BTS_BUFFER + BTS_RECORDS * RECORD_SIZE + 1,
        threshold: BTS_BUFFER + (BTS_RECORDS - 4) * RECORD_SIZE,
    }
}

/// The machine.
#[derive(Debug)]
pub struct Guest {
    /// Its processor.
    pub soft: SoftCpu,
}

impl Guest {
    /// A machine about to run at [`CODE`] in `mode`. There is one at a time: all share their
    /// memory.
    ///
    /// # Panics
    /// The processor model does not exist.
    pub fn new(mode: Mode) -> Self {
        MEMORY.fill(&PRISTINE);
        let devices = Arc::new(Devices::default());
        let signals = devices.signals.clone();
        devices.apic_base.store(0xFEE0_0900, Ordering::Relaxed);
        let model = vbts_cpu::model("x86-64-v2").expect("the model with the most instructions");
        let cpu = Cpu::new(model, MEMORY.for_cpu(), devices, signals);
        let mut guest = Self {
            soft: SoftCpu::new(cpu),
        };
        guest.soft.cpu.load_state(&state(mode));
        guest
    }

    /// Its memory.
    pub fn ram(&self) -> &'static GuardedRam {
        &MEMORY
    }

    /// Whether a fault in `state` leads to the handler that halts, by the page tables as they are
    /// now.
    pub fn handlers_are_intact(&self, state: &ArchState) -> bool {
        let mut walker = Walker::new(&MEMORY, state, false);
        [GDT, IDT, TSS, HANDLERS].into_iter().all(|page| {
            let at = page as usize;
            walker.translate(page, Purpose::Fetch) == Some(page)
                && MEMORY.read(at, 0x1000) == PRISTINE[at..at + 0x1000]
        }) && (state.sys.gdtr.base, state.sys.idtr.base) == (GDT, IDT)
    }

    /// Changes memory as a device would.
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        MEMORY.write(at as usize, bytes);
        for page in at >> 12..=(at + bytes.len() as u64) >> 12 {
            self.soft.invalidate_page(page << 12);
        }
    }

    /// Changes the processor's state.
    pub fn update(&mut self, change: impl FnOnce(&mut ArchState)) {
        let mut state = self.soft.cpu.state();
        change(&mut state);
        self.soft.cpu.load_state(&state);
    }

    /// Runs up to about `instructions`, to a HLT, or to a triple fault.
    ///
    /// # Panics
    /// The run loop returns without getting anywhere.
    pub fn run(&mut self, instructions: u64) -> Exit {
        let deadline = self.soft.cpu.now() + instructions;
        // An instruction can leave the loop once; an event between two, once more.
        for _ in 0..4 * instructions + 16 {
            match self.soft.run(deadline) {
                Exit::Bus | Exit::Kick => {}
                exit => return exit,
            }
        }
        panic!("the processor makes no progress: {:?}", self.soft.cpu);
    }
}

fn segment(selector: u16) -> Segment {
    let found = DESCRIPTORS.iter().find(|d| d.0 == selector);
    let descriptor = found.map_or(0, |d| d.1);
    Segment {
        selector,
        base: descriptor >> 16 & 0xFF_FFFF,
        limit: match descriptor >> 55 & 1 {
            0 => (descriptor & 0xFFFF) as u32 | (descriptor >> 32 & 0xF_0000) as u32,
            _ => u32::MAX,
        },
        attr: SegAttr::from_bits_retain((descriptor >> 40) as u32 & 0xF0FF),
    }
}

fn state(mode: Mode) -> ArchState {
    let (cs, ss) = mode.selectors();
    let mut s = ArchState {
        mxcsr: 0x1F80,
        rflags: 2,
        rip: CODE,
        ..ArchState::default()
    };
    s.sys.seg = [segment(ss); 6];
    s.sys.seg[1] = segment(cs);
    s.gpr[4] = if cs & 3 == 0 {
        KERNEL_STACK
    } else {
        USER_STACK
    };
    if mode == Mode::User16 {
        // Addresses have 16 bits: code and data in one segment of its own.
        for s in &mut s.sys.seg {
            s.base = CODE;
        }
        s.rip = 0;
        s.gpr[4] = 0x8000;
    }
    if matches!(mode, Mode::Real | Mode::Pae16) {
        // 64 KBytes of code and stack, and of data.
        s.rip = 0;
        s.gpr[4] = 0x8000;
        if mode == Mode::Real {
            for (n, s) in s.sys.seg.iter_mut().enumerate() {
                let at = if n == 1 || n == 2 { CODE } else { DATA };
                (s.selector, s.base) = ((at >> 4) as u16, at);
            }
        }
    }
    s.sys.tr = segment(if mode.is_ia32e() {
        TSS_SELECTOR
    } else {
        TSS32_SELECTOR
    });
    s.sys.ldtr.attr = SegAttr::UNUSABLE;
    s.sys.gdtr = TableRegister {
        base: GDT,
        limit: GDT_END - 1,
    };
    let (base, limit) = match mode {
        Mode::Real => (VECTORS, 0x3FF),
        _ if mode.is_ia32e() => (IDT, 0xFFF),
        _ => (IDT32, 0x7FF),
    };
    s.sys.idtr = TableRegister { base, limit };
    s.sys.cr0 = cr0::WP | cr0::NE | cr0::ET;
    s.sys.cr4 = cr4::PGE | cr4::DE | cr4::OSFXSR | cr4::OSXMMEXCPT;
    s.sys.efer = efer::SCE | efer::NXE;
    match mode {
        Mode::Real => {}
        Mode::Protected => s.sys.cr0 |= cr0::PE,
        Mode::Paged => {
            s.sys.cr0 |= cr0::PE | cr0::PG;
            s.sys.cr3 = DIRECTORY32;
            s.sys.cr4 |= cr4::PSE;
        }
        Mode::Pae | Mode::Pae16 => {
            s.sys.cr0 |= cr0::PE | cr0::PG;
            s.sys.cr3 = POINTERS;
            s.sys.cr4 |= cr4::PAE;
            s.sys.pdpte[0] = PD | 1;
        }
        _ => {
            s.sys.cr0 |= cr0::PE | cr0::PG;
            s.sys.cr3 = PML4;
            s.sys.cr4 |= cr4::PAE;
            s.sys.efer |= efer::LME | efer::LMA;
        }
    }
    s.sys.dr6 = 0xFFFF_0FF0;
    s.sys.dr7 = 0x400;
    s.msr.star = u64::from(USER_CS32) << 48 | u64::from(KERNEL_CS) << 32;
    s.msr.lstar = SYSRET;
    s.msr.cstar = SYSRET;
    s.msr.sysenter_cs = KERNEL_CS.into();
    s.msr.sysenter_esp = RSP0;
    s.msr.sysenter_eip = SYSEXIT;
    s.msr.ds_area = DS_AREA;
    s
}
