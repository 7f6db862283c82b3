//! The software side: a processor with flat paging and descriptor tables, in which every exception
//! ends at a HLT that tells its vector.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use vbts_cpu::state::{CpuState, SegAttr, Segment, SystemState, TableRegister, cr0, cr4, efer};
use vbts_cpu::{Cpu, Exit, GuestRam, Platform, Signals, SoftCpu};

use super::layout::{CODE, CODE_LEN, DATA, MEMORY_LEN, READ_ONLY};
use super::{Event, FloatState, Mode, Outcome, State, processor};

/// Guest-physical addresses, which are the linear ones too.
const PML4: u64 = 0x1000;
const PDPT: u64 = 0x2000;
const PD: u64 = 0x3000;
/// Two page tables: the first 4 MiB.
const PT: u64 = 0x4000;
const GDT: u64 = 0x8000;
const TSS: u64 = 0x9000;
const IDT: u64 = 0xA000;
/// A HLT and a spare byte for each vector.
const HANDLERS: u64 = 0xB000;
const STACK_TOP: u64 = 0xE000;
const RAM_LEN: usize = 0x40_0000;

/// Linux's selectors, so that a selector reads the same on both sides.
const KERNEL_CS: u16 = 0x10;
const USER_CS: u16 = 0x33;
const USER32_CS: u16 = 0x23;
const USER_DS: u16 = 0x2B;

/// Page-table bits.
const PRESENT: u64 = 1;
const WRITABLE: u64 = 2;
const USER: u64 = 4;
const NO_EXECUTE: u64 = 1 << 63;

/// More instructions than any case needs, REP iterations included.
const LIMIT: u64 = 1_000_000;

/// Zeroed, page-aligned memory that the guest alone uses.
#[derive(Debug)]
struct Ram(NonNull<u8>);

impl Ram {
    fn layout() -> Result<Layout> {
        Ok(Layout::from_size_align(RAM_LEN, 4096)?)
    }

    fn new() -> Result<Self> {
        // SAFETY: the size is not zero.
        let memory = unsafe { alloc_zeroed(Self::layout()?) };
        Ok(Self(NonNull::new(memory).context("no memory")?))
    }

    fn write(&self, address: u64, bytes: &[u8]) {
        assert!(address as usize + bytes.len() <= RAM_LEN);
        // SAFETY: inside the allocation, by the assertion; no reference to it exists.
        unsafe {
            self.0
                .as_ptr()
                .add(address as usize)
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
    }

    fn read(&self, address: u64, bytes: &mut [u8]) {
        assert!(address as usize + bytes.len() <= RAM_LEN);
        // SAFETY: as above.
        unsafe {
            self.0
                .as_ptr()
                .add(address as usize)
                .copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len())
        };
    }

    fn write_u64(&self, address: u64, value: u64) {
        self.write(address, &value.to_le_bytes());
    }

    fn read_u64(&self, address: u64) -> u64 {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes);
        u64::from_le_bytes(bytes)
    }
}

impl Drop for Ram {
    fn drop(&mut self) {
        if let Ok(layout) = Self::layout() {
            // SAFETY: allocated with this layout; the processor that used it is dropped before.
            unsafe { dealloc(self.0.as_ptr(), layout) };
        }
    }
}

/// A machine with nothing in it.
#[derive(Debug)]
struct Nothing;

impl Platform for Nothing {
    fn mmio_read(&self, _now: u64, _gpa: u64, data: &mut [u8]) {
        data.fill(0xFF);
    }
    fn mmio_write(&self, _now: u64, _gpa: u64, _data: &[u8]) {}
    fn pio_read(&self, _now: u64, _port: u16, data: &mut [u8]) {
        data.fill(0xFF);
    }
    fn pio_write(&self, _now: u64, _port: u16, _data: &[u8]) {}
    fn acknowledge_interrupt(&self, _now: u64) -> Option<u8> {
        None
    }
    fn take_nmi(&self) -> bool {
        false
    }
    fn give_back_nmi(&self) {}
    fn performance_interrupt(&self, _now: u64) {}
    fn cr8(&self) -> u64 {
        0
    }
    fn set_cr8(&self, _now: u64, _value: u64) {}
    fn apic_rdmsr(&self, _now: u64, _msr: u32) -> Option<u64> {
        None
    }
    fn apic_wrmsr(&self, _now: u64, _msr: u32, _value: u64) -> Option<()> {
        None
    }
}

/// The software CPU, ready to run user code.
#[derive(Debug)]
pub struct Soft {
    cpu: SoftCpu,
    sys: SystemState,
    ram: Ram,
}

impl Soft {
    /// A machine with paging and tables set up.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn new() -> Result<Self> {
        let ram = Ram::new()?;
        page_tables(&ram);
        descriptor_tables(&ram);
        // SAFETY: the range is the allocation, which lives as long as `Self` and to which no
        // reference is held.
        let guest_ram = unsafe { GuestRam::new(&[(0, RAM_LEN as u64, ram.0)]) };
        let model = processor().context("the host lacks what every model has")?;
        let cpu = Cpu::new(
            model,
            guest_ram,
            Arc::new(Nothing),
            Arc::new(Signals::default()),
        );
        Ok(Self {
            cpu: SoftCpu::new(cpu),
            sys: system_state(),
            ram,
        })
    }

    /// Runs `code` from `state`; `state.rip` is not used.
    ///
    /// # Errors
    /// If the software CPU does not come to an end.
    pub fn run(&mut self, code: &[u8; CODE_LEN], state: &State) -> Result<Outcome> {
        self.ram.write(CODE, code);
        self.ram.write(DATA, &state.memory);
        self.cpu.invalidate_page(CODE);
        let mut sys = self.sys.clone();
        if state.mode == Mode::Bits32 {
            sys.seg[1] = flat(USER32_CS, 0xC0FB);
        }
        let mut start = CpuState {
            gpr: state.gpr,
            rip: CODE,
            rflags: state.rflags,
            sys,
            xmm: state.float.xmm,
            mxcsr: state.float.mxcsr,
            ..CpuState::default()
        };
        start.x87.fcw = state.float.fcw;
        start.x87.fsw = state.float.fsw;
        start.x87.ftw = state.float.ftw;
        for (n, bytes) in state.float.st.iter().enumerate() {
            let wide = bytes
                .iter()
                .rev()
                .fold(0, |wide, &byte| wide << 8 | u128::from(byte));
            start.x87.set_st(n, wide);
        }
        self.cpu.cpu.load_state(&start);
        let exit = self.cpu.run(self.cpu.cpu.now() + LIMIT);
        ensure!(
            exit == Exit::Halt {
                interrupts_off: true
            },
            "the software CPU did not halt: {exit:?}"
        );
        self.outcome(state.mode)
    }

    /// Reads the exception's frame and what it left.
    fn outcome(&self, mode: Mode) -> Result<Outcome> {
        let end = self.cpu.cpu.state();
        let vector = end.rip.wrapping_sub(HANDLERS) / 2;
        let has_error = matches!(vector, 8 | 10..=14 | 17);
        let frame = STACK_TOP - 40;
        let expected = frame - if has_error { 8 } else { 0 };
        ensure!(
            end.gpr[4] == expected,
            "vector {vector}: stack at {:#x}, not {expected:#x}",
            end.gpr[4]
        );
        let mut gpr = end.gpr;
        gpr[4] = self.ram.read_u64(frame + 24);
        let event = match vector {
            0 => Event::Divide,
            1 => Event::Debug,
            3 => Event::Completed,
            6 => Event::InvalidOpcode,
            // Linux has the same signal for #OF, #BR and #GP.
            4 | 5 => Event::GeneralProtection,
            12 => Event::Stack,
            13 => Event::GeneralProtection,
            14 => Event::Page(end.sys.cr2),
            16 => Event::X87,
            17 => Event::Alignment,
            19 => Event::Simd,
            vector if vector < 256 => Event::Other(vector as u32),
            _ => bail!("halted at {:#x}", end.rip),
        };
        let mut float = FloatState {
            fcw: end.x87.fcw,
            fsw: end.x87.fsw,
            ftw: end.x87.ftw,
            xmm: end.xmm,
            mxcsr: end.mxcsr,
            ..FloatState::default()
        };
        for (n, st) in float.st.iter_mut().enumerate() {
            st.copy_from_slice(&end.x87.st(n).to_le_bytes()[..10]);
        }
        let mut memory = vec![0; MEMORY_LEN];
        self.ram.read(DATA, &mut memory);
        let state = State {
            mode,
            gpr,
            rip: self.ram.read_u64(frame),
            rflags: self.ram.read_u64(frame + 16),
            float,
            memory,
        };
        Ok(Outcome { event, state })
    }
}

/// Maps the first 64 KiB for the kernel, and code and data for the user as [`super::layout`] says.
fn page_tables(ram: &Ram) {
    let table = PRESENT | WRITABLE | USER;
    ram.write_u64(PML4, PDPT | table);
    ram.write_u64(PDPT, PD | table);
    ram.write_u64(PD, PT | table);
    ram.write_u64(PD + 8, (PT + 0x1000) | table);
    let map = |from: u64, to: u64, bits: u64| {
        for page in (from..to).step_by(0x1000) {
            ram.write_u64(PT + page / 0x1000 * 8, page | PRESENT | bits);
        }
    };
    map(0, 0x1_0000, WRITABLE);
    map(CODE, CODE + CODE_LEN as u64, USER);
    map(DATA, READ_ONLY, USER | WRITABLE | NO_EXECUTE);
    map(READ_ONLY, READ_ONLY + 0x1000, USER | NO_EXECUTE);
}

fn descriptor_tables(ram: &Ram) {
    // Kernel code, 32-bit user code, user data, user code, as Linux has them (SDM Vol. 3A 3.4.5);
    // all accessed.
    ram.write_u64(GDT + 0x10, 0x00AF_9B00_0000_FFFF);
    ram.write_u64(GDT + 0x20, 0x00CF_FB00_0000_FFFF);
    ram.write_u64(GDT + 0x28, 0x00CF_F300_0000_FFFF);
    ram.write_u64(GDT + 0x30, 0x00AF_FB00_0000_FFFF);
    // RSP0; no I/O permission bitmap.
    ram.write_u64(TSS + 4, STACK_TOP);
    ram.write(TSS + 102, &104u16.to_le_bytes());
    for vector in 0..256 {
        let handler = HANDLERS + vector * 2;
        // HLT; RIP is then at the spare byte, which keeps two handlers apart.
        ram.write(handler, &[0xF4]);
        // A 64-bit interrupt gate; INT3 and INTO come from CPL 3.
        let dpl = if matches!(vector, 3 | 4) { 3 } else { 0 };
        let gate = (handler & 0xFFFF)
            | u64::from(KERNEL_CS) << 16
            | (0x8E | dpl << 5) << 40
            | (handler >> 16) << 48;
        ram.write_u64(IDT + vector * 16, gate);
    }
}

fn flat(selector: u16, attr: u32) -> Segment {
    Segment {
        selector,
        base: 0,
        limit: u32::MAX,
        attr: SegAttr::from_bits_retain(attr),
    }
}

fn system_state() -> SystemState {
    let null = Segment {
        attr: SegAttr::UNUSABLE,
        ..Segment::default()
    };
    SystemState {
        seg: [
            flat(USER_DS, 0xC0F3),
            flat(USER_CS, 0xA0FB),
            flat(USER_DS, 0xC0F3),
            flat(USER_DS, 0xC0F3),
            null,
            null,
        ],
        ldtr: null,
        tr: Segment {
            selector: 0x40,
            base: TSS,
            limit: 103,
            attr: SegAttr::from_bits_retain(0x8B),
        },
        gdtr: TableRegister {
            base: GDT,
            limit: 0x37,
        },
        idtr: TableRegister {
            base: IDT,
            limit: 0xFFF,
        },
        cr0: cr0::PE | cr0::MP | cr0::ET | cr0::NE | cr0::WP | cr0::AM | cr0::PG,
        cr3: PML4,
        cr4: cr4::PAE | cr4::OSFXSR | cr4::OSXMMEXCPT,
        efer: efer::SCE | efer::LME | efer::LMA | efer::NXE,
        dr6: 0xFFFF_0FF0,
        dr7: 0x400,
        ..SystemState::default()
    }
}
