//! Where control goes.

use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind, Register};

use crate::{Decoded, Part, Piece, Refused, Rules, Why};

/// What is known of each byte of a part.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    address: u64,
    bytes: Vec<u8>,
}

/// An instruction starts there.
const START: u8 = 1 << 0;
/// A jump leads there.
const TARGET: u8 = 1 << 1;
/// A call leads there.
const CALLED: u8 = 1 << 2;

impl Marks {
    /// Begins with another part.
    pub fn begin(&mut self, part: &Part<'_>) {
        self.address = part.address;
        self.bytes.clear();
        self.bytes.resize(part.code.len(), 0);
    }

    fn byte(&mut self, address: u64) -> Option<&mut u8> {
        let at = usize::try_from(address.wrapping_sub(self.address)).ok()?;
        self.bytes.get_mut(at)
    }

    fn has(&self, address: u64, mark: u8) -> bool {
        let at = address.wrapping_sub(self.address) as usize;
        self.bytes.get(at).is_some_and(|byte| byte & mark != 0)
    }

    /// Notes the start of an instruction.
    pub fn start(&mut self, i: &Instruction) {
        if let Some(byte) = self.byte(i.ip()) {
            *byte |= START;
        }
    }

    /// Whether a jump or a call leads to this address.
    pub fn is_target(&self, address: u64) -> bool {
        self.has(address, TARGET | CALLED)
    }
}

/// Whether the next instruction can be executed after this one.
pub(crate) fn goes_on(i: &Instruction) -> bool {
    !matches!(
        i.flow_control(),
        FlowControl::UnconditionalBranch | FlowControl::IndirectBranch | FlowControl::Exception
    )
}

/// Checks all jumps and calls, and marks where they lead.
pub(crate) fn check(
    rules: &Rules<'_>,
    piece: &Piece<'_>,
    parts: &mut [Decoded],
) -> Result<(), Refused> {
    let mut links = 0;
    for n in 0..parts.len() {
        for branch in 0..parts[n].branches.len() {
            let at = parts[n].branches[branch];
            let i = parts[n].instructions[at];
            let refused = Refused {
                address: i.ip(),
                why: Why::Jump,
            };
            let target = i.near_branch64();
            let is_call = i.mnemonic() == Mnemonic::Call;
            if is_call && rules.routines.contains(&target) {
                continue;
            }
            if !is_call && rules.exits.contains(&target) {
                links += count_link(piece, &i);
                continue;
            }
            if !is_call && target == rules.common_routine {
                // It is the second instruction of a common call, which `check_common_calls` finds.
                let before = at.checked_sub(1).map(|at| parts[n].instructions[at]);
                if before.is_some_and(|before| is_common_call(rules, &piece.parts[n], &before)) {
                    continue;
                }
                return Err(refused);
            }
            links += count_link(piece, &i);
            let mark = if is_call { CALLED } else { TARGET };
            let marked = parts.iter_mut().find_map(|part| part.marks.byte(target));
            match marked {
                Some(byte) if *byte & START != 0 => *byte |= mark,
                _ => return Err(refused),
            }
        }
    }
    for entry in piece.entries {
        let marked = parts.iter_mut().find_map(|part| part.marks.byte(*entry));
        match marked {
            Some(byte) if *byte & START != 0 => *byte |= TARGET,
            _ => {
                return Err(Refused {
                    address: *entry,
                    why: Why::Jump,
                });
            }
        }
    }
    // Each link is the displacement of a jump.
    if links != piece.links.len() {
        return Err(Refused {
            address: piece.links.first().copied().unwrap_or_default(),
            why: Why::Jump,
        });
    }
    let mut parts = piece.parts.iter().zip(parts.iter());
    parts.try_for_each(|(part, decoded)| check_common_calls(rules, part, decoded))
}

/// 1 if the displacement of this jump is a link.
fn count_link(piece: &Piece<'_>, i: &Instruction) -> usize {
    let is_link = |at: &&u64| i.code() == Code::Jmp_rel32_64 && **at == i.next_ip() - 4;
    usize::from(piece.links.iter().find(is_link).is_some())
}

/// Whether `i` is `LEA R14, [constants]` of a common call.
fn is_common_call(rules: &Rules<'_>, part: &Part<'_>, i: &Instruction) -> bool {
    let constants = || {
        let at = i.ip_rel_memory_address().wrapping_sub(part.address);
        let end = at.checked_add(rules.common_constants.into())?;
        (end <= part.code.len() as u64).then_some(())
    };
    i.code() == Code::Lea_r64_m
        && i.op0_register() == Register::R14
        && i.memory_base() == Register::RIP
        && constants().is_some()
}

/// Whether `i` is a direct jump to `target` in any case.
fn jumps_to(i: &Instruction, target: u64) -> bool {
    i.op0_kind() == OpKind::NearBranch64
        && i.mnemonic() == Mnemonic::Jmp
        && i.near_branch64() == target
}

/// A common call has a return address on the stack above the frame: it is reached by calls alone,
/// and calls lead to nothing else.
fn check_common_calls(
    rules: &Rules<'_>,
    part: &Part<'_>,
    decoded: &Decoded,
) -> Result<(), Refused> {
    for (n, i) in decoded.instructions.iter().enumerate() {
        let refused = Err(Refused {
            address: i.ip(),
            why: Why::Jump,
        });
        let before = n.checked_sub(1).map(|n| &decoded.instructions[n]);
        if jumps_to(i, rules.common_routine) {
            let is_reached = decoded.marks.has(i.ip(), TARGET | CALLED);
            if is_reached || !before.is_some_and(|i| decoded.marks.has(i.ip(), CALLED)) {
                return refused;
            }
        }
        if !decoded.marks.has(i.ip(), CALLED) {
            continue;
        }
        let next = decoded.instructions.get(n + 1);
        let is_common = is_common_call(rules, part, i)
            && next.is_some_and(|next| {
                next.ip() == i.next_ip() && jumps_to(next, rules.common_routine)
            });
        let falls_in = before.is_some_and(|before| before.next_ip() == i.ip() && goes_on(before));
        if !is_common || falls_in || decoded.marks.has(i.ip(), TARGET) {
            return refused;
        }
    }
    Ok(())
}
