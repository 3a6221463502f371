//! Numbers, contexts and comparisons for the tests.

use rloom_ops::{Buf, Ctx, Element, Isa, Order, linear_backward_swiglu};

/// `n` numbers around zero, determined by the seed.
pub(crate) fn numbers(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
    let mut uniform = || {
        // splitmix64
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..n).map(|_| uniform() + uniform() + uniform()).collect()
}

pub(crate) fn buf(seed: u64, n: usize) -> Buf {
    Buf::from_vec(numbers(seed, n))
}

/// SwiGLU of rows `[gate | up]`, and its gradient for `dy`: the feed-forward layer's fused backward pass with an
/// identity as last product.
pub(crate) fn swiglu<E: Element>(
    ctx: &Ctx,
    gate_up: &Buf<E>,
    dy: &Buf,
    rows: usize,
    f: usize,
) -> (Buf<E>, Buf<E>) {
    let mut identity = Buf::zeros(f * f);
    identity.as_mut_slice().iter_mut().step_by(f + 1).for_each(|x| *x = 1.0);
    let (mut y, mut d_gate_up) = (Buf::zeros(rows * f), gate_up.clone());
    linear_backward_swiglu(ctx, &mut d_gate_up, &mut y, dy, rows, &identity, f, f);
    (y, d_gate_up)
}

/// Rounds to the nearest numbers of a format.
pub(crate) fn narrow<E: Element>(x: &Buf) -> Buf<E> {
    Buf::from_vec(x.as_slice().iter().map(|&x| E::narrow(x)).collect())
}

pub(crate) fn widen<E: Element>(x: &Buf<E>) -> Buf {
    Buf::from_vec(x.as_slice().iter().map(|x| x.widen()).collect())
}

pub(crate) fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

/// Every instruction set of this machine, on one, two and three threads.
pub(crate) fn contexts() -> Vec<Ctx> {
    let threads = [1, 2, 3];
    let of_isas =
        Isa::available().into_iter().flat_map(|isa| threads.map(|n| Ctx::with_isa(n, isa).unwrap()));
    of_isas.chain([Ctx::simulated(64, || 0.0)]).collect()
}

/// Compares differences relative to the largest magnitude of the expected values. Where these cancel to zero, the
/// rounding of their terms remains; hence a minimum magnitude, for inputs around one.
#[track_caller]
pub(crate) fn assert_close(what: &str, got: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len(), "{what}: length");
    let size = expected.iter().fold(0.1f64, |m, x| m.max(x.abs()));
    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
        assert!((f64::from(*g) - e).abs() <= tolerance * size, "{what}[{i}]: got {g}, expected {e}");
    }
}

pub(crate) fn bits(x: &Buf) -> Vec<u32> {
    x.as_slice().iter().map(|x| x.to_bits()).collect()
}

/// Orders of bf16 products in attention.
pub(crate) const ORDERS: [Order; 2] = [Order::Widened, Order::DotPairs];

/// Asserts that `f` gives the same bits in every context, in each order of bf16 products.
#[track_caller]
pub(crate) fn assert_same_bits_everywhere(what: &str, f: impl Fn(&Ctx) -> Vec<Buf>) {
    for order in ORDERS {
        let all = |ctx: &Ctx| -> Vec<_> { f(&ctx.with_order(order).unwrap()).iter().map(bits).collect() };
        let expected = all(&Ctx::serial());
        for ctx in contexts() {
            assert!(all(&ctx) == expected, "{what}: other bits in {ctx:?}, {order:?}");
        }
    }
}

/// The central difference of `f` along every coordinate of `x`.
pub(crate) fn finite_differences(x: &[f64], f: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let step = 1e-5;
    let mut x = x.to_vec();
    (0..x.len())
        .map(|i| {
            let at = x[i];
            x[i] = at + step;
            let up = f(&x);
            x[i] = at - step;
            let down = f(&x);
            x[i] = at;
            (up - down) / (2.0 * step)
        })
        .collect()
}

/// `Σ a · b`: converts an output into a loss whose gradient is `b`.
pub(crate) fn inner(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
