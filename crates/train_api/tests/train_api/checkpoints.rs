//! Checkpoints: what they contain, where they may be, and continuing from them.

use rloom_text::Tokenizer;
use serde_json::json;

use crate::client::{Client, Trained, datum, delete, get};
use crate::loops::{stored, weights};
use crate::server::TestServer;

fn train(model: &Trained<'_>, shift: u32) {
    let tokens: Vec<u32> = (0..10).map(|i| (i * 3 + shift) % 20).collect();
    model.pass("cross_entropy", &[datum(&tokens, &[])]).unwrap();
    model.step(1e-2).unwrap();
}

fn load(client: &Client, number: u32, path: &str, optimizer: bool) -> Result<String, String> {
    let body = json!({
        "session_id": client.session, "model_seq_id": number, "path": path, "optimizer": optimizer,
        "type": "load_weights",
    });
    Ok(client.run("load_weights", &body)?["model_id"].as_str().unwrap().to_owned())
}

#[test]
fn training_continues_from_a_checkpoint_as_if_uninterrupted() {
    let server = TestServer::start();
    let client = Client::new(&server);
    let model = client.model(0);
    train(&model, 0);
    train(&model, 1);
    let path = model.save("two").unwrap();
    train(&model, 2);
    let expected = weights(&stored(&server, &model.save("three").unwrap()));
    let other = Client::new(&server);
    let trained_from = |number: u32, optimizer: bool| {
        let id = load(&other, number, &path, optimizer).unwrap();
        assert_eq!(id, format!("{}:train:{number}", other.session));
        let loaded = other.existing(&id);
        train(&loaded, 2);
        weights(&stored(&server, &loaded.save("three").unwrap()))
    };
    assert_eq!(trained_from(0, true), expected);
    // Without the optimizer's state, the step is another one.
    assert_ne!(trained_from(1, false), expected);
    // An existing model goes back.
    let body = json!({"model_id": model.id, "seq_id": model.number(), "path": path, "optimizer": true});
    client.run("load_weights", &body).unwrap();
    train(&model, 2);
    assert_eq!(weights(&stored(&server, &model.save("again").unwrap())), expected);
}

#[test]
fn checkpoints_are_model_folders() {
    let server = TestServer::start();
    let client = Client::new(&server);
    let model = client.model(0);
    train(&model, 0);
    let path = model.save("state").unwrap();
    assert_eq!(path, format!("tinker://{}/weights/state", model.id));
    let folder = server.checkpoints().join(model.id.replace(':', "-")).join("weights/state");
    for file in
        ["config.json", "generation_config.json", "model.safetensors", "trainer/optimizer.safetensors"]
    {
        assert!(folder.join(file).is_file(), "{file}");
    }
    let text = "ab";
    let own = Tokenizer::load(&folder).unwrap().encode(text, false).unwrap();
    assert_eq!(own, server.base.tokenizer.encode(text, false).unwrap());
    assert!(model.save("state").unwrap_err().contains("exists"));
    let info = client.post("weights_info", &json!({"tinker_path": path})).json();
    assert_eq!((&info["base_model"], &info["is_lora"]), (&json!("tiny"), &json!(false)));
    let missing = client.post("weights_info", &json!({"tinker_path": format!("{path}x")}));
    assert_eq!(missing.status, 404);
}

/// Paths of a list of checkpoints.
fn paths(list: &serde_json::Value) -> Vec<String> {
    let checkpoints = list["checkpoints"].as_array().unwrap().iter();
    checkpoints.map(|checkpoint| checkpoint["tinker_path"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn checkpoints_are_listed_and_deleted() {
    let server = TestServer::start();
    let client = Client::new(&server);
    let (model, other) = (client.model(0), client.model(1));
    assert!(paths(&get(server.address, "checkpoints").json()).is_empty());
    let first = model.save("first").unwrap();
    let second = model.save("second").unwrap();
    let third = other.save("first").unwrap();
    let all = get(server.address, "checkpoints").json();
    assert_eq!(all["cursor"], json!({"offset": 0, "limit": 100, "total_count": 3}));
    let mut listed = paths(&all);
    listed.sort();
    let mut expected = vec![first.clone(), second.clone(), third.clone()];
    expected.sort();
    assert_eq!(listed, expected);
    let page = get(server.address, "checkpoints?limit=1&offset=1").json();
    assert_eq!(paths(&page), [paths(&all)[1].clone()]);
    assert_eq!(get(server.address, "checkpoints?limit=many").status, 400);
    let of =
        |model: &Trained<'_>| get(server.address, &format!("training_runs/{}/checkpoints", model.id)).json();
    let own = of(&other);
    assert_eq!(paths(&own), [third]);
    let one = &own["checkpoints"][0];
    assert_eq!(
        (&one["checkpoint_id"], &one["checkpoint_type"]),
        (&json!("weights/first"), &json!("training"))
    );
    assert!(one["size_bytes"].as_u64().unwrap() > 1000 && one["time"].as_str().unwrap().ends_with('Z'));
    let path = format!("training_runs/{}/checkpoints/weights/first", model.id);
    assert_eq!(delete(server.address, &path).status, 204);
    assert_eq!(delete(server.address, &path).status, 404);
    assert_eq!(paths(&of(&model)), std::slice::from_ref(&second));
    assert!(load(&client, 5, &first, true).unwrap_err().contains("does not exist"));
    load(&client, 6, &second, true).unwrap();
    // The name is free again.
    assert_eq!(model.save("first").unwrap(), first);
    for path in ["a/checkpoints/weights/..", "../checkpoints/weights/first", "a/checkpoints/other/first"] {
        let status = delete(server.address, &format!("training_runs/{path}")).status;
        assert!([400, 404].contains(&status), "{path}: {status}");
    }
}

#[test]
fn what_is_no_checkpoint_is_not_loaded() {
    let server = TestServer::start();
    let client = Client::new(&server);
    let model = client.model(0);
    train(&model, 0);
    let before = weights(&stored(&server, &model.save("before").unwrap()));
    let body = json!({"model_id": model.id, "seq_id": model.number(), "path": "sampler"});
    let sampler = client.run("save_weights_for_sampler", &body).unwrap()["path"].as_str().unwrap().to_owned();
    let damaged = model.save("damaged").unwrap();
    let folder = server.checkpoints().join(model.id.replace(':', "-")).join("weights/damaged");
    std::fs::write(folder.join("trainer/optimizer.safetensors"), "nothing").unwrap();
    for (path, expected) in [
        ("tinker://a/weights/missing", "does not exist"),
        ("tinker://a/weights/../../x", "no path of this server"),
        ("file:///etc", "no path of this server"),
        (&sampler, "no state of the optimizer"),
        (&damaged, "optimizer.safetensors"),
    ] {
        let body = json!({"model_id": model.id, "seq_id": model.number(), "path": path, "optimizer": true});
        let failed = client.run("load_weights", &body).unwrap_err();
        assert!(failed.contains(expected), "{failed}");
        // A new model of it does not count.
        assert!(load(&client, 1, path, true).is_err());
        assert_eq!(server.api.models(), 1);
    }
    for name in ["../x", "", ".hidden", "a/b"] {
        assert!(model.save(name).unwrap_err().contains("needs a name"), "{name}");
    }
    // The model is as it was.
    assert_eq!(weights(&stored(&server, &model.save("after").unwrap())), before);
    let id = load(&client, 1, &sampler, false).unwrap();
    let path = client.existing(&id).save("copy").unwrap();
    assert_eq!(weights(&stored(&server, &path)), before);
}
