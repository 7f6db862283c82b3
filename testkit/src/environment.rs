//! The environment of a program, as system software sets it up: memory contents and processor
//! state.

use std::collections::BTreeMap;
use std::sync::Arc;

use iced_x86::code_asm::CodeAssembler;
use vbts_cpu::state::{Segment, TableRegister, cr0, cr4, efer};
use vbts_cpu::{ArchState, Cpu, GuestRam, Model, NativeOptions, SoftCpu};

use crate::descriptor::{Gate, null, segment};
use crate::{Emit, Ram, TestPlatform, assemble};

/// Size of a page, in bytes and as a number of address bits.
const PAGE: usize = 1 << PAGE_BITS;
const PAGE_BITS: u32 = 12;
/// Bits of a page-table entry that one of a higher level has: present, writable, user.
const TABLE: u64 = 7;
/// Offsets in a 64-bit TSS: RSP0, IST1 and the I/O map base (SDM Vol. 3A 7.7).
const TSS_RSP0: u64 = 4;
const TSS_IST1: u64 = 0x24;
const TSS_IO_MAP: u64 = 0x66;

/// The fields of a 64-bit TSS that tests set.
#[derive(Debug, Clone, Copy)]
pub struct Tss {
    /// Top of the stack of handlers that are entered from CPL 3.
    pub rsp0: u64,
    /// Top of the stack of gates with 1 in [`Gate::ist`].
    pub ist1: u64,
    /// Offset of the I/O permission bit map. An offset beyond the limit, 0x67, denies every port to
    /// CPL 3. At offset 0 the TSS itself is the map, and its zeros allow most ports.
    pub io_map: u16,
}

/// Memory contents, and the state of the processor at its first instruction.
///
/// A new environment has empty memory, and a processor in 64-bit mode at CPL 0 without the tables
/// that it needs. Each method adds a table. For anything else, the caller writes to memory or to
/// [`state`](Self::state).
#[derive(Debug, Clone)]
pub struct Environment {
    ram: usize,
    /// The pages that are not zero.
    pages: BTreeMap<u64, Box<[u8; PAGE]>>,
    /// The processor at its first instruction.
    pub state: ArchState,
    descriptors: &'static [(u16, u64)],
}

impl Environment {
    /// Creates an environment with `ram` bytes of memory.
    pub fn new(ram: usize) -> Self {
        let mut state = ArchState {
            mxcsr: 0x1F80,
            rflags: vbts_cpu::state::rflags::FIXED,
            ..ArchState::default()
        };
        let s = &mut state.sys;
        s.cr0 = cr0::PE | cr0::PG | cr0::WP | cr0::NE | cr0::ET;
        s.cr4 = cr4::PAE | cr4::OSFXSR;
        s.efer = efer::LME | efer::LMA | efer::SCE | efer::NXE;
        s.ldtr = null();
        Self {
            ram,
            pages: BTreeMap::new(),
            state,
            descriptors: &[],
        }
    }

    /// Size of memory in bytes.
    pub fn ram_size(&self) -> usize {
        self.ram
    }

    /// Puts bytes into memory.
    ///
    /// # Panics
    /// They are not all inside.
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        assert!(at as usize + bytes.len() <= self.ram, "{at:#x} is not RAM");
        for (at, byte) in (at..).zip(bytes) {
            let page = self.pages.entry(at >> PAGE_BITS);
            page.or_insert_with(|| Box::new([0; PAGE]))[at as usize % PAGE] = *byte;
        }
    }

    /// Puts a quadword into memory.
    pub fn write_u64(&mut self, at: u64, value: u64) {
        self.write(at, &value.to_le_bytes());
    }

    /// The page at `at`, if it is not zero.
    pub fn page(&self, at: u64) -> Option<&[u8]> {
        self.pages.get(&(at >> PAGE_BITS)).map(|page| &page[..])
    }

    /// Puts a program for code of `bitness` bits into memory, and returns its end.
    pub fn assemble(
        &mut self,
        bitness: u32,
        at: u64,
        program: impl FnOnce(&mut CodeAssembler) -> Emit,
    ) -> u64 {
        let bytes = assemble(bitness, at, program);
        self.write(at, &bytes);
        at + bytes.len() as u64
    }

    /// Sets up a GDT at `at` with these descriptors, by selector. Its limit is the end of the
    /// entry of `last`.
    pub fn gdt(&mut self, at: u64, descriptors: &'static [(u16, u64)], last: u16) {
        for &(selector, descriptor) in descriptors {
            self.write_u64(at + u64::from(selector & !7), descriptor);
        }
        self.descriptors = descriptors;
        self.state.sys.gdtr = TableRegister {
            base: at,
            limit: last | 7,
        };
    }

    /// The segment register that a selector of the GDT loads; an unusable one for others.
    pub fn segment(&self, selector: u16) -> Segment {
        let found = self.descriptors.iter().find(|d| d.0 == selector);
        found.map_or_else(null, |&(_, descriptor)| segment(selector, descriptor))
    }

    /// Sets up the 64-bit TSS of a selector of the GDT, and loads TR.
    pub fn tss(&mut self, selector: u16, tss: Tss) {
        self.task(self.segment(selector), tss);
    }

    /// Sets up a 64-bit TSS at the base of `tr`, and loads TR.
    pub fn task(&mut self, tr: Segment, tss: Tss) {
        self.write_u64(tr.base + TSS_RSP0, tss.rsp0);
        self.write_u64(tr.base + TSS_IST1, tss.ist1);
        self.write(tr.base + TSS_IO_MAP, &tss.io_map.to_le_bytes());
        self.state.sys.tr = tr;
    }

    /// Sets up page tables from `at` on, one after the other: PML4, page-directory-pointer table,
    /// page directory and a page table for each 2 MiB of memory. A page is mapped to itself with
    /// `flags` of its address, or not at all if they are 0.
    pub fn page_tables(&mut self, at: u64, flags: impl Fn(u64) -> u64) {
        let table = |n: u64| at + (n << PAGE_BITS);
        self.write_u64(table(0), table(1) | TABLE);
        self.write_u64(table(1), table(2) | TABLE);
        let pages = (self.ram >> PAGE_BITS) as u64;
        for n in 0..pages.div_ceil(512) {
            self.write_u64(table(2) + 8 * n, table(3 + n) | TABLE);
        }
        for page in 0..pages {
            let address = page << PAGE_BITS;
            let flags = flags(address);
            if flags != 0 {
                self.write_u64(table(3) + 8 * page, address | flags);
            }
        }
        self.state.sys.cr3 = at;
    }

    /// Sets up an IDT at `at` with a gate for each vector.
    pub fn idt(&mut self, at: u64, gate: impl Fn(u8) -> Gate) {
        for vector in 0..=255 {
            self.write(at + 16 * u64::from(vector), &gate(vector).to_bytes());
        }
        self.state.sys.idtr = TableRegister {
            base: at,
            limit: 0xFFF,
        };
    }

    /// Lets the processor start at `rip` in the code segment `cs`, with the stack and data segment
    /// `ss` and the top of the stack at `rsp`.
    pub fn start(&mut self, cs: u16, ss: u16, rip: u64, rsp: u64) {
        let (code, data) = (self.segment(cs), self.segment(ss));
        self.state.seg = [data, code, data, data, data, data];
        self.state.rip = rip;
        self.state.gpr[4] = rsp;
    }

    /// Sets all of `ram` to its initial contents.
    ///
    /// # Panics
    /// `ram` has another size.
    pub fn load(&self, ram: &Ram) {
        assert_eq!(ram.len(), self.ram);
        ram.clear();
        for (page, bytes) in &self.pages {
            ram.write(page << PAGE_BITS, &bytes[..]);
        }
    }

    /// Creates a machine with its own memory, in its initial state.
    pub fn machine(&self, model: &'static Model) -> Machine {
        let ram = Arc::new(Ram::new(self.ram));
        self.machine_in(ram, model, TestPlatform::default())
    }

    /// Creates a machine with this platform and `ram`, which it overwrites.
    pub fn machine_in(
        &self,
        ram: Arc<Ram>,
        model: &'static Model,
        platform: TestPlatform,
    ) -> Machine {
        self.load(&ram);
        let platform = Arc::new(platform);
        let mut soft = soft_cpu(model, &ram, &platform);
        soft.cpu.load_state(&self.state);
        Machine {
            soft,
            platform,
            ram,
        }
    }
}

/// A processor after power-up in this memory, with this platform around it.
///
/// With the variable `VBTS_TEST_JIT` it translates each block that has run as often. If the number
/// is followed by `c`, native code is compared with the interpreter.
pub fn soft_cpu(model: &'static Model, ram: &Ram, platform: &Arc<TestPlatform>) -> SoftCpu {
    soft_cpu_of(model, ram.for_cpu(), platform)
}

/// As [`soft_cpu`], for a processor of a machine whose processors have clones of one `ram`.
pub fn soft_cpu_of(model: &'static Model, ram: GuestRam, platform: &Arc<TestPlatform>) -> SoftCpu {
    let signals = platform.signals.clone();
    let mut soft = SoftCpu::new(Cpu::new(model, ram, platform.clone(), signals));
    if let Some(options) = native_options() {
        soft.translate_blocks(options)
            .expect("executable memory for native code");
    }
    soft
}

/// A machine with one processor, which the software CPU executes.
#[derive(Debug)]
pub struct Machine {
    /// The processor.
    pub soft: SoftCpu,
    /// What is around it.
    pub platform: Arc<TestPlatform>,
    /// Its memory.
    pub ram: Arc<Ram>,
}

impl Machine {
    /// Changes the processor's state.
    pub fn update(&mut self, change: impl FnOnce(&mut ArchState)) {
        let mut state = self.soft.cpu.state();
        change(&mut state);
        self.soft.cpu.load_state(&state);
    }

    /// Changes memory as a device would.
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        self.ram.write(at, bytes);
        for page in at >> PAGE_BITS..=(at + bytes.len() as u64) >> PAGE_BITS {
            self.soft.invalidate_page(page << PAGE_BITS);
        }
    }
}

/// How the processor makes native code, if it does.
fn native_options() -> Option<NativeOptions> {
    let value = std::env::var("VBTS_TEST_JIT").ok()?;
    let number = value.trim_end_matches('c');
    Some(NativeOptions {
        threshold: number.parse().expect("VBTS_TEST_JIT is a number"),
        check: number != value,
        ..NativeOptions::default()
    })
}
