//! A second check of native code, which shares nothing with the crate `vbts_verifier` but its types
//! and iced-x86: an oracle for it.
//!
//! It follows every path from the entries, byte by byte, instead of going through a list of
//! instructions, and refuses what is dangerous instead of accepting what is listed. So it accepts
//! more. What `vbts_verifier` accepts, it must accept.

use std::collections::HashSet;

use iced_x86::{
    Code, CpuidFeature, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory,
    Mnemonic, OpAccess, OpKind, Register, UsedMemory,
};
use vbts_verifier::{Field, Piece, Rules};

/// What a register has: a term over what native code can load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Term {
    #[default]
    Other,
    /// Less than or equal to this mask, and a part of it.
    Masked(u32),
    /// The TLB's address plus an offset of at most this one.
    Tlb(u32),
    /// The address of a table of jump targets, or of the entry of this mask.
    Jumps(Option<u32>),
    /// The address of an entry whose first word has been compared: the flags have the result.
    JumpsIfEqual,
    /// The address of an entry whose first word is the target.
    JumpsEqual,
    /// The index of the window; as compared with the end; as one below the end; the next one.
    Index(u8),
    /// Address in the piece.
    InPiece(u64),
}

/// A place on a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Place {
    ip: u64,
    rax: Term,
    r14: Term,
    /// There is a return address on the stack.
    called: bool,
}

/// Why a piece is refused: for messages of tests.
pub type Reason = String;

struct Walk<'a> {
    rules: &'a Rules<'a>,
    piece: &'a Piece<'a>,
    info: InstructionInfoFactory,
    seen: HashSet<Place>,
    left: Vec<Place>,
}

/// Checks a piece.
///
/// # Errors
/// It does something that it may not.
pub fn verify(rules: &Rules<'_>, piece: &Piece<'_>) -> Result<(), Reason> {
    let place = |ip: &u64| Place {
        ip: *ip,
        rax: Term::Other,
        r14: Term::Other,
        called: false,
    };
    let mut walk = Walk {
        rules,
        piece,
        info: InstructionInfoFactory::new(),
        seen: HashSet::new(),
        left: piece.entries.iter().map(place).collect(),
    };
    while let Some(place) = walk.left.pop() {
        if walk.seen.insert(place) {
            walk.step(place)
                .map_err(|why| format!("{:#x}: {why}", place.ip))?;
        }
    }
    Ok(())
}

impl Walk<'_> {
    /// The bytes from an address on, to the end of its part.
    fn bytes(&self, address: u64) -> Option<&[u8]> {
        self.piece.parts.iter().find_map(|part| {
            let at = usize::try_from(address.checked_sub(part.address)?).ok()?;
            part.code.get(at..).filter(|rest| !rest.is_empty())
        })
    }

    fn step(&mut self, place: Place) -> Result<(), Reason> {
        let bytes = self.bytes(place.ip).ok_or("outside the piece")?;
        let i = Decoder::with_ip(64, bytes, place.ip, DecoderOptions::NONE).decode();
        if i.is_invalid() {
            return Err("no instruction".into());
        }
        self.check_operation(&i)?;
        self.check_registers(&i)?;
        self.check_links(&i)?;
        let memory: Vec<UsedMemory> = self.info.info(&i).used_memory().to_vec();
        for used in &memory {
            self.check_memory(&i, used, place)?;
        }
        let next = self.effect(&i, place);
        self.follow(&i, place, next)
    }

    /// Neither the kernel nor another state of the processor.
    fn check_operation(&self, i: &Instruction) -> Result<(), Reason> {
        use CpuidFeature::*;
        let dangerous = |feature: &CpuidFeature| {
            matches!(
                feature,
                FSGSBASE
                    | XSAVE
                    | XSAVEC
                    | XSAVEOPT
                    | XSAVES
                    | FXSR
                    | PKU
                    | SYSCALL
                    | SEP
                    | VMX
                    | SVM
                    | SMX
                    | RTM
                    | HLE
                    | MONITOR
                    | MONITORX
                    | WAITPKG
                    | UINTR
                    | CET_SS
                    | CET_IBT
                    | INVPCID
                    | RDPID
                    | CLZERO
                    | MMX
                    | FPU
                    | FPU287
                    | FPU387
                    | AVX512F
                    | AVX512VL
                    | AVX512BW
                    | AVX512DQ
                    | ENQCMD
                    | MOVDIR64B
                    | AMX_TILE
                    | KL
                    | SERIALIZE
            )
        };
        let features = i.code().cpuid_features();
        let is_call = matches!(i.mnemonic(), Mnemonic::Call);
        let bad = i.is_privileged()
            || i.is_stack_instruction() && !is_call
            || features.iter().any(dangerous)
            || i.is_string_instruction()
            || i.is_vsib()
            || i.is_save_restore_instruction()
            || matches!(
                i.flow_control(),
                FlowControl::Interrupt | FlowControl::XbeginXabortXend | FlowControl::Return
            )
            || matches!(
                i.mnemonic(),
                Mnemonic::Rdtsc | Mnemonic::Rdtscp | Mnemonic::Cpuid
            );
        if bad { Err("operation".into()) } else { Ok(()) }
    }

    /// RSP and R15 stay, and so do segments.
    fn check_registers(&mut self, i: &Instruction) -> Result<(), Reason> {
        let is_call = i.mnemonic() == Mnemonic::Call;
        for used in self.info.info(i).used_registers() {
            let written = !matches!(
                used.access(),
                OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
            );
            let r = used.register();
            let stays = match r.full_register() {
                Register::RSP => !is_call,
                Register::R15 => true,
                _ => r.is_segment_register() || r.is_cr() || r.is_dr(),
            };
            if written && stays {
                return Err(format!("writes {r:?}"));
            }
        }
        Ok(())
    }

    /// What is patched later is the displacement of a jump.
    fn check_links(&self, i: &Instruction) -> Result<(), Reason> {
        for link in self.piece.links {
            let overlaps = i.ip() < link + 4 && *link < i.next_ip();
            let is_jump = i.code() == Code::Jmp_rel32_64 && *link == i.next_ip() - 4;
            if overlaps && !is_jump {
                return Err("a link in another instruction".into());
            }
        }
        Ok(())
    }

    fn check_memory(&self, i: &Instruction, used: &UsedMemory, place: Place) -> Result<(), Reason> {
        let reads = matches!(used.access(), OpAccess::Read | OpAccess::CondRead);
        if used.access() == OpAccess::NoMemAccess {
            return Ok(());
        }
        let size = used.memory_size().size() as i64;
        let disp = used.displacement() as i64;
        let describe = || format!("{i}: {used:?}");
        // A call pushes below the frame.
        if i.mnemonic() == Mnemonic::Call && used.base() == Register::RSP && !reads {
            return Ok(());
        }
        let by_register = matches!(
            i.mnemonic(),
            Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc
        ) && i.op1_kind() == OpKind::Register;
        if by_register {
            let bounded = i.op1_register().full_register() == Register::RAX
                && matches!(place.rax, Term::Masked(mask) if mask < 64);
            if !bounded {
                return Err(describe());
            }
        }
        if used.segment() == Register::GS {
            let short = matches!(used.address_size(), iced_x86::CodeSize::Code32);
            let relative = i.is_ip_rel_memory_operand();
            return if short && !relative {
                Ok(())
            } else {
                Err(describe())
            };
        }
        if used.segment() == Register::FS
            || used.index() != Register::None
            || used.address_size() != iced_x86::CodeSize::Code64
        {
            return Err(describe());
        }
        let allowed = match used.base() {
            Register::RSP if place.called => false,
            Register::RSP => {
                has(self.rules.frame, disp, size, reads)
                    || i.mnemonic() == Mnemonic::Ldmxcsr && disp == i64::from(self.rules.host_mxcsr)
            }
            Register::R15 => {
                has(self.rules.processor, disp, size, reads)
                    || matches!(i.mnemonic(), Mnemonic::Ldmxcsr | Mnemonic::Stmxcsr)
                        && disp == i64::from(self.rules.mxcsr)
                    || disp == i64::from(self.rules.window_index)
                        && i.code() == Code::Mov_rm64_r64
                        && i.op1_register() == Register::RAX
                        && place.rax == Term::Index(3)
            }
            Register::RAX => reads && self.table(place.rax, disp, size),
            Register::R14 => reads && self.table(place.r14, disp, size),
            Register::None if i.is_ip_rel_memory_operand() => {
                let address = i.ip_rel_memory_address();
                let last = address.wrapping_add(size as u64).wrapping_sub(1);
                let inside = self.piece.parts.iter().any(|part| {
                    let end = part.address + part.code.len() as u64;
                    part.address <= address && address <= last && last < end
                });
                reads && (inside || size == 8 && self.piece.keys.contains(&address))
            }
            _ => false,
        };
        if allowed { Ok(()) } else { Err(describe()) }
    }

    /// Whether bytes behind a pointer with this term can be read.
    fn table(&self, term: Term, disp: i64, size: i64) -> bool {
        let end = i64::from(self.rules.tlb_mask) + i64::from(self.rules.tlb_entry);
        match term {
            Term::Tlb(offset) => disp >= 0 && i64::from(offset) + disp + size <= end,
            Term::Jumps(Some(_)) => disp == 0 && size == 8,
            Term::JumpsEqual => disp == i64::from(self.rules.jump_code) && size == 8,
            _ => false,
        }
    }

    /// The terms after an instruction.
    fn effect(&mut self, i: &Instruction, place: Place) -> Place {
        let mut next = place;
        // Whether `i` is this instruction of a register and of memory at `at` from `base`.
        let is = |code: Code, base: Register, at: i32| {
            i.code() == code
                && i.op1_kind() == OpKind::Memory
                && (i.memory_base(), i.memory_index()) == (base, Register::None)
                && i.segment_prefix() == Register::None
                && i.memory_displacement64() as i32 == at
        };
        let loads = |base: Register, at: i32| is(Code::Mov_r64_rm64, base, at);
        let compares = |base: Register, at: i32| is(Code::Cmp_r64_rm64, base, at);
        // Flags are used at once, or not at all.
        if next.rax == Term::Index(1) {
            next.rax = Term::Other;
            if i.mnemonic() == Mnemonic::Jae {
                next.rax = Term::Index(2);
            }
        }
        if next.r14 == Term::JumpsIfEqual {
            next.r14 = Term::Other;
            if i.mnemonic() == Mnemonic::Jne {
                next.r14 = Term::JumpsEqual;
            }
        }
        for used in self.info.info(i).used_registers() {
            if matches!(used.access(), OpAccess::Read | OpAccess::CondRead) {
                continue;
            }
            match used.register().full_register() {
                Register::RAX => next.rax = Term::Other,
                Register::R14 => next.r14 = Term::Other,
                _ => {}
            }
        }
        if i.mnemonic() == Mnemonic::Call {
            (next.rax, next.r14) = (Term::Other, Term::Other);
        }
        let text = i.to_string();
        match i.op0_register() {
            Register::EAX
                if i.mnemonic() == Mnemonic::And
                    && i.op1_kind() != OpKind::Memory
                    && i.op1_kind() != OpKind::Register =>
            {
                next.rax = Term::Masked(i.immediate(1) as u32);
            }
            Register::RAX if loads(Register::R15, self.rules.window_index) => {
                next.rax = Term::Index(0);
            }
            Register::RAX
                if place.rax == Term::Index(0)
                    && compares(Register::R15, self.rules.window_end) =>
            {
                next.rax = Term::Index(1);
            }
            Register::RAX
                if place.rax == Term::Index(2)
                    && i.mnemonic() == Mnemonic::Add
                    && i.op1_kind() == OpKind::Immediate8to64
                    && i.immediate(1) == u64::from(self.rules.record) =>
            {
                next.rax = Term::Index(3);
            }
            Register::RAX if is(Code::Add_r64_rm64, Register::R15, self.rules.tlb) => {
                if let Term::Masked(mask) = place.rax
                    && mask & !self.rules.tlb_mask == 0
                {
                    next.rax = Term::Tlb(mask);
                }
            }
            Register::R14 if loads(Register::R15, self.rules.tlb) => next.r14 = Term::Tlb(0),
            Register::R14 if i.code() == Code::Lea_r64_m && i.is_ip_rel_memory_operand() => {
                let address = i.ip_rel_memory_address();
                next.r14 = match self.rules.jumps.contains(&address) {
                    true => Term::Jumps(None),
                    false => Term::InPiece(address),
                };
            }
            Register::R14 if text == "lea r14,[r14+rax*8]" => {
                if let (Term::Masked(mask), Term::Jumps(None)) = (place.rax, place.r14)
                    && mask & !self.rules.jump_mask == 0
                {
                    next.r14 = Term::Jumps(Some(mask));
                }
            }
            Register::RAX
                if matches!(place.r14, Term::Jumps(Some(_))) && compares(Register::R14, 0) =>
            {
                next.r14 = Term::JumpsIfEqual;
            }
            _ => {}
        }
        next.ip = i.next_ip();
        next
    }

    /// Adds the places that follow.
    fn follow(&mut self, i: &Instruction, place: Place, next: Place) -> Result<(), Reason> {
        let near = i.op_count() > 0 && i.op0_kind() == OpKind::NearBranch64;
        let target = i.near_branch64();
        let inside = near && self.bytes(target).is_some();
        match i.flow_control() {
            FlowControl::Next => self.left.push(next),
            FlowControl::Exception => {}
            FlowControl::UnconditionalBranch if near && target == self.rules.common_routine => {
                let Term::InPiece(constants) = place.r14 else {
                    return Err("no constants of a common call".into());
                };
                let len = self.rules.common_constants as usize;
                let found = self
                    .bytes(constants)
                    .is_some_and(|bytes| bytes.len() >= len);
                if !place.called || !found {
                    return Err("a common call".into());
                }
            }
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch if near => {
                let is_exit = self.rules.exits.contains(&target);
                if is_exit && place.called || !is_exit && !inside {
                    return Err(format!("a jump to {target:#x}"));
                }
                if !is_exit {
                    // Flags and what they say of a term hold where the branch is not taken.
                    let (rax, r14) = (Term::Other, Term::Other);
                    self.left.push(Place {
                        ip: target,
                        rax,
                        r14,
                        ..next
                    });
                }
                if i.flow_control() == FlowControl::ConditionalBranch {
                    self.left.push(next);
                }
            }
            FlowControl::IndirectBranch => {
                let found = place.r14 == Term::JumpsEqual
                    && i.code() == Code::Jmp_rm64
                    && i.op0_kind() == OpKind::Memory
                    && i.memory_base() == Register::R14;
                if !found || place.called {
                    return Err("an indirect jump".into());
                }
            }
            FlowControl::Call if near => {
                if place.called {
                    return Err("a call in a call".into());
                }
                if !self.rules.routines.contains(&target) {
                    if !inside {
                        return Err(format!("a call of {target:#x}"));
                    }
                    self.left.push(Place {
                        ip: target,
                        called: true,
                        ..next
                    });
                }
                self.left.push(next);
            }
            _ => return Err("flow".into()),
        }
        Ok(())
    }
}

fn has(fields: &[Field], at: i64, size: i64, reads: bool) -> bool {
    fields.iter().any(|field| {
        let start = i64::from(field.at);
        (field.writable || reads)
            && (start..=start + i64::from(field.len)).contains(&at)
            && at + size <= start + i64::from(field.len)
    })
}
