//! Scratch memory of attention by formula.

use super::words::{BLOCK, Layout};
use super::{AttentionShape, backward, forward};
use crate::{Element, Order};

/// Upper limit of the scratch memory of one thread, in bytes, for a segment that sees `keys` keys. The backward pass over all
/// queries needs most: copies of keys and values in blocks of columns, of keys in blocks of rows, and the sums of their
/// gradients, which all grow with the number of keys. Widened bf16 is copied as f32.
pub(crate) fn scratch_bytes<E: Element>(order: Order, shape: AttentionShape, keys: usize) -> usize {
    if order == Order::DotPairs { of_words::<E>(shape, keys) } else { of_words::<f32>(shape, keys) }
}

/// [`scratch_bytes`] with words of format `F`.
fn of_words<F: Element>(shape: AttentionShape, keys: usize) -> usize {
    let (layout, e) = (Layout::of::<F, F>(shape.head_dim), shape.head_dim);
    let blocks = keys.div_ceil(BLOCK);
    let backward = backward::most_scratch_floats(layout, keys);
    let forward = blocks * (layout.columns() + layout.rows()) + forward::scratch_floats(keys, e);
    backward.max(forward) * size_of::<f32>()
}

/// Upper limit of the scratch memory of one thread, in bytes, for rows that see at most `keys` keys of the cache, which are read in
/// place.
pub(crate) fn cached_scratch_bytes(shape: AttentionShape, keys: usize) -> usize {
    forward::scratch_floats(forward::span(shape, keys), shape.head_dim) * size_of::<f32>()
}

#[cfg(test)]
mod tests {
    use super::super::Segments;
    use super::super::backward::Gradients;
    use super::super::pieces::{self, Backward};
    use super::*;
    use crate::Bf16;
    use crate::disjoint::Disjoint;

    /// The formula is what a thread takes for a whole sequence, and at least what it takes for parts of one, with and without a
    /// window.
    #[test]
    fn the_formula_is_what_attention_takes() {
        fn check<F: Element>(keys: usize, window: Option<usize>) {
            let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 36, window };
            let formula = of_words::<F>(shape, keys);
            let (mut dq, mut dk, mut dv) = ([0.0], [0.0], [0.0]);
            let all = Gradients {
                dq: Some(Disjoint::new(&mut dq)),
                dk_dv: Some((Disjoint::new(&mut dk), Disjoint::new(&mut dv))),
            };
            let starts = [0, keys];
            let of = |piece| backward::scratch_floats::<F>(piece, shape, all) * size_of::<f32>();
            let Backward::Whole(whole) = pieces::backward(Segments::unshared(&starts), shape, 1) else {
                panic!("cut for one thread")
            };
            assert_eq!(of(&whole[0]), formula);
            let parts = pieces::backward(Segments::unshared(&starts), shape, 16);
            if let Backward::Parts { by_query, by_key } = parts {
                let parts = by_query.iter().chain(&by_key).map(of).max().unwrap();
                assert!(parts <= formula);
            }
        }
        for window in [None, Some(300)] {
            for keys in [100, 5000] {
                check::<f32>(keys, window);
                check::<Bf16>(keys, window);
            }
        }
    }
}
