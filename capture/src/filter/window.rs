//! From when until when branches are wanted.

use vbts_trace::Branch;
use vbts_trace::profile::modules::KERNEL_START;

use super::position::{Positions, Step, steps};
use super::space::{Space, Target};

/// A part of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The first point has not been reached.
    Before,
    /// Branches are wanted.
    Open,
    /// No more branches are wanted.
    Closed,
}

/// From when until when branches are wanted.
#[derive(Debug)]
pub(super) struct Window {
    phase: Phase,
    /// The number of the time at which each point counts, if there is one.
    nth: [Option<u64>; 2],
    /// How often each has been reached.
    reached: [u64; 2],
    /// Branches that are still wanted, if there is a limit.
    left: Option<u64>,
}

impl Window {
    /// A window between two points, of at most `most` branches.
    pub(super) fn new(nth: [Option<u64>; 2], most: Option<u64>) -> Self {
        Self {
            phase: match nth[0] {
                Some(_) => Phase::Before,
                None => Phase::Open,
            },
            nth,
            reached: [0; 2],
            left: most,
        }
    }

    /// No more branches are wanted.
    pub(super) fn close(&mut self) {
        self.phase = Phase::Closed;
    }

    /// A branch was taken.
    pub(super) fn count(&mut self) {
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.close();
            }
        }
    }

    /// How often a point has been reached that was waited for in vain; `None` if it was not.
    pub(super) fn missed(&self, which: usize) -> Option<u64> {
        let nth = self.nth[which]?;
        let waited = [Phase::Before, Phase::Open][which] == self.phase;
        let reached = self.reached[which];
        (waited && reached < nth).then_some(reached)
    }

    /// The point that is waited for.
    fn awaited(&self) -> Option<usize> {
        let which = match self.phase {
            Phase::Before => 0,
            Phase::Open => 1,
            Phase::Closed => return None,
        };
        self.nth[which].is_some().then_some(which)
    }

    /// The awaited point has been reached.
    fn reach(&mut self, which: usize) {
        self.reached[which] += 1;
        if self.nth[which] == Some(self.reached[which]) {
            self.phase = [Phase::Open, Phase::Closed][which];
        }
    }

    /// A task at these positions has executed a branch. Returns whether it is in the window. A
    /// branch that leads to a point is.
    #[inline]
    pub(super) fn pass(
        &mut self,
        positions: &mut Positions,
        branch: &Branch,
        user: &Space,
        kernel: &Space,
    ) -> bool {
        if self.awaited().is_some() {
            return self.look(positions, *branch, user, kernel);
        }
        positions.pass(*branch);
        self.phase == Phase::Open
    }

    fn look(
        &mut self,
        positions: &mut Positions,
        branch: Branch,
        user: &Space,
        kernel: &Space,
    ) -> bool {
        let mut is_open = self.phase == Phase::Open;
        for step in steps(branch).into_iter().flatten() {
            let (position, space, end) = match step {
                Step::UserLine(end) => (&mut positions.user, user, end),
                Step::KernelLine(end) => (&mut positions.kernel, kernel, end),
                Step::Arrival => {
                    let space = match branch.to >= KERNEL_START {
                        true => kernel,
                        false => user,
                    };
                    is_open = self.phase == Phase::Open;
                    let is_it = |target: &Target| target.at == branch.to;
                    if let Some(which) = self.awaited()
                        && space.points[which].iter().any(is_it)
                    {
                        self.reach(which);
                    }
                    continue;
                }
            };
            while let Some(which) = self.awaited()
                && position.reach(&space.points[which], end)
            {
                self.reach(which);
            }
            is_open = self.phase == Phase::Open;
        }
        positions.pass(branch);
        is_open || self.phase == Phase::Open
    }
}
