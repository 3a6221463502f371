//! Decoding against the packed forward pass: equal to the last bit, however rows are cut into steps.

use rloom_model::{Compute, KvCache, Model, NewModel, PackedTokens, StepError, StepRow, StepScratch, Wanted};
use rloom_ops::{Ctx, Draw, HeadAnswer, HeadAsk, HeadOutput, KV_BLOCK, RowDraw};

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

/// The logits after these rows.
fn logits_of(rows: impl IntoIterator<Item = u32>) -> Vec<Wanted> {
    rows.into_iter().map(|row| Wanted { row, ask: HeadAsk::Logits }).collect()
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
        let wanted = logits_of(0..rows.len() as u32);
        model.step(ctx, &mut cache, &rows, &wanted, &mut scratch, &mut out).unwrap();
        for (row, &i) in owner.iter().enumerate() {
            logits[i].extend(&out.logits.as_slice()[row * VOCAB..][..VOCAB]);
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

/// Rows that want a token beside rows that want their logits, in an order of no meaning.
#[test]
fn tokens_are_drawn_by_the_logits_that_others_get() {
    // The vocabulary is one block of columns, and two with a third that is short of a panel.
    let new: NewModel = serde_json::from_value(serde_json::json!({
        "family": "qwen2", "layers": 1, "hidden_size": 32, "heads": 4, "kv_heads": 2, "intermediate_size": 48,
        "max_positions": 64,
    }))
    .unwrap();
    for model in [model("tiny-qwen3"), Model::init(&new.config(1030).unwrap(), 3)] {
        for (compute, threads) in [(Compute::F32, 1), (Compute::Bf16, 1), (Compute::Bf16, 2)] {
            check_draws(&model.clone().with_compute(compute), &Ctx::new(threads).unwrap());
        }
    }
}

fn check_draws(model: &Model, ctx: &Ctx) {
    let (tokens, vocab) = (&sequences()[0], model.config().vocab_size);
    let expected = &expected(model, ctx, std::slice::from_ref(tokens))[0];
    let rows: Vec<StepRow<'_>> =
        (0..20).map(|i| StepRow { token: tokens[i], position: i as u32, blocks: &[2, 5] }).collect();
    let ask = |row: u32| match row % 3 {
        0 => HeadAsk::Logits,
        _ => HeadAsk::Token(Draw {
            inv_temperature: 0.7,
            uniform: (row % 3 == 1).then_some(f64::from(row) / 20.0),
        }),
    };
    let wanted: Vec<Wanted> = (0..20).map(|i| i * 7 % 20).map(|row| Wanted { row, ask: ask(row) }).collect();
    let mut out = HeadOutput::default();
    let mut cache = KvCache::new(model.config(), 8);
    model.step(ctx, &mut cache, &rows, &wanted, &mut StepScratch::default(), &mut out).unwrap();
    for (wanted, answer) in wanted.iter().zip(&out.answers) {
        let logits = &expected[wanted.row as usize * vocab..][..vocab];
        match (wanted.ask, answer) {
            (HeadAsk::Logits, HeadAnswer::Logits(at)) => {
                assert_eq!(&out.logits.as_slice()[at.clone()], logits);
            }
            (HeadAsk::Token(draw), HeadAnswer::Token(pick)) => {
                assert_eq!(*pick, RowDraw::default().draw(logits, draw));
                assert!(pick.is_some());
            }
            other => panic!("{other:?}"),
        }
    }
}

/// What is wanted of a few rows, in any order and more than once, is what they have among all; and the rows of which
/// nothing was wanted are there for those that follow.
#[test]
fn few_rows_give_what_they_give_among_all() {
    let sequences = [sequences()[0].clone(), sequences()[4].clone()];
    let blocks = [[3, 1, 7], [5, 2, 6]];
    for (compute, threads) in FORMATS.into_iter().flat_map(|compute| [(compute, 1), (compute, 2)]) {
        let (model, ctx) = (model("tiny-qwen3").with_compute(compute), Ctx::new(threads).unwrap());
        let expected = expected(&model, &ctx, &sequences);
        let mut cache = KvCache::new(model.config(), 8);
        let (mut scratch, mut out) = (StepScratch::default(), HeadOutput::default());
        let mut step = |first: std::ops::Range<usize>, second: std::ops::Range<usize>, wanted: &[u32]| {
            let at: Vec<(usize, usize)> = first.map(|i| (0, i)).chain(second.map(|i| (1, i))).collect();
            let row = |&(s, i): &(usize, usize)| StepRow {
                token: sequences[s][i],
                position: i as u32,
                blocks: &blocks[s],
            };
            let rows: Vec<StepRow<'_>> = at.iter().map(row).collect();
            let wanted = logits_of(wanted.iter().copied());
            model.step(&ctx, &mut cache, &rows, &wanted, &mut scratch, &mut out).unwrap();
            assert_eq!((out.answers.len(), out.logits.len()), (wanted.len(), wanted.len() * VOCAB));
            for (wanted, logits) in wanted.iter().zip(out.logits.as_slice().chunks_exact(VOCAB)) {
                let (s, i) = at[wanted.row as usize];
                assert!(
                    logits == &expected[s][i * VOCAB..][..VOCAB],
                    "{compute:?}, token {i} of sequence {s}"
                );
            }
        };
        step(0..20, 0..3, &[19, 3, 21, 3, 7]);
        step(20..25, 3..4, &[5, 4]);
        step(25..26, 4..17, &[]);
        step(26..28, 17..18, &[1, 2, 0, 2, 1]);
        step(28..33, 18..21, &[0, 1, 2, 3, 4, 5, 6, 7]);
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
    let mut out = HeadOutput::default();
    let first = [3, 1];
    let rows: Vec<StepRow<'_>> =
        (0..20).map(|i| StepRow { token: tokens[i], position: i as u32, blocks: &first }).collect();
    model.step(&ctx, &mut cache, &rows, &[], &mut scratch, &mut out).unwrap();
    assert!(out.answers.is_empty() && out.logits.is_empty());
    cache.copy_block(1, 6);
    // The original goes on with another token, the copy with the right one.
    let rows = [
        StepRow { token: 5, position: 20, blocks: &first },
        StepRow { token: tokens[20], position: 20, blocks: &[3, 6] },
    ];
    model.step(&ctx, &mut cache, &rows, &logits_of([1]), &mut scratch, &mut out).unwrap();
    assert_eq!(out.logits.as_slice(), &expected[20 * VOCAB..21 * VOCAB]);
}

#[test]
fn bad_rows_are_errors() {
    let ctx = Ctx::serial();
    let model = model("tiny-llama");
    let mut cache = KvCache::new(model.config(), 2);
    assert_eq!(cache.bytes_per_block(), KV_BLOCK * model.config().kv_bytes_per_token() as usize);
    let mut step = |row: StepRow<'_>, wanted: &[u32]| {
        let wanted = logits_of(wanted.iter().copied());
        model.step(&ctx, &mut cache, &[row], &wanted, &mut StepScratch::default(), &mut HeadOutput::default())
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
        let wanted = logits_of([0]);
        model.step(&ctx, cache, &[good], &wanted, &mut StepScratch::default(), &mut HeadOutput::default())
    };
    assert_eq!(step(&mut cache), Err(StepError::Compute { cache: "f32", model: "bf16" }));
    let mut halved = KvCache::new(model.config(), 2);
    assert_eq!(2 * halved.bytes_per_block(), cache.bytes_per_block());
    assert_eq!(halved.bytes_per_block(), KV_BLOCK * model.config().kv_bytes_per_token() as usize);
    assert_eq!(step(&mut halved), Ok(()));
}
