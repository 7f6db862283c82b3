//! Exception vectors (SDM Vol. 3A table 6-1).

#![allow(missing_docs)]
pub const DE: u8 = 0;
pub const DB: u8 = 1;
pub const NMI: u8 = 2;
pub const BP: u8 = 3;
pub const OF: u8 = 4;
pub const BR: u8 = 5;
pub const UD: u8 = 6;
pub const NM: u8 = 7;
pub const DF: u8 = 8;
pub const TS: u8 = 10;
pub const NP: u8 = 11;
pub const SS: u8 = 12;
pub const GP: u8 = 13;
pub const PF: u8 = 14;
pub const MF: u8 = 16;
pub const AC: u8 = 17;
pub const XM: u8 = 19;
