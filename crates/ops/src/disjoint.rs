//! Concurrent writes to disjoint parts of one buffer.

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice whose disjoint parts are given to the calls of one `parallel_for`.
#[derive(Debug)]
pub struct Disjoint<'a, T = f32> {
    at: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// Not derived: that would require `T: Clone`.
impl<T> Clone for Disjoint<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Disjoint<'_, T> {}

// SAFETY: a `Disjoint` gives access only through `slice`, whose caller guarantees that no two parts overlap.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(crate) fn new(whole: &'a mut [T]) -> Self {
        Self { at: whole.as_mut_ptr(), len: whole.len(), borrow: PhantomData }
    }

    /// The elements of `range`.
    ///
    /// # Safety
    /// No other reference to an element of `range` may exist while the result lives.
    pub(crate) unsafe fn slice(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: the range is inside the borrowed slice, and exclusive access is guaranteed by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.at.add(range.start), range.len()) }
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Address of the first element, for kernels that walk a matrix with a stride.
    pub(crate) fn as_mut_ptr(&self) -> *mut T {
        self.at
    }
}
