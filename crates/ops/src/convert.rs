//! Conversion between f32 and the little-endian f32, f16 and bf16 bytes of files.

use half::{bf16, f16};

use crate::Element;

/// Decodes f32 bytes into `y`.
///
/// # Panics
///
/// If the bytes are not `y.len()` numbers.
pub fn f32_from_f32_bytes(y: &mut [f32], bytes: &[u8]) {
    decode(y, bytes, f32::from_le_bytes);
}

/// Decodes f16 bytes into `y` (exact).
///
/// # Panics
///
/// If the bytes are not `y.len()` numbers.
pub fn f32_from_f16_bytes(y: &mut [f32], bytes: &[u8]) {
    decode(y, bytes, |b| f16::from_le_bytes(b).to_f32());
}

/// Decodes bf16 bytes into `y` (exact).
///
/// # Panics
///
/// If the bytes are not `y.len()` numbers.
pub fn f32_from_bf16_bytes(y: &mut [f32], bytes: &[u8]) {
    decode(y, bytes, |b| bf16::from_le_bytes(b).to_f32());
}

/// Appends the numbers as little-endian bf16, rounded to the nearest.
pub fn append_bf16_bytes(bytes: &mut Vec<u8>, x: &[f32]) {
    for &x in x {
        bytes.extend_from_slice(&bf16::narrow(x).to_le_bytes());
    }
}

/// Appends numbers as f32 bytes.
pub fn append_f32_bytes(bytes: &mut Vec<u8>, x: &[f32]) {
    bytes.extend(x.iter().flat_map(|x| x.to_le_bytes()));
}

fn decode<const N: usize>(y: &mut [f32], bytes: &[u8], number: impl Fn([u8; N]) -> f32) {
    let (numbers, rest) = bytes.as_chunks::<N>();
    assert!(rest.is_empty(), "convert: {} bytes are not a whole number of {N}-byte numbers", bytes.len());
    assert!(numbers.len() == y.len(), "convert: {} numbers for {} elements", numbers.len(), y.len());
    for (y, &b) in y.iter_mut().zip(numbers) {
        *y = number(b);
    }
}
