//! Matrices in rows, whose format is known at run time: f32, or bf16 in a frozen model.

use std::ops::Range;

use half::bf16;

use crate::numbers::{Numbers, Typed};
use crate::{Buf, Element};

/// The rows of a weight, for the backward passes and the embedding.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a>(pub(crate) Numbers<'a>);

impl<'a, E: Element> From<&'a Buf<E>> for Matrix<'a> {
    fn from(rows: &'a Buf<E>) -> Self {
        Self(E::numbers(rows.as_slice()))
    }
}

impl<'a> Matrix<'a> {
    /// Number of elements.
    pub fn len(self) -> usize {
        self.0.len()
    }

    /// True if there are no elements.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Converts all elements to f32.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn copy_to(self, to: &mut [f32]) {
        self.widen(0..self.len(), to);
    }

    /// Some of the elements.
    pub(crate) fn part(self, range: Range<usize>) -> Numbers<'a> {
        match self.0 {
            Numbers::F32(x) => f32::numbers(&x[range]),
            Numbers::Bf16(x) => bf16::numbers(&x[range]),
        }
    }

    /// Converts some of the elements to f32.
    pub(crate) fn widen(self, range: Range<usize>, to: &mut [f32]) {
        match self.0 {
            Numbers::F32(x) => to.copy_from_slice(&x[range]),
            Numbers::Bf16(x) => {
                assert_eq!(to.len(), range.len(), "both slices must have the same length");
                for (to, x) in to.iter_mut().zip(&x[range]) {
                    *to = x.widen();
                }
            }
        }
    }

    /// Panics with the name of the matrix if it does not have the `want` elements of its shape.
    pub(crate) fn check(self, name: &str, want: usize) {
        assert!(self.len() == want, "{name} has {} elements, its shape needs {want}", self.len());
    }
}

/// True if all numbers are bf16 numbers already.
pub fn is_bf16(x: &Buf) -> bool {
    x.as_slice().iter().all(|&x| bf16::narrow(x).widen() == x)
}

/// Rounds a matrix to bf16.
///
/// # Panics
/// If the buffers differ in length.
pub fn round_to_bf16(to: &mut Buf<bf16>, from: &Buf) {
    assert_eq!(to.len(), from.len(), "round_to_bf16: both buffers must have the same length");
    for (to, from) in to.as_mut_slice().iter_mut().zip(from.as_slice()) {
        *to = bf16::narrow(*from);
    }
}
