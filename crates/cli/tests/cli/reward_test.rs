//! `rloom reward test`: a reward without a model.

use serde_json::Value;

use crate::support::{Sandbox, TINY, snapshot};

/// A recipe with tasks of two domains.
const RECIPE: &str = r#"
[model]
path = "no/such/model"
[data]
path = "tasks.jsonl"
domain_field = "subject"
[reward]
components = [
  { kind = "numeric" },
  { kind = "repetition", weight = -0.5 },
  { kind = "diversity", weight = 0.1 },
  { kind = "length", max_tokens = 9, weight = 0.1 },
]
[sampling]
max_new_tokens = 4
[[stage]]
name = "rl"
method = "grpo"
steps = 1
groups_per_batch = 1
[stage.algorithm]
group_size = 2
"#;

const TASKS: &str = r#"{"prompt": "1+1=", "answer": "2", "subject": "sums"}
{"prompt": "2+2=", "answer": "4", "subject": "sums"}
{"prompt": "6/4=", "answer": "3/2", "subject": "fractions"}
{"prompt": "2/3=", "answer": "two thirds", "subject": "fractions"}
"#;

fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("recipe.toml", RECIPE);
    sandbox.write("tasks.jsonl", TASKS);
    sandbox
}

#[test]
fn references_and_completions_are_judged() {
    let sandbox = sandbox();
    sandbox.write(
        "completions.jsonl",
        "{\"task\": 0, \"completion\": \"so \\\\boxed{2}\"}\n{\"task\": 0, \"completion\": \"so \\\\boxed{3}\"}\n\n\
         {\"task\": 2, \"completion\": \"no idea\\u001b[J\", \"truncated\": true}\n",
    );
    let result = sandbox.run(&["reward", "test", "recipe.toml", "--completions", "completions.jsonl"]);
    assert_eq!(result.code, Some(1), "three of four references are read\n{}", result.text());
    snapshot("reward_test", &result.text());
    let enough = sandbox.run(&["reward", "test", "recipe.toml", "--min-solved", "0.75"]);
    assert_eq!((enough.code, enough.stderr.as_str()), (Some(0), ""), "{}", enough.text());
}

#[test]
fn a_template_gives_the_references_another_form() {
    let sandbox = sandbox();
    sandbox.write("tasks.jsonl", TASKS.split_once("{\"prompt\": \"2/3").unwrap().0);
    let arguments = ["reward", "test", "recipe.toml", "--json", "--rows", "2", "--template"];
    let judged = |template: &str| {
        let result = sandbox.run(&[&arguments[..], &[template]].concat());
        let report: Value = serde_json::from_str(result.stdout.trim()).unwrap();
        (result.code, report)
    };
    let (code, report) = judged("It is {answer}.");
    assert_eq!(code, Some(0));
    let references = &report["references"];
    assert_eq!((&references["completions"], &references["solved"]), (&2.into(), &1.0.into()));
    assert_eq!(report["form"], "It is {answer}.");
    assert_eq!(report["tasks"], 3);
    let (code, report) = judged("<think>{answer}");
    assert_eq!(code, Some(1));
    let problem = &report["references"]["problems"][0];
    assert_eq!((&problem["problem"], &problem["component"]), (&"not parsed".into(), &"numeric".into()));
}

#[test]
fn demonstrations_of_generated_tasks_are_references() {
    let sandbox = Sandbox::new();
    sandbox.write("tiny.toml", TINY);
    let result = sandbox.run(&["reward", "test", "tiny.toml", "--rows", "50"]);
    assert_eq!(result.code, Some(0), "{}", result.text());
    assert!(result.stdout.contains("reference answers, as demonstrations (50)"), "{}", result.text());
}

#[test]
fn wrong_files_and_options_are_errors() {
    let sandbox = sandbox();
    let fails = |arguments: &[&str], code: i32, expected: &str| {
        let result = sandbox.run(&[&["reward", "test", "recipe.toml"], arguments].concat());
        assert_eq!(result.code, Some(code), "{}", result.text());
        assert!(result.stderr.contains(expected), "{}", result.text());
    };
    fails(&["--min-solved", "2"], 2, "--min-solved must be from 0 to 1");
    fails(&["--template", "x"], 2, "--template must contain {answer}");
    fails(&["--stage", "sft"], 2, "no stage of the recipe has a reward and the name `sft`");
    fails(&["--rows", "0"], 1, "nothing was judged");
    fails(&["--completions", "none.jsonl"], 2, "cannot read none.jsonl: ");
    for (line, code, expected) in [
        ("", 2, "it holds no completions"),
        ("\n{\"task\": 0}", 2, "c.jsonl, line 2: missing field `completion`"),
        ("{\"task\": 0, \"completion\": \"\", \"cut\": true}", 2, "line 1: unknown field `cut`"),
        ("{\"task\": 9, \"completion\": \"\"}", 2, "c.jsonl, line 1: the training tasks have no task 9"),
    ] {
        sandbox.write("c.jsonl", line);
        fails(&["--completions", "c.jsonl"], code, expected);
    }
    fails(
        &["--set", "reward.components=[{kind='length',max_tokens=3}]"],
        1,
        "`length` reads the number of tokens",
    );
}
