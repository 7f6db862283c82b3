//! CPUID leaves made of those of another processor.

use super::cpuid::{Leaf, ecx1, edx1};

/// The leaves with other values for some of them.
pub(super) const fn with<const N: usize, const M: usize>(
    mut leaves: [Leaf; N],
    others: [Leaf; M],
) -> [Leaf; N] {
    let mut i = 0;
    while i < M {
        let mut at = 0;
        while leaves[at].leaf != others[i].leaf || leaves[at].subleaf != others[i].subleaf {
            at += 1;
        }
        leaves[at] = others[i];
        i += 1;
    }
    leaves
}

/// The leaves with others that they do not have, in order. `T` is `N + M`.
pub(super) const fn and<const N: usize, const M: usize, const T: usize>(
    leaves: [Leaf; N],
    others: [Leaf; M],
) -> [Leaf; T] {
    assert!(N + M == T);
    let mut all = [leaves[0]; T];
    let (mut i, mut j) = (0, 0);
    while i + j < T {
        if j == M || (i < N && leaves[i].leaf < others[j].leaf) {
            all[i + j] = leaves[i];
            i += 1;
        } else {
            all[i + j] = others[j];
            j += 1;
        }
    }
    all
}

/// `leaves` without those with the numbers `absent`. `T` leaves are left.
pub(super) const fn without<const N: usize, const T: usize>(
    leaves: [Leaf; N],
    absent: &[u32],
) -> [Leaf; T] {
    let mut left = [leaves[0]; T];
    let (mut from, mut to) = (0, 0);
    while from < N {
        let (mut i, mut is_absent) = (0, false);
        while i < absent.len() {
            is_absent |= leaves[from].leaf == absent[i];
            i += 1;
        }
        if !is_absent {
            left[to] = leaves[from];
            to += 1;
        }
        from += 1;
    }
    assert!(to == T);
    left
}

/// Feature flags that a model has in addition to those of another.
pub(super) struct Flags {
    /// Leaf 1, ECX.
    pub ecx1: u32,
    /// Leaf 7, EBX.
    pub ebx7: u32,
    /// Leaf 7, ECX.
    pub ecx7: u32,
    /// Leaf 80000001H, ECX.
    pub ecx8000_0001: u32,
    /// Leaf 80000001H, EDX.
    pub edx8000_0001: u32,
}

impl Flags {
    pub(super) const NONE: Self = Self {
        ecx1: 0,
        ebx7: 0,
        ecx7: 0,
        ecx8000_0001: 0,
        edx8000_0001: 0,
    };
}

/// The leaves with these feature flags as well.
pub(super) const fn with_features<const N: usize>(
    mut leaves: [Leaf; N],
    flags: Flags,
) -> [Leaf; N] {
    let mut i = 0;
    while i < N {
        let l = &mut leaves[i];
        match (l.leaf, l.subleaf) {
            (1, _) => l.ecx |= flags.ecx1,
            (7, 0) => {
                l.ebx |= flags.ebx7;
                l.ecx |= flags.ecx7;
            }
            (0x8000_0001, _) => {
                l.ecx |= flags.ecx8000_0001;
                l.edx |= flags.edx8000_0001;
            }
            _ => {}
        }
        i += 1;
    }
    leaves
}

/// The leaves without IA32_ARCH_CAPABILITIES, and so without RDCL_NO.
pub(super) const fn without_capabilities<const N: usize>(mut leaves: [Leaf; N]) -> [Leaf; N] {
    let mut i = 0;
    while i < N {
        if leaves[i].leaf == 7 {
            leaves[i].edx &= !(1 << 29);
        }
        i += 1;
    }
    leaves
}

/// The leaves without the flags of the Debug Store.
pub(super) const fn without_bts<const N: usize>(mut leaves: [Leaf; N]) -> [Leaf; N] {
    let mut i = 0;
    while i < N {
        if leaves[i].leaf == 1 {
            leaves[i].ecx &= !(ecx1::DTES64 | ecx1::DS_CPL);
            leaves[i].edx &= !edx1::DS;
        }
        i += 1;
    }
    leaves
}
