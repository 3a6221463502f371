//! Named tensors of a frame.

use safetensors::Dtype;

use crate::bytes::Bytes;
use crate::error::FrameError;

/// A named tensor: row-major, little-endian.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Name, unique in its frame.
    pub name: String,
    /// Type of an element.
    pub dtype: Dtype,
    /// Sizes of the dimensions; empty for a scalar.
    pub shape: Vec<usize>,
    /// The elements.
    pub data: Bytes,
}

impl Tensor {
    /// A tensor of the given elements.
    pub fn new<T: Element>(name: impl Into<String>, shape: &[usize], elements: &[T]) -> Self {
        let mut data = Vec::with_capacity(size_of_val(elements));
        for element in elements {
            element.push(&mut data);
        }
        Self { name: name.into(), dtype: T::DTYPE, shape: shape.to_vec(), data: data.into() }
    }

    /// The elements; an error if they have another type than `T`.
    pub fn elements<T: Element>(&self) -> Result<Vec<T>, FrameError> {
        if self.dtype != T::DTYPE {
            return Err(FrameError::Dtype { name: self.name.clone(), found: self.dtype, expected: T::DTYPE });
        }
        Ok(self.data.chunks_exact(size_of::<T>()).map(T::read).collect())
    }
}

/// Types of elements that [`Tensor::new`] and [`Tensor::elements`] convert.
pub trait Element: Copy {
    /// The type in a frame.
    const DTYPE: Dtype;
    /// Appends the little-endian bytes.
    fn push(self, bytes: &mut Vec<u8>);
    /// Reads an element from exactly its own number of bytes; zero from another number.
    fn read(bytes: &[u8]) -> Self;
}

macro_rules! elements {
    ($($element:ty => $dtype:ident),*) => {$(
        impl Element for $element {
            const DTYPE: Dtype = Dtype::$dtype;

            fn push(self, bytes: &mut Vec<u8>) {
                bytes.extend(self.to_le_bytes());
            }

            fn read(bytes: &[u8]) -> Self {
                bytes.try_into().map(Self::from_le_bytes).unwrap_or_default()
            }
        }
    )*};
}

elements!(u8 => U8, i32 => I32, u32 => U32, i64 => I64, u64 => U64, f32 => F32, f64 => F64);
