//! The Python side, which the program carries with it: nothing has to be installed but Python.

use serde_json::json;

use crate::peer::Transport;
use crate::{Peer, Role};

/// Reads the modules from the first line of stdin and serves the function.
const BOOTSTRAP: &str = include_str!("../../../python/rloom/functions/bootstrap.py");

/// Modules of the package `rloom.functions`, each after those that it imports.
const MODULES: [(&str, &str); 8] = [
    ("errors", include_str!("../../../python/rloom/functions/errors.py")),
    ("samples", include_str!("../../../python/rloom/functions/samples.py")),
    ("loading", include_str!("../../../python/rloom/functions/loading.py")),
    ("adapters", include_str!("../../../python/rloom/functions/adapters.py")),
    ("environments", include_str!("../../../python/rloom/functions/environments.py")),
    ("methods", include_str!("../../../python/rloom/functions/methods.py")),
    ("tools", include_str!("../../../python/rloom/functions/tools.py")),
    ("serving", include_str!("../../../python/rloom/functions/serving.py")),
];

impl Peer {
    /// A function of a Python file, `file.py:name`.
    pub fn python(function: &str, python: &str, role: Role) -> Self {
        let modules: serde_json::Map<_, _> =
            MODULES.iter().map(|(name, source)| ((*name).to_owned(), json!(source))).collect();
        Self {
            name: format!("the function {function}"),
            function: function.to_owned(),
            role,
            transport: Transport::Process {
                program: python.into(),
                arguments: vec!["-c".into(), BOOTSTRAP.into()],
                prelude: Some(json!(modules).to_string()),
            },
        }
    }
}
