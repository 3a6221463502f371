//! Helpers shared by several test files.
use rloom_ops::{Buf, Ctx, Isa, Order};

/// Every instruction set of this processor with 1, 2 and 3 threads.
#[expect(clippy::unwrap_used, reason = "tests may panic")]
pub(crate) fn contexts() -> Vec<Ctx> {
    let all = Isa::available().into_iter();
    all.flat_map(|isa| (1..=3).map(move |threads| Ctx::with_isa(threads, isa).unwrap())).collect()
}

/// Every instruction set with each of its orders of bf16 products, and emulated tiles.
#[expect(clippy::unwrap_used, reason = "tests may panic")]
pub(crate) fn contexts_of_all_orders() -> Vec<Ctx> {
    let own = contexts()
        .into_iter()
        .flat_map(|ctx| ctx.isa().orders().map(move |order| ctx.with_order(order).unwrap()));
    own.chain((1..=3).map(|threads| Ctx::with_software_tiles(threads).unwrap())).collect()
}

/// The sum of products of bf16 numbers as an order defines it, from `start`; both factors are zero from `k` on.
pub(crate) fn sum_of_products(
    order: Order,
    start: f32,
    k: usize,
    a: impl Fn(usize) -> f32,
    b: impl Fn(usize) -> f32,
) -> f32 {
    let flush = |x: f32| if x.abs() < f32::MIN_POSITIVE { 0.0_f32.copysign(x) } else { x };
    let at = |f: &dyn Fn(usize) -> f32, i: usize| if i < k { f(i) } else { 0.0 };
    let term = |sum: f32, i: usize| flush(flush(at(&a, i)).mul_add(flush(at(&b, i)), flush(sum)));
    match order {
        Order::Widened => (0..k.next_multiple_of(2)).fold(start, |sum, i| at(&a, i).mul_add(at(&b, i), sum)),
        Order::DotPairs => {
            (0..k.div_ceil(2)).fold(start, |sum, pair| term(term(sum, 2 * pair + 1), 2 * pair))
        }
        Order::Tiles => (0..k.div_ceil(32)).fold(start, |sum, block| {
            let of = |first: usize| (0..16).fold(0.0, |sum, i| term(sum, 32 * block + 2 * i + first));
            flush(flush(sum) + flush(of(0) + of(1)))
        }),
    }
}

/// `len` numbers between −1 and 1, determined by the seed and the index.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / 8_388_608.0 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// Panics unless both are bitwise identical.
pub(crate) fn assert_same(got: &Buf, want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.as_slice().iter().zip(want).enumerate() {
        assert!(g.to_bits() == w.to_bits(), "{what}: element {i} is {g:e}, not {w:e}");
    }
}
