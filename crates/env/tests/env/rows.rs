//! Rows as trajectories: against TRL's processing of the same rows, and what is cut.

use std::path::{Path, PathBuf};

use rloom_core::{Author, LossOn, Task, Ticket, Trajectory};
use rloom_data::{DataSettings, Dataset, FileSettings, RowKind, RowRules, Source, Split, TooLong};
use rloom_env::{EnvError, SingleTurn, read_row, row_length};
use rloom_hub::Hub;
use rloom_text::{CharacterSettings, TextError, Tokenizer};
use serde_json::{Value, json};

use crate::support::{ALPHABET, TEMPLATE, now};

/// The tasks of a row, and its rules.
fn read_all(row: &Value, kind: RowKind, settings: FileSettings) -> (Vec<Task>, RowRules) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.jsonl");
    std::fs::write(&path, row.to_string()).unwrap();
    let path = FileSettings::new(path).path;
    let settings = DataSettings::from(Source::Files(FileSettings { path, ..settings }));
    let dataset = Dataset::open_kind(&settings, Split::Demonstration, kind, 1, &Hub::from_env()).unwrap();
    (dataset.iter().collect::<Result<_, _>>().unwrap(), dataset.rules(0))
}

/// The task of a row, and its rules.
fn read(row: &Value, kind: RowKind, loss_on: Option<LossOn>) -> (Task, RowRules) {
    let (mut tasks, rules) = read_all(row, kind, FileSettings { loss_on, ..FileSettings::new("") });
    (tasks.remove(0), rules)
}

fn episodes(
    task: &Task,
    tokenizer: &Tokenizer,
    rules: RowRules,
    context: usize,
) -> Result<Vec<Trajectory>, EnvError> {
    let episodes = now(read_row(&SingleTurn, task, tokenizer, rules, context, Ticket(3)))?;
    let one = |(sample, mut segments): (u32, Vec<Trajectory>)| {
        assert_eq!(segments.len(), 1);
        let trajectory = segments.remove(0);
        trajectory.validate().unwrap();
        assert_eq!((trajectory.key.ticket, trajectory.key.sample), (Ticket(3), sample));
        assert!(trajectory.versions.is_empty() && trajectory.logprobs.iter().all(|p| *p == 0.0));
        trajectory
    };
    Ok((0..).zip(episodes).map(one).collect())
}

/// 1 for each token that carries loss.
fn mask(trajectory: &Trajectory) -> Vec<u64> {
    let mut mask = vec![0; trajectory.tokens.len()];
    trajectory.policy_ranges().for_each(|range| mask[range].fill(1));
    mask
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
}

/// A copy of a tokenizer's folder with another chat template.
fn tokenizer_with(name: &str, template: Option<&str>) -> Tokenizer {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/golden").join(name);
    let Some(template) = template else { return Tokenizer::load(&from).unwrap() };
    let folder = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(from).unwrap() {
        let file: PathBuf = file.unwrap().path();
        std::fs::copy(&file, folder.path().join(file.file_name().unwrap())).unwrap();
    }
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    Tokenizer::load(folder.path()).unwrap()
}

/// The token ids and masks are those of TRL's trainers (`golden/trl_rows.py`), but for what a template writes after the token
/// that ends the last turn: the policy would not sample it.
#[test]
fn rows_have_the_tokens_and_masks_of_trl() {
    let stored: Vec<Value> = serde_json::from_str(include_str!("../golden/trl_rows.json")).unwrap();
    let (mut unlearned, mut cut) = (0, 0);
    for case in &stored {
        let template = case["template"].as_str();
        let tokenizer = tokenizer_with(case["tokenizer"].as_str().unwrap(), template);
        let kind = match case["kind"].as_str().unwrap() {
            "pairs" => RowKind::Pairs,
            "labels" => RowKind::Labels,
            _ => RowKind::Demonstrations,
        };
        let settings = FileSettings {
            loss_on: serde_json::from_value(case["loss_on"].clone()).unwrap(),
            too_long: serde_json::from_value(case["too_long"].clone()).unwrap(),
            max_tokens: case["max_tokens"].as_u64(),
            ..FileSettings::new("")
        };
        let is_cut = settings.max_tokens.is_some();
        let (tasks, rules) = read_all(&case["row"], kind, settings);
        let of_task = |task| episodes(task, &tokenizer, rules, 1000).unwrap();
        let episodes: Vec<Trajectory> = tasks.iter().flat_map(of_task).collect();
        let expected = case["episodes"].as_array().unwrap();
        assert_eq!(episodes.len(), expected.len());
        for (episode, expected) in episodes.iter().zip(expected) {
            let tokens: Vec<u64> = episode.tokens.iter().map(|&token| token.into()).collect();
            let (ids, expected_mask) = (numbers(&expected["ids"]), numbers(&expected["mask"]));
            let rest = ids.strip_prefix(&tokens[..]).unwrap_or_else(|| panic!("{case}\n{tokens:?}"));
            let rest: Vec<u32> = rest.iter().map(|&id| id as u32).collect();
            assert!(tokenizer.decode(&rest, false).unwrap().trim().is_empty(), "{case}\n{tokens:?}");
            unlearned += rest.len();
            assert_eq!(mask(episode), expected_mask[..tokens.len()], "{case}");
            let is_ended = episode.tokens.last().is_some_and(|last| tokenizer.eos_ids().contains(last));
            assert!(is_ended || is_cut, "{case}");
        }
        cut += usize::from(is_cut);
        let of_task = |task| row_length(&tokenizer, task, rules).unwrap();
        let longest = episodes.iter().map(|episode| episode.tokens.len()).max().unwrap();
        let lengths: Vec<usize> = tasks.iter().map(of_task).map(|of| of.prompt + of.completion).collect();
        assert!(lengths.iter().any(|length| *length >= longest), "{lengths:?}, {longest}");
    }
    assert!(stored.len() > 75 && unlearned > 0, "{} cases, {unlearned} tokens after the end", stored.len());
    assert!(cut > 25, "{cut}");
}

/// The assistant's text under a template without marks is what a template with marks says it is.
#[test]
fn assistant_text_is_found_without_marks() {
    let stored: Vec<Value> = serde_json::from_str(include_str!("../golden/trl_rows.json")).unwrap();
    let whole = stored.iter().filter(|case| case["max_tokens"].is_null());
    let marked = whole.filter(|case| case["loss_on"] == "assistant");
    let mut count = 0;
    for case in marked {
        let template = case["template"].as_str().unwrap();
        let plain = template.replace("{% generation %}", "").replace("{% endgeneration %}", "");
        assert_ne!(template, plain);
        let (task, rules) = read(&case["row"], RowKind::Demonstrations, Some(LossOn::Assistant));
        let of = |template: &str| {
            episodes(&task, &tokenizer_with("byte_level", Some(template)), rules, 1000).unwrap()
        };
        assert_eq!(of(template), of(&plain), "{case}");
        count += 1;
    }
    assert_eq!(count, 6);
}

fn characters(template: &str) -> Tokenizer {
    let mut settings = CharacterSettings::new(ALPHABET);
    settings.chat_template = Some(template.into());
    Tokenizer::characters(&settings).unwrap()
}

fn talk() -> Value {
    let says = |role: &str, content: &str| json!({"role": role, "content": content});
    json!({"messages": [says("user", "a"), says("assistant", "b"), says("user", "c"), says("assistant", "d")]})
}

/// The texts of the spans with their authors.
fn spans(trajectory: &Trajectory, tokenizer: &Tokenizer) -> Vec<(Author, String)> {
    let text = |range: std::ops::Range<usize>| tokenizer.decode(&trajectory.tokens[range], false).unwrap();
    trajectory.spans.iter().map(|span| (span.author, text(span.range.clone()))).collect()
}

fn written(spans: &[(Author, String)]) -> Vec<(Author, &str)> {
    spans.iter().map(|(author, text)| (*author, text.as_str())).collect()
}

#[test]
fn loss_is_on_the_completion_the_assistant_or_everything() {
    use Author::{Environment, Policy, Prompt};
    let tokenizer = characters(TEMPLATE);
    let of = |loss_on| {
        let (task, rules) = read(&talk(), RowKind::Demonstrations, loss_on);
        spans(&episodes(&task, &tokenizer, rules, 100).unwrap()[0], &tokenizer)
    };
    let prompt = "[user]a\n[assistant]b<|eos|>\n[user]c\n[assistant]";
    for loss_on in [None, Some(LossOn::Completion)] {
        assert_eq!(written(&of(loss_on)), [(Prompt, prompt), (Policy, "d<|eos|>")]);
    }
    assert_eq!(
        written(&of(Some(LossOn::Assistant))),
        [
            (Prompt, "[user]a\n[assistant]"),
            (Policy, "b<|eos|>"),
            (Environment, "\n[user]c\n[assistant]"),
            (Policy, "d<|eos|>"),
        ]
    );
    let rest = format!("{}d<|eos|>", &prompt[1..]);
    assert_eq!(written(&of(Some(LossOn::All))), [(Prompt, "["), (Policy, rest.as_str())]);
}

#[test]
fn marks_of_the_template_decide_which_text_of_the_assistant_carries_loss() {
    let template = TEMPLATE
        .replace("{{ m.content }}", "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}");
    let tokenizer = characters(&template);
    let (task, rules) = read(&talk(), RowKind::Demonstrations, Some(LossOn::Assistant));
    let trajectory = &episodes(&task, &tokenizer, rules, 100).unwrap()[0];
    let spans = spans(trajectory, &tokenizer);
    let learned: Vec<&str> =
        spans.iter().filter(|(author, _)| *author == Author::Policy).map(|(_, text)| text.as_str()).collect();
    // The end of the turn is outside of the marks.
    assert_eq!(learned, ["b", "d"]);
}

#[test]
fn a_template_that_rewrites_earlier_turns_needs_marks() {
    let forgetful = "{% for m in messages %}[{{ m.role }}]\
        {% if m.role == 'assistant' and not loop.last %}...{% else %}{{ m.content }}{% endif %}\n{% endfor %}\
        {% if add_generation_prompt %}[assistant]{% endif %}";
    let (task, rules) = read(&talk(), RowKind::Demonstrations, Some(LossOn::Assistant));
    let error = episodes(&task, &characters(forgetful), rules, 100).unwrap_err();
    let EnvError::Text { source: TextError::TurnsNotSeparable { message, .. }, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(*message, 2);
    assert!(error.to_string().contains("no {% generation %} blocks"), "{error}");
}

fn cut(too_long: TooLong, max_tokens: Option<u64>) -> RowRules {
    RowRules { too_long, max_tokens, ..RowRules::default() }
}

#[test]
fn rows_are_cut_at_the_end_or_at_the_beginning_of_the_prompt() {
    let tokenizer = characters(TEMPLATE);
    let row = json!({"prompt": "abcdef", "chosen": "ghi", "rejected": "jklmn"});
    let (task, _) = read(&row, RowKind::Pairs, None);
    let of = |rules, context| {
        let episodes = episodes(&task, &tokenizer, rules, context).unwrap();
        let text = |episode: &Trajectory| {
            let spans = spans(episode, &tokenizer);
            assert_eq!(spans[0].0, Author::Prompt);
            (spans[0].1.clone(), spans[1].1.clone(), episode.stop.is_truncated())
        };
        episodes.iter().map(text).collect::<Vec<_>>()
    };
    let text = |prompt: &str, completion: &str, cut| (prompt.to_owned(), completion.to_owned(), cut);
    let whole = [text("abcdef", "ghi<|eos|>", false), text("abcdef", "jklmn<|eos|>", false)];
    for rule in [TooLong::KeepStart, TooLong::KeepEnd] {
        assert_eq!(of(cut(rule, None), 12), whole);
    }
    // The limit is that of the settings or the context, whichever is lower.
    for (limit, context) in [(Some(9), 100), (Some(100), 9), (None, 9)] {
        assert_eq!(
            of(cut(TooLong::KeepStart, limit), context),
            [text("abcdef", "ghi", true), text("abcdef", "jkl", true)]
        );
        // Both keep the same prompt.
        assert_eq!(
            of(cut(TooLong::KeepEnd, limit), context),
            [text("def", "ghi<|eos|>", false), text("def", "jklmn<|eos|>", false)]
        );
    }
    // A completion that does not fit after one token of the prompt is cut, too.
    assert_eq!(of(cut(TooLong::KeepEnd, None), 5), [text("f", "ghi<|eos|>", false), text("f", "jklm", true)]);
    for (rules, context) in [(cut(TooLong::Error, None), 11), (cut(TooLong::KeepStart, None), 6)] {
        let error = episodes(&task, &tokenizer, rules, context).unwrap_err();
        assert!(
            matches!(error, EnvError::RowTooLong { task: 0, .. } | EnvError::DemonstrationTooLong { .. }),
            "{error}"
        );
    }
}

#[test]
fn texts_and_transcripts_are_cut_with_a_first_token_that_carries_no_loss() {
    let tokenizer = characters(TEMPLATE);
    let (text, rules) = read(&json!({"text": "abcdef"}), RowKind::Demonstrations, None);
    assert_eq!(rules.loss_on, LossOn::All);
    let of = |task: &Task, loss_on, rule, context| {
        let rules = RowRules { loss_on, ..cut(rule, None) };
        let trajectory = episodes(task, &tokenizer, rules, context).unwrap().remove(0);
        (tokenizer.decode(&trajectory.tokens, false).unwrap(), mask(&trajectory))
    };
    let expected = |text: &str, mask: &[u64]| (text.to_owned(), mask.to_vec());
    assert_eq!(of(&text, LossOn::All, TooLong::Error, 7), expected("abcdef<|eos|>", &[0, 1, 1, 1, 1, 1, 1]));
    assert_eq!(of(&text, LossOn::All, TooLong::KeepStart, 3), expected("abc", &[0, 1, 1]));
    assert_eq!(of(&text, LossOn::All, TooLong::KeepEnd, 3), expected("ef<|eos|>", &[0, 1, 1]));
    let (talk, _) = read(&talk(), RowKind::Demonstrations, Some(LossOn::Assistant));
    let (kept, mask) = of(&talk, LossOn::Assistant, TooLong::KeepEnd, 24);
    assert_eq!(kept, "b<|eos|>\n[user]c\n[assistant]d<|eos|>");
    // Of the first turn, "b" has lost its prefix.
    assert_eq!((mask.iter().sum::<u64>(), &mask[..2]), (3, &[0, 1][..]), "{mask:?}");
}

#[test]
fn steps_end_spans_with_their_labels() {
    let tokenizer = characters(TEMPLATE);
    let row = json!({"prompt": "2+2=", "completions": ["a", "bc", "d"], "labels": [true, false, 1]});
    let (task, rules) = read(&row, RowKind::Steps, None);
    let of = |rules, context| episodes(&task, &tokenizer, rules, context).unwrap().remove(0);
    let steps = |trajectory: &Trajectory| -> Vec<(String, f64)> {
        let step = |span: &rloom_core::Span| {
            let text = tokenizer.decode(&trajectory.tokens[span.range.clone()], false).unwrap();
            Some((text, span.step.as_ref()?.reward))
        };
        trajectory.spans.iter().filter_map(step).collect()
    };
    let all = [("a\n".to_owned(), 1.0), ("bc\n".to_owned(), 0.0), ("d\n".to_owned(), 1.0)];
    let whole = of(rules, 100);
    assert_eq!(steps(&whole), all);
    assert_eq!((whole.prompt_tokens(), whole.tokens.len()), (4, 11));
    let length = row_length(&tokenizer, &task, rules).unwrap();
    assert_eq!((length.prompt, length.completion, length.least), (4, 7, 2));
    // Only whole steps are kept.
    for context in 9..11 {
        assert_eq!(steps(&of(cut(TooLong::KeepStart, None), context)), all[..2]);
    }
    assert_eq!(steps(&of(cut(TooLong::KeepStart, None), 8)), all[..1]);
    assert_eq!(steps(&of(cut(TooLong::KeepEnd, None), 8)), all);
    assert_eq!(steps(&of(cut(TooLong::KeepEnd, None), 6)), all[..2]);
}
