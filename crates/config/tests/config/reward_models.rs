//! Components that read the reward model of an earlier stage.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use rloom_config::{Code, Config};

const RECIPE: &str = include_str!("../../../../recipes/reward-model.toml");

/// The code, message and hint of the one problem of the recipe with these settings; `None` if there is none.
fn problem(method: &str, component: &str) -> Option<(Code, String, String)> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("recipe.toml");
    let of_pairs = "rows = \"preferences\"\nworked_share = 1.0";
    assert!(RECIPE.contains(of_pairs));
    let text = if method == "prm" {
        std::fs::write(directory.path().join("rows.jsonl"), "").unwrap();
        RECIPE.replace(of_pairs, "path = 'rows.jsonl'\neval_rows = 6")
    } else {
        RECIPE.to_owned()
    };
    std::fs::write(&path, text).unwrap();
    let overrides = [
        format!("stage.reward.method={method}"),
        format!("stage.ppo.reward.components=[{component}]"),
        "tokenizer.alphabet='0123456789+=# '".to_owned(),
    ];
    let mut problems = match Config::load(&[path], &overrides) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.problems,
    };
    assert!(problems.len() < 2, "{problems:?}");
    let problem = problems.pop()?;
    Some((problem.code, problem.message, problem.hints.join("; ")))
}

#[test]
fn a_component_reads_what_the_model_judges() {
    let of_completions = "{kind='reward_model',model='stage:reward',backend='embedded'}";
    let of_steps = "{kind='reward_model',model='stage:reward',backend='embedded',steps={reduce='last'}}";
    assert_eq!(problem("reward_model", of_completions), None);
    assert_eq!(problem("prm", of_steps), None);
    let (code, message, hint) = problem("reward_model", of_steps).unwrap();
    assert_eq!((code, &*hint), (Code::Conflict, "remove `steps` from the component"));
    assert!(message.contains("the model of stage `reward` judges completions"), "{message}");
    let (code, message, hint) = problem("prm", of_completions).unwrap();
    assert_eq!((code, &*hint), (Code::Conflict, "add `steps = { reduce = \"min\" }` to the component"));
    assert!(message.contains("the model of stage `reward` judges steps"), "{message}");
    let (code, message, _) = problem("prm", &of_steps.replace("stage:reward", "stage:sft")).unwrap();
    assert_eq!(code, Code::UnknownStage);
    assert!(message.contains("no earlier stage `sft` trains a reward model"), "{message}");
}

#[test]
fn a_separator_has_text() {
    let component = "{kind='reward_model',model='folder',backend='embedded',steps={separator=''}}";
    let (_, message, _) = problem("reward_model", component).unwrap();
    assert!(message.contains("steps.separator"), "{message}");
}

/// The codes, hints and resolved text of the recipe with further settings.
fn loaded(overrides: &[&str]) -> (Vec<(Code, Vec<String>)>, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("recipe.toml");
    std::fs::write(&path, RECIPE).unwrap();
    let problems = match Config::load(&[path], overrides) {
        Ok(config) => return (Vec::new(), config.to_toml()),
        Err(errors) => errors.problems,
    };
    (problems.into_iter().map(|problem| (problem.code, problem.hints)).collect(), String::new())
}

/// The loss on held-out rows is measured as in other stages that learn from rows, and nothing is evaluated.
#[test]
fn reward_models_are_validated() {
    let (problems, text) = loaded(&["eval.every=7"]);
    assert_eq!(problems, []);
    let stages: toml::Table = text.parse().unwrap();
    let [sft, reward, ppo] = stages["stage"].as_array().unwrap().as_slice() else { panic!("{text}") };
    assert_eq!(reward["validation"]["every"].as_integer(), Some(20));
    assert!(reward.get("eval_every").is_none() && sft.get("validation").is_none());
    assert_eq!(ppo["eval_every"].as_integer(), Some(7));
    // The resolved text is a recipe with the same meaning.
    assert_eq!(Config::from_text::<&str>("config.toml", &text, &[]).unwrap().to_toml(), text);

    let (problems, _) = loaded(&["stage.reward.eval_every=5"]);
    let hint = "remove it, and set `stage.reward.validation.every` to measure the loss on held-out rows";
    assert_eq!(problems, [(Code::Unread, vec![hint.to_owned()])]);
    let (problems, text) = loaded(&["stage.reward.validation.every=0"]);
    assert!(problems.is_empty() && !text.contains("[stage.validation]"), "{problems:?} {text}");
}
