//! Messages of all kinds of errors. Users read these texts; the snapshots show every change of them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;

use crate::recipe::BASE;
use rloom_config::{Code, Config};

/// The error codes and messages of `text` as a second file over the base.
fn errors_of(text: &str, overrides: &[&str]) -> (Vec<Code>, String) {
    let directory = tempfile::tempdir().unwrap();
    let paths = [("base.toml", BASE), ("mine.toml", text)].map(|(name, text)| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    });
    match Config::load(&paths, overrides) {
        Ok(config) => (Vec::new(), format!("no error\n{}", config.to_toml())),
        Err(errors) => {
            let codes = errors.problems.iter().map(|p| p.code).collect();
            (codes, errors.to_string().replace(&format!("{}/", directory.path().display()), ""))
        }
    }
}

/// Compares each text and its messages with the snapshot `name`.
fn compare(name: &str, cases: &[(&str, &[Code])]) {
    let mut transcript = String::new();
    for (text, codes) in cases {
        let (found, message) = errors_of(text, &[]);
        assert_eq!(found, *codes, "{text}\n{message}");
        let _ = write!(transcript, "===== mine.toml\n{}\n=====\n{message}\n", text.trim_end());
    }
    snapshot(name, &transcript);
}

fn snapshot(name: &str, text: &str) {
    insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true, snapshot_path => "../snapshots" }, {
        insta::assert_snapshot!(name, text);
    });
}

#[test]
fn base_recipe_is_valid() {
    let (codes, text) = errors_of("", &[]);
    assert!(codes.is_empty(), "{text}");
}

#[test]
fn keys_and_types() {
    compare(
        "keys_and_types",
        &[
            ("[trainer]\nlerning_rate = 1e-5\n", &[Code::UnknownKey]),
            ("[optimizer]\nlearning_rate = 1e-5\n", &[Code::UnknownKey]),
            ("[trainer]\ngroup_size = 4\n", &[Code::UnknownKey]),
            ("[[stage]]\nname = \"rl\"\nbatch_size = 4\n", &[Code::UnknownKey]),
            ("[data]\nmax_digit = 3\n", &[Code::UnknownKey]),
            ("[reward]\ncomponents = [{ kind = \"exakt\" }]\n", &[Code::UnknownName]),
            ("[reward]\ncomponents = [{ kind = \"exact\", tolerence = 1 }]\n", &[Code::UnknownKey]),
            ("[[stage]]\nname = \"rl\"\nmethod = \"gpro\"\n", &[Code::UnknownName]),
            (
                "[trainer]\nlearning_rate = \"1e-5\"\nwarmup_steps = 1.0\n",
                &[Code::WrongType, Code::WrongType],
            ),
            ("[run]\nseed = -1\n", &[Code::OutOfRange]),
            ("data = 3\n", &[Code::WrongType]),
            ("[[stage]]\nname = \"third\"\n", &[Code::MissingKey]),
            ("[[stage]]\nname = \"rl\"\nmax_staleness = 1\n", &[Code::UnknownKey]),
            ("[rollout]\nmax_head_offpolicyness = 1\n", &[Code::UnknownKey]),
            ("[[stage]]\nname = \"rl\"\nlr_scheduler_type = \"cosine\"\n", &[Code::UnknownKey]),
            ("[schedule]\non_update = \"recompue\"\n", &[Code::UnknownName]),
            ("stage = 3\n", &[Code::WrongType]),
        ],
    );
}

#[test]
fn losses_and_advantages() {
    const RL: &str = "[[stage]]\nname = \"rl\"\n[stage.algorithm]\n";
    let cases: [(&str, &[Code]); 7] = [
        (
            "clip_low = 0.1\ngamma = 0.9\nprm.beta = 0.1\n",
            &[Code::RenamedKey, Code::RenamedKey, Code::RenamedKey],
        ),
        ("loss = \"cipso\"\n", &[Code::UnknownName]),
        ("loss = { kind = \"cispo\", wieght_cap = 4.0 }\n", &[Code::UnknownKey]),
        ("loss = { kind = \"cispo\", weight_cap = \"4\" }\n", &[Code::WrongType]),
        ("loss = { kind = \"gspo\", weight_cap = 4.0 }\n", &[Code::Unread]),
        ("loss = { epsilon = 0.1 }\n", &[Code::UnknownKey]),
        ("advantage = { kind = \"raft_pp\", keep = \"worst\" }\n", &[Code::UnknownName]),
    ];
    let texts: Vec<String> = cases.iter().map(|(text, _)| format!("{RL}{text}")).collect();
    let cases: Vec<(&str, &[Code])> =
        texts.iter().zip(&cases).map(|(text, (_, codes))| (text.as_str(), *codes)).collect();
    compare("losses_and_advantages", &cases);
}

/// A later layer sets a setting, chooses another kind, or both.
#[test]
fn layers_of_a_loss() {
    let resolved = |overrides: &[&str]| {
        let recipe = BASE.replace("loss = \"ppo_clip\"", "");
        let text = Config::from_text("recipe.toml", &recipe, overrides).unwrap().to_toml();
        let loss = text.split("[stage.algorithm.loss]\n").nth(1).unwrap();
        loss.split("\n\n").next().unwrap().to_owned()
    };
    let set = |key: &str| format!("stage.rl.algorithm.loss{key}");
    let ppo = "kind = \"ppo_clip\"\nclip_low = 0.2\nclip_high = 0.28";
    assert_eq!(resolved(&[&set(".clip_high=0.28")]), ppo);
    let cispo = "kind = \"cispo\"\nweight_cap = 4.0\nweight_floor = 0.0";
    assert_eq!(resolved(&[&set("=cispo"), &set(".weight_cap=4.0")]), cispo);
    let first = set("={kind='ppo_clip',clip_high=0.28}");
    assert_eq!(resolved(&[&first, &set("={kind='cispo',weight_cap=4.0}")]), cispo);
    // Without a kind below, it is not known that its settings belong to another one: they are kept, and reported.
    let (codes, text) = errors_of("", &[&set(".clip_high=0.28"), &set(".kind=cispo")]);
    assert_eq!(codes, [Code::Unread], "{text}");
}

#[test]
fn renamed_keys_and_values_name_the_new_ones() {
    let cases: &[(&str, &[Code])] = &[
        ("[model]\ncompute = \"bf16\"\n", &[Code::RenamedKey]),
        ("[[stage]]\nname = \"rl\"\nbatch = 4\n", &[Code::RenamedKey]),
        ("[[stage]]\nname = \"third\"\nmethod = \"sft\"\nsteps = 1\nbatch = 4\n", &[Code::RenamedKey]),
        ("[trainer]\nrecompute = \"block\"\n", &[Code::RenamedKey]),
        ("[[stage]]\nname = \"rl\"\n[stage.trainer]\nrecompute = \"block\"\n", &[Code::RenamedKey]),
        ("[reward]\ndeadline_seconds = 5.0\ncomponents = [{ kind = \"exact\" }]\n", &[Code::RenamedKey]),
        ("[eval.reward]\ndeadline_seconds = 5.0\n", &[Code::RenamedKey]),
        ("[rollout]\ndeadline_seconds = 5.0\n", &[Code::RenamedKey]),
        ("[[stage]]\nname = \"rl\"\nrollout.deadline_seconds = 5.0\n", &[Code::RenamedKey]),
        ("[schedule]\nstragglers = \"put_off\"\n", &[Code::RenamedValue]),
        ("[[stage]]\nname = \"rl\"\nschedule.stragglers = \"put_off\"\n", &[Code::RenamedValue]),
    ];
    compare("renamed", cases);
    let overrides = [
        "model.compute=bf16",
        "stage.rl.batch=4",
        "trainer.recompute=block",
        "stage.rl.trainer.recompute=block",
        "reward.deadline_seconds=5",
        "rollout.deadline_seconds=5",
        "schedule.stragglers=put_off",
        "stage.rl.schedule.stragglers=put_off",
    ];
    let mut transcript = String::new();
    for override_text in overrides {
        let (codes, text) = errors_of("", &[override_text]);
        assert!(matches!(codes[..], [Code::RenamedKey | Code::RenamedValue]), "{override_text}\n{text}");
        let _ = writeln!(transcript, "{text}");
    }
    snapshot("renamed_overrides", &transcript);
}

#[test]
fn ranges() {
    compare(
        "ranges",
        &[
            ("[trainer]\nlearning_rate = -1.0\n", &[Code::OutOfRange]),
            ("[sampling]\ntop_p = 1.5\n", &[Code::OutOfRange]),
            ("[rollout]\nmax_batch = 0\n", &[Code::OutOfRange]),
            ("[data]\nmin_digits = 3\n", &[Code::OutOfRange]),
            ("[eval]\ntasks = 0\nevery = 0\n", &[Code::OutOfRange, Code::OutOfRange]),
            ("[[stage]]\nname = \"rl\"\nsteps = 0\n", &[Code::OutOfRange]),
            ("[run]\nname = \"a/b\"\nkeep_last = 0\n", &[Code::OutOfRange, Code::OutOfRange]),
            (
                "[[stage]]\nname = \"model\"\nmethod = \"sft\"\nsteps = 1\ngroups_per_batch = 1\n",
                &[Code::OutOfRange],
            ),
            ("[[stage]]\nname = \"rl\"\n[stage.algorithm]\nloss.clip_low = 1.5\n", &[Code::Conflict]),
            ("[model.new]\nhead_dim = 7\n", &[Code::Conflict]),
            (
                "[schedule]\nmax_staleness = 10_001\noversample = 1_000_001\ncut_order = \"completion\"\n",
                &[Code::OutOfRange, Code::OutOfRange],
            ),
            ("[run]\nstall_seconds = 0\n", &[Code::OutOfRange]),
            ("[rollout]\nthreads = 4096\n", &[Code::OutOfRange]),
            ("[trainer]\nthreads = 5000\nmicro_batch_tokens = 0\n", &[Code::OutOfRange, Code::OutOfRange]),
            ("[rollout]\nrestarts = -1\n", &[Code::OutOfRange]),
            ("[reward]\ntimeout_seconds = 0.0\ncomponents = [{ kind = \"exact\" }]\n", &[Code::Conflict]),
        ],
    );
}

#[test]
fn combinations() {
    compare(
        "combinations",
        &[
            ("[[stage]]\nname = \"rl\"\n[stage.algorithm]\ngroup_size = 1\n", &[Code::Conflict]),
            ("[[stage]]\nname = \"rl\"\n[stage.algorithm]\nminibatches = 3\n", &[Code::Conflict]),
            ("[sampling]\ntop_p = 0.9\n", &[Code::Conflict]),
            ("[sampling]\ntemperature = 0.0\n", &[Code::Conflict]),
            ("[sampling]\nmax_new_tokens = 64\n", &[Code::Conflict]),
            ("[model.new]\nkv_heads = 3\n", &[Code::Conflict]),
            ("[model.new]\nhidden_size = 33\n", &[Code::Conflict]),
            ("[data]\npath = \"x.jsonl\"\neval_rows = 9\n", &[Code::MissingKey]),
            ("[tokenizer]\nalphabet = \"0123\"\n", &[Code::Conflict]),
            ("[data]\nsystem = \"12\"\n", &[Code::Conflict]),
            ("[data]\neval_size = 50\n", &[Code::Conflict]),
            ("[eval]\nsamples = 4\n[eval.sampling]\ntemperature = 0.0\n", &[Code::Conflict]),
            ("[eval.reward]\ncomponents = [{ kind = \"length\", max_tokens = 4 }]\n", &[Code::Conflict]),
            ("[reward]\ncomponents = [{ kind = \"exact\" }, { kind = \"exact\" }]\n", &[Code::Conflict]),
            (
                "[reward]\ncomponents = [{ kind = \"exact\" }, { kind = \"random\", name = \"overlong\" }]\n\
                 [[stage]]\nname = \"rl\"\nmethod = \"dapo\"\n",
                &[Code::Conflict],
            ),
        ],
    );
}

#[test]
fn schedules() {
    let replacing = "[[stage]]\nname = \"rl\"\nmethod = \"dapo\"\n";
    compare(
        "schedules",
        &[
            ("[schedule]\noversample = 2\n", &[Code::Conflict]),
            ("[schedule]\noversample = 2\ncut_order = \"ticket\"\n", &[Code::Conflict]),
            ("[schedule]\ncut_order = \"completion\"\n", &[Code::Conflict]),
            (
                "[schedule]\nmax_staleness = 1\ncut_order = \"completion\"\nstragglers = \"defer\"\n",
                &[Code::Conflict],
            ),
            (
                "[schedule]\noversample = 2\ncut_order = \"completion\"\nstragglers = \"wait\"\n",
                &[Code::Conflict],
            ),
            (
                "[schedule]\nmax_staleness = 2\npin_version = true\ncut_order = \"completion\"\n",
                &[Code::Conflict],
            ),
            ("[schedule]\nmax_staleness = 2\npin_version = true\non_update = \"keep\"\n", &[Code::Conflict]),
            ("[schedule]\nmax_staleness = 2\npin_version = true\nmax_failures = 4\n", &[Code::Conflict]),
            ("[schedule.reuse]\nshare = 0.6\n", &[Code::OutOfRange]),
            ("[schedule.reuse]\nshare = 0.05\n", &[Code::Conflict]),
            ("[schedule.reuse]\nmax_age = 0\n", &[Code::OutOfRange]),
            ("[schedule.reuse]\nreplays = 2\n", &[Code::UnknownKey]),
            (
                "[schedule.reuse]\nmax_uses = 2\n[[stage]]\nname = \"rl\"\nalgorithm.proximal = \"sampler\"\n",
                &[Code::Conflict],
            ),
            (&format!("[schedule]\nmax_staleness = 2\npin_version = true\n{replacing}"), &[Code::Conflict]),
            // Stale samples without a sound correction.
            (
                "[schedule]\nmax_staleness = 1\n[[stage]]\nname = \"rl\"\nalgorithm.proximal = \"sampler\"\n",
                &[Code::Conflict],
            ),
            ("[[stage]]\nname = \"rl\"\nalgorithm.proximal = \"log_linear\"\n", &[Code::Conflict]),
        ],
    );
}

#[test]
fn environments() {
    const GAME: &str = "[data]\ngenerator = \"guess\"\n[environment]\nkind = \"guess\"\n";
    let reward = "[reward]\ncomponents = [{ kind = \"environment\" }]\n";
    let (codes, text) = errors_of(&format!("{GAME}{reward}"), &[]);
    assert!(codes.is_empty(), "{text}");
    compare(
        "environments",
        &[
            ("[[stage]]\nname = \"rl\"\nmethod = \"gigpo\"\n", &[Code::Conflict]),
            (
                &format!(
                    "{GAME}[reward]\ncomponents = [{{ kind = \"environment\", weight = 0.0 }}, {{ kind = \"length\", max_tokens = 9 }}]\n[[stage]]\nname = \"rl\"\nmethod = \"gigpo\"\n"
                ),
                &[Code::Conflict],
            ),
            ("[environment]\nkind = \"gess\"\n", &[Code::UnknownName]),
            ("[environment]\nmax_turn = 3\n", &[Code::UnknownKey]),
            ("[environment]\nmax_turns = 3\n", &[Code::Unread]),
            ("[reward]\ncomponents = [{ kind = \"environment\", truncated = \"fail\" }]\n", &[Code::Unread]),
            (&format!("{GAME}max_turns = 0\n{reward}"), &[Code::OutOfRange]),
            ("[environment]\nkind = \"guess\"\n", &[Code::Conflict]),
            ("[data]\ngenerator = \"guess\"\n", &[Code::Conflict]),
            (
                &format!("{GAME}{reward}[[stage]]\nname = \"rl\"\nenvironment.kind = \"single_turn\"\n"),
                &[Code::Conflict, Code::Conflict],
            ),
            (reward, &[Code::Conflict]),
            (&format!("{GAME}{reward}[tokenizer]\nalphabet = \"-0123456789:\"\n"), &[Code::Conflict]),
        ],
    );
}

#[test]
fn credit_of_several_agents() {
    const CROSS: &str = "group_size = 8\nadvantage = { kind = \"magrpo\", pairing = \"cross\" }";
    let stage = |environment: &str, algorithm: &str| {
        format!(
            "[[stage]]\nname = \"rl\"\nmethod = \"grpo\"\n{environment}\n[stage.algorithm]\n{algorithm}\n"
        )
    };
    let debate = |rounds: u32, count: u32| {
        let role = format!("count = {count}, revise = \"{{others}}\"");
        let role = if rounds > 1 { role } else { format!("count = {count}") };
        format!("environment = {{ kind = \"debate\", rounds = {rounds}, agents = {{ a = {{ {role} }} }} }}")
    };
    let judged = |component: &str| format!("[reward]\ncomponents = [{component}]\n");
    let critic = "{ model = \"m\", url = \"http://localhost/v1\" }";
    let critics = judged(&format!(
        "{{ kind = \"exact\" }}, {{ kind = \"critics\", explorer = {critic}, exploiter = {critic}, assessor = {critic} }}"
    ));
    let diversity = judged("{ kind = \"exact\" }, { kind = \"diversity\" }");
    for valid in [
        stage(&debate(1, 4), CROSS),
        stage(&debate(1, 5), "advantage = \"counterfactual\""),
        stage(&debate(2, 5), "advantage = \"joint_gae\""),
    ] {
        let (codes, text) = errors_of(&valid, &[]);
        assert!(codes.is_empty(), "{text}");
    }
    for (text, code, message) in [
        (stage("", CROSS), Code::Conflict, "each agent must take a single turn"),
        (
            stage(&debate(2, 2), "advantage = \"counterfactual\""),
            Code::Conflict,
            "as in a debate with `rounds = 1`",
        ),
        (stage(&debate(1, 5), CROSS), Code::Conflict, "more than 4096 combinations"),
        (
            format!("{diversity}{}", stage(&debate(1, 2), CROSS)),
            Code::Conflict,
            "judges whole groups or single agents",
        ),
        (
            stage(&debate(1, 2), "group_size = 2").replace("\"grpo\"", "\"online_dpo\""),
            Code::Conflict,
            "compares whole completions",
        ),
        (stage("", "advantage = \"joint_gae\""), Code::Conflict, "what several agents know together"),
        (
            stage(&debate(2, 2), "advantage = \"joint_gae\"\ncritic.backbone = \"shared\""),
            Code::Unread,
            "the critic reads the texts of all agents",
        ),
        (stage(&debate(1, 2), &CROSS.replace(" }", ", gamma = 0.5 }")), Code::Unread, "gamma"),
        (critics, Code::Conflict, "gives agents rewards, and the environment has a single one"),
    ] {
        let (codes, found) = errors_of(&text, &[]);
        assert_eq!(codes, [code], "{text}\n{found}");
        assert!(found.contains(message), "{text}\n{found}");
    }
}

#[test]
fn stages() {
    compare(
        "stages",
        &[
            ("[[stage]]\nname = \"rl\"\nfrom = \"warmpu\"\n", &[Code::UnknownStage]),
            ("[[stage]]\nname = \"warmup\"\nfrom = \"rl\"\n", &[Code::UnknownStage]),
            ("[stage.lr]\nsteps = 3\n", &[Code::UnknownStage]),
        ],
    );
    let twice =
        format!("{BASE}\n[[stage]]\nname = \"warmup\"\nmethod = \"sft\"\nsteps = 1\ngroups_per_batch = 1\n");
    let errors = Config::from_text("recipe.toml", &twice, &[] as &[&str]).unwrap_err();
    assert_eq!(errors.problems[0].code, Code::DuplicateStage);
    snapshot("duplicate_stage", &errors.to_string());
}

#[test]
fn keys_without_effect() {
    compare(
        "keys_without_effect",
        &[
            ("[[stage]]\nname = \"warmup\"\n[stage.sampling]\ntemperature = 0.7\n", &[Code::Unread]),
            (
                "[[stage]]\nname = \"warmup\"\n[stage.algorithm]\ngroup_size = 4\nloss.clip_low = 0.1\n",
                &[Code::Unread, Code::Unread],
            ),
            ("[[stage]]\nname = \"rl\"\n[stage.algorithm]\nadvantage.gamma = 0.9\n", &[Code::Unread]),
            ("[[stage]]\nname = \"rl\"\nallow_truncated_sampling = true\n", &[Code::Unread]),
            ("[trainer]\nmin_lr_ratio = 0.1\n", &[Code::Unread]),
            ("[trainer]\nbackend = \"torch\"\ntensor_parallel = 2\n", &[Code::Unread]),
            ("[eval.sampling]\ntop_k = 5\n", &[Code::Unread]),
            ("[eval.sampling]\ntemperature = 0.7\n", &[Code::Unread]),
            ("[model]\npath = \"folder\"\n[tokenizer]\nbos = true\n", &[Code::Unread]),
            ("[data]\nmax_target = 3\n", &[Code::Unread]),
            ("[reward]\ncomponents = [{ kind = \"exact\", fade = 1 }]\n", &[Code::Unread]),
            ("[stage.warmup]\neval_every = 0\n[stage.rl]\neval_every = 0\n", &[Code::Unread]),
            ("[schedule]\non_update = \"keep\"\n", &[Code::Unread]),
            ("[schedule]\nstragglers = \"defer\"\n", &[Code::Unread]),
            ("[[stage]]\nname = \"warmup\"\nschedule.max_staleness = 1\n", &[Code::Unread]),
        ],
    );
}

#[test]
fn errors_in_shared_tables_are_reported_once() {
    let (codes, text) = errors_of("[trainer]\nlearning_rate = \"x\"\n[data]\nmax_digits = 99\n", &[]);
    assert_eq!(codes, [Code::WrongType], "{text}");
    let (codes, text) = errors_of("[data]\nmax_digits = 99\n[trainer]\nbetas = [2, 0.9]\n", &[]);
    assert_eq!(codes, [Code::OutOfRange, Code::OutOfRange], "{text}");
}

#[test]
fn messages_quote_overrides_verbatim() {
    let (_, text) = errors_of("", &["trainer.learnin_rate=1e-5", "stage.rl.algorithm.group_size=two"]);
    let (_, conflict) = errors_of("", &["stage.rl.algorithm.minibatches=3"]);
    let (_, schedule) = errors_of("", &["schedule.max_staleness=1", "stage.rl.schedule.oversample=4"]);
    snapshot("overrides", &format!("{text}\n{conflict}\n{schedule}"));
}

#[test]
fn no_model_and_two_models() {
    let without = BASE.split("[data]").nth(1).map(|rest| format!("[data]{rest}")).unwrap();
    let none = Config::from_text("recipe.toml", &without, &[] as &[&str]).unwrap_err();
    let two =
        Config::from_text("recipe.toml", &format!("model.path = \"x\"\n{BASE}"), &[] as &[&str]).unwrap_err();
    let empty = Config::from_text("recipe.toml", "", &[] as &[&str]).unwrap_err();
    snapshot("models", &format!("{none}\n{two}\n{empty}"));
}

#[test]
fn unreadable_files() {
    let directory = tempfile::tempdir().unwrap();
    let missing = Config::load(&[directory.path().join("none.toml")], &[] as &[&str]).unwrap_err();
    assert_eq!(missing.problems[0].code, Code::Unreadable);
    let folder = Config::load(&[directory.path()], &[] as &[&str]).unwrap_err();
    let text = format!("{missing}\n{folder}").replace(&directory.path().display().to_string(), "DIR");
    snapshot("unreadable", &text);
}

#[test]
fn secrets_are_refused_and_not_quoted() {
    let token = format!("hf_{}", "a1".repeat(17));
    let (codes, text) = errors_of(&format!("[run]\nname = \"{token}\"\n"), &[]);
    assert_eq!(codes, [Code::Secret]);
    assert!(!text.contains(&token), "{text}");
    assert!(text.contains("mine.toml:2:8"), "{text}");
}

#[test]
fn evaluation_needs_held_out_tasks() {
    let text = "[model]\npath = \"folder\"\n[data]\npath = \"x.jsonl\"\n";
    compare("held_out", &[(text, &[Code::Conflict])]);
}

#[test]
fn shared_keys_that_every_stage_overrides_are_refused() {
    let own = ["stage.warmup.trainer.learning_rate=1e-4", "stage.rl.trainer.learning_rate=1e-5"];
    let (codes, text) = errors_of("", &[&own[..], &["trainer.learning_rate=1e-3"]].concat());
    assert_eq!(codes, [Code::Unread], "{text}");
    assert!(text.contains("nothing reads `trainer.learning_rate`"), "{text}");
    // Overrides of the shared value take precedence.
    let later = Config::from_text("recipe.toml", BASE, &[&["trainer.learning_rate=1e-3"], &own[..]].concat());
    later.map_err(|errors| errors.to_string()).unwrap();
    // One stage reads the shared value.
    let read = Config::from_text("recipe.toml", BASE, &[own[0], "trainer.learning_rate=1e-3"]);
    read.map_err(|errors| errors.to_string()).unwrap();
    // A component that all readers replace.
    let components = "components=[{kind='random'},{kind='exact'}]";
    let replaced = [format!("stage.rl.reward.{components}"), format!("reward.{components}")];
    let (codes, text) = errors_of("", &[&replaced[0], &replaced[1]]);
    assert_eq!(codes, [Code::Unread], "{text}");
}

#[test]
fn domains() {
    compare(
        "domains",
        &[
            ("[domains]\nquota = { a = 1 }\n", &[Code::UnknownKey]),
            ("[domains]\nquotas = { a = 0 }\n", &[Code::OutOfRange]),
            ("[domains]\nfilters = { a = { mean = [0.9, 0.1] } }\n", &[Code::OutOfRange]),
            ("[domains]\nmax_draws = 3\n", &[Code::Unread]),
            ("[domains]\ncurriculum = {}\n", &[Code::Unread]),
            ("[domains]\nquotas = { a = 1 }\ncurriculum = { floor = 0 }\n", &[Code::OutOfRange]),
            (
                "[domains]\nquotas = { a = 1, b = 1 }\ncurriculum = {}\n[reward]\n\
                 components = [{ kind = \"exact\", domains = [\"a\"] }, { kind = \"random\" }]\n",
                &[Code::Conflict],
            ),
            (
                "[domains]\nquotas = { a = 1 }\n[schedule]\nstragglers = \"defer\"\ncut_order = \"completion\"\noversample = 2\n",
                &[Code::Conflict],
            ),
            ("[reward]\ncomponents = [{ kind = \"exact\", domains = [] }]\n", &[Code::Conflict]),
            ("[[data.sources]]\ngenerator = \"sorting\"\nwieght = 2\n", &[Code::UnknownKey]),
            (
                "[[eval.sets]]\nname = \"a b\"\ntasks = 0\ndata = { generator = \"sorting\" }\n",
                &[Code::Conflict, Code::Conflict],
            ),
        ],
    );
}

#[test]
fn policies() {
    const OTHER: &str = "[stage.rl.environment]\nkind = \"chain\"\norder = [\"a\", \"b\"]\n\
                         agents.a.policy = \"main\"\nagents.b.policy = \"other\"\n[policies.other]\n";
    let cases: [(&str, &[Code]); 11] = [
        ("[policies.main]\n", &[Code::OutOfRange]),
        ("[policies.fourth]\n", &[Code::Unread]),
        ("frozn = true\n", &[Code::UnknownKey]),
        ("frozen = true\ntrainer.learning_rate = 1e-3\n", &[Code::Unread]),
        ("trainer.learning_rate = 0.0\n", &[Code::OutOfRange]),
        ("league = { of = \"mian\" }\n", &[Code::OutOfRange]),
        (
            "frozen = true\nleague = { size = 40, every = 0 }\n",
            &[Code::Unread, Code::OutOfRange, Code::OutOfRange],
        ),
        ("[stage.rl]\nmethod = \"ppo\"\n", &[Code::Conflict]),
        ("[schedule]\nmax_staleness = 1\npin_version = true\n", &[Code::Conflict]),
        ("[stage.rl.trainer]\nbackend = \"torch\"\n", &[Code::Conflict]),
        ("othr", &[Code::UnknownName]),
    ];
    let texts = cases.map(|(text, codes)| match text {
        "othr" => (OTHER.replace("\"main\"", "\"othr\""), codes),
        text => (OTHER.to_owned() + text, codes),
    });
    let texts: Vec<(&str, &[Code])> = texts.iter().map(|(text, codes)| (text.as_str(), *codes)).collect();
    compare("policies", &texts);
}

#[test]
fn policies_are_resolved_and_read_again() {
    const POLICIES: &str = "[policies.other]\nmodel = \"new\"\ntrainer.learning_rate = 1e-3\n\
                            [policies.fixed]\nmodel = \"folder\"\nfrozen = true\n\
                            [policies.old]\n\
                            league = { of = \"other\", every = 5, size = 3, draw = \"uniform\" }\n";
    const AGENTS: &str = "[stage.environment]\nkind = \"chain\"\norder = [\"a\", \"b\", \"c\"]\n\
                          agents = { a.policy = \"other\", b.policy = \"fixed\", c.policy = \"old\" }\n";
    let config = Config::from_text("a.toml", &format!("{POLICIES}{BASE}{AGENTS}"), &[] as &[&str]);
    let config = config.map_err(|errors| errors.to_string()).unwrap();
    let again = Config::from_text("a.toml", &config.to_toml(), &[] as &[&str]);
    assert_eq!(again.map_err(|errors| errors.to_string()).unwrap(), config);
    let ids: Vec<_> =
        config.policy_ids().map(|(name, policy, ids)| (name, policy.is_trained(), ids)).collect();
    assert_eq!(ids, [("fixed", false, 1..2), ("old", false, 2..5), ("other", true, 5..6)]);
}

#[test]
fn references() {
    // The stage `rl` of the base samples, so that its shared tables are read.
    let stage = |method: &str, reference: &str| {
        let name = if ["dpo", "sft"].contains(&method) { "warmup" } else { "rl" };
        format!(
            "[[stage]]\nname = \"{name}\"\nmethod = \"{method}\"\n[stage.trainer]\nreference = {{ {reference} }}\n"
        )
    };
    for (text, code, message) in [
        (stage("sft", "model = \"folder\""), Code::Unread, "sft has no reference"),
        (stage("grpo", "model = \"folder\""), Code::Unread, "grpo has no reference"),
        (stage("online_dpo", "cache = \"scores\""), Code::Unread, "online_dpo samples anew in each step"),
        (stage("dpo", "mixup = 0.5"), Code::OutOfRange, "absent without `reference.sync_every`"),
        (stage("dpo", "sync_every = 2, mixup = 1.5"), Code::OutOfRange, "mixup"),
        (stage("dpo", "sync_every = 0"), Code::OutOfRange, "sync_every"),
        (stage("dpo", "sync_every = 2, cache = \"scores\""), Code::OutOfRange, "cannot be combined"),
    ] {
        let (codes, found) = errors_of(&text, &[]);
        assert_eq!(codes, [code], "{text}\n{found}");
        assert!(found.contains(message), "{found}");
    }
    for valid in
        [stage("dpo", "model = \"folder\", cache = \"scores\""), stage("online_dpo", "sync_every = 4")]
    {
        let (codes, found) = errors_of(&valid, &[]);
        assert!(codes.is_empty(), "{found}");
    }
}

#[test]
fn validation_needs_rows_that_are_held_out() {
    compare(
        "validation",
        &[
            ("[validation]\nevery = 5\nrows = 10\n", &[]),
            ("[[stage]]\nname = \"warmup\"\n[stage.validation]\nrows = 0\n", &[Code::OutOfRange]),
            ("[[stage]]\nname = \"rl\"\n[stage.validation]\nevery = 5\n", &[Code::Unread]),
            (
                "[tokenizer]\nalphabet = \"0123456789+-*=\"\n[[stage]]\nname = \"warmup\"\ndata = { path = \"rows.jsonl\" }\nvalidation = {}\n",
                &[Code::Conflict],
            ),
            (
                "[validation]\nevery = 5\n[[stage]]\nname = \"warmup\"\nvalidation = { every = 0 }\n",
                &[Code::Unread],
            ),
            (
                "[[stage]]\nname = \"warmup\"\n[stage.algorithm]\nneftune_noise_alpha = 0.0\n",
                &[Code::Conflict],
            ),
            ("[[stage]]\nname = \"rl\"\n[stage.algorithm]\nneftune_noise_alpha = 5.0\n", &[Code::Unread]),
            (
                "[trainer]\nbackend = \"megatron\"\n[[stage]]\nname = \"warmup\"\nalgorithm.neftune_noise_alpha = 5.0\n",
                &[Code::Conflict],
            ),
        ],
    );
    // Nothing reads the shared table if all stages sample.
    let (codes, text) = errors_of("[validation]\n[[stage]]\nname = \"warmup\"\nmethod = \"grpo\"\n", &[]);
    assert_eq!(codes, [Code::Unread], "{text}");
}
