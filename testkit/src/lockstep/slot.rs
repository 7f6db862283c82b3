//! Slots: functions of 16 bytes in the frames of code, which a program calls through every window
//! and overwrites. The argument is in EDI, the result in EAX.

use crate::random::Random;

/// Size of a slot.
pub(super) const SIZE: u64 = 16;
/// Slots of a page.
pub(super) const COUNT: u64 = 256;
/// The last slot of a page. Its last instruction goes on in the next page.
pub(super) const LAST: u64 = COUNT - 1;

const RET: u8 = 0xC3;
const NOP: u8 = 0x90;

/// The bytes of one of a page's slots.
pub(super) fn random(slot: u64, random: &mut Random) -> [u8; SIZE as usize] {
    let mut bytes = [NOP; SIZE as usize];
    let imm = random.bits().to_le_bytes();
    let [a, b, c, d, ..] = imm;
    if slot == 0 {
        // The rest of an instruction of the page before, and a return after it.
        bytes[0] = a;
        bytes[8] = RET;
        return bytes;
    }
    if slot == LAST {
        // LEA EAX, [RDI + imm32]; RCL EDI, imm8; RCR DI, imm8; MOV AL, imm8; ADDSS XMM0, [RBX +
        // imm8]; VADDPS YMM0, YMM1, [RBX + imm8]; ADD [RBX + imm32], EAX; CPUID with EAX = EDI
        let (crossing, after): (&[u8], u64) = match random.below(8) {
            0 => (&[0x8D, 0x87], random.below(4)),
            1 => (&[0xC1, 0xD7], 0),
            2 => (&[0x66, 0xC1, 0xDF], 0),
            3 => (&[0xB0], 0),
            4 => (&[0xF3, 0x0F, 0x58, 0x43], 0),
            5 => (&[0xC5, 0xF4, 0x58, 0x43], 0),
            6 => (&[0x01, 0x83], random.below(4)),
            _ => (&[0x0F], 0),
        };
        let here = [crossing, &imm[..after as usize]].concat();
        bytes[SIZE as usize - here.len()..].copy_from_slice(&here);
        return bytes;
    }
    let back = (SIZE * (slot + 1)).min(0x60) as u8;
    let to_slot = |from: u64, to: u64| (SIZE * to).wrapping_sub(SIZE * slot + from) as u32;
    let ahead = slot + 1 + random.below(LAST - slot);
    let [j0, j1, j2, j3] = to_slot(5, ahead).to_le_bytes();
    let code: &[u8] = match random.below(20) {
        // LEA EAX, [RDI + imm32]; RET
        0..=2 => &[0x8D, 0x87, a, b, c, d, RET],
        // RCL EDI, imm8; MOV EAX, EDI; RET
        3..=4 => &[0xC1, 0xD7, a & 31, 0x89, 0xF8, RET],
        // MOV EAX, EDI; BSWAP EAX; XOR EAX, imm32; RET
        5 => &[0x89, 0xF8, 0x0F, 0xC8, 0x35, a, b, c, d, RET],
        // PUSH 20; POP RCX; ADD EDI, ECX; ROL EDI, 3; DEC ECX; JNZ; MOV EAX, EDI; RET
        6 => &[
            0x6A, 20, 0x59, 0x01, 0xCF, 0xC1, 0xC7, 3, 0xFF, 0xC9, 0x75, 0xF7, 0x89, 0xF8, RET,
        ],
        // MOV EAX, EDI; XOR EAX, [RIP - back], which is code; RET
        7 => &[
            0x89,
            0xF8,
            0x33,
            0x05,
            back.wrapping_neg(),
            0xFF,
            0xFF,
            0xFF,
            RET,
        ],
        // PUSHFQ; POP RAX; XOR EAX, EDI; RET
        8 => &[0x9C, 0x58, 0x31, 0xF8, RET],
        // JMP to a slot behind this one
        9 => &[0xE9, j0, j1, j2, j3],
        // CALL of one; RET
        10 => &[0xE8, j0, j1, j2, j3, RET],
        // MOV [RIP + 2], EDI: the immediate of LEA EAX, [RDI + imm32]; RET
        11 => &[0x89, 0x3D, 2, 0, 0, 0, 0x8D, 0x87, a, b, c, d, RET],
        // SWAPGS; SWAPGS; MOV EAX, EDI; RET
        12 => &[0x0F, 0x01, 0xF8, 0x0F, 0x01, 0xF8, 0x89, 0xF8, RET],
        // BTR EAX, EDI; BSF EAX, EDI; LFENCE; ADC EAX, EDI; RET
        13 => &[
            0x0F, 0xB3, 0xF8, 0x0F, 0xBC, 0xC7, 0x0F, 0xAE, 0xE8, 0x11, 0xF8, RET,
        ],
        // DIVSS XMM0, [RBX + imm8]; VMULPS YMM1, YMM0, [RBX]; RET
        14 => &[
            0xF3,
            0x0F,
            0x5E,
            0x43,
            a & 0x7C,
            0xC5,
            0xFC,
            0x59,
            0x0B,
            RET,
        ],
        // PUSH RBX; XOR EAX, EAX; CPUID; XOR EAX, EDI; POP RBX; RET
        15 => &[0x53, 0x31, 0xC0, 0x0F, 0xA2, 0x31, 0xF8, 0x5B, RET],
        // PAUSE; LOCK XADD [RBX + 8], EDI; MOV EAX, EDI; RET
        16 => &[0xF3, NOP, 0xF0, 0x0F, 0xC1, 0x7B, 8, 0x89, 0xF8, RET],
        // TEST EDI, 1; JZ over the rest; ADD EDI, imm32; MOV EAX, EDI; RET
        17 => &[
            0xF7, 0xC7, 1, 0, 0, 0, 0x74, 6, 0x81, 0xC7, a, b, c, d, RET, RET,
        ],
        // RDTSC; RDTSCP; MOV EDX, EDI; XOR EAX, EDX; RET
        18 => &[0x0F, 0x31, 0x0F, 0x01, 0xF9, 0x89, 0xFA, 0x31, 0xD0, RET],
        // JMP RAX leads nowhere; LEA RAX, [RIP + 3]; JMP RAX; INT3; LEA EAX, [RDI + imm8]; RET
        _ => &[
            0x48, 0x8D, 0x05, 3, 0, 0, 0, 0xFF, 0xE0, 0xCC, 0x8D, 0x47, a, RET,
        ],
    };
    bytes[..code.len()].copy_from_slice(code);
    bytes
}
