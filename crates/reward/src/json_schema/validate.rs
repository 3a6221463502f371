//! Validation of a document in bounded time.

use std::cell::Cell;
use std::collections::HashSet;

use serde_json::{Map, Value};

use super::compile::{Rule, Schema, Type};

/// Applications of a rule to a value for each part of a document, beyond a basic allowance. Nested alternatives that refer to each other could
/// multiply them; a document that needs more does not satisfy the schema.
const WORK_PER_PART: usize = 1000;
const WORK: usize = 100_000;

impl Schema {
    /// True if a document satisfies the schema.
    pub(super) fn accepts(&self, document: &Value) -> bool {
        let work = parts(document).saturating_mul(WORK_PER_PART).saturating_add(WORK);
        let validation = Validation { schema: self, left: Cell::new(work) };
        // Without work left every rule is broken, which `not` turns around: it does not count.
        validation.accepts(0, document) && validation.left.get() > 0
    }
}

/// Number of values in a document.
fn parts(document: &Value) -> usize {
    1 + match document {
        Value::Array(items) => items.iter().map(parts).sum(),
        Value::Object(table) => table.values().map(parts).sum(),
        _ => 0,
    }
}

struct Validation<'s> {
    schema: &'s Schema,
    /// Rules that may still be applied.
    left: Cell<usize>,
}

impl Validation<'_> {
    fn accepts(&self, node: usize, value: &Value) -> bool {
        self.schema.nodes[node].rules.iter().all(|rule| self.is_met(rule, value))
    }

    fn is_met(&self, rule: &Rule, value: &Value) -> bool {
        self.left.set(self.left.get().saturating_sub(1));
        if self.left.get() == 0 {
            return false;
        }
        match rule {
            Rule::Never => false,
            Rule::Types(types) => types.iter().any(|one| is_of(value, *one)),
            Rule::Enum(values) => values.iter().any(|one| is_equal(one, value)),
            Rule::AllOf(all) => all.iter().all(|one| self.accepts(*one, value)),
            Rule::AnyOf(any) => any.iter().any(|one| self.accepts(*one, value)),
            Rule::OneOf(all) => all.iter().filter(|one| self.accepts(**one, value)).take(2).count() == 1,
            Rule::Not(one) => !self.accepts(*one, value),
            Rule::IfThenElse { condition, then, otherwise } => {
                let next = if self.accepts(*condition, value) { then } else { otherwise };
                next.is_none_or(|one| self.accepts(one, value))
            }
            _ => match value {
                Value::Number(number) => number.as_f64().is_none_or(|number| number_meets(rule, number)),
                Value::String(text) => text_meets(rule, text),
                Value::Array(items) => self.items_meet(rule, items),
                Value::Object(table) => self.table_meets(rule, table),
                Value::Null | Value::Bool(_) => true,
            },
        }
    }

    fn items_meet(&self, rule: &Rule, items: &[Value]) -> bool {
        match rule {
            Rule::MinItems(least) => items.len() >= *least,
            Rule::MaxItems(most) => items.len() <= *most,
            Rule::UniqueItems => {
                let mut seen = HashSet::new();
                items.iter().all(|item| seen.insert(canonical(item)))
            }
            Rule::Contains(one) => items.iter().any(|item| self.accepts(*one, item)),
            Rule::Items { first, others } => items
                .iter()
                .enumerate()
                .all(|(i, item)| first.get(i).or(others.as_ref()).is_none_or(|one| self.accepts(*one, item))),
            _ => true,
        }
    }

    fn table_meets(&self, rule: &Rule, table: &Map<String, Value>) -> bool {
        let has_all = |names: &[String]| names.iter().all(|name| table.contains_key(name));
        match rule {
            Rule::MinProperties(least) => table.len() >= *least,
            Rule::MaxProperties(most) => table.len() <= *most,
            Rule::Required(names) => has_all(names),
            Rule::DependentRequired(pairs) => {
                pairs.iter().all(|(name, names)| !table.contains_key(name) || has_all(names))
            }
            Rule::PropertyNames(one) => {
                table.keys().all(|name| self.accepts(*one, &Value::String(name.clone())))
            }
            Rule::Properties { named, patterns, others } => table.iter().all(|(name, value)| {
                let own = named.get(name);
                let mut is_known = own.is_some();
                if own.is_some_and(|one| !self.accepts(*one, value)) {
                    return false;
                }
                for (_, one) in patterns.iter().filter(|(pattern, _)| pattern.is_match(name)) {
                    is_known = true;
                    if !self.accepts(*one, value) {
                        return false;
                    }
                }
                is_known || others.is_none_or(|one| self.accepts(one, value))
            }),
            _ => true,
        }
    }
}

fn number_meets(rule: &Rule, number: f64) -> bool {
    match rule {
        Rule::Minimum(least) => number >= *least,
        Rule::Maximum(most) => number <= *most,
        Rule::ExclusiveMinimum(least) => number > *least,
        Rule::ExclusiveMaximum(most) => number < *most,
        Rule::MultipleOf(of) => {
            // Decimal fractions have no exact form: 0.3 is a multiple of 0.1.
            let times = number / of;
            (times - times.round()).abs() <= 1e-9 * times.abs().max(1.0)
        }
        _ => true,
    }
}

fn text_meets(rule: &Rule, text: &str) -> bool {
    match rule {
        Rule::MinLength(least) => text.chars().count() >= *least,
        Rule::MaxLength(most) => text.chars().count() <= *most,
        Rule::Pattern(pattern) => pattern.is_match(text),
        _ => true,
    }
}

fn is_of(value: &Value, one: Type) -> bool {
    match (one, value) {
        (Type::Null, Value::Null)
        | (Type::Boolean, Value::Bool(_))
        | (Type::Number, Value::Number(_))
        | (Type::String, Value::String(_))
        | (Type::Array, Value::Array(_))
        | (Type::Object, Value::Object(_)) => true,
        (Type::Integer, Value::Number(number)) => {
            number.is_i64() || number.is_u64() || number.as_f64().is_some_and(|number| number.fract() == 0.0)
        }
        _ => false,
    }
}

/// Equality in which 1 and 1.0 are the same number and the order of keys does not count.
fn is_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_equal(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| is_equal(a, b)))
        }
        _ => a == b,
    }
}

/// A text that equal values have in common.
fn canonical(value: &Value) -> String {
    match value {
        Value::Number(number) => {
            number.as_f64().map_or_else(|| number.to_string(), |number| number.to_string())
        }
        Value::Array(items) => format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(",")),
        Value::Object(table) => {
            let mut pairs: Vec<String> = table
                .iter()
                .map(|(key, value)| format!("{}:{}", Value::from(key.as_str()), canonical(value)))
                .collect();
            pairs.sort();
            format!("{{{}}}", pairs.join(","))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::SchemaError;
    use super::*;

    fn accepts(schema: &Value, document: &Value) -> bool {
        Schema::compile(schema).unwrap().accepts(document)
    }

    #[test]
    fn a_tree_refers_to_itself() {
        let tree = json!({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "required": ["value"], "additionalProperties": false,
            "properties": {"value": {"type": "integer"}, "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}}});
        assert!(accepts(
            &tree,
            &json!({"value": 1, "children": [{"value": 2}, {"value": 3, "children": []}]})
        ));
        assert!(!accepts(&tree, &json!({"value": 1, "children": [{"value": 2}, {"valve": 3}]})));
    }

    #[test]
    fn unusable_schemas_are_refused_by_name() {
        for (schema, expected) in [
            (
                json!({"properties": {"a": {"format": "date"}}}),
                "keyword `format` at `#/properties/a` is not supported",
            ),
            (
                json!({"unevaluatedProperties": false}),
                "keyword `unevaluatedProperties` at `#` is not supported",
            ),
            (json!({"tpye": "object"}), "keyword `tpye` at `#` is not supported"),
            (json!({"type": "text"}), "keyword `type` at `#` must be the name of a type"),
            (json!({"minLength": -1}), "must be a whole number, 0 or larger"),
            (json!({"pattern": "(?=a)"}), "must be a regular expression without look-around"),
            (json!({"anyOf": []}), "keyword `anyOf` at `#` must be a list of schemas"),
            (json!({"items": 3}), "the value at `#/items` must be a schema"),
            (json!([]), "the value at `#` must be a schema"),
            (json!({"$ref": "https://example.org/s"}), "is not a part of the schema"),
            (json!({"$ref": "#/$defs/x"}), "is not a part of the schema"),
            (json!({"$ref": "#"}), "the schema at `#` refers to itself, or through more than 32 others"),
            (
                json!({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}),
                "refers to itself",
            ),
        ] {
            let error = Schema::compile(&schema).map(|_| ()).unwrap_err();
            assert!(error.to_string().contains(expected), "{schema}: {error}");
        }
        let mut chain = json!(true);
        for _ in 0..40 {
            chain = json!({"allOf": [chain]});
        }
        assert!(matches!(Schema::compile(&chain).map(|_| ()), Err(SchemaError::Endless { .. })));
        let large = json!({"anyOf": vec![true; 10_001]});
        assert_eq!(Schema::compile(&large).map(|_| ()).unwrap_err(), SchemaError::TooLarge);
    }

    #[test]
    fn alternatives_that_multiply_end() {
        // Each level tries both alternatives: 2 to the power of the depth without a bound.
        let schema = json!({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [
            {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1, "contains": {"const": 0}},
            {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1, "contains": {"const": 1}}]}}});
        let mut document = json!([]);
        for _ in 0..120 {
            document = json!([document]);
        }
        assert!(!accepts(&schema, &document));
    }
}
