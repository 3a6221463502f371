//! Number conversion of files.

use proptest::prelude::*;
use rloom_ops::{Bf16, append_f32_bytes, f32_from_bf16_bytes, f32_from_f16_bytes, f32_from_f32_bytes};

type Decode = fn(&mut [f32], &[u8]);

fn decoded(decode: Decode, bytes: &[u8], size: usize) -> Vec<f32> {
    let mut y = vec![0.0; bytes.len() / size];
    decode(&mut y, bytes);
    y
}

fn f16_bytes(x: f32) -> [u8; 2] {
    half::f16::from_f32(x).to_le_bytes()
}

fn bf16_bytes(x: f32) -> [u8; 2] {
    Bf16::from_f32(x).to_le_bytes()
}

#[test]
fn all_half_precision_numbers_round_trip() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for (name, decode, encode) in [
        ("f16", f32_from_f16_bytes as Decode, f16_bytes as fn(f32) -> [u8; 2]),
        ("bf16", f32_from_bf16_bytes, bf16_bytes),
    ] {
        for (x, before) in decoded(decode, &all, 2).into_iter().zip(all.chunks(2)) {
            let after = encode(x);
            // A NaN remains a NaN, though it may become quiet.
            assert!(before == after || x.is_nan(), "{name}: {before:?} became {after:?}");
            if x.is_nan() {
                assert!(decoded(decode, &after, 2)[0].is_nan());
            }
        }
    }
}

#[test]
fn known_numbers_have_known_bytes() {
    // Ties go to the even neighbour; overflow becomes infinite.
    let x = [1.0, -2.5, 1.0 + 1.0 / 2048.0, 1.0 + 3.0 / 2048.0, 65_519.0, 65_520.0, 6e-8];
    let expected: [u16; 7] = [0x3c00, 0xc100, 0x3c00, 0x3c02, 0x7bff, 0x7c00, 0x0001];
    assert_eq!(x.map(f16_bytes), expected.map(u16::to_le_bytes));
    let x = [1.0, -2.5, 1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, f32::MAX];
    let expected: [u16; 5] = [0x3f80, 0xc020, 0x3f80, 0x3f82, 0x7f80];
    assert_eq!(x.map(bf16_bytes), expected.map(u16::to_le_bytes));
}

#[test]
#[should_panic(expected = "3 bytes are not a whole number of 2-byte numbers")]
fn partial_numbers_are_rejected() {
    f32_from_f16_bytes(&mut [0.0], &[0, 0, 0]);
}

proptest! {
    #[test]
    fn f32_round_trips_exactly(x in prop::collection::vec(any::<u32>(), 0..50)) {
        let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut again = Vec::new();
        append_f32_bytes(&mut again, &decoded(f32_from_f32_bytes, &bytes, 4));
        prop_assert_eq!(again, bytes);
    }

    #[test]
    fn narrowing_rounds_to_nearest(x in -70_000f32..70_000.0) {
        // The neighbours of the result are never nearer.
        let bits = u16::from_le_bytes(bf16_bytes(x));
        let value = |bits: u16| decoded(f32_from_bf16_bytes, &bits.to_le_bytes(), 2)[0];
        let error = |bits: u16| (f64::from(value(bits)) - f64::from(x)).abs();
        prop_assert!(error(bits) <= error(bits.wrapping_sub(1)) || x == 0.0);
        prop_assert!(error(bits) <= error(bits + 1));
    }
}
