//! Reads the results of the programs in `tests/golden`.

use std::path::{Path, PathBuf};

use rloom_model::{
    ActivationCheckpointing, Dtype, Gradients, Model, PackedTokens, ScoreGrads, ScoreRows, Scores,
};
use rloom_ops::Ctx;
use safetensors::SafeTensors;

pub(crate) const NAMES: [&str; 6] =
    ["tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-mistral", "tiny-mistral-window", "tiny-qwen2-window"];

pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

pub(crate) fn model(name: &str) -> Model {
    Model::load(&fixture(name)).unwrap()
}

/// Both formats of matrix products.
pub(crate) const FORMATS: [Dtype; 2] = [Dtype::F32, Dtype::Bf16];

/// The critics, and the policies with a value head from `tests/golden/value.py`.
pub(crate) const CRITICS: [&str; 2] = ["tiny-llama-critic", "tiny-qwen3-critic"];
pub(crate) const VALUED: [&str; 2] = ["tiny-llama", "tiny-qwen3"];

/// One of [`CRITICS`] or [`VALUED`], with its golden file.
pub(crate) fn valued(name: &str) -> (Model, Golden) {
    let file = format!("{name}-value.safetensors");
    let golden = Golden::open(&file);
    if CRITICS.contains(&name) {
        return (Model::load_critic(&fixture(name)).unwrap(), golden);
    }
    let mut model = model(name).with_value_head();
    model.load_value_head(&Golden::path(&file)).unwrap();
    (model, golden)
}

/// A golden file.
pub(crate) struct Golden(Vec<u8>);

impl Golden {
    pub(crate) fn open(name: &str) -> Self {
        Self(std::fs::read(Self::path(name)).unwrap())
    }

    pub(crate) fn path(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
    }

    fn words<T>(&self, name: &str, word: impl Fn([u8; 4]) -> T) -> Vec<T> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        let data = file.tensor(name).unwrap_or_else(|_| panic!("no {name}")).data().to_vec();
        data.as_chunks::<4>().0.iter().map(|&bytes| word(bytes)).collect()
    }

    pub(crate) fn floats(&self, name: &str) -> Vec<f32> {
        self.words(name, f32::from_le_bytes)
    }

    pub(crate) fn ids(&self, name: &str) -> Vec<u32> {
        self.words(name, u32::from_le_bytes)
    }
}

/// A packed batch and its scored rows.
pub(crate) struct Batch {
    pub(crate) tokens: Vec<u32>,
    pub(crate) starts: Vec<usize>,
    pub(crate) rows: Vec<u32>,
    pub(crate) inv_temperature: Vec<f32>,
}

impl Batch {
    pub(crate) fn of(golden: &Golden) -> Self {
        Self {
            tokens: golden.ids("tokens"),
            starts: golden.ids("seq_starts").iter().map(|&s| s as usize).collect(),
            rows: golden.ids("rows"),
            inv_temperature: golden.floats("inv_temperature"),
        }
    }

    pub(crate) fn tokens(&self) -> PackedTokens<'_> {
        PackedTokens { tokens: &self.tokens, seq_starts: &self.starts, parents: &[] }
    }

    pub(crate) fn rows(&self) -> ScoreRows<'_> {
        ScoreRows { rows: &self.rows, inv_temperature: &self.inv_temperature }
    }

    /// Sequence `index` alone.
    pub(crate) fn alone(&self, index: usize) -> Self {
        let range = self.starts[index]..self.starts[index + 1];
        let inside = |&(row, _): &(&u32, &f32)| range.contains(&(*row as usize));
        let scored = || self.rows.iter().zip(&self.inv_temperature).filter(inside);
        Self {
            tokens: self.tokens[range.clone()].to_vec(),
            starts: vec![0, range.len()],
            rows: scored().map(|(row, _)| row - range.start as u32).collect(),
            inv_temperature: scored().map(|(_, t)| *t).collect(),
        }
    }
}

/// A forward and a backward pass.
pub(crate) fn forward_backward(
    model: &Model,
    ctx: &Ctx,
    tokens: &PackedTokens<'_>,
    rows: &ScoreRows<'_>,
    by: &ScoreGrads<'_>,
    checkpointing: ActivationCheckpointing,
) -> (Scores, Gradients) {
    let mut gradients = Gradients::zeros(model);
    let forward = model.forward(ctx, tokens, rows, checkpointing).unwrap();
    let scores = forward.scores().clone();
    model.backward(ctx, forward, by, &mut gradients).unwrap();
    (scores, gradients)
}

/// The first tensor in which two gradients differ, if they do.
pub(crate) fn differing(a: &Gradients, b: &Gradients) -> Option<String> {
    a.named().zip(b.named()).find(|((_, a), (_, b))| a != b).map(|((spec, _), _)| spec.name.clone())
}

/// Coefficients of a policy without a value head.
pub(crate) fn by<'a>(d_logprob: &'a [f32], d_entropy: &'a [f32]) -> ScoreGrads<'a> {
    ScoreGrads { d_logprob, d_entropy, ..ScoreGrads::default() }
}

/// ‖a − b‖ / ‖b‖.
pub(crate) fn relative(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let difference = norm(&mut a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    difference / norm(&mut b.iter().map(|b| f64::from(*b))).max(1e-30)
}

pub(crate) fn max_abs(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}
