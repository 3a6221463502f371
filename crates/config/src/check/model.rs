//! `[model]` and `[tokenizer]`.

use std::collections::BTreeSet;

use rloom_data::DataSettings;
use rloom_model::{ConfigError, Dtype, NewModel, NumericPath};
use rloom_text::CharacterSettings;

use super::values::{at_table, invalid, out_of_range};
use crate::compose::Draft;
use crate::keys::ModelKeys;
use crate::problem::{Code, Problem};
use crate::section::Section;
use crate::settings::ModelSource;

/// Padding and end tokens, which precede the characters.
const SPECIAL_TOKENS: usize = 2;

pub(super) fn check(draft: &Draft, problems: &mut Vec<Problem>) -> Option<ModelSource> {
    let section = &draft.model;
    check_numeric_path(section, problems);
    match (&section.value.path, &section.value.new) {
        (Some(path), None) => {
            if let Some(tokenizer) = &draft.tokenizer {
                problems.push(
                    Problem::new(Code::Unread, "nothing reads `tokenizer`")
                        .at(tokenizer.node.origin, "describes a new tokenizer")
                        .at(section.origin_or_table("path"), "has a tokenizer"),
                );
            }
            if path.is_empty() {
                problems.push(out_of_range(section, "path", "empty", "a folder or a name on the hub"));
            }
            Some(ModelSource::Path(path.clone()))
        }
        (None, Some(new)) => {
            let tokenizer = tokenizer(draft, problems)?;
            check_new(section, new, &tokenizer, problems);
            check_length(draft, new, problems);
            Some(ModelSource::New { model: new.clone(), tokenizer })
        }
        (Some(_), Some(_)) => {
            problems.push(
                Problem::new(Code::Conflict, "`model.path` and `model.new` are both set")
                    .at(section.origin_or_table("path"), "an existing model")
                    .at(section.origin_or_table("new"), "a new model")
                    .hint("remove one of the two"),
            );
            None
        }
        (None, None) => {
            problems.push(
                Problem::new(Code::MissingKey, "no model is set").at(section.node.origin, "").hint(
                    "set `model.path` to a folder or a hub id, or describe a new model in `[model.new]`",
                ),
            );
            None
        }
    }
}

/// f32 products are summed in one order.
fn check_numeric_path(section: &Section<ModelKeys>, problems: &mut Vec<Problem>) {
    let ModelKeys { dtype, numeric_path, .. } = section.value;
    if dtype == Dtype::F32 && numeric_path != NumericPath::Auto {
        problems.push(
            Problem::new(Code::Unread, "nothing reads `model.numeric_path`")
                .at(section.origin_or_table("numeric_path"), "of bf16 products")
                .at(section.origin_or_table("dtype"), "products are in f32")
                .hint("remove it, or set `model.dtype = \"bf16\"`"),
        );
    }
}

/// The data of all stages and of evaluation.
fn all_data(draft: &Draft) -> impl Iterator<Item = &Section<DataSettings>> {
    draft.stages.iter().map(|s| &s.data).chain(draft.eval.iter().map(|e| &e.data))
}

fn tokenizer(draft: &Draft, problems: &mut Vec<Problem>) -> Option<CharacterSettings> {
    let keys = draft.tokenizer.as_ref().map(|t| t.value.clone()).unwrap_or_default();
    let mut needed = BTreeSet::new();
    for set in draft.eval.iter().flat_map(|eval| &eval.keys.value.sets) {
        needed.extend(set.data.alphabet().into_iter().flat_map(|text| text.chars().collect::<Vec<_>>()));
    }
    let before = problems.len();
    for data in all_data(draft) {
        match data.value.alphabet() {
            Some(alphabet) => needed.extend(alphabet.chars()),
            None if keys.alphabet.is_none() => problems.push(
                Problem::new(Code::MissingKey, "a new tokenizer needs an alphabet")
                    .at(data.origin_or_table("path"), "files may contain any character")
                    .at(draft.model.origin_or_table("new"), "a new model has a new tokenizer")
                    .hint("list the characters of the files in `tokenizer.alphabet`"),
            ),
            None => {}
        }
        if data.value.parts().any(|part| part.prompt_format.is_conversation()) && keys.chat_template.is_none()
        {
            let key = if data.is_set("chat") { "chat" } else { "system" };
            problems.push(
                Problem::new(
                    Code::Conflict,
                    "conversations need a chat template, but the new tokenizer has none",
                )
                .at(data.origin_or_table(key), "turns each prompt into a conversation")
                .hint("set `tokenizer.chat_template`"),
            );
        }
    }
    let environments = draft.stages.iter().map(|s| &s.environment);
    for environment in environments.chain(draft.eval.iter().map(|e| &e.environment)) {
        needed.extend(environment.value.alphabet().chars());
    }
    if problems.len() > before {
        return None;
    }
    let alphabet = match (keys.alphabet, &draft.tokenizer) {
        (Some(alphabet), Some(section)) => {
            let has_default = all_data(draft).all(|data| data.value.alphabet().is_some());
            check_alphabet(&alphabet, &needed, has_default, section, problems);
            alphabet
        }
        _ => needed.into_iter().collect(),
    };
    Some(CharacterSettings { alphabet, bos: keys.bos, chat_template: keys.chat_template })
}

fn check_alphabet<T>(
    alphabet: &str,
    needed: &BTreeSet<char>,
    has_default: bool,
    section: &Section<T>,
    problems: &mut Vec<Problem>,
) {
    let mut seen = BTreeSet::new();
    if let Some(twice) = alphabet.chars().find(|c| !seen.insert(*c)) {
        problems.push(invalid(section, "alphabet", format!("`tokenizer.alphabet` contains {twice:?} twice")));
    }
    let missing: String = needed.difference(&seen).collect();
    if !missing.is_empty() {
        problems.push(
            Problem::new(
                Code::Conflict,
                format!(
                    "`tokenizer.alphabet` lacks {missing:?}, which occur in prompts, answers or observations"
                ),
            )
            .at(section.origin_or_table("alphabet"), "")
            .hint(if has_default {
                "add them, or remove `tokenizer.alphabet`: the default is the characters of the data"
            } else {
                "add them to `tokenizer.alphabet`"
            }),
        );
    }
}

fn check_new<T>(
    section: &Section<T>,
    new: &NewModel,
    tokenizer: &CharacterSettings,
    problems: &mut Vec<Problem>,
) {
    let heads = section.origin("new.heads");
    if let Some(kv_heads) = new.kv_heads
        && kv_heads > 0
        && !new.heads.is_multiple_of(kv_heads)
    {
        let fitting: Vec<String> =
            (1..=new.heads).filter(|k| new.heads.is_multiple_of(*k)).map(|k| k.to_string()).collect();
        problems.push(
            Problem::new(Code::Conflict, "`model.new.kv_heads` does not divide `model.new.heads`")
                .at(section.origin_or_table("new.kv_heads"), format!("{kv_heads} key and value heads"))
                .at_if_set(heads, format!("{} query heads, evenly divided among them", new.heads))
                .hint(format!("set `model.new.kv_heads` to one of {}", fitting.join(", "))),
        );
        return;
    }
    if new.head_dim.is_none() && new.heads > 0 && !new.hidden_size.is_multiple_of(new.heads) {
        problems.push(
            Problem::new(Code::Conflict, "`model.new.heads` does not divide `model.new.hidden_size`")
                .at_if_set(heads, format!("{} heads", new.heads))
                .at_if_set(section.origin("new.hidden_size"), format!("a width of {}", new.hidden_size))
                .hint("change one of the two, or set `model.new.head_dim`"),
        );
        return;
    }
    if let Err(error) =
        new.config(tokenizer.alphabet.chars().count() + SPECIAL_TOKENS + usize::from(tokenizer.bos))
    {
        let node = section.node.as_table().and_then(|t| t.get("new")).unwrap_or(&section.node).clone();
        let table = Section { value: (), node, layers: Vec::new(), path: "model.new".to_owned() };
        problems.push(match error {
            ConfigError::Inconsistent { problem, .. } => at_table(&table, &problem),
            other => at_table(&table, &other),
        });
    }
}

/// Prompt and completion have to fit the context.
fn check_length(draft: &Draft, new: &NewModel, problems: &mut Vec<Problem>) {
    let stages = draft.stages.iter().filter_map(|s| Some(&s.rollout.as_ref()?.sampling));
    for sampling in stages.chain(draft.eval.iter().map(|e| &e.sampling)) {
        let wanted = sampling.value.max_new_tokens;
        if wanted >= new.max_positions {
            problems.push(
                Problem::new(Code::Conflict, "the longest completion leaves no room for its prompt")
                    .at(sampling.origin_or_table("max_new_tokens"), format!("up to {wanted} new tokens"))
                    .at_if_set(
                        draft.model.origin("new.max_positions"),
                        format!("{} positions for prompt and completion", new.max_positions),
                    )
                    .hint(format!(
                        "lower `{}`, or raise `model.new.max_positions`: prompt and completion share the positions",
                        sampling.name("max_new_tokens")
                    )),
            );
        }
    }
}
