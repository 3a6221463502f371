//! Python functions.

use std::time::Duration;

use rloom_function::{FunctionError, ToolFunctions};
use rloom_text::calls::ToolDeclaration;
use serde_json::{Map, Value};

use crate::source::timed_out;
use crate::{Output, Source, ToolError};

/// Python functions in processes of their own.
#[derive(Debug)]
pub(crate) struct Functions {
    functions: ToolFunctions,
    tools: Vec<ToolDeclaration>,
}

impl Functions {
    pub(crate) fn new(
        function: &str,
        python: &str,
        workers: usize,
        timeout: Duration,
    ) -> Result<Self, ToolError> {
        let functions = ToolFunctions::new(function, python, workers, timeout)?;
        let read = |tool: Value| {
            serde_json::from_value(tool).map_err(|error| ToolError::Declaration {
                origin: function.to_owned(),
                reason: error.to_string(),
            })
        };
        let tools = functions.describe()?.into_iter().map(read).collect::<Result<_, _>>()?;
        Ok(Self { functions, tools })
    }
}

impl Source for Functions {
    fn tools(&self) -> &[ToolDeclaration] {
        &self.tools
    }

    fn call(
        &self,
        tool: &str,
        arguments: &Map<String, Value>,
        timeout: Duration,
    ) -> Result<Output, ToolError> {
        match self.functions.call(tool, arguments) {
            Ok(result) => Ok(Output { text: result.text, is_error: result.is_error }),
            Err(FunctionError::TimedOut { .. }) => Ok(timed_out(timeout)),
            Err(error) => Err(error.into()),
        }
    }
}
