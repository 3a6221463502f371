//! Conversion between f32 and the little-endian f32, f16 and bf16 bytes of files. Narrowing rounds to nearest, ties to
//! even; overflow gives infinity.

use half::{bf16, f16};

use crate::Buf;

/// Decodes f32 bytes.
///
/// # Panics
///
/// If the length is not a multiple of the number size.
pub fn f32_from_f32_bytes(bytes: &[u8]) -> Buf {
    widen(bytes, f32::from_le_bytes)
}

/// Decodes f16 bytes (exact).
///
/// # Panics
///
/// If the length is not a multiple of the number size.
pub fn f32_from_f16_bytes(bytes: &[u8]) -> Buf {
    widen(bytes, |b| f16::from_le_bytes(b).to_f32())
}

/// Decodes bf16 bytes (exact).
///
/// # Panics
///
/// If the length is not a multiple of the number size.
pub fn f32_from_bf16_bytes(bytes: &[u8]) -> Buf {
    widen(bytes, |b| bf16::from_le_bytes(b).to_f32())
}

/// Encodes numbers as f32 bytes.
pub fn f32_bytes_from_f32(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Encodes numbers as f16 bytes.
pub fn f16_bytes_from_f32(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect()
}

/// Encodes numbers as bf16 bytes.
pub fn bf16_bytes_from_f32(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect()
}

fn widen<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> f32) -> Buf {
    let (numbers, rest) = bytes.as_chunks::<N>();
    assert!(rest.is_empty(), "convert: {} bytes are not a whole number of {N}-byte numbers", bytes.len());
    let mut y = Buf::zeros(numbers.len());
    for (y, &b) in y.as_mut_slice().iter_mut().zip(numbers) {
        *y = number(b);
    }
    y
}
