use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rloom_core::{Episode, PolicyId, Purpose, RandomKey, Ticket};
use rloom_env::AgentSpec;

use crate::GroupProgress;

/// The policies that agents sample from.
#[derive(Debug, Clone, Default)]
pub struct AgentPolicies {
    /// The policy of agents that name none of the others.
    pub main: PolicyId,
    /// Other policies, by name.
    pub others: BTreeMap<String, PolicyId>,
    /// Leagues, by name: each group plays one of their policies.
    pub leagues: BTreeMap<String, Arc<Opponents>>,
}

impl AgentPolicies {
    /// One policy for all agents.
    pub fn all(main: PolicyId) -> Self {
        Self { main, ..Self::default() }
    }

    /// The policy of an agent in an episode of a group, or of the evaluation of a task.
    pub fn of(&self, agent: Option<&AgentSpec>, purpose: Purpose, ticket: Ticket) -> PolicyId {
        let Some(AgentSpec { policy, .. }) = agent else { return self.main };
        match self.leagues.get(policy) {
            Some(league) => league.of(purpose, ticket),
            None => self.others.get(policy).copied().unwrap_or(self.main),
        }
    }

    /// Draws the opponents of a group that begins, unless they are known: from an earlier draw or the parts that exist.
    pub fn begin(&self, ticket: Ticket, parts: &GroupProgress) {
        for league in self.leagues.values() {
            league.begin(ticket, parts);
        }
    }

    /// Forgets a group that is complete or cancelled.
    pub fn end(&self, ticket: Ticket) {
        for league in self.leagues.values() {
            league.state().drawn.remove(&ticket);
        }
    }
}

/// The opponents of a league. A group plays one of them, which its ticket draws when it begins.
#[derive(Debug)]
pub struct Opponents {
    seed: u64,
    stage: u32,
    /// Policy of the first opponent; the others follow.
    first: PolicyId,
    state: Mutex<OpponentState>,
}

#[derive(Debug, Default)]
struct OpponentState {
    /// Weight of each opponent; those without weights do not exist yet.
    weights: Vec<f64>,
    /// Opponents of the groups that have begun.
    drawn: BTreeMap<Ticket, PolicyId>,
}

impl Opponents {
    /// A league without opponents, whose policies are numbered from `first`.
    pub fn new(seed: u64, stage: u32, first: PolicyId) -> Self {
        Self { seed, stage, first, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, OpponentState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the weights with which groups that begin from now on draw.
    pub fn set_weights(&self, weights: Vec<f64>) {
        self.state().weights = weights;
    }

    /// The opponents of the groups that have begun.
    pub fn drawn(&self) -> BTreeMap<Ticket, PolicyId> {
        self.state().drawn.clone()
    }

    /// Restores the opponents of groups that have begun.
    pub fn restore(&self, drawn: BTreeMap<Ticket, PolicyId>) {
        self.state().drawn = drawn;
    }

    /// The opponent of a group that has begun, or of the evaluation of a task.
    fn of(&self, purpose: Purpose, ticket: Ticket) -> PolicyId {
        let state = self.state();
        match state.drawn.get(&ticket).filter(|_| purpose == Purpose::Rollout) {
            Some(drawn) => *drawn,
            None => self.draw(&state.weights, purpose, ticket),
        }
    }

    /// A group keeps the opponent of its recorded parts, or the one that it has drawn before.
    fn begin(&self, ticket: Ticket, parts: &GroupProgress) {
        let mut state = self.state();
        let turns =
            parts.partials.values().flat_map(|partial| &partial.turns).flat_map(|turn| &turn.versions);
        let segments = |episode: &Episode| episode.segments.clone();
        let segments: Vec<_> = parts.done.values().flat_map(segments).collect();
        let spans = segments.iter().flat_map(|segment| &segment.versions).chain(turns);
        let is_opponent =
            |policy: &PolicyId| (self.first.0..self.first.0 + state.weights.len() as u32).contains(&policy.0);
        let recorded = spans.map(|span| span.policy).find(is_opponent);
        let known = recorded.or_else(|| state.drawn.get(&ticket).copied());
        let drawn = known.unwrap_or_else(|| self.draw(&state.weights, Purpose::Rollout, ticket));
        state.drawn.insert(ticket, drawn);
    }

    /// Draws from the ticket's own random stream.
    fn draw(&self, weights: &[f64], purpose: Purpose, ticket: Ticket) -> PolicyId {
        let stage = if purpose == Purpose::Rollout { self.stage } else { u32::MAX };
        let key = RandomKey::new(self.seed, stage, Purpose::Opponent, ticket.0);
        let stream = RandomKey { segment: self.first.0, ..key }.stream();
        let mut at = stream.uniform(0) * weights.iter().sum::<f64>();
        for (place, weight) in (0..).zip(weights) {
            if at < *weight {
                return PolicyId(self.first.0 + place);
            }
            at -= weight;
        }
        // Rounding may leave the last one.
        PolicyId(self.first.0 + (weights.len() as u32).saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opponents_are_drawn_by_their_weights_and_stay_those_of_their_group() {
        let league = Opponents::new(3, 1, PolicyId(4));
        league.set_weights(vec![1.0, 0.0, 3.0]);
        let mut counts = [0; 3];
        for ticket in 0..4000 {
            let ticket = Ticket(ticket);
            league.begin(ticket, &GroupProgress::default());
            counts[(league.of(Purpose::Rollout, ticket).0 - 4) as usize] += 1;
        }
        assert_eq!((counts[1], counts.iter().sum::<u32>()), (0, 4000));
        assert!((900..1100).contains(&counts[0]), "{counts:?}");
        let before: Vec<_> = (0..50).map(|t| league.of(Purpose::Rollout, Ticket(t))).collect();
        league.set_weights(vec![0.0, 1.0, 0.0]);
        assert_eq!(before, (0..50).map(|t| league.of(Purpose::Rollout, Ticket(t))).collect::<Vec<_>>());
        assert_eq!(league.of(Purpose::Evaluation, Ticket(0)), PolicyId(5));
        // A group that begins again, in this program or the next one, keeps its opponent.
        let resumed = Opponents::new(3, 1, PolicyId(4));
        resumed.set_weights(vec![0.0, 1.0, 0.0]);
        resumed.restore(league.drawn());
        for (ticket, before) in (0..).zip(&before) {
            resumed.begin(Ticket(ticket), &GroupProgress::default());
            assert_eq!(resumed.of(Purpose::Rollout, Ticket(ticket)), *before);
        }
    }
}
