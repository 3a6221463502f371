//! `rloom reward calibrate`, and runs with judges.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

use serde_json::{Value, json};

use crate::support::{Sandbox, TINY, snapshot};

/// The text between the tags of a name in a question.
fn block<'q>(question: &'q str, tag: &str) -> &'q str {
    let inner = question.split_once(&format!("<{tag} ")).and_then(|(_, after)| after.split_once(">\n"));
    inner.and_then(|(_, after)| after.split_once(&format!("\n</{tag} "))).map_or("", |(inner, _)| inner)
}

/// A server whose judge accepts the reference answer, and ":".
fn judge() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || answer(&stream.unwrap()));
        }
    });
    url
}

fn answer(mut stream: &TcpStream) {
    let mut input = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        input.read_line(&mut line).unwrap();
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    input.read_exact(&mut body).unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap();
    let question = body["messages"][0]["content"].as_str().unwrap();
    let response = block(question, "response");
    let verdict = if response == block(question, "reference") || response == ":" { "yes" } else { "no" };
    let nonce = question.rsplit_once("`Verdict ").unwrap().1.split(':').next().unwrap();
    let message = json!({ "content": format!("I compared both.\nVerdict {nonce}: {verdict}") });
    let body = json!({ "choices": [{ "message": message, "finish_reason": "stop" }] }).to_string();
    let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).unwrap();
}

fn labelled(sandbox: &Sandbox) {
    let row = |a: u32, response: u32, label: bool| {
        let (prompt, answer) = (format!("{a}+1="), (a + 1).to_string());
        json!({ "prompt": prompt, "response": response.to_string(), "answer": answer, "label": label })
            .to_string()
    };
    let rows: Vec<String> = (1..=5).flat_map(|a| [row(a, a + 1, true), row(a, a + 2, false)]).collect();
    sandbox.write("labelled.jsonl", &rows.join("\n"));
}

#[test]
fn a_run_starts_with_a_judge_that_is_calibrated() {
    let sandbox = Sandbox::new();
    labelled(&sandbox);
    let recipe = |limit: f64| {
        let component = format!(
            "components = [{{ kind = 'judge', url = '{}', model = 'm', calibration = 'judge.json', \
             max_false_positive_rate = {limit}, solved_at = 1.0 }}]",
            judge()
        );
        let (before, after) = TINY.split_once("components = ").unwrap();
        let after = after.split_once('\n').unwrap().1;
        sandbox.write("recipe.toml", &format!("{before}{component}\n{after}"));
    };
    recipe(0.0);
    let refused = sandbox.run(&["train", "recipe.toml"]);
    assert_eq!(refused.code, Some(1), "{}", refused.text());
    let expected = "the judge has no calibration HERE/judge.json: run `rloom reward calibrate RECIPE --data LABELLED.jsonl`";
    assert!(refused.stderr.contains(expected), "{}", refused.text());

    let calibrate = ["reward", "calibrate", "recipe.toml", "--data", "labelled.jsonl", "--questions", "4"];
    let fooled = sandbox.run(&calibrate);
    assert_eq!(fooled.code, Some(1), "{}", fooled.text());
    snapshot("reward_calibrate", &fooled.text());
    let refused = sandbox.run(&["train", "recipe.toml", "--run-name", "second"]);
    assert!(refused.stderr.contains("the judge accepts 100.0 % of bad responses"), "{}", refused.text());

    recipe(1.0);
    let run = sandbox.run(&["train", "recipe.toml", "--run-name", "third"]);
    assert_eq!(run.code, Some(0), "{}", run.text());
    let events = sandbox.run(&["export", "third", "events", "--kind", "step"]).stdout;
    assert!(events.contains("\"reward/judge\"") && events.contains("\"function/judge_cached\""), "{events}");
}

/// The judge is the model of another run: it works the sum out, and its result is the value.
#[test]
fn a_judge_may_be_a_model_of_this_process() {
    let sandbox = crate::support::trained();
    labelled(&sandbox);
    let checkpoint = "runs/tiny/checkpoints/latest";
    sandbox.write("prompt.txt", "{% if response %}{% endif %}{{ question.text }}");
    let component = format!(
        "reward.components=[{{kind='judge',model='{checkpoint}',prompt='prompt.txt',reasons=false,verdict='scale',\
         scale=[-1e9,1e9],max_tokens=8}},{{kind='numeric',extract=['whole'],weight=0}}]"
    );
    let set = ["--set", &component, "--set", "reward.on_error='drop'", "--set", "reward.max_dropped=0.99"];
    let calibrated = sandbox.run(
        &[&["reward", "calibrate", "tiny.toml", "--data", "labelled.jsonl", "--json"][..], &set].concat(),
    );
    assert_eq!(calibrated.code, Some(0), "{}", calibrated.text());
    let calibration: Value = serde_json::from_str(calibrated.stdout.trim()).unwrap();
    let of_labelled = &calibration["labelled"];
    let judged = of_labelled["judged"].as_u64().unwrap() + of_labelled["unreadable"].as_u64().unwrap();
    assert_eq!(judged, 10, "{calibration}");
    let other = sandbox.run(&["reward", "calibrate", "tiny.toml", "--data", "labelled.jsonl"]);
    assert!(other.stderr.contains("the configuration has no component of kind `judge`"), "{}", other.text());
    let absent = component.replace(checkpoint, "no/such/model");
    let missing = sandbox.run(&["train", "tiny.toml", "--run-name", "missing", "--set", &absent]);
    assert!(missing.stderr.contains("reward `judge`: the judge no/such/model: "), "{}", missing.text());
}
