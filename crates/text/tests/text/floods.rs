//! Turns that are made to cost time or memory: each is read in one pass, to calls whose spans do not overlap.

use rloom_text::calls::{CallFormat, ToolDeclaration, Written, check};
use serde_json::json;

/// Bytes of a turn.
const LENGTH: usize = 1 << 20;

const PARTS: &[&str] = &[
    "<tool_call>",
    "</tool_call>",
    "<tool_call></tool_call>",
    "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
    "<tool_call><function=f>",
    "<tool_call><function=f><parameter=",
    "<tool_call><function=f><parameter=k>",
    "<parameter=k></parameter>",
    "<arg_key>",
    "<tool_call>f<arg_key>",
    "<arg_key>k</arg_key>",
    "<arg_key>k</arg_key><arg_value>",
    "<think>",
    "</think>",
    "[TOOL_CALLS]",
    "[TOOL_CALLS]f[ARGS]",
    "[TOOL_CALLS]f[CALL_ID]",
    "[TOOL_CALLS][{}]",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁begin｜><｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_begin|><|tool_call_argument_begin|><|tool_call_end|>",
    "<|message|>",
    "<|message|><|end|>",
    "<|channel|>commentary to=functions.f<|message|>{}",
    "<|start|>",
    "<|python_tag|>",
    "<f>",
    "</f>",
    "<f></f>",
    "<f>1</f> ",
    "{",
    "[",
    "{\"a\":",
    "\"",
    "\\",
    " ",
    "\n",
    "<",
    "9",
];

fn tools() -> Vec<ToolDeclaration> {
    let tool = |name: &str| ToolDeclaration {
        name: name.to_owned(),
        description: String::new(),
        parameters: json!({"type": "object", "properties": {"k": {"type": "array", "items": {"type": "number"}}}}),
    };
    vec![tool("f"), tool("g")]
}

fn read(format: CallFormat, text: String) -> usize {
    let length = text.len();
    let tools = tools();
    let mut parsed = format.parse(&Written::plain(text), false, &tools);
    check(&mut parsed.calls, &tools);
    let mut end = 0;
    for call in &parsed.calls {
        assert!(call.span.start >= end && call.span.end <= length, "{format:?}");
        // A list after one mark has the span of the mark.
        end = if format == CallFormat::Mistral { call.span.start } else { call.span.end };
    }
    parsed.calls.len()
}

#[test]
fn repeated_parts_of_every_format_are_read_to_the_end() {
    for format in CallFormat::ALL {
        for part in PARTS {
            read(format, part.repeat(LENGTH / part.len()));
        }
    }
}

#[test]
fn repeated_calls_are_all_found() {
    for (format, before, call) in [
        (CallFormat::Hermes, "", "<tool_call>{\"name\": \"f\"}</tool_call>"),
        (CallFormat::QwenCoder, "", "<tool_call><function=f></function></tool_call>"),
        (CallFormat::Glm, "", "<tool_call>f</tool_call>"),
        (CallFormat::Mistral, "", "[TOOL_CALLS]f[ARGS]{}"),
        (
            CallFormat::DeepseekV3,
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜>",
        ),
        (
            CallFormat::KimiK2,
            "<|tool_calls_section_begin|>",
            "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
        ),
        (CallFormat::Harmony, "", "<|channel|>commentary to=functions.f<|message|>{}<|call|>"),
        (CallFormat::Tags, "", "<f>1</f>"),
    ] {
        assert_eq!(read(format, before.to_owned() + &call.repeat(10_000)), 10_000, "{format:?}");
    }
}

/// Nesting beyond the limit of the JSON parser is invalid; it does not overflow the stack.
#[test]
fn deeply_nested_arguments_are_no_json() {
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let depth = LENGTH / open.len();
        let nested = format!("{}1{}", open.repeat(depth), close.repeat(depth));
        for text in [
            format!("<tool_call>{{\"name\": \"f\", \"arguments\": {{\"k\": {nested}}}}}</tool_call>"),
            format!("<tool_call>f<arg_key>k</arg_key><arg_value>{nested}</arg_value></tool_call>"),
            format!("<tool_call><function=f><parameter=k>{nested}</parameter></function></tool_call>"),
            format!("[TOOL_CALLS]f[ARGS]{nested}"),
            format!("{{\"name\": \"f\", \"parameters\": {nested}}}"),
            format!("<|channel|>commentary to=functions.f<|message|>{nested}<|call|>"),
        ] {
            for format in CallFormat::ALL {
                let written = Written::plain(text.as_str());
                let mut parsed = format.parse(&written, false, &tools());
                check(&mut parsed.calls, &tools());
                assert!(parsed.calls.iter().all(|call| call.status.name() != "ok"), "{format:?}");
            }
        }
    }
}
