use super::EpisodeRewards;
use super::estimator::{Batch, Estimate, Reads};
use super::normalize::check_gamma;
use super::returns::accumulate;
use super::rloo::leave_one_out;
use super::view::{GroupView, Raw};
use crate::settings::keys::{OutOfRange, check, settings};

settings! {
    /// Σ_{s≥t} γ^{s−t}(q_s − mean of the others' q̄) + R_i − mean of the others' R with q = β(lp_PRM − lp_ref): PRIME
    /// (arXiv 2502.01456). Implicit process rewards and outcomes, each with a leave-one-out baseline.
    Prime {
        /// Discount per policy token.
        gamma: f64 = 1.0,
        /// β: scale of the implicit rewards.
        beta: f64 = 0.05,
    }
}

/// q_t = β(lp_PRM − lp_ref).
fn process_rewards(episode: &EpisodeRewards<'_>, beta: f64) -> Vec<f64> {
    let pairs = episode.prm_logprob.iter().zip(episode.prm_reference_logprob);
    pairs.map(|(&lp, &reference)| beta * (f64::from(lp) - f64::from(reference))).collect()
}

/// Returns of process rewards less the mean of the others' token means, plus the leave-one-out outcome. An episode
/// without tokens has no token mean and is excluded from the baselines.
fn group(group: &GroupView<'_>, gamma: f64, beta: f64) -> Vec<Raw> {
    let outcome = leave_one_out(group);
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

impl Estimate for Prime {
    fn check(&self) -> Result<(), OutOfRange> {
        check_gamma(self.gamma)?;
        check("beta", self.beta, self.beta > 0.0, "above 0", "0.05 is the paper's")
    }

    fn is_per_episode(&self) -> bool {
        false
    }

    fn takes_kl(&self) -> bool {
        false
    }

    fn reads(&self) -> Reads {
        Reads { prm: Some(self.beta), ..Reads::default() }
    }

    fn estimate(&self, batch: &mut Batch<'_, '_>) -> Vec<Vec<Raw>> {
        batch.each(|g, _| group(g, self.gamma, self.beta))
    }
}
