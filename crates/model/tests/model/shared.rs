//! Sequences with a common prefix, stored once, compared with separate copies.

use rloom_model::{ActivationCheckpointing, Dtype, Model, PackedTokens, ScoreRows, Scores};
use rloom_ops::Ctx;

use crate::reference::{FORMATS, NAMES, by, differing, forward_backward, model, relative, valued};

/// Two prompts with the continuations of each, and a sequence that shares nothing.
struct Families {
    prompts: [Vec<u32>; 2],
    /// The prompt that each continues.
    sequences: Vec<(Option<usize>, Vec<u32>)>,
}

fn families() -> Families {
    let stream = rloom_core::RandomKey::new(9, 0, rloom_core::Purpose::Algorithm, 0).stream();
    let mut at = 0;
    let mut tokens = |len: usize| -> Vec<u32> {
        let mut token = || {
            at += 1;
            stream.below(at, 96) as u32
        };
        (0..len).map(|_| token()).collect()
    };
    let prompts = [tokens(21), tokens(16)];
    let lengths = [(Some(0), 18), (Some(0), 1), (Some(0), 35), (None, 12), (Some(1), 7), (Some(1), 20)];
    Families { prompts, sequences: lengths.map(|(prompt, len)| (prompt, tokens(len))).into() }
}

/// A batch and its scored rows: all except the prompts and the first token of a sequence without one.
#[derive(Default)]
struct Packed {
    tokens: Vec<u32>,
    starts: Vec<usize>,
    parents: Vec<Option<u32>>,
    rows: Vec<u32>,
}

impl Packed {
    fn segment(&mut self, tokens: &[u32], parent: Option<u32>, scored: bool) {
        let from = self.tokens.len();
        self.starts.push(from);
        self.parents.push(parent);
        self.tokens.extend(tokens);
        if scored {
            let first = from + usize::from(parent.is_none());
            self.rows.extend(first as u32..self.tokens.len() as u32);
        }
    }

    fn shared(families: &Families) -> Self {
        let mut out = Self::default();
        let mut parents = [None; 2];
        for (prompt, rest) in &families.sequences {
            let parent = prompt.map(|prompt| {
                *parents[prompt].get_or_insert_with(|| {
                    out.segment(&families.prompts[prompt], None, false);
                    out.parents.len() as u32 - 1
                })
            });
            out.segment(rest, parent, true);
        }
        out.starts.push(out.tokens.len());
        out
    }

    fn whole(families: &Families) -> Self {
        let mut out = Self::default();
        for (prompt, rest) in &families.sequences {
            let Some(prompt) = *prompt else {
                out.segment(rest, None, true);
                continue;
            };
            let prompt = &families.prompts[prompt];
            let first = (out.tokens.len() + prompt.len()) as u32;
            out.segment(&[prompt.as_slice(), rest].concat(), None, false);
            out.rows.extend(first..out.tokens.len() as u32);
        }
        out.starts.push(out.tokens.len());
        out.parents.clear();
        out
    }

    fn forward_backward(
        &self,
        model: &Model,
        threads: usize,
        checkpointing: ActivationCheckpointing,
    ) -> (Scores, rloom_model::Gradients) {
        let ctx = Ctx::new(threads).unwrap();
        let tokens = PackedTokens { tokens: &self.tokens, seq_starts: &self.starts, parents: &self.parents };
        let inv_temperature: Vec<f32> = (0..self.rows.len()).map(|i| 0.5 + (i % 7) as f32 * 0.2).collect();
        let rows = ScoreRows { rows: &self.rows, inv_temperature: &inv_temperature };
        let d: Vec<f32> = (0..self.rows.len()).map(|i| (i as f32 * 1.3).sin()).collect();
        let (scores, gradients) = forward_backward(model, &ctx, &tokens, &rows, &by(&d, &d), checkpointing);
        assert_eq!(model.score(&ctx, &tokens, &rows).unwrap(), scores);
        (scores, gradients)
    }
}

/// Scores are bitwise identical. The gradient of a shared prefix is summed in another order, and in bf16 rounded after
/// the sum instead of before.
#[test]
fn shared_prompts_do_not_change_scores() {
    let families = families();
    let (shared, whole) = (Packed::shared(&families), Packed::whole(&families));
    assert_eq!(whole.tokens.len() - shared.tokens.len(), 2 * 21 + 16);
    for (name, dtype) in NAMES.into_iter().flat_map(|name| FORMATS.map(|dtype| (name, dtype))) {
        let model = model(name).with_dtype(dtype);
        let (expected, exact) = whole.forward_backward(&model, 2, ActivationCheckpointing::None);
        let (scores, gradients) = shared.forward_backward(&model, 1, ActivationCheckpointing::None);
        assert_eq!(scores, expected, "{name} {dtype:?}");
        let most = if dtype == Dtype::F32 { 1e-5 } else { 0.02 };
        for ((spec, a), (_, b)) in gradients.named().zip(exact.named()) {
            let difference = relative(a, b);
            assert!(difference <= most, "{name} {dtype:?} {}: {difference}", spec.name);
        }
        for (threads, checkpointing) in
            [(2, ActivationCheckpointing::Attention), (3, ActivationCheckpointing::Block)]
        {
            let (scores, again) = shared.forward_backward(&model, threads, checkpointing);
            assert_eq!(scores, expected, "{name} {dtype:?} {checkpointing:?}");
            assert_eq!(differing(&gradients, &again), None, "{name} {dtype:?} {checkpointing:?}");
        }
    }
}

/// A continuation's last value is that of the whole sequence.
#[test]
fn values_include_the_parent() {
    let families = families();
    let (shared, whole) = (Packed::shared(&families), Packed::whole(&families));
    let (model, _) = valued("tiny-qwen3");
    let ctx = Ctx::serial();
    let score = |packed: &Packed| {
        let tokens =
            PackedTokens { tokens: &packed.tokens, seq_starts: &packed.starts, parents: &packed.parents };
        let rows = ScoreRows { rows: &packed.rows, inv_temperature: &vec![1.0; packed.rows.len()] };
        model.score(&ctx, &tokens, &rows).unwrap()
    };
    let (a, b) = (score(&shared), score(&whole));
    assert!(a.value.iter().all(|&value| value != 0.0));
    assert_eq!(a.value, b.value);
    let ends: Vec<f32> = a
        .last_value
        .iter()
        .enumerate()
        .filter(|(segment, _)| !shared.parents.contains(&Some(*segment as u32)))
        .map(|(_, value)| *value)
        .collect();
    assert_eq!(ends, b.last_value);
}
