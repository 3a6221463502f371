//! Slices whose format is known at run time, so that the blocking of the matrix products is compiled once.

use half::bf16;

use crate::disjoint::Disjoint;
use crate::gemm_kernel::Cells;

/// A slice of numbers in one of the two formats.
#[derive(Debug, Clone, Copy)]
pub enum Numbers<'a> {
    /// f32 numbers.
    F32(&'a [f32]),
    /// bf16 numbers.
    Bf16(&'a [bf16]),
}

impl Numbers<'_> {
    pub(crate) fn len(self) -> usize {
        match self {
            Self::F32(x) => x.len(),
            Self::Bf16(x) => x.len(),
        }
    }
}

/// A mutable slice of numbers in one of the two formats, written from several threads.
#[derive(Debug, Clone, Copy)]
pub enum NumbersMut<'a> {
    /// f32 numbers.
    F32(Disjoint<'a, f32>),
    /// bf16 numbers.
    Bf16(Disjoint<'a, bf16>),
}

impl NumbersMut<'_> {
    pub(crate) fn len(self) -> usize {
        match self {
            Self::F32(y) => y.len(),
            Self::Bf16(y) => y.len(),
        }
    }

    /// Size in bytes.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::F32(y) => y.len() * size_of::<f32>(),
            Self::Bf16(y) => y.len() * size_of::<bf16>(),
        }
    }

    pub(crate) fn cells(self) -> Cells {
        match self {
            Self::F32(y) => Cells::F32(y.as_mut_ptr()),
            Self::Bf16(y) => Cells::Bf16(y.as_mut_ptr()),
        }
    }
}

/// Format-dependent properties of the matrix products: the arithmetic of a storage format, and its slices as
/// [`Numbers`].
pub trait Typed: Sized {
    /// Numbers per word: neighbours along the reduced dimension in a panel of a packed weight.
    const GROUP: usize;
    /// The slice with its format.
    fn numbers(x: &[Self]) -> Numbers<'_>;
    /// The mutable slice with its format.
    fn numbers_mut(y: &mut [Self]) -> NumbersMut<'_>;
}

impl Typed for f32 {
    const GROUP: usize = 1;

    fn numbers(x: &[Self]) -> Numbers<'_> {
        Numbers::F32(x)
    }
    fn numbers_mut(y: &mut [Self]) -> NumbersMut<'_> {
        NumbersMut::F32(Disjoint::new(y))
    }
}

impl Typed for bf16 {
    const GROUP: usize = 2;

    fn numbers(x: &[Self]) -> Numbers<'_> {
        Numbers::Bf16(x)
    }
    fn numbers_mut(y: &mut [Self]) -> NumbersMut<'_> {
        NumbersMut::Bf16(Disjoint::new(y))
    }
}
