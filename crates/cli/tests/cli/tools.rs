//! Tools that run programs: the sandbox is a hidden command of the binary.

use crate::support::Sandbox;

/// Demonstrations whose results have no other characters than those of the alphabet: an error in a result would end the run.
const RECIPE: &str = r#"
[run]
seed = 1

[model.new]
family = "qwen3"
layers = 1
hidden_size = 16
heads = 2
kv_heads = 1
intermediate_size = 16
max_positions = 160

[tokenizer]
alphabet = "qw <>/=();*,'\"|\n0123456789SELCTFROMabcehilnoprstuvxy"

[data]
path = "rows.jsonl"

[environment]
kind = "tools"
tools = [{ kind = "python", memory_mib = 512 }, { kind = "sql", database = "tables.sql" }]
format = "tags"
max_turns = 3

[[stage]]
name = "warmup"
method = "sft"
steps = 1
groups_per_batch = 2
"#;

#[test]
fn programs_run_in_the_sandbox() {
    let sandbox = Sandbox::new();
    sandbox.write("tools.toml", RECIPE);
    sandbox.write("tables.sql", "CREATE TABLE t (a, b); INSERT INTO t VALUES (1, 'x'), (2, 'y');");
    let row =
        |turn: &str| format!("{{\"prompt\": \"q\", \"answer\": \"x\", \"demonstration\": \"{turn}\"}}\n");
    let python = row("<python>print(6*7)</python><python>print('a' * 3)</python>");
    let sql = row("<sql>SELECT a, b FROM t</sql>");
    sandbox.write("rows.jsonl", &[python, sql].concat());
    let result = sandbox.run(&["train", "tools.toml", "--quiet"]);
    assert_eq!(result.code, Some(0), "{}", result.text());

    // A program that fails has an error as its result, which has other characters.
    sandbox.write("rows.jsonl", &[row("<python>open('x')</python>"), row("x")].concat());
    let result = sandbox.run(&["train", "tools.toml", "--quiet", "--set", "run.name=\"second\""]);
    let text = result.text();
    assert!(result.code != Some(0) && text.contains("the tokenizer has no token for"), "{text}");
}

#[test]
fn tools_that_cannot_be_used_end_a_run_before_its_first_step() {
    let sandbox = Sandbox::new();
    sandbox.write("tools.toml", RECIPE);
    sandbox.write("rows.jsonl", "{\"prompt\": \"q\", \"answer\": \"x\", \"demonstration\": \"x\"}\n");
    let result = sandbox.run(&["train", "tools.toml"]);
    let text = result.text();
    assert!(result.code != Some(0) && text.contains("tables.sql"), "{text}");
}
