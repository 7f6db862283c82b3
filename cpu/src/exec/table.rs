//! The table of instructions: what executes each of iced-x86's [`Code`]s, for each backend.
//!
//! Each family has a function `rows` that fills in its rows. An instruction with ModRM has two
//! entries: one for a register operand and one for a memory operand. A row also says how native
//! code executes the instruction as itself, with host registers in place of the guest's.
//! `simd::rows` has rows that declare a vector instruction in all its encodings.
//!
//! A row does not say to which CPUID feature its instruction belongs. iced-x86's table of codes has
//! that fact (`Code::cpuid_features`), with the code as its key, as here.
//! [`has_instruction`](crate::model::Model::has_instruction) compares it with the features of the
//! processor's model, which CPUID reports, where a block is decoded: what the model lacks becomes
//! [`undefined`](crate::exec::undefined), which raises #UD, as does a code without a row.

use iced_x86::Code;

use crate::exec::native::{FlagEffect, Native, NativeForm, VectorForm};
use crate::insn::{Abort, Exec, Insn};
use crate::processor::cpu::Cpu;
use crate::state::int::Int;

/// Executes one instruction.
pub(crate) type Handler = fn(&mut Cpu, &Insn) -> Exec;

/// An instruction that reads and writes general registers alone, and always completes.
///
/// A backend can pass it the value of one of its register operands, in a register of the host.
pub(crate) trait Registers {
    /// Whether it writes its destination register.
    const WRITES: bool = true;
    /// The effect on the flags, if native code executes the instruction as itself.
    const FLAGS: Option<FlagEffect> = None;

    /// Executes it. `forwarded` is the value of operand `N` (see [`crate::insn::operand`]). Returns
    /// the value of the destination register, or `forwarded` if it writes none.
    fn execute<const N: u8, T: Int>(cpu: &mut Cpu, insn: &Insn, forwarded: u64) -> u64;
}

/// An instruction with a memory operand, and with general registers otherwise.
///
/// A backend can pass it the value of the base or the index register.
pub(crate) trait Memory {
    /// Whether it writes its destination register.
    const WRITES: bool;
    /// See [`Registers::FLAGS`].
    const FLAGS: Option<FlagEffect> = None;

    /// Executes it. `forwarded` is the value of register `N` of the address (see
    /// [`crate::insn::operand`]). With `HIT` it aborts, before it has changed anything, where the
    /// TLB alone does not find the memory operand. Returns the value of the destination register,
    /// or `forwarded` if it writes none.
    fn execute<const HIT: bool, const N: u8, T: Int>(
        cpu: &mut Cpu,
        insn: &Insn,
        forwarded: u64,
    ) -> Result<u64, Abort>;
}

/// A short, frequent instruction whose operands are not forwarded.
///
/// A backend can make it part of its own code. If it lets the address of a local variable escape,
/// the interpreter's call of the next operation is no jump.
pub(crate) trait Inlined {
    /// Whether a value that the instruction before has forwarded is still that of its register.
    const KEEPS_REGISTERS: bool = false;
    /// See [`Registers::FLAGS`].
    const FLAGS: Option<FlagEffect> = None;

    /// Executes it. With `HIT` it aborts, before it has changed anything, where the TLB alone does
    /// not find its memory operand.
    fn execute<const HIT: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec;
}

/// Where an instruction's code comes from in one way to execute blocks.
pub(crate) trait Backend {
    /// What executes one instruction.
    type Code;

    /// Code that calls `handler`.
    fn handler(handler: Handler) -> Self::Code;
    /// Code of a [`Registers`] with operands of the size of `T`.
    fn registers<S: Registers, T: Int>() -> Self::Code;
    /// Code of a [`Memory`] with operands of the size of `T`.
    fn memory<S: Memory, T: Int>() -> Self::Code;
    /// Code of an [`Inlined`] with operands of the size of `T`.
    fn inlined<S: Inlined, T: Int>() -> Self::Code;
}

/// What a processor does with one [`Code`].
struct Row<C> {
    /// Without a memory operand.
    register: Option<C>,
    /// With a memory operand.
    memory: Option<C>,
    /// Adds to the effective address what no addressing form has, and leaves it in
    /// [`crate::insn::reg::TMP`].
    addend: Option<Handler>,
    /// What the instruction does before its memory operand's segment is checked, where an operation
    /// of its own computes the address.
    before_address: Option<Handler>,
    /// How native code executes the instruction as itself, if it does.
    native: Option<Native>,
}

/// What executes each instruction on a backend.
pub(crate) struct Table<B: Backend>(Vec<Row<B::Code>>);

impl<B: Backend> Table<B> {
    /// The table without rows: no instruction is known.
    pub(crate) fn new() -> Self {
        Self(
            std::iter::repeat_with(|| Row {
                register: None,
                memory: None,
                addend: None,
                before_address: None,
                native: None,
            })
            .take(Code::values().len())
            .collect(),
        )
    }

    /// What executes `insn`, or `None` if it is not implemented.
    pub(crate) fn find(&self, insn: &Insn) -> Option<&B::Code> {
        let row = self.0.get(insn.code as usize)?;
        if insn.prefix & Insn::MEM != 0 {
            row.memory.as_ref()
        } else {
            row.register.as_ref()
        }
    }

    /// Adds to the effective address of `code` what no addressing form has; see
    /// [`Self::set_addend`].
    pub(crate) fn addend(&self, code: Code) -> Option<Handler> {
        self.0.get(code as usize)?.addend
    }

    /// What `code` does before its memory operand's segment is checked; see
    /// [`Self::set_before_address`].
    pub(crate) fn before_address(&self, code: Code) -> Option<Handler> {
        self.0.get(code as usize)?.before_address
    }

    /// Returns how native code executes `code` as itself, if it does.
    pub(crate) fn native(&self, code: Code) -> Option<Native> {
        self.0.get(code as usize)?.native
    }

    fn row(&mut self, code: Code) -> &mut Row<B::Code> {
        &mut self.0[code as usize]
    }

    fn set_register(&mut self, code: Code, entry: B::Code) {
        let before = self.row(code).register.replace(entry);
        debug_assert!(before.is_none(), "{code:?} has two entries for registers");
    }

    fn set_memory(&mut self, code: Code, entry: B::Code) {
        let before = self.row(code).memory.replace(entry);
        debug_assert!(before.is_none(), "{code:?} has two entries for memory");
    }

    fn set_native(&mut self, code: Code, flags: Option<FlagEffect>) {
        if let Some(flags) = flags {
            let form = NativeForm::Integer(flags);
            self.row(code).native = Some(Native { code, form });
        }
    }

    /// Rows of instructions that `handler` executes, whatever the operand is.
    pub(crate) fn handler<const K: usize>(
        &mut self,
        codes: [Code; K],
        handler: Handler,
    ) -> Rows<'_, B, K> {
        self.handlers(codes, handler, handler)
    }

    /// Rows of instructions that one handler executes with a register operand, and another with a
    /// memory operand.
    pub(crate) fn handlers<const K: usize>(
        &mut self,
        codes: [Code; K],
        register: Handler,
        memory: Handler,
    ) -> Rows<'_, B, K> {
        for code in codes {
            self.set_register(code, B::handler(register));
            self.set_memory(code, B::handler(memory));
        }
        Rows { table: self, codes }
    }

    /// Native code executes each of `codes` as the instruction of `others` at the same place: the
    /// same one without implicit registers, or without a hint.
    pub(crate) fn native_as<const K: usize>(&mut self, codes: [Code; K], others: [Code; K]) {
        for (code, other) in codes.into_iter().zip(others) {
            if let Some(native) = &mut self.row(code).native {
                native.code = other;
            }
        }
    }

    /// Row of an instruction that has no memory operand, or has `code` without one.
    pub(crate) fn registers<S: Registers, T: Int>(&mut self, code: Code) {
        self.set_register(code, B::registers::<S, T>());
        self.set_native(code, S::FLAGS);
    }

    /// [`Self::registers`] for operands of 16, 32 and 64 bits.
    pub(crate) fn registers_16_to_64<S: Registers>(&mut self, [c16, c32, c64]: [Code; 3]) {
        self.registers::<S, u16>(c16);
        self.registers::<S, u32>(c32);
        self.registers::<S, u64>(c64);
    }

    /// [`Self::registers`] for operands of 8, 16, 32 and 64 bits.
    pub(crate) fn registers_8_to_64<S: Registers>(&mut self, [c8, c16, c32, c64]: [Code; 4]) {
        self.registers::<S, u8>(c8);
        self.registers_16_to_64::<S>([c16, c32, c64]);
    }

    /// Row of an instruction with a memory operand.
    pub(crate) fn memory<S: Memory, T: Int>(&mut self, code: Code) {
        self.set_memory(code, B::memory::<S, T>());
        self.set_native(code, S::FLAGS);
    }

    /// [`Self::memory`] for operands of 16, 32 and 64 bits.
    pub(crate) fn memory_16_to_64<S: Memory>(&mut self, [c16, c32, c64]: [Code; 3]) {
        self.memory::<S, u16>(c16);
        self.memory::<S, u32>(c32);
        self.memory::<S, u64>(c64);
    }

    /// [`Self::memory`] for operands of 8, 16, 32 and 64 bits.
    pub(crate) fn memory_8_to_64<S: Memory>(&mut self, [c8, c16, c32, c64]: [Code; 4]) {
        self.memory::<S, u8>(c8);
        self.memory_16_to_64::<S>([c16, c32, c64]);
    }

    /// Row of an [`Inlined`] instruction that has no memory operand, or has `code` without one.
    pub(crate) fn inlined<S: Inlined, T: Int>(&mut self, code: Code) {
        self.set_register(code, B::inlined::<S, T>());
        self.set_native(code, S::FLAGS);
    }

    /// [`Self::inlined`] for operands of 16, 32 and 64 bits.
    pub(crate) fn inlined_16_to_64<S: Inlined>(&mut self, [c16, c32, c64]: [Code; 3]) {
        self.inlined::<S, u16>(c16);
        self.inlined::<S, u32>(c32);
        self.inlined::<S, u64>(c64);
    }

    /// Row of an [`Inlined`] instruction with a memory operand.
    pub(crate) fn inlined_memory<S: Inlined, T: Int>(&mut self, code: Code) {
        self.set_memory(code, B::inlined::<S, T>());
        self.set_native(code, S::FLAGS);
    }

    /// [`Self::inlined_memory`] for operands of 16, 32 and 64 bits.
    pub(crate) fn inlined_memory_16_to_64<S: Inlined>(&mut self, [c16, c32, c64]: [Code; 3]) {
        self.inlined_memory::<S, u16>(c16);
        self.inlined_memory::<S, u32>(c32);
        self.inlined_memory::<S, u64>(c64);
    }

    /// `handler` adds to the effective address of these instructions what no addressing form has,
    /// and leaves it in [`crate::insn::reg::TMP`], to be truncated and checked like any other.
    pub(crate) fn set_addend<const K: usize>(&mut self, codes: [Code; K], handler: Handler) {
        for code in codes {
            self.row(code).addend = Some(handler);
        }
    }

    /// `handler` runs before the memory operand's segment is checked, where an operation of its own
    /// computes the address.
    pub(crate) fn set_before_address<const K: usize>(
        &mut self,
        codes: [Code; K],
        handler: Handler,
    ) {
        for code in codes {
            self.row(code).before_address = Some(handler);
        }
    }
}

/// Rows that were just added.
pub(crate) struct Rows<'a, B: Backend, const K: usize> {
    table: &'a mut Table<B>,
    codes: [Code; K],
}

impl<B: Backend, const K: usize> Rows<'_, B, K> {
    /// Native code executes the instructions as themselves, with this effect on the flags.
    pub(crate) fn integer(self, flags: FlagEffect) {
        for code in self.codes {
            self.table.set_native(code, Some(flags));
        }
    }

    /// Native code executes the instructions as themselves.
    pub(crate) fn vector(self, form: VectorForm) {
        let form = NativeForm::Vector(form);
        for code in self.codes {
            self.table.row(code).native = Some(Native { code, form });
        }
    }
}
