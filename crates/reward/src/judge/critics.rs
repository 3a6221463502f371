//! Credit for each of several agents from language models: two critics and an assessor.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use rloom_core::{SettingError, SettingProblem};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::asker::Asker;
use super::error::ModelError;
use super::gate::Clock;
use super::model::JudgeModels;
use super::pairs::in_parallel;
use super::prompt::Material;
use super::reward::question;
use super::settings::{CacheSettings, Limits, ModelJudge, VerdictKind};
use crate::kind::KindSettings;
use crate::{AgentText, Assessment, Completion, ComponentError, JudgeError, Reward};

const EXPLORER: &str = "Look for what each agent has opened up: another way, a doubt that was right, something that the others did \
                        not know and could use. Value it even where the joint answer has not gained from it yet.";
const EXPLOITER: &str = "Look at the joint answer alone: how much has each agent's text moved it towards a right and complete answer, \
                         given what the others wrote? Agents that held it up or that repeat others get little.";
const ASSESSOR: &str = "Weigh what the two critics have said, correct them where the texts show that they are wrong, and settle the \
                        credit of each agent.";

/// Two critics and an assessor: language models that give each of several agents its credit, as in LLaMAC (arXiv 2311.13884).
///
/// The explorer and the exploiter read the task and the turns of all agents, and give each agent a number from 0 to 1 with their
/// reasons. The assessor reads what they have said, too, and its numbers are the verdicts. An agent's own reward is that of the
/// episode with its verdict as the value of this component; the value for the whole episode is the mean of the verdicts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Critics {
    /// The critic that values what agents open up.
    pub explorer: Critic,
    /// The critic that values what agents have done for the joint answer.
    pub exploiter: Critic,
    /// The model that settles the verdicts.
    pub assessor: Critic,
    /// Maximum number of tokens of an answer.
    #[serde(default = "default_max_tokens")]
    pub max_tokens: usize,
    /// Number of questions to each model at a time, from 1 to 1024.
    #[serde(default = "default_workers")]
    pub workers: u32,
}

/// A model of `critics`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Critic {
    /// With `url`, its name at the server; otherwise a model folder or the name of a hub model, which this process computes.
    pub model: String,
    /// Base address of a server with the interface of OpenAI, such as `https://host/v1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Name of the environment variable with the API key of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key_env: Option<String>,
    /// Its instructions, in place of those of the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rubric: Option<String>,
    /// File with the template of the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<PathBuf>,
}

fn default_max_tokens() -> usize {
    1024
}

fn default_workers() -> u32 {
    8
}

impl Critics {
    /// The models with their keys and their own instructions.
    fn all(&self) -> [(&'static str, &Critic, &'static str); 3] {
        [
            ("explorer", &self.explorer, EXPLORER),
            ("exploiter", &self.exploiter, EXPLOITER),
            ("assessor", &self.assessor, ASSESSOR),
        ]
    }

    fn judge(&self, critic: &Critic, rubric: &str) -> ModelJudge {
        let Critic { model, url, api_key_env, rubric: own, prompt } = critic.clone();
        ModelJudge {
            model,
            url,
            api_key_env,
            revision: None,
            verdict: VerdictKind::Rank,
            reasons: true,
            logprobs: false,
            scale: None,
            choices: BTreeMap::new(),
            criteria: Vec::new(),
            against: None,
            opponents: None,
            prompt,
            rubric: Some(own.unwrap_or_else(|| rubric.to_owned())),
            rubric_field: None,
            observations: false,
            max_tokens: self.max_tokens,
            workers: self.workers,
            limits: Limits::default(),
            cache: CacheSettings::default(),
            calibration: None,
            max_false_positive_rate: None,
            solved_at: None,
        }
    }

    fn check(&self) -> Result<(), SettingError> {
        for (name, critic, rubric) in self.all() {
            let checked = self.judge(critic, rubric).validate();
            checked.map_err(|SettingError { key, problem }| match key {
                "max_tokens" | "workers" => SettingError { key, problem },
                key => SettingProblem::Roles { problem: format!("`{key}`: {problem}") }.at(name),
            })?;
        }
        Ok(())
    }
}

impl KindSettings for Critics {
    fn validate(&self) -> Result<(), ComponentError> {
        Ok(self.check()?)
    }

    fn reward(&self, timeout: Duration) -> Result<Box<dyn Reward>, JudgeError> {
        let asker = |critic: &Critic, rubric: &str| {
            let judge = self.judge(critic, rubric);
            Asker::with_prompt(&judge, include_str!("prompts/critics.txt"), timeout, Clock::system())
        };
        let [explorer, exploiter, assessor] = self.all().map(|(_, critic, rubric)| asker(critic, rubric));
        Ok(Box::new(CriticsReward {
            critics: [explorer?, exploiter?],
            assessor: assessor?,
            waiting_slots: self.workers as usize,
        }))
    }

    fn is_verifier(&self) -> bool {
        false
    }

    fn needs_machine(&self) -> bool {
        true
    }

    fn files(&self) -> Vec<PathBuf> {
        self.all().into_iter().filter_map(|(_, critic, _)| critic.prompt.clone()).collect()
    }

    fn make_absolute(&mut self) {
        let judges = self.all().map(|(_, critic, rubric)| self.judge(critic, rubric));
        let critics = [&mut self.explorer, &mut self.exploiter, &mut self.assessor];
        for (critic, mut judge) in critics.into_iter().zip(judges) {
            judge.make_absolute();
            (critic.model, critic.prompt) = (judge.model, judge.prompt);
        }
    }
}

/// The critics as a reward.
#[derive(Debug)]
struct CriticsReward {
    critics: [Asker; 2],
    assessor: Asker,
    waiting_slots: usize,
}

impl CriticsReward {
    fn askers(&self) -> impl Iterator<Item = &Asker> {
        self.critics.iter().chain([&self.assessor])
    }

    fn verdicts(&self, completion: &Completion<'_>, agents: &[AgentText]) -> Result<Vec<f64>, ModelError> {
        let question = question(&completion.task.prompt);
        let texts: Vec<String> =
            agents.iter().map(|agent| format!("{}\n\n{}", agent.name, agent.text)).collect();
        let responses: Vec<&str> = texts.iter().map(String::as_str).collect();
        let material = |asker: &'_ Asker, said: &str| {
            let rubric = asker.settings.rubric.as_deref().unwrap_or_default();
            asker.answer(&Material { question: &question, reference: said, responses: &responses, rubric })
        };
        let [explorer, exploiter] = &self.critics;
        let mut said = in_parallel(&[explorer, exploiter], 2, |asker| material(asker, ""));
        let (exploiter, explorer) = (said.pop().transpose()?, said.pop().transpose()?);
        let text = |said: Option<(Vec<f64>, String)>| said.map(|(_, text)| text).unwrap_or_default();
        let both = format!("Explorer:\n{}\n\nExploiter:\n{}", text(explorer), text(exploiter));
        Ok(material(&self.assessor, &both)?.0)
    }
}

impl Reward for CriticsReward {
    fn judge(&self, _: &Completion<'_>) -> Result<Assessment, JudgeError> {
        Ok(Assessment::not_applicable())
    }

    fn judges_agents(&self) -> bool {
        true
    }

    fn judge_agents(
        &self,
        completion: &Completion<'_>,
        agents: &[AgentText],
    ) -> Result<Vec<f64>, JudgeError> {
        Ok(self.verdicts(completion, agents)?)
    }

    fn waiting_slots(&self) -> usize {
        self.waiting_slots
    }

    fn open_models(&self, models: &dyn JudgeModels) -> Result<(), JudgeError> {
        Ok(self.askers().try_for_each(|asker| asker.open(models))?)
    }

    fn prepare(&self) -> Result<(), JudgeError> {
        Ok(self.askers().try_for_each(Asker::prepare)?)
    }

    fn take_metrics(&self) -> BTreeMap<String, f64> {
        let (questions, hits) =
            self.askers().map(Asker::take_counts).fold((0, 0), |(a, b), (c, d)| (a + c, b + d));
        let cached = (questions > 0).then(|| ("judge_cached".to_owned(), hits as f64 / questions as f64));
        cached.into_iter().collect()
    }

    fn close(&self) {
        self.askers().for_each(Asker::close);
    }
}
