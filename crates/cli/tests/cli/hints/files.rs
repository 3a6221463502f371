//! Hints of data files and of the runs that read them.

use crate::support::Sandbox;

/// One short stage on `rows.jsonl`.
pub(super) const RECIPE: &str = r#"
[run]
seed = 1
threads = 1

[model.new]
layers = 1
hidden_size = 16
heads = 2
intermediate_size = 16
max_positions = 32

[tokenizer]
alphabet = "0123456789+=<>?- abcdefghijklmnopqrstuvwxyz:"

[data]
path = "rows.jsonl"

[reward]
components = [{ kind = "exact" }]

[sampling]
max_new_tokens = 4

[[stage]]
name = "one"
method = "grpo"
steps = 1
groups_per_batch = 2

[stage.algorithm]
group_size = 2
"#;

const ROW: &[u8] = br#"{"prompt": "1+1=", "answer": "2"}"#;
const GAME: &[u8] = br#"{"prompt": "0-31:", "answer": "0 <= 17 <= 31"}"#;
const TALK: &[u8] =
    br#"{"messages": [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]}"#;
/// Trains on demonstrations.
const SFT: &str = "[reward]\ncomponents = [{ kind = \"exact\" }]\n\n[sampling]\nmax_new_tokens = 4\n\n[[stage]]\nname = \"one\"\nmethod = \"grpo\"\nsteps = 1\ngroups_per_batch = 2\n\n[stage.algorithm]\ngroup_size = 2 -> [[stage]]\nname = \"one\"\nmethod = \"sft\"\nsteps = 1\ngroups_per_batch = 2";
const TEMPLATE: &str = "tokenizer.chat_template='{% for m in messages %}{{ m.content }}{% endfor %}'";

/// Rows, changes of the recipe (as in [`super::settings::Mistake`]).
type Attempt = (&'static [u8], &'static [&'static str]);

/// A run that is refused because of its data, its hint, and the attempts that follow the hint.
pub(super) struct Refusal {
    pub(super) key: &'static str,
    refused: Attempt,
    hint: &'static str,
    followed: &'static [Attempt],
}

const fn refusal(
    key: &'static str,
    refused: Attempt,
    hint: &'static str,
    followed: &'static [Attempt],
) -> Refusal {
    Refusal { key, refused, hint, followed }
}

#[rustfmt::skip] // a table
pub(super) const REFUSALS: &[Refusal] = &[
    refusal("DataError::NotJson", (b"{\"prompt\": \"1+1=\",\n\"answer\": \"2\"}", &[]), "a JSONL file has one JSON object per line", &[(ROW, &[])]),
    refusal("DataError::NotAnObject", (b"[\"1+1=\", \"2\"]", &[]), "a JSONL file has one JSON object per line", &[(ROW, &[])]),
    refusal("DataError::NotUtf8", (b"{\"prompt\": \"1+1=\", \"answer\": \"2\", \"author\": \"Andr\xe9\"}", &[]), "convert the file to UTF-8", &[("{\"prompt\": \"1+1=\", \"answer\": \"2\", \"author\": \"André\"}".as_bytes(), &[])]),
    refusal("DataError::MissingField", (br#"{"sum": "1+1=", "answer": "2"}"#, &[]), "set `prompt_field` to a field of the row, or add the field to the row",
        &[(br#"{"sum": "1+1=", "answer": "2"}"#, &["data.prompt_field=sum"]), (ROW, &[])]),
    refusal("DataError::MissingField", (ROW, &["data.messages_field=talk"]), "set `messages_field` to a field of the row, or add the field to the row",
        &[(ROW, &["data.messages_field=prompt"]), (br#"{"talk": "1+1=", "answer": "2"}"#, &["data.messages_field=talk"])]),
    refusal("DataError::UnknownField", (ROW, &["data.demonstration_field=steps"]), "correct or remove `demonstration_field`", &[(ROW, &["data.demonstration_field=answer"]), (ROW, &[])]),
    refusal("DataError::NoAnswer", (br#"{"prompt": "1+1=", "sum": "2"}"#, &[]), "name the field with `answer_field`, or use a reward that reads no answer, such as `length` or `format`",
        &[(br#"{"prompt": "1+1=", "sum": "2"}"#, &["data.answer_field=sum"]), (br#"{"prompt": "1+1=", "sum": "2"}"#, &["reward.components=[{kind='length',max_tokens=4}]"]),
          (br#"{"prompt": "1+1=", "sum": "2"}"#, &["reward.components=[{kind='format',pattern='2'}]"])]),
    refusal("DataError::Exhausted", (b"", &["path = \"rows.jsonl\" -> generator = \"sorting\"\nmin_length = 2\nmax_length = 2\nmax_number = 1\nheld_out_share = 0.99"]), "its ranges are too narrow; raise `max_number` or `max_length`",
        &[(b"", &["path = \"rows.jsonl\" -> generator = \"sorting\"\nmin_length = 2\nmax_length = 2\nmax_number = 999\nheld_out_share = 0.99"])]),
    refusal("DataSettingProblem::TooFewTasks", (b"", &["path = \"rows.jsonl\" -> generator = \"arithmetic\"\nmax_digits = 1\nsize = 1000"]), "lower it to 28, or raise `max_digits`",
        &[(b"", &["path = \"rows.jsonl\" -> generator = \"arithmetic\"\nmax_digits = 1\nsize = 28"]), (b"", &["path = \"rows.jsonl\" -> generator = \"arithmetic\"\nmax_digits = 2\nsize = 1000"])]),
    refusal("FieldProblem::PartType", (br#"{"prompt": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "answer": "2"}"#, &[TEMPLATE]), "remove the row, or write the message as text",
        &[(br#"{"prompt": [{"role": "user", "content": "1+1="}], "answer": "2"}"#, &[TEMPLATE]), (ROW, &[TEMPLATE])]),
    refusal("FieldProblem::OtherMessages", (br#"{"prompt": [{"role": "user", "content": "1"}], "completion": [{"role": "user", "content": "2"}, {"role": "assistant", "content": "3"}]}"#, &[SFT, TEMPLATE]), "move the messages before the assistant's to the prompt",
        &[(br#"{"prompt": [{"role": "user", "content": "1"}, {"role": "user", "content": "2"}], "completion": [{"role": "assistant", "content": "3"}]}"#, &[SFT, TEMPLATE])]),
    refusal("FieldProblem::MessageForText", (br#"{"prompt": "1+1=", "completion": [{"role": "assistant", "content": "2", "name": "a"}]}"#, &[SFT, TEMPLATE]), "write the prompt as a list of messages, or set `chat = true`",
        &[(br#"{"prompt": [{"role": "user", "content": "1+1="}], "completion": [{"role": "assistant", "content": "2", "name": "a"}]}"#, &[SFT, "tokenizer.chat_template='{% for m in messages %}{{ m.name }}{{ m.content }}{% endfor %}'"]),
          (br#"{"prompt": "1+1=", "completion": [{"role": "assistant", "content": "2", "name": "a"}]}"#, &[SFT, "tokenizer.chat_template='{% for m in messages %}{{ m.name }}{{ m.content }}{% endfor %}'", "data.chat=true"])]),
    refusal("FieldProblem::TemplateForConversation", (TALK, &[SFT, TEMPLATE, "data.template='{prompt}?'"]), "remove `template`", &[(TALK, &[SFT, TEMPLATE])]),
    refusal("PromptError::Unrendered", (br#"{"prompt": [{"role": "user", "content": "1+1=", "name": "a"}], "answer": "2"}"#, &[TEMPLATE]), "remove it from the data or write it as text, or use a model whose chat template renders it",
        &[(br#"{"prompt": [{"role": "user", "content": "1+1="}], "answer": "2"}"#, &[TEMPLATE]), (br#"{"prompt": [{"role": "user", "content": "a: 1+1="}], "answer": "2"}"#, &[TEMPLATE]),
          (br#"{"prompt": [{"role": "user", "content": "1+1=", "name": "a"}], "answer": "2"}"#, &["tokenizer.chat_template='{% for m in messages %}{{ m.name }}{{ m.content }}{% endfor %}'"])]),
    refusal("PromptError::PromptTooLong", (b"{\"prompt\": \"1+1=\", \"answer\": \"2\"}\n{\"prompt\": \"1+1+1+1+1+1+1+1+1+1+1+1+1+1+1=\", \"answer\": \"15\"}", &[]), "set `data.max_prompt_tokens = 28` to drop longer prompts, lower `sampling.max_new_tokens`, or use a model with a longer context",
        &[(b"{\"prompt\": \"1+1=\", \"answer\": \"2\"}\n{\"prompt\": \"1+1+1+1+1+1+1+1+1+1+1+1+1+1+1=\", \"answer\": \"15\"}", &["data.max_prompt_tokens=28"]),
          (b"{\"prompt\": \"1+1=\", \"answer\": \"2\"}\n{\"prompt\": \"1+1+1+1+1+1+1+1+1+1+1+1+1+1+1=\", \"answer\": \"15\"}", &["sampling.max_new_tokens=2"]),
          (b"{\"prompt\": \"1+1=\", \"answer\": \"2\"}\n{\"prompt\": \"1+1+1+1+1+1+1+1+1+1+1+1+1+1+1=\", \"answer\": \"15\"}", &["model.new.max_positions=64"])]),
    refusal("PromptError::DemonstrationTooLong", (b"{\"prompt\": \"1+1=\", \"completion\": \"2\"}\n{\"prompt\": \"1+1=\", \"completion\": \"2 2 2 2 2 2 2 2 2 2 2 2 2 2 2\"}", &[SFT]), "set `data.too_long = \"drop\"`, `\"keep_start\"` or `\"keep_end\"` to drop or cut such rows, or use a model with a longer context",
        &[(b"{\"prompt\": \"1+1=\", \"completion\": \"2\"}\n{\"prompt\": \"1+1=\", \"completion\": \"2 2 2 2 2 2 2 2 2 2 2 2 2 2 2\"}", &[SFT, "data.too_long=drop"]), (b"{\"prompt\": \"1+1=\", \"completion\": \"2\"}\n{\"prompt\": \"1+1=\", \"completion\": \"2 2 2 2 2 2 2 2 2 2 2 2 2 2 2\"}", &[SFT, "data.too_long=keep_start"]), (b"{\"prompt\": \"1+1=\", \"completion\": \"2\"}\n{\"prompt\": \"1+1=\", \"completion\": \"2 2 2 2 2 2 2 2 2 2 2 2 2 2 2\"}", &[SFT, "data.too_long=keep_end"]), (b"{\"prompt\": \"1+1=\", \"completion\": \"2\"}\n{\"prompt\": \"1+1=\", \"completion\": \"2 2 2 2 2 2 2 2 2 2 2 2 2 2 2\"}", &[SFT, "model.new.max_positions=64"])]),
    refusal("PromptError::AllTooLong", (br#"{"prompt": "1+1=", "completion": "2 2 2 2 2 2 2 2 2 2 2 2 2 2 2"}"#, &[SFT, "data.too_long=drop"]), "raise `data.max_tokens`, or use a model with a longer context", &[(br#"{"prompt": "1+1=", "completion": "2 2 2 2 2 2 2 2 2 2 2 2 2 2 2"}"#, &[SFT, "data.too_long=drop", "model.new.max_positions=64"])]),
    refusal("PromptError::AllTooLong", (br#"{"prompt": "1+1=", "completion": "2"}"#, &[SFT, "data.too_long=drop", "data.max_tokens=4"]), "raise `data.max_tokens`, or use a model with a longer context", &[(br#"{"prompt": "1+1=", "completion": "2"}"#, &[SFT, "data.too_long=drop", "data.max_tokens=8"])]),
    refusal("PromptError::AllDropped", (ROW, &["data.max_prompt_tokens=3"]), "set `data.max_prompt_tokens` to at least 4", &[(ROW, &["data.max_prompt_tokens=4"])]),
    refusal("DataError::MissingField", (br#"{"prompt": "1+1=", "steps": "2"}"#, &[SFT]), "set `demonstration_field` to a field of the row, or add the field to the row", &[(br#"{"prompt": "1+1=", "steps": "2"}"#, &[SFT, "data.demonstration_field=steps"])]),
    refusal("InvalidAnswer", (br#"{"prompt": "0-31:", "answer": "17"}"#, &["environment.kind=guess"]), "write it as `0 <= 17 <= 31`, like the `guess` generator", &[(GAME, &["environment.kind=guess"])]),
    refusal("InvalidGame", (br#"{"prompt": "j:", "answer": "A"}"#, &["environment.kind=kuhn_poker"]), "write it as the policy's card: `J`, `Q` or `K`, like the `kuhn_poker` generator", &[(br#"{"prompt": "j:", "answer": "J"}"#, &["environment.kind=kuhn_poker"])]),
    refusal("JudgeError::Reference", (br#"{"prompt": "1+1=", "answer": "two"}"#, &["reward.components=[{kind='numeric'}]"]), "use the `math` or `exact` reward for other answers",
        &[(br#"{"prompt": "1+1=", "answer": "two"}"#, &["reward.components=[{kind='exact'}]"]), (br#"{"prompt": "1+1=", "answer": "two"}"#, &["reward.components=[{kind='math'}]"])]),
    refusal("JudgeError::Reference", (br#"{"prompt": "1+1=", "answer": "two"}"#, &["reward.components=[{kind='countdown'}]"]), "use the `countdown` reward for tasks of the `countdown` generator", &[(br#"{"prompt": "1 2 = 3", "answer": "1+2"}"#, &["reward.components=[{kind='countdown'}]"])]),
    refusal("JudgeError::NoTests", (br#"{"prompt": "1+1=", "checks": [{"stdout": "2"}]}"#, &["reward.components=[{kind='code',fenced=false}]"]), "name the field with the tests in `tests` of the `code` reward",
        &[(br#"{"prompt": "1+1=", "checks": [{"stdout": "2"}]}"#, &["reward.components=[{kind='code',fenced=false,tests='checks'}]"])]),
    refusal("JudgeError::Tests", (br#"{"prompt": "1+1=", "tests": [{"output": "2"}]}"#, &["reward.components=[{kind='code',fenced=false}]"]), "a test case is a table with `stdout` (and `stdin`), with `call`, `arguments` and `expected`, with `assertion`, or with `pytest`",
        &[(br#"{"prompt": "1+1=", "tests": [{"stdin": "", "stdout": "2"}]}"#, &["reward.components=[{kind='code',fenced=false}]"]), (br#"{"prompt": "1+1=", "tests": [{"assertion": "assert f() == 2"}]}"#, &["reward.components=[{kind='code',fenced=false}]"])]),
    refusal("JudgeError::Language", (br#"{"prompt": "1+1=", "language": "cobol", "tests": [{"stdout": "2"}]}"#, &["reward.components=[{kind='code',fenced=false}]"]), "use `python`, `bash`, `javascript`, `c`, `cpp` or `sql`",
        &[(br#"{"prompt": "1+1=", "language": "bash", "tests": [{"stdout": "2"}]}"#, &["reward.components=[{kind='code',fenced=false}]"])]),
    refusal("JudgeError::PythonTests", (br#"{"prompt": "1+1=", "language": "bash", "tests": [{"assertion": "assert f() == 2"}]}"#, &["reward.components=[{kind='code',fenced=false}]"]), "test programs in other languages by `stdin` and `stdout`",
        &[(br#"{"prompt": "1+1=", "language": "bash", "tests": [{"stdin": "", "stdout": "2"}]}"#, &["reward.components=[{kind='code',fenced=false}]"])]),
    refusal("TextError::UnknownCharacter", ("{\"prompt\": \"1×1=\", \"answer\": \"1\"}".as_bytes(), &[]), "add the character to the alphabet, or remove it from the text",
        &[("{\"prompt\": \"1×1=\", \"answer\": \"1\"}".as_bytes(), &["tokenizer.alphabet='01=×'"]), (ROW, &[])]),
    refusal("TextError::EmptyAlphabet", (ROW, &["tokenizer.alphabet=''"]), "list the characters of the texts", &[(ROW, &["tokenizer.alphabet='12+='"])]),
    refusal("TextError::NoChatTemplate", (br#"{"prompt": [{"role": "user", "content": "1+1="}], "answer": "2"}"#, &[]), "use a model folder with chat_template.jinja (or `chat_template` in tokenizer_config.json), set `tokenizer.chat_template` for a new model, or use plain text prompts",
        &[(br#"{"prompt": [{"role": "user", "content": "1+1="}], "answer": "2"}"#, &[TEMPLATE]), (ROW, &[])]),
    refusal("TextError::EndlessTemplate", (br#"{"prompt": [{"role": "user", "content": "1+1="}], "answer": "2"}"#, &["tokenizer.chat_template='{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{{ a }}{% endfor %}{% endfor %}{% endfor %}'"]),
        "its loops are nested or too long; use the template of another folder of this model", &[(br#"{"prompt": [{"role": "user", "content": "1+1="}], "answer": "2"}"#, &[TEMPLATE])]),
    refusal("TextError::NotPrefixPreserving", (br#"{"prompt": "0-31:", "answer": "0 <= 17 <= 31"}"#, &["environment.kind=guess", "data.chat=true", "tokenizer.chat_template='{{ messages|length }}{% for m in messages %}{{ m.content }}{% endfor %}'"]),
        "train with a template that leaves earlier turns unchanged", &[(GAME, &["environment.kind=guess", "data.chat=true", TEMPLATE])]),
    refusal("RolloutError::CacheTooSmall", (ROW, &["rollout.kv_memory_mib=1", "rollout.lanes=600"]), "raise kv_memory_mib, or set 0 to let the engine choose", &[(ROW, &["rollout.kv_memory_mib=8", "rollout.lanes=600"])]),
    refusal("InvalidReason::ExceedsCache", (ROW, &["rollout.kv_memory_mib=1", "rollout.lanes=16", "model.new.max_positions=1024", "sampling.max_new_tokens=1000"]), "raise kv_memory_mib, lower max_new_tokens, or set lanes = 1",
        &[(ROW, &["rollout.kv_memory_mib=8", "rollout.lanes=16", "model.new.max_positions=1024", "sampling.max_new_tokens=1000"]),
          (ROW, &["rollout.kv_memory_mib=1", "rollout.lanes=16", "model.new.max_positions=1024", "sampling.max_new_tokens=400"]),
          (ROW, &["rollout.kv_memory_mib=1", "rollout.lanes=1", "model.new.max_positions=1024", "sampling.max_new_tokens=1000"])]),
];

fn attempt(sandbox: &Sandbox, name: &str, (rows, changes): Attempt) -> crate::support::Finished {
    let mut text = RECIPE.to_owned();
    let mut arguments = vec![
        "train".to_owned(),
        "recipe.toml".to_owned(),
        "--quiet".to_owned(),
        "--run-name".to_owned(),
        name.to_owned(),
    ];
    for change in changes {
        if let Some((old, new)) = change.split_once(" -> ") {
            assert!(text.contains(old), "{old:?} is not in the recipe");
            text = text.replace(old, new);
        } else {
            arguments.extend(["--set".to_owned(), (*change).to_owned()]);
        }
    }
    sandbox.write("recipe.toml", &text);
    std::fs::write(sandbox.path("rows.jsonl"), rows).unwrap();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    sandbox.run(&arguments)
}

#[test]
fn of_data() {
    let sandbox = Sandbox::new();
    for (case, Refusal { key, refused, hint, followed }) in REFUSALS.iter().enumerate() {
        let result = attempt(&sandbox, &format!("refused-{case}"), *refused);
        assert!(result.hints().contains(hint), "{key}: {}", result.text());
        assert!(!followed.is_empty(), "{key}");
        for (way, attempted) in followed.iter().enumerate() {
            let result = attempt(&sandbox, &format!("followed-{case}-{way}"), *attempted);
            assert_eq!(result.code, Some(0), "{key}, way {way}: {}", result.text());
        }
    }
}
