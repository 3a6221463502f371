//! Schemas, compiled: every keyword is checked before a completion is judged.

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::{Map, Value};

/// Largest number of subschemas.
const LARGEST: usize = 10_000;

/// Longest chain of subschemas that apply to the same value.
const DEEPEST: usize = 32;

/// A schema that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// A keyword that has no effect here.
    #[error("keyword `{keyword}` at `{at}` is not supported")]
    Unsupported {
        /// The keyword.
        keyword: String,
        /// JSON pointer of the subschema.
        at: String,
    },
    /// A keyword with a wrong value.
    #[error("keyword `{keyword}` at `{at}` must be {expected}")]
    Value {
        /// The keyword.
        keyword: &'static str,
        /// JSON pointer of the subschema.
        at: String,
        /// The expected value.
        expected: &'static str,
    },
    /// A value where a schema is expected.
    #[error("the value at `{at}` must be a schema: an object, `true` or `false`")]
    NotASchema {
        /// JSON pointer of the value.
        at: String,
    },
    /// A reference to something that is not in the schema.
    #[error("`$ref` at `{at}`: {target:?} is not a part of the schema; references begin with `#`")]
    Reference {
        /// JSON pointer of the subschema.
        at: String,
        /// The reference.
        target: String,
    },
    /// A subschema that applies itself to the same value, or a long chain of others.
    #[error(
        "the schema at `{at}` refers to itself, or through more than {DEEPEST} others, without a step into the value"
    )]
    Endless {
        /// JSON pointer of the subschema.
        at: String,
    },
    /// A schema with too many parts.
    #[error("it has more than {LARGEST} parts")]
    TooLarge,
}

/// A compiled schema: subschemas by number, the whole one first.
#[derive(Debug)]
pub(super) struct Schema {
    pub(super) nodes: Vec<Node>,
}

/// A subschema.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) rules: Vec<Rule>,
}

/// A requirement. Requirements of other types of values than the given one are met.
#[derive(Debug)]
pub(super) enum Rule {
    Never,
    Types(Vec<Type>),
    Enum(Vec<Value>),
    Minimum(f64),
    Maximum(f64),
    ExclusiveMinimum(f64),
    ExclusiveMaximum(f64),
    MultipleOf(f64),
    MinLength(usize),
    MaxLength(usize),
    Pattern(Regex),
    MinItems(usize),
    MaxItems(usize),
    UniqueItems,
    Contains(usize),
    /// Subschemas of the first items, and that of the others.
    Items {
        first: Vec<usize>,
        others: Option<usize>,
    },
    MinProperties(usize),
    MaxProperties(usize),
    Required(Vec<String>),
    DependentRequired(Vec<(String, Vec<String>)>),
    PropertyNames(usize),
    Properties {
        named: BTreeMap<String, usize>,
        patterns: Vec<(Regex, usize)>,
        others: Option<usize>,
    },
    AllOf(Vec<usize>),
    AnyOf(Vec<usize>),
    OneOf(Vec<usize>),
    Not(usize),
    IfThenElse {
        condition: usize,
        then: Option<usize>,
        otherwise: Option<usize>,
    },
}

/// A type of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    Null,
    Boolean,
    Integer,
    Number,
    String,
    Array,
    Object,
}

/// Keywords without an effect on what satisfies the schema.
const ANNOTATIONS: [&str; 13] = [
    "$schema",
    "$id",
    "$comment",
    "$defs",
    "definitions",
    "title",
    "description",
    "default",
    "examples",
    "example",
    "deprecated",
    "readOnly",
    "writeOnly",
];

impl Schema {
    pub(super) fn compile(root: &Value) -> Result<Self, SchemaError> {
        let mut compiler = Compiler { root, nodes: Vec::new(), known: BTreeMap::new(), pending: Vec::new() };
        compiler.node(root, "")?;
        // Not recursive: references can make a chain of any length.
        while let Some((number, schema, at)) = compiler.pending.pop() {
            compiler.nodes[number].rules = match schema {
                Value::Bool(true) => Vec::new(),
                Value::Bool(false) => vec![Rule::Never],
                Value::Object(keywords) => compiler.rules(keywords, &at)?,
                _ => return Err(SchemaError::NotASchema { at: format!("#{at}") }),
            };
        }
        let schema = Self { nodes: compiler.nodes };
        let at = |node: usize| {
            let place = compiler.known.iter().find(|(_, known)| **known == node);
            place.map_or_else(String::new, |(place, _)| format!("#{place}"))
        };
        match schema.endless() {
            Some(node) => Err(SchemaError::Endless { at: at(node) }),
            None => Ok(schema),
        }
    }

    /// A subschema that applies itself to the same value, or ends a long chain of those that do, if there is one.
    fn endless(&self) -> Option<usize> {
        // 0: not visited, 1: on the path, 2: done.
        let mut state = vec![0u8; self.nodes.len()];
        for start in 0..self.nodes.len() {
            // Nodes on the path with their remaining successors.
            let mut path = vec![(start, self.nodes[start].in_place())];
            if state[start] == 2 {
                continue;
            }
            state[start] = 1;
            while let Some((node, successors)) = path.last_mut() {
                let Some(next) = successors.pop() else {
                    state[*node] = 2;
                    path.pop();
                    continue;
                };
                if path.len() > DEEPEST {
                    return Some(next);
                }
                match state[next] {
                    0 => {
                        state[next] = 1;
                        path.push((next, self.nodes[next].in_place()));
                    }
                    1 => return Some(next),
                    _ => {}
                }
            }
        }
        None
    }
}

impl Node {
    /// Subschemas that apply to the same value.
    fn in_place(&self) -> Vec<usize> {
        let mut all = Vec::new();
        for rule in &self.rules {
            match rule {
                Rule::AllOf(of) | Rule::AnyOf(of) | Rule::OneOf(of) => all.extend(of),
                Rule::Not(of) => all.push(*of),
                Rule::IfThenElse { condition, then, otherwise } => {
                    all.extend([Some(*condition), *then, *otherwise].into_iter().flatten());
                }
                _ => {}
            }
        }
        all
    }
}

struct Compiler<'r> {
    root: &'r Value,
    nodes: Vec<Node>,
    /// Subschemas by JSON pointer.
    known: BTreeMap<String, usize>,
    /// Subschemas that are not compiled yet, with their numbers and places.
    pending: Vec<(usize, &'r Value, String)>,
}

impl<'r> Compiler<'r> {
    /// The number of the subschema at a place, which is compiled once.
    fn node(&mut self, schema: &'r Value, at: &str) -> Result<usize, SchemaError> {
        if let Some(known) = self.known.get(at) {
            return Ok(*known);
        }
        let number = self.nodes.len();
        if number >= LARGEST {
            return Err(SchemaError::TooLarge);
        }
        self.nodes.push(Node::default());
        self.known.insert(at.to_owned(), number);
        self.pending.push((number, schema, at.to_owned()));
        Ok(number)
    }

    fn rules(&mut self, keywords: &'r Map<String, Value>, at: &str) -> Result<Vec<Rule>, SchemaError> {
        let mut rules = Vec::new();
        for (keyword, value) in keywords {
            if let Some(rule) = self.rule(keyword, value, at)? {
                rules.push(rule);
            }
        }
        rules.extend(self.items(keywords, at)?);
        rules.extend(self.properties(keywords, at)?);
        if let Some(condition) = keywords.get("if") {
            let condition = self.node(condition, &format!("{at}/if"))?;
            let (then, otherwise) =
                (self.optional(keywords, "then", at)?, self.optional(keywords, "else", at)?);
            rules.push(Rule::IfThenElse { condition, then, otherwise });
        }
        Ok(rules)
    }

    /// The rule of a keyword that stands alone; `None` for annotations and for keywords that are read together.
    fn rule(&mut self, keyword: &str, value: &'r Value, at: &str) -> Result<Option<Rule>, SchemaError> {
        let size = |keyword| size(value).ok_or_else(|| wrong(keyword, at, "a whole number, 0 or larger"));
        let number = |keyword| value.as_f64().ok_or_else(|| wrong(keyword, at, "a number"));
        Ok(Some(match keyword {
            "type" => Rule::Types(
                types(value).ok_or_else(|| wrong("type", at, "the name of a type, or a list of names"))?,
            ),
            "enum" => Rule::Enum(value.as_array().ok_or_else(|| wrong("enum", at, "a list"))?.clone()),
            "const" => Rule::Enum(vec![value.clone()]),
            "minimum" => Rule::Minimum(number("minimum")?),
            "maximum" => Rule::Maximum(number("maximum")?),
            "exclusiveMinimum" => Rule::ExclusiveMinimum(number("exclusiveMinimum")?),
            "exclusiveMaximum" => Rule::ExclusiveMaximum(number("exclusiveMaximum")?),
            "multipleOf" => match number("multipleOf")? {
                of if of > 0.0 => Rule::MultipleOf(of),
                _ => return Err(wrong("multipleOf", at, "above 0")),
            },
            "minLength" => Rule::MinLength(size("minLength")?),
            "maxLength" => Rule::MaxLength(size("maxLength")?),
            "pattern" => Rule::Pattern(pattern(value, "pattern", at)?),
            "minItems" => Rule::MinItems(size("minItems")?),
            "maxItems" => Rule::MaxItems(size("maxItems")?),
            "uniqueItems" => {
                match value.as_bool().ok_or_else(|| wrong("uniqueItems", at, "`true` or `false`"))? {
                    true => Rule::UniqueItems,
                    false => return Ok(None),
                }
            }
            "contains" => Rule::Contains(self.node(value, &format!("{at}/contains"))?),
            "minProperties" => Rule::MinProperties(size("minProperties")?),
            "maxProperties" => Rule::MaxProperties(size("maxProperties")?),
            "required" => {
                Rule::Required(texts(value).ok_or_else(|| wrong("required", at, "a list of texts"))?)
            }
            "dependentRequired" => {
                let pairs = value.as_object().and_then(|pairs| {
                    pairs
                        .iter()
                        .map(|(name, all)| Some((name.clone(), texts(all)?)))
                        .collect::<Option<Vec<_>>>()
                });
                Rule::DependentRequired(
                    pairs.ok_or_else(|| wrong("dependentRequired", at, "an object of lists of texts"))?,
                )
            }
            "propertyNames" => Rule::PropertyNames(self.node(value, &format!("{at}/propertyNames"))?),
            "allOf" => Rule::AllOf(self.list(value, "allOf", at)?),
            "anyOf" => Rule::AnyOf(self.list(value, "anyOf", at)?),
            "oneOf" => Rule::OneOf(self.list(value, "oneOf", at)?),
            "not" => Rule::Not(self.node(value, &format!("{at}/not"))?),
            "$ref" => Rule::AllOf(vec![self.reference(value, at)?]),
            "items"
            | "prefixItems"
            | "properties"
            | "patternProperties"
            | "additionalProperties"
            | "if"
            | "then"
            | "else" => return Ok(None),
            annotation if ANNOTATIONS.contains(&annotation) => return Ok(None),
            _ => return Err(SchemaError::Unsupported { keyword: keyword.to_owned(), at: format!("#{at}") }),
        }))
    }

    fn items(&mut self, keywords: &'r Map<String, Value>, at: &str) -> Result<Option<Rule>, SchemaError> {
        if !keywords.contains_key("items") && !keywords.contains_key("prefixItems") {
            return Ok(None);
        }
        let first = match keywords.get("prefixItems") {
            Some(list) => self.list(list, "prefixItems", at)?,
            None => Vec::new(),
        };
        Ok(Some(Rule::Items { first, others: self.optional(keywords, "items", at)? }))
    }

    fn properties(
        &mut self,
        keywords: &'r Map<String, Value>,
        at: &str,
    ) -> Result<Option<Rule>, SchemaError> {
        let table = |keyword: &'static str| match keywords.get(keyword) {
            None => Ok(None),
            Some(Value::Object(table)) => Ok(Some(table)),
            Some(_) => Err(wrong(keyword, at, "an object of schemas")),
        };
        let mut named = BTreeMap::new();
        for (name, schema) in table("properties")?.into_iter().flatten() {
            let place = format!("{at}/properties/{}", escaped(name));
            named.insert(name.clone(), self.node(schema, &place)?);
        }
        let mut patterns = Vec::new();
        for (name, schema) in table("patternProperties")?.into_iter().flatten() {
            let place = format!("{at}/patternProperties/{}", escaped(name));
            let regex = pattern(&Value::String(name.clone()), "patternProperties", at)?;
            patterns.push((regex, self.node(schema, &place)?));
        }
        let others = self.optional(keywords, "additionalProperties", at)?;
        if named.is_empty() && patterns.is_empty() && others.is_none() {
            return Ok(None);
        }
        Ok(Some(Rule::Properties { named, patterns, others }))
    }

    fn optional(
        &mut self,
        keywords: &'r Map<String, Value>,
        keyword: &str,
        at: &str,
    ) -> Result<Option<usize>, SchemaError> {
        keywords.get(keyword).map(|schema| self.node(schema, &format!("{at}/{keyword}"))).transpose()
    }

    fn list(&mut self, value: &'r Value, keyword: &'static str, at: &str) -> Result<Vec<usize>, SchemaError> {
        let list = value.as_array().filter(|list| !list.is_empty());
        let list = list.ok_or_else(|| wrong(keyword, at, "a list of schemas"))?;
        list.iter().enumerate().map(|(i, schema)| self.node(schema, &format!("{at}/{keyword}/{i}"))).collect()
    }

    fn reference(&mut self, value: &'r Value, at: &str) -> Result<usize, SchemaError> {
        let target = value.as_str().ok_or_else(|| wrong("$ref", at, "text"))?;
        let unknown = || SchemaError::Reference { at: format!("#{at}"), target: target.to_owned() };
        let pointer = target.strip_prefix('#').ok_or_else(unknown)?;
        let schema = self.root.pointer(pointer).ok_or_else(unknown)?;
        self.node(schema, pointer)
    }
}

fn wrong(keyword: &'static str, at: &str, expected: &'static str) -> SchemaError {
    SchemaError::Value { keyword, at: format!("#{at}"), expected }
}

/// A name as a part of a JSON pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

fn pattern(value: &Value, keyword: &'static str, at: &str) -> Result<Regex, SchemaError> {
    let text = value.as_str().and_then(|text| crate::regex::compile(text).ok());
    text.ok_or_else(|| {
        wrong(keyword, at, "a regular expression without look-around and references to groups")
    })
}

fn texts(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect()
}

fn types(value: &Value) -> Option<Vec<Type>> {
    let one = |name: &Value| {
        Some(match name.as_str()? {
            "null" => Type::Null,
            "boolean" => Type::Boolean,
            "integer" => Type::Integer,
            "number" => Type::Number,
            "string" => Type::String,
            "array" => Type::Array,
            "object" => Type::Object,
            _ => return None,
        })
    };
    match value {
        Value::Array(names) => names.iter().map(one).collect(),
        name => Some(vec![one(name)?]),
    }
}

/// A size, also in the form of a float.
fn size(value: &Value) -> Option<usize> {
    let float = || value.as_f64().filter(|x| x.fract() == 0.0 && (0.0..1e15).contains(x)).map(|x| x as u64);
    value.as_u64().or_else(float).and_then(|size| usize::try_from(size).ok())
}
