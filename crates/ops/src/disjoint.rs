//! Writing one buffer from several threads.

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice that is handed out in pieces to the calls of one `parallel_for`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Disjoint<'a> {
    at: *mut f32,
    len: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: a `Disjoint` gives access only through `slice`, whose caller vouches that no two pieces overlap.
unsafe impl Send for Disjoint<'_> {}
// SAFETY: as above.
unsafe impl Sync for Disjoint<'_> {}

impl<'a> Disjoint<'a> {
    pub(crate) fn new(whole: &'a mut [f32]) -> Self {
        Self { at: whole.as_mut_ptr(), len: whole.len(), borrow: PhantomData }
    }

    /// The elements of `range`.
    ///
    /// # Safety
    /// No element of `range` may be reached by anyone else while the result lives.
    pub(crate) unsafe fn slice(&self, range: Range<usize>) -> &'a mut [f32] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: the range is inside the borrowed slice, and exclusive by the caller's word.
        unsafe { std::slice::from_raw_parts_mut(self.at.add(range.start), range.len()) }
    }

    /// Number of elements of the whole.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The first element, for kernels that walk a matrix with a stride.
    pub(crate) fn as_mut_ptr(&self) -> *mut f32 {
        self.at
    }
}
