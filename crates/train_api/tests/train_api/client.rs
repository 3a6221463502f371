//! A client of the API, written by hand from the descriptors of the public SDK.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use prost::Message;
use serde_json::{Value, json};

use crate::server::{MODEL, TestServer};

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Tensor {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) dense: Vec<u8>,
    #[prost(int32, tag = "3")]
    pub(crate) dtype: i32,
    #[prost(int64, repeated, tag = "4")]
    pub(crate) shape: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct EncodedText {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) tokens: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Chunk {
    #[prost(message, optional, tag = "1")]
    pub(crate) encoded_text: Option<EncodedText>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Datum {
    #[prost(message, repeated, tag = "1")]
    pub(crate) model_input: Vec<Chunk>,
    #[prost(btree_map = "string, message", tag = "2")]
    pub(crate) loss_fn_inputs: BTreeMap<String, Tensor>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Pass {
    #[prost(string, tag = "1")]
    pub(crate) model_id: String,
    #[prost(int32, tag = "2")]
    pub(crate) seq_id: i32,
    #[prost(message, repeated, tag = "3")]
    pub(crate) data: Vec<Datum>,
    #[prost(string, tag = "4")]
    pub(crate) loss_fn: String,
    #[prost(btree_map = "string, double", tag = "5")]
    pub(crate) loss_fn_config: BTreeMap<String, f64>,
    #[prost(bool, tag = "6")]
    pub(crate) forward_only: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct BatchedTensor {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) data: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) offsets: Vec<u8>,
    #[prost(int32, tag = "3")]
    pub(crate) dtype: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ArrayRecord {
    #[prost(btree_map = "string, message", tag = "2")]
    pub(crate) fields: BTreeMap<String, BatchedTensor>,
    #[prost(int64, tag = "3")]
    pub(crate) num_datums: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PassOutput {
    #[prost(string, tag = "1")]
    pub(crate) kind: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) outputs: Vec<ArrayRecord>,
    #[prost(btree_map = "string, double", tag = "3")]
    pub(crate) metrics: BTreeMap<String, f64>,
}

impl PassOutput {
    /// Log-probabilities of each datum.
    pub(crate) fn logprobs(&self) -> Vec<Vec<f32>> {
        let tensor = &self.outputs[0].fields["logprobs"];
        let offsets: Vec<usize> =
            tensor.offsets.as_chunks().0.iter().map(|word| i64::from_le_bytes(*word) as usize).collect();
        assert_eq!(offsets.len() as i64, self.outputs[0].num_datums + 1);
        offsets.windows(2).map(|pair| floats(&tensor.data[pair[0]..pair[1]])).collect()
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Sequence {
    #[prost(int32, tag = "1")]
    pub(crate) stop_reason: i32,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) tokens: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) logprobs: Vec<u8>,
}

impl Sequence {
    pub(crate) fn token_ids(&self) -> Vec<u32> {
        self.tokens.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Samples {
    #[prost(message, repeated, tag = "1")]
    pub(crate) sequences: Vec<Sequence>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) prompt_logprobs: Vec<u8>,
}

pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

fn bytes<const N: usize>(words: impl Iterator<Item = [u8; N]>) -> Vec<u8> {
    words.flatten().collect()
}

/// A datum of a whole sequence of tokens, shifted by one, and its numbers of each target.
pub(crate) fn datum(tokens: &[u32], numbers: &[(&str, &[f32])]) -> Datum {
    let (input, targets) = (&tokens[..tokens.len() - 1], &tokens[1..]);
    let text = EncodedText { tokens: bytes(input.iter().map(|token| token.to_le_bytes())) };
    let shape = vec![targets.len() as i64];
    let dense = bytes(targets.iter().map(|&token| i64::from(token).to_le_bytes()));
    let targets = Tensor { dense, dtype: 2, shape: shape.clone() };
    let mut inputs = BTreeMap::from([("target_tokens".to_owned(), targets)]);
    for (name, values) in numbers {
        let dense = bytes(values.iter().map(|value| value.to_le_bytes()));
        inputs.insert((*name).to_owned(), Tensor { dense, dtype: 1, shape: shape.clone() });
    }
    Datum { model_input: vec![Chunk { encoded_text: Some(text) }], loss_fn_inputs: inputs }
}

/// An answer of the server.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{} {error}: {text}", self.status))
    }
}

/// Sends a request; `None` if the connection ends without an answer.
pub(crate) fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    content_type: &str,
    body: &[u8],
) -> Option<Answer> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_mins(2))).unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: {content_type}\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    // The server may answer, and close the connection, before it has read everything.
    let _ = stream.write_all(&[head.as_bytes(), body].concat());
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, body: bytes[end + 4..].to_vec() })
}

/// A session of a client.
pub(crate) struct Client {
    address: SocketAddr,
    pub(crate) session: String,
    samplers: Cell<u32>,
    samples: Cell<u64>,
}

impl Client {
    pub(crate) fn new(server: &TestServer) -> Self {
        let address = server.address;
        let body =
            json!({"tags": [], "user_metadata": {}, "sdk_version": "0.38.0", "type": "create_session"});
        let answer = post(address, "create_session", &body).json();
        let session = answer["session_id"].as_str().unwrap().to_owned();
        Self { address, session, samplers: Cell::new(0), samples: Cell::new(0) }
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        post(self.address, path, body)
    }

    /// Sends a request and returns its result.
    pub(crate) fn run(&self, path: &str, body: &Value) -> Result<Value, String> {
        self.result(&self.post(path, body)).map(|body| serde_json::from_slice(&body).unwrap())
    }

    /// The result of an accepted operation; a message if it was refused or has failed.
    pub(crate) fn result(&self, accepted: &Answer) -> Result<Vec<u8>, String> {
        if accepted.status != 200 {
            return Err(format!("{}: {}", accepted.status, accepted.json()["detail"]));
        }
        let id = accepted.json()["request_id"].as_str().unwrap().to_owned();
        loop {
            let answer =
                self.post("retrieve_future", &json!({"request_id": id, "allow_metadata_only": true}));
            match answer.status {
                408 => {}
                200 => {
                    let failed = serde_json::from_slice::<Value>(&answer.body).ok();
                    return match failed.as_ref().and_then(|value| value["error"].as_str()) {
                        Some(error) => Err(error.to_owned()),
                        None => Ok(answer.body),
                    };
                }
                status => return Err(format!("{status}: {}", answer.json()["detail"])),
            }
        }
    }

    /// Creates a model.
    pub(crate) fn model(&self, number: u32) -> Trained<'_> {
        let lora = json!({"rank": 32, "train_unembed": true, "train_mlp": true, "train_attn": true});
        self.adapter(number, &lora).unwrap()
    }

    /// Creates a model with these settings of LoRA.
    pub(crate) fn adapter(&self, number: u32, lora: &Value) -> Result<Trained<'_>, String> {
        let body = json!({
            "session_id": self.session, "model_seq_id": number, "base_model": MODEL, "lora_config": lora,
            "optimizer_config": {"type": "adamw"}, "type": "create_model",
        });
        let id = self.run("create_model", &body)?["model_id"].as_str().unwrap().to_owned();
        Ok(Trained { client: self, id, next: Cell::new(1) })
    }

    /// A model that was created otherwise.
    pub(crate) fn existing(&self, id: &str) -> Trained<'_> {
        Trained { client: self, id: id.to_owned(), next: Cell::new(1) }
    }

    /// A new number of a sampling session.
    pub(crate) fn next_sampler(&self) -> u32 {
        self.samplers.replace(self.samplers.get() + 1)
    }

    /// Samples.
    pub(crate) fn sample(
        &self,
        sampler: &str,
        prompt: &[u32],
        count: u32,
        more: &Value,
    ) -> Result<Samples, String> {
        let seq_id = self.samples.replace(self.samples.get() + 1);
        let mut body = json!({
            "sampling_session_id": sampler, "seq_id": seq_id, "num_samples": count, "type": "sample",
            "prompt": {"chunks": [{"tokens": prompt, "type": "encoded_text"}]},
            "sampling_params": {"max_tokens": 8, "temperature": 1.0, "top_k": -1, "top_p": 1.0},
            "prompt_logprobs": false, "topk_prompt_logprobs": 0,
        });
        for (key, value) in more.as_object().unwrap() {
            match body["sampling_params"].get(key) {
                Some(_) => body["sampling_params"][key] = value.clone(),
                None if key == "seed" || key == "stop" => body["sampling_params"][key] = value.clone(),
                None => body[key] = value.clone(),
            }
        }
        let accepted = self.post("asample", &body);
        if accepted.status == 200 {
            let ids = accepted.json()["sample_sequence_ids"].as_array().unwrap().len();
            assert_eq!(ids as u32, count);
        }
        Ok(Samples::decode(&self.result(&accepted)?[..]).unwrap())
    }
}

pub(crate) fn post(address: SocketAddr, path: &str, body: &Value) -> Answer {
    let body = body.to_string();
    request(address, "POST", &format!("/api/v1/{path}"), "application/json", body.as_bytes()).unwrap()
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Answer {
    request(address, "GET", &format!("/api/v1/{path}"), "application/json", b"").unwrap()
}

pub(crate) fn delete(address: SocketAddr, path: &str) -> Answer {
    request(address, "DELETE", &format!("/api/v1/{path}"), "application/json", b"").unwrap()
}

/// A model of a client.
pub(crate) struct Trained<'a> {
    pub(crate) client: &'a Client,
    pub(crate) id: String,
    next: Cell<u32>,
}

impl Trained<'_> {
    /// The number of the next request.
    pub(crate) fn number(&self) -> u32 {
        self.next.replace(self.next.get() + 1)
    }

    /// Sends a pass with a given number.
    pub(crate) fn send_pass(&self, number: u32, loss: &str, data: &[Datum], forward_only: bool) -> Answer {
        self.send_pass_with(number, loss, data, &[], forward_only)
    }

    pub(crate) fn send_pass_with(
        &self,
        number: u32,
        loss: &str,
        data: &[Datum],
        config: &[(&str, f64)],
        forward_only: bool,
    ) -> Answer {
        let pass = Pass {
            model_id: self.id.clone(),
            seq_id: number as i32,
            data: data.to_vec(),
            loss_fn: loss.to_owned(),
            loss_fn_config: config.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect(),
            forward_only,
        };
        let (path, kind) = ("/api/v1/forward_backward", "application/x-protobuf");
        request(self.client.address, "POST", path, kind, &pass.encode_to_vec()).unwrap()
    }

    pub(crate) fn pass(&self, loss: &str, data: &[Datum]) -> Result<PassOutput, String> {
        self.output(&self.send_pass(self.number(), loss, data, false))
    }

    pub(crate) fn forward(&self, loss: &str, data: &[Datum]) -> Result<PassOutput, String> {
        self.output(&self.send_pass(self.number(), loss, data, true))
    }

    pub(crate) fn output(&self, accepted: &Answer) -> Result<PassOutput, String> {
        Ok(PassOutput::decode(&self.client.result(accepted)?[..]).unwrap())
    }

    pub(crate) fn send_step(&self, number: u32, learning_rate: f64) -> Answer {
        let params = json!({
            "learning_rate": learning_rate, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0.0,
            "grad_clip_norm": 0.0,
        });
        let body =
            json!({"model_id": self.id, "seq_id": number, "adam_params": params, "type": "optim_step"});
        self.client.post("optim_step", &body)
    }

    pub(crate) fn step(&self, learning_rate: f64) -> Result<f64, String> {
        let body = self.client.result(&self.send_step(self.number(), learning_rate))?;
        let result: Value = serde_json::from_slice(&body).unwrap();
        Ok(result["metrics"]["grad_norm:mean"].as_f64().unwrap())
    }

    /// Stores the model and returns the path.
    pub(crate) fn save(&self, name: &str) -> Result<String, String> {
        let body = json!({"model_id": self.id, "seq_id": self.number(), "path": name, "overwrite": false});
        Ok(self.client.run("save_weights", &body)?["path"].as_str().unwrap().to_owned())
    }

    /// Publishes the weights to a new sampler.
    pub(crate) fn publish(&self) -> String {
        let sampler = self.client.next_sampler();
        let body = json!({
            "model_id": self.id, "seq_id": self.number(), "sampling_session_seq_id": sampler, "kind": "snapshot",
        });
        let result = self.client.run("save_weights_for_sampler", &body).unwrap();
        result["sampling_session_id"].as_str().unwrap().to_owned()
    }
}
