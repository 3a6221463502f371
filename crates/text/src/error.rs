use std::path::PathBuf;

/// A failure of a tokenizer or a chat template.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
pub enum TextError {
    /// A folder without a required file.
    #[error("{} is missing", path.display())]
    #[diagnostic(help("{hint}"))]
    MissingFile {
        /// The file.
        path: PathBuf,
        /// Advice that depends on what the folder contains.
        hint: MissingFileHint,
    },
    /// A file that cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A file that cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A file with invalid content.
    #[error("{} is invalid: {source}", path.display())]
    #[diagnostic(help("the file may be incomplete; download or copy it again"))]
    InvalidFile {
        /// The file.
        path: PathBuf,
        /// The defect, with line and column if known.
        source: Box<FileProblem>,
    },
    /// A character without a token.
    #[error(
        "the tokenizer has no token for {character:?} (U+{:04X}) at position {position} of the text",
        u32::from(*character)
    )]
    #[diagnostic(help("add the character to the alphabet, or remove it from the text"))]
    UnknownCharacter {
        /// The character.
        character: char,
        /// Its position in the text, counted in characters from 0.
        position: usize,
    },
    /// A text that the tokenizer refused for another reason.
    #[error("the text cannot be tokenised: {0}")]
    Encode(#[source] tokenizers::Error),
    /// Token ids that the tokenizer refused.
    #[error("the tokens cannot be decoded: {0}")]
    Decode(#[source] tokenizers::Error),
    /// An alphabet without characters.
    #[error("the alphabet is empty")]
    #[diagnostic(help("list the characters of the texts"))]
    EmptyAlphabet,
    /// An alphabet with a repeated character.
    #[error("the alphabet contains {character:?} more than once")]
    #[diagnostic(help("list each character once"))]
    RepeatedCharacter {
        /// The character.
        character: char,
    },
    /// Messages to render without a chat template.
    #[error("the tokenizer has no chat template, so messages cannot be rendered")]
    #[diagnostic(help(
        "use a model folder with chat_template.jinja (or `chat_template` in tokenizer_config.json), set \
         `tokenizer.chat_template` for a new model, or use plain text prompts"
    ))]
    NoChatTemplate,
    /// Several named templates without a default.
    #[error("none of the chat templates is named `default`; available: {}", quoted(names))]
    NoDefaultTemplate {
        /// The names, sorted.
        names: Vec<String>,
    },
    /// A chat template that is not valid Jinja.
    #[error("chat template `{name}`, line {}: {}", source.line().unwrap_or(1), described(source))]
    TemplateSyntax {
        /// Name of the template (`default` for the only one).
        name: String,
        /// The parser's error.
        source: minijinja::Error,
    },
    /// A conversation that the template refused with `raise_exception`.
    #[error("the chat template refuses this conversation: {message}")]
    Refused {
        /// The message of the template.
        message: String,
    },
    /// A template that failed to render.
    #[error(
        "the chat template cannot render this conversation: {}{}",
        described(source),
        template_line(source)
    )]
    Render {
        /// The renderer's error.
        source: minijinja::Error,
    },
    /// A template that does not end.
    #[error("the chat template does not end: it was stopped after {instructions} instructions")]
    #[diagnostic(help("its loops are nested or too long; use the template of another folder of this model"))]
    EndlessTemplate {
        /// Number of instructions executed.
        instructions: u64,
    },
    /// A message that does not serialise to an object.
    #[error("the chat template cannot render this conversation: a message is not an object: {message}")]
    MessageNotAnObject {
        /// The message, as JSON.
        message: Box<serde_json::Value>,
    },
    /// A message that does not serialise.
    #[error("the chat template cannot render this conversation: a message cannot be serialised: {source}")]
    Message {
        /// The serialiser's error.
        source: serde_json::Error,
    },
    /// A conversation without messages.
    #[error("a conversation needs at least one message")]
    NoMessages,
    /// A template that changes earlier turns when messages follow.
    #[error(
        "the chat template renders earlier turns differently when another turn follows (from byte {position} on), so \
         the next turn cannot be appended to the existing tokens"
    )]
    #[diagnostic(help("train with a template that leaves earlier turns unchanged"))]
    NotPrefixPreserving {
        /// The first byte at which the two renderings differ.
        position: usize,
    },
    /// A template whose text of the assistant cannot be found.
    #[error(
        "the text of the assistant cannot be found: the chat template has no {{% generation %}} blocks, and renders message \
         {message} differently when others follow (from byte {position} on); use a template with these blocks, or \
         `loss_on = \"completion\"`"
    )]
    TurnsNotSeparable {
        /// Number of the message, counted from 1.
        message: usize,
        /// The first byte at which the two renderings differ.
        position: usize,
    },
    /// An empty stop string, which would match everywhere.
    #[error("a stop string is empty")]
    #[diagnostic(help("remove it"))]
    EmptyStopString,
}

/// A defect of a tokenizer's file.
#[derive(Debug, thiserror::Error)]
pub enum FileProblem {
    /// Not JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// JSON, but not an object.
    #[error("it is not a JSON object")]
    NotAnObject,
    /// Not UTF-8.
    #[error(transparent)]
    NotUtf8(#[from] std::str::Utf8Error),
    /// A tokenizer that the tokenizer library refuses.
    #[error("{0}")]
    Tokenizer(#[source] tokenizers::Error),
    /// An entry of `added_tokens_decoder` that does not describe a token.
    #[error("entry {id:?} of `added_tokens_decoder` is not a token: {entry}")]
    NotAToken {
        /// Key of the entry.
        id: String,
        /// Its value.
        entry: serde_json::Value,
    },
    /// A token with different ids in two files.
    #[error(
        "`added_tokens_decoder` assigns id {declared} to {token:?}, but tokenizer.json assigns {}",
        found.map_or_else(|| "none".to_owned(), |id| id.to_string())
    )]
    TokenId {
        /// The token.
        token: String,
        /// Its id in `tokenizer_config.json`.
        declared: u32,
        /// Its id in `tokenizer.json`.
        found: Option<u32>,
    },
    /// An `eos_token_id` of the wrong type.
    #[error("`eos_token_id` must be a token id or a list of token ids")]
    EosTokenId,
    /// A `chat_template` of the wrong type.
    #[error("`chat_template` must be a template or a list of named templates")]
    ChatTemplate,
}

/// Advice on a missing `tokenizer.json`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MissingFileHint {
    /// The folder does not exist.
    #[error("the folder {} does not exist", path.display())]
    NoFolder {
        /// The folder.
        path: PathBuf,
    },
    /// The folder has a tokenizer in another format.
    #[error(
        "the folder only has {file} ({format}); in Python, \
         `AutoTokenizer.from_pretrained(folder).save_pretrained(folder)` of transformers writes tokenizer.json"
    )]
    OtherFormat {
        /// Name of the file.
        file: &'static str,
        /// Its format.
        format: &'static str,
    },
    /// The folder has no known tokenizer file.
    #[error("a model folder needs the tokenizer.json that `transformers` saves with the weights")]
    NoTokenizer,
}

/// The message of a template error without its location.
fn described(error: &minijinja::Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

fn template_line(error: &minijinja::Error) -> String {
    error.line().map(|line| format!(" (line {line} of the template)")).unwrap_or_default()
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
