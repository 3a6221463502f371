//! Chat templates: conversations to prompts, the way `transformers` renders them.
//!
//! Templates are Jinja, run by minijinja. Where that differs from Jinja2 under Python, the modules below close the
//! gap: [`tojson`], [`python`] (methods of strings), [`kinds`] (type tests), [`display`] (values as text),
//! [`generation`] (the tag that marks what the assistant wrote) and [`moment`] (`strftime_now` without a clock).
//!
//! What still differs: methods of a mapping are no attributes (Jinja2 finds the method `items` under `schema.items`,
//! and under `schema['items']` where the mapping has no such key), `%` formats no text, macros see neither `varargs`
//! nor `kwargs`, and a loop over `none` is empty where Jinja2 fails.

mod display;
mod generation;
mod kinds;
mod moment;
mod python;
mod tojson;

use std::ops::Range;
use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::{Map, Value as Json};

pub use moment::Moment;

use crate::folder::{self, Folder};
use crate::{SpecialTokens, TextError};

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";
/// Names under which datasets carry a message's reasoning, and the names under which templates look for it.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// A model's chat template, compiled. Cheap to clone.
#[derive(Clone)]
pub struct ChatTemplate {
    environment: Arc<Environment<'static>>,
    names: Vec<String>,
    special: SpecialTokens,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("names", &self.names).finish_non_exhaustive()
    }
}

/// What a conversation is rendered with, besides its messages.
#[derive(Debug, Clone, Default)]
pub struct RenderOptions<'a> {
    /// Ends with what opens the assistant's next message, so that the model writes it.
    pub add_generation_prompt: bool,
    /// Tools that the assistant may call, as JSON schemas.
    pub tools: Option<&'a [Json]>,
    /// Documents to draw on, each with a `title` and a `text`.
    pub documents: Option<&'a [Json]>,
    /// Further variables, such as `enable_thinking`. They win over the special tokens' names.
    pub variables: Option<&'a Map<String, Json>>,
    /// Which named template to use. By default `tool_use` if there are tools and such a template, else `default`.
    pub template: Option<&'a str>,
    /// What `strftime_now` says. Without it the function does not exist, which templates with a date of their own
    /// take as the sign to use that: a prompt then does not depend on the day.
    pub now: Option<Moment>,
}

impl RenderOptions<'_> {
    /// Renders a prompt: a conversation that the assistant is to go on with.
    pub fn prompt() -> Self {
        Self { add_generation_prompt: true, ..Self::default() }
    }
}

/// A rendered conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// Byte ranges of the text between `{% generation %}` and `{% endgeneration %}`: what the assistant wrote. Empty
    /// for templates without the tag.
    pub assistant: Vec<Range<usize>>,
}

impl ChatTemplate {
    /// Compiles one template.
    ///
    /// # Errors
    ///
    /// [`TextError::TemplateSyntax`].
    pub fn new(source: &str, special: &SpecialTokens) -> Result<Self, TextError> {
        Self::named([(DEFAULT.to_owned(), source.to_owned())], special)
    }

    /// Compiles several templates of one model, by name.
    ///
    /// # Errors
    ///
    /// [`TextError::TemplateSyntax`].
    pub fn named(
        templates: impl IntoIterator<Item = (String, String)>,
        special: &SpecialTokens,
    ) -> Result<Self, TextError> {
        let syntax_error = |name: &str, error: &Error| TextError::TemplateSyntax {
            name: name.to_owned(),
            line: error.line().unwrap_or(1),
            reason: described(error),
        };
        let mut environment = environment().map_err(|error| syntax_error(DEFAULT, &error))?;
        let mut names = Vec::new();
        for (name, source) in templates {
            let source = generation::replace_tags(&source);
            let added = environment.add_template_owned(name.clone(), source);
            added.map_err(|error| syntax_error(&name, &error))?;
            names.push(name);
        }
        names.sort_unstable();
        names.dedup();
        Ok(Self { environment: Arc::new(environment), names, special: special.clone() })
    }

    /// The templates of a folder, if it has any; files of their own win over `tokenizer_config.json`.
    pub(crate) fn from_folder(
        folder: &Folder,
        config: &Map<String, Json>,
        special: &SpecialTokens,
    ) -> Result<Option<Self>, TextError> {
        let mut templates = folder.template_files()?;
        if templates.is_empty() {
            let malformed = || {
                let reason = "`chat_template` is neither a template nor a list of named ones".to_owned();
                folder.malformed(folder::TOKENIZER_CONFIG, reason)
            };
            match config.get("chat_template") {
                None | Some(Json::Null) => {}
                Some(Json::String(source)) => templates.push((DEFAULT.to_owned(), source.clone())),
                Some(Json::Array(list)) => {
                    for entry in list {
                        let text = |key: &str| entry.get(key)?.as_str().map(str::to_owned);
                        let named = text("name").zip(text("template"));
                        templates.push(named.ok_or_else(malformed)?);
                    }
                }
                Some(Json::Object(map)) => {
                    for (name, source) in map {
                        templates.push((name.clone(), source.as_str().ok_or_else(malformed)?.to_owned()));
                    }
                }
                Some(_) => return Err(malformed()),
            }
        }
        if templates.is_empty() { Ok(None) } else { Self::named(templates, special).map(Some) }
    }

    /// The names of the templates, sorted; a single one is `default`.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Renders a conversation to the text that `transformers` renders.
    ///
    /// Messages are whatever serialises to objects with at least `role` and usually `content`:
    /// [`rloom_core::ChatMessage`], or JSON with tool calls and content parts. As in `transformers`, keys whose value
    /// is null are dropped, and a message's reasoning is seen under each of the names that templates use for it.
    ///
    /// # Errors
    ///
    /// The template's own refusal ([`TextError::Refused`]), any other failure to render, and an empty conversation.
    pub fn render<M: Serialize>(
        &self,
        messages: &[M],
        options: &RenderOptions<'_>,
    ) -> Result<String, TextError> {
        self.render_marked(messages, options).map(|rendered| rendered.text)
    }

    /// Like [`render`](Self::render), and says which parts the assistant wrote, where the template marks them.
    ///
    /// # Errors
    ///
    /// Those of [`render`](Self::render).
    pub fn render_marked<M: Serialize>(
        &self,
        messages: &[M],
        options: &RenderOptions<'_>,
    ) -> Result<Rendered, TextError> {
        if messages.is_empty() {
            return Err(TextError::NoMessages);
        }
        let messages = messages.iter().map(prepared).collect::<Result<Vec<Value>, TextError>>()?;
        let name = self.choose(options)?;

        let mut context: Vec<(&str, Value)> =
            self.special.named().map(|(name, text)| (name, Value::from(text))).collect();
        context.extend(
            options
                .variables
                .into_iter()
                .flatten()
                .map(|(name, value)| (name.as_str(), Value::from(Serde(value)))),
        );
        context.extend([
            ("messages", Value::from(messages)),
            ("tools", Value::from(Serde(options.tools))),
            ("documents", Value::from(Serde(options.documents))),
            ("add_generation_prompt", Value::from(options.add_generation_prompt)),
        ]);
        if let Some(now) = options.now {
            let strftime = move |format: &str| now.format(format);
            context.push(("strftime_now", Value::from_function(strftime)));
        }

        let template = self.environment.get_template(name).map_err(|error| render_error(&error))?;
        let text = template.render(Value::from_pairs(context)).map_err(|error| render_error(&error))?;
        Ok(generation::extract_marks(&text))
    }

    fn choose<'a>(&self, options: &RenderOptions<'a>) -> Result<&'a str, TextError> {
        let has = |name: &str| self.names.iter().any(|known| known == name);
        let tool_use = options.tools.is_some() && has(TOOL_USE);
        let name = options.template.unwrap_or(if tool_use { TOOL_USE } else { DEFAULT });
        if has(name) {
            return Ok(name);
        }
        let names = self.names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        Err(TextError::NoDefaultTemplate { names })
    }

    /// The text that follows the policy's last turn: `new` messages (an observation, the user's next question) and
    /// what opens the turn after them.
    ///
    /// `history` ends with the policy's turn, which the model ended by sampling a stop token whose text is
    /// `turn_end`. What is returned is to be tokenised and appended right after that token; nothing before it is
    /// rendered or tokenised anew.
    ///
    /// # Errors
    ///
    /// [`TextError::NotPrefixPreserving`] if the template renders the history differently once messages follow it
    /// (Qwen3's, for example, drops the reasoning of earlier turns), and those of [`render`](Self::render).
    pub fn next_turn<M: Serialize + Clone>(
        &self,
        history: &[M],
        new: &[M],
        turn_end: &str,
        options: &RenderOptions<'_>,
    ) -> Result<String, TextError> {
        let before =
            self.render(history, &RenderOptions { add_generation_prompt: false, ..options.clone() })?;
        let together: Vec<M> = history.iter().chain(new).cloned().collect();
        let after =
            self.render(&together, &RenderOptions { add_generation_prompt: true, ..options.clone() })?;
        if !after.starts_with(&before) {
            let position = before.bytes().zip(after.bytes()).take_while(|(a, b)| a == b).count();
            return Err(TextError::NotPrefixPreserving { position });
        }
        // Templates put white space after the token that ends a turn; the model did not write it.
        let end = before.trim_end();
        let kept = if !turn_end.is_empty() && end.ends_with(turn_end) { end.len() } else { before.len() };
        Ok(after[kept..].to_owned())
    }

    /// Whether a conversation keeps its rendering when messages follow: what [`next_turn`](Self::next_turn) needs,
    /// probed with an assistant turn that carries reasoning, which is what templates are known to drop.
    ///
    /// # Errors
    ///
    /// Those of [`render`](Self::render), if the template refuses the probe.
    pub fn is_prefix_preserving(&self, options: &RenderOptions<'_>) -> Result<bool, TextError> {
        let message = |role: &str, content: &str| rloom_core::ChatMessage {
            role: role.into(),
            content: content.into(),
        };
        let history =
            [message("user", "Question?"), message("assistant", "<think>\nReasons.\n</think>\n\nAnswer.")];
        match self.next_turn(&history, &[message("user", "And then?")], "", options) {
            Ok(_) => Ok(true),
            Err(TextError::NotPrefixPreserving { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The environment that `transformers` renders chat templates in.
fn environment() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(python::call_method);
    environment.add_filter("tojson", tojson::tojson);
    environment.add_function("raise_exception", raise_exception);
    environment.set_formatter(display::write);
    environment.add_filter("string", display::string);
    environment.add_filter("trim", python::trim);
    environment.add_filter("int", python::int);
    environment.add_filter("float", python::float);
    kinds::add_tests(&mut environment);
    minijinja_contrib::add_to_environment(&mut environment);
    Ok(environment)
}

/// Carried as the source of an error so that a template's refusal can be told from its bugs.
#[derive(Debug)]
struct Refusal(String);

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Refusal(message.to_string())))
}

fn render_error(error: &Error) -> TextError {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = source {
        if let Some(refusal) = current.downcast_ref::<Refusal>() {
            return TextError::Refused { message: refusal.0.clone() };
        }
        source = current.source();
    }
    let line = error.line().map(|line| format!(" (line {line} of the template)")).unwrap_or_default();
    TextError::Render { reason: format!("{}{line}", described(error)) }
}

fn described(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

/// A message as templates are to see it.
fn prepared<M: Serialize>(message: &M) -> Result<Value, TextError> {
    let unusable = |reason: String| TextError::Render { reason: format!("a message is no object: {reason}") };
    let mut fields = match serde_json::to_value(message) {
        Ok(Json::Object(fields)) => fields,
        Ok(other) => return Err(unusable(other.to_string())),
        Err(error) => return Err(unusable(error.to_string())),
    };
    fields.retain(|_, value| !value.is_null());
    let reasoning = REASONING.iter().find_map(|name| fields.get(*name)).cloned();
    if let Some(reasoning) = reasoning {
        fields.entry("thinking").or_insert_with(|| reasoning.clone());
        fields.insert("reasoning_content".to_owned(), reasoning);
    }
    Ok(Value::from(Serde(fields)))
}
