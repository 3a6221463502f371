//! The divergence of two heads' distributions over the vocabulary, forward and backward, without materialising `[t, v]`
//! for either.
//!
//! A student's distribution p and a teacher's q come from the logits of two heads over the same vocabulary, both divided
//! by one temperature. If one head has more rows, both distributions are those of the tokens that both have. With `z` the scaled logits of the student and D the divergence of a row:
//!
//! | divergence | D | ∂D/∂z_i |
//! | --- | --- | --- |
//! | forward KL | Σ q·(ln q − ln p) | p_i − q_i |
//! | reverse KL | Σ p·(ln p − ln q) | p_i·(ln p_i − ln q_i − D) |
//! | Jensen–Shannon, β | β·Σ q·ln(q/m) + (1−β)·K, with m = β·q + (1−β)·p and K = Σ p·ln(p/m) | (1−β)·p_i·(ln(p_i/m_i) − K) |
//!
//! Equal logits give exactly 0, in value and derivative. The sums of a block of columns run in lanes; blocks are joined in
//! ascending order, in f64. The logits of both heads are recomputed in the backward pass.

use std::ops::Range;

use crate::disjoint::Disjoint;
use crate::gemm::{check, piece};
use crate::head::{Head, HeadInput, HeadLowRank, LogitGrad, TILE_ROWS, block_columns};
use crate::head_scores::{scores, statistics_rows};
use crate::logsumexp::BLOCK;
use crate::simd::{LANES, Simd, dispatch};
use crate::{Buf, Ctx, Element, Matrix, Weight};

/// A divergence of a student's distribution p from a teacher's distribution q.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Divergence {
    /// KL(q ‖ p).
    ForwardKl,
    /// KL(p ‖ q).
    ReverseKl,
    /// β·KL(q ‖ m) + (1 − β)·KL(p ‖ m) with m = β·q + (1 − β)·p, for β between 0 and 1.
    JensenShannon {
        /// β.
        beta: f32,
    },
}

/// A head and the final hidden states of some rows.
#[derive(Debug)]
pub struct HeadRows<'a, E: Element> {
    /// Final hidden states, `[rows, d]`.
    pub h_td: &'a Buf<E>,
    /// Weight, `[v, d]`.
    pub w: Weight<'a, E>,
}

#[expect(clippy::expl_impl_clone_on_copy, reason = "a derived implementation needs an element that is Clone")]
impl<E: Element> Clone for HeadRows<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E: Element> Copy for HeadRows<'_, E> {}

/// Divergence of each row, and what the backward pass needs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DivergenceScores {
    /// Divergence of each row, in nats.
    pub divergence: Vec<f32>,
    /// D for the reverse KL, K for Jensen–Shannon.
    moment: Vec<f32>,
    student_lse: Vec<f32>,
    teacher_lse: Vec<f32>,
}

/// The distributions of one row.
#[derive(Debug, Clone, Copy)]
struct RowPair {
    inv_temperature: f32,
    student_lse: f32,
    teacher_lse: f32,
}

/// Log-probabilities of one vector of columns, and m of Jensen–Shannon.
#[inline(always)]
fn log_probabilities<S: Simd>(s: S, student: S::V, teacher: S::V, row: RowPair) -> (S::V, S::V) {
    let scale = s.splat(row.inv_temperature);
    let of_student = s.sub(s.mul(student, scale), s.splat(row.student_lse));
    (of_student, s.sub(s.mul(teacher, scale), s.splat(row.teacher_lse)))
}

/// Natural logarithm of x / m in each lane, both at least the smallest normal number; exactly 0 where x = m.
///
/// In f64, so that the result does not depend on the platform's `logf`.
#[inline(always)]
fn ln_ratio<S: Simd>(s: S, x: S::V, m: S::V) -> S::V {
    let least = s.splat(f32::MIN_POSITIVE);
    let ratio = s.div(s.max(least, x), s.max(least, m));
    let mut lanes = s.to_array(ratio);
    for lane in &mut lanes {
        *lane = f64::from(*lane).ln() as f32;
    }
    s.load(&lanes)
}

/// m = β·q + (1 − β)·p: exactly p where p = q.
#[inline(always)]
fn mixture<S: Simd>(s: S, p: S::V, q: S::V, beta: f32) -> S::V {
    s.fma(s.splat(1.0 - beta), s.sub(p, q), q)
}

/// Terms of the divergence and of the moment of one vector of columns.
#[inline(always)]
fn terms<S: Simd>(s: S, student: S::V, teacher: S::V, row: RowPair, kind: Divergence) -> (S::V, S::V) {
    let (lp, lq) = log_probabilities(s, student, teacher, row);
    match kind {
        Divergence::ForwardKl => (s.mul(s.exp(lq), s.sub(lq, lp)), s.zero()),
        Divergence::ReverseKl => {
            let term = s.mul(s.exp(lp), s.sub(lp, lq));
            (term, term)
        }
        Divergence::JensenShannon { beta } => {
            let (p, q) = (s.exp(lp), s.exp(lq));
            let m = mixture(s, p, q, beta);
            let (of_student, of_teacher) = (s.mul(p, ln_ratio(s, p, m)), s.mul(q, ln_ratio(s, q, m)));
            (s.fma(s.splat(beta), of_teacher, s.mul(s.splat(1.0 - beta), of_student)), of_student)
        }
    }
}

/// Sums of the terms of a row over one block of columns.
#[inline(always)]
fn block_sums_generic<S: Simd>(
    s: S,
    student: &[f32],
    teacher: &[f32],
    row: RowPair,
    kind: Divergence,
) -> [f32; 2] {
    let (full, tail) = student.as_chunks::<LANES>();
    let (full_teacher, tail_teacher) = teacher.as_chunks::<LANES>();
    let (mut divergence, mut moment) = (s.zero(), s.zero());
    for (x, y) in full.iter().zip(full_teacher) {
        let (a, b) = terms(s, s.load(x), s.load(y), row, kind);
        divergence = s.add(divergence, a);
        moment = s.add(moment, b);
    }
    if !tail.is_empty() {
        let (a, b) = terms(s, s.load_tail(tail), s.load_tail(tail_teacher), row, kind);
        // Lanes without a column must not contribute.
        let (mut a, mut b) = (s.to_array(a), s.to_array(b));
        a[tail.len()..].fill(0.0);
        b[tail.len()..].fill(0.0);
        divergence = s.add(divergence, s.load(&a));
        moment = s.add(moment, s.load(&b));
    }
    [s.sum(divergence), s.sum(moment)]
}

dispatch! {
    fn block_sums(student: &[f32], teacher: &[f32], row: RowPair, kind: Divergence) -> [f32; 2] = block_sums_generic;
}

/// Coefficient and moment of one row in the backward pass.
#[derive(Debug, Clone, Copy)]
struct RowSlope {
    row: RowPair,
    moment: f32,
    d_divergence: f32,
}

/// Derivatives with respect to one vector of the student's logits.
#[inline(always)]
fn slopes<S: Simd>(s: S, student: S::V, teacher: S::V, of: RowSlope, kind: Divergence) -> S::V {
    let (lp, lq) = log_probabilities(s, student, teacher, of.row);
    let scale = of.d_divergence * of.row.inv_temperature;
    match kind {
        Divergence::ForwardKl => s.mul(s.sub(s.exp(lp), s.exp(lq)), s.splat(scale)),
        Divergence::ReverseKl => {
            let by_z = s.sub(s.sub(lp, lq), s.splat(of.moment));
            s.mul(s.mul(s.exp(lp), by_z), s.splat(scale))
        }
        Divergence::JensenShannon { beta } => {
            let (p, q) = (s.exp(lp), s.exp(lq));
            let by_z = s.sub(ln_ratio(s, p, mixture(s, p, q, beta)), s.splat(of.moment));
            s.mul(s.mul(p, by_z), s.splat(scale * (1.0 - beta)))
        }
    }
}

/// Derivatives with respect to the student's logits of one row, written over them.
#[inline(always)]
fn d_logits_generic<S: Simd>(s: S, student: &mut [f32], teacher: &[f32], of: RowSlope, kind: Divergence) {
    let (full, tail) = student.as_chunks_mut::<LANES>();
    let (full_teacher, tail_teacher) = teacher.as_chunks::<LANES>();
    for (x, y) in full.iter_mut().zip(full_teacher) {
        let v = slopes(s, s.load(x), s.load(y), of, kind);
        s.store(x, v);
    }
    let v = slopes(s, s.load_tail(tail), s.load_tail(tail_teacher), of, kind);
    s.store_tail(tail, v);
}

dispatch! {
    fn d_logits(student: &mut [f32], teacher: &[f32], of: RowSlope, kind: Divergence) = d_logits_generic;
}

impl<E: Element> HeadRows<'_, E> {
    /// Passes the logits' factors to `f`, for the first `columns` tokens.
    fn with_input<R>(
        &self,
        ctx: &Ctx,
        rows: usize,
        columns: usize,
        f: impl FnOnce(HeadInput<'_, E>) -> R,
    ) -> R {
        self.w.with_product(ctx, self.h_td, rows, |addition| {
            f(HeadInput { h: self.h_td.as_slice(), w: self.w.packed, addition, columns })
        })
    }
}

/// Checks both heads; returns the number of tokens that they share.
fn shared_tokens<E: Element>(student: HeadRows<'_, E>, teacher: HeadRows<'_, E>, rows: usize) -> usize {
    for (what, head) in [("student.h_td", student), ("teacher.h_td", teacher)] {
        head.w.check();
        check(what, head.h_td, rows * head.w.k());
    }
    student.w.n().min(teacher.w.n())
}

/// Divergence of the student's distribution from the teacher's in each row, at the inverse temperature of both.
///
/// # Panics
/// If a buffer does not have the size of its shape.
pub fn head_divergence<E: Element>(
    ctx: &Ctx,
    student: HeadRows<'_, E>,
    teacher: HeadRows<'_, E>,
    rows: usize,
    inv_temperature: f32,
    kind: Divergence,
) -> DivergenceScores {
    let columns = shared_tokens(student, teacher, rows);
    student.with_input(ctx, rows, columns, |student| {
        teacher.with_input(ctx, rows, columns, |teacher| {
            divergence(ctx, &student, &teacher, rows, inv_temperature, kind)
        })
    })
}

fn divergence<E: Element>(
    ctx: &Ctx,
    student: &HeadInput<'_, E>,
    teacher: &HeadInput<'_, E>,
    rows: usize,
    inv_temperature: f32,
    kind: Divergence,
) -> DivergenceScores {
    let temperatures = vec![inv_temperature; rows];
    let softmax = |input: &HeadInput<'_, E>| scores(ctx, input, rows, 0, &[], &temperatures);
    let (of_student, of_teacher) = (softmax(student), softmax(teacher));
    let pair = |t: usize| RowPair {
        inv_temperature,
        student_lse: of_student.lse[t],
        teacher_lse: of_teacher.lse[t],
    };
    let v = student.columns;
    let blocks = v.div_ceil(BLOCK);
    let chunk = statistics_rows(blocks, size_of::<[f32; 2]>());
    let mut all = vec![[0.0; 2]; rows.min(chunk) * blocks];
    let [mut divergence, mut moment] = [(); 2].map(|()| Vec::with_capacity(rows));
    for start in (0..rows).step_by(chunk) {
        let count = chunk.min(rows - start);
        let tiles = count.div_ceil(TILE_ROWS);
        let sums = Disjoint::new(&mut all[..count * blocks]);
        // Neighbouring pieces share a block of the weights, so that it is read from memory once.
        ctx.parallel_for(tiles * blocks, |i| {
            let (b, tile) = (i / tiles, piece(count, tiles, i % tiles));
            let columns = block_columns(b, v);
            let (width, size) = (columns.len(), tile.len() * columns.len());
            ctx.with_scratch(2 * size, |scratch| {
                let (own, other) = scratch.as_mut_slice().split_at_mut(size);
                let rows = start + tile.start..start + tile.end;
                student.tile(ctx, own, rows.clone(), columns.clone());
                teacher.tile(ctx, other, rows, columns);
                let lines = own.chunks_exact(width).zip(other.chunks_exact(width));
                for (t, (own, other)) in tile.zip(lines) {
                    // SAFETY: a row and block belong to one piece.
                    let sums = unsafe { sums.slice(t * blocks + b..t * blocks + b + 1) };
                    sums[0] = block_sums(ctx.level(), own, other, pair(start + t), kind);
                }
            });
        });
        for row in all[..count * blocks].chunks_exact(blocks.max(1)) {
            let sum = |which: usize| row.iter().map(|sums| f64::from(sums[which])).sum::<f64>() as f32;
            divergence.push(sum(0));
            moment.push(sum(1));
        }
    }
    DivergenceScores { divergence, moment, student_lse: of_student.lse, teacher_lse: of_teacher.lse }
}

/// Backward pass of [`head_divergence`]: from the derivative with respect to each row's divergence to the student's `dh_td`
/// (overwritten) and `dw_vd` (accumulated, rows ascending; none for a frozen head). `scores` is the result of
/// `head_divergence`, `student.w` the packed form of `w_vd`. `w_vd` and `low_rank` as in [`head_backward`](crate::head_backward).
///
/// # Panics
/// If a buffer or slice does not have the size of its shape.
pub fn head_divergence_backward<'w, E: Element>(
    ctx: &Ctx,
    dh_td: &mut Buf,
    dw_vd: impl Into<Option<&'w mut Buf>>,
    student: HeadRows<'_, E>,
    w_vd: impl Into<Option<Matrix<'w>>>,
    teacher: HeadRows<'_, E>,
    rows: usize,
    inv_temperature: f32,
    kind: Divergence,
    scores: &DivergenceScores,
    d_divergence: &[f32],
    low_rank: Option<HeadLowRank<'_>>,
) {
    let columns = shared_tokens(student, teacher, rows);
    let lengths = [scores.moment.len(), scores.student_lse.len(), d_divergence.len()];
    assert!(lengths == [rows; 3], "scores and derivatives of {lengths:?} rows for {rows} rows");
    let head = Head { h_td: student.h_td, rows, w_vd: w_vd.into(), w: student.w, columns };
    teacher.with_input(ctx, rows, columns, |teacher| {
        let grad = DivergenceGrad { teacher, inv_temperature, kind, scores, d_divergence };
        head.backward(ctx, dh_td, dw_vd.into(), low_rank, &grad);
    });
}

/// Derivatives of a divergence.
struct DivergenceGrad<'a, E: Element> {
    teacher: HeadInput<'a, E>,
    inv_temperature: f32,
    kind: Divergence,
    scores: &'a DivergenceScores,
    d_divergence: &'a [f32],
}

impl<E: Element> LogitGrad for DivergenceGrad<'_, E> {
    fn tile(&self, ctx: &Ctx, logits: &mut [f32], rows: Range<usize>, b: usize) {
        let columns = block_columns(b, self.teacher.columns);
        let width = columns.len();
        ctx.with_scratch(logits.len(), |scratch| {
            self.teacher.tile(ctx, scratch.as_mut_slice(), rows.clone(), columns);
            let lines = logits.chunks_exact_mut(width).zip(scratch.as_slice().chunks_exact(width));
            for (t, (own, teacher)) in rows.zip(lines) {
                let row = RowPair {
                    inv_temperature: self.inv_temperature,
                    student_lse: self.scores.student_lse[t],
                    teacher_lse: self.scores.teacher_lse[t],
                };
                let of = RowSlope { row, moment: self.scores.moment[t], d_divergence: self.d_divergence[t] };
                d_logits(ctx.level(), own, teacher, of, self.kind);
            }
        });
    }
}
