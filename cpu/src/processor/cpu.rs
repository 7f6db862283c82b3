//! The processor: its registers, and the helpers that instructions are written with.

use std::sync::Arc;

use bitflags::bitflags;
use vbts_bts::Recorder;

use crate::insn::{Abort, CodeSize, Exec, Flow, Insn, operand, reg};
use crate::mmu::access::Privilege;
use crate::mmu::code_map::CodeMap;
use crate::mmu::paging;
use crate::mmu::ram::GuestRam;
use crate::mmu::tlb::{Hit, PageFilter, Tlb};
use crate::model::{Model, Topology};
use crate::processor::branch_trace::{NO_PAGE, Window};
use crate::processor::clock::{Clock, HostClock};
use crate::processor::debug::{Breakpoints, DEBUGCTL_BTF, DR6_ONES, DR7_ONES};
use crate::processor::jump_keys::JumpKeys;
use crate::processor::platform::{Platform, Signals};
use crate::processor::pmu::Pmu;
use crate::processor::spin::SpinDetector;
use crate::processor::usage::Meter;
use crate::state::flags::{Int, Lazy};
use crate::state::vector;
use crate::state::{
    ArchState, MsrState, PendingEvent, SegAttr, SystemState, X87State, cr0, efer, rflags,
};

/// Why an instruction did not complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    /// Nothing: the last instruction completed.
    #[default]
    None,
    /// An exception, with its error code if it has one.
    Exception {
        /// Vector.
        vector: u8,
        /// Error code.
        error: Option<u32>,
    },
    /// A page fault.
    Page {
        /// Linear address, for CR2.
        la: u64,
        /// Error code.
        error: u32,
    },
    /// A linear address is not canonical: #SS(0) if it was relative to SS, else #GP(0).
    NonCanonical,
    /// The write would change code that has been decoded: forget it, then run the instruction
    /// again.
    CodeWrite {
        /// Guest-physical address of the write.
        gpa: u64,
    },
    /// An instruction fetch from an address that is not RAM.
    Unexecutable,
    /// An event could not be delivered and a double fault could not either: shutdown.
    TripleFault,
}

bitflags! {
    /// Reasons to leave the fast path between two blocks.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct PendingWork: u32 {
        /// RFLAGS.TF: trap after each instruction.
        const TRAP = 1 << 8;
        /// STI, MOV SS or POP SS: hold interrupts for one instruction.
        const SHADOW = 1 << 9;
        /// A debug exception is pending (`pending_db`).
        const DEBUG = 1 << 10;
        /// A breakpoint or watchpoint is enabled.
        const BREAKPOINT = 1 << 11;
        /// HLT.
        const HALTED = 1 << 12;
        /// Decoded code was invalid_pages by something that is not an instruction's own store.
        const INVALIDATE = 1 << 13;
        /// Shutdown after a triple fault.
        const SHUTDOWN = 1 << 14;
        /// The machine may have changed: deadlines, DMA.
        const BUS = 1 << 15;
        /// RFLAGS.RF: no instruction breakpoint for one instruction.
        const RESUME = 1 << 16;
        /// MOV SS or POP SS: no debug trap after it, and no instruction breakpoint on the next
        /// instruction.
        const HOLD_TRAP = 1 << 17;
        /// SYSCALL or INT n has cleared TF: no single-step trap after it.
        const NO_STEP = 1 << 18;
        /// An interrupt or NMI has been accepted and is to be delivered (`accepted`).
        const ACCEPTED = 1 << 19;
        /// What has run so far has to be counted: CPL has changed, or the counters are to be
        /// frozen.
        const EVENTS = 1 << 21;
        /// Other processors and devices may have changed code, and the processor has to notice (SDM
        /// Vol. 3A 8.1.3).
        const SERIALIZE = 1 << 20;
        /// The processor seems to wait for another, which should run.
        const SPINS = 1 << 22;
    }
}

/// A logical processor.
///
/// Handlers use its fields directly; whoever changes CS, CPL, CR0, CR4, EFER, RFLAGS.AC, DEBUGCTL
/// or a segment calls [`Cpu::update_mode`] afterwards.
pub struct Cpu {
    /// RAX..R15 as instructions encode them, then the pseudo registers of [`reg`]. As many as need
    /// no check of the number.
    pub gpr: [u64; reg::COUNT],
    /// Instruction pointer; within a block, that of the block's end or of the jump that left it.
    pub rip: u64,
    /// Arithmetic flags.
    pub flags: Lazy,
    /// RFLAGS but for the arithmetic flags.
    pub(crate) eflags: u64,
    /// Privilege of data accesses now.
    pub(crate) privilege: Privilege,
    /// Current privilege level.
    pub cpl: u8,
    /// 64-bit mode (CS.L), else compatibility mode.
    pub(crate) code64: bool,
    /// Taken branches at this CPL have to be seen: to be recorded, or to be stepped on.
    pub(crate) recording: bool,
    pub(crate) meter: Meter,
    /// [`Signals`] that can be taken now.
    pub(crate) signal_mask: u32,
    /// Instructions retired up to the start of the current block. An exception counts for one, too,
    /// and a repeated string instruction for as many as it took turns with what is pending.
    pub(crate) icount: u64,
    /// The run loop leaves the fast path at the first block boundary at which `icount` has reached
    /// this.
    pub(crate) limit: u64,
    /// The run loop returns when `icount` has reached this.
    pub(crate) run_limit: u64,
    /// See [`PendingWork`].
    pub(crate) pending_work: PendingWork,
    /// Default operand and address size of the code segment.
    pub(crate) code_size: CodeSize,
    /// Bits of a linear address: 32 outside IA-32e mode.
    pub(crate) linear_mask: u64,
    /// Base and limit of the last code segment that was not one of 64-bit code.
    code_segment: (u64, u32),
    /// Bumped whenever an instruction pointer may lead to other code than before.
    generation: u64,
    /// The same for one in a global page of the upper half.
    global_generation: u64,
    /// See `update_jump_keys`.
    pub(crate) jump_keys: JumpKeys,
    /// Pages of the lower half to which jumps have been remembered in this generation.
    jumped: PageFilter,
    /// Why the last [`Abort`] happened.
    pub fault: Fault,
    pub(crate) tlb: Tlb,
    pub(crate) ram: GuestRam,
    pub(crate) code_map: CodeMap,
    pub(crate) recorder: Recorder,
    /// Out of the way of what every instruction touches.
    pub(crate) pmu: Box<Pmu>,
    /// See [`Window`].
    pub(crate) window: Window,
    /// Guest-physical page of the DS area that the window was last opened in; [`NO_PAGE`] before.
    pub(crate) ds_page: u64,
    /// Segments, tables, control and debug registers.
    pub sys: SystemState,
    /// MSRs.
    pub msr: MsrState,
    /// x87 and MMX registers.
    pub x87: X87State,
    /// XMM0-XMM15.
    pub xmm: [u128; 16],
    /// MXCSR.
    pub mxcsr: u32,
    pub(crate) clock: Clock,
    /// The time-stamp counter minus what [`Clock`] counts: virtual time, or the host's time-stamp
    /// counter.
    pub(crate) tsc_offset: u64,
    /// Virtual time minus instructions retired: what HLT has skipped.
    pub(crate) skipped: u64,
    pub(crate) nmi_blocked: bool,
    /// See [`PendingWork::ACCEPTED`].
    pub(crate) accepted: Option<PendingEvent>,
    /// Bits of DR6 for the debug exception that is due at the next instruction boundary.
    pub(crate) pending_db: u64,
    /// The breakpoint conditions that DR7 enables.
    pub(crate) breakpoints: Breakpoints,
    /// A branch was taken since the last look: kept while the processor steps on branches.
    pub(crate) branched: bool,
    spin: SpinDetector,
    /// Guest-physical pages whose decoded code is stale (see [`PendingWork::INVALIDATE`]).
    pub(crate) invalid_pages: Vec<u64>,
    pub(crate) platform: Arc<dyn Platform>,
    pub(crate) signals: Arc<Signals>,
    pub(crate) model: &'static Model,
    pub(crate) topology: Topology,
    /// Values of the MSRs that are only stored, by position in the MSR table.
    pub(crate) msr_store: Vec<u64>,
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
    /// A processor of `model` in the state `ArchState::default()`, which is no architectural reset
    /// state: load one with [`Cpu::load_state`].
    pub fn new(
        model: &'static Model,
        ram: GuestRam,
        platform: Arc<dyn Platform>,
        signals: Arc<Signals>,
    ) -> Self {
        let code_map = CodeMap::new(ram.end());
        let mut cpu = Self {
            gpr: [0; reg::COUNT],
            rip: 0,
            flags: Lazy::default(),
            eflags: 0,
            privilege: Privilege::Supervisor,
            cpl: 0,
            code64: true,
            recording: false,
            meter: Meter::default(),
            signal_mask: 0,
            icount: 0,
            limit: 0,
            run_limit: 0,
            pending_work: PendingWork::empty(),
            code_size: CodeSize::Bits64,
            linear_mask: u64::MAX,
            code_segment: (0, u32::MAX),
            generation: 1,
            global_generation: 1,
            jump_keys: JumpKeys::default(),
            jumped: PageFilter::default(),
            fault: Fault::None,
            tlb: Tlb::new(),
            ram,
            code_map,
            recorder: Recorder::new(model.microarchitecture),
            pmu: Box::new(Pmu::new(model)),
            window: Window::default(),
            ds_page: NO_PAGE,
            sys: SystemState::default(),
            msr: MsrState::default(),
            x87: X87State::default(),
            xmm: [0; 16],
            mxcsr: 0x1F80,
            clock: Clock::Instructions,
            tsc_offset: 0,
            skipped: 0,
            nmi_blocked: false,
            accepted: None,
            pending_db: 0,
            breakpoints: Breakpoints::default(),
            branched: false,
            spin: SpinDetector::default(),
            invalid_pages: Vec::new(),
            platform,
            signals,
            model,
            topology: Topology::default(),
            msr_store: crate::processor::msr::reset_values(),
        };
        cpu.load_state(&ArchState {
            mxcsr: 0x1F80,
            ..ArchState::default()
        });
        cpu
    }

    /// The machine around it.
    pub fn platform(&self) -> &dyn Platform {
        &*self.platform
    }

    /// The lines into it.
    pub fn signals(&self) -> &Arc<Signals> {
        &self.signals
    }

    /// Makes this one of several processors.
    pub fn set_topology(&mut self, topology: Topology) {
        self.topology = topology;
    }

    // Time

    /// Lets time come from `clock`. The time-stamp counter starts anew, from the clock's value.
    pub fn set_clock(&mut self, clock: Clock) {
        self.clock = clock;
        self.tsc_offset = 0;
    }

    /// Time in nanoseconds: on [`Clock::Instructions`] that of the start of the current block.
    #[inline]
    pub fn now(&self) -> u64 {
        match self.clock {
            Clock::Instructions => self.icount + self.skipped,
            Clock::Host(clock) => clock.now(),
        }
    }

    /// The time-stamp counter, `ahead` instructions into the current block.
    pub(crate) fn tsc(&self, ahead: u8) -> u64 {
        match self.clock {
            Clock::Instructions => self.now() + u64::from(ahead),
            Clock::Host(_) => HostClock::tsc(),
        }
        .wrapping_add(self.tsc_offset)
    }

    /// What [`Clock::Host`]'s guests read as time-stamp counter, minus the host's.
    pub fn tsc_offset(&self) -> u64 {
        self.tsc_offset
    }

    /// Sets [`Self::tsc_offset`].
    pub fn set_tsc_offset(&mut self, offset: u64) {
        self.tsc_offset = offset;
    }

    /// Nanoseconds in so many ticks of the time-stamp counter.
    pub(crate) fn nanoseconds(&self, ticks: u64) -> u64 {
        match self.clock {
            Clock::Instructions => ticks,
            Clock::Host(clock) => clock.nanoseconds(ticks),
        }
    }

    /// Ticks of the time-stamp counter in so many nanoseconds.
    pub(crate) fn ticks(&self, nanoseconds: u64) -> u64 {
        match self.clock {
            Clock::Instructions => nanoseconds,
            Clock::Host(clock) => clock.ticks(nanoseconds),
        }
    }

    /// Instructions retired since the processor was made.
    pub fn instructions(&self) -> u64 {
        self.icount
    }

    // Registers

    /// Reads a general register (for `u8` also [`reg::HIGH8`]).
    #[inline(always)]
    pub fn r<T: Int>(&self, id: u8) -> T {
        if T::BYTES == 1 && id >= reg::HIGH8 {
            return T::from_u64(self.gpr[(id & 3) as usize] >> 8);
        }
        T::from_u64(self.gpr[usize::from(id)])
    }

    /// Writes a general register: 32-bit writes clear the upper half, narrower ones keep the rest.
    #[inline(always)]
    pub fn w<T: Int>(&mut self, id: u8, value: T) {
        let v = value.zext();
        if T::BYTES == 1 && id >= reg::HIGH8 {
            let r = &mut self.gpr[(id & 3) as usize];
            *r = (*r & !0xFF00) | v << 8;
            return;
        }
        let r = &mut self.gpr[usize::from(id)];
        *r = match T::BYTES {
            1 => (*r & !0xFF) | v,
            2 => (*r & !0xFFFF) | v,
            _ => v,
        };
    }

    /// Linear address of the memory operand; for an address operation, what its fields give: the
    /// offset.
    #[inline(always)]
    pub fn ea(&self, insn: &Insn) -> u64 {
        self.ea_of::<{ operand::NONE }>(insn, 0)
    }

    /// The same with the operand `N` passed (see `dispatch`).
    #[inline(always)]
    pub(crate) fn ea_of<const N: u8>(&self, insn: &Insn, passed: u64) -> u64 {
        let part = |n: u8, id: u8| match n == N {
            true => passed,
            false => self.gpr[usize::from(id)],
        };
        part(operand::FIRST, insn.base)
            .wrapping_add(part(operand::SECOND, insn.index).wrapping_mul(insn.scale.into()))
            .wrapping_add(insn.disp as u64)
    }

    /// The first register operand, if `N` says that it has been passed.
    #[inline(always)]
    pub(crate) fn first<const N: u8, T: Int>(&self, id: u8, passed: u64) -> T {
        match N == operand::FIRST {
            true => T::from_u64(passed),
            false => self.r(id),
        }
    }

    /// The second one.
    #[inline(always)]
    pub(crate) fn second<const N: u8, T: Int>(&self, id: u8, passed: u64) -> T {
        match N == operand::SECOND {
            true => T::from_u64(passed),
            false => self.r(id),
        }
    }

    /// Writes the destination register, and returns what is then passed on.
    #[inline(always)]
    pub(crate) fn set<T: Int>(&mut self, id: u8, value: T) -> u64 {
        self.w(id, value);
        value.zext()
    }

    /// Base of a segment as [`Insn::seg`] numbers it.
    #[inline(always)]
    pub(crate) fn seg_base(&self, segment: u8) -> u64 {
        self.gpr[usize::from(reg::SEGMENT + (segment & 7))]
    }

    pub(crate) fn set_seg_base(&mut self, segment: usize, base: u64) {
        self.gpr[usize::from(reg::SEGMENT) + (segment & 7)] = base;
    }

    /// RIP of the instruction itself.
    #[inline(always)]
    pub fn this_rip(&self, insn: &Insn) -> u64 {
        self.gpr[reg::BLOCK as usize].wrapping_add(u64::from(insn.offset))
    }

    /// RIP of the next instruction.
    #[inline(always)]
    pub fn next_rip(&self, insn: &Insn) -> u64 {
        self.gpr[reg::BLOCK as usize].wrapping_add(insn.next_offset())
    }

    /// Ends the block after `insn`, which does not branch: what follows must be decoded or checked
    /// anew.
    #[inline]
    pub fn end_block(&mut self, insn: &Insn) -> Exec {
        self.rip = self.next_rip(insn);
        Ok(Flow::Jump)
    }

    // Flags

    /// RFLAGS.
    pub fn rflags(&self) -> u64 {
        self.eflags | self.flags.bits() | rflags::FIXED
    }

    /// Writes the bits of RFLAGS that are in `mask`.
    pub fn set_rflags(&mut self, value: u64, mask: u64) {
        let old = self.eflags;
        self.put_rflags(value, mask);
        if (old ^ self.eflags) & (rflags::IF | rflags::TF | rflags::AC | rflags::RF) != 0 {
            self.update_mode();
        }
    }

    /// As [`Cpu::set_rflags`], for a caller that is about to call [`Cpu::update_mode`] anyway.
    pub(crate) fn put_rflags(&mut self, value: u64, mask: u64) {
        let new = ((self.rflags() & !mask) | (value & mask)) & rflags::ALL;
        self.flags = Lazy::from_bits(new);
        self.eflags = new & !rflags::ARITH;
    }

    // Events

    /// Records why an instruction does not complete.
    #[cold]
    pub fn abort(&mut self, fault: Fault) -> Abort {
        self.fault = fault;
        Abort
    }

    /// An exception that the instruction raises as a fault.
    #[cold]
    pub fn exception(&mut self, vector: u8, error: Option<u32>) -> Abort {
        self.abort(Fault::Exception { vector, error })
    }

    /// #GP with an error code.
    #[cold]
    pub fn gp(&mut self, error: u32) -> Abort {
        self.exception(vector::GP, Some(error))
    }

    /// #UD.
    #[cold]
    pub fn ud(&mut self) -> Abort {
        self.exception(vector::UD, None)
    }

    /// #GP(0) unless the processor is at CPL 0.
    #[inline]
    pub fn require_cpl0(&mut self) -> Result<(), Abort> {
        if self.cpl == 0 {
            Ok(())
        } else {
            Err(self.gp(0))
        }
    }

    /// Says that the instruction is a serializing one (SDM Vol. 3A 8.3): code that others have
    /// changed is seen after it. Alone, a processor sees all changes at once.
    #[inline]
    pub(crate) fn serialize(&mut self) {
        if self.topology.count > 1 {
            self.pending_work |= PendingWork::SERIALIZE;
        }
    }

    /// PAUSE: other processors are told from here on that this one seems to wait for them, if it
    /// does.
    pub(crate) fn pause(&mut self) {
        if self.topology.count > 1 && self.spin.pause(self.icount) {
            self.pending_work |= PendingWork::SPINS;
        }
    }

    /// Whether something has to be seen to before the next block.
    #[inline(always)]
    pub(crate) fn is_due(&self) -> bool {
        self.icount >= self.limit
            || self.signals.get() & self.signal_mask != 0
            || !self.pending_work.is_empty()
    }

    /// The machine may have changed under the processor: look at it after this block.
    pub(crate) fn after_bus(&mut self) {
        self.pending_work |= PendingWork::BUS;
    }

    // Mode

    /// Recomputes everything that is derived from CS, CPL, CR0, CR4, EFER, RFLAGS and DEBUGCTL.
    pub fn update_mode(&mut self) {
        self.window.close();
        let cs = self.sys.seg[1];
        let ia32e = self.sys.efer & efer::LMA != 0;
        self.linear_mask = if ia32e { u64::MAX } else { 0xFFFF_FFFF };
        self.code64 = ia32e && cs.attr.contains(SegAttr::L);
        if !self.code64 && self.code_segment != (cs.base, cs.limit) {
            self.code_segment = (cs.base, cs.limit);
            self.generation += 1;
            self.global_generation += 1;
        }
        for i in 0..6 {
            let flat = self.code64 && i < 4;
            self.set_seg_base(i, if flat { 0 } else { self.sys.seg[i].base });
        }
        self.privilege = match (
            self.cpl == 3,
            self.eflags & rflags::AC,
            self.sys.cr0 & cr0::AM,
        ) {
            (false, ..) => Privilege::Supervisor,
            (true, 0, _) | (true, _, 0) => Privilege::User,
            _ => Privilege::UserAligned,
        };
        self.tlb.select(self.privilege);
        self.recording = self.wants_branches();
        self.update_meter();
        self.signal_mask = Signals::KICK
            | Signals::INIT
            | Signals::DMA
            | if self.eflags & rflags::IF != 0 {
                Signals::INTR
            } else {
                0
            }
            | if self.nmi_blocked { 0 } else { Signals::NMI };
        self.pending_work
            .set(PendingWork::TRAP, self.eflags & rflags::TF != 0);
        self.pending_work
            .set(PendingWork::RESUME, self.eflags & rflags::RF != 0);
        self.code_size = match (self.code64, cs.attr.contains(SegAttr::DB)) {
            (true, _) => CodeSize::Bits64,
            (false, true) => CodeSize::Bits32,
            (false, false) => CodeSize::Bits16,
        };
        self.update_jump_keys();
        self.update_breakpoints();
        self.update_counted_ring();
    }

    fn update_jump_keys(&mut self) {
        let mode = (self.code_size as u64) << 1 | u64::from(self.cpl == 3);
        self.jump_keys = JumpKeys {
            any: self.generation << 4 | mode,
            global: self.global_generation << 4 | 8 | mode,
        };
    }

    /// What a jump to the linear address `la`, which is translated to `hit`, depends on.
    pub(crate) fn jump_key(&mut self, la: u64, hit: &Hit) -> u64 {
        if !is_upper(la) {
            self.jumped.add(la);
        } else if hit.global {
            return self.jump_keys.global;
        }
        self.jump_keys.any
    }

    /// Linear addresses may lead to other code than before.
    pub(crate) fn new_generation(&mut self) {
        self.global_generation += 1;
        self.new_local_generation();
    }

    /// The same, but not for those in global pages of the upper half.
    fn new_local_generation(&mut self) {
        self.window.close();
        self.jumped = PageFilter::default();
        self.generation += 1;
        self.update_jump_keys();
    }

    /// Forgets translations of linear addresses.
    pub fn flush_tlb(&mut self, keep_global: bool) {
        self.tlb.flush(keep_global);
        if keep_global {
            self.new_local_generation();
        } else {
            self.new_generation();
        }
    }

    /// Forgets the translation of one page.
    pub fn flush_tlb_page(&mut self, la: u64) {
        let large = self.tlb.flush_page(la);
        if is_upper(la) {
            self.new_generation();
        } else if large || self.jumped.may_have(la) {
            self.new_local_generation();
        } else {
            self.window.close();
        }
    }

    /// Whether IA32_DEBUGCTL asks for something at branches: that they are recorded, or
    /// single-stepping from one to the next.
    pub fn watches_branches(&self) -> bool {
        self.recorder.tracing() || self.recorder.debugctl() & DEBUGCTL_BTF != 0
    }

    /// Whether a triple fault has shut the processor down.
    pub fn has_shut_down(&self) -> bool {
        self.pending_work.contains(PendingWork::SHUTDOWN)
    }

    /// Whether the processor executes HLT, and nothing has come to end that.
    pub fn asleep(&self) -> bool {
        let wakes = self.signal_mask & !Signals::DMA;
        self.pending_work.contains(PendingWork::HALTED) && self.signals.get() & wakes == 0
    }

    /// Whether maskable interrupts are taken (RFLAGS.IF).
    pub fn interrupts_on(&self) -> bool {
        self.eflags & rflags::IF != 0
    }

    /// What the PDPTE registers hold after a load of CR3 in the state `sys`, for an accelerator
    /// that does not tell.
    pub fn pdptes(&self, sys: &SystemState) -> [u64; 4] {
        let loaded = paging::is_pae(sys).then(|| paging::pdptes(&self.ram, sys.cr3));
        loaded.flatten().unwrap_or_default()
    }

    /// The model.
    pub fn model(&self) -> &'static Model {
        self.model
    }

    // State

    /// The architectural state, at an instruction boundary.
    pub fn state(&self) -> ArchState {
        let mut gpr = [0; 16];
        gpr.copy_from_slice(&self.gpr[..16]);
        ArchState {
            gpr,
            rip: self.rip,
            rflags: self.rflags(),
            sys: self.sys.clone(),
            msr: MsrState {
                debugctl: self.recorder.debugctl(),
                ds_area: self.recorder.ds_area(),
                ..self.msr.clone()
            },
            x87: self.x87,
            xmm: self.xmm,
            mxcsr: self.mxcsr,
            tsc: self.tsc(0),
            nmi_blocked: self.nmi_blocked,
            interrupt_shadow: self.pending_work.contains(PendingWork::SHADOW),
            halted: self.pending_work.contains(PendingWork::HALTED),
            pending: if self.pending_work.contains(PendingWork::DEBUG) {
                Some(PendingEvent::Debug(self.pending_db))
            } else {
                self.accepted
            },
        }
    }

    /// Loads the architectural state. DEBUGCTL and DS_AREA values that this processor would not
    /// accept are loaded as zero.
    pub fn load_state(&mut self, s: &ArchState) {
        self.gpr[..16].copy_from_slice(&s.gpr);
        self.rip = s.rip;
        self.sys = s.sys.clone();
        self.sys.dr6 |= DR6_ONES;
        self.sys.dr7 |= DR7_ONES;
        self.msr = s.msr.clone();
        if self.recorder.set_debugctl(s.msr.debugctl).is_err() {
            let _ = self.recorder.set_debugctl(0);
        }
        if self.recorder.set_ds_area(s.msr.ds_area).is_err() {
            let _ = self.recorder.set_ds_area(0);
        }
        self.x87 = s.x87;
        self.xmm = s.xmm;
        self.mxcsr = s.mxcsr;
        // The host's counter goes on by itself.
        if matches!(self.clock, Clock::Instructions) {
            self.tsc_offset = s.tsc.wrapping_sub(self.now());
        }
        self.nmi_blocked = s.nmi_blocked;
        self.pending_work &= PendingWork::INVALIDATE;
        self.pending_work
            .set(PendingWork::SHADOW, s.interrupt_shadow);
        self.pending_work.set(PendingWork::HALTED, s.halted);
        (self.pending_db, self.accepted) = (0, None);
        match s.pending {
            Some(PendingEvent::Debug(causes)) => {
                self.pending_db = causes;
                self.pending_work |= PendingWork::DEBUG;
            }
            Some(event) => {
                self.accepted = Some(event);
                self.pending_work |= PendingWork::ACCEPTED;
            }
            None => {}
        }
        self.set_rflags(s.rflags, !0);
        self.cpl = if s.sys.cr0 & cr0::PE == 0 {
            0
        } else {
            s.sys.seg[2].dpl()
        };
        self.load_counters();
        self.flush_tlb(false);
        self.update_mode();
    }
}

/// Whether a linear address is in the upper half of the canonical ones.
fn is_upper(la: u64) -> bool {
    (la as i64) < 0
}
