//! Helpers shared by several test files.
use rloom_ops::{Buf, Ctx, Isa};

/// Every instruction set of this processor with 1, 2 and 3 threads.
#[expect(clippy::unwrap_used, reason = "tests may panic")]
pub(crate) fn contexts() -> Vec<Ctx> {
    let all = Isa::available().into_iter();
    all.flat_map(|isa| (1..=3).map(move |threads| Ctx::with_isa(threads, isa).unwrap())).collect()
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
