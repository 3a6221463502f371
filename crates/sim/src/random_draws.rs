//! Random draws of the workload. A ticket draws the same values in every simulation with the same seed, so that policies are
//! compared on identical work.

use rloom_core::{Purpose, RandomKey, RandomStream, Ticket};

use super::Distribution;
use super::distribution::normal_probability;
use super::scenario::{Failures, Workload};

/// Sample numbers that stand for the draws of the group itself, and for those of a replica.
const GROUP: u32 = u32::MAX;
const REPLICA: u32 = u32::MAX - 1;
/// Positions beyond those of any turn, which has four each.
const TURNS: u64 = 1 << 40;
const REWARD: u64 = TURNS + 1;

/// Random values as a function of the seed and of what they are for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RandomDraws {
    pub(crate) seed: u64,
}

/// Random values of a group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupDraws {
    /// Standard normal component shared by the lengths of the group's samples.
    pub(crate) shared_length: f64,
    /// Prompt tokens.
    pub(crate) prompt: f64,
    pub(crate) fails: bool,
    pub(crate) filtered: bool,
}

impl RandomDraws {
    fn stream(self, ticket: u64, sample: u32) -> RandomStream {
        RandomKey { seed: self.seed, stage: 0, purpose: Purpose::Simulation, ticket, sample, segment: 0 }
            .stream()
    }

    pub(crate) fn group(self, ticket: Ticket, work: &Workload, failures: &Failures) -> GroupDraws {
        let stream = self.stream(ticket.0, GROUP);
        let happens = |position, rate: f64| rate > 0.0 && stream.uniform(position) < rate;
        GroupDraws {
            shared_length: if work.group_correlation > 0.0 { stream.normal(0) } else { 0.0 },
            prompt: draw(&work.prompt_tokens, stream, 1).round().max(1.0),
            fails: happens(2, failures.group_rate),
            filtered: happens(3, work.filter_rate),
        }
    }

    pub(crate) fn turns(self, ticket: Ticket, sample: u32, work: &Workload) -> u16 {
        match work.turns {
            Distribution::Constant { value } => value.round().max(1.0) as u16,
            _ => draw(&work.turns, self.stream(ticket.0, sample), TURNS).round().max(1.0) as u16,
        }
    }

    /// Tokens of a turn, at least 1. `shared` is the group's component.
    pub(crate) fn tokens(self, ticket: Ticket, sample: u32, turn: u16, shared: f64, work: &Workload) -> f64 {
        if let Distribution::Constant { value } = work.turn_tokens {
            return value.round().max(1.0);
        }
        let own = self.stream(ticket.0, sample).normal(4 * u64::from(turn));
        let correlation = work.group_correlation;
        let z = correlation.sqrt() * shared + (1.0 - correlation).sqrt() * own;
        let value = match &work.turn_tokens {
            Distribution::Lognormal { median, sigma, max } => (median * (sigma * z).exp()).min(*max),
            other => other.quantile(normal_probability(z)),
        };
        value.round().max(1.0)
    }

    /// Tokens of the environment's observation and its latency in seconds.
    pub(crate) fn observation(self, ticket: Ticket, sample: u32, turn: u16, work: &Workload) -> (f64, f64) {
        let stream = self.stream(ticket.0, sample);
        let at = 4 * u64::from(turn);
        let tokens = draw(&work.observation_tokens, stream, at + 1).round();
        (tokens, draw(&work.environment_seconds, stream, at + 2))
    }

    pub(crate) fn reward_seconds(self, ticket: Ticket, sample: u32, work: &Workload) -> f64 {
        match work.reward_seconds {
            Distribution::Constant { value } => value,
            _ => draw(&work.reward_seconds, self.stream(ticket.0, sample), REWARD),
        }
    }

    /// Uniform number that selects the service time of a turn.
    pub(crate) fn service(self, ticket: Ticket, sample: u32, turn: u16) -> f64 {
        self.stream(ticket.0, sample).uniform(4 * u64::from(turn) + 3)
    }

    /// Seconds until the next failure of a replica (exponential).
    pub(crate) fn until_failure(self, replica: u32, count: u32, mean: f64) -> f64 {
        let uniform = self.stream(u64::from(replica), REPLICA).uniform(u64::from(count));
        -mean * (1.0 - uniform).ln()
    }
}

fn draw(distribution: &Distribution, stream: RandomStream, position: u64) -> f64 {
    match distribution {
        Distribution::Constant { value } => *value,
        other => other.quantile(stream.uniform(position)),
    }
}
