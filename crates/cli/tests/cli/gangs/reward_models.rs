//! A reward model in a folder and the ranks of a trainer.

use std::process::Command;

use super::run::{GROUPS, Run, STEPS, succeeded, wait_for};
use crate::support::audit::check_groups;

/// Saves a tiny reward model with a character tokenizer.
const SAVE: &str = r#"
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForSequenceClassification
letters = {letter: number for number, letter in enumerate("_0123456789+-*=? ")}
characters = Tokenizer(models.WordLevel(letters, unk_token="_"))
characters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
PreTrainedTokenizerFast(tokenizer_object=characters, pad_token="_", unk_token="_").save_pretrained("judge")
torch.manual_seed(1)
Qwen2ForSequenceClassification(Qwen2Config(
    vocab_size=len(letters), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, num_labels=1, pad_token_id=0,
)).save_pretrained("judge")
"#;

/// Compares recorded rewards with the outputs of the model for one text at a time.
const COMPARE: &str = r#"
import json, sys
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained("judge")
model = AutoModelForSequenceClassification.from_pretrained("judge").eval()
values = []
for line in map(json.loads, sys.stdin):
    [value] = [c["value"] for c in line["rewards"]["components"] if c["name"] == "reward_model"]
    tokens = torch.tensor([tokenizer.encode(line["prompt"] + line["completion"])])
    with torch.inference_mode():
        expected = model(input_ids=tokens).logits.item()
    assert abs(value - expected) < 1e-5, (line["prompt"], line["completion"], value, expected)
    values.append(value)
assert max(values) - min(values) > 1e-3, values
print(len(values))
"#;

fn python(run: &Run, program: &str) -> Command {
    let mut command = Command::new(std::env::var("RLOOM_TEST_PYTHON").unwrap());
    command.args(["-c", program]).current_dir(run.sandbox.path("."));
    command
}

/// The processes of a reward model have places of their own, one that is killed is replaced, and rewards are the outputs of the
/// model.
#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn a_reward_model_judges_beside_the_ranks() {
    let run = Run::new("reward-model");
    assert!(python(&run, SAVE).status().unwrap().success());
    let components = format!(
        "reward.components=[{{kind='reward_model',model='judge',batch_tokens=32,python='{}'}}]",
        std::env::var("RLOOM_TEST_PYTHON").unwrap()
    );
    let train = ["train", "gang.toml", "--quiet", "--set", &components];
    let plan = run.finish(run.start(&["train", "gang.toml", "--dry-run", "--set", &components])).text();
    assert!(plan.contains("reward reward_model 0 core"), "{plan}");
    let mut child = run.start(&train);
    run.wait_for_steps(&mut child, 2);
    let listed = run.finish(run.start(&["cluster", "ps", "runs/gang"])).text();
    assert!(listed.contains("reward reward_model 0"), "{listed}");
    run.kill("rloom_functions");
    run.wait_for_steps(&mut child, 1);
    wait_for(&mut child, "another process", || !run.processes("rloom_functions").is_empty());
    run.kill("rloom node");
    succeeded(&run.finish(child));
    check_groups(&run.sandbox.path("runs/gang/rollouts"), STEPS, GROUPS);
    run.check_ended();
    let exported = run.finish(run.start(&["export", "runs/gang", "rollouts"]));
    run.sandbox.write("rollouts.jsonl", &exported.stdout);
    let input = std::fs::File::open(run.sandbox.path("rollouts.jsonl")).unwrap();
    let compared = python(&run, COMPARE).stdin(input).output().unwrap();
    let text = String::from_utf8_lossy(&compared.stdout);
    assert!(compared.status.success(), "{text}{}", String::from_utf8_lossy(&compared.stderr));
    assert_eq!(text.trim(), (STEPS * GROUPS * 4).to_string());
}

/// A folder without a head is refused before the first step, and so is one that is absent.
#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn a_folder_that_is_no_reward_model_is_refused() {
    let run = Run::new("no-reward-model");
    let components = format!(
        "reward.components=[{{kind='reward_model',model='absent',python='{}'}}]",
        std::env::var("RLOOM_TEST_PYTHON").unwrap()
    );
    let refused = run.finish(run.start(&["train", "gang.toml", "--quiet", "--set", &components]));
    assert_ne!(refused.code, Some(0));
    let text = refused.text();
    assert!(text.contains("absent is no folder of transformers: it has no config.json"), "{text}");
    assert_eq!(run.steps(), 0);
    run.check_ended();
}
