//! Owned storage for tensors.

use std::fmt;

/// One cache line, so that a vector of lines is aligned to 64 bytes.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; LINE]);

const LINE: usize = 16;

/// Owned, 64-byte-aligned `f32` storage: the handle every operation takes. A `Buf` has a length and no shape; the
/// shape is an argument of the operation.
#[derive(Clone, Default)]
pub struct Buf {
    lines: Vec<Line>,
    len: usize,
}

impl Buf {
    /// `len` zeros. The system hands zeroed pages out as they are first touched, so a large buffer that is used in part
    /// takes memory in part.
    pub fn zeros(len: usize) -> Self {
        let lines = Box::<[Line]>::new_zeroed_slice(len.div_ceil(LINE));
        // SAFETY: a `Line` is floats, and a float whose bytes are all zero is 0.0.
        let lines = unsafe { lines.assume_init() };
        Self { lines: lines.into_vec(), len }
    }

    /// A copy of `values`.
    pub fn from_slice(values: &[f32]) -> Self {
        let mut buf = Self::zeros(values.len());
        buf.as_mut_slice().copy_from_slice(values);
        buf
    }

    /// The values of `values`, moved into aligned storage.
    #[expect(clippy::needless_pass_by_value, reason = "the caller hands its values over")]
    pub fn from_vec(values: Vec<f32>) -> Self {
        Self::from_slice(&values)
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements.
    pub fn as_slice(&self) -> &[f32] {
        // SAFETY: `Line` is `repr(C)` around an array of `f32`, so the lines are `lines.len() * LINE` initialised,
        // contiguous floats, and `len` never exceeds that number.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }

    /// The elements, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        // SAFETY: as in `as_slice`; `&mut self` makes the access unique.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }

    /// Writes `value` to every element.
    pub fn fill(&mut self, value: f32) {
        self.as_mut_slice().fill(value);
    }

    /// Changes the length. The content is unspecified afterwards; memory once taken is kept, so that a buffer that is
    /// used again and again with different lengths is allocated once.
    pub fn resize(&mut self, len: usize) {
        let lines = len.div_ceil(LINE);
        if lines > self.lines.len() {
            self.lines.resize(lines, Line([0.0; LINE]));
        }
        self.len = len;
    }
}

impl fmt::Debug for Buf {
    /// The length and the first few values: a tensor in full helps nobody.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = &self.as_slice()[..self.len.min(8)];
        f.debug_struct("Buf").field("len", &self.len).field("head", &head).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_is_aligned_and_holds_what_was_written() {
        for len in [0, 1, 15, 16, 17, 1000] {
            let values: Vec<f32> = (0..len).map(|i| i as f32).collect();
            let buf = Buf::from_vec(values.clone());
            assert_eq!(buf.as_slice(), values);
            assert_eq!(buf.as_slice().as_ptr() as usize % 64, 0);
            assert_eq!(buf.is_empty(), len == 0);
        }
    }

    #[test]
    fn resize_keeps_the_memory() {
        let mut buf = Buf::zeros(100);
        let at = buf.as_slice().as_ptr();
        buf.resize(3);
        assert_eq!(buf.len(), 3);
        buf.resize(100);
        assert_eq!((buf.len(), buf.as_slice().as_ptr()), (100, at));
    }

    #[test]
    fn debug_shows_the_head_alone() {
        assert_eq!(format!("{:?}", Buf::from_slice(&[1.0, 2.0])), "Buf { len: 2, head: [1.0, 2.0], .. }");
        assert!(format!("{:?}", Buf::zeros(1000)).len() < 100);
    }
}
