//! Checks that the inputs of an estimator are given, belong together and are finite.

use rloom_core::Role;

use super::agents::rounds;
use super::{AdvantageSpec, EpisodeRewards, GroupRewards};
use crate::{AlgoError, Score};

/// Position of an episode, for error messages.
#[derive(Debug, Clone, Copy)]
struct Place {
    group: usize,
    episode: usize,
}

impl Place {
    fn finite(self, what: &'static str, values: impl IntoIterator<Item = f64>) -> Result<(), AlgoError> {
        let Self { group, episode } = self;
        match values.into_iter().find(|v| !v.is_finite()) {
            Some(value) => Err(AlgoError::NonFiniteEpisode { what, group, episode, value }),
            None => Ok(()),
        }
    }

    /// One finite number per policy token.
    fn per_token(self, what: Score, values: &[f32], expected: usize) -> Result<(), AlgoError> {
        let Self { group, episode } = self;
        if values.len() != expected {
            return Err(AlgoError::EpisodeLength { what, group, episode, got: values.len(), expected });
        }
        self.finite(what.name(), values.iter().map(|&v| f64::from(v)))
    }
}

/// Checks all that `spec` reads of the groups.
pub(super) fn check(spec: &AdvantageSpec, groups: &[GroupRewards<'_>]) -> Result<(), AlgoError> {
    let reads = spec.estimator.kernel().reads();
    for (g, group) in groups.iter().enumerate() {
        for (e, episode) in group.episodes.iter().enumerate() {
            let place = Place { group: g, episode: e };
            place.finite("reward", episode.reward)?;
            if episode.role == Role::Train {
                read_by(spec, episode, place)?;
            }
        }
        if reads.greedy {
            greedy(g, group)?;
        }
        if reads.components {
            components(g, group)?;
        }
    }
    Ok(())
}

fn read_by(spec: &AdvantageSpec, e: &EpisodeRewards<'_>, place: Place) -> Result<(), AlgoError> {
    // The value is trained on every episode, also where no reward applies.
    let reads = spec.estimator.kernel().reads();
    if reads.values {
        place.per_token(Score::Value, e.values, e.tokens)?;
        place.finite("value after the last token", e.last_value.map(f64::from))?;
    }
    if reads.round_values {
        place.per_token(Score::Value, e.round_values, rounds(e).len())?;
    }
    if e.compared().is_none() {
        return Ok(());
    }
    if spec.kl_coef != 0.0 {
        place.per_token(Score::OldLogprob, e.old_logprob, e.tokens)?;
        place.per_token(Score::ReferenceLogprob, e.reference_logprob, e.tokens)?;
    }
    if reads.prm.is_some() {
        place.per_token(Score::PrmLogprob, e.prm_logprob, e.tokens)?;
        place.per_token(Score::PrmReferenceLogprob, e.prm_reference_logprob, e.tokens)?;
    }
    if reads.given {
        given(e, place)?;
    }
    agents(e, place)?;
    if reads.recombined.is_some() {
        recombined(e, place)?;
    }
    if reads.steps { steps(e, place) } else { Ok(()) }
}

fn agents(e: &EpisodeRewards<'_>, place: Place) -> Result<(), AlgoError> {
    place.finite("reward of an agent", e.agents.iter().filter_map(|agent| agent.reward))?;
    let turns = e.agents.iter().flat_map(|agent| &agent.turns);
    place.finite("reward of a turn", turns.clone().filter_map(|turn| turn.reward))?;
    let ranges = e.agents.iter().map(|agent| agent.tokens).chain(turns.map(|turn| turn.tokens));
    for (step, (start, end)) in ranges.enumerate() {
        if end < start || end > e.tokens {
            let Place { group, episode } = place;
            return Err(AlgoError::StepTokens { group, episode, step, start, end, tokens: e.tokens });
        }
    }
    Ok(())
}

fn recombined(e: &EpisodeRewards<'_>, place: Place) -> Result<(), AlgoError> {
    if e.agents.is_empty() || e.agents.iter().any(|agent| agent.recombined.is_none()) {
        let Place { group, episode } = place;
        return Err(AlgoError::NotRecombined { group, episode });
    }
    place.finite("reward of combined turns", e.agents.iter().filter_map(|agent| agent.recombined))
}

fn given(e: &EpisodeRewards<'_>, place: Place) -> Result<(), AlgoError> {
    let (got, expected) = (e.given.len(), e.tokens);
    if got != 1 && got != expected {
        let Place { group, episode } = place;
        return Err(AlgoError::EpisodeLength { what: Score::Advantage, group, episode, got, expected });
    }
    place.finite("advantage", e.given.iter().copied())
}

fn steps(e: &EpisodeRewards<'_>, place: Place) -> Result<(), AlgoError> {
    place.finite("reward of a step", e.steps.iter().map(|s| s.reward))?;
    let mut end = 0;
    for (step, s) in e.steps.iter().enumerate() {
        let (start, stop) = s.tokens;
        if start < end || stop < start || stop > e.tokens {
            return Err(AlgoError::StepTokens {
                group: place.group,
                episode: place.episode,
                step,
                start,
                end: stop,
                tokens: e.tokens,
            });
        }
        end = stop;
    }
    Ok(())
}

fn greedy(group: usize, rewards: &GroupRewards<'_>) -> Result<(), AlgoError> {
    let compares = rewards.episodes.iter().any(|e| e.compared().is_some());
    let got = rewards.episodes.iter().filter(|e| e.role == Role::Baseline).count();
    if compares && got != 1 {
        return Err(AlgoError::BaselineEpisodes { group, got });
    }
    Ok(())
}

fn components(group: usize, rewards: &GroupRewards<'_>) -> Result<(), AlgoError> {
    let mut expected = None;
    for (episode, e) in rewards.episodes.iter().enumerate().filter(|(_, e)| e.compared().is_some()) {
        let got = e.components.len();
        let expected = *expected.get_or_insert(got);
        if got != expected || got == 0 {
            return Err(AlgoError::NamedRewards { group, episode, got, expected });
        }
        let numbers = e.components.iter().flat_map(|&(weight, value)| [Some(weight), value]);
        Place { group, episode }.finite("named reward or its weight", numbers.flatten())?;
    }
    Ok(())
}
