//! Slices whose format is known at run time: what the matrix products take, so that their blocking is built once.

use half::bf16;

use crate::disjoint::Disjoint;
use crate::gemm_kernel::Cells;

/// Numbers of one of the two formats, to be read.
#[derive(Debug, Clone, Copy)]
pub enum Numbers<'a> {
    /// See [`Element`](crate::Element) for f32.
    F32(&'a [f32]),
    /// Two bytes each.
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

/// Numbers of one of the two formats, to be written from several threads.
#[derive(Debug, Clone, Copy)]
pub enum Place<'a> {
    /// See [`Element`](crate::Element) for f32.
    F32(Disjoint<'a, f32>),
    /// Two bytes each.
    Bf16(Disjoint<'a, bf16>),
}

impl Place<'_> {
    pub(crate) fn len(self) -> usize {
        match self {
            Self::F32(y) => y.len(),
            Self::Bf16(y) => y.len(),
        }
    }

    pub(crate) fn cells(self) -> Cells {
        match self {
            Self::F32(y) => Cells::F32(y.as_mut_ptr()),
            Self::Bf16(y) => Cells::Bf16(y.as_mut_ptr()),
        }
    }
}

/// What the products are built from: the arithmetic that a storage format stands for, and its slices as [`Numbers`].
pub trait Typed: Sized {
    /// Numbers that lie side by side along the reduced dimension in a panel of a packed weight.
    const GROUP: usize;
    /// The slice with its format.
    fn numbers(x: &[Self]) -> Numbers<'_>;
    /// The slice with its format.
    fn place(y: &mut [Self]) -> Place<'_>;
}

impl Typed for f32 {
    const GROUP: usize = 1;

    fn numbers(x: &[Self]) -> Numbers<'_> {
        Numbers::F32(x)
    }
    fn place(y: &mut [Self]) -> Place<'_> {
        Place::F32(Disjoint::new(y))
    }
}

impl Typed for bf16 {
    const GROUP: usize = 2;

    fn numbers(x: &[Self]) -> Numbers<'_> {
        Numbers::Bf16(x)
    }
    fn place(y: &mut [Self]) -> Place<'_> {
        Place::Bf16(Disjoint::new(y))
    }
}
