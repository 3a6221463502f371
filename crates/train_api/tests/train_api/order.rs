//! Order and repetition of a model's requests, and waiting for results.

use std::time::Duration;

use rloom_train_api::TrainApiSettings;
use serde_json::{Value, json};

use crate::client::{Client, datum};
use crate::loops::{stored, weights};
use crate::server::{MODEL, TestServer};

fn data(shift: u32) -> [crate::client::Datum; 1] {
    let tokens: Vec<u32> = (0..10).map(|i| (i * 3 + shift) % 20).collect();
    [datum(&tokens, &[])]
}

#[test]
fn requests_are_executed_in_the_order_of_their_numbers() {
    let server = TestServer::start();
    let client = Client::new(&server);
    let (ordered, shuffled) = (client.model(0), client.model(1));
    for shift in 0..3 {
        ordered.pass("cross_entropy", &data(shift)).unwrap();
        ordered.step(1e-2).unwrap();
    }
    // The same six requests, the first one last.
    let mut sent = Vec::new();
    for number in [6, 2, 4, 3, 5, 1] {
        sent.push(match number % 2 {
            1 => shuffled.send_pass(number, "cross_entropy", &data(number / 2), false),
            _ => shuffled.send_step(number, 1e-2),
        });
        let _ = shuffled.number();
    }
    for answer in &sent {
        client.result(answer).unwrap();
    }
    let [a, b] = [&ordered, &shuffled].map(|model| stored(&server, &model.save("last").unwrap()));
    assert_eq!(weights(&a), weights(&b));
}

#[test]
fn repeated_requests_are_executed_once() {
    let server = TestServer::start();
    let client = Client::new(&server);
    let (once, repeated) = (client.model(0), client.model(1));
    for (model, times) in [(&once, 1), (&repeated, 3)] {
        let (pass, step) = (model.number(), model.number());
        let mut ids = Vec::new();
        for _ in 0..times {
            let sent = model.send_pass(pass, "cross_entropy", &data(0), false);
            ids.push(sent.json()["request_id"].clone());
            model.output(&sent).unwrap();
        }
        for _ in 0..times {
            client.result(&model.send_step(step, 1e-2)).unwrap();
        }
        assert!(ids.iter().all(|id| *id == ids[0]));
    }
    let [a, b] = [&once, &repeated].map(|model| stored(&server, &model.save("last").unwrap()));
    assert_eq!(weights(&a), weights(&b));
    // A number belongs to one operation.
    let answer = repeated.send_step(1, 1e-2);
    assert_eq!(answer.status, 400);
    assert!(answer.json()["detail"].as_str().unwrap().contains("already used for forward_backward"));
    assert_eq!(repeated.send_pass(1, "cross_entropy", &data(0), true).status, 400);
    assert_eq!(repeated.send_step(1_000_000, 1e-2).status, 400);
    assert_eq!(repeated.send_step(0, 1e-2).status, 410);
}

#[test]
fn creations_and_samples_are_repeatable() {
    let server = TestServer::start();
    let client = Client::new(&server);
    let body = json!({"session_id": client.session, "model_seq_id": 0, "base_model": MODEL});
    let answers = [(), ()].map(|()| client.post("create_model", &body).json());
    assert_eq!(answers[0], answers[1]);
    let model = client.model(0);
    assert_eq!(server.api.models(), 1);
    let sampler = model.publish();
    let body = json!({
        "sampling_session_id": sampler, "seq_id": 7, "num_samples": 2, "sampling_params": {"max_tokens": 4},
        "prompt": {"chunks": [{"tokens": [1, 2], "type": "encoded_text"}]},
    });
    let answers = [(), ()].map(|()| client.post("asample", &body));
    assert_eq!(answers[0].json(), answers[1].json());
    let results = [&answers[0], &answers[1]].map(|answer| client.result(answer).unwrap());
    assert_eq!(results[0], results[1]);
}

#[test]
fn results_are_waited_for() {
    let settings = TrainApiSettings { poll: Duration::from_millis(20), ..TrainApiSettings::default() };
    let server = TestServer::with(settings);
    let client = Client::new(&server);
    let model = client.model(0);
    // The second request waits for the first one.
    let second = model.send_step(2, 1e-2);
    let id = second.json()["request_id"].clone();
    let waiting = client.post("retrieve_future", &json!({"request_id": id}));
    assert_eq!(waiting.status, 408);
    assert_eq!(
        (&waiting.json()["type"], &waiting.json()["queue_state"]),
        (&json!("try_again"), &json!("active"))
    );
    model.send_pass(1, "cross_entropy", &data(0), false);
    client.result(&second).unwrap();
    let retrieve = |id: Value| client.post("retrieve_future", &json!({"request_id": id})).status;
    assert_eq!(retrieve(json!("0000000000000000-0")), 410);
    assert_eq!(retrieve(json!("nothing")), 404);
    assert_eq!(retrieve(json!(5)), 400);
}

#[test]
fn models_do_not_wait_for_each_other() {
    let server = TestServer::start();
    let clients: Vec<Client> = (0..3).map(|_| Client::new(&server)).collect();
    std::thread::scope(|scope| {
        for client in clients {
            scope.spawn(move || {
                let model = client.model(0);
                // A gap in the order of one model.
                model.send_pass(9, "cross_entropy", &data(0), false);
                for shift in 0..3 {
                    model.pass("cross_entropy", &data(shift)).unwrap();
                    model.step(1e-2).unwrap();
                }
            });
        }
    });
    assert_eq!(server.api.models(), 3);
}
