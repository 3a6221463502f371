//! Numbers of the wire.

use super::FLOAT32;
use super::proto::{Chunk, Tensor};

const INT64: i32 = 2;
const INT32: i32 = 3;
const BFLOAT16: i32 = 4;

/// Bytes of numbers in little-endian order.
pub(crate) fn bytes_of<const N: usize>(numbers: impl IntoIterator<Item = [u8; N]>) -> Vec<u8> {
    numbers.into_iter().flatten().collect()
}

/// Token ids of a sequence's parts.
pub(crate) fn tokens(chunks: &[Chunk]) -> Result<Vec<u32>, String> {
    let mut tokens = Vec::new();
    for chunk in chunks {
        if chunk.image.is_some() || chunk.audio.is_some() {
            return Err("images and audio are not supported: only chunks of tokens are".to_owned());
        }
        let Some(text) = &chunk.encoded_text else {
            return Err("a chunk of model_input is empty".to_owned());
        };
        let words = words::<4>(&text.tokens).ok_or("the tokens of a chunk are not 32-bit integers")?;
        for word in words {
            let token = i32::from_le_bytes(word);
            tokens.push(u32::try_from(token).map_err(|_| format!("token {token} is negative"))?);
        }
    }
    Ok(tokens)
}

/// A vector of real numbers.
pub(crate) fn floats(tensor: &Tensor) -> Result<Vec<f32>, String> {
    let bytes = vector(tensor)?;
    let values = match tensor.dtype {
        FLOAT32 => words(bytes).map(|words| words.map(f32::from_le_bytes).collect::<Vec<f32>>()),
        BFLOAT16 => words(bytes).map(|words| {
            words.map(|word| f32::from_bits(u32::from(u16::from_le_bytes(word)) << 16)).collect()
        }),
        _ => return Ok(integers(tensor)?.into_iter().map(|value| value as f32).collect()),
    };
    let values = values.ok_or("its bytes are not whole numbers of its type")?;
    check_shape(tensor, values.len())?;
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => Err(format!("entry {index} is not a finite number")),
        None => Ok(values),
    }
}

/// A vector of integers.
pub(crate) fn integers(tensor: &Tensor) -> Result<Vec<i64>, String> {
    let bytes = vector(tensor)?;
    let values: Option<Vec<i64>> = match tensor.dtype {
        INT64 => words(bytes).map(|words| words.map(i64::from_le_bytes).collect()),
        INT32 => words(bytes).map(|words| words.map(|word| i64::from(i32::from_le_bytes(word))).collect()),
        dtype => return Err(format!("elements of type {dtype} are not integers")),
    };
    let values = values.ok_or("its bytes are not whole numbers of its type")?;
    check_shape(tensor, values.len())?;
    Ok(values)
}

fn vector(tensor: &Tensor) -> Result<&[u8], String> {
    if tensor.sparse.is_some() || tensor.shape.len() > 1 {
        return Err(format!(
            "it has the shape {:?}, but only one number per position is supported",
            tensor.shape
        ));
    }
    Ok(tensor.dense.as_deref().unwrap_or_default())
}

fn check_shape(tensor: &Tensor, len: usize) -> Result<(), String> {
    match tensor.shape.first() {
        Some(&stated) if usize::try_from(stated) != Ok(len) => {
            Err(format!("it has {len} numbers, but the shape {:?}", tensor.shape))
        }
        _ => Ok(()),
    }
}

/// The words of `N` bytes; `None` if there is a rest.
fn words<const N: usize>(bytes: &[u8]) -> Option<impl Iterator<Item = [u8; N]>> {
    let (words, rest) = bytes.as_chunks::<N>();
    rest.is_empty().then(|| words.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(dtype: i32, bytes: Vec<u8>, shape: &[i64]) -> Tensor {
        Tensor { dense: Some(bytes), sparse: None, dtype, shape: shape.to_vec() }
    }

    #[test]
    fn numbers_of_each_type_are_read() {
        let f = tensor(FLOAT32, bytes_of([1.5_f32, -2.0].map(f32::to_le_bytes)), &[2]);
        assert_eq!(floats(&f), Ok(vec![1.5, -2.0]));
        let b = tensor(BFLOAT16, vec![0xC0, 0x3F, 0x00, 0xC0], &[2]);
        assert_eq!(floats(&b), Ok(vec![1.5, -2.0]));
        let i = tensor(INT64, bytes_of([7_i64, -1].map(i64::to_le_bytes)), &[2]);
        assert_eq!((integers(&i), floats(&i)), (Ok(vec![7, -1]), Ok(vec![7.0, -1.0])));
        let short = tensor(INT32, bytes_of([7_i32, -1].map(i32::to_le_bytes)), &[]);
        assert_eq!(integers(&short), Ok(vec![7, -1]));
    }

    #[test]
    fn other_tensors_are_refused() {
        let two = || bytes_of([1.0_f32, 2.0].map(f32::to_le_bytes));
        for (tensor, expected) in [
            (tensor(FLOAT32, vec![0; 7], &[]), "whole numbers"),
            (tensor(FLOAT32, two(), &[3]), "has 2 numbers"),
            (tensor(FLOAT32, two(), &[-1]), "has 2 numbers"),
            (tensor(FLOAT32, two(), &[1, 2]), "one number per position"),
            (tensor(9, two(), &[2]), "not integers"),
            (tensor(FLOAT32, bytes_of([f32::NAN.to_le_bytes()]), &[1]), "entry 0 is not a finite"),
            (Tensor { sparse: Some(vec![]), ..tensor(FLOAT32, two(), &[2]) }, "one number per position"),
        ] {
            let error = floats(&tensor).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        assert!(integers(&tensor(FLOAT32, two(), &[2])).is_err());
        let negative = EncodedText { tokens: bytes_of([(-1_i32).to_le_bytes()]) };
        let chunk = |encoded_text| Chunk { encoded_text, image: None, audio: None };
        assert!(tokens(&[chunk(Some(negative))]).unwrap_err().contains("negative"));
        assert!(tokens(&[chunk(None)]).is_err());
        assert!(tokens(&[Chunk { image: Some(vec![]), ..chunk(None) }]).unwrap_err().contains("images"));
    }

    use super::super::proto::EncodedText;
}
