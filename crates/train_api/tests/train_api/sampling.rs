//! Sampling from the base model, from snapshots and from stored weights.

use serde_json::json;

use crate::client::{Client, Trained, datum, floats, get};
use crate::server::{CONTEXT, MODEL, TestServer};

const PROMPT: [u32; 4] = [1, 5, 9, 3];

/// A sampler of the base model or of stored weights.
fn open(client: &Client, key: &str, value: &str) -> Result<String, String> {
    let body = json!({
        "session_id": client.session, "sampling_session_seq_id": client.next_sampler(), key: value,
    });
    let answer = client.post("create_sampling_session", &body);
    let name = answer.json()["sampling_session_id"].as_str().map(str::to_owned);
    name.ok_or_else(|| format!("{}: {}", answer.status, answer.json()["detail"]))
}

fn train(model: &Trained<'_>) {
    let tokens: Vec<u32> = (0..12).map(|i| i * 3 % 20).collect();
    model.pass("cross_entropy", &[datum(&tokens, &[])]).unwrap();
    model.step(1e-2).unwrap();
}

/// The samples' log-probabilities as the trainer computes them for the same weights.
fn trained_logprobs(model: &Trained<'_>, completion: &[u32]) -> Vec<f32> {
    let tokens = [&PROMPT[..], completion].concat();
    let scored = model.forward("cross_entropy", &[datum(&tokens, &[])]).unwrap();
    scored.logprobs()[0][PROMPT.len() - 1..].to_vec()
}

#[test]
fn logprobs_of_samples_are_the_trainers_bit_for_bit() {
    let server = TestServer::start();
    let client = Client::new(&server);
    let model = client.model(0);
    train(&model);
    let sampler = model.publish();
    let samples = client.sample(&sampler, &PROMPT, 5, &json!({})).unwrap();
    assert_eq!(samples.sequences.len(), 5);
    for sequence in &samples.sequences {
        let logprobs = floats(&sequence.logprobs);
        assert_eq!(trained_logprobs(&model, &sequence.token_ids()), logprobs);
    }
    // Without a seed, completions differ.
    let all: Vec<_> = samples.sequences.iter().map(|sequence| &sequence.tokens).collect();
    assert!(all.iter().any(|tokens| *tokens != all[0]));
    // Those of prompts, too.
    let more = json!({"prompt_logprobs": true, "max_tokens": 1});
    let scored = floats(&client.sample(&sampler, &PROMPT, 1, &more).unwrap().prompt_logprobs);
    let expected = model.forward("cross_entropy", &[datum(&PROMPT, &[])]).unwrap().logprobs();
    assert!(scored[0].is_nan());
    assert_eq!(scored[1..], expected[0]);
    let more = json!({"prompt_logprobs": true, "prompt_logprobs_last_n": 2});
    let last = floats(&client.sample(&sampler, &PROMPT, 1, &more).unwrap().prompt_logprobs);
    assert!(last[0].is_nan() && last[1].is_nan());
    assert_eq!(last[2..], scored[2..]);
}

#[test]
fn snapshots_do_not_change_with_later_steps() {
    let server = TestServer::start();
    let client = Client::new(&server);
    let model = client.model(0);
    let seeded = json!({"seed": 3, "stop": []});
    let sample = |sampler: &str| client.sample(sampler, &PROMPT, 3, &seeded).unwrap();
    let base = sample(&open(&client, "base_model", MODEL).unwrap());
    let first = model.publish();
    assert_eq!(sample(&first), base);
    train(&model);
    assert_eq!(sample(&first), base);
    let second = model.publish();
    let later = sample(&second);
    assert_ne!(later, base);
    train(&model);
    assert_eq!(sample(&second), later);
    assert_eq!(sample(&first), base);
}

#[test]
fn stored_weights_are_sampled_from_in_other_sessions() {
    let server = TestServer::start();
    let client = Client::new(&server);
    let model = client.model(0);
    train(&model);
    let body = json!({"model_id": model.id, "seq_id": model.number(), "path": "final"});
    let path = client.run("save_weights_for_sampler", &body).unwrap()["path"].as_str().unwrap().to_owned();
    let seeded = json!({"seed": 3});
    let expected = client.sample(&model.publish(), &PROMPT, 3, &seeded).unwrap();
    let other = Client::new(&server);
    let sampler = open(&other, "model_path", &path).unwrap();
    assert_eq!(other.sample(&sampler, &PROMPT, 3, &seeded).unwrap(), expected);
    // Checkpoints for training can be sampled from as well.
    let training = model.save("state").unwrap();
    let sampler = open(&other, "model_path", &training).unwrap();
    assert_eq!(other.sample(&sampler, &PROMPT, 3, &seeded).unwrap(), expected);
    let info = get(server.address, &format!("samplers/{sampler}")).json();
    assert_eq!((&info["base_model"], &info["model_path"]), (&json!(MODEL), &json!(training)));
    for (key, value, expected) in [
        ("base_model", "other", "this server trains"),
        ("model_path", "tinker://a/weights/b", "does not exist"),
        ("model_path", "tinker://../weights/b", "no path of this server"),
        ("model_path", "/etc/passwd", "no path of this server"),
    ] {
        let refused = open(&other, key, value).unwrap_err();
        assert!(refused.contains(expected), "{refused}");
    }
}

#[test]
fn samplers_that_follow_a_model_get_its_latest_weights() {
    let server = TestServer::start();
    let client = Client::new(&server);
    let model = client.model(0);
    let follow = || {
        let body = json!({
            "model_id": model.id, "seq_id": model.number(), "kind": "inflight",
            "sampling_session_seq_id": client.next_sampler(),
        });
        let result = client.run("save_weights_for_sampler", &body).unwrap();
        result["sampling_session_id"].as_str().unwrap().to_owned()
    };
    let seeded = json!({"seed": 3, "stop": []});
    let first = follow();
    let before = client.sample(&first, &PROMPT, 2, &seeded).unwrap();
    train(&model);
    assert_eq!(client.sample(&first, &PROMPT, 2, &seeded).unwrap(), before);
    let second = follow();
    let after = client.sample(&first, &PROMPT, 2, &seeded).unwrap();
    assert_ne!(after, before);
    assert_eq!(client.sample(&second, &PROMPT, 2, &seeded).unwrap(), after);
}

#[test]
fn settings_of_requests_are_used() {
    let server = TestServer::start();
    let client = Client::new(&server);
    let sampler = open(&client, "base_model", MODEL).unwrap();
    let greedy = client.sample(&sampler, &PROMPT, 2, &json!({"temperature": 0.0, "stop": []})).unwrap();
    assert_eq!(greedy.sequences[0], greedy.sequences[1]);
    let one = client.sample(&sampler, &PROMPT, 1, &json!({"top_k": 1, "stop": []})).unwrap();
    assert_eq!(one.sequences[0].tokens, greedy.sequences[0].tokens);
    let tokens = greedy.sequences[0].token_ids();
    // The first occurrence of the third greedy token ends the completion.
    let stop = json!({"temperature": 0.0, "stop": [tokens[2]]});
    let stopped = client.sample(&sampler, &PROMPT, 1, &stop).unwrap();
    let end = tokens.iter().position(|token| *token == tokens[2]).unwrap();
    assert_eq!(stopped.sequences[0].token_ids(), tokens[..=end]);
    assert_eq!(stopped.sequences[0].stop_reason, 0);
    let text = server.base.tokenizer.decode(&tokens[..1], false).unwrap();
    for stop in [json!(text), json!([text])] {
        let stopped =
            client.sample(&sampler, &PROMPT, 1, &json!({"temperature": 0.0, "stop": stop})).unwrap();
        assert_eq!((stopped.sequences[0].token_ids().len(), stopped.sequences[0].stop_reason), (1, 0));
    }
    // Without a limit, a completion ends with the context.
    let whole = client.sample(&sampler, &PROMPT, 1, &json!({"max_tokens": null, "stop": []})).unwrap();
    assert_eq!(whole.sequences[0].token_ids().len(), CONTEXT - PROMPT.len());
}

#[test]
fn what_cannot_be_honoured_is_refused() {
    let server = TestServer::start();
    let client = Client::new(&server);
    let sampler = open(&client, "base_model", MODEL).unwrap();
    let long = vec![1; CONTEXT];
    for (prompt, more, expected) in [
        (&[][..], json!({}), "`prompt` is empty"),
        (&[9999], json!({}), "token 9999 is outside"),
        (&long, json!({}), "at most 64 tokens"),
        (&PROMPT, json!({"temperature": -1.0}), "`temperature`"),
        (&PROMPT, json!({"top_p": 0.0}), "`top_p`"),
        (&PROMPT, json!({"top_k": -7}), "`top_k`"),
        (&PROMPT, json!({"max_tokens": 0}), "`max_new_tokens`"),
        (&PROMPT, json!({"topk_prompt_logprobs": 3}), "`topk_prompt_logprobs`"),
        (&PROMPT, json!({"prompt_alt_tokens_k": 3}), "`prompt_alt_tokens_k`"),
        (&PROMPT, json!({"target_prompt_logprobs": {"data": []}}), "`target_prompt_logprobs`"),
        (&PROMPT, json!({"prompt_logprobs": true, "prompt_logprobs_last_n": 4}), "from 1 to 3"),
        (&PROMPT, json!({"prompt_logprobs_last_n": 2}), "needs `prompt_logprobs`"),
        (&PROMPT, json!({"num_samples": 0}), "`num_samples`"),
        (&PROMPT, json!({"invented": 1}), "unknown field"),
    ] {
        let refused = client.sample(&sampler, prompt, 1, &more).unwrap_err();
        assert!(refused.starts_with("400") && refused.contains(expected), "{refused}");
    }
    let refused = client.sample("missing", &PROMPT, 1, &json!({})).unwrap_err();
    assert!(refused.starts_with("404"), "{refused}");
}
