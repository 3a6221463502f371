//! Decoding against the packed forward pass: equal to the last bit, however rows are cut into steps.

use rloom_model::{Compute, KvCache, Model, PackedTokens, StepError, StepRow, StepScratch};
use rloom_ops::{Buf, Ctx, KV_BLOCK};

use crate::reference::{FORMATS, NAMES, model};

const VOCAB: usize = 96;

fn sequences() -> Vec<Vec<u32>> {
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

/// Logits after every token, by packed forward passes of one sequence each.
fn expected(model: &Model, ctx: &Ctx, sequences: &[Vec<u32>]) -> Vec<Vec<f32>> {
    let all = |tokens: &Vec<u32>| {
        let rows: Vec<u32> = (0..tokens.len() as u32).collect();
        let batch = PackedTokens { tokens, seq_starts: &[0, tokens.len()], parents: &[] };
        model.logits(ctx, &batch, &rows).unwrap()
    };
    sequences.iter().map(all).collect()
}

/// Runs all sequences through `step`, `chunk(i)` tokens of sequence `i` at a time, and collects the logits.
fn decoded(
    model: &Model,
    ctx: &Ctx,
    sequences: &[Vec<u32>],
    chunk: impl Fn(usize) -> usize,
) -> Vec<Vec<f32>> {
    let mut cache = KvCache::new(model.config(), 32);
    // Blocks in an order of no meaning: 0, 7, 14, … modulo the 32 that there are.
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
    let mut out = Buf::default();
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
        let wanted: Vec<u32> = (0..rows.len() as u32).collect();
        model.step(ctx, &mut cache, &rows, &wanted, &mut scratch, &mut out).unwrap();
        for (row, &i) in owner.iter().enumerate() {
            logits[i].extend(&out.as_slice()[row * VOCAB..][..VOCAB]);
        }
    }
}

#[test]
fn steps_equal_the_packed_forward() {
    let sequences = sequences();
    for (name, compute) in NAMES.into_iter().flat_map(|name| FORMATS.map(|compute| (name, compute))) {
        let model = model(name).with_compute(compute);
        let expected = expected(&model, &Ctx::serial(), &sequences);
        for threads in [1, 2, 3] {
            let ctx = Ctx::new(threads).unwrap();
            // One token of each at a time; whole prompts at once; prefill in chunks beside decoding.
            let cuts: [&dyn Fn(usize) -> usize; 3] = [&|_| 1, &|_| 64, &|i| [7, 1, 16, 1, 5][i]];
            for (cut, chunk) in cuts.iter().enumerate() {
                let decoded = decoded(&model, &ctx, &sequences, chunk);
                assert!(decoded == expected, "{name} {compute:?}, {threads} threads, cut {cut}");
            }
        }
    }
}

/// A copied block serves as the original does.
#[test]
fn a_shared_prompt_is_continued_from_a_copy() {
    let ctx = Ctx::serial();
    let model = model("tiny-qwen3");
    let tokens = &sequences()[0];
    let expected = &expected(&model, &ctx, std::slice::from_ref(tokens))[0];
    let mut cache = KvCache::new(model.config(), 8);
    let mut scratch = StepScratch::default();
    let mut out = Buf::default();
    let first = [3, 1];
    let rows: Vec<StepRow<'_>> =
        (0..20).map(|i| StepRow { token: tokens[i], position: i as u32, blocks: &first }).collect();
    model.step(&ctx, &mut cache, &rows, &[], &mut scratch, &mut out).unwrap();
    assert_eq!(out.len(), 0);
    cache.copy_block(1, 6);
    // The original goes on with another token, the copy with the right one.
    let rows = [
        StepRow { token: 5, position: 20, blocks: &first },
        StepRow { token: tokens[20], position: 20, blocks: &[3, 6] },
    ];
    model.step(&ctx, &mut cache, &rows, &[1], &mut scratch, &mut out).unwrap();
    assert_eq!(out.as_slice(), &expected[20 * VOCAB..21 * VOCAB]);
}

#[test]
fn bad_rows_are_errors() {
    let ctx = Ctx::serial();
    let model = model("tiny-llama");
    let mut cache = KvCache::new(model.config(), 2);
    assert_eq!(cache.bytes_per_block(), KV_BLOCK * model.config().kv_bytes_per_token() as usize);
    let mut step = |row: StepRow<'_>, wanted: &[u32]| {
        model.step(&ctx, &mut cache, &[row], wanted, &mut StepScratch::default(), &mut Buf::default())
    };
    let good = StepRow { token: 1, position: 0, blocks: &[1] };
    assert_eq!(step(good, &[0]), Ok(()));
    assert!(matches!(step(StepRow { token: 96, ..good }, &[]), Err(StepError::Token { .. })));
    assert!(matches!(step(StepRow { position: 256, ..good }, &[]), Err(StepError::Position { .. })));
    assert!(matches!(step(StepRow { position: 16, ..good }, &[]), Err(StepError::Blocks { .. })));
    assert!(matches!(step(StepRow { blocks: &[2], ..good }, &[]), Err(StepError::Blocks { .. })));
    assert!(matches!(step(good, &[1]), Err(StepError::Wanted { .. })));

    let model = model.with_compute(Compute::Bf16);
    let step = |cache: &mut KvCache| {
        model.step(&ctx, cache, &[good], &[0], &mut StepScratch::default(), &mut Buf::default())
    };
    assert_eq!(step(&mut cache), Err(StepError::Compute { cache: "f32", model: "bf16" }));
    let mut halved = KvCache::new(model.config(), 2);
    assert_eq!(2 * halved.bytes_per_block(), cache.bytes_per_block());
    assert_eq!(halved.bytes_per_block(), KV_BLOCK * model.config().kv_bytes_per_token() as usize);
    assert_eq!(step(&mut halved), Ok(()));
}
