//! Mean 0 and variance 1 over the policy tokens of the batch that is trained together.

use super::moments::no_spread;
use super::view::{GroupView, Raw};

/// Smallest variance that is divided by.
const MIN_VARIANCE: f64 = 1e-8;

/// Whitens in place. An episode's advantage counts once per policy token; what is [`Raw::Out`] stays out.
pub(super) fn whiten(groups: &[GroupView<'_>], raw: &mut [Vec<Raw>]) {
    // (value, how often): a constant counts once per token without being written out.
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
    // Without a token the mean is NaN and unused: `equal` holds then.
    let whitened = |x: f64| if equal { 0.0 } else { (x - mean) * scale };
    for a in raw.iter_mut().flatten() {
        match a {
            Raw::Out => {}
            Raw::Constant(x) => *x = whitened(*x),
            Raw::PerToken(xs) => xs.iter_mut().for_each(|x| *x = whitened(*x)),
        }
    }
}
