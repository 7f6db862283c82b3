//! Guest memory in native code: the TLB, inline.

use crate::backend::jit::assembler::{Imm, Label, Mem, Op, R14, RAX, cond};
use crate::backend::jit::form::{Guest, Operand};
use crate::backend::jit::layout::{FRAME_ADDRESS, HOST, TLB_TABLE, register};
use crate::backend::jit::translate::Translator;
use crate::insn::reg;
use crate::mmu::access::Access;
use crate::mmu::tlb::layout::{ADDEND, INDEX_MASK, SLOT_SHIFT, entries};

/// log2 of the size of a page.
const PAGE_SHIFT: u8 = 12;

impl Translator<'_> {
    /// Finds the place of `operand` in the reservation by the TLB, or jumps to `missed`. Overwrites
    /// RAX, R14 and the host's flags. The result does not use RAX.
    pub(super) fn probe(&mut self, operand: &Operand, access: Access, missed: Label) -> Mem {
        let table = entries(access) as i32;
        if operand.is_constant() {
            return self.probe_constant(operand, table, missed);
        }
        let last = operand.size as i64 - 1;
        let form = host_form(operand);
        if let Some((m, [None, None])) = form
            && let Some(end) = with_disp(&m, i64::from(m.disp) + last)
        {
            self.asm.lea(R14, &m);
            if last == 0 {
                self.asm.mov32(RAX, R14);
            } else {
                self.asm.lea32(RAX, &end);
            }
            self.compare(table, missed);
            if m.index.is_none() {
                return Mem {
                    index: Some((R14, 1)),
                    reserved: true,
                    ..m
                };
            }
            if let Some(base) = m.base {
                self.asm.op(Op::Add, R14, base);
            }
            return Mem {
                base: Some(R14),
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
                a.op_mem(op, RAX, term);
            }
            a.lea(R14, &with_base(RAX, m));
            a.lea32(RAX, &with_base(RAX, end));
            self.compare(table, missed);
            for term in terms {
                self.asm.op_mem(Op::Add, R14, term);
            }
            return Mem {
                reserved: true,
                ..with_base(R14, m)
            };
        }
        self.linear_address(operand);
        self.asm.store(&FRAME_ADDRESS, R14);
        self.asm.lea32(RAX, &Mem::at(R14, last as i32));
        self.compare(table, missed);
        self.asm.op_mem(Op::Add, R14, &FRAME_ADDRESS);
        Mem::reserved(R14, 0)
    }

    /// Compares the page of the first byte, in R14, with the entry for the page of the last one,
    /// in EAX: an operand in two pages does not match. Leaves the addend of the entry in R14.
    fn compare(&mut self, table: i32, missed: Label) {
        let a = &mut self.asm;
        a.shr(false, RAX, PAGE_SHIFT - SLOT_SHIFT as u8);
        a.imm(false, Imm::And, RAX, (INDEX_MASK << SLOT_SHIFT) as i32);
        a.op_mem(Op::Add, RAX, &TLB_TABLE);
        a.sar(true, R14, PAGE_SHIFT);
        a.op_mem(Op::Cmp, R14, &Mem::at(RAX, table));
        a.jump_if(cond::NE, missed);
        a.load(R14, &Mem::at(RAX, table + ADDEND as i32));
    }

    /// [`Self::probe`] of an address that does not depend on registers.
    fn probe_constant(&mut self, operand: &Operand, table: i32, missed: Label) -> Mem {
        let address = operand.disp as u64;
        let last = address.wrapping_add(operand.size as u64 - 1);
        let index = (last >> PAGE_SHIFT) as usize & INDEX_MASK;
        let entry = table + (index << SLOT_SHIFT) as i32;
        let page = address as i64 >> PAGE_SHIFT;
        let short = i32::try_from(address as i64);
        let a = &mut self.asm;
        a.load(R14, &TLB_TABLE);
        if short.is_ok() {
            a.imm_mem(Imm::Cmp, &Mem::at(R14, entry), page as i32);
        } else {
            a.mov_imm(RAX, page as u64);
            a.op_mem(Op::Cmp, RAX, &Mem::at(R14, entry));
        }
        a.jump_if(cond::NE, missed);
        a.load(R14, &Mem::at(R14, entry + ADDEND as i32));
        short.map_or_else(
            |_| {
                a.shl(true, RAX, PAGE_SHIFT);
                a.op(Op::Add, R14, RAX);
                Mem::reserved(R14, (address & ((1 << PAGE_SHIFT) - 1)) as i32)
            },
            |address| Mem::reserved(R14, address),
        )
    }

    /// Computes the linear address of `operand`, which is not constant, in R14.
    /// Overwrites RAX and the host's flags.
    fn linear_address(&mut self, operand: &Operand) {
        let disp = operand.disp as i32;
        match operand.base {
            Some(base) => self.read(R14, base),
            None if operand.index.is_none() => self.asm.mov_imm(R14, operand.disp as u64),
            None => {}
        }
        if let Some((index, factor)) = operand.index {
            let register = match HOST[usize::from(index)] {
                Some(host) => host,
                None => {
                    self.read(RAX, index);
                    RAX
                }
            };
            let sum = Mem {
                base: operand.base.map(|_| R14),
                index: Some((register, factor)),
                disp,
                reserved: false,
            };
            self.asm.lea(R14, &sum);
        } else if operand.base.is_some() && disp != 0 {
            self.asm.lea(R14, &Mem::at(R14, disp));
        }
        if let Some(segment) = operand.segment {
            self.asm
                .op_mem(Op::Add, R14, &register(reg::SEGMENT + segment));
        }
        if let Some(bit) = operand.bit {
            let wide = operand.size == 8;
            self.read(RAX, bit);
            if !wide {
                // CDQE
                self.asm.bytes(&[0x48, 0x98]);
            }
            self.asm.sar(true, RAX, if wide { 6 } else { 5 });
            let sum = Mem {
                base: Some(R14),
                index: Some((RAX, operand.size as u8)),
                disp: 0,
                reserved: false,
            };
            self.asm.lea(R14, &sum);
        }
    }

    /// Loads a guest register into a host register.
    pub(super) fn read(&mut self, to: u8, guest: Guest) {
        match HOST[usize::from(guest)] {
            Some(host) => self.asm.mov(to, host),
            None => self.asm.load(to, &register(guest)),
        }
    }

    /// Writes a guest register.
    pub(super) fn write(&mut self, guest: Guest, from: u8) {
        match HOST[usize::from(guest)] {
            Some(host) => self.asm.mov(host, from),
            None => self.asm.store(&register(guest), from),
        }
    }
}

/// `operand` as one of the host, and what has to be added to it: a guest register that no host
/// register holds, and the base of a segment. `None`: it has another form.
fn host_form(operand: &Operand) -> Option<(Mem, [Option<Mem>; 2])> {
    if operand.bit.is_some() {
        return None;
    }
    let host = |guest: Guest| HOST[usize::from(guest)];
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

/// `m` without a base, if that can be the index.
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
