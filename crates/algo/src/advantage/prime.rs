//! PRIME: implicit process rewards and outcomes, each against the others of the group.

use super::EpisodeRewards;
use super::baseline::rloo;
use super::group::{Group, Raw};
use super::returns::accumulate;

/// q_t = β(lp_PRM − lp_ref).
fn process_rewards(episode: &EpisodeRewards<'_>, beta: f64) -> Vec<f64> {
    let pairs = episode.prm_logprob.iter().zip(episode.prm_reference_logprob);
    pairs.map(|(&lp, &reference)| beta * (f64::from(lp) - f64::from(reference))).collect()
}

/// Returns of process rewards less the mean of the others' token means, plus the leave-one-out outcome. An episode
/// without a token has no token mean and enters no baseline.
pub(super) fn group(group: &Group<'_>, gamma: f64, beta: f64) -> Vec<Raw> {
    let outcome = rloo(group);
    let process: Vec<(usize, Vec<f64>)> =
        group.members().map(|(i, e, _)| (i, process_rewards(e, beta))).collect();
    let means: Vec<(usize, f64)> = process
        .iter()
        .filter(|(_, q)| !q.is_empty())
        .map(|(i, q)| (*i, q.iter().sum::<f64>() / q.len() as f64))
        .collect();
    let mut raw = vec![Raw::Out; group.episodes.len()];
    for (i, q) in process {
        let others = means.iter().filter(|(j, _)| *j != i).map(|&(_, mean)| mean);
        let count = others.clone().count().max(1) as f64;
        let baseline = others.sum::<f64>() / count;
        let mut advantage: Vec<f64> = q.into_iter().map(|q| q - baseline).collect();
        accumulate(&mut advantage, gamma);
        if let Raw::Constant(outcome) = outcome[i] {
            for a in &mut advantage {
                *a += outcome;
            }
        }
        raw[i] = Raw::PerToken(advantage);
    }
    raw
}
