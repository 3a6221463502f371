//! Decoding shape S, timed: 4 layers, width 256, 8 heads, 4 key-value heads, FFN 704, vocabulary 512; 64 prompts of 16
//! tokens, 64 new tokens each, greedy, through the embedded engine.
//!
//! `decode_rate STEPS [THREADS] [BATCH] [TEMPERATURE]` prints one JSON line: seconds of each round, the median's tokens
//! per second, peak memory. `bench/compare.py` runs it.

use std::error::Error;
use std::io::Write;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use rloom_core::{PolicyVersion, Purpose, RandomKey};
use rloom_model::{Family, Model, NewModel, Weights};
use rloom_ops::Ctx;
use rloom_rollout::{
    EmbeddedEngine, GenerateRequest, InFlight, RolloutEngine, RolloutSettings, SamplingSettings, generate_all,
};

const PROMPT: u64 = 16;
const NEW: usize = 64;
const VOCABULARY: usize = 512;

/// Peak resident memory in MiB, where the system tells.
fn peak_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0 kB");
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap_or(0.0) / 1024.0
}

fn argument<T: FromStr>(index: usize, default: T) -> Result<T, T::Err> {
    std::env::args().nth(index).map_or(Ok(default), |text| text.parse())
}

fn main() -> Result<(), Box<dyn Error>> {
    let (steps, threads, batch) = (argument(1, 5)?, argument(2, 2)?, argument(3, 64)?);
    let temperature = argument(4, 0.0)?;
    let shape = NewModel {
        family: Family::Qwen2,
        layers: 4,
        hidden_size: 256,
        heads: 8,
        kv_heads: Some(4),
        head_dim: None,
        intermediate_size: 704,
        max_positions: 512,
        rope_theta: 10_000.0,
        rms_norm_eps: 1e-6,
        tie_embeddings: true,
        initializer_range: 0.02,
    };
    let config = shape.config(VOCABULARY)?;
    let ctx = Ctx::new(threads)?;
    let engine = EmbeddedEngine::new(&config, &ctx, &RolloutSettings::default(), None)?;
    let weights = Weights { version: PolicyVersion(0), model: Arc::new(Model::init(&config, 1)) };
    let sampling = SamplingSettings { temperature, max_new_tokens: NEW, ..SamplingSettings::default() };
    let request = |ticket: u64| {
        let key = RandomKey::new(0, 0, Purpose::Evaluation, ticket);
        let stream = RandomKey::new(0, 0, Purpose::Generator, ticket).stream();
        let prompt: Vec<u32> = (0..PROMPT).map(|i| stream.below(i, VOCABULARY as u64) as u32).collect();
        GenerateRequest::new(key, prompt, sampling.clone())
    };

    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let mut seconds = Vec::with_capacity(steps);
    runtime.block_on(async {
        engine.load(&weights, InFlight::Finish).await?;
        for _ in 0..steps {
            let start = Instant::now();
            generate_all(&engine, (0..batch).map(request)).await?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        Ok::<(), Box<dyn Error>>(())
    })?;
    let mut sorted = seconds.clone();
    sorted.sort_by(f64::total_cmp);
    let rate = sorted.get(steps / 2).map_or(0.0, |median| (batch as usize * NEW) as f64 / median);
    writeln!(
        std::io::stdout(),
        "{{\"seconds\": {seconds:?}, \"tokens_per_second\": {rate:.0}, \"lanes\": {}, \"isa\": \"{}\", \"peak_mib\": \
         {:.1}}}",
        engine.lanes().len(),
        ctx.isa().name(),
        peak_mib(),
    )?;
    Ok(())
}
