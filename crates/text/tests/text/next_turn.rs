//! Later turns are appended as text; earlier turns are not rendered again.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

use rloom_core::ChatMessage;
use rloom_text::{ChatTemplate, RenderOptions, SpecialTokens, TextError};
use serde_json::{Value, json};

const KEEPS: &str = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}\
                     {% if add_generation_prompt %}<|assistant|>{% endif %}";

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, &SpecialTokens::default()).unwrap()
}

fn drops_reasoning() -> ChatTemplate {
    template(include_str!("../golden/templates/forgetful.jinja"))
}

fn message(role: &str, content: &str) -> ChatMessage {
    ChatMessage::new(role, content)
}

#[test]
fn the_next_turn_begins_after_the_token_that_ended_the_last() {
    let history = [message("user", "a"), message("assistant", "b")];
    let new = [message("user", "c")];
    let options = RenderOptions::default();
    let rendered = template(KEEPS).next_turn(&history, &new, "<|end|>", &options).unwrap();
    // The line break after the stop token was never sampled, so it belongs to the observation.
    assert_eq!(rendered, "\n<|user|>c<|end|>\n<|assistant|>");
    let whole = template(KEEPS).next_turn(&history, &new, "", &options).unwrap();
    assert_eq!(whole, "<|user|>c<|end|>\n<|assistant|>");

    // Prompt, completion and next turn together are the conversation.
    let prompt = template(KEEPS).render(&history[..1], &RenderOptions::prompt()).unwrap();
    let all = [history[0].clone(), history[1].clone(), new[0].clone()];
    let conversation = template(KEEPS).render(&all, &RenderOptions::prompt()).unwrap();
    assert_eq!(format!("{prompt}b<|end|>{rendered}"), conversation);
}

#[test]
fn variables_are_tools_unless_the_options_have_some() {
    let source = "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools }}{{ documents }}{{ more }}";
    let tools = [json!("own")];
    let variables = json!({"tools": ["t"], "documents": ["d"], "more": 5, "messages": []});
    let with = template(source).with_variables(variables.as_object().cloned().unwrap());
    let render = |template: &ChatTemplate, tools: Option<&[Value]>| {
        template
            .render(&[message("user", "a")], &RenderOptions { tools, ..RenderOptions::default() })
            .unwrap()
    };
    assert_eq!(render(&with, None), "a['t']['d']5");
    assert_eq!(render(&with, Some(&tools)), "a['own']['d']5");
    assert_eq!(render(&template(source), None), "aNoneNone");
    // A template for conversations with tools is used for those of a variable, too.
    let named = [("default", "plain"), ("tool_use", "with tools")];
    let named = named.map(|(name, source)| (name.to_owned(), source.to_owned()));
    let both = ChatTemplate::named(named, &SpecialTokens::default()).unwrap();
    assert_eq!(render(&both, None), "plain");
    assert_eq!(render(&both.with_variables(variables.as_object().cloned().unwrap()), None), "with tools");
}

#[test]
fn templates_that_drop_reasoning_are_detected() {
    let options = RenderOptions::default();
    assert!(template(KEEPS).is_prefix_preserving(&options).unwrap());
    assert!(!drops_reasoning().is_prefix_preserving(&options).unwrap());
    let history = [message("user", "a"), message("assistant", "<think>\nx\n</think>\n\nb")];
    let error =
        drops_reasoning().next_turn(&history, &[message("user", "c")], "<|end|>", &options).unwrap_err();
    assert!(matches!(error, TextError::NotPrefixPreserving { position } if position > 20), "{error:?}");
    // The template keeps the reasoning before a tool's answer, which is not a new question.
    let kept = drops_reasoning().next_turn(&history, &[message("tool", "c")], "<|end|>", &options).unwrap();
    assert_eq!(kept, "\n<|tool|>\nc<|end|>\n<|assistant|>\n");
}

#[test]
fn refusals_and_rendering_failures_are_distinct() {
    let options = RenderOptions::default();
    let refused = template("{{ raise_exception('no ' ~ messages[0].role) }}");
    let error = refused.render(&[message("user", "a")], &options).unwrap_err();
    assert_eq!(error.to_string(), "the chat template refuses this conversation: no user");
    let nothing: [ChatMessage; 0] = [];
    assert!(matches!(refused.render(&nothing, &options), Err(TextError::NoMessages)));
    let broken = template("a\n{{ messages[0].content.nothing.here }}");
    let error = broken.render(&[message("user", "a")], &options).unwrap_err();
    assert!(matches!(error, TextError::Render { .. }) && error.to_string().contains("line 2"), "{error}");
    let error = template("{{ 1 }}").render(&["not an object"], &options).unwrap_err();
    assert!(error.to_string().contains("a message is not an object"), "{error}");
}
