//! Adapters of the stand-in, which requests name.

use std::path::Path;

use serde_json::{Value, json};

use super::World;
use super::faults::Fault;
use super::model::Weights;

pub(super) fn answer(world: &mut World, path: &str, body: &Value) -> (u16, Value) {
    let refused = |status: u16, text: &str| (status, json!({ "error": { "message": text, "code": status } }));
    if path == "/v1/models" {
        let base = json!({ "id": "model", "object": "model", "parent": null });
        let adapter = |name: &String| json!({ "id": name, "object": "model", "parent": "model" });
        let data: Vec<Value> = std::iter::once(base).chain(world.adapters.keys().map(adapter)).collect();
        return (200, json!({ "object": "list", "data": data }));
    }
    if world.max_adapter_rank == 0 {
        return (404, json!({ "detail": "Not Found" }));
    }
    let name = body["lora_name"].as_str().unwrap();
    if path == "/v1/unload_lora_adapter" {
        return match world.adapters.remove(name) {
            Some(_) => (200, json!("removed")),
            None => refused(404, "the adapter cannot be found"),
        };
    }
    if world.adapters.contains_key(name) {
        return refused(400, "the adapter has already been loaded");
    }
    let Some(mut new) = Weights::read(Path::new(body["lora_path"].as_str().unwrap())) else {
        return refused(404, "no adapter found");
    };
    let old = world.adapters.values().next_back().copied().unwrap_or(world.weights);
    if world.faults.has(Fault::LoadsHalf) {
        new.0[0] = old.0[0];
    } else if world.faults.has(Fault::KeepsWeights) {
        new = old;
    }
    if !world.faults.has(Fault::KeepsLabel) {
        world.adapters.insert(name.to_owned(), new);
    }
    (200, json!("added"))
}
