//! From rewards to advantages: what each policy token's log-probability is pushed by.
//!
//! [`AdvantageSpec`] says how, [`GroupRewards`] from what, and [`advantages`] computes [`Advantages`]. Each family of
//! estimators has its file; all see a group through [`group::Group`]. Rules for all of them:
//!
//! * An episode that is not for training, or whose reward does not apply, is in no statistic and has the advantage 0.
//! * A group of which one episode is left has nobody to compare it with: 0, and counted.
//! * Spreads below the resolution of `f32` are none: equal rewards give exactly 0.

mod baseline;
mod best;
mod check;
mod episode;
mod gdpo;
mod gigpo;
mod gpg;
mod group;
mod moments;
mod normalized;
mod outcome;
mod prime;
mod report;
mod returns;
mod spec;
mod whiten;

pub use episode::{EpisodeRewards, GroupRewards, StepReward};
pub use moments::RunningMoments;
pub use outcome::{Advantages, EpisodeAdvantage};
pub use report::AdvantageReport;
pub use spec::{AdvantageSpec, Estimator};

pub(crate) use best::kept;
pub(crate) use moments::no_spread;

use rloom_core::Role;

use crate::AlgoError;
use gigpo::Gigpo;
use group::{Group, Raw};
use normalized::Normalization;

/// Advantages of the batch that is trained together.
///
/// `running` are the moments that the stage's last batch returned. Pure: the same groups in the same order give the
/// same bits.
///
/// # Errors
///
/// What the estimator reads and is not there, does not match the episode's tokens, or is NaN or infinite, with the
/// group's and the episode's place among those given.
pub fn advantages(
    spec: &AdvantageSpec,
    running: &RunningMoments,
    groups: &[GroupRewards<'_>],
) -> Result<Advantages, AlgoError> {
    check::check(spec, groups)?;
    let seen: Vec<Group<'_>> = groups.iter().map(|g| Group::new(g, spec.estimator, spec.kl_coef)).collect();
    let mut report = AdvantageReport::of(spec, &seen);
    let mut running = *running;
    let mut raw = estimate(spec, &seen, &mut running, &mut report);
    let learns_values = matches!(spec.estimator, Estimator::Gae { .. });
    let returns = if learns_values { returns_of(&seen, &raw) } else { Vec::new() };
    if spec.whiten {
        whiten::whiten(&seen, &mut raw);
    }
    let episodes = raw.into_iter().map(|row| row.into_iter().map(round).collect()).collect();
    Ok(Advantages { episodes, returns, running, report })
}

fn estimate(
    spec: &AdvantageSpec,
    groups: &[Group<'_>],
    running: &mut RunningMoments,
    report: &mut AdvantageReport,
) -> Vec<Vec<Raw>> {
    let kl_coef = spec.kl_coef;
    let mut each = |of: &mut dyn FnMut(&Group<'_>, &mut AdvantageReport) -> Vec<Raw>| -> Vec<Vec<Raw>> {
        groups.iter().map(|g| of(g, report)).collect()
    };
    match spec.estimator {
        Estimator::Normalized { mean_from, std_from, std_epsilon } => {
            let by = Normalization { mean_from, std_from, std_epsilon };
            let batch = RunningMoments::of(groups.iter().flat_map(Group::present));
            if by.reads_running() {
                *running = running.and(batch);
            }
            each(&mut |g, _| normalized::group(g, by, &batch, running))
        }
        Estimator::Rloo => each(&mut |g, _| baseline::rloo(g)),
        Estimator::ReinforcePp { gamma } => each(&mut |g, _| returns::reinforce_pp(g, kl_coef, gamma)),
        Estimator::Gae { gamma, lambda } => each(&mut |g, _| returns::gae(g, kl_coef, gamma, lambda)),
        Estimator::Remax => each(&mut baseline::remax),
        Estimator::Opo => each(&mut |g, _| baseline::opo(g)),
        Estimator::Gpg => {
            let alpha = gpg::alpha(groups);
            each(&mut |g, _| gpg::group(g, alpha))
        }
        Estimator::MaxAtG { std_epsilon } => each(&mut |g, _| best::max_at_g(g, std_epsilon)),
        Estimator::Gdpo { std_epsilon } => each(&mut |g, _| gdpo::group(g, std_epsilon)),
        Estimator::RaftPp { keep } => each(&mut |g, report| best::raft_pp(g, keep, report)),
        Estimator::Topr { baseline } => each(&mut |g, _| baseline::topr(g, baseline)),
        Estimator::Gigpo { gamma, step_weight, std_epsilon } => {
            let gigpo = Gigpo { gamma, step_weight, std_epsilon };
            each(&mut |g, report| gigpo.group(g, report))
        }
        Estimator::Prime { gamma, beta } => each(&mut |g, _| prime::group(g, gamma, beta)),
    }
}

/// A + V, rounded once.
fn returns_of(groups: &[Group<'_>], raw: &[Vec<Raw>]) -> Vec<Vec<Vec<f32>>> {
    let of_episode = |(e, raw): (&EpisodeRewards<'_>, &Raw)| match raw {
        Raw::PerToken(a) => e.values.iter().zip(a).map(|(&v, a)| (f64::from(v) + a) as f32).collect(),
        _ if e.role == Role::Train => e.values.to_vec(),
        _ => Vec::new(),
    };
    groups.iter().zip(raw).map(|(g, row)| g.episodes.iter().zip(row).map(of_episode).collect()).collect()
}

fn round(raw: Raw) -> EpisodeAdvantage {
    match raw {
        Raw::Out => EpisodeAdvantage::Constant(0.0),
        Raw::Constant(a) => EpisodeAdvantage::Constant(a as f32),
        Raw::PerToken(a) => EpisodeAdvantage::PerToken(a.into_iter().map(|x| x as f32).collect()),
    }
}
