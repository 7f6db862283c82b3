//! Template of the SSE and AVX instructions that become native code as themselves.

use iced_x86::{Code, IcedError, Instruction};

use crate::backend::jit::assembler::{Byte, Label, cond};
use crate::backend::jit::flags::FlagFixup;
use crate::backend::jit::forms::operand::{Operand, accesses_memory};
use crate::backend::jit::forms::vector;
use crate::backend::jit::registers::map::SCRATCH;
use crate::backend::jit::registers::scratch::ScratchRegs;
use crate::backend::jit::templates::direct::set_memory;
use crate::backend::jit::translator::cold::ColdPath;
use crate::backend::jit::translator::{Item, Translator};
use crate::backend::jit::vectors::UsedVectors;
use crate::exec::native::VectorForm;
use crate::mmu::access::Access;

impl Translator<'_> {
    /// Translates an instruction of SSE or AVX. Returns whether there is a template.
    pub(crate) fn vector(&mut self, item: &Item) -> Result<bool, IcedError> {
        let mut i = item.decoded;
        if i.code() == Code::VEX_Vzeroupper {
            self.turn_on(item, true, false);
            self.vectors.zero_upper(self.asm);
            return Ok(true);
        }
        let Some(vector) = vector::of(&i) else {
            return Ok(false);
        };
        let form = vector.form;
        i.set_code(vector.code);
        let memory = accesses_memory(&item.decoded, &item.insn);
        let operand = if memory {
            match Operand::of(&item.decoded, &item.insn, self.context.rip) {
                Some(operand) => Some(operand),
                None => return Ok(false),
            }
        } else {
            None
        };
        let access = self.access(&i);
        let mut regs = ScratchRegs::beside(memory);
        if !self.substitute(&mut i, &mut regs) {
            return Ok(false);
        }
        self.turn_on(item, vector.vex, form.uses_mxcsr);
        let mut back = None;
        if let Some(operand) = operand {
            let (missed, label) = (self.asm.label(), self.asm.label());
            self.vector_memory(&mut i, &operand, access, form, missed);
            back = Some((missed, label));
        }
        regs.load(self.asm);
        let used = UsedVectors::by(&i, self.info);
        self.vectors.load_read(self.asm, used);
        self.encode(&i)?;
        self.vectors.store_written(self.asm, used, vector.vex);
        regs.store(self.asm);
        if form.writes_flags {
            self.flags.set_in_host(FlagFixup::None, None);
        }
        if let Some((missed, back)) = back {
            self.on_miss(missed, back, item.start);
            self.asm.bind(back);
        }
        Ok(true)
    }

    /// Leaves the block to the interpreter unless SSE or AVX is on and, for an instruction that
    /// uses MXCSR, every exception is masked.
    fn turn_on(&mut self, item: &Item, avx: bool, uses_mxcsr: bool) {
        if !self.vectors.needs_turn_on(avx, uses_mxcsr) {
            return;
        }
        self.flags.save(self.asm);
        let (at, vectors) = (self.asm.label(), self.vectors);
        self.vectors.turn_on(self.asm, avx, uses_mxcsr, at);
        self.cold.push(ColdPath::Finish {
            at,
            first: item.start,
            vectors,
        });
    }

    /// Emits a lookup of the memory operand. An operand that has to be aligned and is not takes the
    /// path of one that is not in the TLB.
    fn vector_memory(
        &mut self,
        i: &mut Instruction,
        operand: &Operand,
        access: Access,
        form: VectorForm,
        missed: Label,
    ) {
        self.flags.save(self.asm);
        let m = self.probe(operand, access, missed);
        if operand.size >= 16 && !form.unaligned {
            self.asm.lea(SCRATCH, &m);
            self.asm.byte_test(Byte::AL, operand.size as u8 - 1);
            self.asm.jump_if(cond::NE, missed);
        }
        set_memory(i, &m);
    }
}
