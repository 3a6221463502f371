//! Rotary position embedding (Su et al., 2021, arXiv:2104.09864) in the half-split convention of Hugging Face
//! models: element `i` of a head turns with element `i + E/2`. Arithmetic is f32 whatever the format.

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
}

/// Turns every head of every token of `x` `[T, heads, E]` by its position, in place.
///
/// # Panics
///
/// If the length of `x` does not fit, or a position is not in the table.
pub fn rope<E: Element>(ctx: &Ctx, x_the: &mut Buf<E>, positions: &[u32], heads: usize, table: &RopeTable) {
    turn(ctx, x_the, positions, heads, table, 1.0);
}

/// The gradient of [`rope`], in place: the same turn backwards.
///
/// # Panics
///
/// As [`rope`].
pub fn rope_backward<E: Element>(
    ctx: &Ctx,
    dx_the: &mut Buf<E>,
    positions: &[u32],
    heads: usize,
    table: &RopeTable,
) {
    turn(ctx, dx_the, positions, heads, table, -1.0);
}

fn turn<E: Element>(
    ctx: &Ctx,
    x_the: &mut Buf<E>,
    positions: &[u32],
    heads: usize,
    table: &RopeTable,
    sign: f32,
) {
    let (e, half) = (table.head_dim, table.head_dim / 2);
    assert_eq!(x_the.len(), positions.len() * heads * e, "rope: x must be [positions, heads, head_dim]");
    assert!(
        positions.iter().all(|&p| (p as usize) < table.max_positions),
        "rope: a position is not below the table's {}",
        table.max_positions
    );
    partition::for_rows(ctx, x_the.as_mut_slice(), heads * e, |first, count, x| {
        for row in 0..count {
            let at = positions[first + row] as usize * half;
            let (cos, sin) = (&table.cos[at..][..half], &table.sin[at..][..half]);
            turn_heads(ctx.level(), &mut x[row * heads * e..][..heads * e], cos, sin, sign);
        }
    });
}

dispatch! {
    /// All heads of one token: `(a, b) ← (a·cos − b·sin, b·cos + a·sin)` with `a`, `b` the halves of a head.
    fn turn_heads[E: Element](x: &mut [E], cos: &[f32], sin: &[f32], sign: f32) = turn_heads_generic;
}

#[inline(always)]
fn turn_heads_generic<S: Simd, E: Element>(s: S, x: &mut [E], cos: &[f32], sin: &[f32], sign: f32) {
    let sign = s.splat(sign);
    for head in x.chunks_exact_mut(2 * cos.len()) {
        let (low, high) = head.split_at_mut(cos.len());
        let halves = low.chunks_mut(LANES).zip(high.chunks_mut(LANES));
        for ((low, high), (cos, sin)) in halves.zip(cos.chunks(LANES).zip(sin.chunks(LANES))) {
            let (a, b) = (lanes::load(s, low), lanes::load(s, high));
            let (cos, sin) = (lanes::load(s, cos), s.mul(sign, lanes::load(s, sin)));
            lanes::store(s, low, s.fma(s.neg(b), sin, s.mul(a, cos)));
            lanes::store(s, high, s.fma(a, sin, s.mul(b, cos)));
        }
    }
}
