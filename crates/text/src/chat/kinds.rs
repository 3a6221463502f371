//! Type tests that answer as Jinja2's do under Python.

use minijinja::value::ValueKind;
use minijinja::{Environment, Value};

pub(super) fn add_tests(environment: &mut Environment<'static>) {
    // Whatever has a length and can be indexed: strings and mappings, too.
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Undefined)
    });
    environment.add_test("iterable", |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable | ValueKind::Undefined
        )
    });
    // Python's booleans are numbers.
    environment
        .add_test("number", |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
}
