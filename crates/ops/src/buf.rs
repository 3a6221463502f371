//! Owned storage for tensors.

use std::fmt;
use std::marker::PhantomData;

use memmap2::{MmapMut, MmapOptions};

use crate::Element;

/// One cache line, so that a vector of lines is aligned to 64 bytes.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; LINE]);

const LINE: usize = 64;

/// Bytes from which on memory is mapped in whole pages.
const LARGE: usize = 4 << 20;

/// Huge page size of Linux on x86-64 and most other architectures: one TLB entry covers 512 times as much memory.
const HUGE_PAGE: usize = 2 << 20;

/// Memory that a [`Buf`] of this many bytes occupies once all of it is used: whole huge pages, if it is mapped.
pub fn mapped_bytes(bytes: u64) -> u64 {
    if bytes >= LARGE as u64 { bytes.next_multiple_of(HUGE_PAGE as u64) } else { bytes }
}

/// Backing memory.
enum Memory {
    Lines(Vec<Line>),
    /// Mapped pages, and the offset of the first used byte, aligned to a huge page.
    Pages(MmapMut, usize),
}

impl Memory {
    /// At least `bytes` zeroed bytes.
    fn zeros(bytes: usize) -> Self {
        if bytes >= LARGE
            && let Ok(pages) = MmapOptions::new().len(bytes + HUGE_PAGE).map_anon()
        {
            // Huge pages are an optimisation only; failure is ignored.
            #[cfg(target_os = "linux")]
            let _ = pages.advise(memmap2::Advice::HugePage);
            let first = pages.as_ptr().align_offset(HUGE_PAGE).min(HUGE_PAGE);
            return Self::Pages(pages, first);
        }
        let lines = Box::<[Line]>::new_zeroed_slice(bytes.div_ceil(LINE));
        // SAFETY: a `Line` is plain bytes, for which zero is valid.
        let lines = unsafe { lines.assume_init() };
        Self::Lines(lines.into_vec())
    }

    /// Number of bytes; of mapped pages, without those that only align the others.
    fn len(&self) -> usize {
        match self {
            Self::Lines(lines) => lines.len() * LINE,
            Self::Pages(pages, _) => pages.len() - HUGE_PAGE,
        }
    }

    fn as_ptr(&self) -> *const u8 {
        match self {
            Self::Lines(lines) => lines.as_ptr().cast(),
            Self::Pages(pages, first) => pages[*first..].as_ptr(),
        }
    }

    fn as_mut_ptr(&mut self) -> *mut u8 {
        match self {
            Self::Lines(lines) => lines.as_mut_ptr().cast(),
            Self::Pages(pages, first) => pages[*first..].as_mut_ptr(),
        }
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::Lines(Vec::new())
    }
}

/// Owned, 64-byte-aligned storage of `f32` or [`Bf16`](crate::Bf16) numbers, the argument type of all operations. A
/// `Buf` has a length and no shape; shapes are arguments of the operations.
#[derive(Default)]
pub struct Buf<E: Element = f32> {
    memory: Memory,
    len: usize,
    format: PhantomData<E>,
}

/// Size of `len` elements in bytes.
///
/// # Panics
/// If the size overflows.
fn bytes_of<E: Element>(len: usize) -> usize {
    let fits = len.checked_mul(size_of::<E>()).is_some_and(|bytes| isize::try_from(bytes).is_ok());
    assert!(fits, "a buffer of {len} elements is too large");
    len * size_of::<E>()
}

impl<E: Element> Buf<E> {
    /// `len` zeros. From 4 MiB on the memory is mapped (with huge pages where available) and physically allocated on
    /// first touch, so a partly used large buffer takes only the memory it uses.
    pub fn zeros(len: usize) -> Self {
        Self { memory: Memory::zeros(bytes_of::<E>(len)), len, format: PhantomData }
    }

    /// A copy of `values`.
    pub fn from_slice(values: &[E]) -> Self {
        let mut buf = Self::zeros(values.len());
        buf.as_mut_slice().copy_from_slice(values);
        buf
    }

    /// The elements of `values`, moved into aligned storage.
    #[expect(clippy::needless_pass_by_value, reason = "the caller hands its values over")]
    pub fn from_vec(values: Vec<E>) -> Self {
        Self::from_slice(&values)
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements.
    pub fn as_slice(&self) -> &[E] {
        // SAFETY: the memory is initialised, contiguous and aligned for any element type, every bit pattern of which is
        // a valid number; `len` elements never exceed the memory.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().cast(), self.len) }
    }

    /// Mutable access to the elements.
    pub fn as_mut_slice(&mut self) -> &mut [E] {
        // SAFETY: as in `as_slice`; `&mut self` guarantees exclusive access.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_mut_ptr().cast(), self.len) }
    }

    /// Sets every element to `value`.
    pub fn fill(&mut self, value: E) {
        self.as_mut_slice().fill(value);
    }

    /// Changes the length. The content is unspecified afterwards. Memory is kept when the length shrinks, so a buffer
    /// reused with varying lengths is allocated once.
    pub fn resize(&mut self, len: usize) {
        if bytes_of::<E>(len) > self.memory.len() {
            // Frees the old memory first.
            *self = Self::default();
            *self = Self::zeros(len);
        }
        self.len = len;
    }

    /// Size of the memory in bytes, used or not.
    pub fn capacity_bytes(&self) -> usize {
        self.memory.len()
    }

    /// Reuses the memory for another format: an empty buffer with this one's capacity.
    #[must_use]
    pub fn into_format<F: Element>(self) -> Buf<F> {
        Buf { memory: self.memory, len: 0, format: PhantomData }
    }
}

impl<E: Element> Clone for Buf<E> {
    fn clone(&self) -> Self {
        Self::from_slice(self.as_slice())
    }
}

impl<E: Element> fmt::Debug for Buf<E> {
    /// The length and the first few values only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = &self.as_slice()[..self.len.min(8)];
        f.debug_struct("Buf").field("len", &self.len).field("head", &head).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_is_aligned_and_holds_the_written_values() {
        for len in [0, 1, 15, 16, 17, 1000] {
            let values: Vec<f32> = (0..len).map(|i| i as f32).collect();
            let buf = Buf::from_vec(values.clone());
            assert_eq!(buf.as_slice(), values);
            assert_eq!(buf.as_slice().as_ptr() as usize % 64, 0);
            assert_eq!(buf.is_empty(), len == 0);
        }
    }

    #[test]
    fn bf16_numbers_are_contiguous() {
        let mut buf = Buf::<crate::Bf16>::zeros(33);
        assert!(buf.as_slice().iter().all(|x| x.to_bits() == 0));
        buf.fill(crate::Bf16::from_f32(1.5));
        assert_eq!(buf.as_slice().len(), 33);
        assert_eq!(buf.memory.len(), 2 * LINE);
    }

    #[test]
    fn large_buffers_are_zero_and_begin_at_a_huge_page() {
        let mut buf = Buf::<f32>::zeros(LARGE / 4 + 5);
        assert!(matches!(buf.memory, Memory::Pages(..)));
        assert_eq!(buf.as_slice().as_ptr() as usize % HUGE_PAGE, 0);
        assert_eq!(buf.len(), LARGE / 4 + 5);
        assert!(buf.as_slice().iter().all(|&x| x == 0.0));
        buf.as_mut_slice()[LARGE / 4 + 4] = 7.0;
        let copy = buf.clone();
        drop(buf);
        assert_eq!(copy.as_slice()[LARGE / 4 + 4], 7.0);
    }

    #[test]
    fn memory_is_reused_for_another_format() {
        let buf = Buf::<f32>::zeros(64);
        let at = buf.as_slice().as_ptr().cast::<u8>();
        let mut other = buf.into_format::<crate::Bf16>();
        assert!(other.is_empty());
        other.resize(128);
        assert_eq!(other.as_slice().as_ptr().cast(), at);
        other.resize(129);
        assert_eq!(other.len(), 129);
    }

    #[test]
    fn resize_keeps_the_memory() {
        let mut buf = Buf::<f32>::zeros(100);
        let at = buf.as_slice().as_ptr();
        buf.resize(3);
        assert_eq!(buf.len(), 3);
        buf.resize(100);
        assert_eq!((buf.len(), buf.as_slice().as_ptr()), (100, at));
    }

    #[test]
    fn debug_shows_only_the_first_values() {
        assert_eq!(format!("{:?}", Buf::from_slice(&[1.0, 2.0])), "Buf { len: 2, head: [1.0, 2.0], .. }");
        assert!(format!("{:?}", Buf::<f32>::zeros(1000)).len() < 100);
    }
}
