use rloom_core::Role;

use super::AgentPart;

/// Reward and state of one turn of an episode.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepReward<'a> {
    /// Range of its policy tokens within the episode: start and end. Steps are in order and do not overlap.
    pub tokens: (usize, usize),
    /// Reward of the step. The reward of the whole episode belongs to its last step: steps are compared by the returns
    /// that follow them.
    pub reward: f64,
    /// Key of the state before the step; steps of a group with the same key are compared. Steps without a key are not.
    pub state: Option<&'a str>,
}

/// Inputs of the advantage from one episode of a group. Those that an estimator does not read may be empty.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EpisodeRewards<'a> {
    /// Role of the episode. Only [`Role::Train`] is trained on; [`Estimator::Remax`] compares with [`Role::Baseline`].
    ///
    /// [`Estimator::Remax`]: crate::Estimator::Remax
    pub role: Role,
    /// Total reward. `None` if no component applies: the episode is excluded from the baseline and its advantage is 0.
    pub reward: Option<f64>,
    /// Number of policy tokens over all segments.
    pub tokens: usize,
    /// Log-probabilities of those tokens before the batch's first optimiser step, segment after segment. Read only
    /// with KL in the reward.
    pub old_logprob: &'a [f32],
    /// The reference model's log-probabilities of the same tokens. Read with KL in the reward.
    pub reference_logprob: &'a [f32],
    /// Weight and value of each named reward, in configuration order ([`Estimator::Gdpo`](crate::Estimator::Gdpo)).
    pub components: &'a [(f64, Option<f64>)],
    /// The value of the prefix before each token ([`Estimator::Gae`](crate::Estimator::Gae)).
    pub values: &'a [f32],
    /// The value after the last token if the episode was truncated; `None` if it ended
    /// ([`Estimator::Gae`](crate::Estimator::Gae)).
    pub last_value: Option<f32>,
    /// The value before each round in which an agent has written something, in order
    /// ([`Estimator::JointGae`](crate::Estimator::JointGae)).
    pub round_values: &'a [f32],
    /// Turns in order ([`Estimator::Gigpo`](crate::Estimator::Gigpo)).
    pub steps: &'a [StepReward<'a>],
    /// Log-probabilities of the tokens under the process-reward model
    /// ([`Estimator::Prime`](crate::Estimator::Prime)).
    pub prm_logprob: &'a [f32],
    /// Log-probabilities under the initial weights of that model ([`Estimator::Prime`](crate::Estimator::Prime)).
    pub prm_reference_logprob: &'a [f32],
    /// Advantages that are computed elsewhere: one for all tokens, or one per token
    /// ([`Estimator::Python`](crate::Estimator::Python)).
    pub given: &'a [f64],
    /// The agents, in the order of their tokens; empty for an episode of a single agent
    /// ([`Estimator::PerAgent`](crate::Estimator::PerAgent) and others).
    pub agents: &'a [AgentPart<'a>],
}

impl Default for EpisodeRewards<'_> {
    fn default() -> Self {
        Self {
            role: Role::Train,
            reward: None,
            tokens: 0,
            old_logprob: &[],
            reference_logprob: &[],
            components: &[],
            values: &[],
            last_value: None,
            round_values: &[],
            steps: &[],
            prm_logprob: &[],
            prm_reference_logprob: &[],
            given: &[],
            agents: &[],
        }
    }
}

impl<'a> EpisodeRewards<'a> {
    /// A training episode with a reward and no other inputs.
    pub fn new(reward: Option<f64>, tokens: usize) -> Self {
        Self { reward, tokens, ..Self::default() }
    }

    /// Reward of a training episode, which is part of baselines.
    pub(crate) fn compared(&self) -> Option<f64> {
        self.reward.filter(|_| self.role == Role::Train)
    }

    /// k1 of each policy token: old − ref (nats).
    pub(super) fn k1(&self) -> impl ExactSizeIterator<Item = f64> + use<'a> {
        let (old, reference) = (self.old_logprob, self.reference_logprob);
        old.iter().zip(reference).map(|(&o, &r)| f64::from(o) - f64::from(r))
    }
}

/// Episodes of one task, which are compared with each other.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GroupRewards<'a> {
    /// Episodes in the order of the group.
    pub episodes: Vec<EpisodeRewards<'a>>,
}
