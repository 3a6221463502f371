//! Chat templates of installed packages against `transformers`. `golden/published.py`, which `.ci/offline` runs, writes the file
//! that `RLOOM_TEST_TEMPLATES` names.

use std::collections::HashMap;

use rloom_text::ChatTemplate;
use serde_json::Value;

use crate::chat_golden::{Outcome, Stored};

/// Templates that the packages must have, so that the test does not pass over nothing.
const FEWEST_TEMPLATES: usize = 60;

#[test]
#[ignore = "needs the templates of Python packages, see .ci/offline"]
fn offline_published_templates_render_as_in_transformers() {
    let path =
        std::env::var("RLOOM_TEST_TEMPLATES").expect("RLOOM_TEST_TEMPLATES names the file of published.py");
    let stored = Stored::read(std::path::Path::new(&path));
    let templates: HashMap<&String, ChatTemplate> = stored.json["templates"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, source)| {
            let source = source.as_str().unwrap();
            let compiled = ChatTemplate::new(source, &stored.special());
            (name, compiled.unwrap_or_else(|error| panic!("{name}: {error}")))
        })
        .collect();
    assert!(templates.len() >= FEWEST_TEMPLATES, "{} templates", templates.len());
    let cases = stored.json["cases"].as_array().unwrap();
    let (mut different, mut loops_over_none) = (Vec::new(), 0);
    for case in cases {
        let [template, name] = ["template", "conversation"].map(|key| case[key].as_str().unwrap().to_owned());
        let conversation: &Value = &stored.json["conversations"][&name];
        if let Outcome::Different { what } = stored.compare(&templates[&template], conversation, case) {
            // A loop over `none` is empty, see `crates/text/src/chat/mod.rs`.
            if case["fails"] == "'NoneType' object is not iterable" {
                loops_over_none += 1;
                continue;
            }
            different.push(format!("{template} over {name}: {what}"));
        }
    }
    let shown = different.iter().take(30).map(String::as_str).collect::<Vec<_>>().join("\n\n");
    assert!(loops_over_none <= 1, "{loops_over_none} loops over `none`");
    assert!(different.is_empty(), "{} of {} renderings differ:\n\n{shown}", different.len(), cases.len());
}
