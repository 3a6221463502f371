//! Cutting a list into as few runs as a capacity allows, as even as that number allows.

use std::ops::Range;

/// Contiguous ranges of `sizes`, each of a sum of at most `capacity`; a size beyond it is a range of its own. There are as
/// few of them as can be, and with that number the largest is as small as can be.
pub(crate) fn even_ranges(sizes: &[usize], capacity: usize) -> Vec<Range<usize>> {
    let fewest = first_fit(sizes, capacity).len();
    // Nothing but the sizes beyond the capacity stands alone, however low the limit comes to be.
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

/// Each range takes what fits, in order: of all ways to cut, the one with the fewest ranges.
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

    /// The fewest ranges and their least largest sum, by trying every way to cut; sizes beyond the capacity do not count.
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
        fn as_few_and_as_even_as_can_be(sizes in prop::collection::vec(1usize..12, 1..10), capacity in 1usize..40) {
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
    fn of_nothing_there_is_nothing() {
        assert!(even_ranges(&[], 5).is_empty());
        assert_eq!(even_ranges(&[1; 10], 9), [0..5, 5..10]);
        assert_eq!(even_ranges(&[2, 50, 2, 2, 2, 2], 6), [0..1, 1..2, 2..4, 4..6]);
    }
}
