//! Parts of a conversation that a chat template ignores.

use rloom_core::{ChatMessage, Demonstration, PromptSource, Task};
use rloom_env::{SingleTurn, demonstrate, demonstration_length, find_unrendered};
use rloom_text::{CharacterSettings, Tokenizer};
use serde_json::{Value, json};

use crate::support::{ALPHABET, chat_task, key, now, one, tokenizer};

/// Ignores roles that it does not know, and all fields but `role` and `content`.
const STRICT: &str = "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}[{{ m.role }}]{{ m.content }}\
    {% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";
/// Renders text parts, names, tools and reasoning.
const WIDE: &str = "{% for m in messages %}[{{ m.role }}{{ m.name or '' }}]\
    {% if m.reasoning_content %}<{{ m.reasoning_content }}>{% endif %}\
    {% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}\
    {% for c in m.tool_calls %}={{ c.function.name }}{% endfor %}{% if m.role == 'assistant' %}<|eos|>{% endif %}\
    {% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";

fn with_template(template: &str) -> Tokenizer {
    let mut settings = CharacterSettings::new(ALPHABET);
    settings.chat_template = Some(template.into());
    Tokenizer::characters(&settings).unwrap()
}

fn message(value: Value) -> ChatMessage {
    serde_json::from_value(value).unwrap()
}

fn conversation(messages: &[Value]) -> Task {
    let messages = messages.iter().cloned().map(message).collect();
    Task { prompt: PromptSource::Messages(messages), demonstration: None, ..chat_task() }
}

fn found(template: &str, task: &Task) -> Option<String> {
    find_unrendered(&with_template(template), task).unwrap().map(|part| part.to_string())
}

#[test]
fn ignored_roles_fields_and_parts_are_found() {
    let user = json!({"role": "user", "content": "a"});
    let call = json!([{"function": {"name": "add"}}]);
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    for (messages, expected) in [
        (
            vec![json!({"role": "developer", "content": "be brief"}), user.clone()],
            "`role` of message 1 is \"developer\"",
        ),
        (vec![user.clone(), json!({"role": "tool", "content": "3"})], "`role` of message 2 is \"tool\""),
        (
            vec![user.clone(), json!({"role": "assistant", "content": "b", "tool_calls": call})],
            "`tool_calls` of message 2 (assistant)",
        ),
        (vec![json!({"role": "user", "content": "a", "name": "ann"})], "`name` of message 1 (user)"),
        (vec![json!({"role": "user", "content": parts})], "`content` of message 1 (user) is a list of parts"),
    ] {
        let task = conversation(&messages);
        assert_eq!(found(STRICT, &task).as_deref(), Some(expected));
        assert_eq!(found(WIDE, &task), None, "{expected}");
    }
    // Only passed on.
    let tool = json!({"role": "tool", "content": "3", "name": "add", "tool_call_id": "c"});
    assert_eq!(
        found(
            "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}",
            &conversation(&[user, tool])
        ),
        None
    );
}

#[test]
fn the_reasoning_of_a_demonstration_must_be_rendered_and_that_of_earlier_turns_need_not() {
    let reasoned = json!({"role": "assistant", "content": "b", "reasoning_content": "hm"});
    let user = json!({"role": "user", "content": "a"});
    assert_eq!(found(STRICT, &conversation(&[user.clone(), reasoned.clone(), user.clone()])), None);
    let demonstration = Some(Demonstration::Message(Box::new(message(reasoned))));
    let task = Task { demonstration, ..conversation(&[user]) };
    assert_eq!(found(STRICT, &task).as_deref(), Some("`reasoning_content` of message 2 (assistant)"));
    assert_eq!(found(WIDE, &task), None);
}

#[test]
fn demonstrations_with_fields_are_rendered_by_the_template() {
    let answer = json!({"role": "assistant", "content": "b", "reasoning_content": "hm", "tool_calls": [{"function": {"name": "add"}}]});
    let demonstration = Some(Demonstration::Message(Box::new(message(answer))));
    let task = Task { demonstration, ..conversation(&[json!({"role": "user", "content": "a"})]) };
    let tokenizer = with_template(WIDE);
    let trajectory = one(now(demonstrate(&SingleTurn, &task, &tokenizer, 100, key())).unwrap());
    assert_eq!(tokenizer.decode(&trajectory.tokens, false).unwrap(), "[user]a[assistant]<hm>b=add<|eos|>");
    let prompt = trajectory.spans[0].range.end;
    assert_eq!(demonstration_length(&tokenizer, &task).unwrap(), trajectory.tokens.len() - prompt);
}

#[test]
fn a_measured_demonstration_has_the_length_of_the_played_one() {
    for task in [chat_task(), crate::support::task("2+2=")] {
        let trajectory = one(now(demonstrate(&SingleTurn, &task, &tokenizer(), 100, key())).unwrap());
        let length = trajectory.tokens.len() - trajectory.spans[0].range.end;
        assert_eq!(demonstration_length(&tokenizer(), &task).unwrap(), length);
    }
}
