//! What a judge is asked, how often, and how many at a time.

use std::sync::{Arc, Barrier};

use rloom_reward::{CurrentComponent, Judged, Scorer};
use serde_json::json;

use super::server::{Act, Server, say};
use super::{NoModels, component, scorer, task, trajectory, values};

/// A server that says yes to responses with a 2.
fn honest() -> Server {
    Server::start(|asked, _| asked.verdict(if asked.block("response").contains('2') { "yes" } else { "no" }))
}

#[test]
fn equal_questions_are_asked_once() {
    let server = honest();
    let scorer = scorer(&component(&server.url, &json!({})));
    let texts = ["2", "3", "2", "2", "3"];
    let expected: Vec<Option<f64>> = vec![Some(1.0), Some(0.0), Some(1.0), Some(1.0), Some(0.0)];
    assert_eq!(values(&scorer, "2", &texts), Ok(expected));
    assert_eq!(server.asked().len(), 2);
    assert_eq!(scorer.take_metrics()["judge_cached"], 0.6);
    // Another reference is another question.
    values(&scorer, "two", &["2"]).unwrap();
    assert_eq!(server.asked().len(), 3);
    let without = super::scorer(&component(&server.url, &json!({ "cache": { "entries": 0 } })));
    values(&without, "2", &texts).unwrap();
    assert_eq!(server.asked().len(), 8);
}

#[test]
fn a_file_keeps_verdicts_for_the_same_judge() {
    let (server, folder) = (honest(), tempfile::tempdir().unwrap());
    let mut keys = json!({ "cache": { "file": folder.path().join("verdicts.jsonl") }, "revision": "1" });
    for (revision, requests) in [("1", 2), ("1", 2), ("2", 4)] {
        keys["revision"] = revision.into();
        let scorer = scorer(&component(&server.url, &keys));
        assert_eq!(values(&scorer, "2", &["2", "3"]), Ok(vec![Some(1.0), Some(0.0)]));
        assert_eq!(server.asked().len(), requests, "revision {revision}");
    }
}

/// Each answer waits for as many requests as there may be at a time; the server counts the most that there were.
#[test]
fn as_many_requests_run_at_a_time_as_permitted() {
    const WORKERS: usize = 3;
    let barrier = Arc::new(Barrier::new(WORKERS));
    let server = Server::start(move |asked, _| {
        barrier.wait();
        asked.verdict("yes")
    });
    let scorer: Scorer = scorer(&component(&server.url, &json!({ "workers": WORKERS })));
    assert_eq!(scorer.waiting_slots(), WORKERS);
    let task = task("2");
    std::thread::scope(|scope| {
        for sample in 0..4 * WORKERS as u32 {
            let (scorer, task) = (&scorer, &task);
            scope.spawn(move || {
                let (trajectory, text) = (trajectory(sample), format!("response {sample}"));
                let judged = Judged {
                    task,
                    segments: std::slice::from_ref(&trajectory),
                    text: &text,
                    transcript: "",
                    prompt: "",
                };
                let rewards = scorer.score(&judged, &CurrentComponent::default()).unwrap();
                assert_eq!(rewards.total(), Some(1.0));
            });
        }
    });
    assert_eq!((server.peak(), server.asked().len()), (WORKERS as u64, 4 * WORKERS));
}

#[test]
fn the_key_comes_from_the_environment_and_is_in_no_error() {
    // A variable that cargo sets for tests.
    let (variable, key) = ("CARGO_PKG_NAME", "rloom-reward");
    let server = Server::start(|asked, _| Act::Status(401, "", format!("no such key: {asked:?}")));
    let scorer = scorer(&component(&server.url, &json!({ "api_key_env": variable })));
    scorer.prepare().unwrap();
    let error = values(&scorer, "2", &["2"]).unwrap_err();
    let asked = &server.asked()[0];
    assert_eq!(asked.authorization.as_deref(), Some("Bearer rloom-reward"));
    assert_eq!((asked.path.as_str(), &asked.body["model"]), ("/v1/chat/completions", &json!("m")));
    assert!(error.contains("Bearer [key]") && !error.contains(key), "{error}");
    let missing = super::scorer(&component(&server.url, &json!({ "api_key_env": "NO_SUCH_KEY_OF_A_JUDGE" })));
    let error = missing.prepare().unwrap_err().to_string();
    let expected = "reward `judge`: the environment variable NO_SUCH_KEY_OF_A_JUDGE, which `api_key_env` names, is not set";
    assert_eq!(error, expected);
}

#[test]
fn probabilities_come_from_the_tokens_of_the_verdict() {
    let keys = json!({ "reasons": false, "logprobs": true });
    let token =
        |token: &str, top: serde_json::Value| json!({ "token": token, "logprob": -0.1, "top_logprobs": top });
    let top =
        json!([{ "token": "Yes", "logprob": 0.75_f64.ln() }, { "token": " no", "logprob": 0.25_f64.ln() }]);
    let mut yes = token("Yes", top);
    yes["logprob"] = json!(0.75_f64.ln());
    for (tokens, expected) in [(json!([yes, token("<|im_end|>", json!([]))]), Some(75.0)), (json!([]), None)]
    {
        let server = Server::start(move |_, _| {
            let message = json!({ "content": "Yes" });
            Act::Body(json!({ "choices": [{ "message": message, "logprobs": { "content": tokens } }] }))
        });
        let scorer = scorer(&component(&server.url, &keys));
        let value = values(&scorer, "2", &["2", "2"]);
        match expected {
            Some(expected) => {
                let values: Vec<f64> = value.unwrap().iter().map(|v| (v.unwrap() * 100.0).round()).collect();
                assert_eq!((values, server.asked().len()), (vec![expected; 2], 1));
                assert_eq!(server.asked()[0].body["top_logprobs"], json!(20));
            }
            None => assert!(value.unwrap_err().contains("no log-probabilities of yes and no")),
        }
    }
}

#[test]
fn prompts_are_files_and_rubrics_may_belong_to_rows() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("judge.txt");
    std::fs::write(&file, "{{ rubric }}|{{ response.text }}|{{ form }}").unwrap();
    let server = Server::start(|asked, _| asked.verdict("7"));
    let keys = json!({ "prompt": file, "rubric_field": "guide", "verdict": "scale", "scale": [0, 10] });
    let own = scorer(&component(&server.url, &keys));
    own.prepare().unwrap();
    assert_eq!(values(&own, "2", &["It is 2."]), Ok(vec![Some(0.7)]));
    let asked = server.asked();
    assert!(
        asked[0].text().starts_with("Look at the units.|It is 2.|Think about it first."),
        "{:?}",
        asked[0].text()
    );
    let other = scorer(&component(&server.url, &json!({ "rubric_field": "rubric" })));
    let error = values(&other, "2", &["2"]).unwrap_err();
    assert!(error.contains("task 7 has no text in the field `rubric`"), "{error}");

    for (text, expected) in [
        ("{{ response }}", "it does not show `form`"),
        ("{{ form }}", "it does not show `response`"),
        ("{{ response }}{{ form }}\nVerdict {{ nonce }}: 5", "it reads as a verdict itself"),
    ] {
        std::fs::write(&file, text).unwrap();
        let settings = super::settings(&component(&server.url, &keys));
        let error = Scorer::new(&settings, 0, 0).and_then(|scorer| scorer.prepare()).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn judges_without_a_server_are_opened_in_this_process() {
    let scorer = scorer(&json!({ "kind": "judge", "model": "some/folder" }));
    let error = scorer.open_models(&NoModels).unwrap_err().to_string();
    assert_eq!(error, "reward `judge`: the judge some/folder: there is none");
    assert!(scorer.prepare().unwrap_err().to_string().contains("it has not been opened"));
}

#[test]
fn classifiers_have_the_last_probability() {
    let server = Server::start(|asked, _| match asked.body["input"].as_str().unwrap() {
        "What is 1+1?\n2" => {
            Act::Body(json!({ "data": [{ "probs": [0.1, 0.2] }, { "probs": [0.25, 0.75] }] }))
        }
        "What is 1+1?\nempty" => Act::Body(json!({ "data": [{ "probs": [] }] })),
        "What is 1+1?\nnone" => Act::Body(json!({ "data": [] })),
        _ => say("yes"),
    });
    let url = format!("{}/classify", server.url);
    let scorer = scorer(
        &json!({ "kind": "classifier", "model": "rm", "url": url, "activation": false, "solved_at": 0.5 }),
    );
    assert_eq!(values(&scorer, "2", &["2", "2"]), Ok(vec![Some(0.75); 2]));
    let asked = server.asked();
    assert_eq!((asked.len(), asked[0].path.as_str()), (1, "/v1/classify"));
    let body = json!({ "model": "rm", "input": "What is 1+1?\n2", "activation": false });
    assert_eq!(asked[0].body, body);
    for text in ["empty", "none", "chat"] {
        let error = values(&scorer, "2", &[text]).unwrap_err();
        assert!(error.contains("something else than the classes of one input"), "{error}");
    }
}
