//! Memory for branches that is used again: memory from the host is cleared page by page first,
//! which takes longer than to fill it.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use vbts_trace::Branch;

/// Branches that a pool keeps room for at most: 16 MiB.
const MAX_KEPT: usize = 1 << 20;

/// Memory that is not used now.
#[derive(Debug, Default)]
struct Free {
    vectors: Vec<Vec<Branch>>,
    /// Branches that they have room for.
    capacity: usize,
}

/// A pool of memory for branches. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct BranchPool(Arc<Mutex<Free>>);

impl BranchPool {
    /// An empty list. It has room for `branches` if it is no longer than those before it.
    pub fn list(&self, branches: usize) -> BranchList {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let vector = free.vectors.pop().unwrap_or_default();
        free.capacity -= vector.capacity();
        drop(free);
        let mut list = BranchList {
            branches: vector,
            pool: Some(self.clone()),
        };
        list.branches.reserve(branches);
        list
    }

    fn put(&self, mut vector: Vec<Branch>) {
        vector.clear();
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if vector.capacity() > 0 && free.capacity + vector.capacity() <= MAX_KEPT {
            free.capacity += vector.capacity();
            free.vectors.push(vector);
        }
    }
}

/// Branches, whose memory goes back to the pool that it is from.
#[derive(Debug, Clone, Default)]
pub struct BranchList {
    branches: Vec<Branch>,
    pool: Option<BranchPool>,
}

impl Drop for BranchList {
    fn drop(&mut self) {
        if let Some(pool) = &self.pool {
            pool.put(std::mem::take(&mut self.branches));
        }
    }
}

impl Deref for BranchList {
    type Target = Vec<Branch>;

    fn deref(&self) -> &Vec<Branch> {
        &self.branches
    }
}

impl DerefMut for BranchList {
    fn deref_mut(&mut self) -> &mut Vec<Branch> {
        &mut self.branches
    }
}

impl PartialEq for BranchList {
    fn eq(&self, other: &Self) -> bool {
        self.branches == other.branches
    }
}

impl Eq for BranchList {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_up_to_a_limit() {
        let pool = BranchPool::default();
        let mut first = pool.list(1000);
        first.push(Branch::default());
        let memory = first.as_ptr();
        drop(first);
        let again = pool.list(1000);
        assert_eq!((again.as_ptr(), again.len()), (memory, 0));
        let other = pool.list(MAX_KEPT);
        assert_ne!(other.as_ptr(), memory);
        drop((again, other));
        assert!(pool.0.lock().unwrap().capacity <= MAX_KEPT);
    }
}
