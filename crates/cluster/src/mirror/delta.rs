//! Differences of a safetensors file to the file of an earlier version.
//!
//! A delta is a magic number, the length of a JSON header, the header ([`Head`]), everything of the new file before its
//! tensors, and the difference of each block of each tensor, with its length before it. Blocks follow the order of the
//! tensors in the new file.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;

use safetensors::Dtype;
use serde::{Deserialize, Serialize};

use super::block::{Decoder, Encoder};
use super::copy::{Create, Digesting};
use super::failure::{Limits, MirrorFailure};
use super::manifest::MirrorFile;
use super::tensors::Layout;

const MAGIC: &[u8; 8] = b"rloomd1\n";
/// Largest block in bytes; a multiple of every element's size.
const BLOCK: u64 = 4 << 20;
/// Most threads that encode or decode.
const THREADS: usize = 8;
/// Largest header in bytes.
const LARGEST_HEAD: u64 = 4096;

/// Header of a delta.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Head {
    base: Stamp,
    new: Stamp,
    /// Bytes of the new file before its tensors.
    before: u64,
}

/// Contents of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    bytes: u64,
    crc: u32,
}

impl From<&MirrorFile> for Stamp {
    fn from(file: &MirrorFile) -> Self {
        Self { bytes: file.bytes, crc: file.crc }
    }
}

/// A file of a version, and what it is known to contain.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) path: &'a Path,
    pub(super) file: &'a MirrorFile,
}

impl Known<'_> {
    fn open(&self) -> Result<(File, Layout), MirrorFailure> {
        let file = File::open(self.path).map_err(|error| MirrorFailure::io("read", self.path, &error))?;
        let layout = Layout::read(self.path, &file)?;
        Ok((file, layout))
    }
}

/// A block of a tensor in both files.
struct Block {
    base: u64,
    new: u64,
    bytes: usize,
    width: usize,
}

/// The blocks of two files with the same tensors; `None` if a tensor is in one of them alone, or has another type or
/// shape.
fn blocks(base: &Layout, new: &Layout) -> Option<Vec<Block>> {
    if base.tensors.len() != new.tensors.len() {
        return None;
    }
    let mut blocks = Vec::new();
    for tensor in &new.tensors {
        let before = base.tensor(&tensor.name)?;
        if (before.dtype, &before.shape, before.bytes) != (tensor.dtype, &tensor.shape, tensor.bytes) {
            return None;
        }
        let width = width(tensor.dtype);
        let mut at = 0;
        while at < tensor.bytes {
            let bytes = (tensor.bytes - at).min(BLOCK);
            let (base, new) = (before.start + at, tensor.start + at);
            blocks.push(Block { base, new, bytes: bytes as usize, width });
            at += bytes;
        }
    }
    Some(blocks)
}

/// Size of an element in bytes.
fn width(dtype: Dtype) -> usize {
    (dtype.bitsize() / 8).max(1)
}

fn threads(limit: usize) -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(THREADS).min(limit.max(1))
}

/// Writes the delta of two files. False if there is none that is smaller than the new file; what was written is of no
/// use then.
pub(super) fn encode<W: Write>(
    base: Known<'_>,
    new: Known<'_>,
    out: &mut Digesting<W>,
    level: i32,
    limits: Limits<'_>,
) -> Result<bool, MirrorFailure> {
    let ((base_file, base_layout), (new_file, new_layout)) = (base.open()?, new.open()?);
    let Some(blocks) = blocks(&base_layout, &new_layout) else { return Ok(false) };
    let writing = |error: io::Error| MirrorFailure::io("write the delta of", new.path, &error);
    let head = Head { base: base.file.into(), new: new.file.into(), before: new_layout.head.len() as u64 };
    let head = serde_json::to_vec(&head).map_err(MirrorFailure::other)?;
    for part in [&MAGIC[..], &(head.len() as u64).to_le_bytes(), &head, &new_layout.head] {
        out.write(part).map_err(writing)?;
    }
    let encoders = (0..threads(blocks.len())).map(|_| Encoder::new(level));
    let mut encoders = encoders.collect::<io::Result<Vec<_>>>().map_err(writing)?;
    for batch in blocks.chunks(encoders.len()) {
        limits.check()?;
        let encode = |(encoder, block): (&mut Encoder, &Block)| -> io::Result<Vec<u8>> {
            let (mut before, mut after) = (vec![0; block.bytes], vec![0; block.bytes]);
            base_file.read_exact_at(&mut before, block.base)?;
            new_file.read_exact_at(&mut after, block.new)?;
            encoder.encode(&before, &after, block.width)
        };
        for encoded in in_parallel(encoders.iter_mut().zip(batch), &encode) {
            let encoded = encoded.map_err(writing)?;
            out.write(&(encoded.len() as u32).to_le_bytes()).map_err(writing)?;
            out.write(&encoded).map_err(writing)?;
        }
        if out.bytes >= new.file.bytes {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Calls `work` for each item in a thread of its own, and returns the results in their order.
fn in_parallel<I: Send, T: Send>(
    items: impl Iterator<Item = I>,
    work: &(impl Fn(I) -> io::Result<T> + Sync),
) -> Vec<io::Result<T>> {
    thread::scope(|scope| {
        let started: Vec<_> = items.map(|item| scope.spawn(move || work(item))).collect();
        let ended = |result: thread::Result<io::Result<T>>| {
            result.unwrap_or_else(|_| Err(io::Error::other("a thread of the codec has panicked")))
        };
        started.into_iter().map(|thread| ended(thread.join())).collect()
    })
}

/// Applies a delta to its base, and writes the new file, whose contents must be those of `new`.
pub(super) fn decode(
    base: Known<'_>,
    delta: &Path,
    new: Known<'_>,
    limits: Limits<'_>,
    create: Create<'_>,
) -> Result<(), MirrorFailure> {
    let damaged = |problem: &str| MirrorFailure::damaged(delta, problem);
    let reading = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => damaged("the delta is truncated"),
        io::ErrorKind::InvalidData | io::ErrorKind::Other => damaged("a block of the delta is damaged"),
        _ => MirrorFailure::io("read", delta, &error),
    };
    let file = File::open(delta).map_err(reading)?;
    let bytes = file.metadata().map_err(reading)?.len();
    let mut source = BufReader::with_capacity(1 << 20, file);
    let (head, before) = read_head(&mut source, bytes).map_err(reading)?;
    if head.base != base.file.into() {
        return Err(damaged("the delta belongs to another base"));
    }
    if head.new != new.file.into() {
        return Err(damaged("the delta is that of another version"));
    }
    let (base_file, base_layout) = base.open()?;
    let layout = Layout::parse(delta, before, new.file.bytes)?;
    let Some(blocks) = blocks(&base_layout, &layout) else {
        return Err(damaged("the delta has other tensors than its base"));
    };
    let writing = |error: io::Error| MirrorFailure::io("write", new.path, &error);
    let mut to = Digesting::new(create(new.path).map_err(writing)?);
    to.write(&layout.head).map_err(writing)?;
    let decoders = (0..threads(blocks.len())).map(|_| Decoder::new());
    let mut decoders = decoders.collect::<io::Result<Vec<_>>>().map_err(reading)?;
    for batch in blocks.chunks(decoders.len()) {
        limits.check()?;
        let encoded = batch.iter().map(|block| read_block(&mut source, block));
        let encoded = encoded.collect::<io::Result<Vec<_>>>().map_err(reading)?;
        let decode = |((decoder, block), encoded): ((&mut Decoder, &Block), Vec<u8>)| {
            let mut decoded = vec![0; block.bytes];
            base_file.read_exact_at(&mut decoded, block.base)?;
            decoder.decode(&encoded, &mut decoded, block.width)?;
            Ok(decoded)
        };
        for block in in_parallel(decoders.iter_mut().zip(batch).zip(encoded), &decode) {
            to.write(&block.map_err(reading)?).map_err(writing)?;
        }
    }
    if source.read(&mut [0]).map_err(reading)? != 0 {
        return Err(damaged("the delta is too long"));
    }
    let found = to.finish(&new.file.name).map_err(writing)?;
    if found == *new.file { Ok(()) } else { Err(damaged("the delta and its base give other contents")) }
}

/// Reads the header of a delta of `bytes`, and the beginning of the new file.
fn read_head(source: &mut impl Read, bytes: u64) -> io::Result<(Head, Vec<u8>)> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let mut magic = [0; MAGIC.len()];
    source.read_exact(&mut magic)?;
    let mut length = [0; 8];
    source.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if magic != *MAGIC || length > LARGEST_HEAD {
        return Err(invalid());
    }
    let mut head = vec![0; length as usize];
    source.read_exact(&mut head)?;
    let head: Head = serde_json::from_slice(&head).map_err(|_| invalid())?;
    if head.before > bytes {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut before = vec![0; head.before as usize];
    source.read_exact(&mut before)?;
    Ok((head, before))
}

fn read_block(source: &mut impl Read, block: &Block) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    source.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    // A form and at most as many bytes as the block has.
    if length > block.bytes + 1 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut encoded = vec![0; length];
    source.read_exact(&mut encoded)?;
    Ok(encoded)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    use proptest::prelude::*;

    use super::*;
    use crate::mirror::block::LEVEL;
    use crate::mirror::copy::create;
    use crate::mirror::tensors::tests::safetensors;

    type Tensors = Vec<(&'static str, Dtype, Vec<u8>)>;

    struct Files {
        folder: tempfile::TempDir,
    }

    impl Files {
        fn new() -> Self {
            Self { folder: tempfile::tempdir().unwrap() }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        fn write(&self, name: &str, bytes: &[u8]) -> (PathBuf, MirrorFile) {
            fs::write(self.path(name), bytes).unwrap();
            let crc = crc32c::crc32c(bytes);
            (self.path(name), MirrorFile { name: name.to_owned(), bytes: bytes.len() as u64, crc })
        }

        /// The delta of two files, if there is one.
        fn delta(&self, base: &[u8], new: &[u8]) -> Option<Vec<u8>> {
            let ((base, base_file), (new, new_file)) = (self.write("base", base), self.write("new", new));
            let ending = AtomicBool::new(false);
            let mut out = Digesting::new(File::create(self.path("delta")).unwrap());
            let base = Known { path: &base, file: &base_file };
            let new = Known { path: &new, file: &new_file };
            let is_smaller = encode(base, new, &mut out, LEVEL, limits(&ending)).unwrap();
            is_smaller.then(|| fs::read(self.path("delta")).unwrap())
        }

        /// What a delta makes of a base.
        fn decoded(&self, base: &[u8], delta: &[u8], new: &[u8]) -> Result<Vec<u8>, MirrorFailure> {
            let ((base, base_file), (_, new_file)) = (self.write("base", base), self.write("new", new));
            let (delta, _) = self.write("delta", delta);
            let (target, ending) = (self.path("decoded"), AtomicBool::new(false));
            let base = Known { path: &base, file: &base_file };
            let new = Known { path: &target, file: &new_file };
            decode(base, &delta, new, limits(&ending), &create)?;
            Ok(fs::read(&target).unwrap())
        }
    }

    fn limits(is_ending: &AtomicBool) -> Limits<'_> {
        Limits { deadline: Instant::now() + Duration::from_mins(2), is_ending }
    }

    fn weights(scale: u8) -> Tensors {
        let ramp = |length: usize| (0..length).map(|at| (at / 7) as u8).collect::<Vec<u8>>();
        let mut large = ramp(2 * BLOCK as usize + 6);
        large.iter_mut().step_by(1001).for_each(|byte| *byte ^= scale);
        vec![("large", Dtype::BF16, large), ("small", Dtype::F32, vec![scale; 12])]
    }

    #[test]
    fn a_delta_gives_the_new_file_and_is_smaller() {
        let files = Files::new();
        let (base, new) = (safetensors(&weights(0)), safetensors(&weights(3)));
        let delta = files.delta(&base, &new).unwrap();
        assert!(delta.len() < new.len() / 50, "{} of {}", delta.len(), new.len());
        assert_eq!(files.decoded(&base, &delta, &new).unwrap(), new);
    }

    #[test]
    fn tensors_may_move_and_metadata_may_change() {
        let files = Files::new();
        let (mut before, after) = (weights(0), weights(3));
        // Another type puts it in another place.
        before.push(("other", Dtype::F64, vec![5; 80]));
        let mut moved = after.clone();
        moved.push(("other", Dtype::F64, vec![5; 80]));
        let base = safetensors(&before);
        let views: Vec<_> = moved.iter().collect();
        let mut new = safetensors(&moved);
        assert_eq!(views.len(), 3);
        let delta = files.delta(&base, &new).unwrap();
        assert_eq!(files.decoded(&base, &delta, &new).unwrap(), new);
        // Spaces after the JSON text move all data.
        let length = u64::from_le_bytes(new[..8].try_into().unwrap());
        new.splice(8 + length as usize..8 + length as usize, [b' '; 16]);
        new[..8].copy_from_slice(&(length + 16).to_le_bytes());
        let delta = files.delta(&base, &new).unwrap();
        assert_eq!(files.decoded(&base, &delta, &new).unwrap(), new);
    }

    #[test]
    fn other_tensors_have_no_delta() {
        let files = Files::new();
        let base = safetensors(&weights(0));
        let mut more = weights(0);
        more.push(("more", Dtype::F32, vec![0; 4]));
        let mut renamed = weights(0);
        renamed[1].0 = "tiny";
        let mut longer = weights(0);
        longer[1].2.extend([0; 4]);
        let mut retyped = weights(0);
        retyped[1].1 = Dtype::I32;
        for other in [more, weights(0)[..1].to_vec(), renamed, longer, retyped] {
            let other = safetensors(&other);
            assert!(files.delta(&base, &other).is_none());
            assert!(files.delta(&other, &base).is_none());
        }
    }

    #[test]
    fn a_delta_that_is_not_smaller_is_not_used() {
        let files = Files::new();
        let mut state = 1u64;
        let mut noise = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as u8
        };
        let mut random = || safetensors(&[("a", Dtype::BF16, (0..100_000).map(|_| noise()).collect())]);
        assert!(files.delta(&random(), &random()).is_none());
    }

    #[test]
    fn a_delta_needs_its_own_base_and_version() {
        let files = Files::new();
        let [base, new, other] = [0, 3, 9].map(|scale| safetensors(&weights(scale)));
        let delta = files.delta(&base, &new).unwrap();
        let error = files.decoded(&other, &delta, &new).unwrap_err();
        assert!(error.to_string().contains("belongs to another base"), "{error}");
        let error = files.decoded(&base, &delta, &other).unwrap_err();
        assert!(error.to_string().contains("that of another version"), "{error}");
        // A base that is not what it is said to be.
        let (path, file) = files.write("base", &base);
        let mut bent = base.clone();
        *bent.last_mut().unwrap() ^= 1;
        fs::write(&path, &bent).unwrap();
        let (_, new_file) = files.write("new", &new);
        let (delta, _) = files.write("delta", &delta);
        let (target, ending) = (files.path("decoded"), AtomicBool::new(false));
        let base = Known { path: &path, file: &file };
        let new = Known { path: &target, file: &new_file };
        let error = decode(base, &delta, new, limits(&ending), &create).unwrap_err();
        assert!(error.to_string().contains("give other contents"), "{error}");
    }

    #[test]
    fn damaged_deltas_are_refused() {
        let files = Files::new();
        let short = |scale: u8| {
            let mut tensors = weights(scale);
            tensors[0].2.truncate(4000);
            safetensors(&tensors)
        };
        let (base, new) = (short(0), short(3));
        let delta = files.delta(&base, &new).unwrap();
        assert_eq!(files.decoded(&base, &delta, &new).unwrap(), new);
        for at in 0..delta.len() {
            let mut damaged = delta.clone();
            damaged[at] ^= 0x10;
            // Bytes that mean nothing, such as spaces of a header, may be anything; the result is right or refused.
            if let Ok(decoded) = files.decoded(&base, &damaged, &new) {
                assert_eq!(decoded, new, "byte {at}");
            }
            assert!(files.decoded(&base, &delta[..at], &new).is_err(), "{at} bytes");
        }
        let mut longer = delta;
        longer.push(0);
        assert!(files.decoded(&base, &longer, &new).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn any_files_of_equal_tensors_come_back(
            pairs in prop::collection::vec(any::<(u8, u8)>(), 0..2000),
            similar in any::<bool>(),
            kind in 0usize..5,
        ) {
            let dtype = [Dtype::BF16, Dtype::F32, Dtype::U8, Dtype::F64, Dtype::F16][kind];
            let count = pairs.len() / 8 * 8;
            let base: Vec<u8> = pairs[..count].iter().map(|pair| pair.0).collect();
            let new = pairs[..count].iter().map(|(base, new)| if similar { base ^ (new & 1) } else { *new });
            let zeros = vec![0; 4000];
            let base = safetensors(&[("a", dtype, base), ("b", Dtype::BF16, zeros.clone())]);
            let new = safetensors(&[("a", dtype, new.collect()), ("b", Dtype::BF16, zeros)]);
            let files = Files::new();
            let delta = files.delta(&base, &new).unwrap();
            prop_assert_eq!(files.decoded(&base, &delta, &new).unwrap(), new);
        }
    }
}
