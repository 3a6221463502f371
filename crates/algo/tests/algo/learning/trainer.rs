//! A driver on tables: groups, filters, learned values, optimiser steps.

use std::ops::Range;

use rloom_algo::{
    AdvantageReport, Advantages, Algorithm, AlgorithmState, EpisodeRewards, GlobalCounts, GroupRewards,
    ImplicitReward, LossGrad, LossInputs, LossMetrics, LossStep, Method, Mismatch, Objective, PolicyLoss,
    PreferenceLoss, Proximal, StepReward, Surrogate, TokenScores, advantages, best_and_worst, interpolation,
};
use rloom_core::{Purpose, RandomKey, Role};

use super::tabular::{Choose, Episode, Game, Table, room};
use crate::step::{Step, merged};

/// Training episodes per batch, for any group size.
const EPISODES: usize = 48;
/// Learning rate of the value: a state is visited about five times per batch, and its error is divided by about 96
/// tokens.
const VALUE_RATE: f64 = 6.0;
/// Learning rate of the process-reward model, whose derivatives are scaled by β and divided by the number of sequences.
const PRM_RATE: f64 = 400.0;

/// Conditions of a training run.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) game: Game,
    /// Rewards 1 for a solved task and 0 otherwise, instead of the fraction of right actions.
    pub(crate) is_binary: bool,
    /// Gives every episode the same reward, so that only its steps differ.
    pub(crate) is_level: bool,
    /// Age of the sampler in batches.
    pub(crate) age: usize,
    pub(crate) rate: f64,
    /// −1 flips the sign of every advantage, and of demonstrations.
    pub(crate) sign: f32,
}

impl Setup {
    pub(crate) fn of(method: Method, rate: f64) -> Self {
        Self {
            game: if method == Method::Gigpo { Game::Rooms } else { Game::Words },
            // Methods with a threshold need a reward of 0 or 1.
            is_binary: matches!(method, Method::RaftPp | Method::Topr),
            is_level: false,
            age: match method {
                Method::DecoupledPpo | Method::Topr | Method::DppoTv | Method::DppoKl => 2,
                _ => 0,
            },
            rate,
            sign: 1.0,
        }
    }

    fn reward(&self, e: &Episode) -> f64 {
        match (self.is_level, self.is_binary) {
            (true, _) => 1.0,
            (false, true) => e.solved,
            (false, false) => e.share,
        }
    }
}

/// Episodes of a group: training episodes, and the greedy one if needed.
struct Group {
    episodes: Vec<Episode>,
    greedy: Option<Episode>,
}

/// Training state and its history.
pub(crate) struct Trainer {
    algorithm: Algorithm,
    setup: Setup,
    pub(crate) policy: Table,
    reference: Table,
    /// Policies of all batches so far, the newest last.
    samplers: Vec<Table>,
    values: Vec<f64>,
    prm: Table,
    tickets: u64,
    pub(crate) state: AlgorithmState,
    /// Metrics of each optimiser step.
    pub(crate) metrics: Vec<LossMetrics>,
    /// Report of each batch.
    pub(crate) reports: Vec<AdvantageReport>,
    /// Number of replaced groups.
    pub(crate) filtered: usize,
}

impl Trainer {
    pub(crate) fn new(algorithm: &Algorithm, setup: Setup) -> Self {
        let start = Table::uniform(setup.game.states());
        Self {
            algorithm: *algorithm,
            setup,
            reference: start.clone(),
            samplers: Vec::new(),
            values: vec![0.0; setup.game.states()],
            prm: start.clone(),
            policy: start,
            tickets: 0,
            state: AlgorithmState::default(),
            metrics: Vec::new(),
            reports: Vec::new(),
            filtered: 0,
        }
    }

    pub(crate) fn skill(&self) -> f64 {
        self.setup.game.skill(&self.policy)
    }

    /// Actions preferred by the process-reward model.
    pub(crate) fn process_skill(&self) -> f64 {
        self.setup.game.skill(&self.prm)
    }

    pub(crate) fn train(mut self, batches: usize) -> Self {
        for _ in 0..batches {
            self.samplers.push(self.policy.clone());
            if self.algorithm.needs_rollouts() { self.reinforce() } else { self.imitate() }
        }
        self
    }

    fn imitate(&mut self) {
        let game = self.setup.game;
        let demonstrations: Vec<Episode> =
            (0..game.tasks()).map(|task| game.play(&self.policy, task, Choose::Right)).collect();
        let episodes: Vec<&Episode> = demonstrations.iter().collect();
        let step = self.step(&episodes);
        let rate = self.setup.rate * f64::from(self.setup.sign);
        let loss = self.algorithm.loss;
        self.descend(&loss, &step, &episodes, rate);
    }

    fn sampler(&self) -> (usize, &Table) {
        let version = (self.samplers.len() - 1).saturating_sub(self.setup.age);
        (version, &self.samplers[version])
    }

    fn play(&mut self) -> Group {
        let game = self.setup.game;
        let task = self.tickets as usize % game.tasks();
        let sampler = self.sampler().1;
        let sample = |sample| {
            let key = RandomKey { sample, ..RandomKey::new(7, 0, Purpose::Rollout, self.tickets) };
            game.play(sampler, task, Choose::Sample(key))
        };
        let greedy = self.algorithm.needs_baseline_episode();
        let group = Group {
            episodes: (0..self.algorithm.group_size).map(sample).collect(),
            greedy: greedy.then(|| game.play(sampler, task, Choose::Greedy)),
        };
        self.tickets += 1;
        group
    }

    /// Groups of a batch; fewer if too many were filtered.
    fn groups(&mut self) -> Vec<Group> {
        let wanted = EPISODES / self.algorithm.group_size as usize;
        let filters = self.algorithm.filters;
        let draws = wanted * filters.max_draws.max(1) as usize;
        let mut groups = Vec::new();
        for _ in 0..draws {
            let group = self.play();
            let outcomes: Vec<Option<f64>> =
                group.episodes.iter().map(|e| Some(self.setup.reward(e))).collect();
            match filters.verdict(&outcomes, &outcomes) {
                None => groups.push(group),
                Some(_) => self.filtered += 1,
            }
            if groups.len() == wanted {
                break;
            }
        }
        groups
    }

    fn reinforce(&mut self) {
        let groups = self.groups();
        if self.algorithm.samples_pairs() {
            return self.prefer(&groups);
        }
        let episodes: Vec<&Episode> = groups.iter().flat_map(|g| &g.episodes).collect();
        let mut step = self.step(&episodes);
        if let Some(prm) = self.algorithm.prm {
            // Trained on the batch before its rewards are used.
            self.train_prm(&step, &episodes, prm.beta);
        }
        let got = self.advantages(&groups, &step);
        for (group, row) in groups.iter().zip(&got.episodes) {
            for (e, a) in group.episodes.iter().zip(row) {
                a.extend_into(0..e.actions.len(), &mut step.advantage);
            }
        }
        for a in &mut step.advantage {
            *a *= self.setup.sign;
        }
        step.returns = got.returns.iter().flatten().flatten().copied().collect();
        step.masked = self.masks(&groups);
        self.state = self.state.after_batch(&self.algorithm, &got);
        self.reports.push(got.report);
        for _ in 0..self.algorithm.epochs {
            let size = groups.len().div_ceil(self.algorithm.minibatches as usize).max(1);
            for first in (0..groups.len()).step_by(size) {
                let of = first * self.algorithm.group_size as usize;
                let end = of + groups[first..].iter().take(size).map(|g| g.episodes.len()).sum::<usize>();
                self.optimise(&part(&step, of..end), &episodes[of..end]);
            }
        }
    }

    /// One optimiser step on the best and the worst episode of each group, in two micro-batches.
    fn prefer(&mut self, groups: &[Group]) {
        let sign = f64::from(self.setup.sign);
        let pair = |group: &'_ Group| {
            let rewards: Vec<Option<f64>> =
                group.episodes.iter().map(|e| Some(sign * self.setup.reward(e))).collect();
            let (best, worst) = best_and_worst(&rewards).unwrap();
            [best, worst].map(|index| group.episodes[index].clone())
        };
        let episodes: Vec<Episode> = groups.iter().flat_map(pair).collect();
        let counts = GlobalCounts::of_lengths(episodes.iter().map(|e| e.actions.len()), 0);
        let flat =
            |table: &Table, own: &[Episode]| own.iter().flat_map(|e| table.logprobs(e)).collect::<Vec<f32>>();
        let half = episodes.len() / 4 * 2;
        let (inputs, scores): (Vec<LossInputs>, Vec<TokenScores>) = [&episodes[..half], &episodes[half..]]
            .map(|own| {
                let mut end = 0;
                let rows = own.iter().map(|e| {
                    end += e.actions.len();
                    end - e.actions.len()..end
                });
                let inputs = LossInputs {
                    rows: rows.collect(),
                    reference: Some(flat(&self.reference, own)),
                    outcome: Some((0..own.len()).map(|row| if row % 2 == 0 { 1.0 } else { 0.0 }).collect()),
                    ..LossInputs::default()
                };
                let logprob = flat(&self.policy, own);
                let entropy = vec![0.0; logprob.len()];
                (inputs, TokenScores { logprob, entropy, ..TokenScores::default() })
            })
            .into_iter()
            .unzip();
        let preference = self.algorithm.preference.unwrap();
        let objective = Objective::Preference(PreferenceLoss { preference, anchor: 0.0 });
        let grads = LossStep::new(objective, counts, &inputs).evaluate_step(&scores).unwrap();
        let d_logprob: Vec<f32> = grads.iter().flat_map(|grad| grad.d_logprob.clone()).collect();
        let (before, mut start) = (self.policy.clone(), 0);
        for e in &episodes {
            self.policy.descend(&before, e, &d_logprob[start..], &[], self.setup.rate);
            start += e.actions.len();
        }
        self.metrics.push(merged(grads.iter().map(|g| &g.terms)).finish(&counts).unwrap());
    }

    /// Inputs of the loss that do not depend on rewards.
    fn step(&self, episodes: &[&Episode]) -> Step {
        let flat =
            |of: &dyn Fn(&Episode) -> Vec<f32>| episodes.iter().flat_map(|e| of(e)).collect::<Vec<f32>>();
        let (version, sampler) = self.sampler();
        let behavior = flat(&|e| sampler.logprobs(e));
        let logprob = flat(&|e| self.policy.logprobs(e));
        let now = (self.samplers.len() - 1) as f64;
        let alpha = interpolation(now, version as f64, now + 1.0) as f32;
        let interpolates = self.algorithm.proximal == Proximal::LogLinear;
        let value = flat(&|e| e.states.iter().map(|&s| self.values[s] as f32).collect());
        let has_values = self.algorithm.critic.is_some();
        Step {
            lengths: episodes.iter().map(|e| e.actions.len()).collect(),
            completion_limit: self.setup.game.limit() as u64,
            old: match self.algorithm.proximal {
                Proximal::Sampler => behavior.clone(),
                Proximal::Recompute => logprob.clone(),
                Proximal::LogLinear => Vec::new(),
            },
            interpolation: if interpolates { vec![alpha; logprob.len()] } else { Vec::new() },
            behavior,
            reference: flat(&|e| self.reference.logprobs(e)),
            entropy: flat(&|e| self.policy.entropies(e)),
            old_value: if has_values { value.clone() } else { Vec::new() },
            value: if has_values { value } else { Vec::new() },
            outcome: episodes.iter().map(|e| self.setup.reward(e) as f32).collect(),
            logprob,
            mismatch: Mismatch::Unmeasured,
            ..Step::default()
        }
    }

    fn train_prm(&mut self, step: &Step, episodes: &[&Episode], beta: f64) {
        let loss = PolicyLoss::new(
            Surrogate::ImplicitReward(ImplicitReward { beta }),
            rloom_algo::Aggregation::SequenceMean,
        );
        let prm: Vec<f32> = episodes.iter().flat_map(|e| self.prm.logprobs(e)).collect();
        let step = Step { logprob: prm, ..step.clone() };
        let grad = step.loss(&loss).unwrap();
        let before = self.prm.clone();
        for (i, e) in episodes.iter().enumerate() {
            self.prm.descend(&before, e, &grad.d_logprob[step.start(i)..], &[], PRM_RATE);
        }
    }

    fn advantages(&self, groups: &[Group], step: &Step) -> Advantages {
        let spec = self.algorithm.advantage_at(&self.state).unwrap();
        // With a recomputed or interpolated policy, KL in the reward still uses the sampler.
        let old = if step.old.is_empty() { &step.behavior } else { &step.old };
        let prm: Vec<f32> =
            groups.iter().flat_map(|g| &g.episodes).flat_map(|e| self.prm.logprobs(e)).collect();
        let of = |e: &Episode| -> (Vec<StepReward<'static>>, [(f64, Option<f64>); 2]) {
            let last = e.states.len() - 1;
            let steps = e.states.iter().enumerate().map(|(t, &s)| StepReward {
                tokens: (t, t + 1),
                reward: if t == last { e.solved } else { 0.0 },
                state: (self.setup.game == Game::Rooms).then(|| room(s)),
            });
            (steps.collect(), [(1.0, Some(e.share)), (0.5, Some(e.solved))])
        };
        let extras: Vec<_> = groups.iter().flat_map(|g| &g.episodes).map(of).collect();
        let mut i = 0;
        let mut view = |e: &Episode| {
            let tokens = step.start(i)..step.start(i) + e.actions.len();
            let (steps, components) = &extras[i];
            i += 1;
            EpisodeRewards {
                old_logprob: &old[tokens.clone()],
                reference_logprob: &step.reference[tokens.clone()],
                components,
                values: step.value.get(tokens.clone()).unwrap_or_default(),
                steps,
                prm_logprob: &prm[tokens.clone()],
                prm_reference_logprob: &step.reference[tokens],
                ..EpisodeRewards::new(Some(self.shaped(e)), e.actions.len())
            }
        };
        let rewards: Vec<GroupRewards<'_>> = groups
            .iter()
            .map(|g| {
                let mut episodes: Vec<EpisodeRewards<'_>> = g.episodes.iter().map(&mut view).collect();
                episodes.extend(g.greedy.as_ref().map(|e| EpisodeRewards {
                    role: Role::Baseline,
                    ..EpisodeRewards::new(Some(self.setup.reward(e)), e.actions.len())
                }));
                GroupRewards { episodes }
            })
            .collect();
        advantages(&spec, &self.state.rewards, &rewards).unwrap()
    }

    fn shaped(&self, e: &Episode) -> f64 {
        let limit = self.setup.game.limit() as u64;
        let penalty = self.algorithm.overlong.map_or(0.0, |o| o.penalty(e.actions.len() as u64, limit));
        self.setup.reward(e) + penalty
    }

    fn masks(&self, groups: &[Group]) -> Vec<bool> {
        let of_group = |g: &Group| {
            let view = |e: &Episode| EpisodeRewards::new(Some(self.shaped(e)), e.actions.len());
            let episodes = g.episodes.iter().map(view).collect();
            self.algorithm.filters.masks(&GroupRewards { episodes }, &[])
        };
        groups.iter().flat_map(of_group).map(|reason| reason.is_some()).collect()
    }

    /// One optimiser step of the policy and of the models trained with it.
    fn optimise(&mut self, step: &Step, episodes: &[&Episode]) {
        let mut step = step.clone();
        step.logprob = episodes.iter().flat_map(|e| self.policy.logprobs(e)).collect();
        step.entropy = episodes.iter().flat_map(|e| self.policy.entropies(e)).collect();
        let states = || episodes.iter().flat_map(|e| &e.states);
        if let Some(critic) = self.algorithm.critic {
            step.value = states().map(|&s| self.values[s] as f32).collect();
            if !critic.is_shared() {
                let grad = step.critic(&critic.value, 0..episodes.len()).unwrap();
                self.learn_values(states(), &grad.d_value, VALUE_RATE);
            }
        }
        let loss = self.algorithm.loss_at(&self.state);
        let d_value = self.descend(&loss, &step, episodes, self.setup.rate);
        if let Some(value) = loss.value {
            self.learn_values(states(), &d_value, VALUE_RATE / value.coef);
        }
    }

    fn learn_values<'a>(&mut self, states: impl Iterator<Item = &'a usize>, d_value: &[f32], rate: f64) {
        for (&s, &d) in states.zip(d_value) {
            self.values[s] -= rate * f64::from(d);
        }
    }

    /// Back-propagates two micro-batches; returns the derivatives with respect to the values.
    fn descend(&mut self, loss: &PolicyLoss, step: &Step, episodes: &[&Episode], rate: f64) -> Vec<f32> {
        let half = episodes.len() / 2;
        let stream = RandomKey::new(7, 0, Purpose::Algorithm, self.metrics.len() as u64).stream();
        let grads: Vec<LossGrad> =
            step.parts(loss, &[0..half, half..episodes.len()], &|position| stream.bits(position)).unwrap();
        let all = |of: fn(&LossGrad) -> &Vec<f32>| grads.iter().flat_map(of).copied().collect::<Vec<f32>>();
        let (d_logprob, d_entropy) = (all(|g| &g.d_logprob), all(|g| &g.d_entropy));
        let before = self.policy.clone();
        for (i, e) in episodes.iter().enumerate() {
            let at = step.start(i);
            self.policy.descend(&before, e, &d_logprob[at..], &d_entropy[at..], rate);
        }
        let metrics = merged(grads.iter().map(|g| &g.terms)).finish(&step.counts()).unwrap();
        self.state = self.state.after_step(&self.algorithm, &metrics);
        self.metrics.push(metrics);
        all(|g| &g.d_value)
    }
}

/// An optimiser step over some sequences of a batch.
fn part(batch: &Step, sequences: Range<usize>) -> Step {
    let tokens = batch.start(sequences.start)..batch.start(sequences.end);
    let of = |values: &[f32]| values.get(tokens.clone()).unwrap_or_default().to_vec();
    Step {
        lengths: batch.lengths[sequences.clone()].to_vec(),
        completion_limit: batch.completion_limit,
        logprob: of(&batch.logprob),
        entropy: of(&batch.entropy),
        value: of(&batch.value),
        advantage: of(&batch.advantage),
        old: of(&batch.old),
        behavior: of(&batch.behavior),
        reference: of(&batch.reference),
        interpolation: of(&batch.interpolation),
        returns: of(&batch.returns),
        old_value: of(&batch.old_value),
        outcome: batch.outcome[sequences.clone()].to_vec(),
        masked: batch.masked[sequences].to_vec(),
        mismatch: batch.mismatch,
    }
}
