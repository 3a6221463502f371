//! Attention over the cache is bitwise identical to attention over packed sequences.

use proptest::prelude::*;
use rloom_ops::{
    AttentionShape, Bf16, Buf, CachedRow, Ctx, Element, Isa, KV_BLOCK, KvLayer, attention_cached,
    kv_copy_block, kv_write,
};

use crate::layers::attention::{Case, SHAPES};
use crate::layers::support::{ORDERS, bits, buf, narrow, numbers, widen};

/// A cache filled with NaN, so that reading an unwritten slot is detected.
fn nan_cache<E: Element>(ctx: &Ctx, blocks: usize, case: &Case) -> KvLayer<E> {
    let mut cache = KvLayer::new(blocks, case.shape);
    let slots: Vec<u32> = (0..(blocks * KV_BLOCK) as u32).collect();
    let nan =
        Buf::from_vec(vec![E::narrow(f32::NAN); slots.len() * case.shape.kv_heads * case.shape.head_dim]);
    kv_write(ctx, &mut cache, &nan, &nan, &slots);
    cache
}

/// Block tables for sequences of these lengths, drawn from a shuffled pool.
fn tables(lengths: &[usize], seed: u64) -> (Vec<Vec<u32>>, usize) {
    let needed: usize = lengths.iter().map(|n| n.div_ceil(KV_BLOCK)).sum();
    let blocks = needed + 3;
    let keys = numbers(seed, blocks);
    let mut pool: Vec<u32> = (0..blocks as u32).collect();
    pool.sort_by(|a, b| keys[*a as usize].total_cmp(&keys[*b as usize]));
    let tables = lengths.iter().map(|n| pool.split_off(pool.len() - n.div_ceil(KV_BLOCK))).collect();
    (tables, blocks)
}

fn pick<E: Element>(x: &Buf<E>, rows: &[usize], width: usize) -> Buf<E> {
    Buf::from_vec(
        rows.iter().flat_map(|r| x.as_slice()[r * width..(r + 1) * width].iter().copied()).collect(),
    )
}

/// Steps of `chunk` tokens of every sequence until all are done. The rows of a step are rotated by one each time, so
/// that runs of one sequence are also interrupted. Returns the output of all tokens in packed order.
pub(crate) fn stepwise<E: Element>(ctx: &Ctx, case: &Case, chunk: usize, seed: u64) -> Vec<u32> {
    let lengths: Vec<usize> = case.seq_starts.windows(2).map(|b| b[1] - b[0]).collect();
    let (tables, blocks) = tables(&lengths, seed);
    let mut cache = nan_cache(ctx, blocks, case);
    let (wide, width) = (case.shape.heads * case.shape.head_dim, case.shape.kv_heads * case.shape.head_dim);
    let (q, k, v) = (narrow::<E>(&case.q), narrow::<E>(&case.k), narrow::<E>(&case.v));
    let mut out = Buf::<E>::zeros(case.q.len());
    for start in (0..*lengths.iter().max().unwrap()).step_by(chunk) {
        let mut step: Vec<(usize, usize)> = lengths
            .iter()
            .enumerate()
            .flat_map(|(s, &n)| (start.min(n)..n.min(start + chunk)).map(move |t| (s, t)))
            .collect();
        let turn = start / chunk % step.len();
        step.rotate_left(turn);
        let packed: Vec<usize> = step.iter().map(|(s, t)| case.seq_starts[*s] + t).collect();
        let slots: Vec<u32> = step
            .iter()
            .map(|&(s, t)| tables[s][t / KV_BLOCK] * KV_BLOCK as u32 + (t % KV_BLOCK) as u32)
            .collect();
        kv_write(ctx, &mut cache, &pick(&k, &packed, width), &pick(&v, &packed, width), &slots);
        let rows: Vec<CachedRow<'_>> =
            step.iter().map(|&(s, t)| CachedRow { blocks: &tables[s], len: t + 1 }).collect();
        let mut step_out = Buf::from_vec(vec![E::narrow(f32::NAN); rows.len() * wide]);
        attention_cached(ctx, &mut step_out, &pick(&q, &packed, wide), &cache, &rows);
        for (i, token) in packed.iter().enumerate() {
            out.as_mut_slice()[token * wide..][..wide]
                .copy_from_slice(&step_out.as_slice()[i * wide..][..wide]);
        }
    }
    bits(&widen(&out))
}

pub(crate) fn expected<E: Element>(ctx: &Ctx, case: &Case) -> Vec<u32> {
    bits(&widen(&case.forward_in::<E>(ctx).0))
}

/// The rows of one step see such different numbers of keys that their tiles have different sizes.
#[test]
fn a_long_prompt_in_chunks_is_bitwise_identical_to_training() {
    let case = Case::new(SHAPES[0], &[1536]);
    let ctx = Ctx::new(2).unwrap();
    assert!(stepwise::<f32>(&ctx, &case, 256, 1) == expected::<f32>(&ctx, &case));
    assert!(stepwise::<Bf16>(&ctx, &case, 256, 1) == expected::<Bf16>(&ctx, &case));
}

#[test]
fn prefill_in_chunks_and_decode_is_bitwise_identical_to_training() {
    for shape in SHAPES {
        let case = Case::new(shape, &[1, 35, 16, 17, 50]);
        for threads in 1..=3 {
            let ctx = Ctx::new(threads).unwrap();
            let (single, pairs) = (expected::<f32>(&ctx, &case), expected::<Bf16>(&ctx, &case));
            for chunk in [1, 3, 16, 17, 50] {
                let what = format!("{shape:?}, chunks of {chunk}");
                assert!(stepwise::<f32>(&ctx, &case, chunk, 7) == single, "{what}");
                assert!(stepwise::<Bf16>(&ctx, &case, chunk, 7) == pairs, "{what} in bf16");
            }
        }
    }
}

#[test]
fn long_sequences_is_bitwise_identical_to_training() {
    let case = Case::new((4, 2, 32), &[300, 150]);
    let ctx = Ctx::new(3).unwrap();
    let (single, pairs) = (expected::<f32>(&ctx, &case), expected::<Bf16>(&ctx, &case));
    for chunk in [1, 64, 300] {
        assert!(stepwise::<f32>(&ctx, &case, chunk, 1) == single, "chunks of {chunk}");
        assert!(stepwise::<Bf16>(&ctx, &case, chunk, 1) == pairs, "chunks of {chunk} in bf16");
    }
}

/// Few rows over many keys, whose keys are divided among the threads: one sequence, and two of different lengths.
#[test]
fn one_token_of_a_long_sequence_is_the_same_on_any_number_of_threads() {
    for (shape, lengths, window) in [
        ((2, 1, 64), &[5000][..], None),
        ((14, 2, 20), &[700, 3001], None),
        ((6, 3, 64), &[2999], Some(2000)),
        ((8, 1, 33), &[4096], Some(4000)),
    ] {
        let mut case = Case::new(shape, lengths);
        case.shape.window = window;
        for isa in Isa::available() {
            let ctx = Ctx::with_isa(1, isa).unwrap();
            check_last_tokens::<f32>(&ctx, &case, 3);
            for order in ORDERS {
                // Of odd size, not every query begins with a word of two numbers: its keys stay on one thread.
                let jobs = if shape.2 % 2 == 1 { 0 } else { 3 };
                check_last_tokens::<Bf16>(&ctx.with_order(order).unwrap(), &case, jobs);
            }
        }
    }
}

/// Attention of the last token of each sequence: on three threads, and divided for eight, in this number of jobs.
fn check_last_tokens<E: Element>(serial: &Ctx, case: &Case, jobs: usize) {
    let lengths: Vec<usize> = case.seq_starts.windows(2).map(|b| b[1] - b[0]).collect();
    let (tables, blocks) = tables(&lengths, 5);
    let (wide, width) = (case.shape.heads * case.shape.head_dim, case.shape.kv_heads * case.shape.head_dim);
    let mut cache = nan_cache(serial, blocks, case);
    let slot = |s: usize, t: usize| tables[s][t / KV_BLOCK] * KV_BLOCK as u32 + (t % KV_BLOCK) as u32;
    let slots: Vec<u32> =
        lengths.iter().enumerate().flat_map(|(s, &n)| (0..n).map(move |t| slot(s, t))).collect();
    assert_eq!(slots.len() * width, case.k.len());
    kv_write(serial, &mut cache, &narrow::<E>(&case.k), &narrow::<E>(&case.v), &slots);
    let last: Vec<usize> = case.seq_starts[1..].iter().map(|end| end - 1).collect();
    let q = pick(&narrow::<E>(&case.q), &last, wide);
    let rows: Vec<CachedRow<'_>> =
        lengths.iter().zip(&tables).map(|(&len, blocks)| CachedRow { blocks, len }).collect();
    let of = |ctx: &Ctx| {
        let mut out = Buf::from_vec(vec![E::narrow(f32::NAN); q.len()]);
        attention_cached(ctx, &mut out, &q, &cache, &rows);
        bits(&widen(&out))
    };
    let expected = of(serial);
    let what = format!("{:?} {lengths:?} {:?} {:?}", case.shape, serial.isa(), serial.order());
    assert!(of(&serial.with_threads(3).unwrap()) == expected, "{what}");
    let eight = serial.simulating(8, || 0.0);
    assert!(of(&eight) == expected, "{what}, divided for eight");
    let simulated = eight.take_simulated();
    assert_eq!(
        simulated.iter().map(|(_, operation)| operation.jobs).sum::<usize>(),
        jobs,
        "{what}: {simulated:?}"
    );
}

/// Panics unless all instruction sets give the bits of training on the fastest one, in both formats and all orders.
pub(super) fn check_instruction_sets(case: &Case) {
    let serial = Ctx::serial();
    let single = expected::<f32>(&serial, case);
    for isa in Isa::available() {
        let ctx = Ctx::with_isa(2, isa).unwrap();
        for chunk in [1, 17] {
            assert!(stepwise::<f32>(&ctx, case, chunk, 3) == single, "{isa:?}, chunks of {chunk}");
        }
        for order in ORDERS {
            let want = expected::<Bf16>(&serial.with_order(order).unwrap(), case);
            for chunk in [1, 17] {
                let got = stepwise::<Bf16>(&ctx.with_order(order).unwrap(), case, chunk, 3);
                assert!(got == want, "{isa:?}, chunks of {chunk} in bf16, {order:?}");
            }
        }
    }
}

#[test]
fn every_instruction_set_is_bitwise_identical_to_the_fastest() {
    check_instruction_sets(&Case::new((6, 2, 19), &[3, 35, 18]));
}

/// More heads per kv head than the registers hold, with more keys than are read at a time; and more than a tile holds.
#[test]
fn any_number_of_heads_per_kv_head_is_bitwise_identical_to_training() {
    for (group, head_dim, len) in [(7, 128, 90), (8, 64, 140), (13, 20, 50), (50, 16, 40), (97, 6, 18)] {
        let case = Case::new((2 * group, 2, head_dim), &[len, 3]);
        for isa in Isa::available() {
            let ctx = Ctx::with_isa(2, isa).unwrap();
            let what = format!("{isa:?}, {group} heads per kv head");
            assert!(stepwise::<f32>(&ctx, &case, 1, 3) == expected::<f32>(&ctx, &case), "{what}");
            assert!(stepwise::<Bf16>(&ctx, &case, 1, 3) == expected::<Bf16>(&ctx, &case), "{what} in bf16");
        }
    }
}

/// There is no room for the scores of all heads over this many keys.
#[test]
fn a_head_over_many_keys_is_bitwise_identical_alone_and_among_others() {
    let (ctx, tokens, group, e) = (Ctx::serial(), 12_000, 7, 8);
    let blocks: Vec<u32> = (0..tokens as u32 / 16).rev().collect();
    let slots: Vec<u32> = blocks.iter().flat_map(|block| 16 * block..16 * (block + 1)).collect();
    let (k, v, q) = (buf(1, tokens * e), buf(2, tokens * e), buf(3, group * e));
    let attend = |heads: usize, q: &[f32]| {
        let shape = AttentionShape { heads, kv_heads: 1, head_dim: e, window: None };
        let mut cache = KvLayer::<f32>::new(blocks.len(), shape);
        kv_write(&ctx, &mut cache, &k, &v, &slots);
        let mut out = Buf::zeros(heads * e);
        let row = CachedRow { blocks: &blocks, len: tokens - 5 };
        attention_cached(&ctx, &mut out, &Buf::from_slice(q), &cache, &[row]);
        bits(&out)
    };
    let all = attend(group, q.as_slice());
    for (head, got) in all.chunks(e).enumerate() {
        assert!(got == attend(1, &q.as_slice()[head * e..][..e]), "head {head}");
    }
}

#[test]
fn sequences_with_a_shared_prefix_fork_at_a_copied_block() {
    fork_at_a_copied_block::<f32>();
    fork_at_a_copied_block::<Bf16>();
}

fn fork_at_a_copied_block<E: Element>() {
    let ctx = Ctx::serial();
    let case = Case::new((4, 2, 20), &[20]);
    // The fork has a different last token.
    let mut fork = Case::new((4, 2, 20), &[20]);
    fork.k.as_mut_slice()[19 * 40..].fill(0.3);
    fork.v.as_mut_slice()[19 * 40..].fill(-0.7);
    let mut cache = nan_cache::<E>(&ctx, 4, &case);
    let slots: Vec<u32> = (0..20).collect();
    kv_write(&ctx, &mut cache, &narrow(&case.k), &narrow(&case.v), &slots);
    kv_copy_block(&mut cache, 1, 3);
    let (k, v) = (narrow(&pick(&fork.k, &[19], 40)), narrow(&pick(&fork.v, &[19], 40)));
    kv_write(&ctx, &mut cache, &k, &v, &[3 * 16 + 3]);
    let last = narrow::<E>(&pick(&case.q, &[19, 19], 80));
    let mut out = Buf::zeros(160);
    let rows = [CachedRow { blocks: &[0, 1], len: 20 }, CachedRow { blocks: &[0, 3], len: 20 }];
    attention_cached(&ctx, &mut out, &last, &cache, &rows);
    let out = bits(&widen(&out));
    assert_eq!(out[..80], expected::<E>(&ctx, &case)[19 * 80..]);
    assert_eq!(out[80..], expected::<E>(&ctx, &fork)[19 * 80..]);
}

/// A step whose rows differ in their number of blocks, in either direction.
#[test]
fn a_long_sequence_among_short_ones_is_bitwise_identical_to_training() {
    among_short_ones::<f32>();
    among_short_ones::<Bf16>();
}

fn among_short_ones<E: Element>() {
    let ctx = Ctx::serial();
    let case = Case::new((4, 2, 32), &[3, 40, 17, 70, 1]);
    let lengths: Vec<usize> = case.seq_starts.windows(2).map(|b| b[1] - b[0]).collect();
    let (tables, blocks) = tables(&lengths, 5);
    let mut cache = nan_cache::<E>(&ctx, blocks, &case);
    let slots: Vec<u32> = std::iter::zip(&tables, &lengths)
        .flat_map(|(table, &n)| {
            (0..n as u32).map(|t| table[t as usize / KV_BLOCK] * KV_BLOCK as u32 + t % 16)
        })
        .collect();
    kv_write(&ctx, &mut cache, &narrow(&case.k), &narrow(&case.v), &slots);
    let last: Vec<usize> = case.seq_starts[1..].iter().map(|end| end - 1).collect();
    let rows: Vec<CachedRow<'_>> =
        std::iter::zip(&tables, &lengths).map(|(blocks, &len)| CachedRow { blocks, len }).collect();
    let mut out = Buf::zeros(last.len() * 128);
    attention_cached(&ctx, &mut out, &narrow::<E>(&pick(&case.q, &last, 128)), &cache, &rows);
    let all = expected::<E>(&ctx, &case);
    let want: Vec<u32> = last.iter().flat_map(|t| &all[t * 128..][..128]).copied().collect();
    assert!(bits(&widen(&out)) == want);
}

#[test]
fn the_cache_reports_its_size() {
    let cache = KvLayer::<f32>::new(10, Case::new((4, 2, 20), &[1]).shape);
    assert_eq!(cache.bytes(), 10 * KV_BLOCK * 2 * 20 * 2 * 4);
    assert_eq!(cache.blocks(), 10);
    let cache = KvLayer::<Bf16>::new(10, Case::new((4, 2, 20), &[1]).shape);
    assert_eq!(cache.bytes(), 10 * KV_BLOCK * 2 * 20 * 2 * 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_chunking_of_a_sequence_is_bitwise_identical_to_training(
        group in 1usize..8,
        kv_heads in 1usize..3,
        head_dim in 1usize..40,
        lengths in prop::collection::vec(1usize..60, 1..5),
        chunk in 1usize..60,
        threads in 1usize..4,
        window in prop::option::of(1usize..50),
        seed in 0u64..1000,
    ) {
        let mut case = Case::new((group * kv_heads, kv_heads, head_dim), &lengths);
        case.shape.window = window;
        let ctx = Ctx::new(threads).unwrap();
        prop_assert!(stepwise::<f32>(&ctx, &case, chunk, seed) == expected::<f32>(&ctx, &case));
        prop_assert!(stepwise::<Bf16>(&ctx, &case, chunk, seed) == expected::<Bf16>(&ctx, &case));
    }
}
