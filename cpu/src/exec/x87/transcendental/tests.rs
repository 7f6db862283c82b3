use super::*;
use crate::exec::x87::host;

use Operation::*;

/// A linear congruential generator (Knuth, The Art of Computer Programming, 3.3.4).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        let mut half = || {
            let product = self.0.wrapping_mul(6_364_136_223_846_793_005);
            self.0 = product.wrapping_add(1);
            self.0 >> 32
        };
        half() << 32 | half()
    }

    /// A normal number with an exponent from `low` to `high`.
    fn number(&mut self, (low, high): (i32, i32)) -> u128 {
        let exponent = 0x3FFF + low + (self.next() % (high - low + 1) as u64) as i32;
        let sign = u128::from(self.next() & 1) << 79;
        sign | (exponent as u128) << 64 | u128::from(self.next() | 1 << 63)
    }
}

/// The registers with `x` in ST(0), `y` in ST(1), and others that are empty.
fn state(x: u128, y: u128, fcw: u16) -> X87State {
    let mut x87 = X87State {
        fcw,
        fsw: 5 << 11 | C1,
        ftw: 0b0110_0000,
        ..X87State::default()
    };
    x87.set_st(0, x);
    x87.set_st(1, y);
    x87
}

/// The number of numbers between zero and this one.
fn ordinal(bits: u128) -> u128 {
    (bits & !SIGN) >> 64 << 63 | u128::from(bits as u64 & !(1 << 63))
}

/// Executes an instruction here and on the host. Panics if this does what the manual does not allow
/// beside what the host does: numbers may differ by one unit in the last place, and C1 tells how
/// they were rounded.
fn compare(operation: Operation, before: X87State) {
    let (mut own, mut other) = (before, before);
    execute(&mut own, operation);
    // SAFETY: no exception is pending, and the instructions access the FPU alone.
    unsafe { host::run_register(&mut other, 1, operation as u8, 0) };
    let context = || {
        format!(
            "{operation:?} of ST(0) {:x}, ST(1) {:x}, FCW {:x}, tags {:b}:\n{own:x?}\n{other:x?}",
            before.st(0),
            before.st(1),
            before.fcw,
            before.ftw
        )
    };
    let is_inexact = own.fsw & PE != 0;
    let ignored = if is_inexact { C1 } else { 0 };
    assert_eq!((own.fsw ^ other.fsw) & !ignored, 0, "{}", context());
    assert_eq!((own.fcw, own.ftw), (other.fcw, other.ftw), "{}", context());
    let allowed = u128::from(is_inexact);
    for (own, other) in own.r.iter().zip(&other.r) {
        let is_same_sign = (own ^ other) & SIGN == 0;
        let is_close = is_same_sign && ordinal(*own).abs_diff(ordinal(*other)) <= allowed;
        assert!(own == other || is_close, "{}", context());
    }
}

#[test]
fn numbers_are_within_the_manuals_error_of_the_hosts() {
    let mut random = Random(1);
    for operation in Operation::ALL {
        let exponents = match operation {
            F2xm1 => [(-70, -1), (-8, -1)],
            Fyl2x => [(-16382, 16383), (-3, 3)],
            Fyl2xp1 => [(-70, -3), (-9, -3)],
            Fpatan => [(-70, 70), (-6, 6)],
            _ => [(-70, 62), (-5, 5)],
        };
        for n in 0..8000_u16 {
            let mut x = random.number(exponents[usize::from(n & 1)]);
            if operation == Fyl2x {
                x &= !SIGN;
            }
            let y = random.number((-8, 8));
            compare(operation, state(x, y, 0x37F | (n >> 1 & 3) << 10));
        }
    }
}

/// Operands that have a case of their own.
fn special_operands() -> Vec<u128> {
    let positive = [
        (0, 0),
        // Denormal numbers.
        (0, 1),
        (0, 1 << 63),
        (0, u64::MAX >> 1),
        // The smallest normal number, and small ones.
        (1, 1 << 63),
        (0x20, 1 << 63),
        (0x3F00, 3 << 62),
        // 1/2, 1 and its neighbours, 2, 3, the neighbour of pi.
        (0x3FFE, 1 << 63),
        (0x3FFE, u64::MAX),
        (0x3FFF, 1 << 63),
        (0x3FFF, 1 << 63 | 1),
        (0x4000, 1 << 63),
        (0x4000, 3 << 62),
        (0x4000, 0xC90F_DAA2_2168_C235),
        // The limit of FSIN's operands.
        (0x403D, u64::MAX),
        (0x403E, 1 << 63),
        // The largest number, infinity and NaNs.
        (0x7FFE, u64::MAX),
        (0x7FFF, 1 << 63),
        (0x7FFF, 1 << 63 | 1),
        (0x7FFF, 3 << 62),
        (0x7FFF, 3 << 62 | 5),
        // Formats that are not supported.
        (0x7FFF, 0),
        (0x7FFF, 1),
        (0x4000, 1),
        (0x3FFF, u64::MAX >> 1),
    ];
    let numbers = positive.map(|(exponent, significand): (u128, u64)| {
        let bits = exponent << 64 | u128::from(significand);
        [bits, bits | SIGN]
    });
    numbers.as_flattened().to_vec()
}

#[test]
fn special_operands_do_what_they_do_on_the_host() {
    let operands = special_operands();
    let pairs = operands
        .iter()
        .flat_map(|x| operands.iter().map(move |y| (*x, *y)));
    for (x, y) in pairs {
        for operation in Operation::ALL {
            // All exceptions are masked, none, and all but one.
            for masks in [0x3F, 0, 0x3E, 0x3D, 0x3B, 0x37, 0x2F, 0x1F] {
                for rounding in 0..4 {
                    compare(operation, state(x, y, 0x340 | masks | rounding << 10));
                }
            }
        }
    }
}

#[test]
fn faults_of_the_stack_are_those_of_the_host() {
    for operation in Operation::ALL {
        for (fcw, codes) in [(0x37F, 0), (0x37E, 0), (0x37F, C2), (0x340, C2 | C1)] {
            for ftw in 0..=u8::MAX {
                let mut before = state(ONE, ONE, fcw);
                before.ftw = ftw;
                before.fsw |= codes;
                compare(operation, before);
            }
        }
    }
}

/// Operands in ST(0) and ST(1), and the results, which mpmath 1.3 has computed with 320 bits and
/// rounded to the nearest number.
#[rustfmt::skip]
const NEAREST: [(Operation, u128, u128, u128); 44] = [
    (F2xm1, 0x3FB9_8FFB_1E00_79E5_8218, 0, 0x3FB8_C799_9619_42F5_5113),
    (F2xm1, 0xBFEB_CE76_6F77_A156_0927, 0, 0xBFEB_8F1B_E223_D87B_2BEC),
    (F2xm1, 0x3FF8_C4A0_CFC9_6769_FC6F, 0, 0x3FF8_88DC_5813_C8C0_EA14),
    (F2xm1, 0xBFFC_D7EB_05B1_EB86_B180, 0, 0xBFFC_8B3D_69C2_5986_1DD9),
    (F2xm1, 0x3FFE_9A0C_A714_0450_6350, 0, 0x3FFE_847E_F352_85C7_29DB),
    (F2xm1, 0xBFFE_A263_133D_FCD4_0B9D, 0, 0xBFFD_B625_D8FA_7655_A0D9),
    (Fsin, 0x3FE1_F4D3_05F4_B440_D80F, 0, 0x3FE1_F4D3_05F4_B440_D806),
    (Fsin, 0xBFFD_D0F7_6F91_CDD2_9D96, 0, 0xBFFD_CB36_93A1_F96E_B21E),
    (Fsin, 0x3FFF_E1DC_1249_CD98_5768, 0, 0x3FFE_FB35_FCCE_B426_EB4D),
    (Fsin, 0xC000_D96D_9B91_338C_CB9C, 0, 0x3FFD_8181_E8D2_8D93_D833),
    (Fsin, 0x400B_E39B_C8EB_D1C5_554E, 0, 0x3FFE_F3D6_E4BB_4284_27D7),
    (Fsin, 0xC03D_FCCC_BA91_A728_F840, 0, 0xBFFE_FFDD_83FF_5568_E0E4),
    (Fcos, 0x3FE1_8A37_4816_25BE_0914, 0, 0x3FFE_FFFF_FFFF_FFFF_FFF7),
    (Fcos, 0xBFFD_B557_8830_DC80_372E, 0, 0x3FFE_F01C_2E45_EC70_DE55),
    (Fcos, 0x3FFF_9960_94F3_70A6_383E, 0, 0x3FFD_BA5B_74C9_9DBD_991E),
    (Fcos, 0xC000_8326_6E16_B8A6_5EBA, 0, 0xBFFD_EBB7_0C7B_89D5_2473),
    (Fcos, 0x400B_B393_643E_156B_2102, 0, 0xBFFE_E667_A5DF_33A0_693A),
    (Fcos, 0xC03D_F4B6_51F6_ADF1_6743, 0, 0x3FFE_9F66_88AE_D502_B888),
    (Fptan, 0x3FE1_F6BD_214F_015E_2D1D, 0, 0x3FE1_F6BD_214F_015E_2D30),
    (Fptan, 0xBFFD_9658_193E_1057_0E51, 0, 0xBFFD_9AD1_D7E5_EB32_3B0C),
    (Fptan, 0x3FFF_CB18_DDE6_1AFC_52D2, 0, 0xC004_FB8C_E565_A7F0_8796),
    (Fptan, 0xC000_F99A_C6D4_0BB4_4EB9, 0, 0xBFFE_F293_5A9C_5F83_C540),
    (Fptan, 0x400B_A1CA_F0CF_96C0_E921, 0, 0x3FF9_BB8C_E24C_7BAE_8F22),
    (Fptan, 0xC03D_C505_7EBB_3820_C30D, 0, 0x3FFE_9ADA_3566_8BC5_1BC8),
    (Fyl2x, 0x3FFF_8000_0000_0000_0001, 0x3FFC_A5DE_E6DA_36B8_CE19, 0x3FBD_EF4D_048E_9FA0_18C3),
    (Fyl2x, 0x3FFE_FFFF_FFFF_FFFF_FFFF, 0xBFFD_9192_9728_BE0D_6C87, 0x3FBD_D204_5343_EEAD_7F42),
    (Fyl2x, 0x3FFF_8B5E_8233_325D_62F5, 0x3FFE_B6A4_1DD9_8CB7_C2EC, 0x3FFB_B361_1F8F_65DA_45E3),
    (Fyl2x, 0x3FFE_83C8_15CF_D0A0_B94E, 0xBFFF_C12D_F6C0_5BDB_A1FD, 0x3FFF_B910_A710_B29C_E80A),
    (Fyl2x, 0x6327_BAAC_24F1_C509_BBA6, 0x4000_DFA9_C8FB_4E98_CE51, 0x400D_F5BD_1617_39B1_50B6),
    (Fyl2x, 0x017F_F221_3569_65A2_A36C, 0xC001_D81C_31DB_5D3C_4B29, 0x400F_D308_6DB7_A807_5DA2),
    (Fyl2xp1, 0x3F9B_C274_4658_7C99_8555, 0x4002_8668_E930_2DD0_8D38, 0x3F9F_934B_12BF_D6D3_059C),
    (Fyl2xp1, 0xBFBF_9D97_D81D_006B_8C4F, 0xC001_9499_B487_7726_BEE9, 0x3FC2_83F9_9E19_4EC9_DDFB),
    (Fyl2xp1, 0x3FF8_9C1D_9B05_36A7_6B2A, 0x4000_D219_DCEF_0E54_C203, 0x3FFA_B7F8_747C_DDBF_FC39),
    (Fyl2xp1, 0xBFF9_9BCF_C915_47DF_E420, 0xBFFF_9F67_CDE6_AC3B_26AC, 0x3FFA_8D51_B45B_18AF_9B3B),
    (Fyl2xp1, 0x3FFC_E5DF_6E3B_D456_2702, 0x3FFE_DC73_9FFF_078F_AC97, 0x3FFD_80D2_2FBD_87ED_E169),
    (Fyl2xp1, 0xBFFD_9555_5555_5555_5555, 0xBFFD_EFFB_A820_4D94_D8E6, 0x3FFC_EEC8_6FC6_3133_C279),
    (Fpatan, 0x3FFC_8E40_BAE6_DB69_4149, 0x3FF9_9C83_ECF1_4C73_BA7E, 0x3FFC_8BF4_9833_4C63_4E6F),
    (Fpatan, 0xBFFD_EF5D_FF7D_A453_169F, 0x4000_9E5E_3879_AD39_1969, 0x3FFF_E0F6_ACCE_CE85_B02D),
    (Fpatan, 0x3FFE_FB2D_8DCA_E8C7_ED9A, 0xC045_9F19_6F52_A7F6_2885, 0xBFFF_C90F_DAA2_2168_C235),
    (Fpatan, 0xBFFF_FA3A_0959_F2E1_32EA, 0xBFF9_A101_F497_9DC6_946A, 0xC000_C86B_231B_7BC5_EA22),
    (Fpatan, 0x4000_F5E9_D82C_6C97_1E08, 0x3FFF_DABD_8B9D_4CF2_042A, 0x3FFD_D643_06D7_77C4_5A70),
    (Fpatan, 0xC001_95D2_D5EC_5F66_1185, 0x3FFD_E9D5_1C5C_27C3_814A, 0x4000_C2D6_B7DB_54AA_7858),
    (Fpatan, 0x4002_A626_F016_2DF2_0ABA, 0xBFAF_86CB_5C44_208C_2512, 0xBFAB_CFAF_745A_05C9_8AC3),
    (Fpatan, 0xC003_8F5F_D739_1C6A_7AF7, 0xC000_EB18_4CFF_0E60_55C0, 0xC000_BC1F_914E_1EA4_30A8),
];

#[test]
fn results_are_the_nearest_numbers_on_each_host() {
    for (operation, x, y, expected) in NEAREST {
        let mut x87 = state(x, y, 0x37F);
        execute(&mut x87, operation);
        // FPTAN pushes 1.
        let result = x87.st(usize::from(operation == Fptan));
        assert_eq!(
            format!("{result:020x}"),
            format!("{expected:020x}"),
            "{operation:?} of {x:x}, {y:x}"
        );
    }
}
