//! Rotary position embedding (Su et al., 2021, arXiv:2104.09864) in the half-split convention of Hugging Face
//! models: element `i` of a head turns with element `i + E/2`.

use crate::simd::{LANES, Simd, dispatch};
use crate::{Buf, Ctx, Element, lanes, partition};

/// Cosines and sines for every position, `[max_positions, E/2]` each.
///
/// The angle is the f32 product of position and inverse frequency, as in `transformers`: at high positions
/// its rounding is visible, and a model must see at inference the angles it saw in training.
#[derive(Clone, Debug)]
pub struct RopeTable {
    head_dim: usize,
    max_positions: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// A table for positions `0..max_positions`, from the inverse frequencies (`head_dim / 2` of them, with
    /// the model's own scaling already in them). It takes `max_positions · head_dim · 4` bytes.
    ///
    /// # Panics
    ///
    /// If `inv_freq` does not hold `head_dim / 2` numbers.
    pub fn new(head_dim: usize, inv_freq: &[f32], max_positions: usize) -> Self {
        assert_eq!(2 * inv_freq.len(), head_dim, "RopeTable: half of head_dim inverse frequencies");
        let angles =
            || (0..max_positions).flat_map(|p| inv_freq.iter().map(move |f| f64::from(p as f32 * f)));
        Self {
            head_dim,
            max_positions,
            cos: angles().map(|a| a.cos() as f32).collect(),
            sin: angles().map(|a| a.sin() as f32).collect(),
        }
    }

    /// The number of positions; every position given to [`rope`] must be below it.
    pub fn max_positions(&self) -> usize {
        self.max_positions
    }

    pub(crate) fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Cosines and sines of a position, half a head of each.
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

/// Turns every head of every token of `x` `[T, heads, E]` by its position, in place: the definition of what
/// [`linear_heads`](crate::linear_heads) does at the end of its product.
///
/// # Panics
///
/// If the length of `x` does not fit, or a position is not in the table.
pub fn rope(ctx: &Ctx, x_the: &mut Buf, positions: &[u32], heads: usize, table: &RopeTable) {
    turn(ctx, x_the, positions, heads, table, 1.0);
}

/// The gradient of [`rope`], in place: the same turn backwards.
///
/// # Panics
///
/// As [`rope`].
pub fn rope_backward(ctx: &Ctx, dx_the: &mut Buf, positions: &[u32], heads: usize, table: &RopeTable) {
    turn(ctx, dx_the, positions, heads, table, -1.0);
}

fn turn(ctx: &Ctx, x_the: &mut Buf, positions: &[u32], heads: usize, table: &RopeTable, sign: f32) {
    let e = table.head_dim;
    assert_eq!(x_the.len(), positions.len() * heads * e, "rope: x must be [positions, heads, head_dim]");
    table.check(positions);
    partition::for_rows(ctx, x_the.as_mut_slice(), heads * e, |first, count, x| {
        for row in 0..count {
            let (cos, sin) = table.angles(positions[first + row]);
            turn_heads(ctx.level(), &mut x[row * heads * e..][..heads * e], cos, sin, sign);
        }
    });
}

dispatch! {
    /// All heads of one token: `(a, b) ← (a·cos − b·sin, b·cos + a·sin)` with `a`, `b` the halves of a head.
    fn turn_heads(x: &mut [f32], cos: &[f32], sin: &[f32], sign: f32) = turn_heads_generic;
}

#[inline(always)]
fn turn_heads_generic<S: Simd>(s: S, x: &mut [f32], cos: &[f32], sin: &[f32], sign: f32) {
    let sign = s.splat(sign);
    for head in x.chunks_exact_mut(2 * cos.len()) {
        let (low, high) = head.split_at_mut(cos.len());
        let halves = low.chunks_mut(LANES).zip(high.chunks_mut(LANES));
        for ((low, high), (cos, sin)) in halves.zip(cos.chunks(LANES).zip(sin.chunks(LANES))) {
            let halves = (lanes::load(s, low), lanes::load(s, high));
            let (a, b) = turned(s, halves, (lanes::load(s, cos), s.mul(sign, lanes::load(s, sin))));
            lanes::store(s, low, a);
            lanes::store(s, high, b);
        }
    }
}

/// The halves of a head, turned.
#[inline(always)]
pub(crate) fn turned<S: Simd>(s: S, (a, b): (S::V, S::V), (cos, sin): (S::V, S::V)) -> (S::V, S::V) {
    (s.fma(s.neg(b), sin, s.mul(a, cos)), s.fma(a, sin, s.mul(b, cos)))
}

dispatch! {
    /// As [`turn_heads`], to another place, where the numbers are rounded.
    pub(crate) fn turn_heads_to[E: Element](y: &mut [E], x: &[f32], cos: &[f32], sin: &[f32], sign: f32)
        = turn_heads_to_generic;
}

#[inline(always)]
fn turn_heads_to_generic<S: Simd, E: Element>(
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
            let (a, b) = turned(s, halves, (lanes::load(s, cos), s.mul(sign, lanes::load(s, sin))));
            lanes::store(s, to_low, a);
            lanes::store(s, to_high, b);
        }
    }
}
