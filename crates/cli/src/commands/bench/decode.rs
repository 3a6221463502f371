//! Workload `decode`: greedy generation of a batch of prompts with the rollout engine.

use std::time::Instant;

use rloom_core::{PolicyVersion, Purpose, RandomKey};
use rloom_engine::{
    GenerateRequest, OnUpdate, PublishedPolicy, RolloutEngine, RolloutQuantization, RolloutSettings,
    SamplingSettings, generate_all,
};
use rloom_model::Model;
use rloom_run::assembly;
use tokio::runtime::Runtime;

use super::count::{Operations, decode_bytes};
use super::measure::{Round, rounds};
use super::report::{Measurement, Phase, Traffic};
use super::shape::DecodeBatch;
use super::{Bench, random_tokens, runtime};
use crate::failure::Failure;

/// Rollout engine with timed generation.
struct TimedEngine<'a, R> {
    bench: &'a Bench<'a>,
    engine: R,
    weights: PublishedPolicy,
    runtime: Runtime,
}

impl<R: RolloutEngine> TimedEngine<'_, R> {
    /// Generates `new` tokens for each sequence; returns the duration in seconds. The weights are loaded before, with which the engine
    /// drops the keys and values of prompts that it would reuse.
    fn generate(&self, sequences: usize, new: usize) -> Result<f64, Failure> {
        let DecodeBatch { prompt, .. } = self.bench.shape.decode;
        let vocabulary = self.bench.shape.config.vocab_size;
        let requests: Vec<GenerateRequest> = (0..sequences as u64)
            .map(|ticket| {
                let key = RandomKey::new(0, 0, Purpose::Evaluation, ticket);
                let prompt = random_tokens(ticket, prompt, vocabulary);
                GenerateRequest::new(key, prompt, SamplingSettings::greedy(new))
            })
            .collect();
        self.runtime.block_on(self.engine.load(&self.weights, OnUpdate::Finish)).map_err(Failure::failed)?;
        let start = Instant::now();
        let done = self.runtime.block_on(generate_all(&self.engine, requests));
        done.map_err(Failure::failed)?;
        Ok(start.elapsed().as_secs_f64())
    }
}

pub(super) fn measure(bench: &Bench<'_>) -> Result<Measurement, Failure> {
    let DecodeBatch { sequences, prompt, new } = bench.shape.decode;
    let (ctx, config) = (&bench.ctx, &bench.shape.config);
    let settings = RolloutSettings { quantize: bench.quantize, ..RolloutSettings::default() };
    let engine = assembly::rollout_engine(config, ctx, &settings, None).map_err(Failure::failed)?;
    let model = Model::init(config, 0);
    let start = Instant::now();
    let packed = model.packed_only(ctx);
    let pack = start.elapsed().as_secs_f64();
    let weights = assembly::publish(ctx, &model, PolicyVersion(0));
    drop((model, packed));
    let timed = TimedEngine { bench, engine, weights, runtime: runtime()? };
    // The first generation includes what the engine allocates.
    timed.generate(1, 1)?;

    let mut measured = rounds(bench.rounds, &|text| bench.progress("decode", text), || {
        let reused = || timed.engine.statistics().reused_tokens;
        let before = reused();
        let prefill = timed.generate(sequences, 1)?;
        let between = reused();
        let seconds = timed.generate(sequences, new)?;
        // Prompts of one generation may begin alike. Those of the generation before would be missing from the time.
        let (alike, again) = (between - before, reused() - between);
        if again > alike + (sequences * prompt / 2) as u64 {
            let message = format_args!("the engine did not compute {again} tokens of prompts");
            return Err(Failure::failed_text(message));
        }
        let prefill = prefill.min(seconds);
        Ok(Round { seconds, phases: vec![("prefill", prefill), ("decode", seconds - prefill)] })
    })?;
    measured.phases.insert(0, Phase { name: "pack", seconds: pack });
    let (weights, weight_bytes) = match bench.quantize {
        None => (String::new(), config.dtype.bytes()),
        Some(format @ RolloutQuantization::Int8) => (format!(", weights in {}", format.name()), 1),
    };
    Ok(Measurement {
        workload: "decode",
        batch: format!("{sequences} prompts of {prompt}, {new} new tokens each, greedy{weights}"),
        tokens: sequences * new,
        operations: Operations::decode(config, bench.shape.decode),
        traffic: Traffic::Read(decode_bytes(config, bench.shape.decode, weight_bytes)),
        rounds: measured,
    })
}
