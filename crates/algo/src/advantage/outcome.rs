use super::{AdvantageReport, RoleBaselines, RunningMoments};

/// The advantage of one episode's policy tokens.
#[derive(Debug, Clone, PartialEq)]
pub enum EpisodeAdvantage {
    /// One advantage for all tokens.
    Constant(f32),
    /// One per policy token, in the order of segments.
    PerToken(Vec<f32>),
}

impl EpisodeAdvantage {
    /// Advantage of policy token `t` of the episode; 0 beyond its end.
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

    /// True if all advantages are 0.
    pub fn is_zero(&self) -> bool {
        match self {
            Self::Constant(a) => *a == 0.0,
            Self::PerToken(a) => a.iter().all(|&x| x == 0.0),
        }
    }
}

/// Advantages of a batch, shaped like its groups.
#[derive(Debug, Clone, PartialEq)]
pub struct Advantages {
    /// `[group][episode]`. Episodes that are not for training, or whose reward does not apply, have `Constant(0)`.
    pub episodes: Vec<Vec<EpisodeAdvantage>>,
    /// `[group][episode][token]`: A + V of each policy token before whitening, the target of the value
    /// ([`Estimator::Gae`](crate::Estimator::Gae); empty for the others). A training
    /// episode whose reward does not apply has its values as targets, other episodes have none.
    pub returns: Vec<Vec<Vec<f32>>>,
    /// `[group][episode][round]`: A + V of each round, the target of a joint value
    /// ([`Estimator::JointGae`](crate::Estimator::JointGae); empty for the others).
    pub round_returns: Vec<Vec<Vec<f32>>>,
    /// Moments of the stage so far; updated only if the estimator uses them.
    pub running: RunningMoments,
    /// Averages of the rewards of agents so far; updated only if the estimator uses them.
    pub roles: RoleBaselines,
    /// Counts and means for metrics.
    pub report: AdvantageReport,
}
