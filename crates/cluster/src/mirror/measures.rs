//! Bytes and seconds of copies and deltas, for bench/README.md:
//!
//! ```sh
//! cargo test --release -p rloom-cluster --lib mirror::measures -- --ignored --nocapture
//! ```
//!
//! `RLOOM_MEASURE_LAYERS` changes the number of layers (24), `RLOOM_MEASURE_ROUNDS` that of rounds (5).

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::net::Ipv4Addr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use rloom_wire::{Options, Token};
use safetensors::Dtype;
use serde_json::{Map, Value, json};

use super::block::{Decoder, Encoder, LEVEL};
use super::keeper::Keeper;
use super::message::{MirrorCopy, MirrorOrder, MirrorSource};
use super::tensors::Layout;

const HIDDEN: usize = 1024;
const FFN: usize = 4096;
const VOCABULARY: usize = 32_000;
const RATE: f32 = 1e-6;

/// Pseudo-random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Two normal deviates.
    fn normal(&mut self) -> (f32, f32) {
        let unit = |bits: u64| ((bits >> 40) as f32 + 0.5) / (1u64 << 24) as f32;
        let (a, b) = (unit(self.next()), unit(self.next()));
        let (radius, angle) = ((-2.0 * a.ln()).sqrt(), 2.0 * std::f32::consts::PI * b);
        (radius * angle.cos(), radius * angle.sin())
    }
}

/// Names, sizes and scales of the tensors.
fn shapes(layers: usize) -> Vec<(String, usize, f32)> {
    let mut shapes = vec![("model.embed_tokens.weight".to_owned(), VOCABULARY * HIDDEN, 0.02)];
    for layer in 0..layers {
        let mut add = |name: &str, elements, scale| {
            shapes.push((format!("model.layers.{layer}.{name}.weight"), elements, scale));
        };
        add("input_layernorm", HIDDEN, 0.0);
        for name in ["q_proj", "k_proj", "v_proj", "o_proj"] {
            add(&format!("self_attn.{name}"), HIDDEN * HIDDEN, 0.02);
        }
        add("post_attention_layernorm", HIDDEN, 0.0);
        for name in ["gate_proj", "up_proj", "down_proj"] {
            add(&format!("mlp.{name}"), HIDDEN * FFN, 0.02);
        }
    }
    shapes.push(("model.norm.weight".to_owned(), HIDDEN, 0.0));
    shapes
}

/// The first step of AdamW: betas 0.9 and 0.999, epsilon 1e-8, weight decay 0.01.
fn adamw(weight: f32, gradient: f32) -> f32 {
    let (m, v) = (0.1 * gradient, 0.001 * gradient * gradient);
    let (m, v) = (m / (1.0 - 0.9), v / (1.0 - 0.999));
    weight * (1.0 - RATE * 0.01) - RATE * m / (v.sqrt() + 1e-8)
}

/// Writes the weights before and after a step to `v1` and `v2`; returns the number of parameters.
fn write_versions(share: &Path, layers: usize, dtype: Dtype) -> usize {
    let width = dtype.bitsize() / 8;
    let (mut header, mut end) = (Map::<String, Value>::new(), 0);
    for (name, elements, _) in shapes(layers) {
        let offsets = [end, end + elements * width];
        end = offsets[1];
        let dtype = if width == 2 { "BF16" } else { "F32" };
        header.insert(name, json!({ "dtype": dtype, "shape": [elements], "data_offsets": offsets }));
    }
    let header = Value::Object(header).to_string();
    let mut files = ["v1", "v2"].map(|version| {
        let folder = share.join(version);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("config.json"), "{}").unwrap();
        let file = File::create(folder.join("model.safetensors")).unwrap();
        let mut file = BufWriter::with_capacity(1 << 20, file);
        file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
        file.write_all(header.as_bytes()).unwrap();
        file
    });
    let mut random = Random(1);
    for (_, elements, scale) in shapes(layers) {
        for _ in 0..elements / 2 {
            let ((a, b), (c, d)) = (random.normal(), random.normal());
            for (normal, gradient) in [(a, c), (b, d)] {
                let before = if scale == 0.0 { 1.0 } else { scale * normal };
                for (file, value) in files.iter_mut().zip([before, adamw(before, 1e-3 * gradient)]) {
                    let written = match width {
                        2 => file.write_all(&half::bf16::from_f32(value).to_le_bytes()),
                        _ => file.write_all(&value.to_le_bytes()),
                    };
                    written.unwrap();
                }
            }
        }
    }
    for file in &mut files {
        file.flush().unwrap();
    }
    end / width
}

/// Processor seconds of this thread, which other programs do not lengthen.
fn thread_seconds() -> f64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1e9
}

/// Processor seconds of this process, both nodes and all threads.
fn process_seconds() -> f64 {
    let text = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
    // User and system time in ticks.
    [11, 12].map(|at: usize| fields[at].parse::<f64>().unwrap()).iter().sum::<f64>() / 100.0
}

fn median(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let middle = values[values.len() / 2];
    format!("{middle:.2} s ({:.2} to {:.2})", values[0], values[values.len() - 1])
}

/// Bytes, and processor seconds of both directions, with and without planes.
fn measure_blocks(share: &Path, rounds: usize) {
    let open = |version: &str| {
        let path = share.join(version).join("model.safetensors");
        let file = File::open(&path).unwrap();
        let layout = Layout::read(&path, &file).unwrap();
        (file, layout)
    };
    let ((base, layout), (new, _)) = (open("v1"), open("v2"));
    let width = layout.tensors[0].dtype.bitsize() / 8;
    let (mut before, mut after, mut changed, mut elements) = (Vec::new(), Vec::new(), 0, 0);
    let variants = [(LEVEL, width), (LEVEL, 1), (3, width), (-5, width)];
    let mut results = variants.map(|_| (0, Vec::new(), Vec::new()));
    for round in 0..rounds {
        for ((level, planes), (bytes, encoding, decoding)) in variants.into_iter().zip(&mut results) {
            let mut encoder = Encoder::new(level).unwrap();
            let mut decoder = Decoder::new().unwrap();
            let (mut encode, mut decode) = (0.0, 0.0);
            *bytes = 0;
            for tensor in &layout.tensors {
                for at in (0..tensor.bytes).step_by(4 << 20) {
                    let count = (tensor.bytes - at).min(4 << 20) as usize;
                    before.resize(count, 0);
                    after.resize(count, 0);
                    base.read_exact_at(&mut before, tensor.start + at).unwrap();
                    new.read_exact_at(&mut after, tensor.start + at).unwrap();
                    if (round, level, planes) == (0, LEVEL, width) {
                        let pairs = before.chunks(width).zip(after.chunks(width));
                        changed += pairs.filter(|(before, after)| before != after).count();
                        elements += count / width;
                    }
                    let start = thread_seconds();
                    let encoded = encoder.encode(&before, &after, planes).unwrap();
                    let middle = thread_seconds();
                    *bytes += encoded.len();
                    decoder.decode(&encoded, &mut before, planes).unwrap();
                    encode += middle - start;
                    decode += thread_seconds() - middle;
                    assert!(before == after);
                }
            }
            encoding.push(encode);
            decoding.push(decode);
        }
    }
    println!("elements that change: {:.2} %", 100.0 * changed as f64 / elements as f64);
    for ((level, planes), (bytes, encode, decode)) in variants.into_iter().zip(results) {
        let (bytes, encode, decode) = (bytes as f64 / 1e6, median(encode), median(decode));
        println!(
            "level {level}, {planes} planes: {bytes:.1} MB, encode {encode}, decode {decode} of one core"
        );
    }
}

/// Seconds from the share, from a parent in full, and from a parent by its delta.
fn measure_copies(share: &Path, rounds: usize) {
    let token = Token::random().unwrap();
    let keeper = |index| Keeper::new(token.clone(), Options::default(), index, Ipv4Addr::LOCALHOST.into());
    let [parent, child] = [0, 1].map(keeper);
    let order = |version: &str| MirrorOrder {
        version: version.to_owned(),
        source: share.join(version),
        keep: vec!["v1".to_owned()],
        timeout_ms: 600_000,
        parent_ms: 600_000,
        ..MirrorOrder::default()
    };
    let address = parent.serve(None).unwrap();
    let mut files = Vec::new();
    for keeper in [&parent, &child] {
        for version in ["v1", "v2"] {
            files = keeper.copy(&order(version)).unwrap().files;
        }
    }
    let from_parent = MirrorOrder { files: Some(files), parents: vec![address], ..order("v2") };
    let by_delta = MirrorOrder { base: Some("v1".to_owned()), ..from_parent.clone() };
    let timed = |order: &MirrorOrder| -> ([f64; 2], MirrorCopy) {
        child.keep(&["v1".to_owned()]);
        let (start, before) = (Instant::now(), process_seconds());
        let copy = child.copy(order).unwrap();
        ([start.elapsed().as_secs_f64(), process_seconds() - before], copy)
    };
    let mut seconds: [Vec<[f64; 2]>; 4] = Default::default();
    let mut bytes = [0; 2];
    for _ in 0..rounds {
        let (time, copy) = timed(&order("v2"));
        assert_eq!(copy.from, MirrorSource::Share);
        seconds[0].push(time);
        let (time, copy) = timed(&from_parent);
        assert_eq!(copy.from, MirrorSource::Peer(address));
        seconds[1].push(time);
        bytes[0] = copy.received;
        *parent.version("v2").unwrap().delta() = None;
        for own in &mut seconds[2..] {
            let (time, copy) = timed(&by_delta);
            assert_eq!(copy.from, MirrorSource::Delta(address));
            own.push(time);
            bytes[1] = copy.received;
        }
    }
    let names = ["share", "parent, full", "parent, delta that it encodes first", "parent, delta"];
    for (name, seconds) in names.into_iter().zip(seconds) {
        let [wall, cores] = [0, 1].map(|at| median(seconds.iter().map(|both| both[at]).collect()));
        println!("copy from {name}: {wall}, processor {cores}");
    }
    let [full, delta] = bytes.map(|bytes| bytes as f64 / 1e6);
    println!("received: {full:.1} MB in full, {delta:.1} MB by delta ({:.2} %)", 100.0 * delta / full);
    parent.end();
    child.end();
}

#[test]
#[ignore = "takes minutes and gigabytes"]
fn measures() {
    let variable = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let layers = variable("RLOOM_MEASURE_LAYERS", 24);
    let rounds = variable("RLOOM_MEASURE_ROUNDS", 5);
    for dtype in [Dtype::BF16, Dtype::F32] {
        let share = tempfile::tempdir().unwrap();
        let parameters = write_versions(share.path(), layers, dtype);
        println!("{dtype}: {:.1} M parameters", parameters as f64 / 1e6);
        measure_blocks(share.path(), rounds);
        measure_copies(share.path(), rounds);
    }
}
