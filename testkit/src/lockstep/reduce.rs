//! A smaller program with a difference.

use crate::lockstep::difference::Difference;
use crate::lockstep::{LastRun, check, check_up_to};

/// Removes steps from the program of a difference as long as the rest has one, and shortens its
/// last run.
pub fn reduce(difference: Box<Difference>) -> Box<Difference> {
    let mut least = difference;
    let mut size = least.recipe.steps.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        while at < least.recipe.steps.len() {
            let mut recipe = least.recipe.clone();
            let end = (at + size).min(recipe.steps.len());
            recipe.steps.drain(at..end);
            match check(&recipe) {
                Ok(_) => at += size,
                Err(smaller) => least = smaller,
            }
        }
        size /= 2;
    }
    let number = least.run;
    let lengths = 1..least.length;
    let shorter = |length| check_up_to(&least.recipe, Some(LastRun { number, length })).err();
    lengths.into_iter().find_map(shorter).unwrap_or(least)
}
