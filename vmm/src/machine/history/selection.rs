//! The snapshots that are worth their room in a file.

/// Part of the run beside its end in which the density of snapshots does not grow any more.
const DENSEST: u64 = 16;

/// Selects about `count` of the snapshots at `times`, which are in order, and returns their numbers
/// in order. Their density falls with the distance from the end, as for those in memory. The first
/// is left out, and the last ones at or before the times `needed` and the last of all are not.
pub(super) fn select(times: &[u64], needed: &[u64], count: usize) -> Vec<usize> {
    let mut chosen: Vec<usize> = (0..times.len()).collect();
    let Some(last) = times.len().checked_sub(1) else {
        return chosen;
    };
    let before = |time: &u64| times.partition_point(|at| at <= time).saturating_sub(1);
    let mut stays: Vec<usize> = needed.iter().map(before).collect();
    stays.push(last);
    let end = times[last];
    let nearest = (end.saturating_sub(times[0]) / DENSEST).max(1);
    while chosen.len() > count.max(1) + 1 {
        let gaps = chosen.windows(3).enumerate();
        let gaps = gaps.filter_map(|(n, around)| match around {
            [before, number, after] if !stays.contains(number) => {
                let distance = (end - times[*number]).max(nearest) as f64;
                Some((n + 1, (times[*after] - times[*before]) as f64 / distance))
            }
            _ => None,
        });
        let Some((n, _)) = gaps.min_by(|(_, a), (_, b)| a.total_cmp(b)) else {
            break;
        };
        chosen.remove(n);
    }
    chosen.remove(0);
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_density_falls_with_the_distance_from_the_end() {
        let times: Vec<u64> = (0..200).map(|n| 10 + n * 50).collect();
        assert_eq!(select(&times, &[], 1000).len(), 199);
        let chosen = select(&times, &[0, 534, 5010], 40);
        assert!(chosen.is_sorted() && chosen.len() == 40, "{chosen:?}");
        assert!(!chosen.contains(&0) && chosen.contains(&199));
        // The last ones before the times that are needed.
        assert!(chosen.contains(&10) && chosen.contains(&100));
        let gap = |n: usize| chosen[n + 1] - chosen[n];
        assert!(gap(2) > 2 * gap(38), "{chosen:?}");
    }

    #[test]
    fn the_necessary_ones_are_left() {
        let times = [5, 10, 20, 30, 40];
        assert_eq!(select(&times, &[25], 0), [2, 4]);
        assert!(select(&times[..1], &[25], 8).is_empty());
        assert_eq!(select(&times[..2], &[], 0), [1]);
        assert!(select(&[], &[1], 8).is_empty());
    }
}
