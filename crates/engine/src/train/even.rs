//! Division of a list into the fewest contiguous ranges that a capacity allows, as even as possible.

use std::ops::Range;

/// Contiguous ranges of `sizes` with sums of at most `capacity`; a size beyond it is a range of its own. Their number is
/// minimal, and for that number the largest sum is minimal.
pub(crate) fn even_ranges(sizes: &[usize], capacity: usize) -> Vec<Range<usize>> {
    let fewest = first_fit(sizes, capacity).len();
    // At this limit only the sizes beyond the capacity form ranges of their own.
    let least = sizes.iter().copied().filter(|&size| size <= capacity).max().unwrap_or(capacity);
    let (mut low, mut high) = (least, capacity);
    while low < high {
        let middle = low + (high - low) / 2;
        if first_fit(sizes, middle).len() <= fewest {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    first_fit(sizes, high)
}

/// Greedy division: each range takes as many sizes as fit. No division has fewer ranges.
fn first_fit(sizes: &[usize], capacity: usize) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let mut sum = 0;
    for (place, &size) in sizes.iter().enumerate() {
        match ranges.last_mut() {
            Some(range) if sum + size <= capacity => {
                range.end = place + 1;
                sum += size;
            }
            _ => {
                ranges.push(place..place + 1);
                sum = size;
            }
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Minimal number of ranges and minimal largest sum, by trying every division; sizes beyond the capacity do not count.
    fn best(sizes: &[usize], capacity: usize) -> (usize, usize) {
        let of = |mask: u32| {
            let mut runs: Vec<Vec<usize>> = vec![vec![sizes[0]]];
            for (place, &size) in sizes.iter().enumerate().skip(1) {
                if mask >> (place - 1) & 1 == 1 {
                    runs.push(vec![size]);
                } else if let Some(run) = runs.last_mut() {
                    run.push(size);
                }
            }
            let sums = runs.iter().map(|run| run.iter().sum::<usize>());
            let fits = sums.clone().zip(&runs).all(|(sum, run)| sum <= capacity || run.len() == 1);
            fits.then(|| (runs.len(), sums.filter(|&sum| sum <= capacity).max().unwrap_or(0)))
        };
        (0..1 << (sizes.len() - 1)).filter_map(of).min().unwrap_or_default()
    }

    proptest! {
        #[test]
        fn number_and_largest_sum_are_minimal(sizes in prop::collection::vec(1usize..12, 1..10), capacity in 1usize..40) {
            let ranges = even_ranges(&sizes, capacity);
            let all: Vec<usize> = ranges.iter().flat_map(Clone::clone).collect();
            prop_assert_eq!(all, (0..sizes.len()).collect::<Vec<_>>());
            let sums: Vec<usize> = ranges.iter().map(|r| sizes[r.clone()].iter().sum()).collect();
            let largest = sums.iter().copied().filter(|&sum| sum <= capacity).max().unwrap_or(0);
            for (range, &sum) in ranges.iter().zip(&sums) {
                prop_assert!(sum <= capacity || range.len() == 1);
            }
            prop_assert_eq!((ranges.len(), largest), best(&sizes, capacity));
        }
    }

    #[test]
    fn an_empty_list_has_no_ranges() {
        assert!(even_ranges(&[], 5).is_empty());
        assert_eq!(even_ranges(&[1; 10], 9), [0..5, 5..10]);
        assert_eq!(even_ranges(&[2, 50, 2, 2, 2, 2], 6), [0..1, 1..2, 2..4, 4..6]);
    }
}
