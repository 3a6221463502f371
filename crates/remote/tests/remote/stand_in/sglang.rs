//! The endpoints of SGLang.

use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::faults::Fault;
use super::generate::{Params, decode, register, spans_of};
use super::model::{VOCABULARY, Weights};
use super::{CONTEXT, Paused, World, pause};

pub(super) async fn answer(world: &Arc<Mutex<World>>, path: &str, body: &Value) -> (u16, Value) {
    let ok = (200, json!({ "status": "ok" }));
    match path {
        "/model_info" => {
            let label = world.lock().unwrap().label.clone();
            (200, json!({ "model_path": "model", "is_generation": true, "weight_version": label }))
        }
        "/server_info" => {
            (200, json!({ "version": "0.5.23", "max_req_input_len": CONTEXT, "max_running_requests": 64 }))
        }
        "/pause_generation" => {
            let mode = match body["mode"].as_str().unwrap() {
                "abort" => Paused::Abort,
                "in_place" => Paused::Keep,
                other => panic!("unused pause mode: {other}"),
            };
            pause(world, mode).await;
            ok
        }
        "/continue_generation" => {
            world.lock().unwrap().resume();
            ok
        }
        "/abort_request" => {
            let rid = body["rid"].as_str().unwrap();
            // As the scheduler compares them.
            for running in world.lock().unwrap().running.values_mut() {
                running.is_aborted |= running.id.starts_with(rid);
            }
            ok
        }
        "/update_weights_from_disk" => update(&mut world.lock().unwrap(), body),
        "/generate" => generate(world, body).await,
        other => panic!("{other} has fields and no answer"),
    }
}

fn update(world: &mut World, body: &Value) -> (u16, Value) {
    let refused =
        |message: &str| (400, json!({ "success": false, "message": message, "num_paused_requests": 0 }));
    if body["flush_cache"] != json!(false) && !world.running.is_empty() {
        return refused("the cache cannot be flushed beside requests");
    }
    let Some(new) = Weights::read(Path::new(body["model_path"].as_str().unwrap())) else {
        return refused("cannot read the weights");
    };
    if !world.faults.has(Fault::KeepsWeights) {
        world.weights = new;
    }
    if !world.faults.has(Fault::KeepsLabel) {
        body["weight_version"].as_str().unwrap().clone_into(&mut world.label);
    }
    (200, json!({ "success": true, "message": "done", "num_paused_requests": 0 }))
}

async fn generate(world: &Arc<Mutex<World>>, body: &Value) -> (u16, Value) {
    let prompt: Vec<u32> = serde_json::from_value(body["input_ids"].clone()).unwrap();
    let own = &body["sampling_params"];
    assert_eq!((&body["return_logprob"], &own["ignore_eos"]), (&json!(true), &json!(true)));
    let number = |name: &str| own[name].as_f64().unwrap();
    let params = Params {
        temperature: number("temperature"),
        top_k: usize::try_from(own["top_k"].as_i64().unwrap()).unwrap_or(0),
        top_p: number("top_p"),
        min_p: number("min_p"),
        max_tokens: own["max_new_tokens"].as_u64().unwrap() as usize,
        min_tokens: own["min_new_tokens"].as_u64().unwrap() as usize,
        seed: own["sampling_seed"].as_u64().unwrap_or(0),
        stop: serde_json::from_value(own["stop_token_ids"].clone()).unwrap(),
    };
    if prompt.iter().any(|&token| token as usize >= VOCABULARY) || prompt.len() + params.max_tokens > CONTEXT
    {
        return (400, json!({ "error": { "message": "bad prompt", "code": 400 } }));
    }
    let id = body["rid"].as_str().unwrap().to_owned();
    let mut registered = register(world, id.clone(), &prompt);
    let (mut tokens, logprobs, versions, reason) = decode(world, registered.number, &prompt, &params).await;
    registered.is_done = true;
    let world = &mut *world.lock().unwrap();
    let row = |(&token, &logprob): (&u32, &f32)| json!([logprob, token, null]);
    let mut rows: Vec<Value> = tokens.iter().zip(&logprobs).map(row).collect();
    let mut spans = json!(spans_of(&versions));
    if !tokens.is_empty() {
        if world.faults.has(Fault::Null) {
            rows[0][0] = Value::Null;
        }
        if world.faults.has(Fault::WrongTokens) {
            tokens[0] = 7777;
            rows[0][1] = json!(7777);
        }
        if world.faults.has(Fault::DropsVersions) {
            spans = json!([]);
        }
    }
    let mut meta = json!({
        "id": id, "finish_reason": { "type": reason }, "prompt_tokens": prompt.len(),
        "weight_version": world.label, "weight_versions": spans, "output_token_logprobs": rows,
    });
    if body["logprob_start_len"] == json!(0) {
        let first = std::iter::once(json!([null, prompt[0], null]));
        let scores = world.weights.score(&prompt, 1.0);
        let rows = first.chain(prompt[1..].iter().zip(&scores).map(row));
        meta["input_token_logprobs"] = rows.collect();
    }
    (200, json!({ "text": "", "output_ids": tokens, "meta_info": meta }))
}
