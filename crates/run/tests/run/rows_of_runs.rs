//! Rows of data files in whole runs: prompts that are too long, rows without answers, fields that only a reward reads.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use miette::Diagnostic;
use rloom_config::Config;
use rloom_core::metric;
use rloom_hub::Hub;
use rloom_reward::{Assessment, Completion, JudgeError, OnError, Reward, Scorer};
use rloom_run::assembly::EmbeddedEngines;
use rloom_run::{
    EpisodeHook, Policy, ResumeOptions, RunError, RunInputs, StopFlag, Summary, context, train_on,
};
use rloom_telemetry::{Event, EventLine, Observer, PromptSummary, read_events};
use serde_json::{Value, json};

const TEXT: &str = r#"
[run]
name = "rows"
threads = 2
checkpoint_every = 1
[model.new]
layers = 1
hidden_size = 16
heads = 2
intermediate_size = 24
max_positions = 24
[tokenizer]
alphabet = "abcdefghijklmnopqrstuvwxyz "
[sampling]
max_new_tokens = 4
[[stage]]
name = "rl"
method = "grpo"
steps = 4
groups_per_batch = 2
[stage.algorithm]
group_size = 2
"#;

struct Trial {
    folder: tempfile::TempDir,
}

impl Trial {
    fn new(rows: &[Value]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let text: String = rows.iter().flat_map(|row| [row.to_string(), "\n".to_owned()]).collect();
        std::fs::write(folder.path().join("data.jsonl"), text).unwrap();
        Self { folder }
    }

    fn config(&self, overrides: &[&str]) -> Config {
        let path = self.folder.path().display();
        let own = [format!("run.directory={path}"), format!("data.path={path}/data.jsonl")];
        let reward = "reward.components=[{kind='length',max_tokens=2}]";
        let own = own.iter().map(String::as_str).chain([reward]);
        let all: Vec<&str> = own.chain(overrides.iter().copied()).collect();
        Config::from_text("rows.toml", TEXT, &all).map_err(|errors| errors.to_string()).unwrap()
    }

    fn train(&self, overrides: &[&str]) -> Result<Summary, RunError> {
        rloom_run::train(&self.config(overrides), &mut (), &StopFlag::default())
    }

    fn refusal(&self, overrides: &[&str]) -> String {
        let error = self.train(overrides).unwrap_err();
        let hint = error.help().map(|hint| format!(" [{hint}]")).unwrap_or_default();
        format!("{error}{hint}").replace(&format!("{}/", self.run().parent().unwrap().display()), "")
    }

    fn run(&self) -> std::path::PathBuf {
        self.folder.path().join("rows")
    }

    fn events(&self) -> Vec<Event> {
        read_events(&self.run().join("events.jsonl")).unwrap().into_iter().map(|line| line.event).collect()
    }

    /// Tokens that carry loss in each step of two groups.
    fn learned_tokens(&self) -> Vec<f64> {
        let tokens = |event: Event| match event {
            Event::Step { metrics, .. } => Some(metrics[metric::MEAN_LENGTH] * 2.0),
            _ => None,
        };
        self.events().into_iter().filter_map(tokens).collect()
    }

    fn prompts(&self) -> Vec<PromptSummary> {
        let prompts = self.events().into_iter().filter_map(|event| match event {
            Event::Prompts(summary) => Some(summary),
            _ => None,
        });
        prompts.collect()
    }
}

/// Rows whose prompts have 3 and, for every fifth, 22 tokens.
fn some_long() -> Vec<Value> {
    let prompt = |n: usize| if n % 5 == 4 { "b".repeat(22) } else { "aaa".to_owned() };
    (0..20).map(|n| json!({"prompt": prompt(n), "answer": "a", "number": n})).collect()
}

#[test]
fn prompts_without_room_are_refused_before_the_first_step() {
    let trial = Trial::new(&some_long());
    assert_eq!(
        trial.refusal(&[]),
        "rl: data.jsonl:5: the prompt has 22 tokens, but only 20 fit: the context is 24 and a completion has up to 4; \
         4 of 20 prompts exceed 20 tokens, the longest has 22 [set `data.max_prompt_tokens = 20` to drop longer prompts, \
         lower `sampling.max_new_tokens`, or use a model with a longer context]"
    );
    let started = trial.events().iter().any(|event| matches!(event, Event::StageStarted { .. }));
    assert!(!started, "a stage started");
}

#[test]
fn the_prompts_of_later_stages_are_refused_before_the_first_one() {
    let trial = Trial::new(&some_long());
    let stage = "stage.rl.data.max_prompt_tokens=20";
    let eval = ["eval.every=9", "eval.tasks=20", "eval.reward.components=[{kind='exact'}]"];
    let path = format!("eval.data.eval_path={}/data.jsonl", trial.folder.path().display());
    // Evaluation takes over the key of the stage unless it has its own.
    let own = "eval.data.max_prompt_tokens=22";
    let overrides: Vec<&str> = eval.into_iter().chain([path.as_str(), stage, own]).collect();
    let text = trial.refusal(&overrides);
    assert!(text.starts_with("eval: data.jsonl:5: the prompt has 22 tokens"), "{text}");
}

/// A run with one supervised stage of one step.
fn supervised(trial: &Trial, overrides: &[&str]) -> Result<Summary, RunError> {
    let stage = "[[stage]]\nname = \"sft\"\nmethod = \"sft\"\nsteps = 1\ngroups_per_batch = 2\n";
    let text = TEXT.split("[sampling]").next().unwrap().to_owned() + stage;
    let path = trial.folder.path().display();
    let own = [format!("run.directory={path}"), format!("data.path={path}/data.jsonl")];
    let all: Vec<&str> = own.iter().map(String::as_str).chain(overrides.iter().copied()).collect();
    let config = Config::from_text("rows.toml", &text, &all).map_err(|e| e.to_string()).unwrap();
    rloom_run::train(&config, &mut (), &StopFlag::default())
}

/// Rows with completions of these lengths, without the end token.
fn completions(lengths: &[usize]) -> Trial {
    let row = |length: &usize| json!({"prompt": "aaa", "completion": "b".repeat(*length)});
    Trial::new(&lengths.iter().map(row).collect::<Vec<_>>())
}

#[test]
fn demonstrations_must_fit_into_the_context() {
    let error = supervised(&completions(&[4, 20, 21, 30]), &[]).unwrap_err();
    // With the end token: 3 + 21 tokens fit.
    let text = error.to_string();
    assert!(
        text.ends_with(
            "data.jsonl:3: prompt and completion have 3 + 22 tokens, but only 24 fit; 2 of 4 rows exceed it, the longest has \
             34 tokens"
        ),
        "{text}"
    );
}

#[test]
fn long_rows_are_dropped_or_cut_and_counted() {
    for (rule, tasks, long, cut, longest) in
        [("drop", 2, 2, 0, 21), ("keep_start", 4, 0, 2, 21), ("keep_end", 4, 0, 2, 23)]
    {
        let trial = completions(&[4, 20, 21, 30]);
        supervised(&trial, &[&format!("data.too_long={rule}")]).unwrap();
        let [summary] = trial.prompts().try_into().unwrap();
        let rows = summary.rows.clone().unwrap();
        assert_eq!((summary.tasks, summary.dropped, summary.room), (tasks, 0, 24), "{rule}");
        assert_eq!((rows.kind.as_str(), rows.no_room), ("demonstrations", 0), "{rule}");
        assert_eq!((rows.long, rows.cut, rows.longest), (long, cut, longest), "{rule}");
        assert_eq!(trial.learned_tokens().len(), 1, "{rule}");
    }
    // With a limit of their own, and one that leaves no room for a completion.
    let trial = completions(&[4, 20, 21]);
    supervised(&trial, &["data.too_long=drop", "data.max_tokens=8"]).unwrap();
    assert_eq!((trial.prompts()[0].tasks, trial.prompts()[0].room), (1, 8));
    let error =
        supervised(&completions(&[4, 5]), &["data.too_long=keep_start", "data.max_tokens=3"]).unwrap_err();
    assert_eq!(error.to_string(), "sft: all 2 rows have more than 3 tokens; the shortest has 8");
}

#[test]
fn loss_is_on_as_many_tokens_as_the_data_says() {
    let row = |prompt: &str| json!({"prompt": prompt, "completion": "bb"});
    for (overrides, tokens) in [(vec![], 6.0), (vec!["data.loss_on=all"], 6.0 + 4.0 + 2.0)] {
        let trial = Trial::new(&[row("aaaaa"), row("aaa")]);
        supervised(&trial, &overrides).unwrap();
        assert_eq!(trial.learned_tokens(), [tokens], "{overrides:?}");
    }
    let trial = Trial::new(&[json!({"text": "abc"}), json!({"text": "abcdef"})]);
    supervised(&trial, &[]).unwrap();
    assert_eq!(trial.learned_tokens(), [3.0 + 6.0]);
    let trial = Trial::new(&[json!({"chosen": "abc", "rejected": "abd"})]);
    let text = supervised(&trial, &[]).unwrap_err().to_string();
    assert!(
        text.contains("learns from demonstrations, but the row has the fields of preference pairs"),
        "{text}"
    );
}

#[test]
fn rows_that_are_read_as_texts_need_no_environment() {
    let trial = Trial::new(&[
        json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}),
    ]);
    let text = supervised(
        &trial,
        &[
            "environment.kind=guess",
            "data.loss_on=assistant",
            "tokenizer.alphabet=abcdefghijklmnopqrstuvwxyz 0123456789:-<=>?",
        ],
    )
    .unwrap_err()
    .to_string();
    assert_eq!(
        text,
        "sft: `loss_on = \"assistant\"`: only for the environment `single_turn`, but the stage has `guess`; remove one of the two"
    );
}

#[test]
fn longer_prompts_are_dropped_and_counted() {
    let trial = Trial::new(&some_long());
    let limit = "data.max_prompt_tokens=10";
    trial.train(&[limit]).unwrap();
    let expected = PromptSummary {
        used_by: "rl".into(),
        tasks: 16,
        measured: 16,
        median: 3,
        longest: 3,
        room: 20,
        dropped: 4,
        rows: None,
    };
    assert_eq!(trial.prompts(), [expected]);
    let record = std::fs::read_to_string(trial.run().join("data.json")).unwrap();
    let record: Value = serde_json::from_str(&record).unwrap();
    assert_eq!(record["orders"]["rl"]["len"], 16, "{record}");
    // Another limit gives another list of tasks.
    for change in ["stage.rl.data.max_prompt_tokens=15", "stage.rl.data.max_prompt_tokens=22"] {
        let stored = trial.run().join("config.toml");
        let config = Config::load(&[stored], &[change]).map_err(|errors| errors.to_string()).unwrap();
        let options = ResumeOptions::default();
        let error =
            rloom_run::resume(&trial.run(), &config, options, &mut (), &StopFlag::default()).unwrap_err();
        assert!(error.to_string().contains("the order of the tasks depends on it"), "{error}");
    }
    let none = Trial::new(&some_long()).refusal(&["data.max_prompt_tokens=2"]);
    assert!(
        none.starts_with(
            "rl: all 20 prompts are longer than `max_prompt_tokens = 2`; the shortest has 3 tokens"
        ),
        "{none}"
    );
}

/// A stage with a tool follows one without, on the same rows: the declaration of the tool is part of its prompts.
#[test]
fn declared_tools_are_part_of_measured_prompts() {
    let trial = Trial::new(&[json!({"prompt": "aa"}), json!({"prompt": "bbbbb"})]);
    let template = "tokenizer.chat_template='{% for m in messages %}{{ m.content }}{% endfor %}\
                    {% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}'";
    let stage = "[[stage]]\nname = \"tools\"\nmethod = \"grpo\"\nsteps = 2\ngroups_per_batch = 2\n\
                 environment = { kind = \"tools\", format = \"tags\", tools = [{ kind = \"calculator\" }] }\n\
                 algorithm = { group_size = 2 }\n";
    let config = |more: &str| {
        let own = trial.config(&[]);
        let path = own.run_directory().parent().unwrap().display().to_string();
        let (directory, data) = (format!("run.directory={path}"), format!("data.path={path}/data.jsonl"));
        let overrides = [
            directory.as_str(),
            data.as_str(),
            "reward.components=[{kind='length',max_tokens=2}]",
            "data.chat=true",
            template,
            "stage.rl.steps=1",
            more,
        ];
        Config::from_text("rows.toml", &format!("{TEXT}{stage}"), &overrides)
            .map_err(|e| e.to_string())
            .unwrap()
    };
    let longest = |config: &Config| -> Vec<(u64, u64)> {
        let measured = rloom_run::measure_prompts_of(config, 24).unwrap().unwrap();
        measured.iter().map(|summary| (summary.longest, summary.dropped)).collect()
    };
    let name = "calculator".len() as u64;
    assert_eq!(longest(&config("data.max_prompt_tokens=20")), [(5, 0), (5 + name, 0)]);
    let limited = config("data.max_prompt_tokens=12");
    assert_eq!(longest(&limited), [(5, 0), (2 + name, 1)]);
    // Each stage trains on the rows that fit its own prompts.
    rloom_run::train(&limited, &mut (), &StopFlag::default()).unwrap();
    let tasks = |file: &str| -> std::collections::BTreeSet<u64> {
        let path = trial.run().join("rollouts").join(file);
        let text = String::from_utf8(zstd::decode_all(std::fs::File::open(path).unwrap()).unwrap()).unwrap();
        text.lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["task"].as_u64().unwrap())
            .collect()
    };
    assert_eq!(tasks("rl-step-000001.jsonl.zst"), [0, 1].into());
    assert_eq!(tasks("tools-step-000002.jsonl.zst"), [0].into());
    let none = rloom_run::measure_prompts_of(&config("data.max_prompt_tokens=11"), 24).unwrap_err();
    assert!(none.to_string().contains("the shortest has 12 tokens"), "{none}");
}

#[test]
fn answers_are_needed_by_rewards_that_read_them() {
    let rows: Vec<Value> = (0..4).map(|_| json!({"prompt": "a", "label": "b"})).collect();
    Trial::new(&rows).train(&[]).unwrap();
    let refusal =
        Trial::new(&rows).refusal(&["reward.components=[{kind='length',max_tokens=2},{kind='math'}]"]);
    assert_eq!(
        refusal,
        "data.jsonl:1: no field `answer` or `solution`, which the reward `math` reads; the row's other fields are `label` \
         [name the field with `answer_field`, or use a reward that reads no answer, such as `length` or `format`]"
    );
    let data = [&rows[..3], &[json!({"prompt": "a"})]].concat();
    let named = ["reward.components=[{kind='exact'}]", "data.answer_field=label"];
    let refusal = Trial::new(&data).refusal(&named);
    assert!(
        refusal.starts_with("data.jsonl:4: no field `label`, which the reward `exact` reads"),
        "{refusal}"
    );
}

/// Records the numbers of the rows that it sees, by the index of their tasks.
#[derive(Debug)]
struct ReadsNumber(Arc<Mutex<BTreeMap<u64, Value>>>);

impl Reward for ReadsNumber {
    fn judge(&self, completion: &Completion<'_>) -> Result<Assessment, JudgeError> {
        let number = completion.task.extra.get("number").cloned().unwrap_or_default();
        let value = number.as_f64().unwrap_or(-1.0) + completion.tokens as f64;
        self.0.lock().unwrap().insert(completion.task.index, number);
        Ok(Assessment::value(value))
    }
}

/// Stops after a step.
struct StopAfter(u64, StopFlag);

impl Observer for StopAfter {
    fn observe(&mut self, line: &EventLine) {
        if line.step == self.0 && matches!(line.event, Event::Step { .. }) {
            self.1.request();
        }
    }
}

/// Runs with a reward that reads a field, and returns the numbers that it saw.
fn run_with_reader(config: &Config, stop_after: Option<u64>) -> BTreeMap<u64, Value> {
    let seen = Arc::new(Mutex::new(BTreeMap::new()));
    let (policy, ctx) =
        (Policy::initial(config, &Hub::from_env()).unwrap(), context(config.run.threads).unwrap());
    let of_hook = Arc::clone(&seen);
    let hook = EpisodeHook::new(move |settings| {
        let reward: Box<dyn Reward> = Box::new(ReadsNumber(Arc::clone(&of_hook)));
        settings.scorer =
            Arc::new(Scorer::from_rewards(vec![("reader".into(), 1.0, reward)], OnError::Fatal));
    });
    let inputs = RunInputs {
        episode_hook: Some(hook),
        ..RunInputs::new(&policy, Arc::new(Hub::from_env()), ctx.threads(), config.run.seed)
    };
    let engines = EmbeddedEngines::new(&policy, config, ctx);
    let stop = StopFlag::default();
    let mut observer = StopAfter(stop_after.unwrap_or(u64::MAX), stop.clone());
    let summary = loop {
        match train_on(config, &engines, &inputs, &mut observer, &stop) {
            // The training thread may still hold the lock.
            Err(RunError::Store(rloom_store::StoreError::Locked { .. })) => std::thread::yield_now(),
            ended => break ended.unwrap(),
        }
    };
    assert_eq!(summary.interrupted, stop_after.is_some());
    seen.lock().unwrap().clone()
}

#[test]
fn other_fields_of_a_row_reach_the_reward_also_after_resuming() {
    let weights =
        |run: &Path| std::fs::read(run.join("checkpoints/rl-step-000004/model.safetensors")).unwrap();
    let undisturbed = Trial::new(&some_long());
    // With pinned versions two runs give the same bytes.
    let overrides = ["data.max_prompt_tokens=10", "schedule.max_staleness=1", "schedule.pin_version=true"];
    let all = run_with_reader(&undisturbed.config(&overrides), None);
    let trial = Trial::new(&some_long());
    let config = trial.config(&overrides);
    let [first, second] = [Some(2), None].map(|stop_after| run_with_reader(&config, stop_after));
    for seen in [&all, &first, &second] {
        assert!(!seen.is_empty());
        assert!(seen.iter().all(|(index, number)| *number == json!(index)), "{seen:?}");
    }
    assert!(all.len() >= 8, "{all:?}");
    assert!(weights(&trial.run()) == weights(&undisturbed.run()), "a resumed run sees the same fields");
}
