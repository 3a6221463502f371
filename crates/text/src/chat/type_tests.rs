//! Type tests (`is sequence`, `is number`, …) with the results of Jinja2 under Python.

use minijinja::value::ValueKind;
use minijinja::{Environment, Value};

pub(super) fn add_tests(environment: &mut Environment<'static>) {
    // Anything with a length and an index operator, strings and mappings included.
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Undefined)
    });
    environment.add_test("iterable", |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable | ValueKind::Undefined
        )
    });
    // Booleans are numbers in Python.
    environment
        .add_test("number", |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
}
