//! A teacher behind the completions API, against a stand-in for vLLM.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use miette::Diagnostic;
use rloom_core::{Author, SampleKey, Span, StopReason, Ticket, Trajectory};
use rloom_engine::{RemoteTeacher, pack};
use rloom_remote::EndpointTeacher;
use rloom_text::{CharacterSettings, Tokenizer};
use serde_json::{Value, json};

use crate::stand_in::http::{Request, read, write};
use crate::stand_in::model::Weights;

const MODEL: &str = "org/teacher";

/// What the stand-in does wrong.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// The first completions are refused for a while.
    Busy,
    /// It has two tokens per position at most.
    Few,
    /// Its tokens have other texts.
    OtherTokens,
    /// It has no model.
    Unknown,
}

fn tokenizer() -> Arc<Tokenizer> {
    Arc::new(Tokenizer::characters(&CharacterSettings::new("0123456789+=#")).unwrap())
}

/// The most probable tokens of a text's position, and the token of the text.
fn entry(tokens: &[u32], position: usize, k: usize, fault: Fault) -> Value {
    let logprobs = Weights::of(0).logprobs(&tokens[..position], 1.0);
    let k = if fault == Fault::Few { 2 } else { k };
    let mut ids: Vec<usize> = (0..logprobs.len()).collect();
    ids.sort_by(|&a, &b| logprobs[b].total_cmp(&logprobs[a]));
    ids.truncate(k);
    ids.push(tokens[position] as usize);
    let text = |id: usize| match fault {
        Fault::OtherTokens => format!("word{id}"),
        _ => tokenizer().decode(&[id as u32], false).unwrap(),
    };
    ids.into_iter()
        .map(|id| (id.to_string(), json!({ "logprob": logprobs[id], "rank": 1, "decoded_token": text(id) })))
        .collect::<serde_json::Map<String, Value>>()
        .into()
}

fn answer(request: &Request, fault: Fault, calls: &AtomicUsize) -> (u16, Value) {
    if request.path == "/v1/models" {
        let data = if fault == Fault::Unknown { json!([]) } else { json!([{ "id": MODEL }]) };
        return (200, json!({ "data": data }));
    }
    if fault == Fault::Busy && calls.fetch_add(1, Ordering::SeqCst) < 2 {
        return (503, json!({ "error": "busy" }));
    }
    assert_eq!(request.path, "/v1/completions");
    assert_eq!((&request.body["model"], &request.body["max_tokens"]), (&json!(MODEL), &json!(1)));
    let tokens: Vec<u32> = serde_json::from_value(request.body["prompt"].clone()).unwrap();
    let k = request.body["prompt_logprobs"].as_u64().unwrap() as usize;
    let of = |position: usize| {
        if position == 0 { Value::Null } else { entry(&tokens, position, k, fault) }
    };
    let logprobs: Vec<Value> = (0..tokens.len()).map(of).collect();
    (200, json!({ "choices": [{ "text": "", "prompt_logprobs": logprobs }] }))
}

/// Serves until the test ends.
fn serve(fault: Fault) -> SocketAddr {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            sender.send(listener.local_addr().unwrap()).unwrap();
            let calls = Arc::new(AtomicUsize::new(0));
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let calls = Arc::clone(&calls);
                tokio::spawn(async move {
                    let mut buffer = Vec::new();
                    while let Some(request) = read(&mut stream, &mut buffer).await {
                        let (status, body) = answer(&request, fault, &calls);
                        write(&mut stream, status, body.to_string().as_bytes(), 0).await;
                    }
                });
            }
        });
    });
    receiver.recv().unwrap()
}

fn teacher(fault: Fault, model: Option<&str>) -> EndpointTeacher {
    let url = format!("http://{}", serve(fault));
    EndpointTeacher::new(&url, model.map(str::to_owned), tokenizer(), Duration::from_secs(20)).unwrap()
}

fn trajectory(sample: u32, tokens: &[u32], prompt: usize) -> Trajectory {
    Trajectory {
        key: SampleKey { ticket: Ticket(1), sample, segment: 0 },
        agent: None,
        tokens: tokens.to_vec(),
        spans: vec![Span::new(Author::Prompt, 0..prompt), Span::new(Author::Policy, prompt..tokens.len())],
        logprobs: vec![-1.0; tokens.len() - prompt],
        versions: Vec::new(),
        stop: StopReason::StopToken,
        attachments: Vec::new(),
    }
}

/// Sequences of which the first two share their prompt.
fn texts() -> [Vec<u32>; 3] {
    [vec![3, 4, 5, 6, 7], vec![3, 4, 5, 9, 2, 11], vec![8, 3, 3, 12]]
}

#[test]
fn the_most_probable_tokens_are_those_of_the_server() {
    let trajectories: Vec<Trajectory> =
        texts().iter().zip(0..).map(|(tokens, sample)| trajectory(sample, tokens, 3)).collect();
    for (fault, model) in [(Fault::None, Some(MODEL)), (Fault::None, None), (Fault::Busy, Some(MODEL))] {
        let mut teacher = teacher(fault, model);
        for budget in [100, 7] {
            let step = pack(&trajectories, budget).unwrap();
            let found = teacher.top(&step, 4).unwrap();
            assert_eq!(found.len(), step.len());
            let mut at = found.iter().flat_map(|top| {
                assert_eq!(top.candidates.k(), 4);
                top.candidates.ids().chunks(4).zip(top.logprob.chunks(4))
            });
            for tokens in texts() {
                for position in 3..tokens.len() {
                    let logprobs = Weights::of(0).logprobs(&tokens[..position], 1.0);
                    let mut order: Vec<u32> = (0..logprobs.len() as u32).collect();
                    order.sort_by(|&a, &b| logprobs[b as usize].total_cmp(&logprobs[a as usize]));
                    let (ids, found) = at.next().unwrap();
                    assert_eq!(ids, &order[..4]);
                    let wanted: Vec<f32> =
                        order[..4].iter().map(|&id| logprobs[id as usize] as f32).collect();
                    assert_eq!(found, wanted);
                }
            }
            assert!(at.next().is_none());
        }
    }
}

#[test]
fn answers_that_do_not_fit_are_errors() {
    let trajectories = [trajectory(0, &texts()[0], 3)];
    let step = pack(&trajectories, 100).unwrap();
    for (fault, text, hint) in [
        // TeacherError::Few
        (Fault::Few, "of the 5 most probable tokens at position 3", "`--max-logprobs 5`"),
        // TeacherError::OtherToken
        (
            Fault::OtherTokens,
            "has another tokenizer: token",
            "serve a model with the tokenizer of the run's model",
        ),
        (Fault::Unknown, "/v1/models: there is no model", ""),
    ] {
        let error = teacher(fault, None).top(&step, 5).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
        let help = error.help().map(|help| help.to_string()).unwrap_or_default();
        assert!(help.contains(hint), "{help}");
    }
    // As the hints say: fewer tokens, and the right ones.
    teacher(Fault::Few, None).top(&step, 2).unwrap();
    teacher(Fault::None, None).top(&step, 5).unwrap();
    let gone = EndpointTeacher::new("http://127.0.0.1:9", None, tokenizer(), Duration::from_secs(5));
    assert!(gone.unwrap().top(&step, 2).unwrap_err().to_string().contains("cannot connect"));
    assert!(EndpointTeacher::new("localhost", None, tokenizer(), Duration::from_secs(5)).is_err());
}
