//! Reductions and element-wise operations on whole tensors.

use crate::{Buf, Ctx, partition};

/// `y = 0`.
pub fn zero(ctx: &Ctx, y: &mut Buf) {
    partition::for_rows(ctx, y.as_mut_slice(), 1, |_, _, y| y.fill(0.0));
}

/// `y *= s`.
pub fn scale(ctx: &Ctx, y: &mut Buf, s: f32) {
    partition::for_rows(ctx, y.as_mut_slice(), 1, |_, _, y| {
        for y in y {
            *y *= s;
        }
    });
}

/// Floats per partial sum. Fixed, so that results do not depend on the thread count.
const CHUNK: usize = 16 * 1024;

/// `Σ x²` in f64: squares of f32 are exact there. Each chunk of a fixed size is summed in 16 strided lanes, and the
/// chunks are added in ascending order.
pub fn sum_squares(ctx: &Ctx, x: &Buf) -> f64 {
    let x = x.as_slice();
    let chunks = x.len().div_ceil(CHUNK);
    let sums: Vec<std::sync::atomic::AtomicU64> = (0..chunks).map(|_| 0.into()).collect();
    ctx.parallel_for(chunks, |chunk| {
        let x = &x[chunk * CHUNK..x.len().min((chunk + 1) * CHUNK)];
        sums[chunk].store(chunk_squares(x).to_bits(), std::sync::atomic::Ordering::Relaxed);
    });
    sums.into_iter().map(|s| f64::from_bits(s.into_inner())).sum()
}

fn chunk_squares(x: &[f32]) -> f64 {
    let mut lanes = [0.0f64; 16];
    let (whole, tail) = x.as_chunks::<16>();
    for x in whole {
        for l in 0..16 {
            lanes[l] += f64::from(x[l]) * f64::from(x[l]);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(tail) {
        *lane += f64::from(*x) * f64::from(*x);
    }
    let mut width = 8;
    while width > 0 {
        for l in 0..width {
            lanes[l] += lanes[l + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// True if no element is infinite or NaN.
pub fn all_finite(ctx: &Ctx, x: &Buf) -> bool {
    let x = x.as_slice();
    let bad = std::sync::atomic::AtomicBool::new(false);
    ctx.parallel_for(x.len().div_ceil(CHUNK), |chunk| {
        let x = &x[chunk * CHUNK..x.len().min((chunk + 1) * CHUNK)];
        // A fold instead of `all` keeps the loop free of branches.
        if x.iter().fold(false, |bad, x| bad | !x.is_finite()) {
            bad.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    });
    !bad.into_inner()
}
