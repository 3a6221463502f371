//! Workload `grpo`: a GRPO step built from the components of a run: the rollout engine, advantages from random rewards,
//! the training engine, and loading the new weights for the next rollout.
//!
//! Excludes the journal, checkpoints and verifiers. There is no scoring phase: without a KL penalty the proximal
//! log-probabilities are those of the sampler, which are bitwise identical to the trainer's.

use std::sync::Arc;

use rloom_algo::{
    AdvantageSpec, Algorithm, AlgorithmState, EpisodeRewards, GlobalCounts, GroupRewards, LossInputs,
    LossStep, Method, Objective, PolicyObjective, advantages,
};
use rloom_core::{
    Author, PolicyVersion, Purpose, RandomKey, Role, SampleKey, Span, Ticket, Trajectory, VersionSpan,
};
use rloom_engine::{
    Form, GenerateRequest, Generation, OnUpdate, OptimStep, PackedBatch, RolloutEngine, RolloutSettings,
    SamplingSettings, TrainEngine, TrainSettings, generate_all, pack,
};
use rloom_run::assembly;
use tokio::runtime::Runtime;

use super::count::{self, Operations};
use super::measure::{PhaseTimer, Round, rounds};
use super::report::Measurement;
use super::shape::GrpoBatch;
use super::{Bench, random_tokens, runtime};
use crate::failure::Failure;

const LEARNING_RATE: f64 = 1e-6;

pub(super) fn measure(bench: &Bench<'_>) -> Result<Measurement, Failure> {
    let GrpoBatch { prompts, samples, prompt, new } = bench.shape.grpo;
    let mut step = step(bench)?;
    let measured = rounds(bench.rounds, &|text| bench.progress("grpo", text), || step.run())?;
    Ok(Measurement {
        workload: "grpo",
        batch: format!(
            "{prompts} prompts of {prompt}, {samples} samples each of {new} tokens, one optimiser step"
        ),
        tokens: prompts * samples * new,
        operations: Operations::grpo(&bench.shape.config, bench.shape.grpo),
        traffic: bench.training_traffic(count::grpo_traffic(&bench.shape.config, bench.shape.grpo)),
        rounds: measured,
    })
}

struct Step<R, T> {
    runtime: Runtime,
    rollout: R,
    trainer: T,
    algorithm: Algorithm,
    batch: GrpoBatch,
    prompts: Vec<Arc<[u32]>>,
    version: u64,
}

fn step(bench: &Bench<'_>) -> Result<Step<impl RolloutEngine + use<>, impl TrainEngine + use<>>, Failure> {
    let (ctx, config, batch) = (&bench.ctx, &bench.shape.config, bench.shape.grpo);
    let rollout =
        assembly::rollout_engine(config, ctx, &RolloutSettings::default(), None).map_err(Failure::failed)?;
    let trainer =
        assembly::train_engine(ctx, bench.model(), bench.optimizer.clone(), bench.checkpointing.into());
    let prompts = (0..batch.prompts as u64)
        .map(|ticket| random_tokens(ticket, batch.prompt, config.vocab_size).into())
        .collect();
    let algorithm = Algorithm::preset(Method::Grpo).map_err(Failure::failed)?;
    let mut step = Step { runtime: runtime()?, rollout, trainer, algorithm, batch, prompts, version: 0 };
    step.publish()?;
    Ok(step)
}

impl<R: RolloutEngine, T: TrainEngine> Step<R, T> {
    fn run(&mut self) -> Result<Round, Failure> {
        let mut timer = PhaseTimer::start();
        let trajectories = self.sample()?;
        timer.lap("rollout");
        let advantages = self.advantages(&trajectories)?;
        timer.lap("reward");
        // The trainer updates the weights in place once they are released.
        self.runtime.block_on(self.rollout.release()).map_err(Failure::failed)?;
        let packed =
            pack(&trajectories, TrainSettings::default().micro_batch_tokens).map_err(Failure::failed)?;
        let lengths = trajectories.iter().map(Trajectory::policy_tokens);
        let objective = Objective::Policy(PolicyObjective {
            loss: self.algorithm.loss,
            draws: RandomKey::new(self.version, 0, Purpose::Algorithm, 0),
        });
        let counts = GlobalCounts::of_lengths(lengths, self.batch.new as u64);
        let inputs = inputs(&packed, &advantages);
        let loss = LossStep::new(objective, counts, &inputs);
        self.trainer.accumulate(&packed, &loss).map_err(Failure::failed)?;
        timer.lap("forward_backward");
        self.trainer.step(&OptimStep { learning_rate: LEARNING_RATE }).map_err(Failure::failed)?;
        timer.lap("optimizer");
        self.publish()?;
        timer.lap("publish");
        Ok(timer.end())
    }

    fn sample(&self) -> Result<Vec<Trajectory>, Failure> {
        let sampling = SamplingSettings { max_new_tokens: self.batch.new, ..SamplingSettings::default() };
        let keys = || {
            let tickets = 0..self.prompts.len() as u64;
            tickets.flat_map(|ticket| {
                (0..self.batch.samples as u32).map(move |sample| SampleKey {
                    ticket: Ticket(ticket),
                    sample,
                    segment: 0,
                })
            })
        };
        let requests = keys().map(|key| {
            let prompt = Arc::clone(&self.prompts[key.ticket.0 as usize]);
            let stream = RandomKey::for_sample(self.version, 0, Purpose::Rollout, key);
            GenerateRequest {
                group: Some(key.ticket.0),
                ..GenerateRequest::new(stream, prompt, sampling.clone())
            }
        });
        let done = self.runtime.block_on(generate_all(&self.rollout, requests)).map_err(Failure::failed)?;
        Ok(keys().zip(done).map(|(key, done)| self.trajectory(key, done)).collect())
    }

    fn trajectory(&self, key: SampleKey, done: Generation) -> Trajectory {
        let prompt = &self.prompts[key.ticket.0 as usize];
        let at = prompt.len();
        let tokens: Vec<u32> = prompt.iter().copied().chain(done.tokens).collect();
        let shifted =
            |span: VersionSpan| VersionSpan { range: span.range.start + at..span.range.end + at, ..span };
        Trajectory {
            key,
            spans: vec![
                Span::new(Author::Prompt, 0..at),
                Span::new(Author::Policy, at..tokens.len()).with_temperature(done.temperature),
            ],
            agent: None,
            tokens,
            logprobs: done.logprobs,
            versions: done.versions.into_iter().map(shifted).collect(),
            stop: done.stop,
            attachments: Vec::new(),
        }
    }

    /// Advantage of each trajectory, from random rewards in [0, 1). Distinct rewards ensure that every token is trained
    /// on.
    fn advantages(&self, trajectories: &[Trajectory]) -> Result<Vec<f32>, Failure> {
        let spec: AdvantageSpec =
            self.algorithm.advantage.ok_or_else(|| Failure::failed_text("GRPO without an advantage"))?;
        let rewards: Vec<GroupRewards<'_>> = trajectories
            .chunks(self.batch.samples)
            .map(|group| GroupRewards { episodes: group.iter().map(|t| self.rewarded(t)).collect() })
            .collect();
        let running = AlgorithmState::default().rewards;
        let advantages = advantages(&spec, &running, &rewards).map_err(Failure::failed)?;
        Ok(advantages.episodes.iter().flatten().map(|episode| episode.at(0)).collect())
    }

    fn rewarded<'a>(&self, trajectory: &'a Trajectory) -> EpisodeRewards<'a> {
        let stream = RandomKey::for_sample(self.version, 0, Purpose::RandomReward, trajectory.key).stream();
        EpisodeRewards {
            role: Role::Train,
            reward: Some(stream.uniform(0)),
            tokens: trajectory.policy_tokens(),
            old_logprob: &trajectory.logprobs,
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

    fn publish(&mut self) -> Result<(), Failure> {
        self.version += 1;
        let published =
            self.trainer.publish(PolicyVersion(self.version), Form::Memory).map_err(Failure::failed)?;
        self.runtime.block_on(self.rollout.load(&published, OnUpdate::Finish)).map_err(Failure::failed)
    }
}

/// Inputs of the loss for micro-batches that contain the trajectories in the order of `advantages`.
fn inputs(packed: &[PackedBatch], advantages: &[f32]) -> Vec<LossInputs> {
    let mut of_trajectory = advantages.iter();
    packed
        .iter()
        .map(|batch| {
            let rows = batch.sequences.iter().zip(&mut of_trajectory);
            let advantage = rows.flat_map(|(rows, &advantage)| std::iter::repeat_n(advantage, rows.len()));
            LossInputs {
                rows: batch.sequences.clone(),
                advantage: Some(advantage.collect()),
                behavior: Some(batch.behavior_logprob.clone()),
                ..LossInputs::default()
            }
        })
        .collect()
}
