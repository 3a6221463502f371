//! Generation by the stand-in.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use super::faults::Fault;
use super::model::{VOCABULARY, Weights, mix};
use super::{CONTEXT, Paused, World};

/// A request that is being computed or waits.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) id: String,
    pub(crate) is_aborted: bool,
    pub(crate) is_admitted: bool,
    /// Weights of its own instead of those of the server.
    pub(crate) adapter: Option<Weights>,
}

/// Removes a request when it ends or its client is gone.
pub(super) struct Registered {
    world: Arc<Mutex<World>>,
    pub(super) number: u64,
    pub(super) is_done: bool,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut world = self.world.lock().unwrap();
        world.running.remove(&self.number);
        world.cancelled += u64::from(!self.is_done);
    }
}

/// Settings of a request that the stand-in reads.
pub(super) struct Params {
    pub(super) temperature: f64,
    pub(super) top_k: usize,
    pub(super) top_p: f64,
    pub(super) min_p: f64,
    pub(super) max_tokens: usize,
    pub(super) min_tokens: usize,
    pub(super) seed: u64,
    pub(super) stop: Vec<u32>,
}

impl Params {
    fn read(params: &Value) -> Self {
        assert_eq!((&params["logprobs"], &params["ignore_eos"]), (&json!(0), &json!(true)));
        let number = |name: &str| params[name].as_f64().unwrap();
        Self {
            temperature: number("temperature"),
            top_k: params["top_k"].as_u64().unwrap() as usize,
            top_p: number("top_p"),
            min_p: number("min_p"),
            max_tokens: params["max_tokens"].as_u64().unwrap() as usize,
            min_tokens: params["min_tokens"].as_u64().unwrap() as usize,
            seed: params["seed"].as_u64().unwrap_or(0),
            stop: serde_json::from_value(params["stop_token_ids"].clone()).unwrap(),
        }
    }

    /// Samples from the full log-probabilities.
    fn sample(&self, full: &[f64], made: usize) -> u32 {
        let mut order: Vec<usize> = (0..full.len()).collect();
        order.retain(|&id| made >= self.min_tokens || !self.stop.contains(&(id as u32)));
        order.sort_by(|&a, &b| full[b].total_cmp(&full[a]));
        if self.temperature == 0.0 {
            return order[0] as u32;
        }
        if self.top_k > 0 {
            order.truncate(self.top_k);
        }
        let mut sum = 0.0;
        let total: f64 = order.iter().map(|&id| full[id].exp()).sum();
        order.retain(|&id| {
            let is_in = sum < self.top_p * total;
            sum += full[id].exp();
            is_in
        });
        let best = full[order[0]].exp();
        order.retain(|&id| full[id].exp() >= self.min_p * best);
        let total: f64 = order.iter().map(|&id| full[id].exp()).sum();
        let uniform = (mix(self.seed ^ mix(made as u64)) >> 11) as f64 / (1u64 << 53) as f64;
        let mut rest = uniform * total;
        for &id in &order {
            rest -= full[id].exp();
            if rest < 0.0 {
                return id as u32;
            }
        }
        order[order.len() - 1] as u32
    }
}

pub(super) async fn generate(world: &Arc<Mutex<World>>, body: &Value) -> (u16, Value) {
    let prompt: Vec<u32> = serde_json::from_value(body["token_ids"].clone()).unwrap();
    let mut params = Params::read(&body["sampling_params"]);
    if world.lock().unwrap().has_whole_lengths {
        params.min_tokens = params.max_tokens;
    }
    if prompt.iter().any(|&token| token as usize >= VOCABULARY) || prompt.len() + params.max_tokens > CONTEXT
    {
        return (400, json!({ "error": { "message": "bad prompt", "code": 400 } }));
    }
    let adapter = match body["model"].as_str() {
        None => None,
        Some(name) => match world.lock().unwrap().adapters.get(name) {
            None => return (404, json!({ "error": { "message": "the model does not exist", "code": 404 } })),
            adapter => adapter.copied(),
        },
    };
    let id = format!("generate-tokens-{}", body["request_id"].as_str().unwrap());
    let mut registered = register(world, id.clone(), &prompt);
    if let Some(running) = world.lock().unwrap().running.get_mut(&registered.number) {
        running.adapter = adapter;
    }
    let (tokens, logprobs, mut versions, reason) = decode(world, registered.number, &prompt, &params).await;
    let service = world.lock().unwrap().service;
    if let Some(service) = service {
        sleep(service(params.seed, tokens.len())).await;
    }
    registered.is_done = true;
    let world = &mut *world.lock().unwrap();
    let faults = &mut world.faults;
    let mut content: Vec<Value> = tokens
        .iter()
        .zip(&logprobs)
        .map(|(token, logprob)| json!({ "token_id": token, "logprob": logprob, "rank": 1, "top_logprobs": [] }))
        .collect();
    if versions.len() > 1 && faults.has(Fault::ChangesBase) {
        "0/77777/0000000000000001".clone_into(&mut versions[0]);
    }
    let spans = spans_of(&versions);
    let mut tokens = tokens;
    let of_base = adapter.is_none() || faults.has(Fault::AnswersByBase);
    let model = if of_base { &json!("model") } else { &body["model"] };
    let (mut id, mut spans) = (json!(id), json!(spans));
    if !tokens.is_empty() {
        if faults.has(Fault::Nan) {
            content[0]["logprob"] = json!(-9999.0);
        }
        if faults.has(Fault::Null) {
            content[0]["logprob"] = Value::Null;
        }
        if faults.has(Fault::WrongTokens) {
            tokens[0] = 7777;
            content[0]["token_id"] = json!(7777);
        }
        if faults.has(Fault::OtherLogprobs) {
            content[0]["token_id"] = json!((tokens[0] + 1) % 16);
        }
        if faults.has(Fault::DropsVersions) {
            spans = Value::Null;
        }
        if faults.has(Fault::DropsAVersion) {
            spans[0]["start"] = json!(1);
        }
        if faults.has(Fault::InventsVersions) {
            spans[0]["version"] = json!("0/77777/0000000000000001");
        }
    }
    if tokens.len() > 1 && reason == "length" && faults.has(Fault::Short) {
        tokens.pop();
        content.pop();
        let last = spans.as_array().unwrap().len() - 1;
        spans[last]["end"] = json!(tokens.len());
    }
    if faults.has(Fault::WrongRequest) {
        id = json!("generate-tokens-another");
    }
    let prompt_logprobs = body["sampling_params"]["prompt_logprobs"].is_number().then(|| {
        let scores = adapter.unwrap_or(world.weights).score(&prompt, 1.0).into_iter();
        let row =
            |(token, logprob): (&u32, f32)| json!({ token.to_string(): { "logprob": logprob, "rank": 1 } });
        let rows = prompt[1..].iter().zip(scores).map(row);
        std::iter::once(Value::Null).chain(rows).collect::<Vec<Value>>()
    });
    let choice = json!({
        "index": 0, "finish_reason": reason, "stop_reason": null, "token_ids": tokens,
        "logprobs": { "content": content }, "routed_experts": null, "weight_versions": spans,
    });
    (
        200,
        json!({ "request_id": id, "model": model, "choices": [choice], "prompt_logprobs": prompt_logprobs, "output_mode": "tokens" }),
    )
}

/// Ranges of tokens with the same version.
pub(super) fn spans_of(versions: &[String]) -> Vec<Value> {
    let mut spans: Vec<Value> = Vec::new();
    for (at, version) in versions.iter().enumerate() {
        match spans.last_mut() {
            Some(last) if last["version"] == version.as_str() => last["end"] = json!(at + 1),
            _ => spans.push(json!({ "version": version, "start": at, "end": at + 1 })),
        }
    }
    spans
}

pub(super) fn register(world: &Arc<Mutex<World>>, id: String, prompt: &[u32]) -> Registered {
    let mut state = world.lock().unwrap();
    let number = state.next;
    state.next += 1;
    state.prompts.push(prompt.to_vec());
    let is_admitted = state.paused.is_none();
    state.running.insert(number, Running { id, is_aborted: false, is_admitted, adapter: None });
    Registered { world: Arc::clone(world), number, is_done: false }
}

/// Tokens, log-probabilities, versions and the reason for the end.
pub(super) async fn decode(
    world: &Mutex<World>,
    number: u64,
    prompt: &[u32],
    params: &Params,
) -> (Vec<u32>, Vec<f32>, Vec<String>, &'static str) {
    let mut all = prompt.to_vec();
    let (mut logprobs, mut versions) = (Vec::new(), Vec::new());
    loop {
        let made = all.len() - prompt.len();
        let (speed, step) = {
            let world = world.lock().unwrap();
            let running = &world.running[&number];
            let goes_on = running.is_admitted && world.paused != Some(Paused::Keep);
            let step = if running.is_aborted {
                Step::Aborted
            } else if goes_on {
                Step::Token
            } else {
                Step::Wait
            };
            (world.speed, step)
        };
        match step {
            Step::Aborted => return (all.split_off(prompt.len()), logprobs, versions, "abort"),
            Step::Wait => {
                sleep(Duration::from_millis(1)).await;
                continue;
            }
            Step::Token => {}
        }
        {
            let mut world = world.lock().unwrap();
            world.admitted += u64::from(made == 0);
            let weights = world.running[&number].adapter.unwrap_or(world.weights);
            let full = weights.logprobs(&all, params.temperature);
            let token = params.sample(&full, made);
            logprobs.push(full[token as usize] as f32);
            versions.push(world.label.clone());
            all.push(token);
            if params.stop.contains(&token) {
                return (all.split_off(prompt.len()), logprobs, versions, "stop");
            }
            if made + 1 == params.max_tokens {
                return (all.split_off(prompt.len()), logprobs, versions, "length");
            }
        }
        if (made + 1).is_multiple_of(speed) {
            sleep(Duration::from_millis(1)).await;
        }
    }
}

enum Step {
    Token,
    Wait,
    Aborted,
}
