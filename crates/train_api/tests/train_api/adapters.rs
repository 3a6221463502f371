//! Adapters: compared with the program's own loop, several over one base, their checkpoints and samplers.

use std::path::PathBuf;
use std::sync::Arc;

use rloom_algo::losses::Sft;
use rloom_algo::{Aggregation, Surrogate};
use rloom_model::{Dtype, LoraConfig, LoraTarget, Model};
use rloom_train_api::{BaseModel, TrainApi, TrainApiError, TrainApiSettings};
use serde_json::{Value, json};

use crate::client::{Client, Trained, floats};
use crate::loops::{BOUND, OwnLoop, RATE, STEPS, distance, sequences, supervised};
use crate::server::TestServer;

/// The default of the SDK but for the rank.
fn all(rank: usize) -> Value {
    json!({"rank": rank, "seed": 5, "train_unembed": true, "train_mlp": true, "train_attn": true})
}

fn folder(server: &TestServer, path: &str) -> PathBuf {
    server.checkpoints().join(path.strip_prefix("tinker://").unwrap().replace(':', "-"))
}

/// Tensors of an adapter.
fn factors(model: &Model) -> Vec<f32> {
    model.trained_tensors().flat_map(|(_, values)| values.iter().copied()).collect()
}

fn stored(server: &TestServer, path: &str) -> Vec<f32> {
    factors(&server.base.model.with_stored_adapter(&folder(server, path)).unwrap())
}

fn train(model: &Trained<'_>, step: usize) {
    model.pass("cross_entropy", &supervised(&sequences(step))).unwrap();
    model.step(RATE).unwrap();
}

#[test]
fn updates_are_those_of_the_programs_own_loop() {
    for (settings, targets) in [
        (all(4), [&LoraTarget::LAYER[..], &[LoraTarget::LmHead]].concat()),
        (
            json!({"rank": 3, "seed": 5, "train_unembed": false, "train_mlp": false}),
            LoraTarget::LAYER[..4].to_vec(),
        ),
        (json!({"rank": 3, "seed": 5, "train_attn": false, "train_mlp": false}), vec![LoraTarget::LmHead]),
    ] {
        let server = TestServer::adapters(Dtype::F32);
        let client = Client::new(&server);
        let model = client.adapter(0, &settings).unwrap();
        let rank = settings["rank"].as_u64().unwrap() as usize;
        let start =
            Model::clone(&server.base.model).with_adapter(LoraConfig::new(rank, 32.0, false, &targets), 5);
        let mut own = OwnLoop::of(&server, Arc::new(start.clone()), Aggregation::SequenceSum);
        for step in 0..STEPS {
            train(&model, step);
            let all = sequences(step);
            let logprobs: Vec<Vec<f32>> =
                all.iter().map(|(tokens, prompt)| vec![-1.0; tokens.len() - prompt]).collect();
            own.step(Surrogate::Sft(Sft), &all, &logprobs, &[0.0; 6]);
        }
        let trained = stored(&server, &model.save("last").unwrap());
        let deviation = distance(&factors(&start), &trained, &factors(own.policy()));
        println!("{targets:?}: deviation of the update after {STEPS} steps: {deviation:.1e}");
        assert!(deviation < BOUND, "{targets:?}: {deviation}");
    }
}

/// Models of one server share the base, and each trains as if it were alone.
#[test]
fn adapters_over_one_base_do_not_see_each_other() {
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let server = TestServer::adapters(dtype);
        let client = Client::new(&server);
        let rank = |rank: usize| all(rank);
        let (one, two) = (client.adapter(0, &rank(4)).unwrap(), client.adapter(1, &rank(2)).unwrap());
        for step in 0..3 {
            train(&one, step);
            train(&two, step + 3);
        }
        let together = [&one, &two].map(|model| stored(&server, &model.save("last").unwrap()));
        let alone = TestServer::adapters(dtype);
        let client = Client::new(&alone);
        for (number, (ranks, first)) in [(4, 0), (2, 3)].into_iter().enumerate() {
            let model = client.adapter(number as u32, &rank(ranks)).unwrap();
            (first..first + 3).for_each(|step| train(&model, step));
            assert_eq!(stored(&alone, &model.save("last").unwrap()), together[number], "{dtype:?}");
            assert_eq!(client.post("unload_model", &json!({"model_id": model.id})).status, 200);
        }
    }
}

/// Samples have the log-probabilities that training computes, bit by bit, and are not those of the base.
#[test]
fn samples_are_those_of_the_adapter() {
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let server = TestServer::adapters(dtype);
        let client = Client::new(&server);
        let model = client.adapter(0, &all(4)).unwrap();
        (0..3).for_each(|step| train(&model, step));
        let prompt = [1, 5, 9];
        let sampler = model.publish();
        let sampled = client.sample(&sampler, &prompt, 4, &json!({"seed": 1, "stop": []})).unwrap();
        let all: Vec<(Vec<u32>, usize)> = sampled
            .sequences
            .iter()
            .map(|sequence| ([&prompt[..], &sequence.token_ids()].concat(), prompt.len()))
            .collect();
        let scored = model.forward("cross_entropy", &supervised(&all)).unwrap().logprobs();
        for (sequence, scored) in sampled.sequences.iter().zip(scored) {
            assert_eq!(floats(&sequence.logprobs), scored[prompt.len() - 1..], "{dtype:?}");
        }
        // A name, which is read from its folder when it is sampled from.
        let body = json!({"model_id": model.id, "seq_id": model.number(), "path": "named"});
        let path = client.run("save_weights_for_sampler", &body).unwrap()["path"].clone();
        let begin = |number: u32, key: &str, value: &Value| {
            let body = json!({"session_id": client.session, "sampling_session_seq_id": number, key: value});
            client.post("create_sampling_session", &body).json()["sampling_session_id"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        let named = begin(100, "model_path", &path);
        let again = client.sample(&named, &prompt, 4, &json!({"seed": 1, "stop": []})).unwrap();
        assert!(again.sequences.iter().zip(&sampled.sequences).all(|(a, b)| a.logprobs == b.logprobs));
        let base = begin(101, "base_model", &json!("tiny"));
        let base = client.sample(&base, &prompt, 4, &json!({"seed": 1, "stop": []})).unwrap();
        assert!(base.sequences.iter().zip(&sampled.sequences).any(|(a, b)| a.logprobs != b.logprobs));
    }
}

#[test]
fn checkpoints_are_adapters_that_training_continues() {
    let server = TestServer::adapters(Dtype::F32);
    let client = Client::new(&server);
    let settings = json!({"rank": 4, "train_unembed": true, "train_mlp": false});
    let model = client.adapter(0, &settings).unwrap();
    train(&model, 0);
    let path = model.save("one").unwrap();
    let own = folder(&server, &path);
    assert!(own.join("adapter_model.safetensors").is_file() && !own.join("model.safetensors").exists());
    // Any program opens it.
    assert!(Model::load(&own).unwrap().lora().is_some());
    let expected = json!({
        "base_model": "tiny", "is_lora": true, "lora_rank": 4, "train_attn": true, "train_mlp": false, "train_unembed": true,
    });
    assert_eq!(client.post("weights_info", &json!({"tinker_path": path})).json(), expected);
    let info = client.post("get_info", &json!({"model_id": model.id})).json();
    assert_eq!((&info["is_lora"], &info["lora_rank"]), (&json!(true), &json!(4)));
    train(&model, 1);
    let expected = stored(&server, &model.save("two").unwrap());
    let load = |number: u32, optimizer: bool| {
        let body = json!({
            "session_id": client.session, "model_seq_id": number, "path": path, "optimizer": optimizer,
        });
        let id = client.run("load_weights", &body).unwrap()["model_id"].as_str().unwrap().to_owned();
        let loaded = client.existing(&id);
        train(&loaded, 1);
        stored(&server, &loaded.save("two").unwrap())
    };
    assert_eq!(load(1, true), expected);
    assert_ne!(load(2, false), expected);
    // Only a model with the same adapter goes back to it.
    let back = |model: &Trained<'_>| {
        let body = json!({"model_id": model.id, "seq_id": model.number(), "path": path, "optimizer": true});
        client.run("load_weights", &body)
    };
    back(&model).unwrap();
    train(&model, 1);
    assert_eq!(stored(&server, &model.save("again").unwrap()), expected);
    let other = client.adapter(3, &all(2)).unwrap();
    assert!(back(&other).unwrap_err().contains("other settings"));
}

#[test]
fn what_cannot_be_adapted_is_refused() {
    let server = TestServer::adapters(Dtype::F32);
    let client = Client::new(&server);
    for (settings, expected) in [
        (json!({"rank": 0}), "`rank` must be from 1"),
        (json!({"train_attn": false, "train_mlp": false, "train_unembed": false}), "must be true"),
        (json!({"rank": 4, "use_dora": true}), "unknown field `use_dora`"),
    ] {
        let refused = client.adapter(0, &settings).err().unwrap();
        assert!(refused.starts_with("400") && refused.contains(expected), "{refused}");
    }
    assert_eq!(server.api.models(), 0);
}

#[test]
fn an_adapter_is_not_the_base_of_others() {
    let (own, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let base = crate::server::base();
    let start = |model: Model| {
        let base = BaseModel { model: Arc::new(model), ..base.clone() };
        TrainApi::new(base, folder.path().to_owned(), TrainApiSettings::default())
    };
    assert!(matches!(start(Model::clone(&base.model)), Err(TrainApiError::NoFolder)));
    let adapted =
        Model::clone(&base.model).with_adapter(LoraConfig::new(2, 4.0, false, &LoraTarget::LAYER), 1);
    assert!(matches!(start(adapted.clone()), Err(TrainApiError::AdapterServed)));
    adapted.merged().save(own.path(), &base.generation).unwrap();
    start(Model::load(own.path()).unwrap()).unwrap();
}
