//! Bitwise exactness: scheduling affects no result, and sampled log-probabilities are those of training.

use std::path::Path;
use std::sync::Arc;

use rloom_core::{StopReason, VersionSpan};
use rloom_engine::{GenerateRequest, Generation, RolloutEngine, RolloutSettings, Speculation};
use rloom_model::{Dtype, GenerationConfig, Model};
use rloom_ops::Ctx;

use crate::rollout::support::{complete, config, mismatch, mixed_requests, model};

/// The completion as an abort after this number of tokens would leave it.
pub(crate) fn truncated(whole: &Generation, tokens: usize) -> Generation {
    let versions = whole
        .versions
        .iter()
        .map(|span| VersionSpan { range: span.range.start..span.range.end.min(tokens), ..span.clone() });
    Generation {
        tokens: whole.tokens[..tokens].to_vec(),
        logprobs: whole.logprobs[..tokens].to_vec(),
        versions: versions.filter(|span| !span.range.is_empty()).collect(),
        stop: StopReason::Aborted,
        ..whole.clone()
    }
}

fn pairs(requests: &[GenerateRequest], generations: &[Generation]) -> Vec<(GenerateRequest, Generation)> {
    requests.iter().cloned().zip(generations.iter().cloned()).collect()
}

const FORMATS: [Dtype; 2] = [Dtype::F32, Dtype::Bf16];

#[test]
fn lanes_threads_batches_chunks_and_sharing_change_no_bit() {
    for compute in FORMATS {
        scheduling_changes_no_bit(&Arc::new(Model::init(&config(), 1).with_dtype(compute)));
    }
}

fn scheduling_changes_no_bit(model: &Arc<Model>) {
    let requests = mixed_requests(67);
    let alone = RolloutSettings { lanes: 1, max_batch: 1, prefill_chunk: 1, ..RolloutSettings::default() };
    let (expected, _) = complete(model, &alone, 1, &requests);
    assert!(expected.iter().any(|g| g.tokens.len() > 40), "long completions are among them");
    let configurations = [
        (1, RolloutSettings { lanes: 1, ..RolloutSettings::default() }),
        (2, RolloutSettings::default()),
        (3, RolloutSettings { lanes: 1, prefill_chunk: 7, max_batch: 5, ..RolloutSettings::default() }),
        (4, RolloutSettings { lanes: 2, prefill_chunk: 33, ..RolloutSettings::default() }),
        (2, RolloutSettings { lanes: 5, max_batch: 2, ..RolloutSettings::default() }),
        // The engine's own threads.
        (1, RolloutSettings { threads: 3, ..RolloutSettings::default() }),
        (3, RolloutSettings { threads: 2, lanes: 1, ..RolloutSettings::default() }),
        (2, RolloutSettings { speculation: Speculation::Ngram, ..RolloutSettings::default() }),
        (3, RolloutSettings { speculation: Speculation::Ngram, lanes: 1, ..RolloutSettings::default() }),
    ];
    for (threads, settings) in configurations {
        let (generations, _) = complete(model, &settings, threads, &requests);
        assert_eq!(generations, expected, "{:?}, {threads} threads, {settings:?}", model.config().dtype);
    }
    // Without groups, in another order and so in other batches.
    let mut unshared: Vec<_> =
        requests.iter().map(|r| GenerateRequest { group: None, ..r.clone() }).collect();
    unshared.reverse();
    let (mut generations, _) = complete(model, &RolloutSettings::default(), 2, &unshared);
    generations.reverse();
    assert_eq!(generations, expected);
}

#[test]
fn preemption_changes_no_bit() {
    let model = model(1);
    let requests = mixed_requests(67);
    let (expected, _) = complete(&model, &RolloutSettings::default(), 2, &requests);
    // A block takes 2 layers · 2 heads · 12 · 16 tokens · 8 bytes = 6 KiB: ten blocks for each of sixteen lanes, of
    // which the longest completion takes nine.
    let tiny = RolloutSettings { lanes: 16, kv_memory_mib: 1, ..RolloutSettings::default() };
    let many: Vec<_> = (0..12)
        .flat_map(|round| {
            let own = move |group: Option<u64>| group.map(|g| g + 100 * round);
            requests.iter().map(move |r| GenerateRequest { group: own(r.group), ..r.clone() })
        })
        .collect();
    let (generations, engine) = complete(&model, &tiny, 1, &many);
    for (i, generation) in generations.iter().enumerate() {
        assert_eq!(generation, &expected[i % requests.len()]);
    }
    let statistics = engine.statistics();
    assert!(statistics.preempted > 0, "{statistics:?}");
    assert!(statistics.reused_tokens > 0, "{statistics:?}");
}

#[test]
fn priorities_change_no_bit() {
    let model = model(1);
    let requests = mixed_requests(67);
    let (expected, _) = complete(&model, &RolloutSettings::default(), 2, &requests);
    let ranked: Vec<_> = requests
        .iter()
        .zip(0u64..)
        .map(|(r, i)| GenerateRequest { priority: (i * 7) % 5, ..r.clone() })
        .collect();
    let narrow = RolloutSettings { max_batch: 3, ..RolloutSettings::default() };
    let (generations, _) = complete(&model, &narrow, 2, &ranked);
    assert_eq!(generations, expected);
}

/// The largest |sampling − training| difference is exactly 0, recomputed from token ids alone by packed forward passes
/// of several packings and thread counts, for each family, with and without windows, and in both formats.
#[test]
fn sampled_log_probabilities_are_the_trainers() {
    for compute in FORMATS {
        let named = ["tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-mistral-window", "tiny-qwen2-window"];
        let named = named.map(|name| Model::load(&crate::rollout::support::fixture(name)).unwrap());
        for model in named.into_iter().chain([Model::init(&config(), 1)]) {
            is_sampled_as_trained(&Arc::new(model.with_dtype(compute)));
        }
    }
}

fn is_sampled_as_trained(model: &Arc<Model>) {
    let requests = mixed_requests(model.config().vocab_size as u32);
    let settings = RolloutSettings { prefill_chunk: 11, ..RolloutSettings::default() };
    let (generations, _) = complete(model, &settings, 2, &requests);
    let pairs = pairs(&requests, &generations);
    for threads in [2, 3] {
        let ctx = Ctx::new(threads).unwrap();
        assert_eq!(mismatch(model, &ctx, &pairs), 0.0);
        for some in pairs.chunks(4) {
            assert_eq!(mismatch(model, &ctx, some), 0.0);
        }
    }
}

#[test]
fn a_completion_resumed_after_a_prefix_is_identical() {
    let model = model(1);
    let requests = mixed_requests(67);
    let (whole, _) = complete(&model, &RolloutSettings::default(), 2, &requests);
    for cut in [1, 5, 16, 19] {
        let resumed: Vec<_> = requests
            .iter()
            .zip(&whole)
            .map(|(r, g)| GenerateRequest {
                prefix: g.tokens[..cut.min(g.tokens.len())].to_vec(),
                ..r.clone()
            })
            .collect();
        let (rest, _) = complete(&model, &RolloutSettings::default(), 2, &resumed);
        for ((request, rest), whole) in resumed.iter().zip(rest).zip(&whole) {
            let first = truncated(whole, request.prefix.len());
            assert_eq!(&first.then(rest), whole, "also when the prefix is complete");
        }
    }
}

/// The exactness test can fail: it detects the same function with one sum in another order. The decoding model has the
/// neurons of its feed-forward layers in reverse order, so that only the order of the down projection's sums differs.
#[test]
fn another_reduction_order_in_decoding_is_detected() {
    let trained = model(1);
    let folder = tempfile::tempdir().unwrap();
    trained.save(folder.path(), &GenerationConfig::default()).unwrap();
    reverse_neurons(&folder.path().join("model.safetensors"), &trained);
    let decoding = Arc::new(Model::load(folder.path()).unwrap());

    let requests = mixed_requests(67);
    let (generations, _) = complete(&decoding, &RolloutSettings::default(), 2, &requests);
    let pairs = pairs(&requests, &generations);
    let ctx = Ctx::new(2).unwrap();
    assert_eq!(mismatch(&decoding, &ctx, &pairs), 0.0, "it is exact with its own weights");
    let difference = mismatch(&trained, &ctx, &pairs);
    assert!(difference > 0.0, "the order of the sums was not detected");
    assert!(difference < 1e-3, "{difference}: this is more than another order");
}

/// Reverses the neurons of every feed-forward layer in a file written by the model.
fn reverse_neurons(path: &Path, model: &Model) {
    let (d, f) = (config().hidden_size, config().intermediate_size);
    let mut bytes = std::fs::read(path).unwrap();
    let header_len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header_len]).unwrap();
    let mut reversed = 0;
    for (spec, values) in model.named_tensors() {
        let position = |i: usize| {
            if spec.name.ends_with("down_proj.weight") {
                i / f * f + (f - 1 - i % f)
            } else {
                (f - 1 - i / d) * d + i % d
            }
        };
        if spec.name.contains(".mlp.") {
            let start = header[&spec.name]["data_offsets"][0].as_u64().unwrap() as usize + 8 + header_len;
            for i in 0..values.len() {
                let at = start + 4 * i;
                bytes[at..at + 4].copy_from_slice(&values[position(i)].to_le_bytes());
            }
            reversed += 1;
        }
    }
    assert_eq!(reversed, 3 * model.config().layers);
    std::fs::write(path, bytes).unwrap();
}
