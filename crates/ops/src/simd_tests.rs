use super::*;
use crate::Isa;
use crate::isa::Level;

fn exp_all_generic<S: Simd>(s: S, y: &mut [f32], x: &[f32]) {
    for (y, x) in y.chunks_mut(LANES).zip(x.chunks(LANES)) {
        let v = s.exp(s.load_tail(x));
        s.store_tail(y, v);
    }
}

dispatch! {
    fn exp_all(y: &mut [f32], x: &[f32]) = exp_all_generic;
}

fn levels() -> Vec<Level> {
    Isa::available().into_iter().filter_map(Level::of).collect()
}

fn same(a: &[f32], b: &[f32]) -> bool {
    a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

#[test]
fn exp_is_within_two_ulp_and_equal_everywhere() {
    let x: Vec<f32> = (0..200_003).map(|i| -105.0 + i as f32 * (194.5 / 200_003.0)).collect();
    let mut first = vec![0.0; x.len()];
    exp_all(levels()[0], &mut first, &x);
    let mut worst = 0.0_f64;
    for (&x, &y) in x.iter().zip(&first) {
        let exact = f64::from(x).exp();
        if exact > f64::from(f32::MAX) {
            assert!(y.is_infinite() || y == f32::MAX, "exp({x}) = {y}");
            continue;
        }
        // Below the normal range the unit in the last place no longer shrinks.
        let ulp = 2.0_f64.powi((exact.log2().floor() as i32 - 23).max(-149));
        worst = worst.max((f64::from(y) - exact).abs() / ulp);
    }
    assert!(worst <= 2.0, "{worst} ulp");
    for level in levels() {
        let mut y = vec![0.0; x.len()];
        exp_all(level, &mut y, &x);
        assert!(same(&y, &first), "{:?}", level.isa());
    }
}

#[test]
fn exp_of_the_extremes() {
    let x = [f32::NEG_INFINITY, f32::INFINITY, f32::NAN, 0.0, -0.0, -1000.0, 1000.0, f32::MIN, f32::MAX];
    for level in levels() {
        let mut y = [7.0; 9];
        exp_all(level, &mut y, &x);
        assert_eq!((y[0], y[1], y[3], y[4]), (0.0, f32::INFINITY, 1.0, 1.0), "{:?}", level.isa());
        assert_eq!((y[5], y[6], y[7], y[8]), (0.0, f32::INFINITY, 0.0, f32::INFINITY));
        assert!(y[2].is_nan());
    }
}

/// Every operation once, on two vectors; results are appended.
#[inline(always)]
fn all_generic<S: Simd>(s: S, out: &mut Vec<f32>, a: &[f32], b: &[f32]) {
    let (x, y) = (s.load(a), s.load(b));
    let results = [
        s.add(x, y),
        s.sub(x, y),
        s.mul(x, y),
        s.div(x, y),
        s.sqrt(s.mul(x, x)),
        s.fma(x, y, x),
        s.max(x, y),
        s.min(x, y),
        s.select_gt(x, y, s.splat(1.0), s.splat(2.0)),
        s.xor(x, y),
        s.add_i32(x, y),
        s.sub_i32(x, y),
        s.half_i32(x),
        s.to_exponent(x),
        s.neg(x),
        s.zero(),
        s.sigmoid(x),
        s.sigmoid(s.mul(x, s.splat(0.01))),
    ];
    for v in results {
        out.extend(s.to_array(v));
    }
    for n in 0..=LANES {
        out.extend(s.to_array(s.load_tail(&a[..n])));
        out.extend(s.to_array(s.load_tail_or(&a[..n], -3.0)));
        let mut stored = [9.0; LANES + 1];
        s.store_tail(&mut stored[..n], x);
        out.extend(stored);
    }
    out.push(s.sum(x));
    out.push(s.max_lane(x));
    let square: [S::V; LANES] = std::array::from_fn(|i| s.mul(x, s.splat(1.0 + i as f32)));
    out.extend(s.to_array(s.sums(&square)));
    moved_generic(s, out, x, y);
}

/// Every operation that moves or rounds numbers.
#[inline(always)]
fn moved_generic<S: Simd>(s: S, out: &mut Vec<f32>, x: S::V, y: S::V) {
    const STRIDE: usize = 6;
    let rows: [S::V; LANES] = std::array::from_fn(|i| s.add(x, s.splat(i as f32)));
    let mut columns = rows;
    s.transpose(&mut columns);
    for v in columns {
        out.extend(s.to_array(v));
    }
    // Columns that overlap, as those of a tile of fewer rows.
    let mut stored = [9.0; LANES * STRIDE + LANES];
    let eight: [S::V; LANES / 2] = std::array::from_fn(|i| rows[i]);
    // SAFETY: there is room for the last column and for half a vector.
    unsafe {
        s.store_columns(&eight, stored.as_mut_ptr(), STRIDE);
        s.store_half(stored.as_mut_ptr().add(LANES * STRIDE + LANES / 2), y);
    }
    out.extend(stored);
    let words = s.pair(x, y);
    for v in [words, s.narrow(x, y), s.rounded(x), s.low_half(words), s.high_half(words)] {
        out.extend(s.to_array(v));
    }
    let (words, mut numbers) = (s.to_array(words), [0_u16; LANES]);
    // SAFETY: the arrays have 16 words and 16 numbers.
    unsafe {
        s.store_bf16(numbers.as_mut_ptr(), y);
        for v in [s.load_low(words.as_ptr()), s.load_high(words.as_ptr()), s.load_bf16(numbers.as_ptr())] {
            out.extend(s.to_array(v));
        }
    }
}

dispatch! {
    fn all(out: &mut Vec<f32>, a: &[f32], b: &[f32]) = all_generic;
}

#[test]
fn every_operation_is_bitwise_identical_on_all_instruction_sets() {
    let special =
        [0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, 1e-40, -1e-40, f32::MAX, 1.5e-20, 3.0];
    for round in 0..50_usize {
        let pick = |i: usize| {
            let h = (i + 1).wrapping_mul(0x9e37_79b9).wrapping_add(round * 0x85eb_ca6b);
            if (h >> 8).is_multiple_of(3) {
                special[h % special.len()]
            } else {
                (h % 20011) as f32 * 0.37 - 3700.0
            }
        };
        let a: Vec<f32> = (0..LANES).map(pick).collect();
        let b: Vec<f32> = (0..LANES).map(|i| pick(i * 7 + 100)).collect();
        let mut want = Vec::new();
        all(levels()[0], &mut want, &a, &b);
        for level in levels() {
            let mut got = Vec::new();
            all(level, &mut got, &a, &b);
            for (i, (g, w)) in got.iter().zip(&want).enumerate() {
                // The bits of a NaN are unspecified.
                assert!(
                    g.to_bits() == w.to_bits() || g.is_nan() && w.is_nan(),
                    "{:?} {i}: {g} {w}",
                    level.isa()
                );
            }
        }
    }
}

#[test]
fn max_and_select_take_the_second_argument_at_nan() {
    for level in levels() {
        let mut out = Vec::new();
        all(level, &mut out, &[f32::NAN; LANES], &[5.0; LANES]);
        assert_eq!(out[6 * LANES..9 * LANES], [[5.0; 2 * LANES].as_slice(), &[2.0; LANES]].concat());
        let mut out = Vec::new();
        all(level, &mut out, &[5.0; LANES], &[f32::NAN; LANES]);
        assert!(out[6 * LANES..8 * LANES].iter().all(|x| x.is_nan()));
    }
}

fn narrow_all_generic<S: Simd>(s: S, y: &mut [crate::Bf16], x: &[f32]) {
    for (y, x) in y.chunks_mut(LANES).zip(x.chunks(LANES)) {
        crate::lanes::store(s, y, s.load_tail(x));
    }
}

dispatch! {
    fn narrow_all(y: &mut [crate::Bf16], x: &[f32]) = narrow_all_generic;
}

/// Rounding to bf16 is to nearest, ties to even, as in the `half` crate, except for denormal numbers, and identical on
/// all instruction sets.
#[test]
fn narrowing_is_identical_on_all_instruction_sets() {
    let mut x: Vec<f32> = (0..=u16::MAX)
        .flat_map(|high| {
            [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff].map(|low| f32::from_bits(u32::from(high) << 16 | low))
        })
        .collect();
    x.extend([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN_POSITIVE, -0.0]);
    for level in levels() {
        let mut y = vec![crate::Bf16::ZERO; x.len()];
        narrow_all(level, &mut y, &x);
        for (&x, &y) in x.iter().zip(&y) {
            let flushed = if x.abs() < f32::MIN_POSITIVE { 0.0_f32.copysign(x) } else { x };
            let expected = crate::Bf16::from_f32(flushed);
            let same = if x.is_nan() { y.is_nan() } else { y.to_bits() == expected.to_bits() };
            assert!(same, "{level:?}: {x:e} gives {y:?}, not {expected:?}");
        }
    }
}

fn integers_generic<S: Simd>(s: S, y: &mut [f32], x: &[i8]) {
    for (y, x) in y.chunks_exact_mut(LANES).zip(x.chunks_exact(LANES)) {
        // SAFETY: there are 16 integers.
        s.store(y, unsafe { s.load_i8(x.as_ptr()) });
    }
}

dispatch! {
    fn integers(y: &mut [f32], x: &[i8]) = integers_generic;
}

#[test]
fn integers_are_widened_exactly() {
    let x: Vec<i8> = (i8::MIN..=i8::MAX).collect();
    let want: Vec<f32> = x.iter().map(|&x| f32::from(x)).collect();
    for level in levels() {
        let mut y = vec![f32::NAN; x.len()];
        integers(level, &mut y, &x);
        assert!(same(&y, &want), "{:?}", level.isa());
    }
}
