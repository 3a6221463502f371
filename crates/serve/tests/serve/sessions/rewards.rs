//! Rewards and the end of a session over HTTP.

use rloom_serve::{SessionReward, SessionStatus};
use serde_json::{Value, json};

use super::{chat, chat_path, check, ended, message};
use crate::client::{get, post};
use crate::script::Setup;

fn reward(name: &str, value: f64, call: Option<&str>, agent: Option<&str>) -> SessionReward {
    SessionReward {
        name: name.to_owned(),
        value,
        call: call.map(str::to_owned),
        agent: agent.map(str::to_owned),
    }
}

#[test]
fn rewards_belong_to_the_session_or_to_a_call() {
    let server = Setup::saying("One").start();
    let mut session = server.session();
    let path = format!("{}/reward", session.path());
    let ask = json!([{"role": "user", "content": "Hi"}]);
    let first = chat(&server, &session, &ask).json();
    let next = json!([ask[0], first["choices"][0]["message"], {"role": "user", "content": "Then?"}]);
    chat(&server, &session, &next);
    let id = first["id"].as_str().unwrap();
    for body in [
        json!({"value": 0.25}),
        json!({"value": 1, "name": "reward"}),
        json!({"value": -0.5, "name": "format", "agent": "writer"}),
        json!({"value": 2.0, "call_id": id}),
        json!({"value": 0.5, "call_id": id, "name": "hint"}),
    ] {
        let answer = post(server.address, &path, &body);
        assert_eq!((answer.status, answer.json()), (200, json!({"status": "ok"})), "{body}");
    }
    let state = get(server.address, &session.path()).json();
    assert_eq!((&state["calls"], &state["rewards"], &state["segments"]), (&json!(2), &json!(4), &json!(1)));
    assert!(!state.to_string().contains(session.token()));
    let answer = post(server.address, &format!("{}/finish", session.path()), &json!({}));
    assert_eq!((answer.status, answer.json()), (200, json!({"status": "finished"})));
    let end = ended(&mut session);
    check(&server, &end.segments);
    assert_eq!(end.status, SessionStatus::Finished);
    // A later reward of the same name replaces the earlier.
    let expected = [
        reward("reward", 1.0, None, None),
        reward("format", -0.5, None, Some("writer")),
        reward("reward", 2.0, Some(id), None),
        reward("hint", 0.5, Some(id), None),
    ];
    assert_eq!(end.rewards, expected);
    let steps: Vec<Option<f64>> =
        end.segments[0].spans.iter().map(|span| span.step.as_ref().map(|step| step.reward)).collect();
    assert_eq!(steps, [None, Some(2.5), None, None]);
}

/// The identifier of a tool's call rewards the answer that it is part of, in every API.
#[test]
fn calls_of_tools_name_their_answer() {
    let server = super::conversations::agent();
    let session = server.session();
    let tool = json!({"type": "function", "function": {"name": "weather"}});
    let body = json!({"messages": [{"role": "user", "content": "Weather?"}], "tools": [tool]});
    let called = message(&post(server.address, &chat_path(&session), &body));
    let response =
        post(server.address, &format!("{}/v1/responses", session.path()), &json!({"input": "Hi"})).json();
    let body = json!({"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]});
    let anthropic = post(server.address, &format!("{}/v1/messages", session.path()), &body).json();
    for id in [&called["tool_calls"][0]["id"], &response["id"], &anthropic["id"]] {
        let body = json!({"value": 1, "call_id": id});
        assert_eq!(post(server.address, &format!("{}/reward", session.path()), &body).status, 200, "{id}");
    }
}

#[test]
fn rewards_are_checked() {
    let server = Setup::saying("One").start();
    let session = server.session();
    let path = format!("{}/reward", session.path());
    for (body, field) in [
        (json!({}), Some("value")),
        (json!({"value": "1"}), Some("value")),
        (json!({"value": null}), Some("value")),
        (json!({"value": 1, "call_id": "chatcmpl-1"}), Some("call_id")),
        (json!({"value": 1, "name": ""}), Some("name")),
        (json!({"value": 1, "agent": 2}), Some("agent")),
        (json!({"value": 1, "weight": 2}), Some("weight")),
        (json!([1]), None),
    ] {
        let answer = post(server.address, &path, &body);
        assert_eq!(answer.status, 400, "{body}");
        assert_eq!(answer.json()["error"]["param"], json!(field), "{body}");
    }
    let infinite = crate::client::request("POST", &path, "", br#"{"value": 1e999}"#);
    assert_eq!(crate::client::exchange(server.address, &infinite).unwrap().status, 400);
    let answer = post(server.address, &format!("{}/finish", session.path()), &json!({"status": "won"}));
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("status")));
}

/// A session without a reward has failed: its reward is never 0.
#[test]
fn sessions_without_a_reward_have_failed() {
    let unrewarded = SessionStatus::Failed { message: "the agent finished without a reward".to_owned() };
    let gave_up = SessionStatus::Failed { message: "no luck".to_owned() };
    let stepped = json!({"value": 1, "call": true});
    for (needs, rewarded, end, expected) in [
        (true, Value::Null, json!({}), unrewarded.clone()),
        (true, stepped, json!({}), unrewarded),
        (true, json!({"value": 0}), json!({}), SessionStatus::Finished),
        (false, Value::Null, json!({}), SessionStatus::Finished),
        (true, json!({"value": 1}), json!({"status": "failed", "message": "no luck"}), gave_up),
    ] {
        let mut setup = Setup::saying("One");
        setup.sessions.needs_reward = needs;
        let server = setup.start();
        let mut session = server.session();
        let answer = chat(&server, &session, &json!([{"role": "user", "content": "Hi"}])).json();
        if !rewarded.is_null() {
            let id = if rewarded["call"] == true { answer["id"].clone() } else { Value::Null };
            let body = json!({"value": rewarded["value"], "call_id": id});
            assert_eq!(post(server.address, &format!("{}/reward", session.path()), &body).status, 200);
        }
        assert_eq!(post(server.address, &format!("{}/finish", session.path()), &end).status, 200);
        assert_eq!(ended(&mut session).status, expected);
    }
}
