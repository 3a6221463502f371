//! Packed weights of 8 bits: symmetric, with one scale for each row of the weight.
//!
//! A scale is the row's largest magnitude divided by 127, and a number becomes the nearest multiple of it. One scale for each row
//! lets a product multiply its finished sums once. Scales of groups of 128 would multiply within the sums; their error is a
//! sixth to a quarter smaller for normally distributed weights, and equal for those of a small trained model.

use crate::disjoint::Disjoint;
use crate::numbers::Numbers;
use crate::simd::{LANES, Simd, dispatch};
use crate::{Buf, Ctx, Element};

/// The largest integer; the smallest is its negative.
const LARGEST: f32 = 127.0;
/// Integers in an `f32` of the memory.
pub(crate) const INTEGERS: usize = size_of::<f32>();
/// Panels of a piece of work.
const PIECE: usize = 8;

/// Panels `[k, 16]` of integers, and the scales of their columns.
#[derive(Debug, Clone)]
pub(crate) struct Int8Panels {
    k: usize,
    /// The integers, [`INTEGERS`] in each number.
    words: Buf,
    scales: Buf,
}

impl Int8Panels {
    /// Quantizes panels of `panel` elements that hold columns of `k`.
    pub(crate) fn quantize<E: Element>(ctx: &Ctx, panels: &Buf<E>, panel: usize, k: usize) -> Self {
        let count = panels.len().checked_div(panel).unwrap_or(0);
        let mut this =
            Self { k, words: Buf::zeros(count * k * LANES / INTEGERS), scales: Buf::zeros(count * LANES) };
        let words = Disjoint::new(this.words.as_mut_slice());
        let scales = Disjoint::new(this.scales.as_mut_slice());
        ctx.parallel_for(count.div_ceil(PIECE), |piece| {
            for p in piece * PIECE..count.min((piece + 1) * PIECE) {
                let size = k * LANES / INTEGERS;
                // SAFETY: a panel belongs to one piece.
                let (words, scales) = unsafe {
                    (words.slice(p * size..(p + 1) * size), scales.slice(p * LANES..(p + 1) * LANES))
                };
                quantize_panel(ctx.level(), words, scales, &panels.as_slice()[p * panel..(p + 1) * panel], k);
            }
        });
        this
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        (self.words.len() + self.scales.len()) * size_of::<f32>()
    }

    /// Elements of a column.
    pub(crate) fn k(&self) -> usize {
        self.k
    }

    /// The integers of all panels from `panel` on.
    pub(crate) fn integers(&self, panel: usize) -> &[i8] {
        let words = &self.words.as_slice()[panel * self.k * LANES / INTEGERS..];
        // SAFETY: bytes of the numbers, every pattern of which is an integer.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len() * INTEGERS) }
    }

    /// The scales of all columns from panel `panel` on.
    pub(crate) fn scales(&self, panel: usize) -> &[f32] {
        &self.scales.as_slice()[panel * LANES..]
    }

    /// A row of the weight as numbers.
    pub(crate) fn read_row(&self, row: usize, to: &mut [f32]) {
        let (panel, lane) = (row / LANES, row % LANES);
        let scale = self.scales(panel)[lane];
        for (to, integers) in to.iter_mut().zip(self.integers(panel).chunks_exact(LANES)) {
            *to = f32::from(integers[lane]) * scale;
        }
    }
}

dispatch! {
    /// Quantizes a panel. A column with a number that is not finite gets a scale that is not a number.
    fn quantize_panel[E: Element](words: &mut [f32], scales: &mut [f32], panel: &[E], k: usize) = quantize_panel_generic;
}

#[inline(always)]
fn quantize_panel_generic<S: Simd, E: Element>(
    s: S,
    words: &mut [f32],
    scales: &mut [f32],
    panel: &[E],
    k: usize,
) {
    let integers = LANES / INTEGERS;
    let (mut largest, mut poison) = (s.zero(), s.zero());
    for i in 0..k {
        let x = column_vector(s, panel, i);
        largest = s.max(s.max(x, s.neg(x)), largest);
        poison = s.fma(x, s.zero(), poison);
    }
    let scale = s.div(largest, s.splat(LARGEST));
    // Magnitudes without a scale that is above zero become zero.
    let divisor = s.select_gt(scale, s.zero(), scale, s.splat(1.0));
    s.store(scales, s.add(scale, poison));
    for (i, words) in words.chunks_exact_mut(integers).take(k).enumerate() {
        // The quotient exceeds the largest integer by rounding alone, or by much where the scale has few bits.
        let quotient = s.div(column_vector(s, panel, i), divisor);
        let quotient = s.max(s.min(quotient, s.splat(LARGEST)), s.splat(-LARGEST));
        let bytes = s.to_array(s.round_to_low_bits(quotient)).map(|lane| lane.to_bits() as u8);
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(INTEGERS)) {
            *word = f32::from_bits(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
        }
    }
}

/// Element `i` of the 16 columns of a panel.
#[inline(always)]
fn column_vector<S: Simd, E: Element>(s: S, panel: &[E], i: usize) -> S::V {
    match E::numbers(panel) {
        Numbers::F32(panel) => s.load(&panel[i * LANES..]),
        Numbers::Bf16(panel) => {
            let words = &panel[i / 2 * 2 * LANES..][..2 * LANES];
            let words = words.as_ptr().cast::<std::ffi::c_void>().cast::<f32>();
            // SAFETY: 16 words of two numbers.
            unsafe { if i.is_multiple_of(2) { s.load_low(words) } else { s.load_high(words) } }
        }
    }
}
