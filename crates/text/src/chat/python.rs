//! String methods and filters with Python's arguments and results.
//!
//! Other methods, and those of lists and mappings, are left to minijinja's Python compatibility.

use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

pub(super) fn call_method(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if value.kind() == ValueKind::String
        && let Some(text) = value.as_str()
        && let Some(result) = string_method(text, method, args)
    {
        return result;
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
}

/// The `trim` filter.
pub(super) fn trim(value: &Value, characters: Option<Value>) -> Result<Value, Error> {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let args: Vec<Value> = characters.into_iter().collect();
    strip(&text, &args, true, true)
}

/// The `int` filter; values that are not numbers become the default.
pub(super) fn int(value: &Value, default: Option<Value>) -> Value {
    if let Ok(whole) = i64::try_from(value.clone()) {
        return Value::from(whole);
    }
    let text = value.as_str().map(str::trim);
    if let Some(whole) = text.and_then(|text| text.parse::<i64>().ok()) {
        return Value::from(whole);
    }
    let number = number(value).filter(|number| number.is_finite());
    number.map_or_else(|| default.unwrap_or(Value::from(0)), |number| Value::from(number as i64))
}

/// The `float` filter; values that are not numbers become the default.
pub(super) fn float(value: &Value, default: Option<Value>) -> Value {
    number(value).map_or_else(|| default.unwrap_or(Value::from(0.0)), Value::from)
}

fn number(value: &Value) -> Option<f64> {
    match value.kind() {
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => f64::try_from(value.clone()).ok(),
        ValueKind::String => value.as_str()?.trim().parse().ok(),
        _ => None,
    }
}

fn string_method(text: &str, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    Some(match method {
        "strip" => strip(text, args, true, true),
        "lstrip" => strip(text, args, true, false),
        "rstrip" => strip(text, args, false, true),
        "split" => split(text, args, false),
        "rsplit" => split(text, args, true),
        "partition" => partition(text, args, false),
        "rpartition" => partition(text, args, true),
        "splitlines" => splitlines(text, args),
        "removeprefix" => {
            string_argument(args).map(|prefix| Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            string_argument(args).map(|suffix| Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "title" => no_arguments(args).map(|()| Value::from(title(text))),
        "swapcase" => no_arguments(args).map(|()| Value::from(swapcase(text))),
        "casefold" => no_arguments(args).map(|()| Value::from(text.to_lowercase().replace('ß', "ss"))),
        "zfill" => from_args::<(usize,)>(args).map(|(width,)| Value::from(zfill(text, width))),
        "ljust" => justify(text, args, |missing| (0, missing)),
        "rjust" => justify(text, args, |missing| (missing, 0)),
        "index" => string_argument(args).and_then(|part| match text.find(part) {
            Some(at) => Ok(Value::from(text[..at].chars().count())),
            None => Err(Error::new(ErrorKind::InvalidOperation, "index: substring not found")),
        }),
        _ => return None,
    })
}

fn no_arguments(args: &[Value]) -> Result<(), Error> {
    from_args::<()>(args)
}

fn string_argument(args: &[Value]) -> Result<&str, Error> {
    from_args::<(&str,)>(args).map(|(text,)| text)
}

/// White space for `str.strip` and `str.split`: that of Unicode, and the four separators of ASCII.
fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

fn strip(text: &str, args: &[Value], start: bool, end: bool) -> Result<Value, Error> {
    let (characters,): (Option<&str>,) = from_args(args)?;
    let matches = |c: char| characters.map_or_else(|| is_space(c), |characters| characters.contains(c));
    let text = if start { text.trim_start_matches(matches) } else { text };
    Ok(Value::from(if end { text.trim_end_matches(matches) } else { text }))
}

fn split(text: &str, args: &[Value], from_right: bool) -> Result<Value, Error> {
    let (separator, limit, kwargs): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = match separator {
        Some(separator) => Some(separator),
        None => kwargs.get::<Option<Value>>("sep")?,
    };
    let limit = match limit {
        Some(limit) => Some(limit),
        None => kwargs.get::<Option<i64>>("maxsplit")?,
    };
    kwargs.assert_all_used()?;
    let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    let separator = separator.filter(|separator| !separator.is_none());
    let pieces: Vec<&str> = match &separator {
        None => split_spaces(text, limit, from_right),
        Some(separator) => {
            let separator =
                separator.as_str().filter(|separator| !separator.is_empty()).ok_or_else(|| {
                    Error::new(ErrorKind::InvalidOperation, "split: the separator must be a non-empty string")
                })?;
            let pieces = limit.saturating_add(1);
            if from_right {
                let mut pieces: Vec<&str> = text.rsplitn(pieces, separator).collect();
                pieces.reverse();
                pieces
            } else {
                text.splitn(pieces, separator).collect()
            }
        }
    };
    Ok(pieces.into_iter().map(Value::from).collect())
}

/// Splits at runs of white space and trims the ends; after `limit` splits the remaining text is one piece.
fn split_spaces(text: &str, limit: usize, from_right: bool) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest =
        if from_right { text.trim_end_matches(is_space) } else { text.trim_start_matches(is_space) };
    while !rest.is_empty() {
        if pieces.len() == limit {
            pieces.push(rest);
            break;
        }
        let cut = if from_right {
            rest.char_indices().rfind(|(_, c)| is_space(*c)).map(|(at, c)| at + c.len_utf8())
        } else {
            rest.find(is_space)
        };
        let Some(cut) = cut else {
            pieces.push(rest);
            break;
        };
        let (left, right) = rest.split_at(cut);
        if from_right {
            pieces.push(right);
            rest = left.trim_end_matches(is_space);
        } else {
            pieces.push(left);
            rest = right.trim_start_matches(is_space);
        }
    }
    if from_right {
        pieces.reverse();
    }
    pieces
}

fn partition(text: &str, args: &[Value], from_right: bool) -> Result<Value, Error> {
    let separator = string_argument(args)?;
    if separator.is_empty() {
        return Err(Error::new(ErrorKind::InvalidOperation, "partition: the separator is empty"));
    }
    let cut = if from_right { text.rsplit_once(separator) } else { text.split_once(separator) };
    let parts = match (cut, from_right) {
        (Some((before, after)), _) => [before, separator, after],
        (None, false) => [text, "", ""],
        (None, true) => ["", "", text],
    };
    Ok(Value::from(Tuple::from(parts.map(Value::from))))
}

fn splitlines(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (keep, kwargs): (Option<bool>, Kwargs) = from_args(args)?;
    let keep = keep.or(kwargs.get("keepends")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    let is_break = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_break) {
        let tail = &rest[at..];
        let length = if tail.starts_with("\r\n") { 2 } else { tail.chars().next().map_or(0, char::len_utf8) };
        lines.push(Value::from(if keep { &rest[..at + length] } else { &rest[..at] }));
        rest = &rest[at + length..];
    }
    if !rest.is_empty() {
        lines.push(Value::from(rest));
    }
    Ok(Value::from(lines))
}

/// Upper case for letters that do not follow a letter, lower case for all others: as in Python, `they're` becomes
/// `They'Re`.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut after_letter = false;
    for character in text.chars() {
        if after_letter {
            out.extend(character.to_lowercase());
        } else {
            out.extend(character.to_uppercase());
        }
        after_letter = character.is_alphabetic();
    }
    out
}

fn swapcase(text: &str) -> String {
    let swap = |character: char| -> String {
        if character.is_uppercase() {
            character.to_lowercase().collect()
        } else {
            character.to_uppercase().collect()
        }
    };
    text.chars().map(swap).collect()
}

fn zfill(text: &str, width: usize) -> String {
    let zeros = "0".repeat(width.saturating_sub(text.chars().count()));
    match text.strip_prefix(['+', '-']) {
        Some(digits) => format!("{}{zeros}{digits}", &text[..1]),
        None => format!("{zeros}{text}"),
    }
}

fn justify(text: &str, args: &[Value], padding: impl Fn(usize) -> (usize, usize)) -> Result<Value, Error> {
    let (width, fill): (usize, Option<char>) = from_args(args)?;
    let fill = fill.unwrap_or(' ').to_string();
    let (before, after) = padding(width.saturating_sub(text.chars().count()));
    Ok(Value::from(format!("{}{text}{}", fill.repeat(before), fill.repeat(after))))
}
