//! Advantages: from rewards to the factor of each policy token's log-probability.
//!
//! [`AdvantageSpec`] is the method, [`GroupRewards`] the input, and [`advantages`] computes [`Advantages`]. Rules for
//! all estimators:
//!
//! * An episode that is not for training, or whose reward does not apply, is excluded from statistics; its advantage is
//!   0.
//! * If only one episode of a group is left, its advantage is 0 and the group is counted.
//! * Rewards that are equal up to the resolution of `f32` give exactly 0.
//!
//! To add an estimator, write its file (settings, defaults, checks and computation), declare it here and give it a line
//! in the table.

mod agents;
mod check;
mod counterfactual;
mod episode;
mod estimator;
mod gae;
mod gdpo;
mod gigpo;
mod gpg;
mod group;
mod group_mean;
mod joint_gae;
mod magrpo;
mod marti;
mod max_at_g;
mod moments;
mod normalize;
mod normalized;
mod opo;
mod outcome;
mod per_agent;
mod prime;
mod python;
mod raft_pp;
mod recombination;
mod reinforce_pp;
mod reinforce_pp_baseline;
mod remax;
mod report;
mod returns;
mod rloo;
mod role_baseline;
mod spec;
mod topr;
mod view;
mod whiten;

pub use agents::{AgentPart, AgentTurn};
pub use episode::{EpisodeRewards, GroupRewards, StepReward};
pub use gigpo::StatesFrom;
pub use magrpo::Pairing;
pub use marti::{Shaping, ShapingHistory};
pub use moments::RunningMoments;
pub use outcome::{Advantages, EpisodeAdvantage};
pub use recombination::Recombination;
pub use report::AdvantageReport;
pub use spec::AdvantageSpec;

pub(crate) use estimator::Whitening;
pub(crate) use moments::no_spread;
pub(crate) use raft_pp::kept;

use std::collections::BTreeMap;

use rloom_core::Role;

use crate::AlgoError;
use estimator::Batch;
use view::{GroupView, Raw};

/// The kind of an advantage and its settings.
pub type AdvantageSettings = crate::settings::kind::KindSettings<AdvantageKind>;

estimator::estimators! {
    /// (R − mean)/(std + ε) over the group.
    group::Group = "group",
    /// R − mean over the group.
    group_mean::GroupMean = "group_mean",
    /// (R − mean)/(std + ε) with the sources `mean_from` and `std_from`.
    normalized::Normalized = "normalized",
    /// R − mean of the others in the group.
    rloo::Rloo = "rloo",
    /// Discounted return per token, whitened over the batch.
    reinforce_pp::ReinforcePp = "reinforce_pp",
    /// R − mean over the group, whitened over the batch.
    reinforce_pp_baseline::ReinforcePpBaseline = "reinforce_pp_baseline",
    /// Generalised advantage estimation with a learned value.
    gae::Gae = "gae",
    /// R − the reward of the task's greedy episode.
    remax::Remax = "remax",
    /// R − the length-weighted mean of the group.
    opo::Opo = "opo",
    /// α(R − mean), where α compensates for groups with equal rewards.
    gpg::Gpg = "gpg",
    /// The best of the group gets its lead over the second, the others 0.
    max_at_g::MaxAtG = "max_at_g",
    /// Each named reward normalised separately, their weighted sum whitened.
    gdpo::Gdpo = "gdpo",
    /// 1 for episodes that are kept, 0 for the others.
    raft_pp::RaftPp = "raft_pp",
    /// R − a fixed baseline.
    topr::Topr = "topr",
    /// The episode's group advantage plus that of its steps among steps from the same state.
    gigpo::Gigpo = "gigpo",
    /// Outcome and implicit process rewards, each with a leave-one-out baseline.
    prime::Prime = "prime",
    /// (R − mean)/(std + ε) of each agent over the group.
    per_agent::PerAgent = "per_agent",
    /// R − a moving average of each agent's rewards.
    role_baseline::RoleBaseline = "role_baseline",
    /// Rewards of turns, shaped by those before them.
    marti::Marti = "marti",
    /// Joint returns of several agents − mean over the group, turn by turn.
    magrpo::Magrpo = "magrpo",
    /// Generalised advantage estimation over rounds, with a learned value of all that several agents know.
    joint_gae::JointGae = "joint_gae",
    /// R − the mean reward with the agent's turns of other episodes in place of its own.
    counterfactual::Counterfactual = "counterfactual",
    /// A Python function.
    python::Python = "python",
}

/// Computes the advantages of a batch.
///
/// `running` are the moments that the stage's last batch returned. Pure: the same groups in the same order give the
/// same bits.
///
/// # Errors
///
/// An input that the estimator reads is missing, does not match the episode's tokens, or is NaN or infinite; with the
/// group's and the episode's place among those given.
pub fn advantages(
    spec: &AdvantageSpec,
    running: &RunningMoments,
    groups: &[GroupRewards<'_>],
) -> Result<Advantages, AlgoError> {
    advantages_of_roles(spec, running, &RoleBaselines::new(), groups)
}

/// Moving averages of the rewards of agents, by name.
pub type RoleBaselines = BTreeMap<String, f64>;

/// Computes the advantages of a batch of episodes of several agents, as [`advantages`] does. `roles` are the averages that the
/// stage's last batch returned.
///
/// # Errors
///
/// Those of [`advantages`].
pub fn advantages_of_roles(
    spec: &AdvantageSpec,
    running: &RunningMoments,
    roles: &RoleBaselines,
    groups: &[GroupRewards<'_>],
) -> Result<Advantages, AlgoError> {
    check::check(spec, groups)?;
    let seen: Vec<GroupView<'_>> =
        groups.iter().map(|g| GroupView::new(g, &spec.estimator, spec.kl_coef)).collect();
    let mut report = AdvantageReport::of(spec, &seen);
    let (mut running, mut roles) = (*running, roles.clone());
    let estimator = spec.estimator.kernel();
    let mut batch = Batch {
        groups: &seen,
        kl_coef: spec.kl_coef,
        running: &mut running,
        roles: &mut roles,
        report: &mut report,
    };
    let mut raw = estimator.estimate(&mut batch);
    let learns_values = estimator.reads().values;
    let returns = if learns_values { returns_of(&seen, &raw) } else { Vec::new() };
    let round_returns = if let Estimator::JointGae(joint) = spec.estimator {
        let of_group = |group: &GroupView<'_>| {
            let members = group.episodes.iter().zip(&group.rewards);
            members.map(|(e, reward)| joint.returns(e, *reward)).collect()
        };
        seen.iter().map(of_group).collect()
    } else {
        Vec::new()
    };
    if spec.whiten {
        whiten::whiten(&seen, &mut raw);
    }
    let episodes = raw.into_iter().map(|row| row.into_iter().map(round).collect()).collect();
    Ok(Advantages { episodes, returns, round_returns, running, roles, report })
}

/// A + V, rounded once.
fn returns_of(groups: &[GroupView<'_>], raw: &[Vec<Raw>]) -> Vec<Vec<Vec<f32>>> {
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
