//! Changed bytes: prefixes that mean nothing, or something else, and byte sequences that are no
//! instruction.

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};

use super::super::Mode;
use super::super::layout::{CODE, CODE_LEN};
use super::super::vendor::{Behaviour, Vendor};
use super::codes::needs_initial_state;
use super::{Case, Generator};

const PREFIXES: [u8; 11] = [
    0x66, 0x67, 0xF2, 0xF3, 0xF0, 0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65,
];

/// Longest instruction, in bytes.
const MAX_INSTRUCTION: usize = 15;

impl Generator {
    /// Changes the bytes of a case's only instruction; `None` if what comes out is not to be
    /// compared.
    pub(super) fn mutate(&mut self, mut case: Case) -> Option<Case> {
        let length = case.instructions.first()?.len();
        let mut bytes = case.code[..length].to_vec();
        for _ in 0..=self.random.below(2) {
            self.change(&mut bytes);
        }
        bytes.truncate(MAX_INSTRUCTION + 2);
        case.code.fill(0xCC);
        case.code[..bytes.len()].copy_from_slice(&bytes);

        // What the bytes are: INT3s follow, as in memory.
        let mut decoder = Decoder::with_ip(
            self.mode.bitness(),
            &case.code[..MAX_INSTRUCTION + 1],
            CODE,
            DecoderOptions::NONE,
        );
        let instruction = decoder.decode();
        let invalid = instruction.code() == Code::INVALID;
        let known = invalid
            && !differs_by_vendor(self.vendor, self.mode, &case.code[..MAX_INSTRUCTION + 1])
            || self.codes.contains(&instruction.code())
                && !needs_initial_state(instruction.code())
                && !is_left_out(self.vendor, &instruction, &bytes);
        if !invalid {
            case.code[instruction.len()..bytes.len().max(instruction.len())].fill(0xCC);
        }
        case.instructions = vec![instruction];
        known.then_some(case)
    }

    fn change(&mut self, bytes: &mut Vec<u8>) {
        let at = self.random.below(bytes.len() as u64) as usize;
        match self.random.below(8) {
            0..=3 => bytes.insert(0, self.random.pick(&PREFIXES)),
            // REX, if it is next to the opcode.
            4 if self.mode == Mode::Bits64 => bytes.insert(0, 0x40 | self.random.below(16) as u8),
            5 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = self.random.bits() as u8;
                }
            }
            6 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << self.random.below(8);
                }
            }
            _ => {
                bytes.remove(at);
                bytes.push(self.random.bits() as u8);
            }
        }
    }
}

/// Whether bytes that are no instruction of the software CPU's may be one of the host's: what
/// virtualisation extensions make of 0F 01, MOV to and from a control register, VERW, VPERMQ, and
/// EVEX.
fn differs_by_vendor(vendor: Vendor, mode: Mode, bytes: &[u8]) -> bool {
    let lock_mov = vendor.may_differ(Behaviour::LockMovCr);
    bytes
        .windows(2)
        .any(|pair| matches!(pair, [0x0F, 0x01]) || lock_mov && matches!(pair, [0x0F, 0x20..=0x23]))
        || vendor.may_differ(Behaviour::LockVerw) && is_locked_verw(mode, bytes)
        || vendor.may_differ(Behaviour::NarrowPermute) && bytes.windows(4).any(is_narrow_permute)
        || is_x86_feature_detected!("avx512f") && is_vex(mode, bytes)
}

/// Whether the bytes have a VEX or EVEX prefix. A processor with AVX-512 ignores bits of them that
/// the decoder checks: registers above 7. In 32-bit code it is LES, LDS or BOUND if bits 7 and 6 of
/// the second byte are not set.
fn is_vex(mode: Mode, bytes: &[u8]) -> bool {
    // A processor ignores REX before another prefix.
    let is_rex = |byte| mode == Mode::Bits64 && matches!(byte, 0x40..=0x4F);
    let mut opcode = bytes
        .iter()
        .skip_while(|byte| PREFIXES.contains(byte) || is_rex(**byte));
    matches!(opcode.next(), Some(0x62 | 0xC4 | 0xC5))
        && (mode == Mode::Bits64 || opcode.next().is_some_and(|byte| *byte >= 0xC0))
}

/// Whether the bytes are the prefix and opcode of VPERMQ or VPERMPD with VEX.W clear:
/// VEX.256.66.0F3A 00 and 01.
fn is_narrow_permute(bytes: &[u8]) -> bool {
    matches!(bytes, [0xC4, map, last, 0x00 | 0x01] if map & 0x1F == 3 && last & 0x87 == 0x05)
}

/// Whether the bytes begin with VERW of memory that has a LOCK prefix. For the decoder it is
/// invalid because of the prefix.
fn is_locked_verw(mode: Mode, bytes: &[u8]) -> bool {
    let mut decoder = Decoder::new(mode.bitness(), bytes, DecoderOptions::NO_INVALID_CHECK);
    let instruction = decoder.decode();
    instruction.mnemonic() == Mnemonic::Verw
        && instruction.op0_kind() == OpKind::Memory
        && instruction.has_lock_prefix()
}

/// Branches that do not lead to the INT3s, 16-bit shifts beyond the operand, and where vendors
/// differ.
fn is_left_out(vendor: Vendor, instruction: &Instruction, bytes: &[u8]) -> bool {
    let branch = instruction.flow_control() != FlowControl::Next;
    let ends = CODE + bytes.len() as u64..CODE + CODE_LEN as u64;
    let astray = branch && !ends.contains(&instruction.near_branch_target());
    let wide_shift = matches!(
        instruction.code(),
        Code::Shld_rm16_r16_imm8 | Code::Shrd_rm16_r16_imm8
    ) && instruction.immediate8() & 31 > 16;
    let mnemonic = instruction.mnemonic();
    let repeat = bytes.contains(&0xF2) || bytes.contains(&0xF3);
    let differs = vendor.may_differ(Behaviour::RepeatedLoop)
        && matches!(mnemonic, Mnemonic::Loope | Mnemonic::Loopne)
        && repeat
        || vendor.may_differ(Behaviour::PauseR8) && mnemonic == Mnemonic::Pause
        || vendor.may_differ(Behaviour::NarrowBranch) && branch && bytes.contains(&0x66)
        || vendor.may_differ(Behaviour::WideVexIn32Bits) && is_wide_move(instruction.code(), bytes);
    astray || wide_shift || differs
}

/// Whether the instruction moves 32 bits between a vector and another operand although VEX.W is
/// set. The decoder ignores the bit in 32-bit code; in 64-bit code the instruction moves 64 bits.
fn is_wide_move(code: Code, bytes: &[u8]) -> bool {
    let moves = [
        Code::VEX_Vpextrd_rm32_xmm_imm8,
        Code::VEX_Vpinsrd_xmm_xmm_rm32_imm8,
    ];
    let is_wide = |vex: &[u8]| matches!(vex, [0xC4, _, last] if last & 0x80 != 0);
    moves.contains(&code) && bytes.windows(3).any(is_wide)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

    use iced_x86::IcedError;
    use iced_x86::code_asm::*;

    use super::*;

    /// An instruction, with LOCK in front of it if `lock` is set.
    fn encode(
        mode: Mode,
        lock: bool,
        code: fn(&mut CodeAssembler) -> Result<(), IcedError>,
    ) -> Vec<u8> {
        let mut a = CodeAssembler::new(mode.bitness()).unwrap();
        code(&mut a).unwrap();
        let prefix: &[u8] = if lock { &[0xF0] } else { &[] };
        [prefix, &a.assemble(CODE).unwrap()].concat()
    }

    #[test]
    fn moves_of_32_bits_are_left_out_if_vex_says_64() {
        for (w, is_left) in [(0x79, false), (0xF9, true)] {
            let bytes = [0xC4, 0xE3, w, 0x16, 0xD9, 0x0E];
            let mut decoder = Decoder::with_ip(32, &bytes, CODE, DecoderOptions::NONE);
            let instruction = decoder.decode();
            assert_eq!(instruction.mnemonic(), Mnemonic::Vpextrd);
            assert_eq!(is_left_out(Vendor::Amd, &instruction, &bytes), is_left);
            assert!(!is_left_out(Vendor::Intel, &instruction, &bytes));
        }
    }

    #[test]
    fn permutes_with_vex_w_clear_are_left_out_only_for_amd() {
        for (w, is_left) in [(0x7D, true), (0xFD, false)] {
            let bytes = [0x67, 0xC4, 0xC3, w, 0x00, 0x2A, 0x5F];
            assert_eq!(bytes.windows(4).any(is_narrow_permute), is_left);
        }
        let (amd, intel) = (Vendor::Amd, Vendor::Intel);
        assert!(amd.may_differ(Behaviour::NarrowPermute));
        assert!(!intel.may_differ(Behaviour::NarrowPermute));
    }

    #[test]
    fn vex_is_left_out_and_bound_is_not() {
        let evex = [0x3E, 0x62, 0xC1, 0x4D, 0x00, 0xE3];
        assert!(is_vex(Mode::Bits32, &evex));
        assert!(is_vex(Mode::Bits64, &evex[1..]));
        assert!(is_vex(Mode::Bits64, &[0x47, 0x67, 0xC5, 0x79, 0x91]));
        assert!(!is_vex(Mode::Bits32, &[0x47, 0x67, 0xC5, 0xF9, 0x91]));
        let vex = [0x64, 0xC5, 0xC4, 0x45, 0xC5];
        assert!(is_vex(Mode::Bits32, &vex));
        let bound = encode(Mode::Bits32, false, |a| a.bound(eax, dword_ptr(ecx)));
        assert!(!is_vex(Mode::Bits32, &bound));
        assert!(is_vex(Mode::Bits64, &bound));
        assert!(!is_vex(Mode::Bits32, &[0x0F, 0x62, 0xC1]));
    }

    #[test]
    fn only_a_locked_verw_of_memory_is_left_out_and_only_for_amd() {
        for mode in [Mode::Bits64, Mode::Bits32] {
            let verw = encode(mode, true, |a| a.verw(word_ptr(eax)));
            assert!(differs_by_vendor(Vendor::Amd, mode, &verw));
            assert!(!differs_by_vendor(Vendor::Intel, mode, &verw));
            let others = [
                encode(mode, false, |a| a.verw(word_ptr(eax))),
                // A displacement with the value of the prefix.
                encode(mode, false, |a| a.verw(word_ptr(eax - 0x10))),
                encode(mode, true, |a| a.verw(ax)),
                encode(mode, true, |a| a.verr(word_ptr(eax))),
                encode(mode, true, |a| a.sldt(word_ptr(eax))),
            ];
            for bytes in others {
                assert!(
                    !differs_by_vendor(Vendor::Amd, mode, &bytes),
                    "{mode:?} {bytes:02x?}"
                );
            }
        }
    }
}
