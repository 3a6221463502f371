use std::path::PathBuf;

/// What can go wrong where text meets tokens.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A folder lacks a file that cannot be done without.
    #[error("{} is missing\nhint: {hint}", path.display())]
    MissingFile {
        /// The file.
        path: PathBuf,
        /// What to do about it.
        hint: String,
    },
    /// A file is there and cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file does not hold what its name promises.
    #[error("{} cannot be used: {reason}\nhint: {hint}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong, with line and column where they are known.
        reason: String,
        /// What to do about it.
        hint: &'static str,
    },
    /// A text has a character for which the tokenizer has no token.
    #[error(
        "the tokenizer has no token for {character:?} (U+{:04X}), character {position} of the text\n\
         hint: add it to the alphabet, or take it out of the text",
        u32::from(*character)
    )]
    UnknownCharacter {
        /// The character.
        character: char,
        /// Its place in the text, counted in characters from 0.
        position: usize,
    },
    /// The tokenizer refused a text for another reason.
    #[error("the text cannot be tokenised: {0}")]
    Encode(String),
    /// The tokenizer refused token ids.
    #[error("the tokens cannot be decoded: {0}")]
    Decode(String),
    /// An alphabet from which no tokenizer can be made.
    #[error("no tokenizer can be made of this alphabet: {reason}\nhint: {hint}")]
    Alphabet {
        /// What is wrong with it.
        reason: String,
        /// What to do about it.
        hint: &'static str,
    },
    /// Messages are to be rendered and there is no chat template.
    #[error(
        "this tokenizer has no chat template, so messages cannot be turned into a prompt\n\
         hint: use a model folder with chat_template.jinja (or `chat_template` in tokenizer_config.json), or tasks \
         with a plain text prompt"
    )]
    NoChatTemplate,
    /// There are several named templates and none is the default.
    #[error("there are several chat templates and none is named `default`; they are {names}")]
    NoDefaultTemplate {
        /// The names, sorted.
        names: String,
    },
    /// A chat template is not valid Jinja.
    #[error("chat template `{name}`, line {line}: {reason}")]
    TemplateSyntax {
        /// The template's name (`default` for the only one).
        name: String,
        /// Line, from 1.
        line: usize,
        /// What the parser says.
        reason: String,
    },
    /// The template itself refused the conversation with `raise_exception`.
    #[error("the chat template refuses this conversation: {message}")]
    Refused {
        /// The template's own words.
        message: String,
    },
    /// Rendering failed.
    #[error("the chat template cannot render this conversation: {reason}")]
    Render {
        /// What went wrong, and on which line of the template.
        reason: String,
    },
    /// A conversation without messages.
    #[error("a conversation needs at least one message")]
    NoMessages,
    /// Adding messages changes how the earlier ones are rendered.
    #[error(
        "the chat template renders the earlier turns differently once a turn follows (from byte {position} on), so \
         the next turn cannot be appended to the tokens that are there\n\
         hint: use a template that keeps earlier turns as they were, for training"
    )]
    NotPrefixPreserving {
        /// The first byte at which the two renderings differ.
        position: usize,
    },
    /// An empty stop string would match everywhere.
    #[error("a stop string is empty\nhint: leave it out")]
    EmptyStopString,
}
