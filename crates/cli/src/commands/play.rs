//! `rloom env`: lists the environments, and plays an episode in the terminal.

use std::fmt::Display;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use rloom_config::Config;
use rloom_core::{Purpose, RandomKey, SampleKey, Ticket};
use rloom_data::{DataSettings, Dataset, Split};
use rloom_env::{Attempt, Environment, EnvironmentSettings, Progress, Turn};
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
        if output.json {
            output.json(&json!({"name": name, "about": about, "playable": is_playable(name)}))?;
        } else {
            output.data(&format!("{name:<width$}  {about}"))?;
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
    if !Path::new(path).is_file() {
        return Err(Failure::usage_text(format_args!("`{name}` is neither a game nor a recipe"))
            .hint("`rloom env list` lists the games"));
    }
    let opponent = opponent.map(|value| format!("environment.{value}"));
    let overrides: Vec<String> = arguments.overrides.iter().cloned().chain(opponent).collect();
    let config = Config::load(&[path], &overrides)?;
    let stage = config.stages.last().ok_or_else(|| Failure::usage_text("the recipe has no stage"))?;
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
    let (settings, data) = source(arguments)?;
    let split = if data.has_held_out() { Split::Eval } else { Split::Train };
    let dataset = Dataset::open(&data, split, arguments.seed).map_err(Failure::usage)?;
    let task = dataset.get(arguments.task).map_err(Failure::usage)?;
    let environment = settings.environment(TIMEOUT, None).map_err(Failure::usage)?;
    let tokenizer = tokenizer()?;
    let key = SampleKey { ticket: Ticket(arguments.task), sample: 0, segment: 0 };
    let random = RandomKey::for_sample(arguments.seed, 0, Purpose::Interactive, key);
    let attempt = Attempt::start(environment.as_ref(), &task, &tokenizer, CONTEXT, random);
    let attempt = attempt.await.map_err(Failure::failed)?;
    let mut table = Table { attempt, tokenizer, shown: 0, total: 0.0, output, environment };
    table.show()?;
    while let Some(line) = table.read()? {
        if line.is_empty() {
            table.shown = 0;
            table.show()?;
        } else if table.turn(&line).await? == Progress::Done {
            return Ok(());
        }
    }
    output.info("the episode was not finished");
    Ok(())
}

/// One token per character of any text that is likely to occur.
fn tokenizer() -> Result<Tokenizer, Failure> {
    let ranges =
        ['\t'..='\n', ' '..='~', '\u{a0}'..='\u{33ff}', '\u{4e00}'..='\u{9fff}', '\u{fe0f}'..='\u{fe0f}'];
    let emoji = '\u{1f300}'..='\u{1faff}';
    let alphabet: String = ranges.into_iter().chain([emoji]).flatten().collect();
    let settings =
        CharacterSettings { chat_template: Some(TEMPLATE.to_owned()), ..CharacterSettings::new(alphabet) };
    Tokenizer::characters(&settings).map_err(Failure::failed)
}

/// An episode in the terminal.
struct Table {
    attempt: Attempt,
    tokenizer: Tokenizer,
    /// Number of tokens that are on the screen.
    shown: usize,
    total: f64,
    output: Output,
    /// Lives as long as the episode.
    #[expect(dead_code, reason = "holds the processes of the episode")]
    environment: Arc<dyn Environment>,
}

impl Table {
    /// Shows what is new: prompt or observation, and the board.
    fn show(&mut self) -> Result<(), Failure> {
        let text = self.unseen()?;
        if self.output.json {
            let view = self.attempt.view();
            let (board, moves) = view.map(|view| (view.board, view.moves)).unzip();
            return self.output.json(&json!({"observation": text, "board": board, "moves": moves}));
        }
        self.output.data(text.trim_end())?;
        if let Some(view) = self.attempt.view() {
            self.output.data(&format!("\n{}", view.board))?;
            if !view.moves.is_empty() {
                self.note(format_args!("moves: {}", view.moves.join(" ")));
            }
        }
        Ok(())
    }

    /// The text that is not on the screen yet.
    fn unseen(&mut self) -> Result<String, Failure> {
        let tokens = self.attempt.tokens();
        let text = self.tokenizer.decode(&tokens[self.shown.min(tokens.len())..], true);
        self.shown = tokens.len();
        text.map_err(Failure::failed)
    }

    /// The next line; `None` at the end of the input.
    fn read(&self) -> Result<Option<String>, Failure> {
        if io::stdin().is_terminal() && !self.output.json {
            let _ = write!(io::stderr().lock(), "{} ", self.output.paint(BOLD, ">"));
        }
        let mut line = String::new();
        let read = io::stdin().lock().read_line(&mut line).map_err(Failure::failed_text)?;
        Ok((read > 0).then(|| line.trim().to_owned()))
    }

    async fn turn(&mut self, text: &str) -> Result<Progress, Failure> {
        let mut tokens = self.tokenizer.encode(text, false).map_err(Failure::usage)?;
        tokens.extend(self.tokenizer.eos_id());
        let written = tokens.len();
        let (segment, before) = (self.attempt.key(), self.attempt.tokens().len());
        let progress = self.attempt.turn(Turn::unsampled(tokens)).await.map_err(Failure::failed)?;
        // A new segment is shown from its beginning: it is all that the policy would see.
        self.shown = if self.attempt.key() == segment { before + written } else { 0 };
        let reward = self.attempt.step_rewards().last();
        self.total += reward.unwrap_or(0.0);
        if let Some(reward) = reward {
            self.tell("reward", reward)?;
        }
        if progress == Progress::Continue {
            self.show()?;
        } else {
            if let (Some(view), false) = (self.attempt.view(), self.output.json) {
                self.output.data(&format!("\n{}", view.board))?;
            }
            self.tell("total", self.total)?;
        }
        Ok(progress)
    }

    fn tell(&self, name: &str, value: f64) -> Result<(), Failure> {
        if self.output.json {
            return self.output.json(&json!({name: value}));
        }
        self.output.data(&format!("{name} {value}"))
    }

    fn note(&self, text: impl Display) {
        self.output.info(&self.output.paint(FAINT, &text.to_string()));
    }
}
