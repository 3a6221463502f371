//! The Python side, which the program carries with it: nothing has to be installed but Python.

use std::time::Duration;

use serde_json::json;

use crate::peer::{START, Transport};
use crate::{Peer, Role};

/// Shortest time for a model to get ready.
const MODEL_START: Duration = Duration::from_mins(15);
/// Reads the modules from the first line of stdin and serves the function.
const BOOTSTRAP: &str = include_str!("../../../python/rloom/functions/bootstrap.py");

/// Modules of the package `rloom.functions`, each after those that it imports.
const MODULES: [(&str, &str); 9] = [
    ("errors", include_str!("../../../python/rloom/functions/errors.py")),
    ("samples", include_str!("../../../python/rloom/functions/samples.py")),
    ("reward_model", include_str!("../../../python/rloom/functions/reward_model.py")),
    ("loading", include_str!("../../../python/rloom/functions/loading.py")),
    ("adapters", include_str!("../../../python/rloom/functions/adapters.py")),
    ("environments", include_str!("../../../python/rloom/functions/environments.py")),
    ("methods", include_str!("../../../python/rloom/functions/methods.py")),
    ("tools", include_str!("../../../python/rloom/functions/tools.py")),
    ("serving", include_str!("../../../python/rloom/functions/serving.py")),
];

impl Peer {
    /// A reward model in a folder of transformers, which computes at most `batch_tokens` tokens at a time. A model of steps has the
    /// name of the function that makes one value of theirs, and the text that ends a step.
    pub fn reward_model(
        folder: &str,
        batch_tokens: u64,
        steps: Option<(&str, &str)>,
        python: &str,
        role: Role,
    ) -> Self {
        let mut options = json!({ "folder": folder, "batch_tokens": batch_tokens });
        if let Some((reduce, separator)) = steps {
            options["steps"] = json!({ "reduce": reduce, "separator": separator });
        }
        Self {
            name: format!("the reward model {folder}"),
            start: MODEL_START,
            ..Self::python(&format!("reward_model:{options}"), python, role)
        }
    }

    /// A function of a Python file, `file.py:name`.
    pub fn python(function: &str, python: &str, role: Role) -> Self {
        let modules: serde_json::Map<_, _> =
            MODULES.iter().map(|(name, source)| ((*name).to_owned(), json!(source))).collect();
        Self {
            name: format!("the function {function}"),
            function: function.to_owned(),
            role,
            start: START,
            transport: Transport::Process {
                program: python.into(),
                arguments: vec!["-c".into(), BOOTSTRAP.into()],
                prelude: Some(json!(modules).to_string()),
            },
        }
    }
}
