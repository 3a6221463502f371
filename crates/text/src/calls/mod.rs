//! Calls of tools in what a policy wrote.
//!
//! Every family of models writes calls in a format of its own ([`CallFormat`]); each is one file here. A format's parser reads
//! a [`Written`] turn after the end of its reasoning and returns every [`CallAttempt`], the malformed ones included, with a
//! status that says what is wrong. [`check`] then compares the attempts with the declared tools.
//!
//! Marks of a format that are tokens of their own are found by their token: the same characters written with other tokens are
//! text.

mod deepseek;
mod glm;
mod harmony;
mod hermes;
mod kimi;
mod llama;
mod mistral;
mod qwen_coder;
mod reasoning;
mod schema;
mod tags;
mod values;
mod written;

use std::ops::Range;

use rloom_core::ChatMessage;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use schema::violation;
pub use written::Written;

use crate::{ChatTemplate, Tokenizer};

/// Format in which a policy writes calls of tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CallFormat {
    /// Hermes, Qwen2.5 and Qwen3: a JSON object in `<tool_call>` and `</tool_call>`.
    Hermes,
    /// Qwen3-Coder and Qwen3.5: `<function=…>` and `<parameter=…>` in `<tool_call>` and `</tool_call>`.
    QwenCoder,
    /// Llama 3: the turn is one JSON object with `name` and `parameters`.
    Llama3,
    /// Mistral: a JSON list after `[TOOL_CALLS]`, or the name, `[ARGS]` and the arguments.
    Mistral,
    /// DeepSeek V3.
    DeepseekV3,
    /// GLM-4.5 and later: the name, then `<arg_key>` and `<arg_value>`, in `<tool_call>` and `</tool_call>`.
    Glm,
    /// Kimi K2.
    KimiK2,
    /// Harmony, the format of gpt-oss: a message to `functions.…`.
    Harmony,
    /// For models without a format of their own: the only argument between tags with the name of the tool, as in
    /// `<search>…</search>`.
    Tags,
}

/// What an attempt to call a tool amounts to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallStatus {
    /// A call.
    Ok,
    /// Text that should be JSON and is not.
    InvalidJson,
    /// The end of the call is missing.
    UnclosedBlock,
    /// The name of the tool is missing.
    MissingName,
    /// Parts of the format are missing.
    MalformedStructure,
    /// A tool that is not declared.
    UnknownTool,
    /// Arguments that the tool does not accept.
    BadArguments,
}

impl CallStatus {
    /// Name in metrics and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::InvalidJson => "invalid_json",
            Self::UnclosedBlock => "unclosed_block",
            Self::MissingName => "missing_name",
            Self::MalformedStructure => "malformed_structure",
            Self::UnknownTool => "unknown_tool",
            Self::BadArguments => "bad_arguments",
        }
    }
}

/// An attempt to call a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct CallAttempt {
    /// Name of the tool, as far as it could be read.
    pub name: Option<String>,
    /// The arguments, as far as they could be read; an object in a call.
    pub arguments: Value,
    /// Identifier that the policy gave to the call.
    pub id: Option<String>,
    /// Whether it is a call.
    pub status: CallStatus,
    /// What is wrong, unless the status says all.
    pub problem: Option<String>,
    /// Bytes of the turn's text, with the marks around the call.
    pub span: Range<usize>,
    /// The text between the marks.
    pub raw: String,
}

/// A turn, divided into its parts.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Parsed {
    /// The attempts in order.
    pub calls: Vec<CallAttempt>,
    /// The text outside of reasoning and calls, up to the first call.
    pub content: String,
    /// The reasoning was not closed: the turn has neither content nor calls.
    pub reasoning_is_open: bool,
}

/// A declared tool, as chat templates receive it in `function`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolDeclaration {
    /// Name.
    pub name: String,
    /// What it does, for the policy.
    #[serde(default)]
    pub description: String,
    /// JSON schema of the arguments: an object.
    #[serde(default = "no_parameters")]
    pub parameters: Value,
}

fn no_parameters() -> Value {
    serde_json::json!({ "type": "object", "properties": {} })
}

impl ToolDeclaration {
    /// The form in which chat templates receive the tool.
    pub fn for_template(&self) -> Value {
        serde_json::json!({ "type": "function", "function": self })
    }

    /// Schema of a parameter.
    fn parameter(&self, name: &str) -> Option<&Value> {
        self.parameters.get("properties")?.get(name)
    }
}

/// The declared tool with a name.
fn declared<'t>(tools: &'t [ToolDeclaration], name: &str) -> Option<&'t ToolDeclaration> {
    tools.iter().find(|tool| tool.name == name)
}

impl CallFormat {
    /// All formats.
    pub const ALL: [Self; 9] = [
        Self::Hermes,
        Self::QwenCoder,
        Self::Llama3,
        Self::Mistral,
        Self::DeepseekV3,
        Self::Glm,
        Self::KimiK2,
        Self::Harmony,
        Self::Tags,
    ];

    /// Name in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hermes => "hermes",
            Self::QwenCoder => "qwen_coder",
            Self::Llama3 => "llama3",
            Self::Mistral => "mistral",
            Self::DeepseekV3 => "deepseek_v3",
            Self::Glm => "glm",
            Self::KimiK2 => "kimi_k2",
            Self::Harmony => "harmony",
            Self::Tags => "tags",
        }
    }

    /// The format that the chat template of a tokenizer writes.
    pub fn detect(tokenizer: &Tokenizer) -> Option<Self> {
        Self::of_template(tokenizer.chat_template()?)
    }

    /// The format that a chat template writes.
    pub fn of_template(template: &ChatTemplate) -> Option<Self> {
        // In this order: some templates contain a mark of a format that is named after theirs.
        let marks = [
            ("<function=", Self::QwenCoder),
            ("<arg_key>", Self::Glm),
            (deepseek::SECTION_BEGIN, Self::DeepseekV3),
            (kimi::SECTION_BEGIN, Self::KimiK2),
            (mistral::CALLS, Self::Mistral),
            ("<|channel|>", Self::Harmony),
            ("<tool_call>", Self::Hermes),
            ("<|python_tag|>", Self::Llama3),
            ("ipython", Self::Llama3),
        ];
        marks.into_iter().find_map(|(mark, format)| template.mentions(mark).then_some(format))
    }

    /// Marks of the format, which can be tokens of their own.
    fn marks(self) -> &'static [&'static str] {
        match self {
            Self::Hermes | Self::QwenCoder => {
                &[reasoning::OPEN, reasoning::CLOSE, hermes::CALL, hermes::CALL_END]
            }
            Self::Llama3 => &["<|python_tag|>"],
            Self::Mistral => &[mistral::CALLS, mistral::ARGUMENTS, mistral::CALL_ID],
            Self::DeepseekV3 => &[
                reasoning::OPEN,
                reasoning::CLOSE,
                deepseek::SECTION_BEGIN,
                deepseek::SECTION_END,
                deepseek::CALL_BEGIN,
                deepseek::CALL_END,
                deepseek::SEPARATOR,
            ],
            Self::Glm => &[
                reasoning::OPEN,
                reasoning::CLOSE,
                hermes::CALL,
                hermes::CALL_END,
                "<arg_key>",
                "</arg_key>",
                "<arg_value>",
                "</arg_value>",
            ],
            Self::KimiK2 => &[
                reasoning::OPEN,
                reasoning::CLOSE,
                kimi::SECTION_BEGIN,
                kimi::SECTION_END,
                kimi::CALL_BEGIN,
                kimi::ARGUMENT_BEGIN,
                kimi::CALL_END,
            ],
            Self::Harmony => &[
                "<|start|>",
                "<|channel|>",
                "<|message|>",
                "<|constrain|>",
                "<|end|>",
                "<|call|>",
                "<|return|>",
            ],
            Self::Tags => &[reasoning::OPEN, reasoning::CLOSE],
        }
    }

    /// Decodes the tokens of a turn for [`parse`](Self::parse).
    pub fn written(self, tokenizer: &Tokenizer, tokens: &[u32]) -> Result<Written, crate::TextError> {
        Written::decode(tokenizer, tokens, self.marks())
    }

    /// Parses a turn. `reasons`: the prompt ended inside the policy's reasoning. Formats without quotation marks read the
    /// types of arguments from the declared tools.
    pub fn parse(self, written: &Written, reasons: bool, tools: &[ToolDeclaration]) -> Parsed {
        let written = &written.indexed(self.marks());
        match self {
            Self::Hermes => hermes::parse(written, reasons),
            Self::QwenCoder => qwen_coder::parse(written, reasons, tools),
            Self::Llama3 => llama::parse(written),
            Self::Mistral => mistral::parse(written),
            Self::DeepseekV3 => deepseek::parse(written, reasons),
            Self::Glm => glm::parse(written, reasons, tools),
            Self::KimiK2 => kimi::parse(written, reasons),
            Self::Harmony => harmony::parse(written),
            Self::Tags => tags::parse(written, reasons, tools),
        }
    }

    /// The reasoning of a turn, without its marks; empty if there is none. Parameters as for [`parse`](Self::parse).
    pub fn reasoning(self, written: &Written, reasons: bool) -> String {
        let closer = match self {
            Self::Hermes | Self::QwenCoder | Self::Glm => Some(hermes::CALL),
            Self::KimiK2 => Some(kimi::SECTION_BEGIN),
            Self::DeepseekV3 | Self::Tags => None,
            Self::Llama3 | Self::Mistral => return String::new(),
            Self::Harmony => return harmony::reasoning(written),
        };
        reasoning::text(written, reasons, closer).trim().to_owned()
    }

    /// Texts that begin a call: what a turn contains before the first of them is no part of a call. Harmony has none, since
    /// all of a turn is structured.
    pub fn openings(self, tools: &[ToolDeclaration]) -> Vec<String> {
        match self {
            Self::Hermes | Self::QwenCoder | Self::Glm => vec![hermes::CALL.to_owned()],
            Self::Llama3 => vec![llama::MARK.to_owned(), "{".to_owned()],
            Self::Mistral => vec![mistral::CALLS.to_owned()],
            Self::DeepseekV3 => vec![deepseek::SECTION_BEGIN.to_owned()],
            Self::KimiK2 => vec![kimi::SECTION_BEGIN.to_owned()],
            Self::Harmony => Vec::new(),
            Self::Tags => tools.iter().map(|tool| format!("<{}>", tool.name)).collect(),
        }
    }

    /// The results of a turn's calls after a plain prompt, where no chat template renders them.
    pub fn plain_results<'r>(self, results: impl IntoIterator<Item = &'r str>) -> String {
        let one = |result: &str| match self {
            Self::Tags => format!("<result>{result}</result>"),
            _ => format!("\n<tool_response>\n{result}\n</tool_response>\n"),
        };
        results.into_iter().map(one).collect()
    }

    /// Identifier of a call for messages: the policy's own, or one in the form that templates of the family accept.
    pub fn call_id(self, attempt: &CallAttempt, number: usize) -> String {
        match (&attempt.id, self) {
            (Some(id), _) => id.clone(),
            (None, Self::KimiK2) => {
                format!("functions.{}:{number}", attempt.name.as_deref().unwrap_or("unknown"))
            }
            // Mistral's templates require nine letters or digits.
            (None, _) => format!("call{number:05}"),
        }
    }
}

/// A message of the assistant with one call, as templates receive it.
pub fn call_message(name: &str, id: &str, argument: &str) -> ChatMessage {
    let mut message = ChatMessage::new("assistant", "");
    let function = serde_json::json!({ "name": name, "arguments": { "value": argument } });
    let call = serde_json::json!({ "id": id, "type": "function", "function": function });
    message.fields.insert("tool_calls".to_owned(), Value::Array(vec![call]));
    message
}

/// Compares calls with the declared tools: calls of others, and arguments that do not fit the schema, get a status that says
/// so.
pub fn check(calls: &mut [CallAttempt], tools: &[ToolDeclaration]) {
    for call in calls.iter_mut().filter(|call| call.status == CallStatus::Ok) {
        let name = call.name.as_deref().unwrap_or_default();
        let Some(tool) = declared(tools, name) else {
            let known: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
            call.status = CallStatus::UnknownTool;
            call.problem = Some(format!("there is no tool `{name}`; the tools are {}", known.join(", ")));
            continue;
        };
        if let Some(problem) = violation(&call.arguments, &tool.parameters) {
            call.status = CallStatus::BadArguments;
            call.problem = Some(problem);
        }
    }
}

/// An attempt that has not been read yet.
fn attempt(span: Range<usize>, raw: &str, status: CallStatus) -> CallAttempt {
    CallAttempt {
        name: None,
        arguments: Value::Object(Map::new()),
        id: None,
        status,
        problem: None,
        span,
        raw: raw.to_owned(),
    }
}
