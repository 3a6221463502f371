use crate::{Keep, StatisticFrom};

/// How a reward becomes an advantage, before whitening.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Estimator {
    /// (R_i − mean)/(std + ε), each statistic from its own place, std with n − 1. From the group: GRPO (arXiv
    /// 2402.03300); without a standard deviation: Dr.GRPO (arXiv 2503.20783).
    Normalized {
        /// Where the mean comes from.
        mean_from: StatisticFrom,
        /// Where the standard deviation comes from.
        std_from: StatisticFrom,
        /// ε; not read without a standard deviation.
        std_epsilon: f64,
    },
    /// R_i − mean of the other G − 1: RLOO (arXiv 2402.14740).
    Rloo,
    /// Σ_{s≥t} γ^{s−t} r_s with r_s = −coef·(old − ref)_s and R added at the last token: REINFORCE++
    /// (arXiv 2501.03262). Needs no group.
    ReinforcePp {
        /// γ, over policy tokens.
        gamma: f64,
    },
    /// δ_t = r_t + γV_{t+1} − V_t, A_t = δ_t + γλA_{t+1} (arXiv 1506.02438), r as in `ReinforcePp`; beyond the last
    /// token V is 0, or the value there of an episode that was cut off.
    Gae {
        /// γ, over policy tokens.
        gamma: f64,
        /// λ.
        lambda: f64,
    },
    /// R_i − R of the group's episode of role `Baseline`: ReMax (arXiv 2310.10505).
    Remax,
    /// R_i − Σ_j |y_j|R_j / Σ_j |y_j|: OPO (arXiv 2505.23585).
    Opo,
    /// α(R_i − mean), α = samples / samples in groups whose rewards are not all equal: GPG (arXiv 2504.02546).
    Gpg,
    /// R_max − R_second for the best of the group, 0 for the others (arXiv 2503.19595).
    MaxAtG {
        /// ε of the group's standard deviation that divides; `None` divides by nothing.
        std_epsilon: Option<f64>,
    },
    /// Each named reward normalised in the group alone, then their weighted sum: GDPO (arXiv 2601.05242).
    Gdpo {
        /// ε.
        std_epsilon: f64,
    },
    /// 1 for episodes that are kept, 0 for the others: RAFT++ (arXiv 2504.11343).
    RaftPp {
        /// Which are.
        keep: Keep,
    },
    /// R_i − c: TOPR (arXiv 2503.14286).
    Topr {
        /// c.
        baseline: f64,
    },
    /// `group` of the episode + ω·(return from the step − mean over the group's steps with its state): GiGPO (arXiv
    /// 2505.10978). All tokens of a step share it.
    Gigpo {
        /// γ, over steps.
        gamma: f64,
        /// ω.
        step_weight: f64,
        /// ε of the standard deviations that divide, of episodes and of steps; `None` divides by nothing.
        std_epsilon: Option<f64>,
    },
    /// Σ_{s≥t} γ^{s−t}(q_s − mean of the others' q̄) + R_i − mean of the others' R with q = β(lp_PRM − lp_ref): PRIME
    /// (arXiv 2502.01456).
    Prime {
        /// γ, over policy tokens.
        gamma: f64,
        /// β.
        beta: f64,
    },
}

impl Estimator {
    /// GRPO's.
    pub fn group(std_epsilon: f64) -> Self {
        Self::Normalized { mean_from: StatisticFrom::Group, std_from: StatisticFrom::Group, std_epsilon }
    }

    /// Dr.GRPO's.
    pub fn group_mean() -> Self {
        Self::Normalized { mean_from: StatisticFrom::Group, std_from: StatisticFrom::None, std_epsilon: 0.0 }
    }

    /// Whether it compares the sampled episodes of a group, so that a group of one teaches nothing.
    pub fn needs_group(self) -> bool {
        match self {
            Self::Normalized { mean_from, std_from, .. } => {
                mean_from == StatisticFrom::Group || std_from == StatisticFrom::Group
            }
            Self::ReinforcePp { .. } | Self::Gae { .. } | Self::Remax | Self::Topr { .. } => false,
            Self::RaftPp { keep } => keep == Keep::Best,
            Self::Rloo
            | Self::Opo
            | Self::Gpg
            | Self::MaxAtG { .. }
            | Self::Gdpo { .. }
            | Self::Gigpo { .. }
            | Self::Prime { .. } => true,
        }
    }

    /// Whether each token pays its own divergence with KL in the reward; for the others the episode pays it.
    pub(super) fn pays_kl_by_token(self) -> bool {
        matches!(self, Self::ReinforcePp { .. } | Self::Gae { .. })
    }

    /// Whether all tokens of an episode share one advantage.
    pub fn is_per_episode(self) -> bool {
        !matches!(self, Self::ReinforcePp { .. } | Self::Gae { .. } | Self::Gigpo { .. } | Self::Prime { .. })
    }
}

/// An advantage: estimator, KL in the reward, whitening.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdvantageSpec {
    /// The estimator.
    pub estimator: Estimator,
    /// Weight of k1 = old − ref in the reward, 0 for none. [`Estimator::ReinforcePp`] and [`Estimator::Gae`] take it
    /// token by token; the others take its sum over the episode before the baseline. [`Estimator::Gdpo`], which reads
    /// named rewards, and the steps of [`Estimator::Gigpo`] pay none.
    pub kl_coef: f64,
    /// Whether (A − mean)/sqrt(max(population variance, 1e-8)) over the policy tokens of the batch follows.
    pub whiten: bool,
}
