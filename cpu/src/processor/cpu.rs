//! A logical processor: its fields and its construction.

use std::sync::Arc;

use vbts_bts::Recorder;

use crate::insn::{CodeSize, reg};
use crate::mmu::access::Privilege;
use crate::mmu::ram::GuestRam;
use crate::mmu::region_filter::PageFilter;
use crate::mmu::tlb::Tlb;
use crate::model::{Model, Topology};
use crate::processor::branch_log::BranchLog;
use crate::processor::branch_trace::{MappedWindow, NO_PAGE};
use crate::processor::clock::Clock;
use crate::processor::debug::Breakpoints;
use crate::processor::fault::Fault;
use crate::processor::jump_keys::JumpKeys;
use crate::processor::pending_work::PendingWork;
use crate::processor::platform::{Platform, Signals};
use crate::processor::pmu::Pmu;
use crate::processor::segment::SegmentRegister;
use crate::processor::stop_points::{ActiveStops, WatchedRange};
use crate::processor::usage::Meter;
use crate::state::flags::Lazy;
use crate::state::{ArchState, MsrState, PendingEvent, SpinCount, SystemState, X87State};

/// A logical processor.
///
/// Instructions use its fields directly. After a change of CS, CPL, CR0, CR4, EFER, RFLAGS.AC,
/// DEBUGCTL or a segment they call [`Cpu::update_mode`].
///
/// # Example
///
/// ```
/// use vbts_testkit::environment::soft_cpu;
/// use vbts_testkit::{Ram, TestPlatform};
///
/// let (ram, platform) = (Ram::new(0x1000), TestPlatform::default().into());
/// let mut cpu = soft_cpu(vbts_cpu::model("core2").unwrap(), &ram, &platform).cpu;
/// let mut state = cpu.state();
/// state.gpr[0] = 0x1234;
/// cpu.load_state(&state);
/// // Register 0 is RAX, or AX as one of 16 bits.
/// assert_eq!(cpu.r::<u16>(0), 0x1234);
/// ```
// The fields that native code uses often are together: `backend/jit/layout.rs`.
#[repr(C)]
pub struct Cpu {
    pub(crate) tlb: Tlb,
    /// See [`MappedWindow`].
    pub(crate) window: MappedWindow,
    /// See [`JumpKeys`].
    pub(crate) jump_keys: JumpKeys,
    /// RAX..R15 as instructions encode them, then the pseudo registers of [`reg`]. Its length makes
    /// a check of the index unnecessary.
    pub gpr: [u64; reg::COUNT],
    /// Instruction pointer. While a block runs, it is not up to date (see [`Cpu::this_rip`]).
    pub rip: u64,
    /// Arithmetic flags.
    pub flags: Lazy,
    /// RFLAGS without the arithmetic flags.
    pub(crate) eflags: u64,
    /// Privilege of data accesses.
    pub(crate) privilege: Privilege,
    /// Current privilege level.
    pub cpl: u8,
    /// Taken branches at this CPL are recorded, single-stepped on or logged.
    pub(crate) recording: bool,
    pub(crate) meter: Meter,
    /// [`Signals`] that can be taken now.
    pub(crate) signal_mask: u32,
    /// Instructions retired before the current block. An exception counts as one instruction. A
    /// long repeated string instruction counts once for each part between two checks for pending
    /// work.
    pub(crate) icount: u64,
    /// The run loop leaves the fast path at the first block boundary where `icount` has reached
    /// this value: no block that begins below it passes the end of the run.
    pub(crate) limit: u64,
    /// The run loop returns when `icount` has reached this value.
    pub(crate) run_limit: u64,
    /// See [`PendingWork`].
    pub(crate) pending_work: PendingWork,
    /// An access to a device aborts the instruction (see [`Fault::Device`]): it may not be the only
    /// one of its block.
    pub(crate) device_aborts: bool,
    /// Default operand and address size of the code segment.
    pub(crate) code_size: CodeSize,
    /// Bits of a linear address: 32 outside IA-32e mode.
    pub(crate) linear_mask: u64,
    /// Base and limit of the last code segment outside 64-bit mode.
    pub(super) code_segment: (u64, u32),
    /// Advanced whenever an instruction pointer may lead to other code than before.
    pub(super) generation: u64,
    /// Advanced whenever an instruction pointer in a global page of the upper half may do so.
    pub(super) global_generation: u64,
    /// Pages of the lower half with cached jump targets of this generation.
    pub(super) jumped: PageFilter,
    /// Why the last instruction that aborted did not complete.
    pub fault: Fault,
    pub(crate) ram: GuestRam,
    pub(crate) recorder: Recorder,
    /// The guest has begun to record, or has changed IA32_DS_AREA while it records. See
    /// [`Cpu::check_armed_ds_area`].
    pub(crate) armed: bool,
    /// Branches for the VMM. The guest does not observe it, and it is no part of the state.
    pub(crate) log: Option<Box<BranchLog>>,
    /// Where the processor stops for a debugger. The guest does not observe it, and it is no part
    /// of the state.
    pub(crate) stops: Option<Box<ActiveStops>>,
    /// Addresses outside of which no watchpoint is, for native code.
    pub(crate) watched_range: WatchedRange,
    /// Boxed to keep the fields that every instruction uses close together.
    pub(crate) pmu: Box<Pmu>,
    /// Guest-physical page of the DS area in which the window was last opened, or [`NO_PAGE`].
    pub(crate) ds_page: u64,
    /// ES, CS, SS, DS, FS, GS. See [`Cpu::segment`].
    pub(crate) seg: [SegmentRegister; 6],
    /// Tables, control and debug registers.
    pub sys: SystemState,
    /// MSRs.
    pub msr: MsrState,
    /// x87 and MMX registers.
    pub x87: X87State,
    /// XMM0-XMM15: the low halves of YMM0-YMM15.
    pub xmm: [u128; 16],
    /// The upper halves of YMM0-YMM15: bits 255:128.
    pub ymm_high: [u128; 16],
    /// MXCSR.
    pub mxcsr: u32,
    pub(crate) clock: Clock,
    /// The time-stamp counter minus the counter of [`Clock`]: virtual time, or the host's
    /// time-stamp counter.
    pub(crate) tsc_offset: u64,
    /// Virtual time minus instructions retired: the time that HLT has skipped.
    pub(crate) skipped: u64,
    pub(crate) nmi_blocked: bool,
    /// See `ArchEvents::ACCEPTED`.
    pub(crate) accepted: Option<PendingEvent>,
    /// Bits of DR6 for the debug exception that is due at the next instruction boundary.
    pub(crate) pending_db: u64,
    /// The breakpoint conditions that DR7 enables.
    pub(crate) breakpoints: Breakpoints,
    /// The current instruction has taken a branch: valid only while the processor steps.
    pub(crate) branched: bool,
    pub(crate) spin: SpinCount,
    /// Numbers that RDRAND has generated.
    pub(crate) random_numbers: u64,
    /// Guest-physical pages whose decoded code is stale (see `VmmRequests::INVALIDATE_CODE`).
    pub(crate) invalid_pages: Vec<u64>,
    pub(crate) platform: Arc<dyn Platform>,
    pub(crate) signals: Arc<Signals>,
    pub(crate) model: &'static Model,
    pub(crate) topology: Topology,
}

impl std::fmt::Debug for Cpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cpu")
            .field("gpr", &format_args!("{:x?}", &self.gpr[..16]))
            .field("rip", &format_args!("{:#x}", self.rip))
            .field("rflags", &format_args!("{:#x}", self.rflags()))
            .field("cpl", &self.cpl)
            .field("fault", &self.fault)
            .field("sys", &self.sys)
            .finish_non_exhaustive()
    }
}

impl Cpu {
    /// A processor of `model` in the state `ArchState::default()`. That is no architectural reset
    /// state: load one with [`Cpu::load_state`].
    pub fn new(
        model: &'static Model,
        ram: GuestRam,
        platform: Arc<dyn Platform>,
        signals: Arc<Signals>,
    ) -> Self {
        let mut cpu = Self {
            tlb: Tlb::new(),
            window: MappedWindow::default(),
            jump_keys: JumpKeys::default(),
            gpr: [0; reg::COUNT],
            rip: 0,
            flags: Lazy::default(),
            eflags: 0,
            privilege: Privilege::Supervisor,
            cpl: 0,
            recording: false,
            meter: Meter::default(),
            signal_mask: 0,
            icount: 0,
            limit: 0,
            run_limit: 0,
            pending_work: PendingWork::default(),
            device_aborts: false,
            code_size: CodeSize::Bits64,
            linear_mask: u64::MAX,
            code_segment: (0, u32::MAX),
            generation: 1,
            global_generation: 1,
            jumped: PageFilter::default(),
            fault: Fault::None,
            ram,
            recorder: Recorder::new(model.microarchitecture),
            armed: false,
            log: None,
            stops: None,
            watched_range: WatchedRange::default(),
            pmu: Box::new(Pmu::new(model)),
            ds_page: NO_PAGE,
            seg: [SegmentRegister::default(); 6],
            sys: SystemState::default(),
            msr: MsrState::default(),
            x87: X87State::default(),
            xmm: [0; 16],
            ymm_high: [0; 16],
            mxcsr: 0x1F80,
            clock: Clock::Instructions,
            tsc_offset: 0,
            skipped: 0,
            nmi_blocked: false,
            accepted: None,
            pending_db: 0,
            breakpoints: Breakpoints::default(),
            branched: false,
            spin: SpinCount::default(),
            random_numbers: 0,
            invalid_pages: Vec::new(),
            platform,
            signals,
            model,
            topology: Topology::default(),
        };
        cpu.load_state(&ArchState {
            mxcsr: 0x1F80,
            ..ArchState::default()
        });
        cpu
    }

    /// The machine around the processor.
    pub fn platform(&self) -> &dyn Platform {
        &*self.platform
    }

    /// Guest memory.
    pub fn ram(&self) -> &GuestRam {
        &self.ram
    }

    /// The lines into the processor.
    pub fn signals(&self) -> &Arc<Signals> {
        &self.signals
    }

    /// Makes this one of several processors, before it runs.
    pub fn set_topology(&mut self, topology: Topology) {
        self.topology = topology;
    }

    /// The model.
    pub fn model(&self) -> &'static Model {
        self.model
    }
}
