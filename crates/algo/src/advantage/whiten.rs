//! Whitening: mean 0 and variance 1 over the policy tokens of the batch.

use super::moments::no_spread;
use super::view::{GroupView, Raw};

/// Lower bound of the variance.
const MIN_VARIANCE: f64 = 1e-8;

/// Whitens in place. An episode's advantage counts once per policy token; [`Raw::Out`] is excluded.
pub(super) fn whiten(groups: &[GroupView<'_>], raw: &mut [Vec<Raw>]) {
    // (value, count): a constant counts once per token without being expanded.
    let mut weighted: Vec<(f64, f64)> = Vec::new();
    for (group, row) in groups.iter().zip(raw.iter()) {
        for (episode, a) in group.episodes.iter().zip(row) {
            match a {
                Raw::Constant(a) if episode.tokens > 0 => weighted.push((*a, episode.tokens as f64)),
                Raw::Out | Raw::Constant(_) => {}
                Raw::PerToken(a) => weighted.extend(a.iter().map(|&x| (x, 1.0))),
            }
        }
    }
    let tokens: f64 = weighted.iter().map(|&(_, n)| n).sum();
    let equal = no_spread(weighted.iter().map(|&(x, _)| x));
    let mean = weighted.iter().map(|&(x, n)| n * x).sum::<f64>() / tokens;
    let variance = weighted.iter().map(|&(x, n)| n * (x - mean) * (x - mean)).sum::<f64>() / tokens;
    let scale = variance.max(MIN_VARIANCE).sqrt().recip();
    // Without tokens the mean is NaN; `equal` is then true and the mean is unused.
    let whitened = |x: f64| if equal { 0.0 } else { (x - mean) * scale };
    for a in raw.iter_mut().flatten() {
        match a {
            Raw::Out => {}
            Raw::Constant(x) => *x = whitened(*x),
            Raw::PerToken(xs) => xs.iter_mut().for_each(|x| *x = whitened(*x)),
        }
    }
}
