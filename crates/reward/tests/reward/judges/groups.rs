//! Judges that compare: pairs, rubrics and whole groups.

use std::cmp::Ordering;

use serde_json::{Value, json};

use super::server::Server;
use super::{component, scorer, values};

/// A server that prefers the longer of two responses.
fn prefers_longer() -> Server {
    Server::start(|asked, _| {
        let (a, b) = (asked.block("response_a").len(), asked.block("response_b").len());
        asked.verdict(match a.cmp(&b) {
            Ordering::Greater => "A",
            Ordering::Less => "B",
            Ordering::Equal => "tie",
        })
    })
}

fn pairwise(url: &str, keys: &Value) -> Value {
    let mut all = json!({ "verdict": "pairwise" });
    for (key, value) in keys.as_object().unwrap() {
        all[key] = value.clone();
    }
    component(url, &all)
}

#[test]
fn pairs_are_asked_in_both_orders() {
    let server = prefers_longer();
    let own = scorer(&pairwise(&server.url, &json!({})));
    let expected = vec![Some(1.0), Some(0.0), Some(0.5)];
    assert_eq!(values(&own, "two", &["two, exactly", "2", "2.0"]), Ok(expected));
    let orders: Vec<(String, String)> = server
        .asked()
        .iter()
        .map(|asked| (asked.block("response_a").to_owned(), asked.block("response_b").to_owned()))
        .collect();
    assert_eq!(orders[0], ("two, exactly".into(), "two".into()));
    assert_eq!(orders[1], ("two".into(), "two, exactly".into()));
    assert_eq!(own.take_metrics()["judge_order_swaps"], 0.0);
    // A response that equals the reference is a tie without a question.
    assert_eq!(values(&own, "two", &["two"]), Ok(vec![Some(0.5)]));
    assert_eq!(server.asked().len(), 6);
    let error = values(&own, "", &["two"]).unwrap_err();
    assert!(error.contains("has no reference answer"), "{error}");
}

#[test]
fn a_judge_that_prefers_a_place_makes_ties() {
    let server = Server::start(|asked, _| asked.verdict("A"));
    let scorer = scorer(&pairwise(&server.url, &json!({})));
    assert_eq!(values(&scorer, "two", &["2"]), Ok(vec![Some(0.5)]));
    assert_eq!(scorer.take_metrics()["judge_order_swaps"], 1.0);
}

#[test]
fn groups_play_in_a_circle() {
    let server = prefers_longer();
    let texts = ["a", "bb", "ccc", "dddd"];
    let next = scorer(&pairwise(&server.url, &json!({ "against": "group" })));
    assert_eq!(values(&next, "", &texts), Ok(vec![Some(0.0), Some(0.5), Some(0.5), Some(1.0)]));
    assert_eq!(server.asked().len(), 8);
    let all = scorer(&pairwise(&server.url, &json!({ "against": "group", "opponents": 3 })));
    let thirds: Vec<Option<f64>> = (0..4).map(|wins| Some(f64::from(wins) / 3.0)).collect();
    assert_eq!(values(&all, "", &texts), Ok(thirds));
    assert_eq!(server.asked().len(), 8 + 12);
    assert_eq!(values(&all, "", &["alone"]), Ok(vec![None]));
}

#[test]
fn one_failure_of_a_comparison_fails_the_group() {
    let server =
        Server::start(|asked, _| asked.verdict(if asked.block("response_a") == "bb" { "?" } else { "A" }));
    let scorer = scorer(&pairwise(&server.url, &json!({ "against": "group" })));
    let error = values(&scorer, "", &["a", "bb", "ccc"]).unwrap_err();
    assert!(error.contains("a verdict that is not permitted"), "{error}");
}

#[test]
fn a_group_is_ranked_in_one_question() {
    let server = Server::start(|asked, number| {
        assert!(asked.text().contains("You compare 3 responses"), "{}", asked.text());
        let texts: Vec<&str> =
            ["response_1", "response_2", "response_3"].map(|tag| asked.block(tag)).to_vec();
        assert_eq!(texts, ["a", "bb", "ccc"]);
        match number {
            0 => asked.verdict(r#"{"3": 1, "1": 0.25, "2": 0.5}"#),
            1 => asked.verdict(r#"{"1": 0.25, "2": 0.5}"#),
            _ => asked.verdict(r#"{"1": 0.25, "2": 0.5, "3": 7}"#),
        }
    });
    let ranking = scorer(&component(&server.url, &json!({ "verdict": "rank", "cache": { "entries": 0 } })));
    assert_eq!(values(&ranking, "", &["a", "bb", "ccc"]), Ok(vec![Some(0.25), Some(0.5), Some(1.0)]));
    for _ in 0..2 {
        let error = values(&ranking, "", &["a", "bb", "ccc"]).unwrap_err();
        assert!(error.contains("a verdict that is not permitted"), "{error}");
    }
    assert_eq!(server.asked().len(), 3);
}

#[test]
fn rubrics_have_weighted_criteria() {
    let server = Server::start(|asked, _| {
        let text = asked.text();
        assert!(text.contains("- right: The result is right.\n- clear\n"), "{text}");
        assert!(text.contains(r#"{"right": NUMBER, "clear": NUMBER}"#), "{text}");
        asked.verdict(r#"{"clear": 1, "right": 5}"#)
    });
    let criteria = json!([
        { "name": "right", "description": "The result is right.", "weight": 3 },
        { "name": "clear" }
    ]);
    let keys = json!({ "verdict": "rubric", "criteria": criteria, "scale": [1, 5], "solved_at": 0.7 });
    let scorer = scorer(&component(&server.url, &keys));
    scorer.prepare().unwrap();
    let rewards = super::rewards(&scorer, "2", &["2"]).unwrap();
    assert_eq!(
        (rewards[0].total(), rewards[0].solved, rewards[0].parsed),
        (Some(0.75), Some(true), Some(true))
    );
}

#[test]
fn choices_have_values() {
    let server = Server::start(|asked, _| asked.verdict("partly right"));
    let choices = json!({ "Right": 1, "Partly right": 0.25, "Wrong": -1 });
    let scorer = scorer(&component(&server.url, &json!({ "verdict": "choices", "choices": choices })));
    assert_eq!(values(&scorer, "2", &["2"]), Ok(vec![Some(0.25)]));
}
