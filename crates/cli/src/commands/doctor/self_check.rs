//! A tiny model on every instruction set: does sampling agree with scoring, and do all of them agree, bit for bit?

use std::sync::Arc;

use rloom_core::{PolicyVersion, Purpose, RandomKey};
use rloom_model::{Family, Model, ModelConfig, NewModel, PackedTokens, ScoreRows, Weights};
use rloom_ops::{Ctx, Isa};
use rloom_rollout::{
    EmbeddedEngine, GenerateRequest, InFlight, RolloutEngine, RolloutSettings, SamplingSettings,
};

use super::Finding;

const VOCABULARY: usize = 97;
const PROMPT: [u32; 5] = [1, 2, 3, 5, 8];

pub(super) fn run() -> [Finding; 2] {
    let hint = "this is a defect: please report it with the output of `rloom doctor --json`";
    let mut results = Vec::new();
    for isa in Isa::available() {
        match sample_and_score(isa) {
            Ok(pair) => results.push((isa, pair)),
            Err(error) => {
                let failed = |name| Finding::failed(name, format!("{}: {error}", isa.name()), hint);
                return [failed("exactness"), failed("portability")];
            }
        }
    }
    let apart = results.iter().find(|(_, (sampled, scored))| sampled != scored);
    let exact = match apart {
        None => {
            Finding::ok("exactness", "log-probabilities of sampling and of training are equal, bit for bit")
        }
        Some((isa, _)) => {
            let value = format!("sampling and training disagree on {}", isa.name());
            Finding::failed("exactness", value, hint)
        }
    };
    let first = results.first().map(|(_, pair)| pair.clone());
    let other = results.iter().find(|(_, pair)| Some(pair) != first.as_ref());
    let portable = match other {
        None => Finding::ok("portability", format!("{} instruction sets give the same bits", results.len())),
        Some((isa, _)) => {
            Finding::failed("portability", format!("{} gives other bits than portable", isa.name()), hint)
        }
    };
    [exact, portable]
}

/// Bits of the log-probabilities of a sampled completion: as the sampler saw them, and as a packed forward pass does.
fn sample_and_score(isa: Isa) -> Result<(Vec<u32>, Vec<u32>), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let ctx = Ctx::with_isa(2, isa).map_err(|e| text(&e))?;
    let config = tiny().map_err(|e| text(&e))?;
    let model = Arc::new(Model::init(&config, 7));
    let settings = RolloutSettings { kv_memory_mib: 1, ..RolloutSettings::default() };
    let engine = EmbeddedEngine::new(&config, &ctx, &settings, None).map_err(|e| text(&e))?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(|e| text(&e))?;
    let sampling = SamplingSettings { max_new_tokens: 24, ..SamplingSettings::default() };
    let key = RandomKey::new(7, 0, Purpose::Interactive, 0);
    let generation = runtime
        .block_on(async {
            engine
                .load(&Weights { version: PolicyVersion(0), model: Arc::clone(&model) }, InFlight::Finish)
                .await?;
            engine.generate(GenerateRequest::new(key, PROMPT, sampling)).await
        })
        .map_err(|e| text(&e))?;
    let tokens: Vec<u32> = PROMPT.iter().copied().chain(generation.tokens.iter().copied()).collect();
    let rows: Vec<u32> = (PROMPT.len() as u32..tokens.len() as u32).collect();
    let scores = model
        .score(
            &ctx,
            &PackedTokens { tokens: &tokens, seq_starts: &[0, tokens.len()] },
            &ScoreRows { rows: &rows, inv_temperature: &vec![1.0; rows.len()] },
        )
        .map_err(|e| text(&e))?;
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect();
    Ok((bits(&generation.logprobs), bits(&scores.logprob)))
}

fn tiny() -> Result<ModelConfig, rloom_model::ConfigError> {
    NewModel {
        family: Family::Qwen3,
        layers: 2,
        hidden_size: 32,
        heads: 4,
        kv_heads: Some(2),
        head_dim: None,
        intermediate_size: 48,
        max_positions: 64,
        rope_theta: 10_000.0,
        rms_norm_eps: 1e-6,
        tie_embeddings: true,
        initializer_range: 0.5,
    }
    .config(VOCABULARY)
}
