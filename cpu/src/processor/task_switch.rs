//! Hardware task switches (SDM Vol. 3A chapter 7). IA-32e mode has none.
//!
//! Until the switch is committed, a fault leaves the old task as it was. The state of the new task
//! is checked when it is in the registers, so that a fault of it is one of the new task: it is
//! raised before the task's first instruction (7.3).

use crate::insn::Abort;
use crate::mmu::paging;
use crate::processor::cpu::Cpu;
use crate::processor::frame::Frame;
use crate::processor::last_branches::BranchSource;
use crate::processor::pending_work::ArchEvents;
use crate::state::descriptor::{Descriptor, is_null, rpl, system};
use crate::state::{SegAttr, Segment, cr0, dr6, dr7, rflags, sreg, vector};

/// A task to switch to: its TSS.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Task {
    selector: u16,
    tss: Descriptor,
}

/// What switches tasks. The flag NT, the link to the previous task and the flags that make a TSS
/// busy depend on it (table 7-2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// JMP.
    Jump,
    /// CALL, an interrupt, or an exception with the error code that the new task finds on its
    /// stack.
    Nest(Option<u32>),
    /// IRET.
    Return,
}

/// What the registers do not hold of the task that is left.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OldTask {
    /// Offset in its code segment at which it continues.
    pub ip: u64,
    /// Its RFLAGS.
    pub flags: u64,
    /// Where it is left.
    pub from: BranchSource,
}

/// Whether the new task begins with a fault.
pub(crate) type Switched = Result<(), Abort>;

/// Where a TSS has the registers: words that follow each other, first the instruction pointer and
/// the flags, then the general registers, the segment registers and LDTR. The last have 16 bits in
/// a word of any size (7.2.1, 7.6).
#[derive(Debug, Clone, Copy)]
struct Layout {
    /// Offset of the first word.
    first: u64,
    /// Size of a word in bytes.
    word: u64,
    /// Segment registers: from ES on.
    segments: usize,
    /// Smallest limit of a TSS.
    limit: u32,
}

const TSS_32: Layout = Layout {
    first: 0x20,
    word: 4,
    segments: 6,
    limit: 0x67,
};
const TSS_16: Layout = Layout {
    first: 0x0E,
    word: 2,
    segments: 4,
    limit: 0x2B,
};

/// Words before the segment registers.
const BEFORE_SEGMENTS: usize = 10;

/// Offsets of CR3 and of the debug trap flag in a 32-bit TSS.
const CR3: u64 = 0x1C;
const TRAP: u64 = 0x64;

impl Layout {
    fn of(ty: u8) -> &'static Self {
        match ty {
            system::TSS_16_AVAILABLE | system::TSS_16_BUSY => &TSS_16,
            _ => &TSS_32,
        }
    }

    fn is_32_bit(&self) -> bool {
        self.word == 4
    }

    /// Number of words that a task switch saves: all except LDTR.
    fn saved(&self) -> usize {
        BEFORE_SEGMENTS + self.segments
    }

    fn offset(&self, word: usize) -> u64 {
        self.first + self.word * word as u64
    }
}

/// The registers of a TSS.
#[derive(Debug, Clone, Copy, Default)]
struct Registers {
    ip: u32,
    flags: u32,
    gpr: [u32; 8],
    segments: [u16; 6],
    ldtr: u16,
    cr3: Option<u32>,
    trap: bool,
}

impl Cpu {
    /// The task of a TSS that JMP, CALL, an interrupt or an exception leads to.
    pub(crate) fn available_task(&mut self, selector: u16) -> Result<Task, Abort> {
        let types = [system::TSS_AVAILABLE, system::TSS_16_AVAILABLE];
        self.task(selector, types, vector::GP)
    }

    /// The task to which IRET returns: the previous one of the current TSS.
    pub(crate) fn previous_task(&mut self) -> Result<Task, Abort> {
        let selector = self.tss_word::<u16>(0)?;
        let types = [system::TSS_BUSY, system::TSS_16_BUSY];
        self.task(selector, types, vector::TS)
    }

    /// The task of a TSS, which must have one of these types and be in the GDT; `fault`(selector)
    /// if it is not.
    fn task(&mut self, selector: u16, types: [u8; 2], fault: u8) -> Result<Task, Abort> {
        if selector & 4 != 0 {
            return Err(self.selector_fault(fault, selector));
        }
        let tss = self.descriptor(selector, fault)?;
        if !tss.system_type().is_some_and(|ty| types.contains(&ty)) {
            return Err(self.selector_fault(fault, selector));
        }
        if !tss.has(SegAttr::P) {
            return Err(self.selector_fault(vector::NP, selector));
        }
        Ok(Task { selector, tss })
    }

    /// Switches to `task` (7.3). If it cannot, it sets a fault and changes nothing else. The inner
    /// result is that of loading the new task's state.
    pub(crate) fn switch_task(
        &mut self,
        task: &Task,
        cause: Cause,
        old: &OldTask,
    ) -> Result<Switched, Abort> {
        self.with_devices(|cpu| cpu.replace_task(task, cause, old))
    }

    fn replace_task(
        &mut self,
        task: &Task,
        cause: Cause,
        old: &OldTask,
    ) -> Result<Switched, Abort> {
        let tr = task.tss.segment(task.selector);
        let layout = Layout::of(tr.ty());
        if tr.limit < layout.limit {
            return Err(self.selector_fault(vector::TS, task.selector));
        }
        let mut new = self.load_registers(tr.base, layout)?;
        self.check_task_switch(tr, cause)?;
        self.leave_task(cause, old)?;
        if cause != Cause::Return {
            self.set_type_bits(task.selector, task.tss, system::BUSY)?;
        }
        if let Cause::Nest(_) = cause {
            self.store_system::<u16>(tr.base, self.sys.tr.selector)?;
            new.flags |= rflags::NT as u32;
        }
        self.commit_task(tr, &new);
        let mut begun = self.load_task_state(&new);
        self.update_mode();
        if begun.is_ok() {
            self.record_far(old.from);
            begun = self.begin_task(layout, cause);
        }
        Ok(begun)
    }

    /// Reads the registers of a TSS.
    fn load_registers(&mut self, base: u64, layout: &Layout) -> Result<Registers, Abort> {
        let at = |offset: u64| base.wrapping_add(offset);
        let word = |cpu: &mut Self, n| match layout.is_32_bit() {
            true => cpu.load_system::<u32>(at(layout.offset(n))),
            false => Ok(cpu.load_system::<u16>(at(layout.offset(n)))?.into()),
        };
        let mut r = Registers {
            ip: word(self, 0)?,
            flags: word(self, 1)?,
            ..Registers::default()
        };
        for (n, register) in (2..).zip(&mut r.gpr) {
            *register = word(self, n)?;
        }
        // A 16-bit TSS leaves FS and GS null.
        let segments = &mut r.segments[..layout.segments];
        for (n, selector) in (BEFORE_SEGMENTS..).zip(segments) {
            *selector = word(self, n)? as u16;
        }
        r.ldtr = word(self, layout.saved())? as u16;
        if layout.is_32_bit() {
            r.cr3 = Some(self.load_system(at(CR3))?);
            r.trap = self.load_system::<u16>(at(TRAP))? & 1 != 0;
        }
        Ok(r)
    }

    /// Checks that the stores of a switch to the TSS `new` do not fault.
    fn check_task_switch(&mut self, new: Segment, cause: Cause) -> Result<(), Abort> {
        let tr = self.sys.tr;
        let layout = Layout::of(tr.ty());
        let end = layout.offset(layout.saved());
        if tr.attr.contains(SegAttr::UNUSABLE) || u64::from(tr.limit) < end - 1 {
            return Err(self.selector_fault(vector::TS, tr.selector));
        }
        let saved = (end - layout.first) as usize;
        self.check_system_writable(tr.base.wrapping_add(layout.first), saved)?;
        let nests = matches!(cause, Cause::Nest(_));
        if nests {
            self.check_system_writable(new.base, 2)?;
        }
        let old_type = self.type_la(tr.selector).filter(|_| !nests);
        let new_type = self
            .type_la(new.selector)
            .filter(|_| cause != Cause::Return);
        for la in [old_type, new_type].into_iter().flatten() {
            self.check_system_writable(la, 1)?;
        }
        Ok(())
    }

    /// Saves the registers of the current task in its TSS. If it does not wait for the new one, its
    /// TSS is no longer busy.
    fn leave_task(&mut self, cause: Cause, old: &OldTask) -> Result<(), Abort> {
        let tr = self.sys.tr;
        let layout = Layout::of(tr.ty());
        let flags = match cause {
            Cause::Return => old.flags & !rflags::NT,
            _ => old.flags,
        };
        for n in 0..layout.saved() {
            let la = tr.base.wrapping_add(layout.offset(n));
            let value = match n {
                0 => old.ip,
                1 => flags,
                BEFORE_SEGMENTS.. => self.seg[n - BEFORE_SEGMENTS].selector.into(),
                _ => self.gpr[n - 2],
            };
            match layout.is_32_bit() && n < BEFORE_SEGMENTS {
                true => self.store_system(la, value as u32)?,
                false => self.store_system(la, value as u16)?,
            }
        }
        if !matches!(cause, Cause::Nest(_))
            && let Some(la) = self.type_la(tr.selector)
        {
            let ty: u8 = self.load_system(la)?;
            self.store_system(la, ty & !system::BUSY)?;
        }
        Ok(())
    }

    /// Loads the registers of the new task. Its segment registers have no descriptors yet.
    fn commit_task(&mut self, mut tr: Segment, new: &Registers) {
        tr.attr |= SegAttr::from_bits_retain(system::BUSY.into());
        self.sys.tr = tr;
        self.sys.cr0 |= cr0::TS;
        // SDM Vol. 3B 17.2.4.
        self.sys.dr7 &= !dr7::LOCAL;
        for (register, value) in self.gpr.iter_mut().zip(new.gpr) {
            *register = value.into();
        }
        self.rip = new.ip.into();
        self.put_rflags(new.flags.into(), !0);
        self.cpl = match self.is_virtual_8086() {
            true => 3,
            false => rpl(new.segments[sreg::CS]),
        };
        self.sys.ldtr = Segment::null(new.ldtr, 0);
        for (n, selector) in new.segments.into_iter().enumerate() {
            self.set_segment(n, Segment::null(selector, self.cpl));
        }
        if new.trap {
            self.pending_db |= dr6::BT;
            self.pending_work.insert(ArchEvents::DEBUG);
        }
    }

    /// Loads CR3, and the descriptors of the new task's segments (table 7-1).
    fn load_task_state(&mut self, new: &Registers) -> Result<(), Abort> {
        if let Some(cr3) = new.cr3 {
            self.load_task_cr3(cr3.into())?;
        }
        self.load_task_ldtr(new.ldtr)?;
        if self.is_virtual_8086() {
            self.load_virtual_8086(new.segments);
            return Ok(());
        }
        let [es, cs, ss, ds, fs, gs] = new.segments;
        let code = self.task_code_segment(cs)?;
        self.set_segment(sreg::CS, code);
        let stack = self.stack_segment(ss, self.cpl, false, vector::TS)?;
        self.set_segment(sreg::SS, stack);
        for (register, selector) in [
            (sreg::ES, es),
            (sreg::DS, ds),
            (sreg::FS, fs),
            (sreg::GS, gs),
        ] {
            let data = self.data_segment(selector, vector::TS)?;
            self.set_segment(register, data);
        }
        Ok(())
    }

    /// Without paging CR3 keeps its value.
    fn load_task_cr3(&mut self, cr3: u64) -> Result<(), Abort> {
        if self.sys.cr0 & cr0::PG == 0 || self.sys.cr3 == cr3 {
            return Ok(());
        }
        if paging::is_pae(&self.sys) {
            match paging::pdptes(&self.ram, cr3) {
                Some(entries) => self.sys.pdpte = entries,
                None => return Err(self.gp(0)),
            }
        }
        self.sys.cr3 = cr3;
        self.flush_tlb(true);
        Ok(())
    }

    fn load_task_ldtr(&mut self, selector: u16) -> Result<(), Abort> {
        if is_null(selector) {
            return Ok(());
        }
        if selector & 4 != 0 {
            return Err(self.selector_fault(vector::TS, selector));
        }
        let d = self.descriptor(selector, vector::TS)?;
        if d.system_type() != Some(system::LDT) || !d.has(SegAttr::P) {
            return Err(self.selector_fault(vector::TS, selector));
        }
        self.sys.ldtr = d.segment(selector);
        Ok(())
    }

    fn task_code_segment(&mut self, selector: u16) -> Result<Segment, Abort> {
        if is_null(selector) {
            return Err(self.exception(vector::TS, Some(0)));
        }
        let d = self.descriptor(selector, vector::TS)?;
        let level = rpl(selector);
        let privilege = if d.is_conforming_code() {
            d.dpl() <= level
        } else {
            d.dpl() == level
        };
        if !d.is_code() || !privilege {
            return Err(self.selector_fault(vector::TS, selector));
        }
        self.check_code_segment(selector, d)?;
        self.accessed(selector, d)
    }

    /// Pushes the error code of the exception that has led to the task, in the size of its TSS, and
    /// checks its instruction pointer.
    fn begin_task(&mut self, layout: &Layout, cause: Cause) -> Result<(), Abort> {
        if let Cause::Nest(Some(error)) = cause {
            let mut frame = Frame::current(self);
            match layout.is_32_bit() {
                true => frame.push(self, error)?,
                false => frame.push(self, error as u16)?,
            }
            frame.commit(self);
        }
        let cs = self.segment(sreg::CS);
        self.check_target(cs.attr, cs.limit, self.rip)
    }
}
