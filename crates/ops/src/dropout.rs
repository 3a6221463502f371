//! Dropout of the inputs of a low-rank addition (Srivastava et al., 2014, "Dropout: a simple way to prevent neural networks from
//! overfitting").
//!
//! Masks are counter-based: an element's fate depends on its row's key, the product and its column alone, so that the forward pass,
//! its recomputation and the backward pass agree, whatever shares the call.

use std::ops::Range;

use crate::{Buf, Ctx, Element};

/// Elements that share a random word.
const GROUP: usize = 4;
/// Rows of a piece of work.
const ROWS: usize = 32;

/// Mask of the input of a product's low-rank addition.
#[derive(Debug, Clone, Copy)]
pub struct Dropout<'a> {
    /// Random key of each row.
    pub keys: &'a [u64],
    /// Number of the product: each has a mask of its own.
    pub product: u64,
    /// Probability that an element is dropped, below 1; the others are divided by `1 − rate`.
    pub rate: f32,
}

impl Dropout<'_> {
    /// Masks `x`, `[rows, columns]`: a part of the input.
    pub(crate) fn mask<E: Element>(&self, x: &mut [E], rows: Range<usize>, columns: Range<usize>) {
        let limit = (f64::from(self.rate) * f64::from(1 << 16)).round() as u64;
        let scale = (1.0 / (1.0 - f64::from(self.rate))) as f32;
        for (row, line) in rows.zip(x.chunks_exact_mut(columns.len().max(1))) {
            let key = mix(self.keys[row] ^ mix(self.product));
            let mut word = 0;
            for (column, x) in columns.clone().zip(line) {
                if column % GROUP == 0 || column == columns.start {
                    word = mix(key.wrapping_add((column / GROUP) as u64));
                }
                let bits = (word >> (16 * (column % GROUP))) & 0xffff;
                *x = if bits < limit { E::default() } else { E::narrow(x.widen() * scale) };
            }
        }
    }

    /// Masks a whole input, `[rows, k]`.
    ///
    /// # Panics
    /// If there are not as many rows as keys.
    pub fn mask_all<E: Element>(&self, ctx: &Ctx, x: &mut Buf<E>, k: usize) {
        let rows = self.keys.len();
        assert_eq!(x.len(), rows * k, "the input has another number of rows than of keys");
        let x = crate::disjoint::Disjoint::new(x.as_mut_slice());
        ctx.parallel_for(rows.div_ceil(ROWS), |piece| {
            let rows = piece * ROWS..rows.min((piece + 1) * ROWS);
            // SAFETY: a row belongs to one piece.
            let part = unsafe { x.slice(rows.start * k..rows.end * k) };
            self.mask(part, rows, 0..k);
        });
    }
}

/// A random word of a counter (Steele et al., 2014, "Fast splittable pseudorandom number generators").
fn mix(counter: u64) -> u64 {
    let mut z = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(dropout: &Dropout<'_>, rows: Range<usize>, columns: Range<usize>) -> Vec<f32> {
        let mut x = vec![1.0; rows.len() * columns.len()];
        dropout.mask(&mut x, rows, columns);
        x
    }

    #[test]
    fn a_mask_depends_on_row_product_and_column_alone() {
        let keys: Vec<u64> = (0..200).map(|i| i * 7919).collect();
        let dropout = Dropout { keys: &keys, product: 3, rate: 0.3 };
        let (rows, k) = (200, 128);
        let whole = masked(&dropout, 0..rows, 0..k);
        for (row, column) in [(0, 0), (7, 5), (199, 127), (31, 66)] {
            let alone = masked(&dropout, row..row + 1, column..column + 1);
            assert_eq!(alone[0], whole[row * k + column], "{row} {column}");
        }
        let mut buf = Buf::from_vec(vec![1.0; rows * k]);
        dropout.mask_all(&Ctx::new(3).unwrap(), &mut buf, k);
        assert_eq!(buf.as_slice(), whole);
        let dropped = whole.iter().filter(|x| **x == 0.0).count() as f64 / whole.len() as f64;
        assert!((dropped - 0.3).abs() < 0.01, "{dropped}");
        assert!(whole.iter().all(|x| *x == 0.0 || (x - 1.0 / 0.7).abs() < 1e-6));
        let other = masked(&Dropout { product: 4, ..dropout }, 0..rows, 0..k);
        let both = whole.iter().zip(&other).filter(|(a, b)| **a == 0.0 && **b == 0.0).count() as f64;
        assert!((both / whole.len() as f64 - 0.09).abs() < 0.01, "masks of two products are not independent");
    }
}
