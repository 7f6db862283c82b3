//! Access to guest memory: an inline lookup in the TLB.
//!
//! A page with a watchpoint has an entry that the lookup does not hit. Once a debugger has set a
//! watchpoint, a cold path looks the operand up a second time, with the tag of a watched page. If
//! the operand is beside the watched bytes, the code behind the first lookup continues with the
//! entry.

use crate::backend::jit::assembler::{Imm, Label, Mem, Op, Reg, Shift, cond};
use crate::backend::jit::forms::operand::Operand;
use crate::backend::jit::registers::frame::FRAME_ADDRESS;
use crate::backend::jit::registers::map::{POINTER, SCRATCH, host};
use crate::backend::jit::registers::processor::{TLB_TABLE, WATCHED_LEN, WATCHED_START, register};
use crate::backend::jit::translator::Translator;
use crate::backend::jit::translator::cold::{ColdPath, WatchedLookup};
use crate::insn::reg;
use crate::mmu::access::Access;
use crate::mmu::tlb::layout::{ADDEND, INDEX_MASK, SLOT_SHIFT, WATCHED_BIT, entries};

/// log2 of the size of a page.
const PAGE_SHIFT: u8 = 12;

impl Translator<'_> {
    /// Emits a lookup of `operand` in the TLB. Returns the operand in the reservation, which does
    /// not name SCRATCH. Jumps to `missed` if the TLB has no entry. Clobbers SCRATCH, POINTER and
    /// the host's flags.
    pub(crate) fn probe(&mut self, operand: &Operand, access: Access, missed: Label) -> Mem {
        let table = entries(access) as i32;
        if !self.context.watches {
            return self.look_up(operand, table, missed, None);
        }
        let (at, found) = (self.asm.label(), self.asm.label());
        let m = self.look_up(operand, table, at, Some(found));
        self.cold.push(ColdPath::Watched(WatchedLookup {
            at,
            found,
            missed,
            operand: *operand,
            table,
        }));
        m
    }

    /// Emits the lookup. `found` becomes a label behind it: there POINTER has the addend of the
    /// entry, and SCRATCH the page if it has no short form and the operand is constant.
    fn look_up(
        &mut self,
        operand: &Operand,
        table: i32,
        missed: Label,
        found: Option<Label>,
    ) -> Mem {
        if operand.is_constant() {
            return self.look_up_constant(operand, table, missed, found);
        }
        let last = operand.size as i64 - 1;
        let form = host_form(operand);
        if let Some((m, [None, None])) = form
            && let Some(end) = with_disp(&m, i64::from(m.disp) + last)
        {
            self.asm.lea(POINTER, &m);
            if last == 0 {
                self.asm.mov32(SCRATCH, POINTER);
            } else {
                self.asm.lea32(SCRATCH, &end);
            }
            self.compare(table, missed, found);
            if m.index.is_none() {
                return Mem {
                    index: Some((POINTER, 1)),
                    reserved: true,
                    ..m
                };
            }
            if let Some(base) = m.base {
                self.asm.op(Op::Add, POINTER, base);
            }
            return Mem {
                base: Some(POINTER),
                reserved: true,
                ..m
            };
        }
        if let Some((m, terms)) = form
            && terms != [None, None]
            && let Some(m) = without_base(m)
            && let Some(end) = with_disp(&m, i64::from(m.disp) + last)
        {
            let with_base = |base, m| Mem {
                base: Some(base),
                ..m
            };
            let terms = terms.iter().flatten();
            let a = &mut self.asm;
            for (op, term) in [Op::Load, Op::Add].into_iter().zip(terms.clone()) {
                a.op_mem(op, SCRATCH, term);
            }
            a.lea(POINTER, &with_base(SCRATCH, m));
            if found.is_some() {
                a.store(&FRAME_ADDRESS, POINTER);
            }
            a.lea32(SCRATCH, &with_base(SCRATCH, end));
            self.compare(table, missed, found);
            for term in terms {
                self.asm.op_mem(Op::Add, POINTER, term);
            }
            return Mem {
                reserved: true,
                ..with_base(POINTER, m)
            };
        }
        self.linear_address(operand);
        self.asm.store(&FRAME_ADDRESS, POINTER);
        self.asm.lea32(SCRATCH, &Mem::at(POINTER, last as i32));
        self.compare(table, missed, found);
        self.asm.op_mem(Op::Add, POINTER, &FRAME_ADDRESS);
        Mem::reserved(POINTER, 0)
    }

    /// Compares the page of the first byte, in POINTER, with the entry for the page of the last
    /// one, in SCRATCH: an operand in two pages does not match. Leaves the addend of the entry in
    /// POINTER.
    fn compare(&mut self, table: i32, missed: Label, found: Option<Label>) {
        self.select_entry();
        let a = &mut self.asm;
        a.op_mem(Op::Cmp, POINTER, &Mem::at(SCRATCH, table));
        a.jump_if(cond::NE, missed);
        a.load(POINTER, &Mem::at(SCRATCH, table + ADDEND as i32));
        if let Some(found) = found {
            a.bind(found);
        }
    }

    /// Turns the address in SCRATCH into that of its entry, and the one in POINTER into its page.
    fn select_entry(&mut self) {
        let a = &mut self.asm;
        a.shift(Shift::Right, false, SCRATCH, PAGE_SHIFT - SLOT_SHIFT as u8);
        a.imm(false, Imm::And, SCRATCH, (INDEX_MASK << SLOT_SHIFT) as i32);
        a.op_mem(Op::Add, SCRATCH, &TLB_TABLE);
        a.shift(Shift::ArithmeticRight, true, POINTER, PAGE_SHIFT);
    }

    /// Emits a lookup of an address that does not depend on registers.
    fn look_up_constant(
        &mut self,
        operand: &Operand,
        table: i32,
        missed: Label,
        found: Option<Label>,
    ) -> Mem {
        let address = operand.disp as u64;
        let entry = constant_entry(operand, table);
        let page = address as i64 >> PAGE_SHIFT;
        let short = i32::try_from(address as i64);
        let a = &mut self.asm;
        a.load(POINTER, &TLB_TABLE);
        if short.is_ok() {
            a.imm_mem(Imm::Cmp, &Mem::at(POINTER, entry), page as i32);
        } else {
            a.mov_imm(SCRATCH, page as u64);
            a.op_mem(Op::Cmp, SCRATCH, &Mem::at(POINTER, entry));
        }
        a.jump_if(cond::NE, missed);
        a.load(POINTER, &Mem::at(POINTER, entry + ADDEND as i32));
        if let Some(found) = found {
            a.bind(found);
        }
        short.map_or_else(
            |_| {
                a.shift(Shift::Left, true, SCRATCH, PAGE_SHIFT);
                a.op(Op::Add, POINTER, SCRATCH);
                Mem::reserved(POINTER, (address & ((1 << PAGE_SHIFT) - 1)) as i32)
            },
            |address| Mem::reserved(POINTER, address),
        )
    }

    /// Writes the second lookup of an operand that the first one has missed.
    pub(crate) fn write_watched_lookup(&mut self, lookup: &WatchedLookup) {
        let WatchedLookup {
            at,
            found,
            missed,
            operand,
            table,
        } = lookup;
        self.asm.bind(*at);
        if operand.is_constant() {
            let address = operand.disp as u64;
            let page = address as i64 >> PAGE_SHIFT;
            let entry = constant_entry(operand, *table);
            let a = &mut self.asm;
            a.load(POINTER, &TLB_TABLE);
            a.mov_imm(SCRATCH, page as u64 ^ 1 << WATCHED_BIT);
            a.op_mem(Op::Cmp, SCRATCH, &Mem::at(POINTER, entry));
            a.jump_if(cond::NE, *missed);
            a.mov_imm(SCRATCH, address);
            self.check_beside(SCRATCH, operand.size, *missed);
            let a = &mut self.asm;
            a.mov_imm(SCRATCH, page as u64);
            a.load(POINTER, &Mem::at(POINTER, entry + ADDEND as i32));
        } else {
            self.recompute_address(operand);
            let last = operand.size as i32 - 1;
            self.asm.lea32(SCRATCH, &Mem::at(POINTER, last));
            self.select_entry();
            let a = &mut self.asm;
            a.flip_bit(POINTER, WATCHED_BIT);
            a.op_mem(Op::Cmp, POINTER, &Mem::at(SCRATCH, *table));
            a.jump_if(cond::NE, *missed);
            self.recompute_address(operand);
            self.check_beside(POINTER, operand.size, *missed);
            let a = &mut self.asm;
            a.load(POINTER, &Mem::at(SCRATCH, *table + ADDEND as i32));
        }
        self.asm.jump(*found);
    }

    /// Jumps to `missed` if one of the `size` bytes from the address in `r` on is watched. Clobbers
    /// `r` and the host's flags.
    fn check_beside(&mut self, r: Reg, size: usize, missed: Label) {
        let a = &mut self.asm;
        // The distance from the first watched byte wraps around if it is negative.
        a.op_mem(Op::Sub, r, &WATCHED_START);
        a.op_mem(Op::Cmp, r, &WATCHED_LEN);
        a.jump_if(cond::B, missed);
        if size > 1 {
            a.imm(true, Imm::Cmp, r, 1 - size as i32);
            a.jump_if(cond::AE, missed);
        }
    }

    /// Computes the linear address of `operand`, which is not constant and was looked up just
    /// before, in POINTER. Keeps SCRATCH.
    fn recompute_address(&mut self, operand: &Operand) {
        match host_form(operand) {
            Some((m, [None, None])) => self.asm.lea(POINTER, &m),
            _ => self.asm.load(POINTER, &FRAME_ADDRESS),
        }
    }

    /// Computes the linear address of `operand`, which is not constant, in POINTER. Clobbers
    /// SCRATCH and the host's flags.
    fn linear_address(&mut self, operand: &Operand) {
        let disp = operand.disp as i32;
        match operand.base {
            Some(base) => self.read(POINTER, base),
            None if operand.index.is_none() => self.asm.mov_imm(POINTER, operand.disp as u64),
            None => {}
        }
        if let Some((index, factor)) = operand.index {
            let register = match host(index) {
                Some(host) => host,
                None => {
                    self.read(SCRATCH, index);
                    SCRATCH
                }
            };
            let sum = Mem {
                base: operand.base.map(|_| POINTER),
                index: Some((register, factor)),
                disp,
                reserved: false,
            };
            self.asm.lea(POINTER, &sum);
        } else if operand.base.is_some() && disp != 0 {
            self.asm.lea(POINTER, &Mem::at(POINTER, disp));
        }
        if let Some(segment) = operand.segment {
            self.asm
                .op_mem(Op::Add, POINTER, &register(reg::SEGMENT + segment));
        }
        if let Some(bit) = operand.bit {
            let wide = operand.size == 8;
            self.read(SCRATCH, bit);
            if !wide {
                self.asm.sign_extend_eax();
            }
            self.asm.shift(
                Shift::ArithmeticRight,
                true,
                SCRATCH,
                if wide { 6 } else { 5 },
            );
            let sum = Mem {
                base: Some(POINTER),
                index: Some((SCRATCH, operand.size as u8)),
                disp: 0,
                reserved: false,
            };
            self.asm.lea(POINTER, &sum);
        }
    }
}

/// Offset in the TLB of the entry for a constant operand.
fn constant_entry(operand: &Operand, table: i32) -> i32 {
    let last = (operand.disp as u64).wrapping_add(operand.size as u64 - 1);
    let index = (last >> PAGE_SHIFT) as usize & INDEX_MASK;
    table + (index << SLOT_SHIFT) as i32
}

/// Returns `operand` as one of the host, and the fields that have to be added to it: a guest
/// register that no host register contains, and the base of a segment. `None`: it has another form.
fn host_form(operand: &Operand) -> Option<(Mem, [Option<Mem>; 2])> {
    if operand.bit.is_some() {
        return None;
    }
    let index = match operand.index {
        Some((index, factor)) => Some((host(index)?, factor)),
        None => None,
    };
    let base = operand.base.and_then(host);
    let guest = operand.base.filter(|_| base.is_none()).map(register);
    let segment = operand.segment.map(|n| register(reg::SEGMENT + n));
    let m = Mem {
        base,
        index,
        disp: i32::try_from(operand.disp).ok()?,
        reserved: false,
    };
    Some((m, [guest, segment]))
}

/// Returns `m` without a base, if the base can be the index.
fn without_base(m: Mem) -> Option<Mem> {
    match (m.base, m.index) {
        (None, _) => Some(m),
        (Some(base), None) => Some(Mem {
            base: None,
            index: Some((base, 1)),
            ..m
        }),
        _ => None,
    }
}

fn with_disp(m: &Mem, disp: i64) -> Option<Mem> {
    Some(Mem {
        disp: i32::try_from(disp).ok()?,
        ..*m
    })
}
