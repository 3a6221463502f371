//! Rotary position embedding (Su et al., 2021, arXiv:2104.09864) in the half-split convention of Hugging Face models:
//! element `i` of a head is rotated with element `i + E/2`.

use crate::simd::{LANES, Simd, dispatch};
use crate::{Buf, Ctx, Element, lanes, partition};

/// Cosines and sines of every position, `[max_positions, E/2]` each, both multiplied by a scale that is usually 1.
///
/// The angle is the f32 product of position and inverse frequency, as in `transformers`: at high positions its rounding
/// is visible, and inference must use the angles of training.
#[derive(Clone, Debug)]
pub struct RopeTable {
    head_dim: usize,
    max_positions: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// A table for positions `0..max_positions`, from the inverse frequencies (`head_dim / 2` of them, with any scaling
    /// already applied). Cosines and sines are multiplied by `scale`. Takes `max_positions · head_dim · 4` bytes.
    ///
    /// # Panics
    ///
    /// If `inv_freq` does not hold `head_dim / 2` numbers.
    pub fn new(head_dim: usize, inv_freq: &[f32], scale: f32, max_positions: usize) -> Self {
        assert_eq!(2 * inv_freq.len(), head_dim, "RopeTable: head_dim / 2 inverse frequencies are needed");
        let angles =
            || (0..max_positions).flat_map(|p| inv_freq.iter().map(move |f| f64::from(p as f32 * f)));
        Self {
            head_dim,
            max_positions,
            cos: angles().map(|a| a.cos() as f32 * scale).collect(),
            sin: angles().map(|a| a.sin() as f32 * scale).collect(),
        }
    }

    /// Number of positions; every position given to [`rope`] must be below it.
    pub fn max_positions(&self) -> usize {
        self.max_positions
    }

    pub(crate) fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Cosines and sines of a position, `E/2` each.
    pub(crate) fn angles(&self, position: u32) -> (&[f32], &[f32]) {
        let half = self.head_dim / 2;
        let at = position as usize * half;
        (&self.cos[at..][..half], &self.sin[at..][..half])
    }

    /// Panics unless all positions are in the table.
    pub(crate) fn check(&self, positions: &[u32]) {
        assert!(
            positions.iter().all(|&p| (p as usize) < self.max_positions),
            "rope: a position is not below the table's {}",
            self.max_positions
        );
    }
}

/// Rotates every head of every token of `x` `[T, heads, E]` by its position, in place. Defines the rotation at the end
/// of [`linear_heads`](crate::linear_heads).
///
/// # Panics
///
/// If the length of `x` does not fit, or a position is not in the table.
pub fn rope(ctx: &Ctx, x_the: &mut Buf, positions: &[u32], heads: usize, table: &RopeTable) {
    rotate(ctx, x_the, positions, heads, table, 1.0);
}

/// Backward pass of [`rope`], in place: the inverse rotation, with the same scale.
///
/// # Panics
///
/// As [`rope`].
pub fn rope_backward(ctx: &Ctx, dx_the: &mut Buf, positions: &[u32], heads: usize, table: &RopeTable) {
    rotate(ctx, dx_the, positions, heads, table, -1.0);
}

fn rotate(ctx: &Ctx, x_the: &mut Buf, positions: &[u32], heads: usize, table: &RopeTable, sign: f32) {
    let e = table.head_dim;
    assert_eq!(x_the.len(), positions.len() * heads * e, "rope: x must be [positions, heads, head_dim]");
    table.check(positions);
    partition::for_rows(ctx, x_the.as_mut_slice(), heads * e, |first, count, x| {
        for row in 0..count {
            let (cos, sin) = table.angles(positions[first + row]);
            rotate_heads(ctx.level(), &mut x[row * heads * e..][..heads * e], cos, sin, sign);
        }
    });
}

dispatch! {
    /// Rotates all heads of one token: `(a, b) ← (a·cos − b·sin, b·cos + a·sin)` with `a`, `b` the halves of a head.
    fn rotate_heads(x: &mut [f32], cos: &[f32], sin: &[f32], sign: f32) = rotate_heads_generic;
}

#[inline(always)]
fn rotate_heads_generic<S: Simd>(s: S, x: &mut [f32], cos: &[f32], sin: &[f32], sign: f32) {
    let sign = s.splat(sign);
    for head in x.chunks_exact_mut(2 * cos.len()) {
        let (low, high) = head.split_at_mut(cos.len());
        let halves = low.chunks_mut(LANES).zip(high.chunks_mut(LANES));
        for ((low, high), (cos, sin)) in halves.zip(cos.chunks(LANES).zip(sin.chunks(LANES))) {
            let halves = (lanes::load(s, low), lanes::load(s, high));
            let (a, b) = rotated(s, halves, (lanes::load(s, cos), s.mul(sign, lanes::load(s, sin))));
            lanes::store(s, low, a);
            lanes::store(s, high, b);
        }
    }
}

/// Rotates the halves of a head.
#[inline(always)]
pub(crate) fn rotated<S: Simd>(s: S, (a, b): (S::V, S::V), (cos, sin): (S::V, S::V)) -> (S::V, S::V) {
    (s.fma(s.neg(b), sin, s.mul(a, cos)), s.fma(a, sin, s.mul(b, cos)))
}

dispatch! {
    /// As [`rotate_heads`], out of place, with rounding.
    pub(crate) fn rotate_heads_to[E: Element](y: &mut [E], x: &[f32], cos: &[f32], sin: &[f32], sign: f32)
        = rotate_heads_to_generic;
}

#[inline(always)]
fn rotate_heads_to_generic<S: Simd, E: Element>(
    s: S,
    y: &mut [E],
    x: &[f32],
    cos: &[f32],
    sin: &[f32],
    sign: f32,
) {
    let (half, sign) = (cos.len(), s.splat(sign));
    for (y, x) in y.chunks_exact_mut(2 * half).zip(x.chunks_exact(2 * half)) {
        let ((to_low, to_high), (low, high)) = (y.split_at_mut(half), x.split_at(half));
        let to = to_low.chunks_mut(LANES).zip(to_high.chunks_mut(LANES));
        let from = low.chunks(LANES).zip(high.chunks(LANES));
        for (((to_low, to_high), (low, high)), (cos, sin)) in
            to.zip(from).zip(cos.chunks(LANES).zip(sin.chunks(LANES)))
        {
            let halves = (lanes::load(s, low), lanes::load(s, high));
            let (a, b) = rotated(s, halves, (lanes::load(s, cos), s.mul(sign, lanes::load(s, sin))));
            lanes::store(s, to_low, a);
            lanes::store(s, to_high, b);
        }
    }
}
