//! Products of bf16 numbers compared bitwise with their definitions: widened and in dot pairs on every instruction set, in
//! tiles emulated and, where the processor has them, by AMX; and with plain sums in f64.

use crate::support::{assert_same, contexts, contexts_of_all_orders, noise, sum_of_products};
use proptest::prelude::*;
use rloom_ops::{
    Bf16, Buf, Ctx, Element, Isa, Order, bias_backward, linear, linear_backward_input,
    linear_backward_weight, linear_residual, pack,
};

/// All available contexts, and those with emulated tiles. Reports which paths this processor lacks.
#[expect(clippy::print_stderr, reason = "reports skipped paths")]
fn all_contexts() -> Vec<Ctx> {
    for isa in [Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16, Isa::Amx, Isa::Neon] {
        if !Isa::available().contains(&isa) {
            eprintln!("skipped: {}, which this processor lacks", isa.name());
        }
    }
    contexts_of_all_orders()
}

fn narrow(x: f32) -> f32 {
    Bf16::narrow(x).widen()
}

fn bf16(x: &[f32]) -> Buf<Bf16> {
    Buf::from_vec(x.iter().map(|&x| Bf16::narrow(x)).collect())
}

/// The definitions, with `a` and `b` rounded to bf16.
fn chain(order: Order, start: f32, k: usize, a: impl Fn(usize) -> f32, b: impl Fn(usize) -> f32) -> f32 {
    sum_of_products(order, start, k, |i| narrow(a(i)), |i| narrow(b(i)))
}

fn table(rows: usize, cols: usize, f: impl Fn(usize, usize) -> f32) -> Vec<f32> {
    (0..rows * cols).map(|i| f(i / cols, i % cols)).collect()
}

/// Panics unless `got` is `want` rounded.
fn assert_rounded(got: &Buf<Bf16>, want: &[f32], what: &str) {
    let got: Vec<f32> = got.as_slice().iter().map(|x| x.widen()).collect();
    let want: Vec<f32> = want.iter().map(|&x| narrow(x)).collect();
    assert_same(&Buf::from_vec(got), &want, what);
}

/// Expected results at one shape.
struct Expected {
    product: Vec<f32>,
    dx: Vec<f32>,
    dx_added: Vec<f32>,
    dw: Vec<f32>,
}

struct Case {
    rows: usize,
    n: usize,
    k: usize,
    x: Vec<f32>,
    w: Vec<f32>,
    dy: Vec<f32>,
    bias: Vec<f32>,
    y0: Vec<f32>,
    dx0: Vec<f32>,
    dw0: Vec<f32>,
}

impl Case {
    fn new(rows: usize, n: usize, k: usize) -> Self {
        let (x, w, dy) = (noise(1, rows * k), noise(2, n * k), noise(3, rows * n));
        let (bias, y0) = (noise(4, n), noise(5, rows * n));
        Self { rows, n, k, x, w, dy, bias, y0, dx0: noise(6, rows * k), dw0: noise(7, n * k) }
    }

    fn expected(&self, order: Order) -> Expected {
        let Self { rows, n, k, x, w, dy, dx0, dw0, .. } = self;
        let (rows, n, k) = (*rows, *n, *k);
        let by_x =
            |start: f32, t: usize, i: usize| chain(order, start, n, |j| dy[t * n + j], |j| w[j * k + i]);
        Expected {
            product: table(rows, n, |t, j| chain(order, 0.0, k, |i| x[t * k + i], |i| w[j * k + i])),
            dx: table(rows, k, |t, i| by_x(0.0, t, i)),
            dx_added: table(rows, k, |t, i| by_x(dx0[t * k + i], t, i)),
            dw: table(n, k, |j, i| chain(order, dw0[j * k + i], rows, |t| dy[t * n + j], |t| x[t * k + i])),
        }
    }

    /// Checks the definitions within f32 rounding against plain sums in f64 of the rounded numbers.
    fn check_against_f64(&self, expected: &Expected) {
        let (n, k) = (self.n, self.k);
        for (i, &y) in expected.product.iter().enumerate() {
            let (t, j) = (i / n, i % n);
            let term = |i: usize| f64::from(narrow(self.x[t * k + i])) * f64::from(narrow(self.w[j * k + i]));
            let want: f64 = (0..k).map(term).sum();
            assert!((f64::from(y) - want).abs() <= 1e-6 * (k as f64).sqrt() * 4.0 + 1e-7, "{y} {want}");
        }
    }

    fn check(&self, ctx: &Ctx, e: &Expected) {
        let (rows, n, k) = (self.rows, self.n, self.k);
        let what =
            |name: &str| format!("{name}, {ctx:?}, {}, rows {rows}, n {n}, k {k}", ctx.bf16_products());
        let (x, w, dy) = (bf16(&self.x), Buf::from_slice(&self.w), Buf::from_slice(&self.dy));
        let bias = Buf::from_slice(&self.bias);
        let biased = table(rows, n, |t, j| e.product[t * n + j] + self.bias[j]);
        let packed = pack::<Bf16>(ctx, &w, n, k);

        let mut y = Buf::<f32>::from_slice(&self.y0);
        linear(ctx, &mut y, &x, rows, &packed, None);
        assert_same(&y, &e.product, &what("linear"));
        linear(ctx, &mut y, &x, rows, &packed, Some(&bias));
        assert_same(&y, &biased, &what("bias"));
        for (bias, sums) in [(None, &e.product), (Some(&bias), &biased)] {
            linear_residual(ctx, &mut y, &Buf::from_slice(&self.y0), &x, rows, &packed, bias);
            let want = table(rows, n, |t, j| self.y0[t * n + j] + sums[t * n + j]);
            assert_same(&y, &want, &what("residual"));
        }
        let mut y = Buf::<Bf16>::zeros(rows * n);
        linear(ctx, &mut y, &x, rows, &packed, None);
        assert_rounded(&y, &e.product, &what("linear to bf16"));
        linear(ctx, &mut y, &x, rows, &packed, Some(&bias));
        assert_rounded(&y, &biased, &what("bias to bf16"));

        let mut dx = Buf::from_slice(&self.dx0);
        linear_backward_input::<Bf16, f32, f32>(ctx, &mut dx, &dy, rows, &w, n, k, true);
        assert_same(&dx, &e.dx_added, &what("accumulated input gradient"));
        linear_backward_input::<Bf16, Bf16, f32>(ctx, &mut dx, &bf16(&self.dy), rows, &w, n, k, false);
        assert_same(&dx, &e.dx, &what("input gradient from bf16"));
        let mut dx = Buf::<Bf16>::zeros(rows * k);
        linear_backward_input::<Bf16, f32, Bf16>(ctx, &mut dx, &dy, rows, &w, n, k, false);
        assert_rounded(&dx, &e.dx, &what("input gradient to bf16"));

        let mut dw = Buf::from_slice(&self.dw0);
        linear_backward_weight::<Bf16, f32>(ctx, &mut dw, &dy, &x, rows, n, k, true);
        assert_same(&dw, &e.dw, &what("weight gradient"));
        let mut dw = Buf::from_slice(&self.dw0);
        linear_backward_weight::<Bf16, Bf16>(ctx, &mut dw, &bf16(&self.dy), &x, rows, n, k, true);
        assert_same(&dw, &e.dw, &what("weight gradient from bf16"));
    }
}

fn check_shape(contexts: &[Ctx], rows: usize, n: usize, k: usize) {
    let case = Case::new(rows, n, k);
    for order in Order::ALL {
        let expected = case.expected(order);
        case.check_against_f64(&expected);
        for ctx in contexts.iter().filter(|ctx| ctx.order() == order) {
            case.check(ctx, &expected);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn any_small_shape_follows_the_definition(rows in 0..40_usize, n in 1..100_usize, k in 1..70_usize) {
        check_shape(&all_contexts(), rows, n, k);
    }
}

/// Several passes over the reduced dimension, several pieces, and products that are divided among threads.
#[test]
fn shapes_beyond_one_block_follow_the_definition() {
    let contexts = all_contexts();
    for (rows, n, k) in [(300, 33, 65), (9, 130, 1602), (1, 600, 801), (1700, 17, 36)] {
        check_shape(&contexts, rows, n, k);
    }
    // The portable kernel takes long for the last one.
    let fast: Vec<Ctx> = contexts.into_iter().filter(|ctx| ctx.isa() != Isa::Portable).collect();
    check_shape(&fast, 140, 340, 150);
}

/// One to nine rows use different register tiles; 33 begin a second tile of AMX.
#[test]
fn every_number_of_rows_follows_the_definition() {
    let contexts = all_contexts();
    for rows in (1..=17).chain([31, 32, 33]) {
        check_shape(&contexts, rows, 6 * 16 + 5, 38);
    }
}

#[test]
fn a_row_is_bitwise_identical_alone_and_among_others() {
    let (rows, n, k) = (70, 100, 450);
    let (x, w) = (noise(1, rows * k), Buf::from_vec(noise(2, n * k)));
    for ctx in all_contexts() {
        let packed = pack::<Bf16>(&ctx, &w, n, k);
        let mut all = Buf::<f32>::zeros(rows * n);
        linear(&ctx, &mut all, &bf16(&x), rows, &packed, None);
        for t in 0..rows {
            let mut one = Buf::<f32>::zeros(n);
            linear(&ctx, &mut one, &bf16(&x[t * k..][..k]), 1, &packed, None);
            assert_same(&one, &all.as_slice()[t * n..][..n], &format!("row {t}, {ctx:?}"));
        }
    }
}

/// Results that do not fit in a cache are stored past it, in rows of whole cache lines or not; those of few rows are not.
#[test]
fn results_beyond_the_cache_are_those_of_their_rows() {
    const ROWS: usize = 64;
    for (rows, n, k) in [(12 * ROWS, 1056, 70), (12 * ROWS, 1072, 70), (12 * ROWS, 1056, 1600)] {
        let x = bf16(&noise(1, rows * k));
        let (w, bias, residual) =
            (Buf::from_vec(noise(3, n * k)), Buf::from_vec(noise(4, n)), noise(5, rows * n));
        let w_back = Buf::from_vec(noise(6, k * n));
        for ctx in contexts_of_all_orders().iter().filter(|ctx| ctx.order() == Order::Tiles) {
            let packed = pack::<Bf16>(ctx, &w, n, k);
            let of_rows = |first: usize, rows: usize| {
                let x = Buf::from_slice(&x.as_slice()[first * k..][..rows * k]);
                let residual = Buf::from_slice(&residual[first * n..][..rows * n]);
                let [mut plain, mut biased, mut added, mut dx] =
                    [(); 4].map(|()| Buf::<f32>::zeros(rows * n));
                let mut narrow = Buf::<Bf16>::zeros(rows * n);
                linear(ctx, &mut plain, &x, rows, &packed, None);
                linear(ctx, &mut narrow, &x, rows, &packed, None);
                linear(ctx, &mut biased, &x, rows, &packed, Some(&bias));
                linear_residual(ctx, &mut added, &residual, &x, rows, &packed, None);
                linear_backward_input::<Bf16, Bf16, f32>(ctx, &mut dx, &x, rows, &w_back, k, n, false);
                let narrow = Buf::from_vec(narrow.as_slice().iter().map(|x| x.widen()).collect());
                [plain, narrow, biased, added, dx]
            };
            let all = of_rows(0, rows);
            for first in (0..rows).step_by(ROWS) {
                for (all, few) in all.iter().zip(of_rows(first, ROWS)) {
                    let want = &all.as_slice()[first * n..][..ROWS * n];
                    assert_same(&few, want, &format!("rows from {first} on, n {n}, k {k}, {ctx:?}"));
                }
            }
        }
    }
}

/// A weight gradient in f32 or bf16 that replaces what was there is the one added to zeros, also if it does not fit in a
/// cache, in rows of whole cache lines or not, and in several passes over the tokens.
#[test]
fn a_replaced_weight_gradient_is_the_one_added_to_zeros() {
    fn check<E: Element>(ctx: &Ctx, rows: usize, n: usize, k: usize) {
        let x: Vec<E> = noise(1, rows * k).into_iter().map(E::narrow).collect();
        let (x, dy) = (Buf::from_vec(x), Buf::from_vec(noise(2, rows * n)));
        let (mut added, mut replaced) = (Buf::<f32>::zeros(n * k), Buf::from_vec(vec![f32::NAN; n * k]));
        linear_backward_weight::<E, f32>(ctx, &mut added, &dy, &x, rows, n, k, true);
        linear_backward_weight::<E, f32>(ctx, &mut replaced, &dy, &x, rows, n, k, false);
        assert_same(&replaced, added.as_slice(), &format!("{} rows {rows}, n {n}, k {k}, {ctx:?}", E::NAME));
    }
    for ctx in contexts_of_all_orders() {
        for (rows, n, k) in [(3, 2100, 1024), (4, 2100, 1030), (1700, 20, 33), (0, 20, 33)] {
            check::<f32>(&ctx, rows, n, k);
            check::<Bf16>(&ctx, rows, n, k);
        }
    }
}

/// Numbers whose products are near the smallest normal number, and numbers that count as zero in dot pairs and tiles.
#[test]
fn tiny_numbers_are_identical_everywhere() {
    let (rows, n, k) = (24, 48, 6);
    let tiny = |seed: u64, len: usize| -> Vec<Bf16> {
        let bits = noise(seed, len).into_iter().map(|x| (x.to_bits() >> 3) as u16);
        bits.map(|bits| Bf16::from_bits((0x1f80 + bits % 0x180) | (bits & 0x8000))).collect()
    };
    let mut x = tiny(1, rows * k);
    let w: Vec<f32> = tiny(2, n * k).iter().map(|x| x.widen()).collect();
    // A denormal number, which only raw bits can give.
    x[2 * k..3 * k].fill(Bf16::from_bits(0x0040));
    for order in Order::ALL {
        let mut first: Option<Buf> = None;
        for ctx in all_contexts().into_iter().filter(|ctx| ctx.order() == order) {
            let packed = pack::<Bf16>(&ctx, &Buf::from_slice(&w), n, k);
            let mut y = Buf::<f32>::zeros(rows * n);
            linear(&ctx, &mut y, &Buf::from_slice(&x), rows, &packed, None);
            let flushes = y.as_slice().iter().all(|y| *y == 0.0 || y.is_normal());
            assert_eq!(flushes, order != Order::Widened, "{ctx:?}");
            match &first {
                None => first = Some(y),
                Some(first) => assert_same(&y, first.as_slice(), &format!("{ctx:?}")),
            }
        }
    }
}

#[test]
fn a_bias_gradient_sums_bf16_numbers() {
    // Strips of four vectors and a remainder, no rows, and enough for several threads.
    for (rows, n) in [(37, 21), (9, 64), (5, 100), (3, 7), (450, 230), (0, 5), (0, 130)] {
        let dy = bf16(&noise(1, rows * n));
        let start = noise(2, n);
        let want =
            table(1, n, |_, j| (0..rows).fold(start[j], |sum, t| sum + dy.as_slice()[t * n + j].widen()));
        for ctx in contexts() {
            let mut db = Buf::from_slice(&start);
            bias_backward(&ctx, &mut db, &dy, rows, n);
            assert_same(&db, &want, &format!("bias gradient, {rows} rows, n {n}"));
        }
    }
}

/// The widened order is that of f32, so that its results are those of f32 on the widened numbers.
#[test]
fn widened_products_are_f32_products() {
    for (rows, n, k) in [(1, 40, 200), (7, 70, 418), (50, 33, 66), (200, 100, 900)] {
        let case = Case::new(rows, n, k);
        let [x, w, dy] =
            [&case.x, &case.w, &case.dy].map(|x| Buf::from_vec(x.iter().map(|&x| narrow(x)).collect()));
        let reference = Ctx::new(2).unwrap();
        let mut want = [rows * n, rows * k, n * k].map(Buf::<f32>::zeros);
        linear(&reference, &mut want[0], &x, rows, &pack::<f32>(&reference, &w, n, k), None);
        linear_backward_input::<f32, f32, f32>(&reference, &mut want[1], &dy, rows, &w, n, k, false);
        linear_backward_weight::<f32, f32>(&reference, &mut want[2], &dy, &x, rows, n, k, true);
        for ctx in all_contexts().into_iter().filter(|ctx| ctx.order() == Order::Widened) {
            let mut got = [rows * n, rows * k, n * k].map(Buf::<f32>::zeros);
            linear(&ctx, &mut got[0], &bf16(&case.x), rows, &pack::<Bf16>(&ctx, &w, n, k), None);
            linear_backward_input::<Bf16, f32, f32>(&ctx, &mut got[1], &dy, rows, &w, n, k, false);
            linear_backward_weight::<Bf16, f32>(&ctx, &mut got[2], &dy, &bf16(&case.x), rows, n, k, true);
            for (got, want) in got.iter().zip(&want) {
                assert_same(got, want.as_slice(), &format!("{ctx:?}, rows {rows}, n {n}, k {k}"));
            }
        }
    }
}

#[test]
fn product_methods_are_named() {
    let names: Vec<&str> = all_contexts().iter().map(Ctx::bf16_products).collect();
    for name in ["widened (portable)", "dot pairs (portable)", "tiles (software)"] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
}

#[test]
fn an_order_that_the_processor_lacks_is_an_error() {
    let portable = Ctx::with_isa(1, Isa::Portable).unwrap();
    let error = portable.with_order(Order::Tiles).unwrap_err().to_string();
    assert_eq!(error, "bf16 products in tiles are not available on portable");
    assert_eq!(portable.reproducing(Order::Tiles).bf16_products(), "tiles (software)");
    assert_eq!(portable.with_threads(2).unwrap().order(), Order::Widened);
    let pairs = portable.with_order(Order::DotPairs).unwrap().with_threads(3).unwrap();
    assert_eq!((pairs.order(), pairs.threads()), (Order::DotPairs, 3));
}
