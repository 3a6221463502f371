//! Log-probabilities of k candidate tokens at each scored position.

use rloom_model::{
    BatchError, CandidateScores, Candidates, Dtype, Model, NewModel, NumericPath, PackedTokens, ScoreRows,
};
use rloom_ops::Ctx;

use crate::reference::{Batch, FORMATS, Golden, NAMES, model, valued};

/// Three candidates for each scored token of a batch, the token itself in the middle.
fn three(batch: &Batch) -> Vec<u32> {
    let own = batch.rows.iter().map(|&row| batch.tokens[row as usize]);
    own.flat_map(|token| [7, token, (token + 31) % 96]).collect()
}

/// Log-probability of one token after a prefix, scored as a token of its own sequence.
fn score_one(model: &Model, ctx: &Ctx, prefix: &[u32], token: u32, inv_temperature: f32) -> f32 {
    let tokens: Vec<u32> = prefix.iter().copied().chain([token]).collect();
    let batch = PackedTokens { tokens: &tokens, seq_starts: &[0, tokens.len()], parents: &[] };
    let rows = ScoreRows { rows: &[prefix.len() as u32], inv_temperature: &[inv_temperature] };
    model.score(ctx, &batch, &rows).unwrap().logprob[0]
}

#[test]
fn candidates_are_bitwise_identical_to_scored_tokens() {
    for (name, dtype) in NAMES.into_iter().flat_map(|name| FORMATS.map(|dtype| (name, dtype))) {
        let batch = Batch::of(&Golden::open(&format!("{name}.safetensors")));
        let (model, ids) = (model(name).with_dtype(dtype), three(&batch));
        for threads in [1, 2] {
            let ctx = Ctx::new(threads).unwrap();
            let plain = model.score(&ctx, &batch.tokens(), &batch.rows()).unwrap();
            let candidates = Candidates { k: 3, ids: &ids };
            let CandidateScores { scores, logprob } =
                model.score_candidates(&ctx, &batch.tokens(), &batch.rows(), &candidates).unwrap();
            assert_eq!(scores, plain, "{name} {dtype:?}");
            assert_eq!(logprob.len(), ids.len());
            let own: Vec<f32> = logprob.chunks(3).map(|row| row[1]).collect();
            assert_eq!(own, plain.logprob, "{name} {dtype:?}");
            for (i, (&row, &inv_temperature)) in batch.rows.iter().zip(&batch.inv_temperature).enumerate() {
                let start = batch.starts.iter().rfind(|&&start| start <= row as usize).unwrap();
                let prefix = &batch.tokens[*start..row as usize];
                for c in [0, 2] {
                    let alone = score_one(&model, &ctx, prefix, ids[3 * i + c], inv_temperature);
                    assert_eq!(logprob[3 * i + c], alone, "{name} {dtype:?} row {row}");
                }
            }
        }
    }
}

#[test]
fn probabilities_of_the_vocabulary_sum_to_one() {
    // One block of columns, and two with a third that is not a whole panel.
    let new: NewModel = serde_json::from_value(serde_json::json!({
        "layers": 1, "hidden_size": 16, "heads": 2, "intermediate_size": 24, "max_positions": 16,
    }))
    .unwrap();
    for (vocab, dtype) in [96_usize, 1030].into_iter().flat_map(|v| FORMATS.map(|dtype| (v, dtype))) {
        let model = Model::init(&new.config(vocab).unwrap(), 1).with_dtype(dtype);
        let batch = PackedTokens { tokens: &[1, 5, 9, 2], seq_starts: &[0, 4], parents: &[] };
        let rows = ScoreRows { rows: &[1, 3], inv_temperature: &[0.5, 2.0] };
        let ids: Vec<u32> = (0..2).flat_map(|_| 0..vocab as u32).collect();
        let candidates = Candidates { k: vocab, ids: &ids };
        let all = model.score_candidates(&Ctx::serial(), &batch, &rows, &candidates).unwrap();
        for row in all.logprob.chunks(vocab) {
            let sum: f64 = row.iter().map(|&logprob| f64::from(logprob).exp()).sum();
            assert!((sum - 1.0).abs() < 1e-5, "{vocab} {dtype:?}: {sum}");
        }
    }
}

/// Segments with a common parent share its last row as predictor.
#[test]
fn candidates_of_shared_prefixes_and_values() {
    let (model, _) = valued("tiny-qwen3");
    let ctx = Ctx::serial();
    let batch = PackedTokens {
        tokens: &[1, 2, 3, 4, 5, 6],
        seq_starts: &[0, 3, 5, 6],
        parents: &[None, Some(0), Some(0)],
    };
    let rows = ScoreRows { rows: &[3, 4, 5], inv_temperature: &[1.0; 3] };
    let candidates = Candidates { k: 2, ids: &[4, 6, 5, 5, 4, 6] };
    let got = model.score_candidates(&ctx, &batch, &rows, &candidates).unwrap();
    assert_eq!(got.scores, model.score(&ctx, &batch, &rows).unwrap());
    assert_eq!(got.scores.value.len(), 3);
    assert_eq!(got.logprob[..2], got.logprob[4..]);
    assert_eq!(got.logprob[0], got.scores.logprob[0]);
    assert_eq!(got.logprob[1], got.scores.logprob[2]);
    assert_eq!(got.logprob[2..4], [got.scores.logprob[1]; 2]);
}

#[test]
fn invalid_candidates_are_errors() {
    let (ctx, model) = (Ctx::serial(), model("tiny-llama"));
    let batch = PackedTokens { tokens: &[1, 2, 3], seq_starts: &[0, 3], parents: &[] };
    let rows = ScoreRows { rows: &[1, 2], inv_temperature: &[1.0; 2] };
    let score =
        |model: &Model, k, ids: &[u32]| model.score_candidates(&ctx, &batch, &rows, &Candidates { k, ids });
    assert_eq!(score(&model, 2, &[1; 3]), Err(BatchError::Candidates { len: 3, rows: 2, k: 2 }));
    assert_eq!(
        score(&model, 1, &[1, 96]),
        Err(BatchError::Candidate { token: 96, entry: 1, vocab_size: 96 })
    );
    assert_eq!(score(&model.to_critic(), 1, &[1, 2]), Err(BatchError::NoHead { what: "candidates" }));
    let none = score(&model, 0, &[]).unwrap();
    assert_eq!((none.scores, none.logprob), (model.score(&ctx, &batch, &rows).unwrap(), vec![]));
}

#[test]
fn numeric_paths_are_named() {
    let tiles = Ctx::with_software_tiles(1).unwrap();
    assert_eq!(Dtype::Bf16.numeric_path(&tiles), "bf16 tiles");
    assert!(!Dtype::F32.numeric_path(&tiles).contains("bf16"));
    let portable = Ctx::with_isa(1, rloom_ops::Isa::Portable).unwrap();
    assert_eq!(Dtype::F32.numeric_path(&portable), "portable");
    assert_eq!(Dtype::Bf16.numeric_path(&portable), "bf16 widened");
    for path in [NumericPath::Widened, NumericPath::DotPairs] {
        let ctx = path.within(portable.clone()).unwrap();
        assert_eq!(NumericPath::recorded(Dtype::Bf16.numeric_path(&ctx)), path);
        assert_eq!(ctx.order(), path.order().unwrap());
    }
    assert_eq!(NumericPath::recorded(Dtype::Bf16.numeric_path(&tiles)), NumericPath::Tiles);
    assert!(NumericPath::Tiles.within(portable).unwrap_err().to_string().contains("tiles"));
}
