//! Row gathers and scatters: the embedding table, and selecting rows of activations. Shapes: V rows in the table, T
//! tokens, D columns.

use crate::disjoint::Disjoint;
use crate::{Buf, Ctx, Element, Matrix, partition};

/// `x[t] = table[tokens[t]]`.
///
/// # Panics
///
/// If a length does not fit or a token is outside the table.
pub fn embedding<'w>(ctx: &Ctx, x_td: &mut Buf, table_vd: impl Into<Matrix<'w>>, tokens: &[u32], d: usize) {
    assert_eq!(x_td.len(), tokens.len() * d, "embedding: x must be [tokens, d]");
    let table = table_vd.into();
    partition::for_rows(ctx, x_td.as_mut_slice(), d, |first, count, x| {
        for (row, x) in x.chunks_exact_mut(d).enumerate().take(count) {
            let at = tokens[first + row] as usize * d;
            table.widen(at..at + d, x);
        }
    });
}

/// `dtable[tokens[t]] += dx[t]`, tokens ascending.
///
/// # Panics
///
/// If a length does not fit or a token is outside the table.
pub fn embedding_backward(ctx: &Ctx, dtable_vd: &mut Buf, dx_td: &Buf, tokens: &[u32], d: usize) {
    assert_eq!(dx_td.len(), tokens.len() * d, "embedding_backward: dx must be [tokens, d]");
    add_rows(ctx, dtable_vd, dx_td, tokens, d);
}

/// `y[i] = x[rows[i]]`; rows may repeat.
///
/// # Panics
///
/// If a length does not fit or a row is outside `x`.
pub fn gather_rows<E: Element>(ctx: &Ctx, y: &mut Buf<E>, x: &Buf<E>, rows: &[u32], d: usize) {
    assert_eq!(y.len(), rows.len() * d, "gather_rows: y must be [rows, d]");
    let x = x.as_slice();
    partition::for_rows(ctx, y.as_mut_slice(), d, |first, count, y| {
        for row in 0..count {
            y[row * d..][..d].copy_from_slice(&x[rows[first + row] as usize * d..][..d]);
        }
    });
}

/// Backward pass of [`gather_rows`]: sets `y` to zero, then `y[rows[i]] += x[i]`, ascending.
///
/// # Panics
///
/// If a length does not fit or a row is outside `y`.
pub fn scatter_rows(ctx: &Ctx, y: &mut Buf, x: &Buf, rows: &[u32], d: usize) {
    assert_eq!(x.len(), rows.len() * d, "scatter_rows: x must be [rows, d]");
    partition::for_rows(ctx, y.as_mut_slice(), d, |_, _, y| y.fill(0.0));
    add_rows(ctx, y, x, rows, d);
}

/// Adds to the result of [`scatter_rows`]: `y[rows[i]] += x[i]`, ascending. Threads divide the columns, so that duplicate rows are summed in order.
///
/// # Panics
///
/// If a length does not fit or a row is outside `y`.
pub fn add_rows(ctx: &Ctx, y: &mut Buf, x: &Buf, rows: &[u32], d: usize) {
    assert_eq!(x.len(), rows.len() * d, "add_rows: x must be [rows, d]");
    if rows.is_empty() || d == 0 {
        return;
    }
    let x = x.as_slice();
    let y = Disjoint::new(y.as_mut_slice());
    partition::for_columns(ctx, d, rows.len(), |first, count| {
        for (x, &row) in x.chunks_exact(d).zip(rows) {
            // SAFETY: each piece writes its own columns, one row at a time.
            let y = unsafe { y.slice(row as usize * d + first..row as usize * d + first + count) };
            for (y, x) in y.iter_mut().zip(&x[first..][..count]) {
                *y += x;
            }
        }
    });
}
