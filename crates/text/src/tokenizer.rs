use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};
use tokenizers::AddedToken;

use crate::folder::{self, Folder};
use crate::{CharacterSettings, ChatTemplate, FileProblem, SpecialTokens, TextError};

/// A tokenizer, as a Hugging Face folder defines it. Cheap to clone.
#[derive(Clone)]
pub struct Tokenizer {
    shared: Arc<Shared>,
    template: Option<ChatTemplate>,
}

struct Shared {
    inner: tokenizers::Tokenizer,
    folder: Folder,
    special: SpecialTokens,
    bos: Option<u32>,
    eos: Option<u32>,
    pad: Option<u32>,
    stop: Vec<u32>,
    vocab_size: usize,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("special", self.special_tokens())
            .field("eos_ids", &self.eos_ids())
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Loads a tokenizer from a Hugging Face folder: `tokenizer.json`, `tokenizer_config.json`,
    /// `special_tokens_map.json`, the chat templates, and the end-of-text ids of `generation_config.json` or
    /// `config.json`.
    ///
    /// # Errors
    ///
    /// A missing `tokenizer.json`, an invalid file, and a chat template that does not parse; each error names the file.
    pub fn load(dir: &Path) -> Result<Self, TextError> {
        let folder = Folder::read(dir)?;
        let declared = declared_stop_ids(dir)?;
        Self::from_folder(folder, &declared)
    }

    /// Creates a tokenizer with one token per character of an alphabet.
    ///
    /// The settings determine the token ids: the padding token is 0, the end-of-text token 1, the beginning-of-text
    /// token 2 if there is one, followed by the alphabet in its order. A character outside the alphabet is an error, not
    /// an unknown token. The folder that [`save`](Self::save) writes opens in `transformers` as a
    /// `PreTrainedTokenizerFast` with the same ids.
    ///
    /// # Errors
    ///
    /// An empty alphabet, a character that occurs twice, or a chat template that does not parse.
    pub fn characters(settings: &CharacterSettings) -> Result<Self, TextError> {
        Self::from_folder(Folder::in_memory(settings.files()?), &[])
    }

    pub(crate) fn from_folder(folder: Folder, declared_stop: &[u32]) -> Result<Self, TextError> {
        let invalid = |error| folder.invalid(folder::TOKENIZER, FileProblem::Tokenizer(error));
        let bytes = folder.bytes(folder::TOKENIZER).unwrap_or_default();
        let mut inner = parsed(bytes).map_err(invalid)?;
        // Some folders store the truncation and padding of an earlier use; prompts are never truncated or padded.
        inner.with_truncation(None).map_err(invalid)?;
        inner.with_padding(None);

        let config = folder.object(folder::TOKENIZER_CONFIG)?.unwrap_or_default();
        let legacy_map = folder.object(folder::SPECIAL_TOKENS_MAP)?;
        let special = SpecialTokens::from_config(&config, legacy_map.as_ref());
        add_declared_tokens(&mut inner, &config, &special)
            .map_err(|problem| folder.invalid(folder::TOKENIZER_CONFIG, problem))?;

        let id = |text: &Option<String>| text.as_deref().and_then(|text| inner.token_to_id(text));
        let (bos, eos, pad) = (id(&special.bos), id(&special.eos), id(&special.pad));
        let mut stop: Vec<u32> = eos.into_iter().chain(declared_stop.iter().copied()).collect();
        stop.sort_unstable();
        stop.dedup();
        let vocab_size = inner.get_vocab(true).into_values().max().map_or(0, |highest| highest as usize + 1);
        let template = ChatTemplate::from_folder(&folder, &config, &special)?;
        Ok(Self {
            shared: Arc::new(Shared { inner, folder, special, bos, eos, pad, stop, vocab_size }),
            template,
        })
    }

    /// Writes the tokenizer's files to `dir`, byte for byte as loaded or created. Creates `dir` if it does not exist.
    ///
    /// # Errors
    ///
    /// [`TextError::Write`] for the first file that cannot be written.
    pub fn save(&self, dir: &Path) -> Result<(), TextError> {
        self.shared.folder.write(dir)
    }

    /// Token ids of a text.
    ///
    /// The text of a special token becomes its id. `add_special` adds the tokens that the tokenizer places around a text
    /// (often a beginning-of-text token); pass `false` for a rendered conversation, which already contains them.
    ///
    /// # Errors
    ///
    /// A character without a token, if the tokenizer has no unknown token.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TextError> {
        match self.shared.inner.encode_fast(text, add_special) {
            Ok(encoding) => Ok(encoding.get_ids().to_vec()),
            Err(error) => Err(self.unknown_character(text).unwrap_or(TextError::Encode(error))),
        }
    }

    /// Length in bytes of the start of a text that has at most `limit` tokens, cut between two of them.
    ///
    /// # Errors
    ///
    /// As for [`encode`](Self::encode).
    pub fn prefix_within(&self, text: &str, limit: usize) -> Result<usize, TextError> {
        let encoding = match self.shared.inner.encode(text, false) {
            Ok(encoding) => encoding,
            Err(error) => return Err(self.unknown_character(text).unwrap_or(TextError::Encode(error))),
        };
        if encoding.len() <= limit {
            return Ok(text.len());
        }
        // The start alone can be divided into other tokens, of which it then has too many.
        for (_, end) in encoding.get_offsets()[..limit].iter().rev() {
            let end = text.floor_char_boundary(*end);
            if self.encode(&text[..end], false)?.len() <= limit {
                return Ok(end);
            }
        }
        Ok(0)
    }

    /// The first character that cannot be encoded.
    fn unknown_character(&self, text: &str) -> Option<TextError> {
        let mut buffer = [0; 4];
        text.chars().enumerate().find_map(|(position, character)| {
            let alone: &str = character.encode_utf8(&mut buffer);
            let failed = self.shared.inner.encode_fast(alone, false).is_err();
            failed.then_some(TextError::UnknownCharacter { character, position })
        })
    }

    /// The text of token ids; `skip_special` omits special tokens.
    ///
    /// Ids beyond the vocabulary (models often have spare rows) have no text. Bytes that are not UTF-8 become U+FFFD.
    /// Spaces around punctuation are kept, regardless of `clean_up_tokenization_spaces`.
    ///
    /// # Errors
    ///
    /// [`TextError::Decode`].
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, TextError> {
        self.shared.inner.decode(ids, skip_special).map_err(TextError::Decode)
    }

    /// The highest token id plus one, added tokens included: the minimum number of rows of a model's embedding.
    pub fn vocab_size(&self) -> usize {
        self.shared.vocab_size
    }

    /// The special tokens, as text.
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.shared.special
    }

    /// The beginning-of-text token.
    pub fn bos_id(&self) -> Option<u32> {
        self.shared.bos
    }

    /// The end-of-text token of the tokenizer's configuration. Generation ends at any of [`eos_ids`](Self::eos_ids).
    pub fn eos_id(&self) -> Option<u32> {
        self.shared.eos
    }

    /// The padding token.
    pub fn pad_id(&self) -> Option<u32> {
        self.shared.pad
    }

    /// Every token that ends a completion, ascending: the end-of-text token, and those of `generation_config.json` (or
    /// of `config.json`, if there is no generation configuration).
    pub fn eos_ids(&self) -> &[u32] {
        &self.shared.stop
    }

    /// The id of a token, given its vocabulary entry.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.shared.inner.token_to_id(token)
    }

    /// The vocabulary entry of a token (not its decoded text); `None` beyond the vocabulary.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.shared.inner.id_to_token(id)
    }

    /// True for a token that [`decode`](Self::decode) omits with `skip_special`.
    pub fn is_special(&self, id: u32) -> bool {
        self.shared
            .inner
            .get_added_vocabulary()
            .get_added_tokens_decoder()
            .get(&id)
            .is_some_and(|token| token.special)
    }

    /// The chat template, if the folder has one.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    /// The same tokenizer, whose chat template receives these variables in every rendering.
    #[must_use]
    pub fn with_template_variables(mut self, variables: &Map<String, Value>) -> Self {
        self.template = self.template.map(|template| template.with_variables(variables.clone()));
        self
    }

    /// A text of others in which nothing becomes a token of its own, such as the end of a turn: a space is inserted after the
    /// first character of every added token's text.
    pub fn defused(&self, text: &str) -> String {
        let mut text = text.to_owned();
        let added = self.shared.inner.get_added_tokens_decoder();
        let mut contents: Vec<&str> = added.values().map(|token| token.content.as_str()).collect();
        // Longer ones first: a token can be part of another.
        contents.sort_unstable_by_key(|content| (std::cmp::Reverse(content.len()), *content));
        for content in contents {
            let mut characters = content.chars();
            let Some(first) = characters.next() else { continue };
            // Tokens for a single character or for white space are ordinary text.
            if content.trim().chars().count() > 1 && text.contains(content) {
                text = text.replace(content, &format!("{first} {}", characters.as_str()));
            }
        }
        text
    }

    /// The chat template, or an error.
    ///
    /// # Errors
    ///
    /// [`TextError::NoChatTemplate`].
    pub fn require_chat_template(&self) -> Result<&ChatTemplate, TextError> {
        self.chat_template().ok_or(TextError::NoChatTemplate)
    }
}

/// Adds the tokens that only `tokenizer_config.json` declares, in the order of their ids.
fn add_declared_tokens(
    inner: &mut tokenizers::Tokenizer,
    config: &Map<String, Value>,
    special: &SpecialTokens,
) -> Result<(), FileProblem> {
    let mut declared = Vec::new();
    for (id, token) in config.get("added_tokens_decoder").and_then(Value::as_object).into_iter().flatten() {
        let not_a_token = || FileProblem::NotAToken { id: id.clone(), entry: token.clone() };
        let id: u32 = id.parse().map_err(|_| not_a_token())?;
        let content = token.get("content").and_then(Value::as_str).ok_or_else(not_a_token)?;
        let flag = |name: &str| token.get(name).and_then(Value::as_bool);
        let is_special = flag("special").unwrap_or(false);
        let added = AddedToken::from(content, is_special)
            .single_word(flag("single_word").unwrap_or(false))
            .lstrip(flag("lstrip").unwrap_or(false))
            .rstrip(flag("rstrip").unwrap_or(false))
            .normalized(flag("normalized").unwrap_or(!is_special));
        declared.push((id, added));
    }
    declared.sort_by_key(|(id, _)| *id);
    for (id, token) in declared {
        let content = token.content.clone();
        if !inner.get_added_tokens_decoder().values().any(|known| known.content == content) {
            inner.add_tokens([token]).map_err(FileProblem::Tokenizer)?;
        }
        let found = inner.token_to_id(&content);
        if found != Some(id) {
            return Err(FileProblem::TokenId { token: content, declared: id, found });
        }
    }
    for (_, text) in special.named() {
        if !inner.get_added_tokens_decoder().values().any(|known| known.content == text) {
            inner.add_special_tokens([AddedToken::from(text, true)]).map_err(FileProblem::Tokenizer)?;
        }
    }
    Ok(())
}

/// Parses `tokenizer.json`. The library panics on some files that are damaged; that is an error here.
fn parsed(bytes: &[u8]) -> Result<tokenizers::Tokenizer, tokenizers::Error> {
    std::panic::catch_unwind(|| tokenizers::Tokenizer::from_bytes(bytes))
        .unwrap_or_else(|_| Err("the file is damaged: the tokenizers library panicked".into()))
}

/// The end-of-text ids of `generation_config.json`, or of `config.json` if that has none.
fn declared_stop_ids(dir: &Path) -> Result<Vec<u32>, TextError> {
    for name in ["generation_config.json", "config.json"] {
        let path = dir.join(name);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(source) => return Err(TextError::Read { path, source }),
        };
        let invalid =
            |source| TextError::InvalidFile { path: path.clone(), source: Box::<FileProblem>::new(source) };
        let config: Value = serde_json::from_slice(&bytes).map_err(|error| invalid(error.into()))?;
        let ids = match config.get("eos_token_id") {
            None | Some(Value::Null) => continue,
            Some(Value::Array(ids)) => ids.clone(),
            Some(id) => vec![id.clone()],
        };
        return ids
            .iter()
            .map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()))
            .collect::<Option<Vec<u32>>>()
            .ok_or_else(|| invalid(FileProblem::EosTokenId));
    }
    Ok(Vec::new())
}
