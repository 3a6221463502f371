//! Comparisons of two responses, asked in both orders.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::asker::Asker;
use super::error::ModelError;
use super::prompt::Material;

/// Result of a comparison.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Comparison {
    /// 1 if the first response is better, 0 if the second is; the mean of both orders.
    pub(crate) score: f64,
    /// True if both orders have the same result.
    pub(crate) is_consistent: bool,
}

/// Compares the two responses of `material` in both orders. Equal responses are a tie.
pub(crate) fn compare(asker: &Asker, material: &Material<'_>) -> Result<Comparison, ModelError> {
    let [a, b] = material.responses else {
        return Ok(Comparison { score: 0.5, is_consistent: true });
    };
    if a == b {
        return Ok(Comparison { score: 0.5, is_consistent: true });
    }
    let ask = |responses: &[&str]| -> Result<f64, ModelError> {
        let values = asker.ask(&Material { responses, ..material.clone() })?;
        Ok(values.into_iter().next().unwrap_or(f64::NAN))
    };
    let (forward, backward) = (ask(&[a, b])?, 1.0 - ask(&[b, a])?);
    Ok(Comparison { score: f64::midpoint(forward, backward), is_consistent: forward == backward })
}

/// Pairs in which each of `count` responses meets the `opponents` after it in a circle; each pair once.
pub(crate) fn circle(count: usize, opponents: usize) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    for distance in 1..=opponents.min(count / 2) {
        for first in 0..count {
            let second = (first + distance) % count;
            // Halfway around, each pair would come twice.
            if 2 * distance < count || first < second {
                pairs.push((first, second));
            }
        }
    }
    pairs
}

/// The results of a function on each item, in their order, computed by several threads that mostly wait.
pub(crate) fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    of: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::with_capacity(items.len()));
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, items.len().max(1)) {
            scope.spawn(|| {
                while let Some((index, item)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    items.get(index).map(|item| (index, item))
                } {
                    let result = of(item);
                    results.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|&(index, _)| index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_response_meets_as_many_opponents() {
        assert_eq!(circle(4, 1), [(0, 1), (1, 2), (2, 3), (3, 0)]);
        assert_eq!(circle(2, 5), [(0, 1)]);
        assert_eq!(circle(1, 3), []);
        for (count, opponents, games) in [(5, 1, 2), (5, 2, 4), (5, 9, 4), (6, 2, 4), (6, 3, 5)] {
            let pairs = circle(count, opponents);
            for response in 0..count {
                let own = pairs.iter().filter(|&&(a, b)| a == response || b == response);
                assert_eq!(own.count(), games, "{count} {opponents}: {pairs:?}");
            }
        }
    }

    #[test]
    fn results_have_the_order_of_the_items() {
        let items: Vec<u32> = (0..50).collect();
        for threads in [0, 1, 7, 100] {
            assert_eq!(
                in_parallel(&items, threads, |item| item * 2),
                (0..50).map(|i| i * 2).collect::<Vec<_>>()
            );
        }
        assert_eq!(in_parallel(&[], 4, |item: &u32| *item), [0_u32; 0]);
    }
}
