//! Debug registers: breakpoints, watchpoints, single-stepping (SDM Vol. 3B 17.2, 17.3).

use crate::insn::Abort;
use crate::mmu::access::Access;
use crate::processor::cpu::Cpu;
use crate::processor::interrupt::{Event, Source};
use crate::processor::pending_work::ArchEvents;
use crate::state::vector;
use crate::state::{SystemState, cr4, dr6, dr7};

/// The accesses that a breakpoint condition matches: the R/W field of DR7.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Execute,
    Write,
    ReadWrite,
}

/// An enabled breakpoint condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Breakpoint {
    la: u64,
    len: u64,
    kind: Kind,
}

impl Breakpoint {
    fn overlaps(&self, la: u64, len: u64) -> bool {
        la < self.la.saturating_add(self.len) && self.la < la.saturating_add(len)
    }

    fn hit_by(&self, access: Access) -> bool {
        match self.kind {
            Kind::Execute => false,
            Kind::Write => access == Access::Write,
            Kind::ReadWrite => access != Access::Execute,
        }
    }
}

/// The enabled breakpoint conditions, by register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Breakpoints([Option<Breakpoint>; 4]);

impl Breakpoints {
    fn new(sys: &SystemState) -> Self {
        let mut result = Self::default();
        for (i, slot) in result.0.iter_mut().enumerate() {
            // Local and global enables differ only in task switches, which clear the local ones.
            if sys.dr7 >> (2 * i) & 3 == 0 {
                continue;
            }
            let control = sys.dr7 >> (16 + 4 * i);
            let len = [1, 2, 8, 4][(control >> 2 & 3) as usize];
            let kind = match control & 3 {
                0 => Kind::Execute,
                1 => Kind::Write,
                3 => Kind::ReadWrite,
                // I/O breakpoints need CR4.DE, and match no memory access.
                _ => continue,
            };
            // The low bits of an address that is not aligned to its length are ignored (17.2.5).
            *slot = Some(Breakpoint {
                la: sys.dr[i] & !(len - 1),
                len,
                kind,
            });
        }
        result
    }

    fn data(&self) -> [Option<Breakpoint>; 4] {
        self.0.map(|b| b.filter(|b| b.kind != Kind::Execute))
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Cpu {
    /// Updates what depends on the debug registers.
    #[inline]
    pub(crate) fn update_breakpoints(&mut self) {
        if self.sys.dr7 & 0xFF != 0 || !self.breakpoints.is_empty() {
            self.set_breakpoints(Breakpoints::new(&self.sys));
        }
    }

    #[cold]
    fn set_breakpoints(&mut self, new: Breakpoints) {
        let old = std::mem::replace(&mut self.breakpoints, new);
        // One instruction at a time: a watchpoint traps right after the instruction that hits it.
        self.pending_work
            .set(ArchEvents::BREAKPOINT, !new.is_empty());
        if old.data() != new.data() {
            // A watched page is never entered into the TLB, so that each access to it is seen.
            self.flush_tlb(false);
        }
    }

    /// Whether RIP is at an instruction breakpoint.
    pub(crate) fn at_breakpoint(&self) -> bool {
        self.instruction_hits() != 0
    }

    fn instruction_hits(&self) -> u64 {
        let la = self.linear_ip(self.rip);
        self.hits(|b| b.kind == Kind::Execute && b.la == la)
    }

    fn hits(&self, f: impl Fn(&Breakpoint) -> bool) -> u64 {
        let bits = self.breakpoints.0.iter().enumerate();
        bits.filter(|(_, b)| b.as_ref().is_some_and(&f))
            .map(|(i, _)| 1 << i)
            .sum()
    }

    /// Whether accesses to the page of `la` have to be compared with breakpoints.
    pub(crate) fn watched(&self, la: u64, access: Access) -> bool {
        self.hits(|b| b.hit_by(access) && b.overlaps(la & !0xFFF, 0x1000)) != 0
    }

    /// Compares an access of `len` bytes at `la` with the breakpoints, and with the watchpoints of
    /// a debugger. A match with one of the former traps after the instruction (17.3.1.2).
    pub(crate) fn watch(&mut self, la: u64, len: usize, access: Access) {
        if self.stops.is_some() {
            self.note_access(la, len, access);
        }
        let hits = self.hits(|b| b.hit_by(access) && b.overlaps(la, len as u64));
        if hits != 0 {
            self.pending_db |= hits;
            self.pending_work.insert(ArchEvents::DEBUG);
        }
    }

    /// Whether RFLAGS.TF does not trap after the instruction that has just completed: it was MOV SS
    /// or POP SS (SDM Vol. 3A 6.8.3), SYSCALL or INT n, which cleared TF, or no branch while
    /// DEBUGCTL.BTF is set.
    pub(crate) fn trap_suppressed(&self) -> bool {
        self.pending_work
            .intersects(ArchEvents::HOLD_TRAP | ArchEvents::NO_STEP)
            || (!self.branched && self.recorder.steps_on_branches())
    }

    /// Delivers the debug exceptions in `pending_db` as a trap.
    pub(crate) fn raise_debug_trap(&mut self) {
        let causes = std::mem::take(&mut self.pending_db);
        self.raise_debug(causes);
    }

    /// Drops the debug trap that is due after this instruction. Delivery of an exception drops it;
    /// delivery of INT n, INT3 or INTO does not (SDM Vol. 3C 26.7.3).
    pub(crate) fn drop_debug_trap(&mut self) {
        self.pending_db = 0;
        self.pending_work.remove(ArchEvents::DEBUG);
    }

    /// Delivers #DB for the instruction breakpoint at RIP: a fault, but one whose image of RF is
    /// clear; the handler sets it to go on (17.3.1.1).
    pub(crate) fn raise_breakpoint_fault(&mut self) {
        self.raise_debug(self.instruction_hits());
    }

    /// Prepares the delivery of #DB for `causes`. In DR6 they replace the breakpoint conditions of
    /// an earlier one, and are added to the other causes (17.2.3).
    fn enter_debug_exception(&mut self, causes: u64) {
        self.sys.dr6 = self.sys.dr6 & !dr6::BREAKPOINTS | causes;
        self.prepare_debug_handler();
    }

    /// Clears what would disturb the handler of #DB. TR, and with it branch tracing, stays on
    /// (17.4.2).
    pub(crate) fn prepare_debug_handler(&mut self) {
        self.sys.dr7 &= !dr7::GD;
        self.recorder.clear_on_debug_exception();
    }

    fn raise_debug(&mut self, causes: u64) {
        self.enter_debug_exception(causes);
        // It ends HLT, as an interrupt does.
        self.pending_work.remove(ArchEvents::HALTED);
        self.raise(Event {
            vector: vector::DB,
            error: None,
            source: Source::Exception,
            resume: false,
            return_ip: self.rip,
            from: self.rip,
        });
    }

    /// Resolves the number of a debug register, and checks that the program may access it.
    fn debug_register(&mut self, n: u8) -> Result<usize, Abort> {
        let n = match n {
            4 | 5 if self.sys.cr4 & cr4::DE == 0 => n + 2,
            0..=3 | 6 | 7 => n,
            _ => return Err(self.ud()),
        };
        self.require_cpl0()?;
        if self.sys.dr7 & dr7::GD != 0 {
            self.enter_debug_exception(dr6::BD);
            return Err(self.exception(vector::DB, None));
        }
        Ok(n.into())
    }

    /// MOV from a debug register.
    pub(crate) fn read_dr(&mut self, n: u8) -> Result<u64, Abort> {
        Ok(match self.debug_register(n)? {
            6 => self.sys.dr6 & dr6::WRITABLE | dr6::FIXED,
            7 => self.sys.dr7 & dr7::WRITABLE | dr7::FIXED,
            n => self.sys.dr[n & 3],
        })
    }

    /// MOV to a debug register.
    pub(crate) fn write_dr(&mut self, n: u8, value: u64) -> Result<(), Abort> {
        let n = self.debug_register(n)?;
        if n >= 6 && value >> 32 != 0 {
            return Err(self.gp(0));
        }
        match n {
            6 => self.sys.dr6 = value & dr6::WRITABLE | dr6::FIXED,
            7 => self.sys.dr7 = value & dr7::WRITABLE | dr7::FIXED,
            n => self.sys.dr[n & 3] = value,
        }
        self.update_breakpoints();
        Ok(())
    }
}
