//! Compressed differences of two equally long blocks.
//!
//! Bytes are combined by XOR and sorted by their place in the element before compression: a small change of a weight
//! leaves its sign and exponent, and nothing is compressed as well as zeros.

use std::io;

use zstd::bulk::{Compressor, Decompressor};

/// Compression level. Higher ones take longer and save little (bench/README.md).
pub(super) const LEVEL: i32 = 1;

/// Forms of a block.
const EQUAL: u8 = 0;
const PACKED: u8 = 1;
const PLAIN: u8 = 2;

/// Turns blocks into differences.
pub(super) struct Encoder {
    zstd: Compressor<'static>,
    combined: Vec<u8>,
    planes: Vec<u8>,
}

impl Encoder {
    /// An encoder with a compression level of zstd.
    pub(super) fn new(level: i32) -> io::Result<Self> {
        Ok(Self { zstd: Compressor::new(level)?, combined: Vec::new(), planes: Vec::new() })
    }

    /// The difference of `new` to `base`, which is as long; `width` is the size of an element.
    pub(super) fn encode(&mut self, base: &[u8], new: &[u8], width: usize) -> io::Result<Vec<u8>> {
        if base.len() != new.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if base == new {
            return Ok(vec![EQUAL]);
        }
        self.combined.clear();
        self.combined.extend(base.iter().zip(new).map(|(base, new)| base ^ new));
        let source = if width > 1 {
            split(&self.combined, width, &mut self.planes);
            &self.planes
        } else {
            &self.combined
        };
        let packed = self.zstd.compress(source)?;
        let (form, rest) = if packed.len() < new.len() { (PACKED, &packed[..]) } else { (PLAIN, new) };
        let mut encoded = Vec::with_capacity(1 + rest.len());
        encoded.push(form);
        encoded.extend_from_slice(rest);
        Ok(encoded)
    }
}

/// Turns differences into blocks.
pub(super) struct Decoder {
    zstd: Decompressor<'static>,
    planes: Vec<u8>,
}

impl Decoder {
    /// A decoder.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { zstd: Decompressor::new()?, planes: Vec::new() })
    }

    /// Changes `block` from the base to the new contents. After an error its contents are unspecified.
    pub(super) fn decode(&mut self, encoded: &[u8], block: &mut [u8], width: usize) -> io::Result<()> {
        let damaged = || io::Error::from(io::ErrorKind::InvalidData);
        match encoded.split_first() {
            Some((&EQUAL, [])) => Ok(()),
            Some((&PLAIN, rest)) if rest.len() == block.len() => {
                block.copy_from_slice(rest);
                Ok(())
            }
            Some((&PACKED, rest)) => {
                self.planes.resize(block.len(), 0);
                let count = self.zstd.decompress_to_buffer(rest, &mut self.planes[..])?;
                if count != block.len() {
                    return Err(damaged());
                }
                merge(&self.planes, width, block);
                Ok(())
            }
            _ => Err(damaged()),
        }
    }
}

/// Writes the first bytes of all elements, then the second ones, and so on. Bytes after the last whole element come last.
fn split(bytes: &[u8], width: usize, planes: &mut Vec<u8>) {
    planes.clear();
    match width {
        2 => split_by::<2>(bytes, planes),
        4 => split_by::<4>(bytes, planes),
        8 => split_by::<8>(bytes, planes),
        _ => planes.extend_from_slice(bytes),
    }
}

fn split_by<const WIDTH: usize>(bytes: &[u8], planes: &mut Vec<u8>) {
    let (elements, rest) = bytes.as_chunks::<WIDTH>();
    for plane in 0..WIDTH {
        planes.extend(elements.iter().map(|element| element[plane]));
    }
    planes.extend_from_slice(rest);
}

/// Combines elements with the planes of [`split`] by XOR.
fn merge(planes: &[u8], width: usize, block: &mut [u8]) {
    match width {
        2 => merge_by::<2>(planes, block),
        4 => merge_by::<4>(planes, block),
        8 => merge_by::<8>(planes, block),
        _ => combine(block, planes),
    }
}

fn merge_by<const WIDTH: usize>(planes: &[u8], block: &mut [u8]) {
    let (elements, rest) = block.as_chunks_mut::<WIDTH>();
    let count = elements.len();
    for plane in 0..WIDTH {
        for (element, from) in elements.iter_mut().zip(&planes[plane * count..]) {
            element[plane] ^= from;
        }
    }
    combine(rest, &planes[WIDTH * count..]);
}

fn combine(block: &mut [u8], with: &[u8]) {
    for (to, from) in block.iter_mut().zip(with) {
        *to ^= from;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn there_and_back(base: &[u8], new: &[u8], width: usize) -> usize {
        let encoded = Encoder::new(LEVEL).unwrap().encode(base, new, width).unwrap();
        let mut block = base.to_vec();
        Decoder::new().unwrap().decode(&encoded, &mut block, width).unwrap();
        assert_eq!(block, new);
        encoded.len()
    }

    proptest! {
        #[test]
        fn any_block_comes_back(
            pairs in prop::collection::vec(any::<(u8, u8)>(), 0..3000),
            width in 1usize..9,
        ) {
            let (base, new): (Vec<u8>, Vec<u8>) = pairs.into_iter().unzip();
            there_and_back(&base, &new, width);
        }

        #[test]
        fn blocks_with_few_changes_come_back(
            base in prop::collection::vec(any::<u8>(), 1..3000),
            changes in prop::collection::vec(any::<(u16, u8)>(), 0..20),
            width in 1usize..9,
        ) {
            let mut new = base.clone();
            for (at, value) in changes {
                let at = at as usize % new.len();
                new[at] ^= value;
            }
            there_and_back(&base, &new, width);
        }

        /// Whatever arrives is a block of the expected length or an error.
        #[test]
        fn damage_does_no_harm(
            encoded in prop::collection::vec(any::<u8>(), 0..200),
            form in 0u8..4,
            length in 0usize..500,
            width in 1usize..9,
        ) {
            let encoded: Vec<u8> = std::iter::once(form).chain(encoded).collect();
            let mut block = vec![1; length];
            let _ = Decoder::new().unwrap().decode(&encoded, &mut block, width);
            prop_assert_eq!(block.len(), length);
        }
    }

    #[test]
    fn adversarial_blocks_come_back_and_never_grow_by_more_than_a_byte() {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u8
        };
        for length in [0, 1, 2, 3, 7, 4096, 100_003] {
            let noise: Vec<u8> = (0..length).map(|_| random()).collect();
            let zeros = vec![0; length];
            let ones = vec![0xff; length];
            let steps: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let blocks = [&noise, &zeros, &ones, &steps];
            for base in blocks {
                for new in blocks {
                    for width in [1, 2, 4, 8] {
                        assert!(there_and_back(base, new, width) <= length + 1);
                    }
                }
            }
        }
    }

    #[test]
    fn blocks_of_other_lengths_are_refused() {
        let mut encoder = Encoder::new(LEVEL).unwrap();
        assert!(encoder.encode(&[1, 2], &[1], 1).is_err());
        let mut decoder = Decoder::new().unwrap();
        let packed = encoder.encode(&[0; 100], &[1; 100], 2).unwrap();
        assert_eq!(packed[0], PACKED);
        for length in [0, 50, 99, 101, 200] {
            assert!(decoder.decode(&packed, &mut vec![0; length], 2).is_err(), "{length}");
        }
        for damaged in [&[][..], &[EQUAL, 1], &[PLAIN, 1], &[9], &packed[..packed.len() - 1]] {
            assert!(decoder.decode(damaged, &mut [0; 100], 2).is_err(), "{damaged:?}");
        }
    }
}
