//! Places at which the processor returns to the VMM for a debugger: breakpoints, watchpoints, and
//! entries to and exits from user mode in an address space.
//!
//! The guest cannot observe them: its memory, its time and its instruction counts stay the same.
//!
//! - A **breakpoint** is compared at each look-up of a block, as a probe of a log is
//!   ([`probes`](crate::processor::branch_log)). Blocks end in front of it. One that begins with it
//!   is looked up at each jump, and its first instruction runs alone, in the interpreter.
//! - A **watchpoint** keeps the TLB entries of its pages, for the accesses that it watches, from
//!   the fast path of the interpreter and of native code alike. An access to the page that does
//!   not touch the watched bytes is made at the start of the slow path, or by native code itself
//!   if it is outside of `WatchedRange`, and native code goes on. One that does aborts its block,
//!   so that the instruction runs alone and the processor stops at its end.
//!
//! An access by a device, or by the kernel through another linear address, is not seen.

use std::collections::BTreeSet;

use crate::insn::Abort;
use crate::mmu::access::{Access, Privilege};
use crate::mmu::paging;
use crate::processor::cpu::Cpu;
use crate::processor::fault::Fault;
use crate::processor::pending_work::VmmRequests;
use crate::state::{SystemState, gpr};

/// Faults of instructions at breakpoints that are remembered: one for each thread of a process that
/// waits for its page, so far more than are used.
const MAX_FAULTS: usize = 1024;

/// Accesses that a [`Watchpoint`] stops at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchKind {
    /// Writes.
    Write,
    /// Reads.
    Read,
    /// Reads and writes.
    Access,
}

impl WatchKind {
    fn matches(self, access: Access) -> bool {
        match access {
            Access::Read => self != Self::Write,
            Access::Write => self != Self::Read,
            Access::Execute => false,
        }
    }
}

/// An address at which the processor stops before the instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Breakpoint {
    /// Linear address of an instruction.
    pub address: u64,
    /// The address space, as CR3 without a PCID; `None` for all.
    pub space: Option<u64>,
}

/// Memory at whose access the processor stops, at the end of the instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watchpoint {
    /// Linear address of the first byte.
    pub address: u64,
    /// Number of bytes, at least 1.
    pub len: u64,
    /// The accesses.
    pub kind: WatchKind,
    /// The address space, as CR3 without a PCID; `None` for all.
    pub space: Option<u64>,
}

impl Watchpoint {
    /// Returns whether the watched bytes and the `len` bytes at `la` overlap. Neither wraps around.
    fn overlaps(&self, la: u64, len: u64) -> bool {
        la < self.address.saturating_add(self.len) && self.address < la.saturating_add(len)
    }
}

/// The smallest range of addresses that has the bytes of all watchpoints. An access outside of it
/// needs no comparison with each of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct WatchedRange {
    /// Linear address of the first byte.
    pub start: u64,
    /// Number of bytes.
    pub len: u64,
}

impl WatchedRange {
    /// The range of `watchpoints`.
    fn of(watchpoints: &[Watchpoint]) -> Self {
        let start = watchpoints.iter().map(|w| w.address).min();
        let end = watchpoints.iter().map(|w| w.address.saturating_add(w.len));
        let (start, end) = (start.unwrap_or_default(), end.max().unwrap_or_default());
        Self {
            start,
            len: end - start,
        }
    }
}

/// Places and accesses at which a processor stops for a debugger.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopPoints {
    /// The breakpoints.
    pub breakpoints: Vec<Breakpoint>,
    /// The watchpoints.
    pub watchpoints: Vec<Watchpoint>,
    /// The address space, as CR3 without a PCID, in which the processor stops at the first
    /// instruction of each stay in user mode (CPL 3), and behind its last one.
    pub user_mode_of: Option<u64>,
}

impl StopPoints {
    /// Returns whether the processor stops nowhere.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Why the processor has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopCause {
    /// The instruction at RIP has a breakpoint.
    Breakpoint {
        /// Linear address.
        address: u64,
    },
    /// The last instruction, or the delivery of an event, has accessed watched memory.
    Watchpoint {
        /// The watchpoint.
        watchpoint: Watchpoint,
        /// The access was a write.
        is_write: bool,
        /// RIP of the instruction.
        rip: u64,
    },
    /// The processor has entered user mode.
    EntersUserMode,
    /// The processor has left user mode.
    LeavesUserMode,
}

/// Stop points with what has happened at them.
#[derive(Debug)]
pub(crate) struct ActiveStops {
    points: StopPoints,
    /// Instructions retired at the last breakpoint, or where a run began: no breakpoint is hit
    /// there a second time.
    passed: u64,
    /// Causes of the stop that is due.
    causes: Vec<StopCause>,
    /// Address space, RIP and RSP of instructions with a breakpoint that have faulted after they
    /// were stopped at. They begin a second time, which is no second hit.
    faulted: Vec<(u64, u64, u64)>,
    /// The processor was at CPL 3.
    in_user_mode: bool,
    /// Guest-physical numbers of pages with a breakpoint that have executed since the stop points
    /// were set.
    entered: BTreeSet<u64>,
}

/// Returns whether stop points in `space` apply to the address space `cr3`.
fn applies(space: Option<u64>, cr3: u64) -> bool {
    space.is_none_or(|space| space == cr3)
}

impl Cpu {
    /// Replaces the stop points. The engine has to look blocks up again.
    pub(crate) fn set_stop_points(&mut self, points: StopPoints) {
        self.watched_range = WatchedRange::of(&points.watchpoints);
        self.stops = (!points.is_empty()).then(|| {
            Box::new(ActiveStops {
                points,
                passed: u64::MAX,
                causes: Vec::new(),
                faulted: self.stops.take().map_or_else(Vec::new, |old| old.faulted),
                in_user_mode: self.cpl == 3,
                entered: BTreeSet::new(),
            })
        });
        self.update_watched_pages();
        self.pending_work.remove(VmmRequests::STOP);
        self.new_generation();
    }

    /// Keeps the TLB's entries of pages with a watchpoint from the fast path, and no others.
    pub(crate) fn update_watched_pages(&mut self) {
        let stops = self.stops.as_deref();
        self.tlb
            .update_watched(|la, access| stops.is_some_and(|stops| stops.watches_page(la, access)));
    }

    /// Begins to run from here: a breakpoint at RIP is not hit before the processor comes back.
    pub fn leave_stop(&mut self) {
        let (passed, in_user_mode) = (self.icount, self.cpl == 3);
        if let Some(stops) = &mut self.stops {
            stops.passed = passed;
            stops.in_user_mode = in_user_mode;
            stops.causes.clear();
            self.pending_work.remove(VmmRequests::STOP);
        }
    }

    /// Forgets which instructions have faulted at breakpoints: the program goes on elsewhere.
    pub fn forget_faults(&mut self) {
        if let Some(stops) = &mut self.stops {
            stops.faulted.clear();
        }
    }

    /// Takes the causes of the last [`Exit::Stop`](crate::Exit::Stop).
    pub fn take_stop_causes(&mut self) -> Vec<StopCause> {
        let stops = self.stops.as_mut();
        stops.map_or_else(Vec::new, |stops| std::mem::take(&mut stops.causes))
    }

    /// Returns whether the page of the instruction at `la` has a breakpoint, in any address space.
    #[inline]
    pub(crate) fn has_breakpoint_near(&self, la: u64) -> bool {
        let page = |address: u64| address >> 12 == la >> 12;
        self.stops.as_ref().is_some_and(|stops| {
            let mut breakpoints = stops.points.breakpoints.iter();
            breakpoints.any(|b| page(b.address))
        })
    }

    /// Notes that code of the page of `gpa`, which has a breakpoint, is executed. Returns whether
    /// it is so for the first time since the stop points were set.
    pub(crate) fn enter_breakpoint_page(&mut self, gpa: u64) -> bool {
        let stops = self.stops.as_mut();
        stops.is_some_and(|stops| stops.entered.insert(gpa >> 12))
    }

    /// Returns whether one of the `len` bytes from `la` on has a breakpoint, in any address space.
    pub(crate) fn has_any_breakpoint_in(&self, la: u64, len: u64) -> bool {
        self.first_breakpoint_in(la, len).is_some()
    }

    /// The distance from `la` of the first of the `len` bytes from there on that has a breakpoint,
    /// in any address space.
    pub(crate) fn first_breakpoint_in(&self, la: u64, len: u64) -> Option<u64> {
        let breakpoints = self.stops.as_ref()?.points.breakpoints.iter();
        let distances = breakpoints.map(|b| b.address.wrapping_sub(la));
        distances.filter(|distance| *distance < len).min()
    }

    /// Returns whether one of the `len` bytes from `la` on has a breakpoint in this address space.
    pub(crate) fn has_breakpoint_in(&self, la: u64, len: u64) -> bool {
        let cr3 = self.address_space();
        self.stops.as_ref().is_some_and(|stops| {
            let mut breakpoints = stops.points.breakpoints.iter();
            breakpoints.any(|b| applies(b.space, cr3) && b.address.wrapping_sub(la) < len)
        })
    }

    /// Stops at the breakpoint at the instruction of linear address `la`, if there is one that is
    /// not passed. Returns whether there is one.
    pub(crate) fn pass_breakpoint(&mut self, la: u64) -> bool {
        if !self.has_breakpoint_in(la, 1) {
            return false;
        }
        let (now, key) = (self.icount, self.fault_key(la));
        if let Some(stops) = &mut self.stops
            && stops.passed != now
        {
            stops.passed = now;
            if let Some(at) = stops.faulted.iter().position(|fault| *fault == key) {
                stops.faulted.swap_remove(at);
            } else {
                stops.causes.push(StopCause::Breakpoint { address: la });
                self.pending_work.insert(VmmRequests::STOP);
            }
        }
        true
    }

    /// Remembers that the instruction at RIP faults, if it has a breakpoint that was hit. One whose
    /// fetch faults has not been hit.
    pub(crate) fn note_fault(&mut self) {
        let la = self.linear_ip(self.rip);
        if self.stops.is_some() && self.has_breakpoint_in(la, 1) {
            let (now, key) = (self.icount, self.fault_key(la));
            if let Some(stops) = &mut self.stops
                && stops.passed == now
                && stops.faulted.len() < MAX_FAULTS
            {
                stops.faulted.push(key);
            }
        }
    }

    fn fault_key(&self, la: u64) -> (u64, u64, u64) {
        (self.address_space(), la, self.gpr[gpr::RSP])
    }

    /// Returns whether accesses of this kind to the page of `la` have to be compared with
    /// watchpoints.
    pub(crate) fn is_watched(&self, la: u64, access: Access) -> bool {
        let stops = self.stops.as_ref();
        stops.is_some_and(|stops| stops.watches_page(la, access))
    }

    /// Returns the host address of `la` if its page has a watchpoint and the access of `size` bytes
    /// touches no watched byte. The access is then allowed, and lies in one page of RAM that is not
    /// write-tracked.
    #[inline]
    pub(crate) fn beside_watchpoints(
        &self,
        la: u64,
        size: usize,
        access: Access,
    ) -> Option<*mut u8> {
        let stops = self.stops.as_deref()?;
        let host = self.tlb.find_watched(la, size, access)?;
        let mut watchpoints = stops.points.watchpoints.iter();
        let is_beside = watchpoints.all(|w| !w.overlaps(la, size as u64));
        is_beside.then_some(host)
    }

    /// Aborts an instruction that accesses watched memory, unless it runs alone.
    #[inline]
    pub(crate) fn check_watchpoints(
        &mut self,
        la: u64,
        len: usize,
        access: Access,
    ) -> Result<(), Abort> {
        let is_hit = self.device_aborts
            && self.stops.is_some()
            && self.hit_watchpoint(la, len, access).is_some();
        match is_hit {
            true => Err(self.abort(Fault::Device)),
            false => Ok(()),
        }
    }

    /// Stops after this instruction if it accesses watched memory.
    pub(crate) fn note_access(&mut self, la: u64, len: usize, access: Access) {
        let Some(watchpoint) = self.hit_watchpoint(la, len, access) else {
            return;
        };
        let rip = self.rip;
        if let Some(stops) = &mut self.stops {
            let cause = StopCause::Watchpoint {
                watchpoint,
                is_write: access == Access::Write,
                rip,
            };
            if !stops.causes.contains(&cause) {
                stops.causes.push(cause);
            }
            self.pending_work.insert(VmmRequests::STOP);
        }
    }

    fn hit_watchpoint(&self, la: u64, len: usize, access: Access) -> Option<Watchpoint> {
        let stops = self.stops.as_ref()?;
        let cr3 = self.address_space();
        let mut watchpoints = stops.points.watchpoints.iter();
        watchpoints
            .find(|w| w.kind.matches(access) && w.overlaps(la, len as u64) && applies(w.space, cr3))
            .copied()
    }

    /// Stops if CPL has changed to 3 or from it in the address space of which the debugger wants to
    /// know.
    pub(crate) fn update_user_mode_stop(&mut self) {
        let cr3 = self.address_space();
        let in_user_mode = self.cpl == 3;
        let Some(stops) = &mut self.stops else {
            return;
        };
        let changed = std::mem::replace(&mut stops.in_user_mode, in_user_mode) != in_user_mode;
        if changed && stops.points.user_mode_of == Some(cr3) {
            stops.causes.push(match in_user_mode {
                true => StopCause::EntersUserMode,
                false => StopCause::LeavesUserMode,
            });
            self.pending_work.insert(VmmRequests::STOP);
        }
    }

    /// Reads memory at `la` in the address space of `cr3`, which the guest does not observe. Paging
    /// is otherwise as it is now. Returns whether all of the bytes are RAM.
    pub fn read_in(&self, cr3: u64, la: u64, bytes: &mut [u8]) -> bool {
        self.read_with(&self.in_space(cr3), la, bytes)
    }

    /// The guest-physical address of `la` in the address space of `cr3`, as for
    /// [`Self::translate_quietly`].
    pub fn translate_in(&self, cr3: u64, la: u64) -> Option<u64> {
        paging::peek(&self.ram, &self.in_space(cr3), la)
    }

    /// The guest-physical address of `la` in the address space of `cr3`, if a program may write
    /// there without a page fault. The page is marked as written, which the guest can observe.
    pub fn translate_write_in(&self, cr3: u64, la: u64) -> Option<u64> {
        let sys = self.in_space(cr3);
        let walk = paging::walk(&self.ram, &sys, la, Access::Write, Privilege::User);
        walk.ok().map(|walk| walk.gpa)
    }

    fn in_space(&self, cr3: u64) -> SystemState {
        SystemState {
            cr3,
            ..self.sys.clone()
        }
    }
}

impl ActiveStops {
    /// Returns whether accesses by an entry of the TLB for the page of `la` take the slow path. An
    /// entry for writes also does if reads are watched: native code reads by it what it then
    /// writes.
    fn watches_page(&self, la: u64, access: Access) -> bool {
        let mut watchpoints = self.points.watchpoints.iter();
        watchpoints.any(|w| {
            w.overlaps(la & !0xFFF, 0x1000) && (access == Access::Write || w.kind.matches(access))
        })
    }
}
