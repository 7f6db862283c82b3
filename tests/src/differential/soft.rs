//! The software side: a processor with flat paging and descriptor tables, in which every exception
//! ends at a HLT whose address gives the vector.

use anyhow::{Context, Result, bail, ensure};
use vbts_cpu::Exit;
use vbts_cpu::state::xsave::component;
use vbts_cpu::state::{ArchState, cr0, cr4, dr6, dr7};
use vbts_testkit::descriptor::{
    Gate, KERNEL_CODE64, USER_CODE32, USER_CODE64, USER_DATA, null, segment, selector, tss,
};
use vbts_testkit::environment::{Environment, Machine, Tss};

use super::layout::{CODE, CODE_LEN, DATA, MEMORY_LEN, READ_ONLY};
use super::{Event, FloatState, Mode, Outcome, State, processor};

/// Guest-physical addresses, which are the linear ones too.
const PAGE_TABLES: u64 = 0x1000;
const GDT: u64 = 0x8000;
const TSS: u64 = 0x9000;
const IDT: u64 = 0xA000;
/// A HLT and a spare byte for each vector.
const HANDLERS: u64 = 0xB000;
const STACK_TOP: u64 = 0xE000;
/// The supervisor's pages end here.
const KERNEL_END: u64 = 0x1_0000;
const RAM_LEN: usize = 0x40_0000;

/// Kernel code, 32-bit user code, user data and user code.
const DESCRIPTORS: &[(u16, u64)] = &[
    (selector::KERNEL_CS, KERNEL_CODE64),
    (selector::USER_CS32, USER_CODE32),
    (selector::USER_SS, USER_DATA),
    (selector::USER_CS, USER_CODE64),
];

/// Page-table bits.
const PRESENT: u64 = 1;
const WRITABLE: u64 = 2;
const USER: u64 = 4;
const NO_EXECUTE: u64 = 1 << 63;

/// More instructions than any case needs, REP iterations included.
const LIMIT: u64 = 1_000_000;

/// The software CPU, ready to run user code.
#[derive(Debug)]
pub struct Soft {
    machine: Machine,
    /// The state before each case, without the case's own part.
    start: ArchState,
}

impl Soft {
    /// A machine with paging and tables set up.
    ///
    /// # Errors
    /// The host's processor lacks what every model has.
    pub fn new() -> Result<Self> {
        let model = processor().context("the host lacks what every model has")?;
        let environment = environment();
        Ok(Self {
            machine: environment.machine(model),
            start: environment.state,
        })
    }

    /// Runs `code` from `state`; `state.rip` is not used.
    ///
    /// # Errors
    /// If the software CPU does not come to an end.
    pub fn run(&mut self, code: &[u8; CODE_LEN], state: &State) -> Result<Outcome> {
        let Machine { soft, ram, .. } = &mut self.machine;
        ram.write(CODE, code);
        ram.write(DATA, &state.memory);
        soft.invalidate_page(CODE);
        let mut start = ArchState {
            gpr: state.gpr,
            rip: CODE,
            rflags: state.rflags,
            xmm: state.float.xmm,
            ymm_high: state.float.ymm_high,
            mxcsr: state.float.mxcsr,
            ..self.start.clone()
        };
        if state.mode == Mode::Bits32 {
            start.seg[1] = segment(selector::USER_CS32, USER_CODE32);
        }
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
        soft.cpu.load_state(&start);
        let exit = soft.run(soft.cpu.now() + LIMIT);
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
        let ram = &self.machine.ram;
        let end = self.machine.soft.cpu.state();
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
        gpr[4] = ram.read_u64(frame + 24);
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
            ymm_high: end.ymm_high,
            mxcsr: end.mxcsr,
            ..FloatState::default()
        };
        for (n, st) in float.st.iter_mut().enumerate() {
            st.copy_from_slice(&end.x87.st(n).to_le_bytes()[..10]);
        }
        let state = State {
            mode,
            gpr,
            rip: ram.read_u64(frame),
            rflags: ram.read_u64(frame + 16),
            float,
            memory: ram.read(DATA, MEMORY_LEN),
        };
        Ok(Outcome { event, state })
    }
}

/// The first 64 KiB for the kernel, code and data for the user as [`super::layout`] says, and user
/// code about to run.
fn environment() -> Environment {
    let mut e = Environment::new(RAM_LEN);
    e.page_tables(PAGE_TABLES, |page| match page {
        0..KERNEL_END => PRESENT | WRITABLE,
        _ if (CODE..CODE + CODE_LEN as u64).contains(&page) => PRESENT | USER,
        DATA..READ_ONLY => PRESENT | USER | WRITABLE | NO_EXECUTE,
        READ_ONLY => PRESENT | USER | NO_EXECUTE,
        _ => 0,
    });
    e.gdt(GDT, DESCRIPTORS, selector::USER_CS);
    e.idt(IDT, |vector| Gate {
        // INT3 and INTO come from CPL 3.
        dpl: if matches!(vector, 3 | 4) { 3 } else { 0 },
        ..Gate::to(HANDLERS + 2 * u64::from(vector))
    });
    for vector in 0..256 {
        // RIP is then at the spare byte, which keeps two handlers apart.
        e.assemble(64, HANDLERS + 2 * vector, |a| a.hlt());
    }
    e.start(selector::USER_CS, selector::USER_SS, CODE, 0);
    let s = &mut e.state.sys;
    (e.state.seg[4], e.state.seg[5]) = (null(), null());
    s.cr0 |= cr0::MP | cr0::AM;
    s.cr4 |= cr4::OSXMMEXCPT | cr4::OSXSAVE;
    s.xcr0 = component::X87 | component::SSE | component::AVX;
    (s.dr6, s.dr7) = (dr6::FIXED, dr7::FIXED);
    // The TSS has no descriptor: no instruction at CPL 3 needs it.
    e.task(
        segment(selector::TSS, tss(TSS)),
        Tss {
            rsp0: STACK_TOP,
            ist1: 0,
            io_map: 0x68,
        },
    );
    e
}
