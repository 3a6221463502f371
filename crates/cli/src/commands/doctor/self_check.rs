//! Checks on a tiny model that sampling and scoring are bitwise identical on every instruction set, in every dtype and order
//! of bf16 products, also with weights of 8 bits, and that instruction sets are bitwise identical to each other.

use rloom_core::{PolicyVersion, Purpose, RandomKey};
use rloom_engine::{
    GenerateRequest, OnUpdate, RolloutEngine, RolloutError, RolloutQuantization, RolloutSettings,
    SamplingSettings,
};
use rloom_model::{
    BatchError, ConfigError, Dtype, Family, Model, ModelConfig, NewModel, PackedTokens, ScoreRows,
};
use rloom_ops::{Ctx, Isa, OpsError, Order};
use rloom_run::{RunError, assembly};

use super::Finding;

const VOCABULARY: usize = 97;
const PROMPT: [u32; 5] = [1, 2, 3, 5, 8];

/// Instruction set of this processor, and a dtype with its order of products.
#[derive(Clone, Copy)]
struct NumericPath {
    isa: Isa,
    /// Order of bf16 products; `None` in f32.
    order: Option<Order>,
    /// Samples and scores with quantized weights.
    quantize: Option<RolloutQuantization>,
}

impl NumericPath {
    fn all() -> impl Iterator<Item = Self> {
        let orders = std::iter::once(None).chain(Order::ALL.map(Some));
        orders.flat_map(|order| {
            let of = move |isa: Isa| isa.orders().any(|own| order.is_none_or(|order| own == order));
            let formats = [None, Some(RolloutQuantization::Int8)];
            Isa::available()
                .into_iter()
                .filter(move |isa| of(*isa))
                .flat_map(move |isa| formats.map(|quantize| Self { isa, order, quantize }))
        })
    }

    fn name(self) -> String {
        let order = self.order.map_or_else(|| "f32".to_owned(), |order| format!("bf16 ({})", order.name()));
        let weights =
            self.quantize.map_or_else(String::new, |format| format!(", weights in {}", format.name()));
        format!("{} in {order}{weights}", self.isa.name())
    }

    fn dtype(self) -> Dtype {
        if self.order.is_some() { Dtype::Bf16 } else { Dtype::F32 }
    }
}

/// Bits of the log-probabilities from sampling and from scoring.
type Bits = (Vec<u32>, Vec<u32>);

pub(super) fn run() -> [Finding; 3] {
    let hint = "this is a bug: please report it with the output of `rloom doctor --json`";
    let mut results: Vec<(NumericPath, Bits)> = Vec::new();
    for path in NumericPath::all() {
        match sample_and_score(path) {
            Ok(pair) => results.push((path, pair)),
            Err(error) => {
                let failed = |name| Finding::failed(name, format!("{}: {error}", path.name()), hint);
                return [failed("exactness"), failed("int8"), failed("portability")];
            }
        }
    }
    [exactness(&results, hint), quantized(&results, hint), portability(&results, hint)]
}

fn exactness(results: &[(NumericPath, Bits)], hint: &str) -> Finding {
    match results.iter().find(|(path, (sampled, scored))| path.quantize.is_none() && sampled != scored) {
        None => Finding::ok(
            "exactness",
            "log-probabilities of sampling and training are bitwise identical in f32 and bf16",
        ),
        Some((path, _)) => {
            let value = format!("log-probabilities of sampling and training differ on {}", path.name());
            Finding::failed("exactness", value, hint)
        }
    }
}

fn quantized(results: &[(NumericPath, Bits)], hint: &str) -> Finding {
    match results.iter().find(|(path, (sampled, scored))| path.quantize.is_some() && sampled != scored) {
        None => {
            Finding::ok("int8", "rollouts from weights of 8 bits repeat bitwise; losses correct for them")
        }
        Some((path, _)) => {
            let value = format!("log-probabilities of sampling and of its weights differ on {}", path.name());
            Finding::failed("int8", value, hint)
        }
    }
}

fn portability(results: &[(NumericPath, Bits)], hint: &str) -> Finding {
    let differs = |(path, bits): &&(NumericPath, Bits)| {
        let is_same = |first: &NumericPath| (path.order, path.quantize) == (first.order, first.quantize);
        results.iter().any(|(first, expected)| is_same(first) && expected != bits)
    };
    match results.iter().rev().find(differs) {
        None => {
            let plain = |path: &NumericPath| path.order.is_none() && path.quantize.is_none();
            let sets = results.iter().filter(|(path, _)| plain(path)).count();
            Finding::ok("portability", format!("{sets} instruction sets give bitwise identical results"))
        }
        Some((path, _)) => {
            let value = format!("results of {} differ from those of other instruction sets", path.name());
            Finding::failed("portability", value, hint)
        }
    }
}

/// Failure of the computation that the check runs.
#[derive(Debug, thiserror::Error)]
enum CheckError {
    #[error(transparent)]
    Compute(#[from] OpsError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Assembly(#[from] RunError),
    #[error("could not start the runtime: {0}")]
    Runtime(#[from] std::io::Error),
    #[error(transparent)]
    Rollout(#[from] RolloutError),
    #[error(transparent)]
    Score(#[from] BatchError),
}

/// Bits of the log-probabilities of a sampled completion: as the sampler saw them, and as a packed forward pass does.
fn sample_and_score(path: NumericPath) -> Result<Bits, CheckError> {
    let mut ctx = Ctx::with_isa(2, path.isa)?;
    if let Some(order) = path.order {
        ctx = ctx.with_order(order)?;
    }
    let mut config = tiny()?;
    config.dtype = path.dtype();
    let model = Model::init(&config, 7);
    let settings =
        RolloutSettings { kv_memory_mib: 1, quantize: path.quantize, ..RolloutSettings::default() };
    let engine = assembly::rollout_engine(&config, &ctx, &settings, None)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let sampling = SamplingSettings { max_new_tokens: 24, ..SamplingSettings::default() };
    let key = RandomKey::new(7, 0, Purpose::Interactive, 0);
    let generation = runtime.block_on(async {
        let published = assembly::publish(&ctx, &model, PolicyVersion(0));
        engine.load(&published, OnUpdate::Finish).await?;
        engine.generate(GenerateRequest::new(key, PROMPT, sampling)).await
    })?;
    let tokens: Vec<u32> = PROMPT.iter().copied().chain(generation.tokens.iter().copied()).collect();
    let rows: Vec<u32> = (PROMPT.len() as u32..tokens.len() as u32).collect();
    let scored = if path.quantize.is_some() { model.quantized(&ctx) } else { model };
    let scores = scored.score(
        &ctx,
        &PackedTokens { tokens: &tokens, seq_starts: &[0, tokens.len()], parents: &[] },
        &ScoreRows { rows: &rows, inv_temperature: &vec![1.0; rows.len()] },
    )?;
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect();
    Ok((bits(&generation.logprobs), bits(&scores.logprob)))
}

fn tiny() -> Result<ModelConfig, ConfigError> {
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
