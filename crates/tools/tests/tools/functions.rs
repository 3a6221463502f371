//! Tools in Python: schemas, results, exceptions, crashes and hangs.

use rloom_function::FunctionError;
use rloom_tools::{Output, ToolError};
use serde_json::json;

use crate::support::{LONG, SHORT, call, python, toolbox};

const TOOLS: &str = r#"
import os, time
from typing import Literal

def weather(city: str, days: int = 1, unit: Literal["c", "f"] = "c") -> str:
    """Weather of a place.

    Args:
        city: The city.
    """
    print("printed text is no protocol")
    return f"{city}: {days} {unit}"

def numbers() -> list[int]:
    return [1, 2]

def fails() -> str:
    raise ValueError("no such place")

def dies() -> str:
    os._exit(3)

def hangs() -> str:
    time.sleep(1000)

TOOLS = [weather, numbers, fails, dies, hangs]

def untyped(city): return city
"#;

#[test]
fn functions_are_tools_with_their_schema() {
    let folder = tempfile::tempdir().unwrap();
    let file = python(folder.path(), "tools.py", TOOLS);
    let table = json!({"kind": "function", "function": format!("{}:TOOLS", file.display())});
    let toolbox = toolbox(table, LONG).unwrap();
    let weather = &toolbox.tools()[0];
    assert_eq!((weather.name.as_str(), weather.description.as_str()), ("weather", "Weather of a place."));
    assert_eq!(
        weather.parameters,
        json!({
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "The city."},
                "days": {"type": "integer"},
                "unit": {"enum": ["c", "f"]},
            },
            "required": ["city"],
            "additionalProperties": false,
        })
    );
    let tools = toolbox.open();
    assert_eq!(
        call(&tools, "weather", &json!({"city": "Bern", "days": 2})).unwrap(),
        Output::ok("Bern: 2 c")
    );
    assert_eq!(call(&tools, "numbers", &json!({})).unwrap(), Output::ok("[1, 2]"));
    assert_eq!(call(&tools, "fails", &json!({})).unwrap(), Output::error("ValueError: no such place"));
}

#[test]
fn a_crash_is_no_result_and_a_hang_is_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = python(folder.path(), "tools.py", TOOLS);
    let table = json!({"kind": "function", "function": format!("{}:TOOLS", file.display()), "workers": 1});
    let toolbox = toolbox(table, SHORT).unwrap();
    let tools = toolbox.open();
    let died = call(&tools, "dies", &json!({}));
    assert!(matches!(&died, Err(ToolError::Function(FunctionError::Ended { .. }))), "{died:?}");
    assert_eq!(call(&tools, "hangs", &json!({})).unwrap(), Output::error("the call took longer than 0.5 s"));
    // The processes have been replaced.
    assert_eq!(call(&tools, "numbers", &json!({})).unwrap(), Output::ok("[1, 2]"));
}

#[test]
fn functions_without_types_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = python(folder.path(), "tools.py", TOOLS);
    let table = json!({"kind": "function", "function": format!("{}:untyped", file.display())});
    let error = toolbox(table, LONG).unwrap_err().to_string();
    assert!(error.contains("parameter `city` of `untyped` has no type hint"), "{error}");
}
