//! The memory of a program's machine, and its processors before the program is there.
//!
//! | linear = physical | what |
//! |---|---|
//! | 0x01000 - 0x1FFFF | tables, handlers, DS areas, stacks |
//! | 0x20000 - 0x2FFFF | the main code of each processor |
//! | 0x30000 - 0x35FFF | frames of code: slots that the main code calls |
//! | 0x40000 - 0x4FFFF | data |
//!
//! The page behind RAM is that of a device.
//!
//! Two windows of eight pages have page tables of their own, which a program changes: one in the
//! lower half, which depends on CR3, and a global one in the upper half. Their pages have the same
//! index in the TLB as data and frames, and code in them the same slot of the tables of jumps.

use std::sync::LazyLock;

use iced_x86::code_asm::*;
use vbts_bts::{BtsFields, RECORD_SIZE};
use vbts_cpu::ArchState;
use vbts_cpu::state::{TableRegister, cr4};

use crate::Environment;
use crate::descriptor::selector::{KERNEL_CS, KERNEL_SS, USER_CS, USER_SS};
use crate::descriptor::{self, Gate, segment, tss};
use crate::environment::Tss;

/// Size of RAM in bytes.
pub(super) const RAM: usize = 0x8_0000;
/// Most processors of a machine.
pub(super) const PROCESSORS: usize = 2;

const GDT: u64 = 0x1000;
/// The first PML4.
pub(super) const PML4: u64 = 0x5000;
/// Another PML4, which has another lower window.
pub(super) const OTHER_PML4: u64 = 0x9000;
/// Page-directory-pointer table, page directory and page table of each window follow one another.
const LOW_TABLES: u64 = 0xA000;
const OTHER_LOW_TABLES: u64 = 0xD000;
const HIGH_TABLES: u64 = 0x1_0000;
/// Offset of the page table from the first table of a window.
const PAGE_TABLE: u64 = 0x2000;

/// Pages of a window.
pub(super) const WINDOW_PAGES: u64 = 8;
/// The first of its pages that leads to data.
pub(super) const DATA_PAGES: u64 = 6;
const LOW: u64 = (1 << 39) + DATA - (DATA_PAGES << 12);
const HIGH: u64 = 0xFFFF_FF80_0000_0000 + FRAMES;
/// The lower window's page of data: the same index in the TLB as [`DATA`].
pub(super) const ALIAS: u64 = LOW + (DATA_PAGES << 12);

/// Where the main code of the first processor starts, and the distance to the next.
pub(super) const MAIN: u64 = 0x2_0000;
pub(super) const MAIN_SIZE: u64 = 0x8000;
/// The frames of code.
pub(super) const FRAMES: u64 = 0x3_0000;
pub(super) const FRAME_COUNT: u64 = 6;
/// Data.
pub(super) const DATA: u64 = 0x4_0000;
/// A page of a device, behind RAM.
pub(super) const DEVICE: u64 = RAM as u64;
const DEVICE_GPA: u64 = 0xFD00_0000;
/// The vector that ends a program.
pub(super) const END_VECTOR: i32 = 0x80;
/// Vectors of interrupts, whose handlers return.
pub(super) const INTERRUPTS: std::ops::Range<u8> = 0x40..0x50;

const TSS_SELECTORS: [u16; PROCESSORS] = [0x40, 0x50];
const DESCRIPTORS: &[(u16, u64)] = &[
    (KERNEL_CS, descriptor::KERNEL_CODE64),
    (KERNEL_SS, descriptor::KERNEL_DATA),
    (USER_SS, descriptor::USER_DATA),
    (USER_CS, descriptor::USER_CODE64),
    (TSS_SELECTORS[0], tss(0x4000)),
    (TSS_SELECTORS[1], tss(0x4100)),
];

/// The memory of one processor, by its number: tables and stacks that it does not share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Area(pub usize);

impl Area {
    fn page(self, first: u64) -> u64 {
        first + ((self.0 as u64) << 12)
    }

    fn idt(self) -> u64 {
        self.page(0x2000)
    }

    /// Where the handlers read and count: RIP, RSP, CS, RFLAGS and SS after a fault, each 8 bytes.
    fn control(self) -> u64 {
        self.page(0x1_3000)
    }

    /// The address of the RIP at which the program goes on after a fault.
    pub fn recovery(self) -> u64 {
        self.control()
    }

    /// The number of exceptions and interrupts of a vector.
    pub fn count_of(self, vector: u64) -> u64 {
        self.control() + 0x80 + 8 * vector
    }

    fn handlers(self) -> u64 {
        self.page(0x1_5000)
    }

    pub fn ds_area(self) -> u64 {
        0x1_7000 + 0x100 * self.0 as u64
    }

    /// The BTS buffer: at most a page.
    pub fn bts_buffer(self) -> u64 {
        self.page(0x1_8000)
    }

    /// The top of a handler's stack.
    fn exception_stack(self) -> u64 {
        self.page(0x1_B000)
    }

    fn ring0_stack(self) -> u64 {
        self.page(0x1_D000)
    }

    /// The top of the program's stack.
    pub fn stack(self) -> u64 {
        self.page(0x1_F000)
    }

    /// Where its main code starts.
    pub fn main(self) -> u64 {
        MAIN + MAIN_SIZE * self.0 as u64
    }

    /// Fields of a DS area with a BTS buffer of `records`.
    pub fn bts_fields(self, records: u64, threshold: u64) -> BtsFields {
        BtsFields {
            base: self.bts_buffer(),
            index: self.bts_buffer(),
            absolute_maximum: self.bts_buffer() + records * RECORD_SIZE,
            threshold: self.bts_buffer() + threshold * RECORD_SIZE,
        }
    }
}

/// A window of linear addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Window {
    /// Linear addresses of the frames are their physical addresses.
    Identity,
    /// In the lower half.
    Low,
    /// In the lower half, with the other PML4.
    OtherLow,
    /// In the upper half.
    High,
}

impl Window {
    /// The linear address of a page.
    pub fn page(self, page: u64) -> u64 {
        let first = match self {
            Self::Identity => FRAMES,
            Self::Low | Self::OtherLow => LOW,
            Self::High => HIGH,
        };
        first + (page << 12)
    }

    /// The address of the page-table entry of a page.
    pub fn entry(self, page: u64) -> u64 {
        let table = match self {
            Self::Identity => PML4 + 0x3000 + 8 * (FRAMES >> 12),
            Self::Low => LOW_TABLES + PAGE_TABLE + 8 * (LOW >> 12 & 511),
            Self::OtherLow => OTHER_LOW_TABLES + PAGE_TABLE + 8 * (LOW >> 12 & 511),
            Self::High => HIGH_TABLES + PAGE_TABLE + 8 * (HIGH >> 12 & 511),
        };
        table + 8 * page
    }
}

/// The page-table entry of a window's page before the program changes it: frames and data in
/// order, but each window with another first frame.
pub(super) fn initial_entry(window: Window, page: u64) -> u64 {
    let first = match window {
        Window::Identity => 0,
        Window::Low => 1,
        Window::OtherLow => 2,
        Window::High => 3,
    };
    match page {
        0..DATA_PAGES => (FRAMES + (((page * (first + 1) + first) % FRAME_COUNT) << 12)) | 7,
        _ => (DATA + ((page - DATA_PAGES) << 12)) | 7,
    }
}

/// Memory before a program is there, and the state of a processor that begins to run it at CPL 0.
pub(super) static BASE: LazyLock<Environment> = LazyLock::new(|| {
    let mut e = Environment::new(RAM);
    e.gdt(GDT, DESCRIPTORS, TSS_SELECTORS[1] + 8);
    e.page_tables(PML4, |page| if page >= 0x1_3000 { 7 } else { 3 });
    for (pml4, low) in [(PML4, LOW_TABLES), (OTHER_PML4, OTHER_LOW_TABLES)] {
        e.write_u64(pml4, (PML4 + 0x1000) | 7);
        for (la, tables) in [(LOW, low), (HIGH, HIGH_TABLES)] {
            let entry = |shift: u32| 8 * (la >> shift & 511);
            e.write_u64(pml4 + entry(39), tables | 7);
            e.write_u64(tables + entry(30), (tables + 0x1000) | 7);
            e.write_u64(tables + 0x1000 + entry(21), (tables + PAGE_TABLE) | 7);
        }
    }
    for window in [Window::Low, Window::OtherLow, Window::High] {
        for page in 0..WINDOW_PAGES {
            e.write_u64(window.entry(page), initial_entry(window, page));
        }
    }
    e.write_u64(PML4 + 0x3000 + 8 * (DEVICE >> 12), DEVICE_GPA | 7);
    for n in 0..PROCESSORS {
        handlers(&mut e, Area(n));
    }
    e.start(KERNEL_CS, KERNEL_SS, MAIN, Area(0).stack());
    e.state.sys.cr4 |= cr4::PGE | cr4::DE;
    e
});

/// Sets up the IDT and the handlers of a processor. A fault goes on where the program says. An
/// interrupt and a trap return. The last vector halts.
fn handlers(e: &mut Environment, area: Area) {
    const STUB: u64 = 0x20;
    let recover = area.handlers() + STUB * 0x30;
    let control = |n: u64| qword_ptr(area.control() + 8 * n);
    e.assemble(64, recover, |a| {
        // SS, RSP, RFLAGS, CS and RIP of the frame.
        for field in [4, 1, 3, 2, 0] {
            a.push(control(field))?;
        }
        a.iretq()
    });
    let stub = |vector: u64| area.handlers() + STUB * vector;
    for vector in 0..0x20 {
        e.assemble(64, stub(vector), |a| {
            a.inc(qword_ptr(area.count_of(vector)))?;
            match vector {
                DEBUG => {
                    // RF, and no TF after some traps.
                    a.or(qword_ptr(rsp + 16), 0x1_0000)?;
                    a.test(byte_ptr(area.count_of(vector)), 7)?;
                    let mut goes_on = a.create_label();
                    a.jnz(goes_on)?;
                    a.and(qword_ptr(rsp + 16), !0x100)?;
                    a.set_label(&mut goes_on)?;
                    a.iretq()
                }
                NMI => a.iretq(),
                NO_FPU => {
                    a.clts()?;
                    a.jmp(recover)
                }
                _ => a.jmp(recover),
            }
        });
    }
    let (interrupt, end) = (stub(0x20), stub(0x21));
    e.assemble(64, interrupt, |a| {
        a.inc(qword_ptr(area.count_of(0x20)))?;
        a.iretq()
    });
    e.assemble(64, end, |a| {
        let mut again = a.create_label();
        a.cli()?;
        a.set_label(&mut again)?;
        a.hlt()?;
        a.jmp(again)
    });
    for vector in 0..=255u8 {
        let mut gate = match vector {
            0..0x20 => Gate::to(stub(vector.into())),
            _ if i32::from(vector) == END_VECTOR => Gate::to(end),
            _ => Gate::to(interrupt),
        };
        gate.dpl = 3;
        // The stack of a fault does not depend on what the program has done to its own.
        let returns = matches!(u64::from(vector), DEBUG | NMI) || vector >= 0x20;
        gate.ist = u8::from(!returns);
        e.write(area.idt() + 16 * u64::from(vector), &gate.to_bytes());
    }
}

const DEBUG: u64 = 1;
const NMI: u64 = 2;
const NO_FPU: u64 = 7;

/// The values of the handlers' fields for a processor in `state`, which goes on with its stack and
/// RFLAGS after a fault.
pub(super) fn control_fields(area: Area, state: &ArchState) -> [(u64, u64); 4] {
    let values = [
        state.gpr[4],
        state.seg[1].selector.into(),
        state.rflags,
        state.seg[2].selector.into(),
    ];
    std::array::from_fn(|n| (area.control() + 8 * (n as u64 + 1), values[n]))
}

/// The state of a processor that begins with its main code, at CPL 3 if `user`, and what its TSS
/// holds.
pub(super) fn initial_state(area: Area, user: bool) -> (ArchState, Vec<(u64, Vec<u8>)>) {
    let mut memory = Environment::new(RAM);
    let found = |wanted| {
        DESCRIPTORS
            .iter()
            .find(|d| d.0 == wanted)
            .map_or(0, |d| d.1)
    };
    let of = |selector| segment(selector, found(selector));
    let (rsp0, ist1) = (area.ring0_stack(), area.exception_stack());
    // Programs at CPL 3 use the platform's ports.
    let tss = Tss {
        rsp0,
        ist1,
        io_map: 0,
    };
    let tr = of(TSS_SELECTORS[area.0]);
    memory.task(tr, tss);
    let mut state = BASE.state.clone();
    state.sys.tr = tr;
    state.sys.idtr = TableRegister {
        base: area.idt(),
        limit: 0xFFF,
    };
    if user {
        let data = of(USER_SS);
        state.seg = [data, of(USER_CS), data, data, data, data];
    }
    state.gpr[4] = area.stack();
    state.rip = area.main();
    let page = tr.base & !0xFFF;
    let at = (tr.base - page) as usize;
    let bytes = memory
        .page(page)
        .map_or(Vec::new(), |p| p[at..at + 0x68].to_vec());
    (state, vec![(tr.base, bytes)])
}

/// The part of memory that an address belongs to, for reports.
pub(super) fn region(at: u64) -> &'static str {
    match at {
        0..GDT => "page 0",
        GDT..0x5000 => "GDT, IDTs and TSSs",
        0x5000..0x1_3000 => "page tables",
        0x1_3000..0x1_5000 => "the handlers' counts",
        0x1_5000..0x1_7000 => "handlers",
        0x1_7000..0x1_8000 => "DS areas",
        0x1_8000..0x1_A000 => "BTS buffers",
        0x1_A000..MAIN => "stacks",
        MAIN..FRAMES => "main code",
        FRAMES..0x3_6000 => "frames of code",
        _ => "data",
    }
}
