//! `rloom env`: lists the environments, and plays an episode in the terminal.

use std::fmt::Display;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use rloom_config::Config;
use rloom_core::{Purpose, RandomKey, SampleKey, Task, Ticket};
use rloom_data::{DataSettings, Dataset, Split};
use rloom_env::{AgentEnvironment, Attempt, Environment, EnvironmentSettings, Progress, Turn};
use rloom_text::calls::CallFormat;
use rloom_text::{CharacterSettings, Tokenizer};
use serde_json::{Map, Value, json};

use crate::arguments::{Env, Play};
use crate::failure::Failure;
use crate::output::{BOLD, FAINT, Output};

/// Tokens of an episode; more than anybody types.
const CONTEXT: usize = 1 << 24;
/// Timeout of one answer of a Python environment.
const TIMEOUT: Duration = Duration::from_mins(1);
/// Renders messages as their text. An episode of messages needs a template; this one keeps every token.
const TEMPLATE: &str = "{% for m in messages %}{{ m.content }}\n{% endfor %}";

pub(crate) fn run(command: &Env, output: Output) -> Result<(), Failure> {
    match command {
        Env::List => list(output),
        Env::Play(arguments) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.map_err(Failure::failed_text)?.block_on(play(arguments, output))
        }
    }
}

fn list(output: Output) -> Result<(), Failure> {
    let kinds = EnvironmentSettings::KINDS;
    let width = kinds.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, about) in kinds {
        let about = about.trim();
        let with_recipe =
            if is_playable(name) || *name == AgentEnvironment::NAME { "" } else { " Played with a recipe." };
        if output.json {
            output.json(&json!({"name": name, "about": about, "playable": is_playable(name)}))?;
        } else {
            output.data(&format!("{name:<width$}  {about}{with_recipe}"))?;
        }
    }
    output.info(&format!("\nPlay one: {}", output.paint(BOLD, "rloom env play NAME")));
    Ok(())
}

/// True if a person can play it by its name: there is a generator of its tasks.
fn is_playable(name: &str) -> bool {
    DataSettings::is_game(name)
}

/// Environment, tasks and seed.
fn source(arguments: &Play) -> Result<(EnvironmentSettings, DataSettings), Failure> {
    let path = &arguments.source;
    let opponent = arguments.opponent.and_then(|opponent| opponent.to_possible_value());
    let opponent = opponent.map(|value| format!("opponent={}", value.get_name()));
    let name = path.to_string_lossy();
    if is_playable(&name) {
        let own = arguments.overrides.iter().chain(&opponent);
        return game(&name, own.map(String::as_str));
    }
    if EnvironmentSettings::KINDS.iter().any(|(kind, _)| *kind == name) {
        let text = format_args!("`{name}` has no tasks of its own: it is played with a recipe that has them");
        return Err(Failure::usage_text(text));
    }
    if !Path::new(path).is_file() {
        return Err(Failure::usage_text(format_args!("`{name}` is neither a game nor a recipe"))
            .hint("`rloom env list` lists the games"));
    }
    let opponent = opponent.map(|value| format!("environment.{value}"));
    let overrides: Vec<String> = arguments.overrides.iter().cloned().chain(opponent).collect();
    let config = Config::load(&[path], &overrides)?;
    let stage = config.stages.last().ok_or_else(|| Failure::usage_text("the recipe has no stage"))?;
    if stage.environment.agent().is_some() {
        return Err(Failure::usage_text("the program of an `agent` environment plays its episodes"));
    }
    Ok((stage.environment.clone(), stage.data.clone()))
}

/// A game of this program with its own tasks.
fn game<'a>(
    name: &str,
    overrides: impl Iterator<Item = &'a str>,
) -> Result<(EnvironmentSettings, DataSettings), Failure> {
    let mut environment = Map::from_iter([("kind".to_owned(), json!(name))]);
    let mut data = Map::from_iter([("generator".to_owned(), json!(name))]);
    for setting in overrides {
        let (key, value) = setting
            .split_once('=')
            .ok_or_else(|| Failure::usage_text(format_args!("--set {setting}: expected KEY=VALUE")))?;
        let value = serde_json::from_str(value).unwrap_or_else(|_| json!(value));
        let key = key.strip_prefix("environment.").unwrap_or(key);
        match key.strip_prefix("data.") {
            Some(key) => data.insert(key.to_owned(), value),
            None => environment.insert(key.to_owned(), value),
        };
    }
    let environment: EnvironmentSettings =
        serde_json::from_value(Value::Object(environment)).map_err(Failure::usage_text)?;
    environment.validate().map_err(Failure::usage)?;
    let data: DataSettings = serde_json::from_value(Value::Object(data)).map_err(Failure::usage_text)?;
    data.validate().map_err(Failure::usage)?;
    Ok((environment, data))
}

async fn play(arguments: &Play, output: Output) -> Result<(), Failure> {
    let (mut settings, data) = source(arguments)?;
    if let EnvironmentSettings::Tools(tools) = &mut settings {
        // The format of a model is tedious to type.
        tools.format = tools.format.or(Some(CallFormat::Tags));
    }
    if data.is_on_a_hub() {
        output.info("loading the tasks from the hub");
    }
    let split = if data.has_held_out() { Split::Eval } else { Split::Train };
    let dataset = Dataset::open(&data, split, arguments.seed).map_err(Failure::usage)?;
    let game = Game {
        environment: settings.environment(TIMEOUT, None).map_err(Failure::usage)?,
        tokenizer: tokenizer()?,
        has_rewards: settings.has_steps(),
        seed: arguments.seed,
        output,
    };
    game.introduce(&settings)?;
    let mut index = arguments.task;
    loop {
        let task = dataset.get(index).map_err(Failure::usage)?;
        let is_over = Table::start(&game, &task, index).await?.play().await?;
        index += 1;
        if !is_over || !game.is_interactive() || index >= dataset.len() {
            return Ok(());
        }
        game.note("Enter: the next episode, Ctrl-D: the end");
        if game.read()?.is_none() {
            return Ok(());
        }
    }
}

/// One token per character of any text that is likely to occur.
fn tokenizer() -> Result<Tokenizer, Failure> {
    let ranges =
        ['\0'..='\u{33ff}', '\u{4e00}'..='\u{9fff}', '\u{ac00}'..='\u{d7a3}', '\u{fe00}'..='\u{fffd}'];
    let mathematics_and_emoji = ['\u{1d400}'..='\u{1d7ff}', '\u{1f000}'..='\u{1faff}'];
    let alphabet: String = ranges.into_iter().chain(mathematics_and_emoji).flatten().collect();
    let settings =
        CharacterSettings { chat_template: Some(TEMPLATE.to_owned()), ..CharacterSettings::new(alphabet) };
    Tokenizer::characters(&settings).map_err(Failure::failed)
}

/// What all episodes share.
struct Game {
    /// Holds the processes of the episodes.
    environment: Arc<dyn Environment>,
    tokenizer: Tokenizer,
    has_rewards: bool,
    seed: u64,
    output: Output,
}

impl Game {
    fn is_interactive(&self) -> bool {
        io::stdin().is_terminal() && !self.output.json
    }

    /// Says what is played, and which tools there are.
    fn introduce(&self, settings: &EnvironmentSettings) -> Result<(), Failure> {
        if self.output.json {
            return Ok(());
        }
        let mut kinds = EnvironmentSettings::KINDS.iter();
        if let Some((_, about)) = kinds.find(|(name, _)| *name == settings.name() && is_playable(name)) {
            self.note(about.trim());
        }
        let tools = settings.declared_tools().map_err(Failure::usage)?;
        if !tools.is_empty() {
            let tools: Vec<String> = tools.iter().map(signature).collect();
            self.note(format_args!("tools: {}", tools.join(", ")));
            if matches!(settings, EnvironmentSettings::Tools(tools) if tools.format == Some(CallFormat::Tags))
            {
                self.note("a call: <NAME>argument</NAME>; a turn without a call is the last one");
            }
        }
        Ok(())
    }

    /// The next line; `None` at the end of the input.
    fn read(&self) -> Result<Option<String>, Failure> {
        if self.is_interactive() {
            let _ = write!(io::stderr().lock(), "{} ", self.output.paint(BOLD, ">"));
        }
        let mut line = String::new();
        let read = io::stdin().lock().read_line(&mut line).map_err(Failure::failed_text)?;
        if read == 0 && self.is_interactive() {
            // The cursor is behind the prompt.
            self.output.info("");
        }
        Ok((read > 0).then(|| line.trim().to_owned()))
    }

    fn note(&self, text: impl Display) {
        self.output.info(&self.output.paint(FAINT, &text.to_string()));
    }
}

/// Name and parameters of a tool.
fn signature(tool: &Value) -> String {
    let function = &tool["function"];
    let parameters = function["parameters"]["properties"].as_object().into_iter().flat_map(Map::keys);
    let parameters: Vec<&str> = parameters.map(String::as_str).collect();
    format!("{}({})", function["name"].as_str().unwrap_or_default(), parameters.join(", "))
}

/// An episode in the terminal.
struct Table<'g> {
    game: &'g Game,
    attempt: Attempt,
    /// Number of tokens that are on the screen.
    shown: usize,
    turns: u32,
    total: f64,
}

impl<'g> Table<'g> {
    async fn start(game: &'g Game, task: &Task, index: u64) -> Result<Self, Failure> {
        let key = SampleKey { ticket: Ticket(index), sample: 0, segment: 0 };
        let random = RandomKey::for_sample(game.seed, 0, Purpose::Interactive, key);
        let attempt = Attempt::start(game.environment.as_ref(), task, &game.tokenizer, CONTEXT, random);
        Ok(Self { game, attempt: attempt.await.map_err(Failure::failed)?, shown: 0, turns: 0, total: 0.0 })
    }

    /// Plays the episode. Returns false if the input ended before it.
    async fn play(mut self) -> Result<bool, Failure> {
        self.show()?;
        while let Some(line) = self.game.read()? {
            if line.is_empty() {
                self.shown = 0;
                self.show()?;
            } else if self.turn(&line).await? == Progress::Done {
                return Ok(true);
            }
        }
        self.game.output.info("the episode was not finished");
        Ok(false)
    }

    /// Shows what is new: prompt or observation, and the board.
    fn show(&mut self) -> Result<(), Failure> {
        let (text, output) = (self.unseen()?, self.game.output);
        if output.json {
            let view = self.attempt.view();
            let (board, moves) = view.map(|view| (view.board, view.moves)).unzip();
            return output.json(&json!({"observation": text, "board": board, "moves": moves}));
        }
        output.data(&output.model_text(text.trim_end()))?;
        if let Some(view) = self.attempt.view() {
            output.data(&format!("\n{}", view.board))?;
            if !view.moves.is_empty() {
                self.game.note(format_args!("moves: {}", view.moves.join(" ")));
            }
        }
        Ok(())
    }

    /// The text that is not on the screen yet.
    fn unseen(&mut self) -> Result<String, Failure> {
        let tokens = self.attempt.tokens();
        let text = self.game.tokenizer.decode(&tokens[self.shown.min(tokens.len())..], true);
        self.shown = tokens.len();
        text.map_err(Failure::failed)
    }

    async fn turn(&mut self, text: &str) -> Result<Progress, Failure> {
        let Game { tokenizer, has_rewards, output, .. } = self.game;
        let mut tokens = match tokenizer.encode(text, false) {
            Ok(tokens) => tokens,
            Err(error) if self.game.is_interactive() => {
                output.warn(&error.to_string());
                return Ok(Progress::Continue);
            }
            Err(error) => return Err(Failure::usage(error)),
        };
        let is_illegal = self
            .attempt
            .view()
            .is_some_and(|view| !view.moves.is_empty() && !view.moves.iter().any(|legal| legal == text));
        if is_illegal {
            self.game.note(format_args!("`{text}` is not a legal move"));
        }
        tokens.extend(tokenizer.eos_id());
        let written = tokens.len();
        let (segment, before) = (self.attempt.key(), self.attempt.tokens().len());
        let progress = self.attempt.turn(Turn::unsampled(tokens)).await.map_err(Failure::failed)?;
        // A new segment is shown from its beginning: it is all that the policy would see.
        self.shown = if self.attempt.key() == segment { before + written } else { 0 };
        self.turns += 1;
        let reward = self.attempt.step_rewards().last();
        self.total += reward.unwrap_or(0.0);
        if let Some(reward) = reward {
            self.tell("reward", reward)?;
        }
        if progress == Progress::Continue {
            self.show()?;
            return Ok(progress);
        }
        if let (Some(view), false) = (self.attempt.view(), output.json) {
            output.data(&format!("\n{}", view.board))?;
        }
        if *has_rewards {
            self.tell("total", self.total)?;
        }
        self.game.note(format_args!(
            "the episode is over after {} {}",
            self.turns,
            if self.turns == 1 { "turn" } else { "turns" }
        ));
        Ok(progress)
    }

    fn tell(&self, name: &str, value: f64) -> Result<(), Failure> {
        let output = self.game.output;
        if output.json {
            return output.json(&json!({name: value}));
        }
        output.data(&format!("{name} {value}"))
    }
}
