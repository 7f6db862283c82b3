//! The vector instructions that exist with VEX alone: of AVX, AVX2, FMA and F16C (SDM Vol. 1 14).

mod broadcast;
mod fma;
mod gather;
mod half;
mod mask;
mod permute;
mod shift;
mod zero;

use crate::exec::table::{Backend, Table};

pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    broadcast::rows(t);
    fma::rows(t);
    gather::rows(t);
    half::rows(t);
    mask::rows(t);
    permute::rows(t);
    shift::rows(t);
    zero::rows(t);
}
