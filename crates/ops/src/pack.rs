//! Weights in the layout of the forward product.

use std::ops::Range;

use crate::caches::Caches;
use crate::disjoint::Disjoint;
use crate::gemm::{Left, Output, Product, Right};
use crate::gemm_prefetch::LINE;
use crate::int8::Int8Panels;
use crate::numbers::Numbers;
use crate::simd::{LANES, Simd, dispatch};
use crate::{Buf, Ctx, Element, Matrix, lanes};

/// Elements below which copying is not worth a second thread.
const SMALL: usize = 100_000;

/// A weight `[n, k]` in the layout of `y = x·Wᵀ`: panels of 16 rows of the weight, the last one zero-padded. A panel is
/// `[k, 16]` in f32; in bf16 it is `[k/2, 16, 2]` with neighbours along `k` adjacent, an odd `k` padded with zero. `E` is the
/// format of `x`, and of the weight unless it is [quantized](Self::quantized).
#[derive(Debug, Clone)]
pub struct Packed<E: Element = f32> {
    n: usize,
    k: usize,
    panels: Panels<E>,
}

/// The panels of a weight.
#[derive(Debug, Clone)]
enum Panels<E: Element> {
    Plain(Buf<E>),
    Int8(Int8Panels),
}

/// A part of the product of a packed weight with contiguous rows of `x`.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    /// Rows of `x`.
    pub(crate) rows: usize,
    /// First panel of the weight.
    pub(crate) panel: usize,
    /// Columns of the result, starting with the first of that panel.
    pub(crate) n: usize,
    /// Elements from one row of the result to the next.
    pub(crate) c_row: usize,
    pub(crate) output: Output<'a>,
}

impl<E: Element> Packed<E> {
    /// Out features: rows of the weight.
    pub fn n(&self) -> usize {
        self.n
    }

    /// In features: columns of the weight.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        match &self.panels {
            Panels::Plain(panels) => panels.len() * size_of::<E>(),
            Panels::Int8(panels) => panels.bytes(),
        }
    }

    /// Elements per panel.
    fn panel(&self) -> usize {
        panel::<E>(self.k)
    }

    /// The weight in 8 bits, with one scale for each row: a quarter of the bytes of f32, half of those of bf16. A number is
    /// rounded by at most 1/254 of the largest magnitude of its row.
    #[must_use]
    pub fn quantized(&self, ctx: &Ctx) -> Self {
        let panels = match &self.panels {
            Panels::Plain(panels) => Int8Panels::quantize(ctx, panels, self.panel(), self.k),
            Panels::Int8(panels) => panels.clone(),
        };
        Self { panels: Panels::Int8(panels), ..*self }
    }

    /// Computes part of `x · Wᵀ` into `c`, on all threads.
    pub(crate) fn multiply<O: Element>(&self, ctx: &Ctx, c: &mut [O], x: &[E], part: &Part<'_>) {
        match &self.panels {
            Panels::Plain(panels) => self.product(panels, x, part).run(ctx, O::numbers_mut(c)),
            Panels::Int8(panels) => panels.multiply(ctx, c, x, part, ctx.threads()),
        }
    }

    /// As [`multiply`](Self::multiply), on the calling thread.
    pub(crate) fn multiply_inline<O: Element>(&self, ctx: &Ctx, c: &mut [O], x: &[E], part: &Part<'_>) {
        match &self.panels {
            Panels::Plain(panels) => self.product(panels, x, part).run_inline(ctx, O::numbers_mut(c)),
            Panels::Int8(panels) => panels.multiply(ctx, c, x, part, 1),
        }
    }

    fn product<'a>(&self, panels: &'a Buf<E>, x: &'a [E], part: &Part<'a>) -> Product<'a> {
        Product {
            m: part.rows,
            n: part.n,
            k: self.k,
            group: E::GROUP,
            a: Left { data: E::numbers(x), row: self.k, step: 1 },
            b: Right::Panels(E::numbers(&panels.as_slice()[part.panel * self.panel()..])),
            c_row: part.c_row,
            output: part.output,
        }
    }
}

/// Elements of a panel of rows of `k` numbers.
fn panel<E: Element>(k: usize) -> usize {
    k.next_multiple_of(E::GROUP) * LANES
}

/// Size of a packed weight `[n, k]` that is not quantized, in bytes: whole panels of whole words.
pub fn packed_bytes<E: Element>(n: usize, k: usize) -> usize {
    n.div_ceil(LANES) * panel::<E>(k) * size_of::<E>()
}

/// Packs the weight `w_nk` for [`linear`](crate::linear), rounded to the format `E`.
///
/// # Panics
/// If `w_nk` does not have `n * k` elements.
pub fn pack<'w, E: Element>(ctx: &Ctx, w_nk: impl Into<Matrix<'w>>, n: usize, k: usize) -> Packed<E> {
    let mut packed = Packed { n, k, panels: Panels::Plain(Buf::default()) };
    repack(ctx, &mut packed, w_nk);
    packed
}

/// Packs another weight of the same shape into the memory of `packed`, which is no longer quantized.
///
/// # Panics
/// If `w_nk` does not have `n * k` elements.
pub fn repack<'w, E: Element>(ctx: &Ctx, packed: &mut Packed<E>, w_nk: impl Into<Matrix<'w>>) {
    let (n, k, size) = (packed.n, packed.k, packed.panel());
    let w = w_nk.into();
    w.check("w_nk", n * k);
    let panels = n.div_ceil(LANES);
    let mut plain = match std::mem::replace(&mut packed.panels, Panels::Plain(Buf::default())) {
        Panels::Plain(own) if own.len() == panels * size => own,
        _ => Buf::zeros(panels * size),
    };
    let streams = size_of_val(plain.as_slice()) > Caches::detect().second / 2;
    let out = Disjoint::new(plain.as_mut_slice());
    let pieces = if n * k < SMALL { 1 } else { panels.min(8 * ctx.threads()) };
    ctx.parallel_for(pieces, |i| {
        for p in panels * i / pieces..panels * (i + 1) / pieces {
            // SAFETY: each panel belongs to one piece.
            let panel = unsafe { out.slice(p * size..(p + 1) * size) };
            let rows = LANES.min(n - p * LANES);
            let range = p * LANES * k..(p * LANES + rows) * k;
            match w.part(range.clone()) {
                Numbers::F32(rows) => pack_panel(ctx.level(), panel, rows, k, streams),
                Numbers::Bf16(_) => ctx.with_scratch(rows * k, |wide| {
                    w.widen(range, wide.as_mut_slice());
                    pack_panel(ctx.level(), panel, wide.as_slice(), k, streams);
                }),
            }
        }
    });
    packed.panels = Panels::Plain(plain);
}

/// Writes a packed weight in rows, `[n, k]`, which take the place of what is in `rows_nk`.
pub fn unpack<E: Element>(ctx: &Ctx, rows_nk: &mut Buf<E>, packed: &Packed<E>) {
    rows_nk.resize(packed.n * packed.k);
    packed.unpack_rows(ctx, 0..packed.n, rows_nk.as_mut_slice());
}

impl<E: Element> Packed<E> {
    /// The weight in rows, `[n, k]`.
    pub fn rows(&self) -> Buf {
        let mut rows = Buf::zeros(self.n * self.k);
        match &self.panels {
            Panels::Plain(_) => {
                let mut narrow = Buf::default();
                unpack(&Ctx::serial(), &mut narrow, self);
                Matrix::from(&narrow).copy_to(rows.as_mut_slice());
            }
            Panels::Int8(panels) => {
                for (row, to) in rows.as_mut_slice().chunks_exact_mut(self.k.max(1)).enumerate() {
                    panels.read_row(row, to);
                }
            }
        }
        rows
    }

    /// Writes some rows, the first of which is the first of a panel.
    pub(crate) fn unpack_rows(&self, ctx: &Ctx, rows: Range<usize>, to: &mut [E]) {
        let (k, size, first) = (self.k, self.panel(), rows.start / LANES);
        assert!(
            rows.start.is_multiple_of(LANES) && rows.end <= self.n && to.len() == rows.len() * k,
            "no place for the rows {rows:?} of {}",
            self.n
        );
        let panels = rows.len().div_ceil(LANES);
        let out = Disjoint::new(to);
        let pieces = if rows.len() * k < SMALL { 1 } else { panels.min(8 * ctx.threads()) };
        ctx.parallel_for(pieces, |i| {
            for p in panels * i / pieces..panels * (i + 1) / pieces {
                // SAFETY: a panel belongs to one piece.
                let to = unsafe { out.slice(p * LANES * k..rows.len().min((p + 1) * LANES) * k) };
                match &self.panels {
                    Panels::Plain(panels) => {
                        let panel = &panels.as_slice()[(first + p) * size..][..size];
                        unpack_panel(ctx.level(), to, panel, k);
                    }
                    Panels::Int8(panels) => ctx.with_scratch(k, |row| {
                        for (i, to) in to.chunks_exact_mut(k.max(1)).enumerate() {
                            panels.read_row((first + p) * LANES + i, row.as_mut_slice());
                            lanes::narrow(ctx.level(), to, row.as_slice());
                        }
                    }),
                }
            }
        });
    }
}

/// Packs up to 16 rows of `k` elements into a panel, past the caches if `streams` and the panel starts with a cache line.
#[inline(always)]
fn pack_panel_generic<S: Simd, E: Element>(s: S, panel: &mut [E], rows: &[f32], k: usize, streams: bool) {
    const MAX_LINE: usize = 2 * LANES;
    let depth = LANES * E::GROUP;
    let squares = if rows.len() == LANES * k { k / depth } else { 0 };
    assert!(panel.len() >= squares * LANES * depth && MAX_LINE >= depth);
    let streams = streams && panel.as_ptr().addr().is_multiple_of(LINE);
    let mut square = [s.zero(); LANES];
    for c in 0..squares {
        for (lane, row) in square.iter_mut().enumerate() {
            let mut line = [E::default(); MAX_LINE];
            for (to, from) in
                line[..depth].chunks_exact_mut(LANES).zip(rows[lane * k + c * depth..].chunks_exact(LANES))
            {
                lanes::store(s, to, s.load(from));
            }
            // SAFETY: the line has 16 words of any format.
            *row = unsafe { s.load_ptr(line.as_ptr().cast()) };
        }
        s.transpose(&mut square);
        for (i, column) in square.iter().enumerate() {
            let at = (c * LANES + i) * LANES * E::GROUP;
            // SAFETY: the panel has 16 words, a whole cache line if it streams, for each of the steps of all squares.
            unsafe {
                let to = panel.as_mut_ptr().add(at).cast();
                if streams { s.stream_ptr(to, *column) } else { s.store_ptr(to, *column) }
            }
        }
    }
    if streams {
        s.end_streams();
    }
    let done = squares * depth;
    for (lane, row) in rows.chunks_exact(k.max(1)).enumerate() {
        let steps = panel[done * LANES..].chunks_exact_mut(LANES * E::GROUP);
        for (out, x) in steps.zip(row[done..].chunks(E::GROUP)) {
            for (out, &x) in out[lane * E::GROUP..].iter_mut().zip(x) {
                *out = E::narrow(x);
            }
        }
    }
}

dispatch! {
    /// Packs one panel.
    fn pack_panel[E: Element](panel: &mut [E], rows: &[f32], k: usize, streams: bool) = pack_panel_generic;
}

/// Writes the rows of a panel, at most 16, of `k` elements each.
#[inline(always)]
fn unpack_panel_generic<S: Simd, E: Element>(s: S, rows: &mut [E], panel: &[E], k: usize) {
    let depth = LANES * E::GROUP;
    let squares = if rows.len() == LANES * k { k / depth } else { 0 };
    assert!(panel.len() >= squares * LANES * depth);
    let mut square = [s.zero(); LANES];
    for c in 0..squares {
        for (i, column) in square.iter_mut().enumerate() {
            // SAFETY: the panel has 16 words for each of the steps of all squares.
            *column = unsafe { s.load_ptr(panel.as_ptr().add((c * LANES + i) * depth).cast()) };
        }
        s.transpose(&mut square);
        for (lane, row) in square.iter().enumerate() {
            // SAFETY: each of the 16 rows has `depth` elements, 16 words, of each square.
            unsafe { s.store_ptr(rows.as_mut_ptr().add(lane * k + c * depth).cast(), *row) }
        }
    }
    let done = squares * depth;
    for (lane, row) in rows.chunks_exact_mut(k.max(1)).enumerate() {
        let steps = panel[done * LANES..].chunks_exact(LANES * E::GROUP);
        for (to, step) in row[done..].chunks_mut(E::GROUP).zip(steps) {
            to.copy_from_slice(&step[lane * E::GROUP..][..to.len()]);
        }
    }
}

dispatch! {
    /// Unpacks one panel.
    fn unpack_panel[E: Element](rows: &mut [E], panel: &[E], k: usize) = unpack_panel_generic;
}
