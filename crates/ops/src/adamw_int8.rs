//! AdamW with moments of 8 bits (Dettmers et al., 2022, arXiv:2110.02861).
//!
//! A moment is stored as one byte for each element and one scale for each [`MOMENT_BLOCK`] elements, the largest magnitude among
//! them. A byte names one of 256 fractions of the scale: seven decades, of which each higher one has twice as many equidistant
//! values as the one below ("dynamic" quantisation). A step reads a block in f32, updates it as [`adamw`](crate::adamw)
//! does, and rounds to the nearest fractions.
//!
//! The second moment has no zero among its fractions (Li et al., 2023, arXiv:2309.01507): an element whose second moment vanished
//! next to the largest of its block, but not its first one, would take a step of `1/eps`.

use std::sync::LazyLock;

use crate::adamw::{AdamW, Factors, update};
use crate::disjoint::Disjoint;
use crate::simd::LANES;
use crate::{Buf, Ctx};

/// Elements with a common scale.
pub const MOMENT_BLOCK: usize = 256;
/// Blocks of a piece of work.
const PIECE: usize = 64;
/// Decades of the fractions.
const DECADES: i32 = 7;
/// Mantissa bits of a key of [`Code::first`]: enough for at most one bound in a key.
const KEY_BITS: u32 = 8;
/// Magnitudes below are nearer to zero, or to the smallest fraction, than to all others.
const SMALLEST: f32 = 1.0 / (1 << 22) as f32;

/// Both moments of a tensor in 8 bits.
#[derive(Debug, Clone, PartialEq)]
pub struct Int8Moments {
    /// Fractions of the first and of the second moment, `[n]`.
    codes: [Vec<u8>; 2],
    /// Their scales, `[⌈n / 256⌉]`.
    scales: [Vec<f32>; 2],
}

impl Int8Moments {
    /// Moments of zero for `n` elements.
    pub fn zeros(n: usize) -> Self {
        let blocks = n.div_ceil(MOMENT_BLOCK);
        Self { codes: [vec![0; n], vec![0; n]], scales: [vec![0.0; blocks], vec![0.0; blocks]] }
    }

    /// Codes and scales of the first and of the second moment.
    pub fn parts(&self) -> [(&[u8], &[f32]); 2] {
        let [first, second] = &self.codes;
        let [first_scale, second_scale] = &self.scales;
        [(first, first_scale), (second, second_scale)]
    }

    /// As [`parts`](Self::parts), mutable.
    pub fn parts_mut(&mut self) -> [(&mut [u8], &mut [f32]); 2] {
        let [first, second] = &mut self.codes;
        let [first_scale, second_scale] = &mut self.scales;
        [(first, first_scale), (second, second_scale)]
    }

    /// Both moments in f32.
    pub fn widened(&self) -> [Vec<f32>; 2] {
        [(&SIGNED, 0), (&POSITIVE, 1)].map(|(code, moment)| {
            let mut values = vec![0.0; self.codes[moment].len()];
            let blocks = values.chunks_mut(MOMENT_BLOCK).zip(self.codes[moment].chunks(MOMENT_BLOCK));
            for ((values, codes), &scale) in blocks.zip(&self.scales[moment]) {
                code.read(values, codes, scale);
            }
            values
        })
    }
}

/// One AdamW step on one tensor with moments in 8 bits.
///
/// # Panics
///
/// If the lengths differ or the step is 0.
pub fn adamw_int8(ctx: &Ctx, w: &mut Buf, moments: &mut Int8Moments, grad: &Buf, settings: &AdamW) {
    let n = w.len();
    assert!(moments.codes[0].len() == n && grad.len() == n, "adamw_int8: lengths differ");
    assert!(settings.step > 0, "adamw_int8: steps count from 1");
    let (factors, grad) = (Factors::new(settings), grad.as_slice());
    let w = Disjoint::new(w.as_mut_slice());
    let [first, second] = &mut moments.codes;
    let [first_scale, second_scale] = &mut moments.scales;
    let codes = [Disjoint::new(first), Disjoint::new(second)];
    let scales = [Disjoint::new(first_scale), Disjoint::new(second_scale)];
    let blocks = n.div_ceil(MOMENT_BLOCK);
    ctx.parallel_for(blocks.div_ceil(PIECE), |piece| {
        let mut values = [[0.0; MOMENT_BLOCK]; 2];
        for block in piece * PIECE..blocks.min((piece + 1) * PIECE) {
            let range = block * MOMENT_BLOCK..n.min((block + 1) * MOMENT_BLOCK);
            // SAFETY: a block belongs to one piece.
            let (w, codes, scales) = unsafe {
                (
                    w.slice(range.clone()),
                    codes.each_ref().map(|codes| codes.slice(range.clone())),
                    scales.each_ref().map(|scales| scales.slice(block..block + 1)),
                )
            };
            let [m, v] = values.each_mut().map(|values| &mut values[..range.len()]);
            let [m_codes, v_codes] = codes;
            let [m_scale, v_scale] = scales;
            SIGNED.read(m, m_codes, m_scale[0]);
            POSITIVE.read(v, v_codes, v_scale[0]);
            update(ctx.level(), w, m, v, &grad[range], &factors);
            m_scale[0] = SIGNED.write(m_codes, m);
            v_scale[0] = POSITIVE.write(v_codes, v);
        }
    });
}

static SIGNED: LazyLock<Code> = LazyLock::new(|| Code::new(true));
static POSITIVE: LazyLock<Code> = LazyLock::new(|| Code::new(false));

/// Fractions and their codes.
#[derive(Debug)]
struct Code {
    /// Fraction of each code.
    fractions: [f32; 256],
    /// Upper bounds of the magnitudes that are rounded to a position; infinite for the last one.
    bounds: [f32; 256],
    /// Codes of the positions in ascending order of magnitude, of positive numbers and, from 256 on, of negative ones.
    codes: [u8; 512],
    /// Position of the least magnitude whose bits begin with a key; that of the others is the same or the next one.
    first: Vec<u8>,
}

impl Code {
    /// With a sign, 127 fractions, their negatives, 0 and 1; without one, 254 fractions and 1.
    fn new(signed: bool) -> Self {
        let mut magnitudes = if signed { vec![0.0] } else { Vec::new() };
        for decade in 0..DECADES {
            let count = 1 << (decade + i32::from(!signed));
            let width = 0.9 / f64::from(count);
            let scale = 10_f64.powi(decade + 1 - DECADES);
            magnitudes.extend((0..count).map(|i| (scale * (0.1 + width * (f64::from(i) + 0.5))) as f32));
        }
        magnitudes.push(1.0);
        let positions = magnitudes.len() as u8;
        let mut bounds = [f32::INFINITY; 256];
        for (bound, pair) in bounds.iter_mut().zip(magnitudes.windows(2)) {
            *bound = f32::midpoint(pair[0], pair[1]);
        }
        // A negative number has the code of its magnitude with the highest bit, which alone stands for 1.
        let (mut codes, mut fractions) = ([0; 512], [1.0; 256]);
        for (position, &magnitude) in magnitudes.iter().enumerate().skip(1).filter(|_| signed) {
            let code = (position as u8).min(positions - 2) | 0x80;
            codes[256 + position] = code;
            if position < magnitudes.len() - 1 {
                fractions[usize::from(code)] = -magnitude;
            }
        }
        for (position, &magnitude) in magnitudes.iter().enumerate() {
            codes[position] = position as u8;
            fractions[position] = magnitude;
        }
        let first = (0..=key(1.0))
            .map(|key| {
                let least = f32::from_bits((key + base()) << (f32::MANTISSA_DIGITS - 1 - KEY_BITS));
                bounds.iter().take_while(|&&bound| bound < least).count() as u8
            })
            .collect();
        Self { fractions, bounds, codes, first }
    }

    /// Reads a block.
    fn read(&self, values: &mut [f32], codes: &[u8], scale: f32) {
        for (value, &code) in values.iter_mut().zip(codes) {
            *value = self.fractions[usize::from(code)] * scale;
        }
    }

    /// Writes a block and returns its scale.
    fn write(&self, codes: &mut [u8], values: &[f32]) -> f32 {
        // Maxima of lanes, which do not wait for each other.
        let (full, tail) = values.as_chunks::<LANES>();
        let mut most = [0.0_f32; LANES];
        for values in full {
            most = std::array::from_fn(|lane| most[lane].max(values[lane].abs()));
        }
        let scale = most.iter().chain(tail).fold(0.0_f32, |most, value| most.max(value.abs()));
        if scale == 0.0 {
            codes.fill(0);
            return 0.0;
        }
        let mut fractions = [0.0; MOMENT_BLOCK];
        for (fraction, value) in fractions.iter_mut().zip(values) {
            *fraction = value / scale;
        }
        for (code, &fraction) in codes.iter_mut().zip(&fractions) {
            *code = self.of(fraction);
        }
        scale
    }

    /// Code of the nearest fraction of a number of at most 1.
    fn of(&self, fraction: f32) -> u8 {
        let magnitude = fraction.abs();
        let first = self.first[(key(magnitude) as usize).min(self.first.len() - 1)];
        let position = usize::from(first) + usize::from(magnitude > self.bounds[usize::from(first)]);
        self.codes[position | usize::from(fraction < 0.0) << 8]
    }
}

/// Leading bits of a magnitude, counted from those of the smallest one; 0 for smaller ones.
fn key(magnitude: f32) -> u32 {
    (magnitude.to_bits() >> (f32::MANTISSA_DIGITS - 1 - KEY_BITS)).saturating_sub(base())
}

fn base() -> u32 {
    SMALLEST.to_bits() >> (f32::MANTISSA_DIGITS - 1 - KEY_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The nearest of all fractions, by trying all.
    fn nearest(code: &Code, x: f32) -> f32 {
        let distance = |fraction: &f32| (fraction - x).abs();
        *code.fractions.iter().min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap()
    }

    #[test]
    fn codes_are_those_of_the_nearest_fractions() {
        for (code, signed) in [(&*SIGNED, true), (&*POSITIVE, false)] {
            let mut distinct = code.fractions.to_vec();
            distinct.sort_by(f32::total_cmp);
            distinct.dedup();
            assert_eq!(
                (distinct.len(), distinct[255.min(distinct.len() - 1)]),
                (if signed { 256 } else { 255 }, 1.0)
            );
            let xs = (0..40_000).map(|i| 10_f32.powf(-8.0 * i as f32 / 40_000.0)).chain([0.0]);
            for x in xs.flat_map(|x| if signed { vec![x, -x] } else { vec![x] }) {
                let got = code.fractions[usize::from(code.of(x))];
                assert_eq!((got - x).abs(), (nearest(code, x) - x).abs(), "{x}");
            }
        }
        // The first moment has a zero, the second one does not.
        assert_eq!(SIGNED.fractions[usize::from(SIGNED.of(1e-7))], 0.0);
        assert_eq!(SIGNED.fractions[usize::from(SIGNED.of(-1e-7))], 0.0);
        assert!(POSITIVE.fractions[usize::from(POSITIVE.of(0.0))] > 3e-7);
    }

    #[test]
    fn blocks_have_their_own_scales() {
        let n = 2 * MOMENT_BLOCK + 3;
        let ctx = Ctx::serial();
        let gradient: Vec<f32> = (0..n).map(|i| if i < MOMENT_BLOCK { 1.0 } else { -1e-4 }).collect();
        let mut moments = Int8Moments::zeros(n);
        let settings = AdamW {
            lr: 0.1,
            beta1: 0.9,
            beta2: 0.99,
            eps: 1e-12,
            weight_decay: 0.0,
            step: 1,
            grad_scale: 1.0,
        };
        let mut w = Buf::zeros(n);
        adamw_int8(&ctx, &mut w, &mut moments, &Buf::from_vec(gradient.clone()), &settings);
        // The first step has the size of the learning rate, with the sign of the gradient.
        assert!(w.as_slice().iter().zip(&gradient).all(|(w, g)| (w + 0.1 * g.signum()).abs() < 1e-6));
        let [m, v] = moments.widened();
        for ((m, v), g) in m.iter().zip(&v).zip(&gradient) {
            assert!((m / g - 0.1).abs() < 1e-3 && (v / (g * g) - 0.01).abs() < 1e-4, "{g}: {m} {v}");
        }
    }
}
