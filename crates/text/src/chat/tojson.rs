//! `tojson` as `transformers` defines it for chat templates: Python's `json.dumps` with `ensure_ascii` off.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, Value};

struct Style {
    ensure_ascii: bool,
    sort_keys: bool,
    /// Indentation of one level; `None` writes everything on one line.
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
}

/// The filter: `value | tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
#[expect(
    clippy::needless_pass_by_value,
    reason = "minijinja calls filters and functions with owned arguments"
)]
pub(super) fn tojson(value: &Value, positional: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    if positional.len() > 4 {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let pick = |place: usize, name: &str| -> Result<Value, Error> {
        Ok(match positional.get(place) {
            Some(value) => value.clone(),
            None => kwargs.get::<Option<Value>>(name)?.unwrap_or_default(),
        })
    };
    let ensure_ascii = pick(0, "ensure_ascii")?.is_true();
    let sort_keys = pick(3, "sort_keys")?.is_true();
    let indent = indent_text(&pick(1, "indent")?)?;
    let separators = pick(2, "separators")?;
    kwargs.assert_all_used()?;

    let (item_separator, key_separator) = if separators.is_none() || separators.is_undefined() {
        (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned())
    } else {
        let pair: Vec<Value> = separators.try_iter()?.collect();
        match pair.as_slice() {
            [item, key] => (item.to_string(), key.to_string()),
            _ => return Err(invalid("tojson: `separators` must be two strings".to_owned())),
        }
    };
    let style = Style { ensure_ascii, sort_keys, indent, item_separator, key_separator };
    let mut out = String::new();
    style.write(&mut out, value, 0)?;
    Ok(Value::from(out))
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

fn indent_text(indent: &Value) -> Result<Option<String>, Error> {
    if indent.is_none() || indent.is_undefined() {
        return Ok(None);
    }
    if let Some(text) = indent.as_str() {
        return Ok(Some(text.to_owned()));
    }
    let width = i64::try_from(indent.clone())?;
    Ok(Some(" ".repeat(usize::try_from(width).unwrap_or(0))))
}

impl Style {
    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)?),
            ValueKind::String => self.write_string(out, value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.write_items(out, ('[', ']'), &items, depth, |out, item| {
                    self.write(out, item, depth + 1)
                })?;
            }
            ValueKind::Map => {
                let mut entries = Vec::new();
                for key in value.try_iter()? {
                    entries.push((key_text(&key)?, value.get_item(&key)?));
                }
                if self.sort_keys {
                    entries.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.write_items(out, ('{', '}'), &entries, depth, |out, (key, item)| {
                    self.write_string(out, key);
                    out.push_str(&self.key_separator);
                    self.write(out, item, depth + 1)
                })?;
            }
            kind => return Err(invalid(format!("tojson: a value of type {kind} has no JSON form"))),
        }
        Ok(())
    }

    fn write_items<T>(
        &self,
        out: &mut String,
        (open, close): (char, char),
        items: &[T],
        depth: usize,
        mut write: impl FnMut(&mut String, &T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                out.push_str(&self.item_separator);
            }
            self.break_line(out, depth + 1);
            write(out, item)?;
        }
        if !items.is_empty() {
            self.break_line(out, depth);
        }
        out.push(close);
        Ok(())
    }

    fn break_line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            for _ in 0..depth {
                out.push_str(indent);
            }
        }
    }

    fn write_string(&self, out: &mut String, text: &str) {
        out.push('"');
        for character in text.chars() {
            match character {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                control if control < ' ' => out.push_str(&escape(control)),
                other if self.ensure_ascii && !other.is_ascii() => out.push_str(&escape(other)),
                other => out.push(other),
            }
        }
        out.push('"');
    }
}

fn escape(character: char) -> String {
    match character.encode_utf16(&mut [0; 2]) {
        [first, second] => format!("\\u{first:04x}\\u{second:04x}"),
        units => format!("\\u{:04x}", units[0]),
    }
}

/// Keys that are not strings become their JSON literals, as in Python.
fn key_text(key: &Value) -> Result<String, Error> {
    Ok(match key.kind() {
        ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_owned(),
        ValueKind::Number => number(key)?,
        kind => return Err(invalid(format!("tojson: a key of type {kind} has no JSON form"))),
    })
}

fn number(value: &Value) -> Result<String, Error> {
    if value.is_integer() { Ok(value.to_string()) } else { Ok(python_float(f64::try_from(value.clone())?)) }
}

/// A float in the format of Python's `repr` and `json.dumps`: the shortest digits that round-trip, with an exponent
/// from 1e16 on and below 1e-4.
pub(super) fn python_float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    format!("{value:?}")
}

#[cfg(test)]
mod tests {
    use super::python_float;

    #[test]
    fn floats_match_python() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1 + 0.2, "0.30000000000000004"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-1.5e-7, "-1.5e-07"),
            (999_999_999_999_999.9, "999999999999999.9"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.234e100, "1.234e+100"),
            (5e-324, "5e-324"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
        ];
        for (value, expected) in cases {
            assert_eq!(python_float(value), expected);
        }
    }
}
