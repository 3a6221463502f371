//! Weights in bf16 that are exact with a second file: the bits that rounding loses.

use std::path::Path;

use safetensors::Dtype;

use super::{CheckpointError, TensorFile};

/// Name of the file. Programs that read all files of a folder with the ending of `safetensors` leave it out.
pub(crate) const FILE: &str = "model.low_bits";

/// The low bits of the weights of a folder.
#[derive(Debug)]
pub(crate) struct LowBits(TensorFile);

impl LowBits {
    /// Opens the file of a folder; `None` if its weights are complete without.
    pub(crate) fn open(folder: &Path) -> Result<Option<Self>, CheckpointError> {
        let path = folder.join(FILE);
        if path.is_file() { Ok(Some(Self(TensorFile::open(&path)?))) } else { Ok(None) }
    }

    /// Makes the rounded numbers of a tensor exact.
    pub(crate) fn add_to(&self, name: &str, shape: &[usize], to: &mut [f32]) -> Result<(), CheckpointError> {
        let mut bytes = vec![0; 2 * to.len()];
        self.0.read_raw(name, shape, Dtype::I16, &mut bytes)?;
        for (value, low) in to.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *value = with_low_bits(*value, i16::from_le_bytes(*low));
        }
        Ok(())
    }
}

/// The number in bf16, rounded to the nearest and halves away from zero. With halves to even, 65,537 numbers would have the same
/// rounded form, one more than 16 bits distinguish.
pub(crate) fn high_bits(value: f32) -> u16 {
    (value.to_bits().wrapping_add(1 << 15) >> 16) as u16
}

/// Difference of the bits of a number and those of its rounded form: with it, the number is exact again.
pub(crate) fn low_bits(value: f32) -> i16 {
    value.to_bits().wrapping_sub(u32::from(high_bits(value)) << 16).cast_signed() as i16
}

/// The number with these low bits.
fn with_low_bits(rounded: f32, low: i16) -> f32 {
    f32::from_bits(rounded.to_bits().wrapping_add(i32::from(low).cast_unsigned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_bits_make_numbers_exact_again() {
        let numbers = (0..4_000_000_u32).map(|i| f32::from_bits(i.wrapping_mul(2_654_435_761)));
        for x in
            numbers.filter(|x| x.is_finite()).chain([0.0, -0.0, f32::MIN_POSITIVE, 1.0, -1.0 - f32::EPSILON])
        {
            let rounded = f32::from_bits(u32::from(high_bits(x)) << 16);
            let to_even = rloom_ops::Bf16::from_f32(x).to_f32();
            assert!(rounded == to_even || x.to_bits() & 0xffff == 0x8000, "{x} is rounded to the nearest");
            assert_eq!(with_low_bits(rounded, low_bits(x)).to_bits(), x.to_bits(), "{x}");
        }
    }
}
