//! The language-model head fused with its softmax: log-probability and entropy of chosen tokens, and their backward,
//! without ever holding `[t, v]`.
//!
//! With `z = logits · inv_temperature` of a row: `lse = ln Σ eᶻ`, `logprob(j) = z_j − lse`, and the entropy is
//! `H = lse − Σ p·z`. Backward: `∂logprob(j)/∂z_i = [i = j] − p_i` and `∂H/∂z_i = −p_i·(ln p_i + H)`.
//!
//! Logits exist in tiles of some rows × [`BLOCK`] columns. The backward pass computes them again rather than keep them:
//! that is a third more multiplications for the head instead of `[t, v]` floats of memory.

use crate::disjoint::Disjoint;
use crate::gemm::{Left, Output, Product, Right, check};
use crate::linear::linear;
use crate::logsumexp::{BLOCK, Block, block, join};
use crate::numbers::{Numbers, Typed};
use crate::pack::Packed;
use crate::simd::{LANES, Simd, dispatch};
use crate::{Buf, Ctx, Element};

/// Rows of a tile of logits: with [`BLOCK`] columns it fills an eighth of a megabyte.
const TILE_ROWS: usize = 64;
/// Rows whose logit derivatives the backward pass holds at a time, for one block of columns.
const CHUNK_ROWS: usize = 2048;

/// What the head says of each row's target token.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HeadScores {
    /// Natural log-probability of the target at the row's temperature.
    pub logprob: Vec<f32>,
    /// Entropy of the row's distribution, in nats.
    pub entropy: Vec<f32>,
    /// Log-sum-exp of the scaled logits.
    pub lse: Vec<f32>,
}

/// Plain logits `h_rd · Wᵀ`, for the few rows of a decode step; bit-equal to the logits inside [`head_forward`].
///
/// # Panics
/// If a buffer does not have the size of its shape.
pub fn head_logits<E: Element>(ctx: &Ctx, logits_rv: &mut Buf, h_rd: &Buf<E>, rows: usize, w: &Packed<E>) {
    linear(ctx, logits_rv, h_rd, rows, w, None);
}

/// Logits of the rows from `first` on and the columns of block `b`, into a tile of `columns` columns.
fn logits_tile<E: Element>(
    ctx: &Ctx,
    tile: &mut [f32],
    h: &[E],
    first: usize,
    rows: usize,
    w: &Packed<E>,
    b: usize,
) {
    let d = w.k();
    let columns = BLOCK.min(w.n() - b * BLOCK);
    let product = Product {
        m: rows,
        n: columns,
        k: d,
        group: E::GROUP,
        a: Left { data: E::numbers(&h[first * d..][..rows * d]), row: d, step: 1 },
        b: Right::Panels(w.panels(b * BLOCK / LANES)),
        c_row: columns,
        output: Output::Store,
    };
    product.run_inline(ctx, f32::place(tile));
}

fn check_targets<E: Element>(rows: usize, w: &Packed<E>, targets: &[u32], inv_temperature: &[f32]) {
    assert!(targets.len() == rows, "{} targets for {rows} rows", targets.len());
    assert!(inv_temperature.len() == rows, "{} temperatures for {rows} rows", inv_temperature.len());
    assert!(targets.iter().all(|&t| (t as usize) < w.n()), "a target is not in the vocabulary of {}", w.n());
}

/// Log-probability of each row's target, and the row's entropy and log-sum-exp, at the row's temperature.
///
/// # Panics
/// If a buffer or slice does not have the size of its shape, or a target is not below the vocabulary's size.
pub fn head_forward<E: Element>(
    ctx: &Ctx,
    h_td: &Buf<E>,
    rows: usize,
    w: &Packed<E>,
    targets: &[u32],
    inv_temperature: &[f32],
) -> HeadScores {
    check("h_td", h_td, rows * w.k());
    check_targets(rows, w, targets, inv_temperature);
    let (h, blocks, tiles) = (h_td.as_slice(), w.n().div_ceil(BLOCK), rows.div_ceil(TILE_ROWS));
    let mut stats = vec![Block::default(); rows * blocks];
    let mut target_logits = vec![0.0; rows];
    {
        let stats = Disjoint::new(&mut stats);
        let target_logits = Disjoint::new(&mut target_logits);
        // Neighbouring pieces share a block of the weight, so that it is read from memory once.
        ctx.parallel_for(tiles * blocks, |i| {
            let (b, tile) = (i / tiles, i % tiles);
            let (first, end) = (rows * tile / tiles, rows * (tile + 1) / tiles);
            let columns = BLOCK.min(w.n() - b * BLOCK);
            ctx.with_scratch((end - first) * columns, |scratch| {
                logits_tile(ctx, scratch.as_mut_slice(), h, first, end - first, w, b);
                for (t, logits) in (first..end).zip(scratch.as_slice().chunks_exact(columns)) {
                    // SAFETY: a row and block belong to one piece.
                    let stats = unsafe { stats.slice(t * blocks + b..t * blocks + b + 1) };
                    stats[0] = block(ctx.level(), logits, inv_temperature[t]);
                    if let Some(&logit) =
                        (targets[t] as usize).checked_sub(b * BLOCK).and_then(|j| logits.get(j))
                    {
                        // SAFETY: a row's target lies in one block, which belongs to one piece.
                        unsafe { target_logits.slice(t..t + 1)[0] = logit }
                    }
                }
            });
        });
    }
    let mut out = HeadScores { logprob: target_logits, entropy: vec![0.0; rows], lse: vec![0.0; rows] };
    let logprob = Disjoint::new(&mut out.logprob);
    let (entropy, lse) = (Disjoint::new(&mut out.entropy), Disjoint::new(&mut out.lse));
    ctx.parallel_for(tiles, |tile| {
        for t in rows * tile / tiles..rows * (tile + 1) / tiles {
            let row = join(ctx.level(), &stats[t * blocks..][..blocks]);
            // SAFETY: a row belongs to one piece.
            unsafe {
                entropy.slice(t..t + 1)[0] = row.entropy;
                lse.slice(t..t + 1)[0] = row.lse;
                let logprob = logprob.slice(t..t + 1);
                logprob[0] = logprob[0] * inv_temperature[t] - row.lse;
            }
        }
    });
    out
}

/// What the derivative by a row's logits needs.
#[derive(Debug, Clone, Copy)]
struct RowGrad {
    inv_temperature: f32,
    lse: f32,
    entropy: f32,
    d_logprob: f32,
    d_entropy: f32,
}

/// The derivative by one vector of logits.
#[inline(always)]
fn d_logits_of<S: Simd>(s: S, logits: S::V, row: RowGrad) -> S::V {
    let scale = s.splat(row.inv_temperature);
    let logp = s.sub(s.mul(logits, scale), s.splat(row.lse));
    let entropy_term = s.add(logp, s.splat(row.entropy));
    let by_z = s.fma(s.splat(row.d_entropy), entropy_term, s.splat(row.d_logprob));
    s.mul(s.mul(s.exp(logp), by_z), s.neg(scale))
}

/// The derivative by the logits of one row, but for its target's term, written over the logits.
#[inline(always)]
fn d_logits_generic<S: Simd>(s: S, logits: &mut [f32], row: RowGrad) {
    let (full, tail) = logits.as_chunks_mut::<LANES>();
    for x in full {
        let v = d_logits_of(s, s.load(x), row);
        s.store(x, v);
    }
    let v = d_logits_of(s, s.load_tail(tail), row);
    s.store_tail(tail, v);
}

dispatch! {
    fn d_logits(logits: &mut [f32], row: RowGrad) = d_logits_generic;
}

/// Backward of [`head_forward`]: from the derivatives by each row's log-probability and entropy to `dh_td`
/// (overwritten) and `dw_vd` (accumulated, rows ascending). The logits are computed again. `scores` is what
/// `head_forward` gave, `w` the packed form of `w_vd`.
///
/// # Panics
/// If a buffer or slice does not have the size of its shape, or a target is not below the vocabulary's size.
pub fn head_backward<E: Element>(
    ctx: &Ctx,
    dh_td: &mut Buf,
    dw_vd: &mut Buf,
    h_td: &Buf<E>,
    rows: usize,
    w_vd: &Buf,
    w: &Packed<E>,
    targets: &[u32],
    inv_temperature: &[f32],
    scores: &HeadScores,
    d_logprob: &[f32],
    d_entropy: &[f32],
) {
    let (v, d) = (w.n(), w.k());
    check("dh_td", dh_td, rows * d);
    check("dw_vd", dw_vd, v * d);
    check("h_td", h_td, rows * d);
    check("w_vd", w_vd, v * d);
    check_targets(rows, w, targets, inv_temperature);
    let lengths = [scores.lse.len(), scores.entropy.len(), d_logprob.len(), d_entropy.len()];
    assert!(lengths == [rows; 4], "scores and derivatives of {lengths:?} rows for {rows} rows");

    let (h, dh) = (h_td.as_slice(), Disjoint::new(dh_td.as_mut_slice()));
    let dw = Disjoint::new(dw_vd.as_mut_slice());
    let chunk = rows.min(CHUNK_ROWS);
    ctx.with_scratch(chunk * BLOCK.min(v), |scratch| {
        // Rows ascend outside, so that each element of dw is one chain over them; columns ascend inside, for dh.
        for first in (0..rows).step_by(CHUNK_ROWS) {
            let count = CHUNK_ROWS.min(rows - first);
            for b in 0..v.div_ceil(BLOCK) {
                let columns = BLOCK.min(v - b * BLOCK);
                let tile = &mut scratch.as_mut_slice()[..count * columns];
                let pieces = count.div_ceil(TILE_ROWS);
                let parts = Disjoint::new(tile);
                ctx.parallel_for(pieces, |i| {
                    let (from, end) = (count * i / pieces, count * (i + 1) / pieces);
                    // SAFETY: a row of the tile belongs to one piece.
                    let part = unsafe { parts.slice(from * columns..end * columns) };
                    logits_tile(ctx, part, h, first + from, end - from, w, b);
                    for (t, logits) in (first + from..first + end).zip(part.chunks_exact_mut(columns)) {
                        let row = RowGrad {
                            inv_temperature: inv_temperature[t],
                            lse: scores.lse[t],
                            entropy: scores.entropy[t],
                            d_logprob: d_logprob[t],
                            d_entropy: d_entropy[t],
                        };
                        d_logits(ctx.level(), logits, row);
                        let target = (targets[t] as usize).checked_sub(b * BLOCK);
                        if let Some(x) = target.and_then(|j| logits.get_mut(j)) {
                            *x = d_logprob[t].mul_add(inv_temperature[t], *x);
                        }
                    }
                });
                let tile = &scratch.as_slice()[..count * columns];
                let by_h = Product {
                    m: count,
                    n: d,
                    k: columns,
                    group: E::GROUP,
                    a: Left { data: Numbers::F32(tile), row: columns, step: 1 },
                    b: Right::Rows {
                        data: Numbers::F32(&w_vd.as_slice()[b * BLOCK * d..][..columns * d]),
                        width: d,
                    },
                    c_row: d,
                    output: if b == 0 { Output::Store } else { Output::Chain },
                };
                let by_w = Product {
                    m: columns,
                    n: d,
                    k: count,
                    group: E::GROUP,
                    a: Left { data: Numbers::F32(tile), row: 1, step: columns },
                    b: Right::Rows { data: E::numbers(&h[first * d..][..count * d]), width: d },
                    c_row: d,
                    output: Output::Chain,
                };
                // SAFETY: these are the only borrows of the two ranges while they live.
                let (dh, dw) = unsafe {
                    (
                        dh.slice(first * d..(first + count) * d),
                        dw.slice(b * BLOCK * d..(b * BLOCK + columns) * d),
                    )
                };
                Product::run_both(ctx, &by_h, f32::place(dh), &by_w, f32::place(dw));
            }
        }
    });
}
