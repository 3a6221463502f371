//! From rewards to advantages: what each policy token's log-probability is pushed by.

mod baseline;
mod reinforce_pp;
mod whiten;

use rloom_core::Role;

use crate::{AlgoError, Score};

/// What one episode of a group gives to the advantage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EpisodeRewards<'a> {
    /// What it is for. Only [`Role::Train`] enters baselines of the estimators here, and only it is trained on.
    pub role: Role,
    /// Its total reward; `None` where no component applied: it leaves the baseline and its advantage is 0.
    pub reward: Option<f64>,
    /// Its policy tokens, over all segments.
    pub tokens: usize,
    /// Log-probabilities of those tokens before the batch's first optimiser step, segment after segment. Read only
    /// with KL in the reward; may be empty otherwise.
    pub old_logprob: &'a [f32],
    /// The reference model's log-probabilities of the same tokens, likewise.
    pub reference_logprob: &'a [f32],
}

impl EpisodeRewards<'_> {
    /// An episode for training without what KL in the reward needs.
    pub fn new(reward: Option<f64>, tokens: usize) -> Self {
        Self { role: Role::Train, reward, tokens, old_logprob: &[], reference_logprob: &[] }
    }
}

/// Episodes that are compared with each other.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GroupRewards<'a> {
    /// In the group's order.
    pub episodes: Vec<EpisodeRewards<'a>>,
}

/// How a reward becomes an advantage, before whitening.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Estimator {
    /// (R_i − mean_g)/(std_g + ε), std with n − 1: GRPO (arXiv 2402.03300).
    Group {
        /// ε.
        std_epsilon: f64,
    },
    /// R_i − mean_g: Dr.GRPO (arXiv 2503.20783).
    GroupMean,
    /// R_i − mean of the other G − 1: RLOO (arXiv 2402.14740).
    Rloo,
    /// Σ_{s≥t} γ^{s−t} r_s with r_s = −coef·(old − ref)_s and R added at the last token: REINFORCE++
    /// (arXiv 2501.03262). Needs no group.
    ReinforcePp {
        /// γ, over policy tokens.
        gamma: f64,
    },
}

impl Estimator {
    /// Whether it compares the episodes of a group, so that a group of one teaches nothing.
    pub fn needs_group(self) -> bool {
        !matches!(self, Self::ReinforcePp { .. })
    }

    /// Whether all tokens of an episode share one advantage.
    pub fn is_per_episode(self) -> bool {
        !matches!(self, Self::ReinforcePp { .. })
    }
}

/// An advantage: estimator, KL in the reward, whitening.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdvantageSpec {
    /// The estimator.
    pub estimator: Estimator,
    /// Weight of k1 = old − ref in the reward, 0 for none. Estimators of whole episodes take its sum over the
    /// episode before the baseline; [`Estimator::ReinforcePp`] takes it token by token.
    pub kl_coef: f64,
    /// Whether (A − mean)/sqrt(max(population variance, 1e-8)) over the policy tokens of the batch follows.
    pub whiten: bool,
}

/// The advantage of one episode's policy tokens.
#[derive(Debug, Clone, PartialEq)]
pub enum EpisodeAdvantage {
    /// All its tokens share it.
    Constant(f32),
    /// One per policy token, segment after segment.
    PerToken(Vec<f32>),
}

impl EpisodeAdvantage {
    /// The advantage of policy token `t` of the episode; 0 beyond its end.
    pub fn at(&self, t: usize) -> f32 {
        match self {
            Self::Constant(a) => *a,
            Self::PerToken(a) => a.get(t).copied().unwrap_or(0.0),
        }
    }

    /// Appends the advantages of policy tokens `range` (a segment's) to `out`.
    pub fn extend_into(&self, range: std::ops::Range<usize>, out: &mut Vec<f32>) {
        out.extend(range.map(|t| self.at(t)));
    }

    /// Whether no token of the episode is pushed.
    pub fn is_zero(&self) -> bool {
        match self {
            Self::Constant(a) => *a == 0.0,
            Self::PerToken(a) => a.iter().all(|&x| x == 0.0),
        }
    }
}

/// What was met on the way, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AdvantageReport {
    /// Groups with at least one applicable reward.
    pub groups: usize,
    /// Among them: all applicable rewards are equal (groups of one included), judged before the KL penalty.
    pub zero_spread_groups: usize,
    /// Among them: only one episode was left to compare, so the estimator gave it 0.
    pub groups_of_one: usize,
    /// Train episodes without an applicable reward.
    pub not_applicable: usize,
}

impl AdvantageReport {
    /// Share of groups without contrast; `None` without any group.
    pub fn frac_zero_spread(&self) -> Option<f64> {
        (self.groups > 0).then(|| self.zero_spread_groups as f64 / self.groups as f64)
    }
}

/// Advantages of a batch, shaped like its groups.
#[derive(Debug, Clone, PartialEq)]
pub struct Advantages {
    /// `[group][episode]`. Episodes that are not for training, or whose reward does not apply, have `Constant(0)`.
    pub episodes: Vec<Vec<EpisodeAdvantage>>,
    /// Counts.
    pub report: AdvantageReport,
}

/// In `f64`, until the end.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Raw {
    /// Not trained on, or nothing to learn from: stays 0 and out of the whitening.
    Out,
    Constant(f64),
    PerToken(Vec<f64>),
}

/// Spreads of up to this share of the largest magnitude are rounding, not signal: rewards may have passed through
/// `f32`, and 0.1 + 0.2 is not 0.3.
const RESOLUTION: f64 = f32::EPSILON as f64;

/// Whether values are all equal up to float resolution. True for none and for one.
pub(crate) fn no_spread(values: impl Iterator<Item = f64> + Clone) -> bool {
    let low = values.clone().fold(f64::INFINITY, f64::min);
    let high = values.fold(f64::NEG_INFINITY, f64::max);
    // An empty fold gives −inf, which is below any bound.
    high - low <= RESOLUTION * low.abs().max(high.abs()) || low > high
}

/// Advantages of the batch that is trained together.
///
/// Pure: the same groups in the same order give the same bits.
///
/// # Errors
///
/// A reward or log-probability that is NaN or infinite, or log-probabilities that do not match the episode's
/// tokens where KL in the reward reads them.
pub fn advantages(spec: &AdvantageSpec, groups: &[GroupRewards<'_>]) -> Result<Advantages, AlgoError> {
    let mut report = AdvantageReport::default();
    let mut raw = Vec::with_capacity(groups.len());
    for (g, group) in groups.iter().enumerate() {
        check(spec, g, group)?;
        count(spec, group, &mut report);
        raw.push(match spec.estimator {
            Estimator::ReinforcePp { gamma } => reinforce_pp::group(group, spec.kl_coef, gamma),
            estimator => baseline::group(group, spec.kl_coef, estimator),
        });
    }
    if spec.whiten {
        whiten::whiten(groups, &mut raw);
    }
    let round = |raw: Raw| match raw {
        Raw::Out => EpisodeAdvantage::Constant(0.0),
        Raw::Constant(a) => EpisodeAdvantage::Constant(a as f32),
        Raw::PerToken(a) => EpisodeAdvantage::PerToken(a.into_iter().map(|x| x as f32).collect()),
    };
    let episodes = raw.into_iter().map(|g| g.into_iter().map(round).collect()).collect();
    Ok(Advantages { episodes, report })
}

/// Whether an episode enters baselines and is trained on.
fn takes_part(episode: &EpisodeRewards<'_>) -> bool {
    episode.role == Role::Train && episode.reward.is_some()
}

fn count(spec: &AdvantageSpec, group: &GroupRewards<'_>, report: &mut AdvantageReport) {
    let train = group.episodes.iter().filter(|e| e.role == Role::Train);
    report.not_applicable += train.clone().filter(|e| e.reward.is_none()).count();
    let rewards = train.filter_map(|e| e.reward);
    let present = rewards.clone().count();
    if present > 0 {
        report.groups += 1;
        report.zero_spread_groups += usize::from(no_spread(rewards));
        report.groups_of_one += usize::from(present == 1 && spec.estimator.needs_group());
    }
}

fn check(spec: &AdvantageSpec, group: usize, rewards: &GroupRewards<'_>) -> Result<(), AlgoError> {
    for (episode, e) in rewards.episodes.iter().enumerate() {
        if let Some(value) = e.reward.filter(|r| !r.is_finite()) {
            return Err(AlgoError::NonFiniteEpisode { what: "reward", group, episode, value });
        }
        if spec.kl_coef == 0.0 || !takes_part(e) {
            continue;
        }
        for (what, name, values) in [
            (Score::OldLogprob, "old log-probability", e.old_logprob),
            (Score::ReferenceLogprob, "reference log-probability", e.reference_logprob),
        ] {
            if values.len() != e.tokens {
                return Err(AlgoError::EpisodeLength {
                    what,
                    group,
                    episode,
                    got: values.len(),
                    expected: e.tokens,
                });
            }
            if let Some(&value) = values.iter().find(|v| !v.is_finite()) {
                let value = f64::from(value);
                return Err(AlgoError::NonFiniteEpisode { what: name, group, episode, value });
            }
        }
    }
    Ok(())
}

/// k1 of each policy token: old − ref (nats).
fn k1<'a>(
    episode: &EpisodeRewards<'a>,
) -> impl DoubleEndedIterator<Item = f64> + ExactSizeIterator + use<'a> {
    let (old, reference) = (episode.old_logprob, episode.reference_logprob);
    old.iter().zip(reference).map(|(&o, &r)| f64::from(o) - f64::from(r))
}
