//! A machine on which a small program runs with many page tables, and what must come of each run.

use super::{
    A, D, FRAME, LA, LARGE_FRAME, NEW, NX, OFFSET, OLD, PD, PDPT, PS, PT, Size, U, W, error,
};
use crate::common::records::{ALL, Transfer, records_at};
use crate::common::{
    BTS_BUFFER, DS_AREA, Guest, KERNEL, KERNEL_STACK, USER, USER_STACK, handler, segment, selector,
};
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use vbts_bts::DebugCtl;
use vbts_cpu::state::gpr::{RAX, RBX, RSP};
use vbts_cpu::state::vector::{PF, UD};
use vbts_cpu::state::{ArchState, cr0, efer};
use vbts_testkit::processor::stride;

/// What the program does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    Read,
    Write,
    Fetch,
}

/// What it does, and what the processor lets it do.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setting {
    pub(super) act: Act,
    pub(super) cpl: u8,
    pub(super) wp: bool,
    pub(super) nxe: bool,
}

impl Setting {
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let acts = [Act::Read, Act::Write, Act::Fetch];
        acts.into_iter().flat_map(|act| {
            [0, 3].into_iter().flat_map(move |cpl| {
                (0..4).map(move |bits| Self {
                    act,
                    cpl,
                    wp: bits & 1 != 0,
                    nxe: bits & 2 != 0,
                })
            })
        })
    }

    /// The error code of a fault with some of P and RSVD.
    pub(super) fn error(self, bits: u64) -> u64 {
        let write = if self.act == Act::Write { error::W } else { 0 };
        let user = if self.cpl == 3 { error::U } else { 0 };
        let fetch = if self.act == Act::Fetch && self.nxe {
            error::I
        } else {
            0
        };
        bits | write | user | fetch
    }

    /// The error code of an access with the rights of all entries together, or `None` if they allow
    /// it (SDM Vol. 3A 4.6).
    pub(super) fn fault(self, entries: &[u64]) -> Option<u64> {
        let every = |bit| entries.iter().all(|e| e & bit != 0);
        let no_execute = entries.iter().any(|e| e & NX != 0);
        if no_execute && !self.nxe {
            return Some(self.error(error::P | error::RSVD));
        }
        let mine = self.cpl == 0 || every(U);
        let allowed = match self.act {
            Act::Read => mine,
            Act::Write => mine && (every(W) || self.cpl == 0 && !self.wp),
            Act::Fetch => mine && !no_execute,
        };
        (!allowed).then(|| self.error(error::P))
    }
}

/// A machine on which the same small program runs again and again, with other tables.
pub(super) struct Bench {
    pub(super) guest: Guest,
    pub(super) base: ArchState,
    pub(super) pml4: u64,
    /// Rows of a table, and which of them are run.
    pub(super) rows: usize,
    pub(super) stride: usize,
}

/// Where each program starts: after one another, one for each act.
pub(super) fn start(setting: Setting) -> u64 {
    let base = if setting.cpl == 0 { KERNEL } else { USER };
    base + 0x100 * setting.act as u64
}

pub(super) fn program(act: Act, a: &mut CodeAssembler) -> Result<(), IcedError> {
    match act {
        Act::Read => a.mov(rax, qword_ptr(rbx + OFFSET as i32))?,
        Act::Write => a.mov(qword_ptr(rbx + OFFSET as i32), rax)?,
        Act::Fetch => a.jmp(rbx)?,
    }
    a.ud2()
}

impl Bench {
    pub(super) fn new() -> Self {
        let mut guest = Guest::new();
        for act in [Act::Read, Act::Write, Act::Fetch] {
            for base in [KERNEL, USER] {
                guest.assemble(base + 0x100 * act as u64, |a| program(act, a));
            }
        }
        for frame in [Size::Small.frame(), Size::Large.frame()] {
            guest.assemble(frame, |a| a.ud2());
        }
        guest.trace(ALL.bits(), 64);
        let base = guest.soft.cpu.state();
        let pml4 = base.sys.cr3;
        Self {
            guest,
            base,
            pml4,
            rows: 0,
            // A prime, so that each setting has its turn.
            stride: stride(89),
        }
    }

    /// The address of an entry: level 0 is the PML4's.
    pub(super) fn slot(&self, level: usize) -> u64 {
        [self.pml4 + 8, PDPT + 16, PD + 24, PT + 24][level]
    }

    /// Writes the entries, of which only the flags are given.
    pub(super) fn map(&mut self, size: Size, flags: &[u64]) -> Vec<u64> {
        let mut targets = vec![PDPT, PD, PT, FRAME];
        if size == Size::Large {
            targets = vec![PDPT, PD, LARGE_FRAME | PS];
        }
        let entries: Vec<u64> = targets.iter().zip(flags).map(|(t, f)| t | f).collect();
        for (level, &entry) in entries.iter().enumerate() {
            self.guest.write(self.slot(level), entry);
        }
        entries
    }

    /// Runs the program of a setting to the exception at its end.
    pub(super) fn run(&mut self, setting: Setting, debugctl: DebugCtl) {
        let mut s = self.base.clone();
        s.rip = start(setting);
        s.gpr[RAX] = NEW;
        s.gpr[RBX] = LA;
        s.gpr[RSP] = KERNEL_STACK;
        if setting.cpl == 3 {
            s.gpr[RSP] = USER_STACK;
            s.seg = [segment(selector::USER_SS); 6];
            s.seg[1] = segment(selector::USER_CS);
        }
        if !setting.wp {
            s.sys.cr0 &= !cr0::WP;
        }
        if !setting.nxe {
            s.sys.efer &= !efer::NXE;
        }
        s.debugctl = debugctl.bits();
        self.guest.write(DS_AREA + 8, BTS_BUFFER);
        self.guest.soft.cpu.load_state(&s);
        self.guest.run();
    }

    /// Runs a setting with a page whose entries have some flags, and compares everything with what
    /// must come out: `fault` is the error code if there is to be one.
    pub(super) fn check(
        &mut self,
        size: Size,
        flags: &[u64],
        setting: Setting,
        fault: Option<u64>,
        debugctl: DebugCtl,
    ) {
        self.rows += 1;
        if !self.rows.is_multiple_of(self.stride) {
            return;
        }
        let data = size.frame() + OFFSET;
        self.guest.write(data, OLD);
        let before = self.map(size, flags);
        self.run(setting, debugctl);

        let start = start(setting);
        let what = || format!("{size:?} {flags:x?} {setting:?} {debugctl:?}");
        let mut transfers: Vec<Transfer> = Vec::new();
        if setting.act == Act::Fetch {
            transfers.push((start, LA, setting.cpl));
        }
        let (at, la) = match setting.act {
            Act::Fetch => (LA, LA),
            Act::Read | Act::Write => (start, LA + OFFSET),
        };
        let (vector, end) = match (fault, setting.act) {
            (Some(_), _) => (PF, at),
            (None, Act::Fetch) => (UD, LA),
            (None, _) => (UD, start + 4),
        };
        transfers.push((end, handler(vector), 0));
        let frame = self.guest.run_to_exception(vector, fault);
        assert_eq!(frame.rip, end, "{}", what());
        let records: Vec<_> = transfers
            .iter()
            .filter(|t| records_at(debugctl, t.2))
            .map(|t| (t.0, t.1))
            .collect();
        assert_eq!(self.guest.records(), records, "{}", what());

        let written = setting.act == Act::Write && fault.is_none();
        let memory = if written { NEW } else { OLD };
        assert_eq!(self.guest.read(data), memory, "{}", what());
        let cpu = &self.guest.soft.cpu;
        let loaded = setting.act == Act::Read && fault.is_none();
        assert_eq!(cpu.gpr[RAX], if loaded { OLD } else { NEW }, "{}", what());
        let told = fault.map_or(0, |_| la);
        assert_eq!(cpu.sys.cr2, told, "{}", what());

        // A fault leaves no trace in the tables; the manual would allow accessed flags above the
        // entry that faults (4.8).
        let leaf = size.levels() - 1;
        for (level, &entry) in before.iter().enumerate() {
            let accessed = if fault.is_none() { A } else { 0 };
            let dirty = if written && level == leaf { D } else { 0 };
            let after = self.guest.read(self.slot(level));
            assert_eq!(after, entry | accessed | dirty, "level {level} {}", what());
        }
    }
}
