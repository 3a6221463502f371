//! What is drawn, and from which stream: the same ticket has the same luck in every world with the same seed, so that
//! policies are compared on the same work.

use rloom_core::{Purpose, RandomKey, RandomStream, Ticket};

use super::Distribution;
use super::distribution::normal_probability;
use super::scenario::{Failures, Workload};

/// The place of a group's own draws among its samples', and of replicas among tickets.
const GROUP: u32 = u32::MAX;
const REPLICA: u32 = u32::MAX - 1;
/// Draws of a turn are four positions apart; these are beyond any turn.
const TURNS: u64 = 1 << 40;
const REWARD: u64 = TURNS + 1;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Luck {
    pub(crate) seed: u64,
}

/// A group's draws.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupLuck {
    pub(crate) length: f64,
    pub(crate) prompt: f64,
    pub(crate) fails: bool,
    pub(crate) filtered: bool,
}

impl Luck {
    fn stream(self, ticket: u64, sample: u32) -> RandomStream {
        RandomKey { seed: self.seed, stage: 0, purpose: Purpose::Simulation, ticket, sample, segment: 0 }
            .stream()
    }

    pub(crate) fn group(self, ticket: Ticket, work: &Workload, failures: &Failures) -> GroupLuck {
        let stream = self.stream(ticket.0, GROUP);
        let happens = |position, rate: f64| rate > 0.0 && stream.uniform(position) < rate;
        GroupLuck {
            length: if work.group_correlation > 0.0 { stream.normal(0) } else { 0.0 },
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

    /// Tokens of a turn, at least 1. `shared` is the group's part of the luck.
    pub(crate) fn tokens(self, ticket: Ticket, sample: u32, turn: u16, shared: f64, work: &Workload) -> f64 {
        if let Distribution::Constant { value } = work.turn_tokens {
            return value.round().max(1.0);
        }
        let own = self.stream(ticket.0, sample).normal(4 * u64::from(turn));
        let correlation = work.group_correlation;
        let z = correlation.sqrt() * shared + (1.0 - correlation).sqrt() * own;
        let value = match &work.turn_tokens {
            Distribution::Lognormal { median, sigma, most } => (median * (sigma * z).exp()).min(*most),
            other => other.quantile(normal_probability(z)),
        };
        value.round().max(1.0)
    }

    /// Tokens with which the environment answers, and seconds until it does.
    pub(crate) fn answer(self, ticket: Ticket, sample: u32, turn: u16, work: &Workload) -> (f64, f64) {
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

    /// Seconds that a replica works until its next failure (exponential).
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
