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

use std::sync::{Arc, LazyLock};

use vbts_bts::{BtsFields, RECORD_SIZE};
use vbts_cpu::state::{TableRegister, cr0, cr4, dr6, dr7, efer};
use vbts_cpu::{ArchState, Exit, Model};
use vbts_testkit::Ram;
use vbts_testkit::descriptor::selector::{
    KERNEL_CS, KERNEL_SS, TSS as TSS_SELECTOR, USER_CS, USER_CS32, USER_SS, USER_SS_SYSEXIT,
};
use vbts_testkit::descriptor::{self, Gate, tss};
use vbts_testkit::environment::{Environment, Machine, Tss};
use vbts_testkit::platform::{OpenBus, TestPlatform};

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

const KERNEL_CS32: u16 = 0x60;
const USER_CS16: u16 = 0x6B;
const KERNEL_CS16: u16 = 0x70;
const KERNEL_SS16: u16 = 0x78;
const TSS32_SELECTOR: u16 = 0x80;
const CALL_GATE32: u16 = 0x88;

const DESCRIPTORS: &[(u16, u64)] = &[
    (KERNEL_CS, descriptor::KERNEL_CODE64),
    (KERNEL_SS, descriptor::KERNEL_DATA),
    (USER_CS32, descriptor::USER_CODE32),
    (USER_SS, descriptor::USER_DATA),
    (USER_CS, descriptor::USER_CODE64),
    (USER_SS_SYSEXIT, descriptor::USER_DATA),
    (TSS_SELECTOR, tss(TSS)),
    (KERNEL_CS32, descriptor::KERNEL_CODE32),
    (USER_CS16, 0x000F_FB00_0000_FFFF),
    (KERNEL_CS16, 0x0000_9B01_0000_FFFF),
    (KERNEL_SS16, 0x0000_9301_0000_FFFF),
    (TSS32_SELECTOR, tss(TSS32)),
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

static MEMORY: LazyLock<Arc<Ram>> = LazyLock::new(|| Arc::new(Ram::new(RAM)));
/// Memory before a program runs, and the processor in each mode.
static ENVIRONMENTS: LazyLock<Vec<Environment>> = LazyLock::new(|| {
    let memory = memory();
    let started = |mode: &Mode| {
        let mut e = memory.clone();
        e.state = state(&memory, *mode);
        e
    };
    Mode::ALL.iter().map(started).collect()
});
/// The model with the most instructions that the software CPU can execute on this host.
static MODEL: LazyLock<&Model> = LazyLock::new(|| {
    let models = ["max", "x86-64-v3"].into_iter().filter_map(vbts_cpu::model);
    let mut supported = models.filter(|model| model.unsupported().is_none());
    supported.next().expect("the host has x86-64-v3")
});

/// Memory before a program runs.
fn memory() -> Environment {
    let mut e = Environment::new(RAM);
    e.gdt(GDT, DESCRIPTORS, CALL_GATE32);
    let halt = Gate {
        dpl: 3,
        ty: Gate::CALL,
        ..Gate::to(HALT)
    };
    e.write(GDT + u64::from(CALL_GATE), &halt.to_bytes());
    e.page_tables(PML4, |page| if page >= CODE { 7 } else { 3 });
    // Programs at CPL 3 use the platform's ports.
    let io_map = 0;
    let (rsp0, ist1) = (RSP0, IST1);
    e.tss(TSS_SELECTOR, Tss { rsp0, ist1, io_map });
    e.assemble(64, HALT, |a| a.hlt());
    e.assemble(64, RETURN, |a| a.iretq());
    e.assemble(64, SYSRET, |a| a.sysretq());
    e.assemble(64, SYSEXIT, |a| a.sysexitq());
    e.assemble(32, LEGACY_HALT, |a| a.hlt());
    // In 16-bit code the same byte is IRET with operands of 16 bits.
    e.assemble(32, LEGACY_RETURN, |a| a.iretd());
    e.write(TSS32 + 4, &RSP0.to_le_bytes()[..4]);
    e.write(TSS32 + 8, &KERNEL_SS.to_le_bytes());
    e.write(DIRECTORY32, &0x87u32.to_le_bytes());
    e.write_u64(POINTERS, PD | 1);
    let halts = |vector: u8| !matches!(vector, 1..=3 | 32..);
    e.idt(IDT, |vector| Gate {
        dpl: 3,
        // The double fault and the NMI have a stack of their own.
        ist: u8::from(vector == 2 || vector == 8),
        ..Gate::to(if halts(vector) { HALT } else { RETURN })
    });
    for vector in 0..=255 {
        let handler = if halts(vector) {
            LEGACY_HALT
        } else {
            LEGACY_RETURN
        };
        // Some gates are of 16 bits.
        let kind = if vector % 7 == 5 { 0xE6 } else { 0xEE };
        let gate = handler | u64::from(KERNEL_CS32) << 16 | kind << 40;
        e.write_u64(IDT32 + 8 * u64::from(vector), gate);
        let pointer = (handler & 0xF) | (handler >> 4) << 16;
        e.write(
            VECTORS + 4 * u64::from(vector),
            &(pointer as u32).to_le_bytes(),
        );
    }
    e.write(DS_AREA, &ds_fields().to_bytes());
    for at in (DATA..RAM as u64).step_by(8) {
        // Every data word is an address that is mapped.
        e.write_u64(at, DATA + (at - DATA) % 0x1_0000);
    }
    e
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
    /// Its processor, and what is around it.
    pub machine: Machine,
}

impl Guest {
    /// A machine about to run at [`CODE`] in `mode`. There is one at a time: all share their
    /// memory.
    pub fn new(mode: Mode) -> Self {
        let mut platform = TestPlatform::default();
        platform.open_bus = OpenBus::Varying;
        platform.interrupt_is_nmi = true.into();
        let environment = &ENVIRONMENTS[mode as usize];
        Self {
            machine: environment.machine_in(MEMORY.clone(), &MODEL, platform),
        }
    }

    /// Its memory.
    pub fn ram(&self) -> &Ram {
        &self.machine.ram
    }

    /// Whether a fault in `state` leads to the handler that halts, by the page tables as they are
    /// now.
    pub fn handlers_are_intact(&self, state: &ArchState) -> bool {
        let mut walker = Walker::new(self.ram(), state, false);
        [GDT, IDT, TSS, HANDLERS].into_iter().all(|page| {
            let now = self.ram().read(page, 0x1000);
            walker.translate(page, Purpose::Fetch) == Some(page)
                && ENVIRONMENTS[0].page(page) == Some(&now[..])
        }) && (state.sys.gdtr.base, state.sys.idtr.base) == (GDT, IDT)
    }

    /// Changes memory as a device would.
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        self.machine.write(at, bytes);
    }

    /// Changes the processor's state.
    pub fn update(&mut self, change: impl FnOnce(&mut ArchState)) {
        self.machine.update(change);
    }

    /// Runs up to about `instructions`, to a HLT, or to a triple fault.
    ///
    /// # Panics
    /// The run loop returns without getting anywhere.
    pub fn run(&mut self, instructions: u64) -> Exit {
        let soft = &mut self.machine.soft;
        let deadline = soft.cpu.now() + instructions;
        // An instruction can leave the loop once; an event between two, once more.
        for _ in 0..4 * instructions + 16 {
            match soft.run(deadline) {
                Exit::Bus | Exit::Kick => {}
                exit => return exit,
            }
        }
        panic!("the processor makes no progress: {:?}", soft.cpu);
    }
}

/// The processor at the start in `mode`.
fn state(memory: &Environment, mode: Mode) -> ArchState {
    let (cs, ss) = mode.selectors();
    let segment = |selector| memory.segment(selector);
    let mut s = memory.state.clone();
    s.rip = CODE;
    s.seg = [segment(ss); 6];
    s.seg[1] = segment(cs);
    s.gpr[4] = if cs & 3 == 0 {
        KERNEL_STACK
    } else {
        USER_STACK
    };
    if mode == Mode::User16 {
        // Addresses have 16 bits: code and data in one segment of its own.
        for s in &mut s.seg {
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
            for (n, s) in s.seg.iter_mut().enumerate() {
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
    let (base, limit) = match mode {
        Mode::Real => (VECTORS, 0x3FF),
        _ if mode.is_ia32e() => (IDT, 0xFFF),
        _ => (IDT32, 0x7FF),
    };
    s.sys.idtr = TableRegister { base, limit };
    s.sys.cr4 |= cr4::PGE | cr4::DE | cr4::OSXMMEXCPT;
    if !mode.is_ia32e() {
        s.sys.cr4 &= !cr4::PAE;
        s.sys.efer &= !(efer::LME | efer::LMA);
        s.sys.cr3 = 0;
    }
    match mode {
        Mode::Real => s.sys.cr0 &= !(cr0::PE | cr0::PG),
        Mode::Protected => s.sys.cr0 &= !cr0::PG,
        Mode::Paged => {
            s.sys.cr3 = DIRECTORY32;
            s.sys.cr4 |= cr4::PSE;
        }
        Mode::Pae | Mode::Pae16 => {
            s.sys.cr3 = POINTERS;
            s.sys.cr4 |= cr4::PAE;
            s.sys.pdpte[0] = PD | 1;
        }
        _ => {}
    }
    s.sys.dr6 = dr6::FIXED;
    s.sys.dr7 = dr7::FIXED;
    s.msr.star = u64::from(USER_CS32) << 48 | u64::from(KERNEL_CS) << 32;
    s.msr.lstar = SYSRET;
    s.msr.cstar = SYSRET;
    s.msr.sysenter_cs = KERNEL_CS.into();
    s.msr.sysenter_esp = RSP0;
    s.msr.sysenter_eip = SYSEXIT;
    s.ds_area = DS_AREA;
    s
}
