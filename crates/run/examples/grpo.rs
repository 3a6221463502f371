//! Reinforcement learning from top to bottom in one file: tasks, rollout, reward, advantage, loss, step.
//!
//! A small transformer, initialised from scratch, learns single-digit sums from a reward alone, with GRPO. The real loop is in
//! `rloom-run`; it adds everything that a run of hours needs: a journal, checkpoints, overlap of rollout and training.
//!
//!     cargo run --release --example grpo

#![expect(clippy::print_stdout, reason = "an example prints its progress")]

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;

use rloom_algo::{
    Algorithm, AlgorithmState, EpisodeRewards, GlobalCounts, GroupRewards, LossInputs, LossStep, Method,
    Objective, PolicyObjective, advantages,
};
use rloom_core::{
    Author, OnUpdate, PolicyVersion, PromptSource, Purpose, RandomKey, SampleKey, Span, Task, Ticket,
    Trajectory,
};
use rloom_data::{ArithmeticSettings, DataSettings, Dataset, Operation, Source, Split};
use rloom_embedded::{EmbeddedRolloutEngine, EmbeddedTrainEngine};
use rloom_engine::{
    Form, GenerateRequest, Generation, OptimStep, PackedBatch, RolloutEngine, RolloutSettings,
    SamplingSettings, TrainEngine, generate_all, pack,
};
use rloom_model::{Family, GenerationConfig, Model, NewModel, OptimizerSettings};
use rloom_ops::Ctx;
use rloom_text::{CharacterSettings, Tokenizer};

const SEED: u64 = 1;
const STEPS: u64 = 120;
const GROUPS: u64 = 16;
const GROUP_SIZE: u32 = 16;
const LEARNING_RATE: f64 = 2e-3;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    // Tasks: "3+4=" with the answer "7", from a generator; all numbers in turn.
    let sums = ArithmeticSettings { operations: vec![Operation::Add], max_digits: 1, ..Default::default() };
    let data = DataSettings::from(Source::Arithmetic(sums));
    let tasks = Dataset::open(&data, Split::Train, SEED)?;

    // A policy: a tokenizer of characters and a transformer with random weights.
    let tokenizer = Tokenizer::characters(&CharacterSettings::new("0123456789+="))?;
    let shape = NewModel {
        family: Family::Qwen3,
        layers: 2,
        hidden_size: 64,
        heads: 4,
        kv_heads: Some(2),
        intermediate_size: 128,
        max_positions: 16,
        head_dim: None,
        rope_theta: 10_000.0,
        rms_norm_eps: 1e-6,
        tie_embeddings: true,
        initializer_range: 0.08,
    };
    let shape = shape.config(tokenizer.vocab_size())?;
    let policy = Arc::new(Model::init(&shape, SEED));

    // Two engines: one samples, one trains. They share weights, and compute the same log-probabilities to the last bit.
    let ctx = Ctx::new(2)?;
    let rollout = EmbeddedRolloutEngine::new(&shape, &ctx, &RolloutSettings::default(), None)?;
    let optimizer = OptimizerSettings::default();
    let mut trainer = EmbeddedTrainEngine::new(ctx, policy, None, optimizer, GenerationConfig::default());

    let algorithm = Algorithm::preset(Method::Grpo)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    for step in 0..STEPS {
        // Publish the weights of this version, then sample a group of attempts for each task.
        let version = trainer.publish(PolicyVersion(step), Form::Memory)?;
        let batch: Vec<Task> = (0..GROUPS)
            .map(|i| tasks.get((step * GROUPS + i) % tasks.len()))
            .collect::<std::result::Result<_, _>>()?;
        let requests = requests(&tokenizer, &batch, step)?;
        let completions = runtime.block_on(async {
            rollout.load(&version, OnUpdate::Finish).await?;
            generate_all(&rollout, requests.clone()).await
        })?;
        // The trainer updates the weights in place once the rollout engine has released them.
        runtime.block_on(rollout.release())?;
        drop(version);

        // Reward: 1 for the right answer, less the further off; 0 for anything that is not a number.
        let trajectories: Vec<Trajectory> =
            requests.iter().zip(&completions).map(|(asked, sampled)| trajectory(asked, sampled)).collect();
        let rewards: Vec<f64> = trajectories
            .iter()
            .enumerate()
            .map(|(i, trajectory)| reward(&tokenizer, &batch[i / GROUP_SIZE as usize], trajectory))
            .collect();

        // Advantage: how much better an attempt is than the others at the same task.
        let advantage = group_advantages(&algorithm, &trajectories, &rewards)?;

        // Loss and step: packed micro-batches through forward, loss, backward, then one step of AdamW.
        let packed = pack(&trajectories, 2048)?;
        let advantage: BTreeMap<SampleKey, f32> = trajectories.iter().map(|t| t.key).zip(advantage).collect();
        let inputs: Vec<LossInputs> = packed.iter().map(|batch| loss_inputs(batch, &advantage)).collect();
        let objective = PolicyObjective {
            loss: algorithm.loss_at(&AlgorithmState::default()),
            draws: RandomKey::new(SEED, 0, Purpose::Algorithm, step),
        };
        let counts = GlobalCounts::of_lengths(trajectories.iter().map(Trajectory::policy_tokens), 3);
        let report =
            trainer.accumulate(&packed, &LossStep::new(Objective::Policy(objective), counts, &inputs))?;
        let grad_norm = trainer.step(&OptimStep { learning_rate: LEARNING_RATE })?.grad_norm;

        if step % 10 == 9 {
            let mean = rewards.iter().sum::<f64>() / rewards.len() as f64;
            let solved =
                rewards.iter().filter(|&&reward| reward == 1.0).count() as f64 / rewards.len() as f64;
            println!(
                "step {:>3}  reward {mean:.3}  solved {:>4.1} %  gradient {grad_norm:.2}  tokens {}",
                step + 1,
                100.0 * solved,
                report.tokens
            );
        }
    }
    Ok(())
}

/// One request per attempt. Its random stream is named by seed, step and sample, so every run samples the same tokens.
fn requests(tokenizer: &Tokenizer, batch: &[Task], step: u64) -> Result<Vec<GenerateRequest>> {
    let mut requests = Vec::new();
    for (task, ticket) in batch.iter().zip(step * GROUPS..) {
        let PromptSource::Text(prompt) = &task.prompt else { return Err("a prompt of text".into()) };
        let prompt: Arc<[u32]> = tokenizer.encode(prompt, true)?.into();
        for sample in 0..GROUP_SIZE {
            let key = RandomKey::for_sample(SEED, 0, Purpose::Rollout, sample_key(ticket, sample));
            let sampling = SamplingSettings { max_new_tokens: 3, ..SamplingSettings::default() };
            let mut request = GenerateRequest::new(key, Arc::clone(&prompt), sampling);
            request.stop_tokens = tokenizer.eos_ids().into();
            request.group = Some(ticket);
            requests.push(request);
        }
    }
    Ok(requests)
}

fn sample_key(ticket: u64, sample: u32) -> SampleKey {
    SampleKey { ticket: Ticket(ticket), sample, segment: 0 }
}

/// Prompt and completion as the trainer sees them: tokens, their authors, log-probabilities when they were sampled.
fn trajectory(request: &GenerateRequest, completion: &Generation) -> Trajectory {
    let prompt = request.prompt.len();
    let end = prompt + completion.tokens.len();
    Trajectory {
        key: sample_key(request.key.ticket, request.key.sample),
        agent: None,
        tokens: [&request.prompt[..], &completion.tokens[..]].concat(),
        spans: vec![Span::new(Author::Prompt, 0..prompt), Span::new(Author::Policy, prompt..end)],
        logprobs: completion.logprobs.clone(),
        versions: Vec::new(),
        stop: completion.stop,
        attachments: Vec::new(),
    }
}

fn reward(tokenizer: &Tokenizer, task: &Task, trajectory: &Trajectory) -> f64 {
    let completion = &trajectory.tokens[trajectory.prompt_tokens()..];
    let text = tokenizer.decode(completion, true).unwrap_or_default();
    match (text.parse::<f64>(), task.answer.parse::<f64>()) {
        (Ok(guess), Ok(answer)) if guess == answer => 1.0,
        (Ok(guess), Ok(answer)) => 0.5 / (1.0 + (guess - answer).abs()),
        _ => 0.0,
    }
}

/// GRPO's advantage: the reward less the group's mean, divided by its standard deviation.
fn group_advantages(algorithm: &Algorithm, trajectories: &[Trajectory], rewards: &[f64]) -> Result<Vec<f32>> {
    let state = AlgorithmState::default();
    let spec = algorithm.advantage_at(&state).ok_or("a method with advantages")?;
    let episodes: Vec<EpisodeRewards<'_>> = trajectories
        .iter()
        .zip(rewards)
        .map(|(trajectory, &reward)| EpisodeRewards::new(Some(reward), trajectory.policy_tokens()))
        .collect();
    let groups: Vec<GroupRewards<'_>> =
        episodes.chunks(GROUP_SIZE as usize).map(|group| GroupRewards { episodes: group.to_vec() }).collect();
    let advantages = advantages(&spec, &state.rewards, &groups)?;
    Ok(advantages.episodes.iter().flatten().map(|advantage| advantage.at(0)).collect())
}

/// Inputs of the loss, one value per row: a sample's advantage is that of all its tokens.
fn loss_inputs(batch: &PackedBatch, advantage: &BTreeMap<SampleKey, f32>) -> LossInputs {
    let samples = batch.sequences.iter().zip(&batch.keys);
    LossInputs {
        rows: batch.sequences.clone(),
        behavior: Some(batch.behavior_logprob.clone()),
        advantage: Some(samples.flat_map(|(rows, key)| vec![advantage[key]; rows.len()]).collect()),
        ..LossInputs::default()
    }
}
