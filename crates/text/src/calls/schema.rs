//! Arguments against the JSON schema of a tool.

use serde_json::{Map, Value};

/// Schemas nested deeper than this are not checked further.
const DEPTH: usize = 32;

/// The first violation of a schema by a value. Checked are `type`, `enum`, `const`, `required`, `properties`,
/// `additionalProperties`, `items`, `minimum`, `maximum`, `anyOf` and `oneOf`; other keywords are not.
pub fn violation(value: &Value, schema: &Value) -> Option<String> {
    check(value, schema, "the arguments", DEPTH)
}

fn check(value: &Value, schema: &Value, at: &str, depth: usize) -> Option<String> {
    let depth = depth.checked_sub(1)?;
    let schema = schema.as_object()?;
    if let Some(kind) = schema.get("type")
        && let Some(problem) = wrong_type(value, kind, at)
    {
        return Some(problem);
    }
    if let Some(allowed) = schema.get("enum").and_then(Value::as_array)
        && !allowed.contains(value)
    {
        return Some(format!("{at} must be one of {}", Value::Array(allowed.clone())));
    }
    if let Some(expected) = schema.get("const").filter(|expected| *expected != value) {
        return Some(format!("{at} must be {expected}"));
    }
    let branches = schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Value::as_array);
    if let Some(branches) = branches {
        let problems: Option<Vec<String>> =
            branches.iter().map(|branch| check(value, branch, at, depth)).collect();
        if let Some(first) = problems.and_then(|problems| problems.into_iter().next()) {
            return Some(first);
        }
    }
    match value {
        Value::Object(object) => check_object(object, schema, at, depth),
        Value::Array(items) => {
            let of_items = schema.get("items")?;
            let one = |(place, item)| check(item, of_items, &format!("item {place} of {at}"), depth);
            items.iter().enumerate().find_map(one)
        }
        Value::Number(number) => {
            let number = number.as_f64()?;
            let limit = |key: &str| schema.get(key).and_then(Value::as_f64);
            match (limit("minimum"), limit("maximum")) {
                (Some(minimum), _) if number < minimum => Some(format!("{at} must be at least {minimum}")),
                (_, Some(maximum)) if number > maximum => Some(format!("{at} must be at most {maximum}")),
                _ => None,
            }
        }
        _ => None,
    }
}

fn check_object(
    object: &Map<String, Value>,
    schema: &Map<String, Value>,
    at: &str,
    depth: usize,
) -> Option<String> {
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    if let Some(missing) = required.filter_map(Value::as_str).find(|name| !object.contains_key(*name)) {
        return Some(format!("`{missing}` is missing in {at}"));
    }
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, value) in object {
        match properties.and_then(|properties| properties.get(name)) {
            Some(schema) => {
                if let Some(problem) = check(value, schema, &format!("`{name}`"), depth) {
                    return Some(problem);
                }
            }
            None if schema.get("additionalProperties") == Some(&Value::Bool(false)) => {
                return Some(format!("`{name}` is no parameter"));
            }
            None => {}
        }
    }
    None
}

fn wrong_type(value: &Value, kind: &Value, at: &str) -> Option<String> {
    let kinds: Vec<&str> = match kind {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        kind => kind.as_str().into_iter().collect(),
    };
    let is = |kind: &&str| match *kind {
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "object" => value.is_object(),
        "array" => value.is_array(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        _ => true,
    };
    let fits = kinds.is_empty() || kinds.iter().any(is);
    (!fits).then(|| format!("{at} must be of type {}", kinds.join(" or ")))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::violation;

    #[test]
    fn arguments_are_compared_with_the_schema() {
        let schema = json!({
            "type": "object", "required": ["city"], "additionalProperties": false,
            "properties": {
                "city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 9},
                "unit": {"enum": ["c", "f"]}, "tags": {"type": "array", "items": {"type": "string"}},
                "any": {"anyOf": [{"type": "null"}, {"type": "number"}]},
            },
        });
        let good =
            [json!({"city": "a"}), json!({"city": "a", "days": 2.0, "unit": "f", "any": null, "tags": []})];
        for value in good {
            assert_eq!(violation(&value, &schema), None, "{value}");
        }
        for (value, expected) in [
            (json!("text"), "the arguments must be of type object"),
            (json!({}), "`city` is missing in the arguments"),
            (json!({"city": 1}), "`city` must be of type string"),
            (json!({"city": "a", "days": 0}), "`days` must be at least 1"),
            (json!({"city": "a", "days": 1.5}), "`days` must be of type integer"),
            (json!({"city": "a", "unit": "k"}), "`unit` must be one of [\"c\",\"f\"]"),
            (json!({"city": "a", "tags": ["x", 1]}), "item 1 of `tags` must be of type string"),
            (json!({"city": "a", "any": "x"}), "`any` must be of type null"),
            (json!({"city": "a", "more": 1}), "`more` is no parameter"),
        ] {
            assert_eq!(violation(&value, &schema).as_deref(), Some(expected), "{value}");
        }
    }

    #[test]
    fn schemas_that_contain_themselves_deeply_end() {
        let (mut schema, mut value) = (json!({"type": "string"}), json!(1));
        for _ in 0..100 {
            schema = json!({"type": "array", "items": schema});
            value = json!([value]);
        }
        assert_eq!(violation(&value, &schema), None);
        assert_eq!(violation(&Value::Null, &Value::Null), None);
    }
}
