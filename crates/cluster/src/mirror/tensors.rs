//! Layouts of safetensors files, and the digest of a folder's weights.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rloom_engine::{WeightDigest, digest_order};
use safetensors::Dtype;
use safetensors::tensor::Metadata;

use super::copy::PIECE;
use super::failure::{Limits, MirrorFailure};
use super::manifest::{MirrorFile, is_safetensors};

/// Largest header of a safetensors file in bytes.
const LARGEST_HEADER: u64 = 100_000_000;
/// Size of the field with the header's length.
const LENGTH: u64 = 8;

/// A tensor in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    /// First byte in the file.
    pub(super) start: u64,
    pub(super) bytes: u64,
}

/// The tensors of a safetensors file, in the order of their data, which has no gaps.
#[derive(Debug)]
pub(super) struct Layout {
    /// Everything before the data.
    pub(super) head: Vec<u8>,
    pub(super) tensors: Vec<Extent>,
}

impl Layout {
    /// The layout of a file.
    pub(super) fn read(path: &Path, file: &File) -> Result<Self, MirrorFailure> {
        let reading = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => MirrorFailure::damaged(path, "the file is truncated"),
            _ => MirrorFailure::io("read", path, &error),
        };
        let bytes = file.metadata().map_err(reading)?.len();
        let mut length = [0; LENGTH as usize];
        file.read_exact_at(&mut length, 0).map_err(reading)?;
        let length = u64::from_le_bytes(length);
        if length > LARGEST_HEADER || length > bytes - LENGTH {
            return Err(MirrorFailure::damaged(path, "the file is truncated or its header is invalid"));
        }
        let mut head = vec![0; (LENGTH + length) as usize];
        file.read_exact_at(&mut head, 0).map_err(reading)?;
        Self::parse(path, head, bytes)
    }

    /// The layout of a file of `bytes` that begins with `head`.
    pub(super) fn parse(path: &Path, head: Vec<u8>, bytes: u64) -> Result<Self, MirrorFailure> {
        let invalid = |problem: String| MirrorFailure::damaged(path, problem);
        let json = head.get(LENGTH as usize..).unwrap_or_default();
        let metadata: Metadata = serde_json::from_slice(json)
            .map_err(|error| invalid(format!("its header is invalid: {error}")))?;
        let start = head.len() as u64;
        if start.checked_add(metadata.data_len() as u64) != Some(bytes) {
            let (found, announced) = (bytes.saturating_sub(start), metadata.data_len());
            return Err(invalid(format!(
                "its header announces {announced} bytes of tensors, it has {found}"
            )));
        }
        let tensors = metadata.offset_keys().into_iter().filter_map(|name| {
            let info = metadata.info(&name)?;
            Some(Extent {
                name,
                dtype: info.dtype,
                shape: info.shape.clone(),
                start: start + info.data_offsets.0 as u64,
                bytes: (info.data_offsets.1 - info.data_offsets.0) as u64,
            })
        });
        Ok(Self { tensors: tensors.collect(), head })
    }

    /// The tensor called `name`.
    pub(super) fn tensor(&self, name: &str) -> Option<&Extent> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}

/// Checks the structure of a folder's safetensors files, and the digest of their tensors if it is known.
pub(super) fn check(
    folder: &Path,
    files: &[MirrorFile],
    digest: Option<u64>,
    limits: Limits<'_>,
) -> Result<(), MirrorFailure> {
    let mut opened = Vec::new();
    for file in files.iter().filter(|file| is_safetensors(&file.name)) {
        let path = folder.join(&file.name);
        let handle = File::open(&path).map_err(|error| MirrorFailure::io("read", &path, &error))?;
        let layout = Layout::read(&path, &handle)?;
        opened.push((path, handle, layout));
    }
    let Some(expected) = digest else { return Ok(()) };
    let each = opened.iter().flat_map(|(path, file, layout)| {
        layout.tensors.iter().map(move |tensor| (path.as_path(), file, tensor))
    });
    let mut tensors: Vec<_> = each.collect();
    tensors.sort_by(|a, b| digest_order(&a.2.name).cmp(&digest_order(&b.2.name)));
    let mut digest = WeightDigest::default();
    for (path, file, tensor) in tensors {
        add(&mut digest, path, file, tensor, limits)?;
    }
    let found = digest.value();
    if found != expected {
        let problem = format!("its tensors have the digest {found:016x} instead of {expected:016x}");
        return Err(MirrorFailure::damaged(folder, problem));
    }
    Ok(())
}

/// Adds a tensor's values to a digest.
fn add(
    digest: &mut WeightDigest,
    path: &Path,
    file: &File,
    tensor: &Extent,
    limits: Limits<'_>,
) -> Result<(), MirrorFailure> {
    let mut piece = vec![0; PIECE.min(tensor.bytes as usize)];
    let mut values: Vec<f32> = Vec::new();
    let mut at = 0;
    while at < tensor.bytes {
        limits.check()?;
        let count = (tensor.bytes - at).min(PIECE as u64) as usize;
        let piece = &mut piece[..count];
        file.read_exact_at(piece, tensor.start + at)
            .map_err(|error| MirrorFailure::io("read", path, &error))?;
        at += count as u64;
        values.clear();
        let pairs = piece.as_chunks::<2>().0.iter();
        match tensor.dtype {
            Dtype::F32 => {
                digest.update_bytes(piece);
                continue;
            }
            Dtype::BF16 => values.extend(pairs.map(|pair| half::bf16::from_le_bytes(*pair).to_f32())),
            Dtype::F16 => values.extend(pairs.map(|pair| half::f16::from_le_bytes(*pair).to_f32())),
            other => {
                let reason = format!("the digest of tensors of type {other} is not defined");
                return Err(MirrorFailure::Other { reason });
            }
        }
        digest.update(&values);
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    use safetensors::tensor::TensorView;

    use super::*;

    /// Bytes of a safetensors file with tensors of one dimension.
    pub(in crate::mirror) fn safetensors(tensors: &[(&str, Dtype, Vec<u8>)]) -> Vec<u8> {
        let views: BTreeMap<&str, TensorView<'_>> = tensors
            .iter()
            .map(|(name, dtype, data)| {
                let elements = data.len() * 8 / dtype.bitsize();
                (*name, TensorView::new(*dtype, vec![elements], data).unwrap())
            })
            .collect();
        safetensors::serialize(views, None).unwrap()
    }

    fn checked(bytes: &[u8], digest: Option<u64>) -> Result<(), MirrorFailure> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
        let file = MirrorFile { name: "model.safetensors".into(), bytes: bytes.len() as u64, crc: 0 };
        let ending = AtomicBool::new(false);
        let limits = Limits { deadline: Instant::now() + Duration::from_mins(2), is_ending: &ending };
        check(folder.path(), &[file], digest, limits)
    }

    #[test]
    fn truncated_files_and_other_digests_are_refused() {
        let norm: Vec<u8> = [1.0f32, 2.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        let embedding: Vec<u8> =
            [3.0f32, -4.5].iter().flat_map(|value| half::bf16::from_f32(*value).to_le_bytes()).collect();
        let tensors =
            [("model.norm.weight", Dtype::F32, norm), ("model.embed_tokens.weight", Dtype::BF16, embedding)];
        let file = safetensors(&tensors);
        let mut digest = WeightDigest::default();
        // The embedding is first, whatever the order in the file.
        digest.update(&[3.0, -4.5, 1.0, 2.0]);
        checked(&file, Some(digest.value())).unwrap();
        let error = checked(&file, Some(7)).unwrap_err();
        assert!(error.to_string().contains("instead of 0000000000000007"), "{error}");
        for length in [0, 7, 8, 40, file.len() - 1] {
            let error = checked(&file[..length], None).unwrap_err();
            assert!(matches!(error, MirrorFailure::Damaged { .. }), "{length}: {error}");
        }
        let mut longer = file.clone();
        longer.push(0);
        assert!(checked(&longer, None).is_err());
        let mut header = file;
        header[..8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(checked(&header, None).is_err());
    }
}
