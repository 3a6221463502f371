//! Sessions, versions, limits, and clients that disappear.

use std::time::{Duration, Instant};

use rloom_train_api::TrainApiSettings;
use serde_json::json;

use crate::client::{Client, datum, get, post};
use crate::server::{MODEL, TestServer};

/// Waits until a condition holds; the test fails if it never does.
fn until(what: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_mins(1), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn other_versions_of_the_sdk_are_refused() {
    let server = TestServer::start();
    for path in ["client/config", "client/dynamic_config", "create_session"] {
        let sent = |version: &str| post(server.address, path, &json!({"sdk_version": version}));
        assert_eq!(sent("0.38.0").status, 200, "{path}");
        for version in ["0.18.0", "1.0.0", "x"] {
            let refused = sent(version);
            assert_eq!(refused.status, 400, "{path}");
            let message = refused.json()["detail"].as_str().unwrap().to_owned();
            assert!(message.contains("install `tinker` 0.36.0 to 0.38.0"), "{message}");
        }
    }
}

#[test]
fn the_server_describes_itself() {
    let server = TestServer::start();
    assert_eq!(get(server.address, "healthz").json()["status"], "ok");
    let models = get(server.address, "get_server_capabilities").json()["supported_models"].clone();
    assert_eq!((&models[0]["model_name"], &models[0]["max_context_length"]), (&json!(MODEL), &json!(64)));
    let client = Client::new(&server);
    let model = client.model(0);
    let info = client.post("get_info", &json!({"model_id": model.id})).json();
    assert_eq!(info["is_lora"], false);
    assert_eq!(info["model_data"]["tokenizer_id"], MODEL);
    assert_eq!(client.post("telemetry", &json!({"events": []})).status, 200);
    assert_eq!(client.post("copy_weights", &json!({})).status, 404);
    // The other APIs of the server are still there.
    let body = json!({"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 2}).to_string();
    let answer = crate::client::request(
        server.address,
        "POST",
        "/v1/completions",
        "application/json",
        body.as_bytes(),
    );
    assert_eq!(answer.unwrap().status, 200);
    // Requests that clients repeat all the time are not logged.
    let log = server.log.lock().unwrap();
    assert!(log.iter().any(|line| line.contains("create_model")), "{log:?}");
    assert!(
        !log.iter().any(|line| line.contains("retrieve_future") || line.contains("telemetry")),
        "{log:?}"
    );
}

#[test]
fn a_model_of_another_base_is_not_created() {
    let server = TestServer::start();
    let client = Client::new(&server);
    let create = |more: serde_json::Value| {
        let mut body = json!({"session_id": client.session, "model_seq_id": 0, "base_model": MODEL});
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        client.post("create_model", &body)
    };
    for (more, status, expected) in [
        (json!({"base_model": "org/other"}), 400, "this server trains `tiny`"),
        (json!({"optimizer_config": {"type": "dimuon"}}), 400, "adamw"),
        (json!({"session_id": "none"}), 410, "no such session"),
        (json!({"surprise": 1}), 400, "unknown field"),
    ] {
        let refused = create(more);
        assert_eq!(refused.status, status);
        let message = refused.json()["detail"].as_str().unwrap().to_owned();
        assert!(message.contains(expected), "{message}");
    }
    assert_eq!(server.api.models(), 0);
}

#[test]
fn sessions_models_and_samplers_are_bounded() {
    let settings = TrainApiSettings {
        max_sessions: 2,
        max_models: 1,
        max_samplers: 2,
        max_snapshots: 1,
        ..TrainApiSettings::default()
    };
    let server = TestServer::with(settings);
    let (one, two) = (Client::new(&server), Client::new(&server));
    let third = post(server.address, "create_session", &json!({"sdk_version": "0.38.0"}));
    assert_eq!(third.status, 429);
    let model = one.model(0);
    let body = json!({"session_id": two.session, "model_seq_id": 0, "base_model": MODEL});
    assert_eq!(two.post("create_model", &body).status, 429);
    let (first, second) = (model.publish(), model.publish());
    // Only the latest weights are kept.
    one.sample(&second, &[1, 2], 1, &json!({})).unwrap();
    let released = one.sample(&first, &[1, 2], 1, &json!({})).unwrap_err();
    assert!(released.contains("were released"), "{released}");
    // Samplers without weights make room for others, those with weights do not.
    let body = json!({"session_id": two.session, "sampling_session_seq_id": 0, "base_model": MODEL});
    assert_eq!(two.post("create_sampling_session", &body).status, 200);
    assert!(one.sample(&first, &[1, 2], 1, &json!({})).unwrap_err().starts_with("404"));
    one.sample(&second, &[1, 2], 1, &json!({})).unwrap();
    let more = json!({"session_id": two.session, "sampling_session_seq_id": 1, "base_model": MODEL});
    assert_eq!(two.post("create_sampling_session", &more).status, 429);
    // What a session had is free after it.
    assert_eq!(one.post(&format!("sessions/{}/finish", one.session), &json!({})).status, 200);
    assert_eq!(server.api.models(), 0);
    two.model(0);
    assert_eq!(two.post("create_sampling_session", &more).status, 200);
    Client::new(&server);
}

#[test]
fn waiting_requests_are_bounded() {
    let server =
        TestServer::with(TrainApiSettings { max_waiting_bytes: 2000, ..TrainApiSettings::default() });
    let client = Client::new(&server);
    let model = client.model(0);
    let tokens: Vec<u32> = (0..40).map(|i| i % 20).collect();
    let data = [datum(&tokens, &[])];
    // They wait for the first one.
    let mut waiting = Vec::new();
    let mut number = 2;
    let refused = loop {
        let answer = model.send_pass(number, "cross_entropy", &data, false);
        if answer.status != 200 {
            break answer;
        }
        waiting.push(answer);
        number += 1;
        assert!(number < 100, "nothing was refused");
    };
    assert_eq!(refused.status, 429);
    // The one that the others wait for is accepted, and they are executed.
    let first = model.send_pass(1, "cross_entropy", &data, false);
    for answer in [&[first][..], &waiting].concat() {
        model.output(&answer).unwrap();
    }
    assert_eq!(model.send_pass(number, "cross_entropy", &data, false).status, 200);
}

#[test]
fn models_of_silent_clients_are_freed() {
    let settings =
        TrainApiSettings { session_timeout: Duration::from_secs(3), ..TrainApiSettings::default() };
    let server = TestServer::with(settings);
    let (silent, alive) = (Client::new(&server), Client::new(&server));
    let lost = silent.model(0);
    // A request that waits for another one that never comes.
    let waiting = lost.send_step(2, 1e-2);
    assert_eq!(waiting.status, 200);
    alive.model(0);
    assert_eq!(server.api.models(), 2);
    until("the silent session did not end", || {
        let beat = alive.post("session_heartbeat", &json!({"session_id": alive.session}));
        assert_eq!(beat.status, 200);
        server.api.models() == 1
    });
    assert_eq!(silent.post("session_heartbeat", &json!({"session_id": silent.session})).status, 410);
    assert_eq!(lost.send_step(3, 1e-2).status, 404);
    let id = waiting.json()["request_id"].clone();
    assert_eq!(silent.post("retrieve_future", &json!({"request_id": id})).status, 410);
}

#[test]
fn a_model_is_unloaded() {
    let server = TestServer::start();
    let client = Client::new(&server);
    let model = client.model(0);
    let result = client.run("unload_model", &json!({"model_id": model.id})).unwrap();
    assert_eq!(result["model_id"], model.id);
    assert_eq!(server.api.models(), 0);
    assert_eq!(client.post("unload_model", &json!({"model_id": model.id})).status, 404);
}

#[test]
fn a_cancelled_sample_is_gone() {
    let server = TestServer::start();
    let client = Client::new(&server);
    let model = client.model(0);
    let sampler = model.publish();
    let body = json!({
        "sampling_session_id": sampler, "seq_id": 0, "num_samples": 64,
        "sampling_params": {"max_tokens": 60, "stop": []},
        "prompt": {"chunks": [{"tokens": [1, 2], "type": "encoded_text"}]},
    });
    let accepted = client.post("asample", &body);
    let id = accepted.json()["request_id"].clone();
    assert_eq!(client.post("cancel_future", &json!({"request_id": id})).status, 200);
    // It was cancelled, or had ended before.
    let retrieved = client.post("retrieve_future", &json!({"request_id": id})).status;
    assert!(retrieved == 410 || retrieved == 200, "{retrieved}");
    client.sample(&sampler, &[1, 2], 1, &json!({})).unwrap_err();
    client.sample(&sampler, &[1, 2], 1, &json!({})).unwrap();
}
