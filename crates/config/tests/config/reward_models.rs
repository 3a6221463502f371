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
