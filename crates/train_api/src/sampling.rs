//! Sampling requests.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use hyper::body::Bytes;
use prost::Message;
use rloom_core::{Purpose, RandomKey, StopReason};
use rloom_engine::{GenerateRequest, Generation, RolloutEngine, SamplingSettings};
use rloom_model::{Model, PackedTokens, ScoreRows};
use tokio::task::JoinSet;

use crate::engines::{Lease, blocking};
use crate::futures::Outcome;
use crate::problem::{Failed, Problem};
use crate::shared::Shared;
use crate::trained::load_weights;
use crate::wire::{Sample, SampleResponse, SampledSequence, SamplingParams, Stop, bytes_of};

/// Largest number of completions of one request.
const MAX_SAMPLES: u32 = 1024;
/// Attempts for a completion whose lane fails.
const ATTEMPTS: u32 = 3;

/// A checked sampling request.
#[derive(Debug)]
pub(crate) struct Sampling {
    sampler: String,
    pub(crate) count: u32,
    request: GenerateRequest,
    /// Tokens at the end of the prompt whose log-probabilities are requested.
    scored: usize,
}

impl Sampling {
    /// Checks a request. A seed makes its completions repeatable.
    pub(crate) fn read(shared: &Shared, sample: &Sample) -> Result<Self, Problem> {
        refuse_unsupported(sample)?;
        let prompt = sample.prompt.tokens().map_err(Problem::invalid)?;
        let (config, context) = (shared.base.model.config(), shared.base.context());
        if prompt.is_empty() {
            return Err(Problem::invalid("`prompt` is empty"));
        }
        if let Some(token) = prompt.iter().find(|&&token| token as usize >= config.vocab_size) {
            let message =
                format!("`prompt`: token {token} is outside of the vocabulary of {}", config.vocab_size);
            return Err(Problem::invalid(message));
        }
        let scored = scored_tokens(sample, prompt.len())?;
        let room = context.saturating_sub(prompt.len());
        if room == 0 {
            let message = format!(
                "`prompt` has {} tokens, but prompt and completion together have at most {context} tokens",
                prompt.len()
            );
            return Err(Problem::invalid(message));
        }
        let (sampling, stop_tokens) = settings(shared, &sample.sampling_params, room)?;
        let (seed, ticket) = match sample.sampling_params.seed {
            Some(seed) => (seed.cast_unsigned(), 0),
            None => (0, shared.streams.fetch_add(1, Ordering::SeqCst) + 1),
        };
        let key = RandomKey::new(seed, 0, Purpose::Interactive, ticket);
        let request = GenerateRequest {
            stop_tokens,
            timeout: Some(shared.settings.completion_timeout),
            ..GenerateRequest::new(key, prompt, sampling)
        };
        Ok(Self { sampler: sample.sampling_session_id.clone(), count: sample.num_samples, request, scored })
    }

    /// Samples. Dropping the future cancels the completions.
    pub(crate) async fn run(self, shared: &Arc<Shared>) -> Result<Outcome, Failed> {
        let (weights, model) = weights(shared, &self.sampler).await?;
        let prompt_logprobs = match self.scored {
            0 => None,
            scored => {
                let (ctx, model) = (shared.base.ctx.clone(), Arc::clone(&model));
                let prompt = Arc::clone(&self.request.prompt);
                Some(blocking(move || prompt_logprobs(&ctx, &model, &prompt, scored)).await??)
            }
        };
        let lease = shared.engines.lease(&shared.base, weights, &model).await?;
        let generations = self.generate(&lease).await;
        if generations.as_ref().is_err_and(|failed| !failed.is_of_user) {
            shared.engines.discard(&lease).await;
        }
        let response = SampleResponse {
            sequences: generations?.iter().map(sequence).collect(),
            prompt_logprobs: prompt_logprobs.map(|values| bytes_of(values.into_iter().map(f32::to_le_bytes))),
        };
        Ok(Outcome::Protobuf(Bytes::from(response.encode_to_vec())))
    }

    /// All completions, in order.
    async fn generate(&self, lease: &Lease) -> Result<Vec<Generation>, Failed> {
        let mut running = JoinSet::new();
        for sample in 0..self.count {
            let engine = Arc::clone(&lease.engine);
            let key = RandomKey { sample, ..self.request.key };
            let request = GenerateRequest { key, group: Some(0), ..self.request.clone() };
            running.spawn(async move {
                let mut attempt = 1;
                loop {
                    match engine.generate(request.clone()).await {
                        Err(error) if error.is_retryable() && attempt < ATTEMPTS => attempt += 1,
                        result => return result.map(|generation| (sample, generation)),
                    }
                }
            });
        }
        let mut generations = Vec::with_capacity(self.count as usize);
        while let Some(joined) = running.join_next().await {
            generations.push(joined.map_err(|_| Failed::server("a completion failed"))??);
        }
        generations.sort_by_key(|(sample, _)| *sample);
        Ok(generations.into_iter().map(|(_, generation)| generation).collect())
    }
}

/// Refuses what would otherwise be ignored.
fn refuse_unsupported(sample: &Sample) -> Result<(), Problem> {
    let asked = [
        ("topk_prompt_logprobs", sample.topk_prompt_logprobs > 0),
        ("topk_sample_logprobs", sample.topk_sample_logprobs > 0),
        ("prompt_alt_tokens_k", sample.prompt_alt_tokens_k > 0),
        ("target_prompt_logprobs", sample.target_prompt_logprobs.is_some()),
    ];
    if let Some((name, _)) = asked.iter().find(|(_, asked)| *asked) {
        return Err(Problem::invalid(format!("`{name}` is not supported")));
    }
    if (1..=MAX_SAMPLES).contains(&sample.num_samples) {
        Ok(())
    } else {
        Err(Problem::invalid(format!("`num_samples` must be from 1 to {MAX_SAMPLES}")))
    }
}

/// Tokens at the end of a prompt to score.
fn scored_tokens(sample: &Sample, prompt: usize) -> Result<usize, Problem> {
    let all = prompt - 1;
    match (sample.prompt_logprobs.unwrap_or(false), sample.prompt_logprobs_last_n) {
        (true, None) => Ok(all),
        (true, Some(last)) if (1..=all).contains(&last) => Ok(last),
        (true, Some(_)) => Err(Problem::invalid(format!("`prompt_logprobs_last_n` must be from 1 to {all}"))),
        (false, Some(_)) => Err(Problem::invalid("`prompt_logprobs_last_n` needs `prompt_logprobs`")),
        (false, None) => Ok(0),
    }
}

/// The engine's settings and stop tokens.
fn settings(
    shared: &Shared,
    params: &SamplingParams,
    room: usize,
) -> Result<(SamplingSettings, Arc<[u32]>), Problem> {
    let top_k = match params.top_k {
        -1 | 0 => 0,
        k => u32::try_from(k).map_err(|_| Problem::invalid("`top_k` must be -1 (no limit) or at least 1"))?,
    };
    let own = &shared.base.stop_tokens;
    let with = |tokens: &[u32]| own.iter().chain(tokens).copied().collect();
    let (stop, stop_tokens): (Vec<String>, Arc<[u32]>) = match &params.stop {
        None => (Vec::new(), Arc::clone(own)),
        Some(Stop::Text(text)) => (vec![text.clone()], Arc::clone(own)),
        // An empty list turns off the model's own stop tokens, too.
        Some(Stop::Tokens(tokens)) if tokens.is_empty() => (Vec::new(), Arc::from([])),
        Some(Stop::Tokens(tokens)) => (Vec::new(), with(tokens)),
        Some(Stop::Texts(texts)) => (texts.clone(), Arc::clone(own)),
    };
    let settings = SamplingSettings {
        temperature: params.temperature,
        top_k,
        top_p: params.top_p,
        max_new_tokens: params.max_tokens.unwrap_or(room).min(room),
        stop,
        ..SamplingSettings::default()
    };
    settings.validate().map_err(|error| Problem::invalid(error.to_string()))?;
    Ok((settings, stop_tokens))
}

/// The weights of a sampler and their number.
async fn weights(shared: &Arc<Shared>, sampler: &str) -> Result<(u64, Arc<Model>), Failed> {
    let (weights, model, path) = {
        let mut registry = shared.registry();
        let entry = registry.sampler(sampler, Instant::now()).map_err(|gone| Failed::user(gone.message))?;
        (entry.weights, entry.model.clone(), entry.path.clone())
    };
    match (weights, model, path) {
        (0, ..) => Ok((0, Arc::clone(&shared.base.model))),
        (_, Some(model), _) => Ok((weights, model)),
        (_, None, Some(path)) => {
            let own = Arc::clone(shared);
            let read = move || load_weights(&own.base, own.settings.weights, &own.checkpoints.read(&path)?);
            let model = blocking(read).await??;
            shared.registry().restore_weights(sampler, &model, shared.settings.max_snapshots);
            Ok((weights, model))
        }
        (_, None, None) => Err(Failed::user(format!(
            "the weights of this sampling session were released: the server keeps the latest {}. Give weights a name to \
             sample from them later",
            shared.settings.max_snapshots
        ))),
    }
}

/// Log-probabilities of the last tokens of a prompt, NaN for the others.
fn prompt_logprobs(
    ctx: &rloom_ops::Ctx,
    model: &Model,
    prompt: &[u32],
    scored: usize,
) -> Result<Vec<f32>, Failed> {
    let from = prompt.len() - scored;
    let rows: Vec<u32> = (from as u32..prompt.len() as u32).collect();
    let tokens = PackedTokens { tokens: prompt, seq_starts: &[0, prompt.len()], parents: &[] };
    let rows = ScoreRows { rows: &rows, inv_temperature: &vec![1.0; scored] };
    let scores = model.score(ctx, &tokens, &rows).map_err(|error| Failed::user(error.to_string()))?;
    let mut logprobs = vec![f32::NAN; from];
    logprobs.extend(scores.logprob);
    Ok(logprobs)
}

fn sequence(generation: &Generation) -> SampledSequence {
    let is_length = !matches!(generation.stop, StopReason::StopToken | StopReason::StopString);
    SampledSequence {
        stop_reason: i32::from(is_length),
        tokens: bytes_of(generation.tokens.iter().map(|token| token.to_le_bytes())),
        logprobs: Some(bytes_of(generation.logprobs.iter().map(|value| value.to_le_bytes()))),
    }
}
