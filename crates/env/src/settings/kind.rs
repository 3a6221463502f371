use std::sync::Arc;
use std::time::Duration;

use rloom_core::{EarlierReasoning, History, SettingError};
use rloom_function::Host;
use serde_json::Value;

use super::EnvironmentUnusable;
use crate::{AgentSpec, Environment, World};

/// Settings of one kind of environment. The defaults are those of a game of this program.
pub(crate) trait Kind {
    /// Checks the settings.
    fn validate(&self) -> Result<(), SettingError>;

    /// Maximum number of turns in an episode.
    fn max_turns(&self) -> usize;

    /// True if the environment gives step rewards.
    fn has_steps(&self) -> bool {
        true
    }

    /// True if the environment reads the reference answers of tasks.
    fn reads_answer(&self) -> bool {
        true
    }

    /// True if the environment plays only tasks of the generator with its name, which files may contain as well.
    fn is_game(&self) -> bool {
        true
    }

    /// The generator whose tasks it plays, if that is another than the one with its name.
    fn game(&self) -> Option<&'static str> {
        None
    }

    /// The agents of an environment with several; empty otherwise.
    fn agents(&self) -> Vec<AgentSpec> {
        Vec::new()
    }

    /// True if each of several agents takes a single turn that depends on no other.
    fn combines_turns(&self) -> bool {
        false
    }

    /// Creates an environment with several agents.
    fn world(&self) -> Option<Arc<dyn World>> {
        None
    }

    /// What the policy sees of earlier turns; `None` if there are none.
    fn history(&self) -> Option<&History> {
        None
    }

    /// The reasoning of earlier turns, if the chat template drops it.
    fn earlier_reasoning(&self) -> EarlierReasoning {
        EarlierReasoning::Keep
    }

    /// All characters of the observations.
    fn alphabet(&self) -> String;

    /// Makes paths absolute.
    fn make_absolute(&mut self) {}

    /// The Python function, if it is one.
    fn python_function(&self) -> Option<&str> {
        None
    }

    /// Number of processes of a Python function.
    fn processes(&self) -> Option<usize> {
        None
    }

    /// Checks what the environment needs on the machines of `host` or on this one.
    fn check(&self, _host: Option<Arc<dyn Host>>) -> Result<(), EnvironmentUnusable> {
        Ok(())
    }

    /// The tools that prompts declare, as chat templates receive them.
    fn declared_tools(&self) -> Result<Vec<Value>, EnvironmentUnusable> {
        Ok(Vec::new())
    }

    /// Creates the environment of a single agent with a full history.
    fn environment(
        &self,
        timeout: Duration,
        host: Option<Arc<dyn Host>>,
    ) -> Result<Arc<dyn Environment>, EnvironmentUnusable>;
}
