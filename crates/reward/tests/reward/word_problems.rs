//! Reference answers of word problems in the notations of policies: each equals itself and no other.
//!
//! The problems of `golden/word_problems.jsonl` were written for this test. GSM8K's test set, which is not part of the
//! repository, is checked as well if it is present.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "test helpers may panic, and report skipped tests"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use rloom_core::{PromptSource, SampleKey, StopReason, Task};
use rloom_reward::math::{Judgement, Reference};
use rloom_reward::{Assessment, Completion, Extract, Math, Numeric, Reward};

/// The rows of a dataset: solutions and their answers.
fn rows(jsonl: &str) -> Vec<(String, String)> {
    let parse = |line: &str| {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        let solution = row["answer"].as_str().unwrap().to_owned();
        let answer = solution.rsplit_once("####").unwrap().1.trim().to_owned();
        (solution, answer)
    };
    jsonl.lines().map(parse).collect()
}

fn gsm8k() -> Option<Vec<(String, String)>> {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/gsm8k");
    let folder = std::env::var_os("RLOOM_GSM8K").map_or(default, PathBuf::from);
    let text = std::fs::read_to_string(folder.join("test.jsonl"));
    if text.is_err() {
        println!("skipped: no GSM8K in {}", folder.display());
    }
    text.ok().map(|text| rows(&text))
}

fn original_problems() -> Vec<(String, String)> {
    rows(include_str!("../golden/word_problems.jsonl"))
}

fn task(answer: &str) -> Task {
    Task {
        index: 0,
        prompt: PromptSource::Text("How many?".into()),
        answer: answer.into(),
        demonstration: None,
        domain: "words".into(),
        extra: std::sync::Arc::default(),
    }
}

pub(crate) fn judge(reward: &dyn Reward, answer: &str, text: &str) -> Assessment {
    let task = task(answer);
    reward
        .judge(&Completion {
            steps: &[],
            task: &task,
            text,
            transcript: "",
            tokens: 1,
            token_ids: &[7],
            prompt: "",
            version: 0,
            stop: StopReason::StopToken,
            key: SampleKey::default(),
            seed: 0,
            stage: 0,
        })
        .unwrap()
}

/// A number with thousands separators.
fn grouped(number: &str, mark: &str) -> String {
    let (sign, rest) = number.strip_prefix('-').map_or(("", number), |rest| ("-", rest));
    let (whole, decimals) = rest.split_once('.').map_or((rest, ""), |(w, d)| (w, d));
    let mut out = String::new();
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i).is_multiple_of(3) {
            out.push_str(mark);
        }
        out.push(digit);
    }
    let point = if decimals.is_empty() { "" } else { "." };
    format!("{sign}{out}{point}{decimals}")
}

/// Notations of an answer, without surrounding text.
fn rewritings(answer: &str) -> Vec<String> {
    let plain = answer.replace(',', "");
    if plain.contains('/') {
        let (top, bottom) = plain.split_once('/').unwrap();
        return vec![
            plain.clone(),
            format!("\\frac{{{top}}}{{{bottom}}}"),
            format!("\\dfrac{{{top}}}{{{bottom}}}"),
            format!("${top}/{bottom}$"),
            format!("{plain} of an hour"),
            format!("x = {plain}"),
        ];
    }
    let value: f64 = plain.parse().unwrap();
    let money = if let Some(positive) = plain.strip_prefix('-') {
        format!("-${}", grouped(positive, ","))
    } else {
        format!("${}", grouped(&plain, ","))
    };
    let mut all = vec![
        answer.to_owned(),
        plain.clone(),
        grouped(&plain, ","),
        grouped(&plain, "{,}"),
        grouped(&plain, "\\,"),
        grouped(&plain, "\u{202f}"),
        money.clone(),
        format!("\\{money}").replace("\\-$", "-\\$"),
        format!("${plain}$"),
        format!("**{plain}**"),
        format!("{plain} dollars"),
        format!("{plain} eggs per day"),
        format!("{plain}\\text{{ km}}"),
        format!("{plain} \\, \\mathrm{{cm}}^2"),
        format!("x = {plain}"),
        format!("\\frac{{{}}}{{4}}", value * 4.0),
        format!("{}/2", value * 2.0),
        plain.replace('-', "−"),
        format!("{plain}e0"),
        format!("{} \\times 10^{{-3}}", value * 1000.0),
    ];
    if plain.contains('.') {
        all.push(format!("{plain}0"));
    } else {
        all.push(format!("{plain}.0"));
        all.push(format!("{}.00", grouped(&plain, ",")));
    }
    // Below 1, a percent sign means division by 100.
    if value.abs() >= 1.0 {
        all.push(format!("{plain}%"));
        all.push(format!("{plain}\\%"));
        all.push(format!("{plain} percent"));
    }
    if value > 1.0 && value.fract() != 0.0 {
        let (whole, part) = (value.floor(), value.fract());
        all.push(format!("{whole} {}/100", part * 100.0));
        all.push(format!("{whole}\\frac{{{}}}{{100}}", part * 100.0));
    }
    all
}

/// Completions with an answer, and other numbers in the surrounding text.
fn completions(text: &str) -> Vec<String> {
    vec![
        format!("First 3*4=12, then 12+1=13.\n#### {text}"),
        format!("We get 7 and 8.\n\nThe answer is {text}."),
        format!("Adding 5 and 6 gives \\boxed{{{text}}}. Done in 2 steps."),
        format!("<think>Is it 99? No.</think>\n<answer>{text}</answer>"),
        format!("Check: 1+1=2.\n**Final answer:** {text}"),
    ]
}

/// Compares every answer with itself, in every notation and completion, with both verifiers.
fn check_against_themselves(rows: &[(String, String)]) {
    let (numeric, math) = (Numeric::default(), Math::default());
    let distinct: BTreeSet<&str> = rows.iter().map(|(_, answer)| answer.as_str()).collect();
    for answer in distinct {
        for text in rewritings(answer) {
            for completion in completions(&text) {
                for reward in [&numeric as &dyn Reward, &math] {
                    let verdict = judge(reward, answer, &completion);
                    assert_eq!(
                        (verdict.solved, verdict.parsed),
                        (Some(true), Some(true)),
                        "{answer} as {completion:?} by {reward:?}"
                    );
                }
            }
        }
    }
    // Unmodified solutions, whose last line contains the answer.
    let last_number = Numeric { extract: vec![Extract::LastNumber], ..Numeric::default() };
    for (solution, answer) in rows {
        for reward in [&numeric as &dyn Reward, &math, &last_number] {
            assert_eq!(judge(reward, answer, solution).solved, Some(true), "{answer}: {solution}");
        }
    }
}

/// Compares all pairs of distinct answers: no notation of one equals the other.
fn check_against_each_other(rows: &[(String, String)]) -> usize {
    let mut by_value: BTreeMap<String, String> = BTreeMap::new();
    for (_, answer) in rows {
        by_value.insert(answer.replace(',', ""), answer.clone());
    }
    let texts: Vec<(&String, Vec<String>)> =
        by_value.iter().map(|(value, answer)| (value, rewritings(answer))).collect();
    // `judge` accepts every number that `judge_number` accepts: it compares the same forms without requiring numbers.
    let check = |(value, answer): (&String, &String)| {
        let reference = Reference::read(answer);
        let mut pairs = 0;
        for (other, texts) in texts.iter().filter(|(other, _)| *other != value) {
            // One notation for each pair, in turns.
            let text = &texts[pairs % texts.len()];
            assert_ne!(reference.judge(text, 0.0), Judgement::Same, "{text} ({other}) for {answer}");
            pairs += 1;
        }
        pairs
    };
    let all: Vec<_> = by_value.iter().collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let part = |part: Vec<(&String, &String)>| part.into_iter().map(check).sum::<usize>();
        let parts = all.chunks(all.len().div_ceil(threads)).map(<[_]>::to_vec);
        let running: Vec<_> = parts.map(|p| scope.spawn(move || part(p))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

#[test]
fn original_problems_equal_themselves() {
    let rows = original_problems();
    assert_eq!(rows.len(), 40);
    check_against_themselves(&rows);
}

#[test]
fn original_problems_differ_from_each_other() {
    assert_eq!(check_against_each_other(&original_problems()), 40 * 39);
}

#[test]
fn gsm8k_answers_equal_themselves() {
    if let Some(rows) = gsm8k() {
        assert_eq!(rows.len(), 1319);
        check_against_themselves(&rows);
    }
}

#[test]
fn gsm8k_answers_differ_from_each_other() {
    if let Some(rows) = gsm8k() {
        let pairs = check_against_each_other(&rows);
        println!("{pairs} ordered pairs of distinct answers");
        assert!(pairs > 100_000);
    }
}

#[test]
fn verdicts_depend_on_the_marked_answer() {
    let numeric = Numeric::default();
    for (text, solved, parsed) in [
        ("18 is wrong.\n#### 17", false, true),
        ("#### 17\nNo: 18.\n#### 18", true, true),
        ("\\boxed{17}. No: \\boxed{18}", true, true),
        ("\\boxed{18}. No: \\boxed{17}", false, true),
        ("\\boxed{17} or \\boxed{18}", false, false),
        ("<think>\\boxed{18}</think> It is \\boxed{17}", false, true),
        ("<think>\\boxed{17}</think> It is \\boxed{18}", true, true),
        ("<think>It is \\boxed{18}, or not", false, false),
        ("<think>It is \\boxed{18}</think>", false, false),
        ("\\boxed{17, 18}", false, false),
        ("#### 17 or 18", false, false),
        ("The answer is plain to see: there are 18 of them", true, true),
        ("I do not know.", false, false),
        ("", false, false),
    ] {
        let verdict = judge(&numeric, "18", text);
        assert_eq!((verdict.solved, verdict.parsed), (Some(solved), Some(parsed)), "{text}");
    }
    let last = judge(&numeric, "18", "So there are 18 eggs");
    assert_eq!(last.solved, Some(true));
    let unmarked = judge(&Math::default(), "18", "So there are 18 eggs");
    assert_eq!(
        (unmarked.solved, unmarked.parsed),
        (Some(false), Some(false)),
        "the math reward requires a marked answer"
    );
}
