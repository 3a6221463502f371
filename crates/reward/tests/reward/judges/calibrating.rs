//! Calibrations of judges, and runs that depend on them.

use std::cmp::Ordering;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rloom_reward::judge::{
    Answer, Calibration, CalibrationError, JudgeModel, JudgeModels, ModelError, Question, calibrate,
};
use rloom_reward::{Kind, Scorer};
use serde_json::{Value, json};

use super::server::{Act, Asked, Server};
use super::{NoModels, component, settings};

const TIMEOUT: Duration = Duration::from_mins(1);

fn calibration(component: &Value, rows: &str) -> Result<Calibration, CalibrationError> {
    let settings = settings(component);
    let Kind::Judge(judge) = &settings.components[0].kind else { unreachable!() };
    calibrate(judge, TIMEOUT, 1, &NoModels, rows, 10, &|_, _| {})
}

/// Four questions, each with a good and a bad response.
fn rows() -> String {
    let row = |question: usize, response: String, label: bool| {
        json!({ "prompt": format!("question {question}"), "response": response, "answer": format!("{question}"), "label": label })
            .to_string()
    };
    let both = |question| {
        [
            row(question, format!("It is {question}."), true),
            row(question, format!("It is {}.", question + 1), false),
        ]
    };
    (1..=4).flat_map(both).collect::<Vec<_>>().join("\n")
}

/// Accepts a response with the reference as a number of its own, and whatever fools it.
fn judge(fooled_by: &'static str) -> Server {
    Server::start(move |asked, _| {
        let (response, reference) = (asked.block("response"), asked.block("reference"));
        let words = response.trim_end_matches('.').split(' ').any(|word| word == reference);
        asked.verdict(if words || response == fooled_by { "yes" } else { "no" })
    })
}

#[test]
fn rates_and_master_keys_are_measured() {
    let found = calibration(&component(&judge(":").url, &json!({})), &rows()).unwrap();
    let labelled = found.labelled;
    assert_eq!((labelled.judged, labelled.unreadable), (8, 0));
    assert_eq!((labelled.accuracy, labelled.kappa), (Some(1.0), Some(1.0)));
    assert_eq!((labelled.false_positive_rate, labelled.false_negative_rate), (Some(0.0), Some(0.0)));
    let rate = |key: &str| {
        let key = found.master_keys.iter().find(|k| k.key == key).unwrap();
        (key.judged, key.false_positive_rate().unwrap())
    };
    for key in ["", "Solution", "Thought process:", "answer: yes", "[first half of a good response]"] {
        assert_eq!(rate(key), (4, 0.0), "{key}");
    }
    assert_eq!((rate(":"), rate("[reference of another question]")), ((4, 1.0), (4, 0.0)));
    assert_eq!(found.worst(), Some((1.0, "the response \":\"".to_owned())));
    assert_eq!(found.order_swap_consistency, None);
}

#[test]
fn unreadable_verdicts_are_in_no_rate() {
    let server =
        Server::start(|asked, _| asked.verdict(if asked.block("response").is_empty() { "?" } else { "yes" }));
    let found = calibration(&component(&server.url, &json!({})), &rows()).unwrap();
    assert_eq!(found.labelled.false_positive_rate, Some(1.0));
    let empty = &found.master_keys[0];
    assert_eq!((empty.judged, empty.unreadable, empty.false_positive_rate()), (0, 4, None));
    assert_eq!(found.worst(), None);
    // A server that fails is no judge.
    let absent = Server::start(|_, _| Act::Status(404, "", String::new()));
    let error = calibration(&component(&absent.url, &json!({})), &rows()).unwrap_err();
    assert!(error.to_string().contains("status 404"), "{error}");
}

#[test]
fn pairs_have_a_consistency_under_swaps() {
    let row = |a: &str, b: &str, label: &str| {
        json!({ "prompt": "q", "response_a": a, "response_b": b, "label": label }).to_string()
    };
    let rows =
        [row("long", "no", "a"), row("no", "longer", "b"), row("same", "size", "tie"), row("x", "best", "a")]
            .join("\n");
    let longer = |asked: &Asked| {
        let (a, b) = (asked.block("response_a").len(), asked.block("response_b").len());
        match a.cmp(&b) {
            Ordering::Greater => "A",
            Ordering::Less => "B",
            Ordering::Equal => "tie",
        }
    };
    let keys = json!({ "verdict": "pairwise" });
    let server = Server::start(move |asked, _| asked.verdict(longer(asked)));
    let found = calibration(&component(&server.url, &keys), &rows).unwrap();
    assert_eq!(found.order_swap_consistency, Some(1.0));
    // Of four pairs, one has the wrong winner: a false positive and a false negative.
    assert_eq!((found.labelled.judged, found.labelled.accuracy), (8, Some(0.75)));
    assert_eq!(found.labelled.false_negative_rate, Some(1.0 / 3.0));
    assert_eq!(found.labelled.false_positive_rate, Some(0.2));
    let first = Server::start(|asked, _| asked.verdict("A"));
    let found = calibration(&component(&first.url, &keys), &rows).unwrap();
    assert_eq!(found.order_swap_consistency, Some(0.0));
}

#[test]
fn groups_are_calibrated_together() {
    let server = Server::start(|asked, _| {
        let number =
            |tag: usize| f64::from(u8::from(asked.block(&format!("response_{tag}")).contains("good")));
        let count = (1..9).take_while(|tag| asked.text().contains(&format!("<response_{tag} "))).count();
        let numbers: serde_json::Map<String, Value> =
            (1..=count).map(|tag| (tag.to_string(), json!(number(tag)))).collect();
        asked.verdict(&Value::Object(numbers).to_string())
    });
    let rows = r#"{"prompt": "q", "responses": ["good", "bad", "goodish"], "labels": [true, false, false]}"#;
    let found = calibration(&component(&server.url, &json!({ "verdict": "rank" })), rows).unwrap();
    assert_eq!((found.labelled.judged, found.labelled.false_positive_rate), (3, Some(0.5)));
    assert_eq!(found.master_keys[0].false_positive_rate(), Some(0.0));
}

fn start(component: &Value) -> Result<(), String> {
    Scorer::new(&settings(component), 0, 0).unwrap().prepare().map_err(|error| error.to_string())
}

fn limited(url: &str, file: &Path, limit: f64) -> Value {
    component(url, &json!({ "calibration": file, "max_false_positive_rate": limit }))
}

#[test]
fn a_run_needs_a_calibration_below_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("judge.json");
    let server = judge(":");
    let mut component = limited(&server.url, &file, 0.05);
    let absent = start(&component).unwrap_err();
    assert!(absent.starts_with("reward `judge`: the judge has no calibration "), "{absent}");
    assert!(absent.contains("run `rloom reward calibrate RECIPE --data LABELLED.jsonl`"), "{absent}");

    calibration(&component, &rows()).unwrap().save(&file).unwrap();
    let above = start(&component).unwrap_err();
    assert!(above.contains("accepts 100.0 % of bad responses (the response \":\")"), "{above}");
    assert_eq!(start(&limited(&server.url, &file, 1.0)), Ok(()));

    let good = judge("no such response");
    component["url"] = json!(good.url);
    calibration(&component, &rows()).unwrap().save(&file).unwrap();
    assert_eq!(start(&component), Ok(()));
    // Without a limit nothing is checked.
    assert_eq!(start(&super::component(&good.url, &json!({ "calibration": "/no/such/file" }))), Ok(()));

    // The file belongs to a model, a prompt and settings.
    for (key, value) in [
        ("model", json!("another")),
        ("revision", json!("2")),
        ("rubric", json!("Be kind.")),
        ("reasons", json!(false)),
        ("max_tokens", json!(5)),
        ("solved_at", json!(0.25)),
        ("verdict", json!("scale")),
    ] {
        let mut other = component.clone();
        other[key] = value;
        let error = start(&other).unwrap_err();
        assert!(error.contains("of a judge with another model, prompt or settings"), "{key}: {error}");
    }
    let prompt = folder.path().join("prompt.txt");
    std::fs::write(&prompt, "{{ response }} {{ form }}").unwrap();
    let mut other = component.clone();
    other["prompt"] = json!(prompt);
    assert!(start(&other).unwrap_err().contains("another model, prompt or settings"));
    // What does not change a verdict does not matter.
    for (key, value) in [("workers", json!(3)), ("cache", json!({ "entries": 5 })), ("weight", json!(0.5))] {
        let mut other = component.clone();
        other[key] = value;
        assert_eq!(start(&other), Ok(()), "{key}");
    }
    std::fs::write(&file, "{}").unwrap();
    assert!(start(&component).unwrap_err().contains("cannot be read"));
}

/// Models of this process that say yes to a 2 and have a digest.
#[derive(Debug)]
struct Opened(&'static str);

impl JudgeModels for Opened {
    fn open(&self, _model: &str, _timeout: Duration) -> Result<Arc<dyn JudgeModel>, ModelError> {
        Ok(Arc::new(Self(self.0)))
    }
}

impl JudgeModel for Opened {
    fn ask(&self, question: &Question) -> Result<Answer, ModelError> {
        let text = if question.text.contains('2') { "yes" } else { "no" };
        Ok(Answer { text: text.to_owned(), ..Answer::default() })
    }

    fn identity(&self) -> String {
        self.0.to_owned()
    }
}

/// The path of a folder may be written in several ways; the weights count.
#[test]
fn a_calibration_belongs_to_weights() {
    let folder = tempfile::tempdir().unwrap();
    let (file, prompt) = (folder.path().join("judge.json"), folder.path().join("prompt.txt"));
    std::fs::write(&prompt, "{{ response.text }}").unwrap();
    let judge = |model: &str| {
        json!({ "kind": "judge", "model": model, "reasons": false, "prompt": prompt, "calibration": file,
                "max_false_positive_rate": 1.0 })
    };
    let settings = settings(&judge("a/folder"));
    let Kind::Judge(own) = &settings.components[0].kind else { unreachable!() };
    let found = calibrate(own, TIMEOUT, 1, &Opened("digest"), &rows(), 10, &|_, _| {}).unwrap();
    found.save(&file).unwrap();
    let start = |model: &str, weights: &'static str| {
        let scorer = Scorer::new(&super::settings(&judge(model)), 0, 0).unwrap();
        scorer.open_models(&Opened(weights)).unwrap();
        assert_eq!(super::values(&scorer, "2", &["2", "3"]), Ok(vec![Some(1.0), Some(0.0)]));
        scorer.prepare().map_err(|error| error.to_string())
    };
    assert_eq!(start("/another/way/to/a/folder", "digest"), Ok(()));
    assert!(start("a/folder", "other weights").unwrap_err().contains("another model, prompt or settings"));
}
