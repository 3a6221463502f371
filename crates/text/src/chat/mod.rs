//! Chat templates: rendering of conversations with the results of `transformers`.
//!
//! Templates are Jinja, executed by minijinja. The modules below add what differs from Jinja2 under Python: [`tojson`],
//! [`python`] (string methods), [`type_tests`], [`display`] (values as text), [`generation`] (the tag that marks the
//! text of the assistant) and [`date_time`] (`strftime_now` without a clock).
//!
//! Known differences: methods of a mapping are not attributes (Jinja2 finds the method `items` under `schema.items`, and
//! under `schema['items']` if the mapping has no such key), `%` does not format strings, macros do not see `varargs` and
//! `kwargs`, and a loop over `none` is empty, while Jinja2 fails.

mod after_turn;
mod date_time;
mod display;
mod generation;
mod python;
mod tojson;
mod type_tests;

use std::ops::Range;
use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::{Map, Value as Json};

pub use date_time::DateTime;

use crate::folder::{self, Folder};
use crate::{FileProblem, SpecialTokens, TextError};

/// Most instructions of one rendering: seconds, where a conversation takes thousands per message. A template with nested
/// loops would otherwise run for years.
const FUEL: u64 = 50_000_000;
const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";
/// Names of the field with a message's reasoning, in datasets and in templates.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// A compiled chat template. Cheap to clone.
#[derive(Clone)]
pub struct ChatTemplate {
    environment: Arc<Environment<'static>>,
    names: Vec<String>,
    special: SpecialTokens,
    /// Variables of every rendering.
    variables: Map<String, Json>,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("names", &self.names).finish_non_exhaustive()
    }
}

/// Inputs of a template other than the messages.
#[derive(Debug, Clone, Default)]
pub struct RenderOptions<'a> {
    /// Appends the header of the assistant's next message.
    pub add_generation_prompt: bool,
    /// Tools that the assistant may call, as JSON schemas.
    pub tools: Option<&'a [Json]>,
    /// Documents for retrieval-augmented generation, each with a `title` and a `text`.
    pub documents: Option<&'a [Json]>,
    /// Further variables, such as `enable_thinking`. They take precedence over the special tokens.
    pub variables: Option<&'a Map<String, Json>>,
    /// Name of the template. By default `tool_use` if there are tools and such a template, else `default`.
    pub template: Option<&'a str>,
    /// Time returned by `strftime_now`. If it is `None`, the function is undefined and templates fall back to a fixed
    /// date, so that prompts do not depend on the day.
    pub now: Option<DateTime>,
}

impl RenderOptions<'_> {
    /// Options for a prompt: the conversation ends with the header of the assistant's message.
    pub fn prompt() -> Self {
        Self { add_generation_prompt: true, ..Self::default() }
    }
}

/// A rendered conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// Byte ranges of the text between `{% generation %}` and `{% endgeneration %}`: the text of the assistant. Empty
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
        let syntax_error =
            |name: &str, error: Error| TextError::TemplateSyntax { name: name.to_owned(), source: error };
        let mut environment = environment().map_err(|error| syntax_error(DEFAULT, error))?;
        let mut names = Vec::new();
        for (name, source) in templates {
            let source = generation::replace_tags(&source);
            let added = environment.add_template_owned(name.clone(), source);
            added.map_err(|error| syntax_error(&name, error))?;
            names.push(name);
        }
        names.sort_unstable();
        names.dedup();
        let variables = Map::new();
        Ok(Self { environment: Arc::new(environment), names, special: special.clone(), variables })
    }

    /// The templates of a folder, if it has any; separate files take precedence over `tokenizer_config.json`.
    pub(crate) fn from_folder(
        folder: &Folder,
        config: &Map<String, Json>,
        special: &SpecialTokens,
    ) -> Result<Option<Self>, TextError> {
        let mut templates = folder.template_files()?;
        if templates.is_empty() {
            let invalid = || folder.invalid(folder::TOKENIZER_CONFIG, FileProblem::ChatTemplate);
            match config.get("chat_template") {
                None | Some(Json::Null) => {}
                Some(Json::String(source)) => templates.push((DEFAULT.to_owned(), source.clone())),
                Some(Json::Array(list)) => {
                    for entry in list {
                        let text = |key: &str| entry.get(key)?.as_str().map(str::to_owned);
                        let named = text("name").zip(text("template"));
                        templates.push(named.ok_or_else(invalid)?);
                    }
                }
                Some(Json::Object(map)) => {
                    for (name, source) in map {
                        templates.push((name.clone(), source.as_str().ok_or_else(invalid)?.to_owned()));
                    }
                }
                Some(_) => return Err(invalid()),
            }
        }
        if templates.is_empty() { Ok(None) } else { Self::named(templates, special).map(Some) }
    }

    /// The names of the templates, sorted; a single one is `default`.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The same templates with variables for every rendering, such as `enable_thinking`. Renderings whose options have no
    /// tools or documents use the lists `tools` and `documents`.
    #[must_use]
    pub fn with_variables(mut self, variables: Map<String, Json>) -> Self {
        self.variables.extend(variables);
        self
    }

    /// True if the source of a template contains a text.
    pub fn mentions(&self, text: &str) -> bool {
        let sources = self.names.iter().filter_map(|name| self.environment.get_template(name).ok());
        sources.into_iter().any(|template| template.source().contains(text))
    }

    /// Renders a conversation to the same text as `transformers`.
    ///
    /// Messages serialise to objects with at least `role` and usually `content`: [`rloom_core::ChatMessage`], or JSON
    /// with tool calls and content parts. As in `transformers`, keys whose value is null are dropped, and a message's
    /// reasoning is available under each of the names that templates use for it.
    ///
    /// # Errors
    ///
    /// A refusal by the template ([`TextError::Refused`]), any other failure to render, and an empty conversation.
    pub fn render<M: Serialize>(
        &self,
        messages: &[M],
        options: &RenderOptions<'_>,
    ) -> Result<String, TextError> {
        self.render_marked(messages, options).map(|rendered| rendered.text)
    }

    /// Like [`render`](Self::render), and also returns the ranges of the assistant's text if the template marks them.
    ///
    /// # Errors
    ///
    /// As for [`render`](Self::render).
    pub fn render_marked<M: Serialize>(
        &self,
        messages: &[M],
        options: &RenderOptions<'_>,
    ) -> Result<Rendered, TextError> {
        if messages.is_empty() {
            return Err(TextError::NoMessages);
        }
        let messages = messages.iter().map(template_message).collect::<Result<Vec<Value>, TextError>>()?;
        let tools = options.tools.or_else(|| self.list("tools"));
        let documents = options.documents.or_else(|| self.list("documents"));
        let name = self.choose(options.template, tools.is_some())?;

        let mut context: Vec<(&str, Value)> =
            self.special.named().map(|(name, text)| (name, Value::from(text))).collect();
        let variables = self.variables.iter().chain(options.variables.into_iter().flatten());
        context.extend(variables.map(|(name, value)| (name.as_str(), Value::from(Serde(value)))));
        context.extend([
            ("messages", Value::from(messages)),
            ("tools", Value::from(Serde(tools))),
            ("documents", Value::from(Serde(documents))),
            ("add_generation_prompt", Value::from(options.add_generation_prompt)),
        ]);
        if let Some(now) = options.now {
            let strftime = move |format: &str| now.format(format);
            context.push(("strftime_now", Value::from_function(strftime)));
        }

        let template = self.environment.get_template(name).map_err(render_error)?;
        let text = template.render(Value::from_pairs(context)).map_err(render_error)?;
        Ok(generation::extract_marks(&text))
    }

    /// A variable of every rendering that is a list.
    fn list(&self, name: &str) -> Option<&[Json]> {
        self.variables.get(name)?.as_array().map(Vec::as_slice)
    }

    fn choose<'a>(&self, template: Option<&'a str>, has_tools: bool) -> Result<&'a str, TextError> {
        let has = |name: &str| self.names.iter().any(|known| known == name);
        let default = if has_tools && has(TOOL_USE) { TOOL_USE } else { DEFAULT };
        let name = template.unwrap_or(default);
        if has(name) {
            return Ok(name);
        }
        Err(TextError::NoDefaultTemplate { names: self.names.clone() })
    }

    /// Renders the text between two turns of the policy: the `new` messages (an observation, the user's next question)
    /// and the header of the next turn.
    ///
    /// `history` ends with the policy's turn, which the model ended by sampling a stop token with the text `turn_end`.
    /// The caller tokenises the result and appends it after that token; earlier text is not tokenised again.
    ///
    /// # Errors
    ///
    /// [`TextError::NotPrefixPreserving`] if the template renders the history differently when messages follow
    /// (Qwen3's, for example, drops the reasoning of earlier turns), and the errors of [`render`](Self::render).
    pub fn next_turn<M: Serialize + Clone>(
        &self,
        history: &[M],
        new: &[M],
        turn_end: &str,
        options: &RenderOptions<'_>,
    ) -> Result<String, TextError> {
        let before =
            self.render(history, &RenderOptions { add_generation_prompt: false, ..options.clone() })?;
        let conversation: Vec<M> = history.iter().chain(new).cloned().collect();
        let after =
            self.render(&conversation, &RenderOptions { add_generation_prompt: true, ..options.clone() })?;
        if !after.starts_with(&before) {
            let position = before.bytes().zip(after.bytes()).take_while(|(a, b)| a == b).count();
            return Err(TextError::NotPrefixPreserving { position });
        }
        // Templates write white space after the token that ends a turn; the model did not sample it.
        let end = before.trim_end();
        let kept = if !turn_end.is_empty() && end.ends_with(turn_end) { end.len() } else { before.len() };
        Ok(after[kept..].to_owned())
    }

    /// True if the rendering of a conversation does not change when messages follow, as [`next_turn`](Self::next_turn)
    /// requires. The probe is an assistant turn with reasoning, since that is what templates drop.
    ///
    /// # Errors
    ///
    /// As for [`render`](Self::render), if the template refuses the probe.
    pub fn is_prefix_preserving(&self, options: &RenderOptions<'_>) -> Result<bool, TextError> {
        let message = |role: &str, text: &str| rloom_core::ChatMessage::new(role, text);
        let history =
            [message("user", "Question?"), message("assistant", "<think>\nReasons.\n</think>\n\nAnswer.")];
        match self.next_turn(&history, &[message("user", "And then?")], "", options) {
            Ok(_) => Ok(true),
            Err(TextError::NotPrefixPreserving { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The Jinja environment in which `transformers` renders chat templates.
fn environment() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_fuel(Some(FUEL));
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(python::call_method);
    environment.add_filter("tojson", tojson::tojson);
    environment.add_function("raise_exception", raise_exception);
    environment.set_formatter(display::write);
    environment.add_filter("string", display::string);
    environment.add_filter("trim", python::trim);
    environment.add_filter("int", python::int);
    environment.add_filter("float", python::float);
    type_tests::add_tests(&mut environment);
    minijinja_contrib::add_to_environment(&mut environment);
    Ok(environment)
}

/// Source of the errors of `raise_exception`; distinguishes a refusal from a defect of the template.
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

fn render_error(error: Error) -> TextError {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(current) = source {
        if let Some(refusal) = current.downcast_ref::<Refusal>() {
            return TextError::Refused { message: refusal.0.clone() };
        }
        source = current.source();
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return TextError::EndlessTemplate { instructions: FUEL };
    }
    TextError::Render { source: error }
}

/// A message in the form that templates see.
fn template_message<M: Serialize>(message: &M) -> Result<Value, TextError> {
    let mut fields = match serde_json::to_value(message) {
        Ok(Json::Object(fields)) => fields,
        Ok(message) => return Err(TextError::MessageNotAnObject { message: Box::new(message) }),
        Err(source) => return Err(TextError::Message { source }),
    };
    fields.retain(|_, value| !value.is_null());
    let reasoning = REASONING.iter().find_map(|name| fields.get(*name)).cloned();
    if let Some(reasoning) = reasoning {
        fields.entry("thinking").or_insert_with(|| reasoning.clone());
        fields.insert("reasoning_content".to_owned(), reasoning);
    }
    Ok(Value::from(Serde(fields)))
}
