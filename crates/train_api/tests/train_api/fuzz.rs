//! Damaged and random bodies: an answer with the right status, and no panic.

use rloom_core::{Purpose, RandomKey};
use serde_json::{Value, json};

use crate::client::{Client, Pass, datum, request};
use crate::server::{MODEL, TestServer};
use prost::Message;

/// Requests of the test; `RLOOM_TEST_FUZZ` overrides it.
const REQUESTS: u64 = 1500;

fn bodies(client: &Client, model: &str, sampler: &str) -> Vec<(&'static str, Value)> {
    let session = &client.session;
    vec![
        ("client/config", json!({"sdk_version": "0.38.0"})),
        ("create_session", json!({"sdk_version": "0.38.0", "tags": [], "user_metadata": {}})),
        ("session_heartbeat", json!({"session_id": session})),
        ("create_model", json!({"session_id": session, "model_seq_id": 1, "base_model": MODEL})),
        ("get_info", json!({"model_id": model})),
        ("weights_info", json!({"tinker_path": "tinker://a/weights/b"})),
        ("optim_step", json!({"model_id": model, "seq_id": 5, "adam_params": {"learning_rate": 0.1}})),
        ("save_weights", json!({"model_id": model, "seq_id": 6, "path": "a", "overwrite": true})),
        (
            "load_weights",
            json!({"model_id": model, "seq_id": 7, "path": "tinker://a/weights/b", "optimizer": true}),
        ),
        ("save_weights_for_sampler", json!({"model_id": model, "seq_id": 8, "sampling_session_seq_id": 9})),
        (
            "create_sampling_session",
            json!({"session_id": session, "sampling_session_seq_id": 10, "base_model": MODEL}),
        ),
        (
            "asample",
            json!({
                "sampling_session_id": sampler, "seq_id": 3, "num_samples": 1,
                "prompt": {"chunks": [{"tokens": [1, 2, 3], "type": "encoded_text"}]},
                "sampling_params": {"max_tokens": 2, "stop": ["a"], "seed": 1},
            }),
        ),
        ("retrieve_future", json!({"request_id": "0-0"})),
        ("cancel_future", json!({"request_id": "0-0"})),
    ]
}

/// A value that is likely to be wrong.
fn odd(draw: u64) -> Value {
    let values = [
        json!(null),
        json!(-1),
        json!(1e308),
        json!(18_446_744_073_709_551_615_u64),
        json!(""),
        json!("\u{0}"),
        json!([]),
        json!({}),
        json!(true),
        json!([[[[]]]]),
        json!("x".repeat(5000)),
        json!(0.5),
    ];
    values[draw as usize % values.len()].clone()
}

#[test]
fn damaged_requests_are_answered() {
    let server = TestServer::start();
    let client = Client::new(&server);
    let model = client.model(0);
    let sampler = model.publish();
    let bodies = bodies(&client, &model.id, &sampler);
    let pass = Pass {
        model_id: model.id.clone(),
        seq_id: 20,
        data: vec![datum(&[1, 2, 3, 4], &[("weights", &[1.0, 0.0, 1.0])])],
        loss_fn: "cross_entropy".to_owned(),
        ..Pass::default()
    }
    .encode_to_vec();
    let count = std::env::var("RLOOM_TEST_FUZZ").ok().and_then(|text| text.parse().ok()).unwrap_or(REQUESTS);
    for index in 0..count {
        let random = RandomKey::new(11, 0, Purpose::Generator, index).stream();
        let draw = |place: u64, below: u64| random.below(place, below);
        let (path, mut bytes) = if draw(0, 3) == 0 {
            ("forward_backward", pass.clone())
        } else {
            let (path, mut body) = bodies[draw(1, bodies.len() as u64) as usize].clone();
            if draw(2, 2) == 0 {
                let keys: Vec<String> = body.as_object().unwrap().keys().cloned().collect();
                let key = &keys[draw(3, keys.len() as u64) as usize];
                if draw(4, 4) == 0 {
                    body.as_object_mut().unwrap().remove(key);
                } else {
                    body[key] = odd(draw(5, 1000));
                }
            }
            (path, body.to_string().into_bytes())
        };
        if draw(6, 2) == 0 {
            for change in 0..=draw(7, 3) {
                let at = draw(10 + change, bytes.len() as u64) as usize;
                bytes[at] = draw(20 + change, 256) as u8;
            }
        }
        if draw(8, 6) == 0 {
            bytes.truncate(draw(9, bytes.len() as u64) as usize);
        }
        let kind = if path == "forward_backward" { "application/x-protobuf" } else { "application/json" };
        let answer = request(server.address, "POST", &format!("/api/v1/{path}"), kind, &bytes);
        let answer = answer.unwrap_or_else(|| panic!("no answer to request {index} to {path}"));
        let allowed = [200, 400, 404, 408, 410, 429];
        assert!(allowed.contains(&answer.status), "{index} {path}: {}", answer.status);
        if answer.status != 200 && answer.status != 408 {
            assert!(answer.json()["detail"].is_string(), "{index} {path}");
        }
        // Their number is limited.
        if let ("create_session", 200) = (path, answer.status) {
            let path = format!("/api/v1/sessions/{}/finish", answer.json()["session_id"].as_str().unwrap());
            assert_eq!(
                request(server.address, "POST", &path, "application/json", b"{}").unwrap().status,
                200
            );
        }
    }
    // Nothing has stopped working.
    let fresh = Client::new(&server);
    fresh.model(0).pass("cross_entropy", &[datum(&[1, 2, 3], &[])]).unwrap();
}
