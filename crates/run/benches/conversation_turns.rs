//! Reuse of keys and values across the turns of conversations, against the same requests computed whole.
//!
//!     cargo bench --bench conversation_turns [-- CONVERSATIONS ROUNDS]
//!
//! Each turn samples tokens and appends those of a tool. Without reuse, the same weights are loaded between turns, which
//! ends it.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "it prints its measurements, and ends by panicking"
)]

use std::sync::Arc;
use std::time::Instant;

use rloom_core::{PolicyId, PolicyVersion, Purpose, RandomKey};
use rloom_embedded::{EmbeddedRolloutEngine, model_of, publish_model};
use rloom_engine::{
    GenerateRequest, OnUpdate, PublishedPolicy, RolloutEngine, RolloutSettings, RolloutStatistics,
    SamplingSettings, generate_all,
};
use rloom_model::{Family, Model, NewModel};
use rloom_ops::Ctx;

const TURNS: usize = 8;
/// Tokens of the first prompt, and those that each turn appends: sampled ones and a tool's.
const FIRST: usize = 256;
const ADDED: usize = 224;
const VOCABULARY: usize = 512;

/// Shape S of `rloom bench`, with a longer context.
fn model() -> Model {
    let new = NewModel {
        family: Family::Qwen2,
        layers: 4,
        hidden_size: 256,
        heads: 8,
        kv_heads: Some(4),
        head_dim: None,
        intermediate_size: 704,
        max_positions: FIRST + TURNS * ADDED,
        rope_theta: 10_000.0,
        rms_norm_eps: 1e-6,
        tie_embeddings: true,
        initializer_range: 0.02,
    };
    Model::init(&new.config(VOCABULARY).unwrap(), 1)
}

/// Pseudo-random tokens of a conversation.
fn tokens(conversation: u64, turn: usize, length: usize) -> Vec<u32> {
    let stream = RandomKey::new(turn as u64, 0, Purpose::Generator, conversation).stream();
    (0..length as u64).map(|i| stream.below(i, VOCABULARY as u64) as u32).collect()
}

struct Played {
    seconds: f64,
    statistics: RolloutStatistics,
    sequences: Vec<Vec<u32>>,
}

/// Plays all conversations, turn by turn, with `new` sampled tokens per turn.
async fn play(weights: &PublishedPolicy, conversations: u64, new: usize, reuses: bool) -> Played {
    let model = model_of(weights).unwrap();
    let ctx = Ctx::new(std::thread::available_parallelism().unwrap().get()).unwrap();
    let settings = RolloutSettings { max_batch: conversations as usize, ..RolloutSettings::default() };
    let engine = EmbeddedRolloutEngine::new(model.config(), &ctx, &settings, None).unwrap();
    engine.load(weights, OnUpdate::Finish).await.unwrap();
    let mut sequences: Vec<Vec<u32>> = (0..conversations).map(|c| tokens(c, 0, FIRST)).collect();
    let mut seconds = 0.0;
    for turn in 1..=TURNS {
        let sampling =
            SamplingSettings { max_new_tokens: new, min_new_tokens: new, ..SamplingSettings::default() };
        let requests = sequences.iter().zip(0..).map(|(sequence, c)| {
            let key = RandomKey::new(turn as u64, 0, Purpose::Rollout, c);
            GenerateRequest::new(key, &sequence[..], sampling.clone())
        });
        let began = Instant::now();
        let generations = generate_all(&engine, requests).await.unwrap();
        seconds += began.elapsed().as_secs_f64();
        for ((sequence, generation), c) in sequences.iter_mut().zip(generations).zip(0..) {
            sequence.extend(generation.tokens);
            sequence.extend(tokens(c, turn, ADDED - new));
        }
        if !reuses {
            engine.load(weights, OnUpdate::Finish).await.unwrap();
        }
    }
    engine.release().await.unwrap();
    Played { seconds, statistics: engine.statistics(), sequences }
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let conversations: u64 = arguments.next().unwrap_or(32);
    let rounds = arguments.next().unwrap_or(3);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let weights = publish_model(PolicyId::MAIN, PolicyVersion(1), &Arc::new(model()));
    println!("{conversations} conversations of {TURNS} turns, up to {} tokens", FIRST + TURNS * ADDED);
    for new in [1, 64] {
        for round in 0..=rounds {
            let [without, with] =
                [false, true].map(|reuses| runtime.block_on(play(&weights, conversations, new, reuses)));
            assert!(without.sequences == with.sequences, "reuse changed a token");
            // The first round warms up.
            if round > 0 {
                println!(
                    "{new:>3} new tokens per turn: computed {} and {} tokens ({:.2} times fewer), reused {}; \
                     {:.2} and {:.2} s ({:.2} times as fast)",
                    without.statistics.computed_tokens,
                    with.statistics.computed_tokens,
                    without.statistics.computed_tokens as f64 / with.statistics.computed_tokens as f64,
                    with.statistics.reused_tokens,
                    without.seconds,
                    with.seconds,
                    without.seconds / with.seconds,
                );
            }
        }
    }
}
