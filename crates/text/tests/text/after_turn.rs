//! What follows a turn with calls of tools, compared with the renderers of PyPI's `renderers`.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

use std::path::{Path, PathBuf};

use rloom_core::ChatMessage;
use rloom_text::calls::{CallFormat, ToolDeclaration};
use rloom_text::{ChatTemplate, RenderOptions, SpecialTokens, TextError};
use serde::Deserialize;
use serde_json::{Map, Value, json};

#[derive(Deserialize)]
struct Golden {
    tools: Vec<ToolDeclaration>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    family: String,
    format: CallFormat,
    results: Vec<String>,
    turn_end: String,
    end: String,
    added: String,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../golden/bridge.json")).unwrap()
}

fn template(name: &str) -> ChatTemplate {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/tool_templates/{name}.jinja"));
    from_file(&path)
}

fn from_file(path: &Path) -> ChatTemplate {
    ChatTemplate::new(&std::fs::read_to_string(path).unwrap(), &SpecialTokens::default()).unwrap()
}

fn question() -> [ChatMessage; 1] {
    [ChatMessage::new("user", "How warm?")]
}

fn results(format: CallFormat, texts: &[String]) -> Vec<ChatMessage> {
    let one = |(number, text): (usize, &String)| {
        let mut message = ChatMessage::new("tool", text);
        message.fields.insert("name".into(), "weather".into());
        message.fields.insert("tool_call_id".into(), id(format, number).into());
        message
    };
    texts.iter().enumerate().map(one).collect()
}

fn id(format: CallFormat, number: usize) -> String {
    match format {
        CallFormat::KimiK2 => format!("functions.weather:{number}"),
        _ => format!("call{number:05}"),
    }
}

/// What a template adds in a case.
fn added(template: &ChatTemplate, tools: &[ToolDeclaration], case: &Case) -> Result<String, TextError> {
    let tools: Vec<Value> = tools.iter().map(ToolDeclaration::for_template).collect();
    let variables = json!({ "opens_reasoning": case.family == "qwen35" });
    let options =
        RenderOptions { tools: Some(&tools), variables: variables.as_object(), ..RenderOptions::default() };
    let id = id(case.format, 0);
    let call = Some(("weather", id.as_str()));
    let new = results(case.format, &case.results);
    template.after_turn(&question(), call, &new, &case.turn_end, std::slice::from_ref(&case.end), &options)
}

#[test]
fn results_are_added_as_by_the_reference_renderers() {
    let Golden { tools, cases } = golden();
    for case in &cases {
        let name = if case.family.starts_with("qwen") { "chatml" } else { &case.family };
        // The reference ends a turn of GLM's that was cut off by a token that its template never writes.
        if case.family == "glm45" && case.turn_end.is_empty() {
            continue;
        }
        assert_eq!(
            added(&template(name), &tools, case).unwrap(),
            case.added,
            "{}: {:?}",
            case.family,
            case.turn_end
        );
    }
    assert_eq!(cases.len(), 24);
}

/// Templates of the models themselves, in the folder that `RLOOM_TEST_TEMPLATES` names, as the sources of llama.cpp have them.
#[test]
#[ignore = "needs the templates of the models"]
fn results_are_added_as_by_the_templates_of_the_models() {
    let folder = PathBuf::from(std::env::var("RLOOM_TEST_TEMPLATES").unwrap());
    let Golden { tools, cases } = golden();
    let mut compared = 0;
    for (family, file) in [
        ("qwen3", "Qwen-Qwen3-0.6B.jinja"),
        ("qwen35", "Qwen3.5-4B.jinja"),
        ("glm45", "GLM-4.6.jinja"),
        ("kimi_k2", "moonshotai-Kimi-K2.jinja"),
        ("llama_3", "meta-llama-Llama-3.1-8B-Instruct.jinja"),
    ] {
        let template = from_file(&folder.join(file));
        for case in cases.iter().filter(|case| case.family == family && !case.turn_end.is_empty()) {
            assert_eq!(added(&template, &tools, case).unwrap(), case.added, "{family}");
            compared += 1;
        }
    }
    assert_eq!(compared, 10);
}

#[test]
fn templates_that_refuse_results_without_a_call_receive_one() {
    let ends = ["</s>".to_owned()];
    let new = results(CallFormat::Mistral, &["21 °C".to_owned()]);
    let after = |template: &ChatTemplate, call| {
        template.after_turn(&question(), call, &new, "</s>", &ends, &RenderOptions::default())
    };
    let mistral = template("mistral");
    let expected = "[TOOL_RESULTS]{\"content\": \"21 °C\", \"call_id\": \"call00000\"}[/TOOL_RESULTS]";
    assert_eq!(after(&mistral, Some(("weather", "call00000"))).unwrap(), expected);
    assert!(matches!(after(&mistral, None), Err(TextError::Refused { .. })));

    let ends = ["<|call|>".to_owned(), "<|return|>".to_owned()];
    let harmony = template("harmony");
    let rest = harmony.after_turn(
        &question(),
        Some(("weather", "call00000")),
        &new,
        "<|call|>",
        &ends,
        &RenderOptions::default(),
    );
    let expected = "<|start|>functions.weather to=assistant<|channel|>commentary<|message|>\"21 °C\"<|end|><|start|>assistant";
    assert_eq!(rest.unwrap(), expected);
}

/// The earlier turns of a conversation do not matter, whatever the template makes of their reasoning.
#[test]
fn templates_that_drop_reasoning_continue_exactly() {
    let history = [
        ChatMessage::new("user", "a"),
        ChatMessage::new("assistant", "<think>\nx\n</think>\n\nb"),
        ChatMessage::new("user", "c"),
    ];
    let chatml = template("chatml");
    let new = [ChatMessage::new("user", "next")];
    let ends = ["<|im_end|>".to_owned()];
    let options = RenderOptions::default();
    let rest = chatml.after_turn(&history, None, &new, "<|im_end|>", &ends, &options).unwrap();
    assert_eq!(rest, "\n<|im_start|>user\nnext<|im_end|>\n<|im_start|>assistant\n");
    // A turn without its end gets one.
    let rest = chatml.after_turn(&history, None, &new, "", &ends, &options).unwrap();
    assert_eq!(rest, "<|im_end|>\n<|im_start|>user\nnext<|im_end|>\n<|im_start|>assistant\n");
}

#[test]
fn variables_of_the_template_are_in_every_rendering() {
    let variables: Map<String, Value> = json!({ "enable_thinking": false }).as_object().cloned().unwrap();
    let chatml = template("chatml").with_variables(variables);
    let prompt = chatml.render(&question(), &RenderOptions::prompt()).unwrap();
    assert!(prompt.ends_with("<|im_start|>assistant\n<think>\n\n</think>\n\n"), "{prompt}");
    // Options of one rendering come first.
    let own = json!({ "enable_thinking": true });
    let options = RenderOptions { variables: own.as_object(), ..RenderOptions::prompt() };
    assert!(chatml.render(&question(), &options).unwrap().ends_with("<|im_start|>assistant\n"));
}

#[test]
fn formats_are_detected_by_the_template() {
    for (name, format) in [
        ("chatml", CallFormat::Hermes),
        ("glm45", CallFormat::Glm),
        ("deepseek_v3", CallFormat::DeepseekV3),
        ("kimi_k2", CallFormat::KimiK2),
        ("llama_3", CallFormat::Llama3),
        ("mistral", CallFormat::Mistral),
        ("harmony", CallFormat::Harmony),
    ] {
        assert_eq!(CallFormat::of_template(&template(name)), Some(format), "{name}");
    }
    let plain = ChatTemplate::new("{{ messages[0].content }}", &SpecialTokens::default()).unwrap();
    assert_eq!(CallFormat::of_template(&plain), None);
}
