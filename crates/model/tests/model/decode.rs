//! Decoding compared with the packed forward pass: bitwise identical, however rows are divided into steps.

use rloom_model::{
    Dtype, KvCache, Model, NewModel, PackedTokens, RowRequest, StepError, StepRow, StepScratch,
};
use rloom_ops::{Ctx, Draw, HeadOutput, HeadRequest, HeadResult, KV_BLOCK, RowDraw};

use crate::reference::{FORMATS, NAMES, model};

const VOCAB: usize = 96;

pub(crate) fn sequences() -> Vec<Vec<u32>> {
    let stream = rloom_core::RandomKey::new(2, 0, rloom_core::Purpose::Algorithm, 0).stream();
    let mut at = 0;
    [50, 16, 17, 1, 33]
        .into_iter()
        .map(|len| {
            (0..len)
                .map(|_| {
                    at += 1;
                    stream.below(at, VOCAB as u64) as u32
                })
                .collect()
        })
        .collect()
}

/// Requests for the logits after these rows.
fn logits_of(rows: impl IntoIterator<Item = u32>) -> Vec<RowRequest> {
    rows.into_iter().map(|row| RowRequest { row, request: HeadRequest::Logits }).collect()
}

/// Logits after every token, by packed forward passes of one sequence each.
pub(crate) fn expected(model: &Model, ctx: &Ctx, sequences: &[Vec<u32>]) -> Vec<Vec<f32>> {
    let all = |tokens: &Vec<u32>| {
        let rows: Vec<u32> = (0..tokens.len() as u32).collect();
        let batch = PackedTokens { tokens, seq_starts: &[0, tokens.len()], parents: &[] };
        model.logits(ctx, &batch, &rows).unwrap()
    };
    sequences.iter().map(all).collect()
}

/// Runs all sequences through `step`, `chunk(i)` tokens of sequence `i` at a time, and collects the logits.
pub(crate) fn decoded(
    model: &Model,
    ctx: &Ctx,
    sequences: &[Vec<u32>],
    chunk: impl Fn(usize) -> usize,
) -> Vec<Vec<f32>> {
    let mut cache = KvCache::new(model.config(), 32);
    // Blocks in an arbitrary order: 0, 7, 14, … modulo 32.
    let mut next = 0u32;
    let blocks: Vec<Vec<u32>> = sequences
        .iter()
        .map(|tokens| {
            (0..tokens.len().div_ceil(KV_BLOCK))
                .map(|_| {
                    next += 7;
                    next % 32
                })
                .collect()
        })
        .collect();
    let mut scratch = StepScratch::default();
    let mut done = vec![0; sequences.len()];
    let mut logits: Vec<Vec<f32>> = vec![Vec::new(); sequences.len()];
    let mut out = HeadOutput::default();
    loop {
        let mut rows = Vec::new();
        let mut owner = Vec::new();
        for (i, tokens) in sequences.iter().enumerate() {
            let end = (done[i] + chunk(i)).min(tokens.len());
            for (position, &token) in (done[i]..end).zip(&tokens[done[i]..end]) {
                rows.push(StepRow { token, position: position as u32, blocks: &blocks[i] });
                owner.push(i);
            }
            done[i] = end;
        }
        if rows.is_empty() {
            return logits;
        }
        let requests = logits_of(0..rows.len() as u32);
        model.step(ctx, &mut cache, &rows, &requests, &mut scratch, &mut out).unwrap();
        for (row, &i) in owner.iter().enumerate() {
            logits[i].extend(&out.logits.as_slice()[row * VOCAB..][..VOCAB]);
        }
    }
}

#[test]
fn steps_are_bitwise_identical_to_the_packed_forward() {
    let sequences = sequences();
    for (name, dtype) in NAMES.into_iter().flat_map(|name| FORMATS.map(|dtype| (name, dtype))) {
        let model = model(name).with_dtype(dtype);
        let expected = expected(&model, &Ctx::serial(), &sequences);
        for threads in [1, 2, 3] {
            let ctx = Ctx::new(threads).unwrap();
            // One token of each at a time; whole prompts at once; prefill in chunks mixed with decoding.
            let cuts: [&dyn Fn(usize) -> usize; 3] = [&|_| 1, &|_| 64, &|i| [7, 1, 16, 1, 5][i]];
            for (cut, chunk) in cuts.iter().enumerate() {
                let decoded = decoded(&model, &ctx, &sequences, chunk);
                assert!(decoded == expected, "{name} {dtype:?}, {threads} threads, cut {cut}");
            }
        }
    }
}

/// Requests for tokens mixed with requests for logits, in arbitrary order.
#[test]
fn tokens_are_drawn_from_the_requested_logits() {
    // The vocabulary is one block of columns, and two with a third that is not a whole panel.
    let new: NewModel = serde_json::from_value(serde_json::json!({
        "family": "qwen2", "layers": 1, "hidden_size": 32, "heads": 4, "kv_heads": 2, "intermediate_size": 48,
        "max_positions": 64,
    }))
    .unwrap();
    for model in [model("tiny-qwen3"), Model::init(&new.config(1030).unwrap(), 3)] {
        for (dtype, threads) in [(Dtype::F32, 1), (Dtype::Bf16, 1), (Dtype::Bf16, 2)] {
            check_draws(&model.clone().with_dtype(dtype), &Ctx::new(threads).unwrap());
        }
    }
}

fn check_draws(model: &Model, ctx: &Ctx) {
    let (tokens, vocab) = (&sequences()[0], model.config().vocab_size);
    let expected = &expected(model, ctx, std::slice::from_ref(tokens))[0];
    let rows: Vec<StepRow<'_>> =
        (0..20).map(|i| StepRow { token: tokens[i], position: i as u32, blocks: &[2, 5] }).collect();
    let request = |row: u32| match row % 3 {
        0 => HeadRequest::Logits,
        _ => HeadRequest::Token(Draw {
            inv_temperature: 0.7,
            uniform: (row % 3 == 1).then_some(f64::from(row) / 20.0),
        }),
    };
    let requests: Vec<RowRequest> =
        (0..20).map(|i| i * 7 % 20).map(|row| RowRequest { row, request: request(row) }).collect();
    let mut out = HeadOutput::default();
    let mut cache = KvCache::new(model.config(), 8);
    model.step(ctx, &mut cache, &rows, &requests, &mut StepScratch::default(), &mut out).unwrap();
    for (requests, result) in requests.iter().zip(&out.results) {
        let logits = &expected[requests.row as usize * vocab..][..vocab];
        match (requests.request, result) {
            (HeadRequest::Logits, HeadResult::Logits(at)) => {
                assert_eq!(&out.logits.as_slice()[at.clone()], logits);
            }
            (HeadRequest::Token(draw), HeadResult::Token(pick)) => {
                assert_eq!(*pick, RowDraw::default().draw(logits, draw));
                assert!(pick.is_some());
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Requests for a few rows, in any order and more than once, have the same results as among all rows; rows without a
/// request are still available to later steps.
#[test]
fn results_do_not_depend_on_the_other_requests() {
    let sequences = [sequences()[0].clone(), sequences()[4].clone()];
    let blocks = [[3, 1, 7], [5, 2, 6]];
    for (dtype, threads) in FORMATS.into_iter().flat_map(|dtype| [(dtype, 1), (dtype, 2)]) {
        let (model, ctx) = (model("tiny-qwen3").with_dtype(dtype), Ctx::new(threads).unwrap());
        let expected = expected(&model, &ctx, &sequences);
        let mut cache = KvCache::new(model.config(), 8);
        let (mut scratch, mut out) = (StepScratch::default(), HeadOutput::default());
        let mut step = |first: std::ops::Range<usize>, second: std::ops::Range<usize>, requests: &[u32]| {
            let at: Vec<(usize, usize)> = first.map(|i| (0, i)).chain(second.map(|i| (1, i))).collect();
            let row = |&(s, i): &(usize, usize)| StepRow {
                token: sequences[s][i],
                position: i as u32,
                blocks: &blocks[s],
            };
            let rows: Vec<StepRow<'_>> = at.iter().map(row).collect();
            let requests = logits_of(requests.iter().copied());
            model.step(&ctx, &mut cache, &rows, &requests, &mut scratch, &mut out).unwrap();
            assert_eq!((out.results.len(), out.logits.len()), (requests.len(), requests.len() * VOCAB));
            for (requests, logits) in requests.iter().zip(out.logits.as_slice().chunks_exact(VOCAB)) {
                let (s, i) = at[requests.row as usize];
                assert!(logits == &expected[s][i * VOCAB..][..VOCAB], "{dtype:?}, token {i} of sequence {s}");
            }
        };
        step(0..20, 0..3, &[19, 3, 21, 3, 7]);
        step(20..25, 3..4, &[5, 4]);
        step(25..26, 4..17, &[]);
        step(26..28, 17..18, &[1, 2, 0, 2, 1]);
        step(28..33, 18..21, &[0, 1, 2, 3, 4, 5, 6, 7]);
    }
}

/// A copied block is equivalent to the original.
#[test]
fn a_shared_prompt_is_continued_from_a_copy() {
    let ctx = Ctx::serial();
    let model = model("tiny-qwen3");
    let tokens = &sequences()[0];
    let expected = &expected(&model, &ctx, std::slice::from_ref(tokens))[0];
    let mut cache = KvCache::new(model.config(), 8);
    let mut scratch = StepScratch::default();
    let mut out = HeadOutput::default();
    let first = [3, 1];
    let rows: Vec<StepRow<'_>> =
        (0..20).map(|i| StepRow { token: tokens[i], position: i as u32, blocks: &first }).collect();
    model.step(&ctx, &mut cache, &rows, &[], &mut scratch, &mut out).unwrap();
    assert!(out.results.is_empty() && out.logits.is_empty());
    cache.copy_block(1, 6);
    // The original continues with a different token, the copy with the correct one.
    let rows = [
        StepRow { token: 5, position: 20, blocks: &first },
        StepRow { token: tokens[20], position: 20, blocks: &[3, 6] },
    ];
    model.step(&ctx, &mut cache, &rows, &logits_of([1]), &mut scratch, &mut out).unwrap();
    assert_eq!(out.logits.as_slice(), &expected[20 * VOCAB..21 * VOCAB]);
}

#[test]
fn invalid_rows_are_errors() {
    let ctx = Ctx::serial();
    let model = model("tiny-llama");
    let mut cache = KvCache::new(model.config(), 2);
    assert_eq!(cache.bytes_per_block(), KV_BLOCK * model.config().kv_bytes_per_token() as usize);
    let mut step = |row: StepRow<'_>, requests: &[u32]| {
        let requests = logits_of(requests.iter().copied());
        model.step(
            &ctx,
            &mut cache,
            &[row],
            &requests,
            &mut StepScratch::default(),
            &mut HeadOutput::default(),
        )
    };
    let valid = StepRow { token: 1, position: 0, blocks: &[1] };
    assert_eq!(step(valid, &[0]), Ok(()));
    assert!(matches!(step(StepRow { token: 96, ..valid }, &[]), Err(StepError::Token { .. })));
    assert!(matches!(step(StepRow { position: 256, ..valid }, &[]), Err(StepError::Position { .. })));
    assert!(matches!(step(StepRow { position: 16, ..valid }, &[]), Err(StepError::Blocks { .. })));
    assert!(matches!(step(StepRow { blocks: &[2], ..valid }, &[]), Err(StepError::Blocks { .. })));
    assert!(matches!(step(valid, &[1]), Err(StepError::RowRequest { .. })));

    let model = model.with_dtype(Dtype::Bf16);
    let step = |cache: &mut KvCache| {
        let requests = logits_of([0]);
        model.step(&ctx, cache, &[valid], &requests, &mut StepScratch::default(), &mut HeadOutput::default())
    };
    assert_eq!(step(&mut cache), Err(StepError::Dtype { cache: "f32", model: "bf16" }));
    let mut halved = KvCache::new(model.config(), 2);
    assert_eq!(2 * halved.bytes_per_block(), cache.bytes_per_block());
    assert_eq!(halved.bytes_per_block(), KV_BLOCK * model.config().kv_bytes_per_token() as usize);
    assert_eq!(step(&mut halved), Ok(()));
}
