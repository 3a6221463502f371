//! Hints of configurations.

use super::settings::{Mistake, follow, mistake};

const STAGES: &str = "[[stage]]\nname = \"warmup\"\nmethod = \"sft\"\nsteps = 3\ngroups_per_batch = 4\n\n[stage.trainer]\nlearning_rate = 1e-3\n\n[[stage]]\nname = \"rl\"\nmethod = \"grpo\"\nsteps = 4\ngroups_per_batch = 2\n\n[stage.algorithm]\ngroup_size = 2 -> ";

/// Files instead of the generator.
const FILES: &str = "generator = \"arithmetic\" -> path = \"rows.jsonl\"";
const ALPHABET: &str = "tokenizer.alphabet=0123456789+=";
const GAMES: [&str; 3] =
    ["data.generator=guess", "environment.kind=guess", "reward.components=[{kind='environment'}]"];
/// Two agents, of which one is played by another policy.
const TWO: &str = "stage.rl.environment={kind='chain',order=['a','b'],agents={a={},b={policy='other'}}}";
/// No new model.
const NO_NEW: &str =
    "[model.new]\nlayers = 1\nhidden_size = 16\nheads = 2\nintermediate_size = 24\nmax_positions = 32 -> ";
const FOLDER: &str = "model.path=folder";
const ADAPTER: &str = "stage.rl.trainer.lora={rank=2}";
/// An adapter of the language head.
const HEAD_ADAPTER: &str = "stage.rl.trainer.lora={rank=2,targets=['q_proj','lm_head']}";
/// The second stage trains a reward model.
const REWARD_MODEL: [&str; 4] = [
    "method = \"grpo\" -> method = \"reward_model\"",
    "[stage.algorithm]\ngroup_size = 2 -> ",
    "[sampling] -> [eval.sampling]",
    "stage.rl.data={rows='preferences'}",
];
/// The second stage samples for a teacher, which [`DISTILL`] adds.
const DISTILLS: &str = "stage.rl.method=distill";
const SAMPLES: &str = "group_size = 2 -> distillation.on_policy_share = 0.5";
const TEACHER: &str = "stage.rl.teacher.path=folder";
const DISTILL: &[&str] = &[DISTILLS, SAMPLES, TEACHER];
const STALE: &str = "schedule.max_staleness=1";
const PINNED: &str = "schedule.pin_version=true";

#[rustfmt::skip] // a table
pub(super) const MISTAKES: &[Mistake] = &[
    // Model and tokenizer
    mistake("remove one of the two", &["[model.new]\n -> [model]\npath = \"folder\"\n[model.new]\n"], "remove one of the two", &[&[], &["model.path=folder"]]),
    mistake("set `model.path` to a folder or a hub id, or describe a new model in `[model.new]`",
        &["[model.new]\nlayers = 1\nhidden_size = 16\nheads = 2\nintermediate_size = 24\nmax_positions = 32 -> "],
        "set `model.path` to a folder or a hub id, or describe a new model in `[model.new]`",
        &[&["[model.new]\nlayers = 1\nhidden_size = 16\nheads = 2\nintermediate_size = 24\nmax_positions = 32 -> ", "model.path=folder"], &[]]),
    mistake("list the characters of the files in `tokenizer.alphabet`", &[FILES, "data.eval_rows=4"], "list the characters of the files in `tokenizer.alphabet`", &[&[FILES, "data.eval_rows=4", ALPHABET]]),
    mistake("set `tokenizer.chat_template`", &["data.system='12'"], "set `tokenizer.chat_template`", &[&["data.system='12'", "tokenizer.chat_template='{{ messages[0].content }}'"]]),
    mistake("add them, or remove `tokenizer.alphabet`: the default is the characters of the data", &["tokenizer.alphabet='0123'"], "add them, or remove `tokenizer.alphabet`: the default is the characters of the data",
        &[&["tokenizer.alphabet='0123456789+-='"], &[]]),
    mistake("add them, or remove `tokenizer.alphabet`: the default is the characters of the data", &[FILES, "data.eval_rows=4", "environment.kind=guess", "tokenizer.alphabet='0123'"], "add them to `tokenizer.alphabet`",
        &[&[FILES, "data.eval_rows=4", "environment.kind=guess", "tokenizer.alphabet='0123<>?'"]]),
    mistake("set `model.new.kv_heads` to one of {}", &["model.new.kv_heads=3"], "set `model.new.kv_heads` to one of 1, 2", &[&["model.new.kv_heads=1"], &["model.new.kv_heads=2"]]),
    mistake("change one of the two, or set `model.new.head_dim`", &["model.new.hidden_size=18", "model.new.heads=4"], "change one of the two, or set `model.new.head_dim`",
        &[&["model.new.hidden_size=16", "model.new.heads=4"], &["model.new.hidden_size=18", "model.new.heads=3"], &["model.new.hidden_size=18", "model.new.heads=4", "model.new.head_dim=4"]]),
    mistake("lower `{}`, or raise `model.new.max_positions`: prompt and completion share the positions", &["sampling.max_new_tokens=32"], "lower `sampling.max_new_tokens`, or raise `model.new.max_positions`: prompt and completion share the positions",
        &[&["sampling.max_new_tokens=16"], &["sampling.max_new_tokens=32", "model.new.max_positions=64"]]),
    mistake("set {}", &["stage.warmup.trainer.eps=1e-6", "stage.rl.trainer.eps=1e-6", "trainer.eps=1e-7"], "set `stage.warmup.trainer.eps` and `stage.rl.trainer.eps`",
        &[&["stage.warmup.trainer.eps=1e-7", "stage.rl.trainer.eps=1e-7"]]),
    mistake("remove it, or set `model.dtype = \"bf16\"`", &["model.numeric_path=widened"], "remove it, or set `model.dtype = \"bf16\"`", &[&[], &["model.numeric_path=widened", "model.dtype=bf16"]]),
    // Machines
    mistake("only `cluster.launcher = \"ray\"` reads it", &["cluster.launcher=wait", "cluster.bind=127.0.0.1:7011", "cluster.address=auto"], "only `cluster.launcher = \"ray\"` reads it",
        &[&["cluster.launcher=ray", "cluster.bind=127.0.0.1:7011", "cluster.address=auto"], &["cluster.launcher=wait", "cluster.bind=127.0.0.1:7011"]]),
    mistake("only `cluster.cpu_nodes` above 0 reads it", &["cluster.launcher=wait", "cluster.bind=127.0.0.1:7011", "cluster.cpus_per_cpu_node=4"], "only `cluster.cpu_nodes` above 0 reads it",
        &[&["cluster.launcher=wait", "cluster.bind=127.0.0.1:7011", "cluster.cpus_per_cpu_node=4", "cluster.cpu_nodes=1"], &["cluster.launcher=wait", "cluster.bind=127.0.0.1:7011"]]),
    // Trainer
    mistake("remove `{key}`", &["stage.rl.trainer.lora={rank=2,dropout=0.1}"], "remove `stage.rl.trainer.lora.dropout`", &[&[ADAPTER]]),
    mistake("remove `{key}`", &["stage.rl.trainer.moments=int8", "stage.rl.trainer.backend=torch"], "remove `stage.rl.trainer.moments`", &[&["stage.rl.trainer.moments=int8"]]),
    // Environments
    mistake("set `{} = \"{played}\"`, or remove the environment", &["environment.kind=guess"], "set `data.generator = \"guess\"`, or remove the environment", &[&["environment.kind=guess", "data.generator=guess"], &[]]),
    mistake("environment.rs: set_game(environment, data)", &["data.generator=guess"], "set `environment.kind = \"guess\"`", &[&["data.generator=guess", "environment.kind=guess"]]),
    mistake("remove the component, or {}", &["reward.components=[{kind='exact'},{kind='environment'}]"], "remove the component, or set `environment.kind = \"guess\"` and `data.generator = \"guess\"`",
        &[&["reward.components=[{kind='exact'}]"], &["reward.components=[{kind='exact'},{kind='environment'}]", "environment.kind=guess", "data.generator=guess"]]),
    mistake("set `{} = \"group\"`, which is equivalent without steps; for steps, {} and reward them with the component `{{ kind = \"environment\" }}`", &["stage.rl.method=gigpo"],
        "set `stage.rl.algorithm.advantage = \"group\"`, which is equivalent without steps; for steps, set `environment.kind = \"guess\"` and `data.generator = \"guess\"` and reward them with the component `{ kind = \"environment\" }`",
        &[&["stage.rl.method=gigpo", "stage.rl.algorithm.advantage=group"], &["stage.rl.method=gigpo", GAMES[0], GAMES[1], GAMES[2]]]),
    mistake("add `{{ kind = \"environment\" }}` to `{}`", &["stage.rl.method=gigpo", GAMES[0], GAMES[1]], "add `{ kind = \"environment\" }` to `reward.components`",
        &[&["stage.rl.method=gigpo", GAMES[0], GAMES[1], "reward.components=[{kind='exact'},{kind='environment'}]"]]),
    // Policies
    mistake("set `{} = \"embedded\"`", &["policies.other={}", TWO, "rollout.engine=vllm"], "set `rollout.engine = \"embedded\"`", &[&["policies.other={}", TWO, "rollout.engine=embedded"]]),
    mistake("set `{} = \"embedded\"`", &["policies.other={}", TWO, "stage.rl.trainer.backend=torch"], "set `stage.rl.trainer.backend = \"embedded\"`", &[&["policies.other={}", TWO, "stage.rl.trainer.backend=embedded"]]),
    mistake("choose a method without one, such as `grpo` or `rloo`", &["policies.other={}", TWO, "stage.rl.method=ppo"], "choose a method without one, such as `grpo` or `rloo`", &[&["policies.other={}", TWO, "stage.rl.method=grpo"], &["policies.other={}", TWO, "stage.rl.method=rloo"]]),
    // Teachers
    mistake("add `[stage.teacher]` with the `path` of a model, the name of an earlier `stage`, or the `url` of a server", &[DISTILLS, SAMPLES], "add `[stage.teacher]` with the `path` of a model, the name of an earlier `stage`, or the `url` of a server",
        &[DISTILL, &[DISTILLS, SAMPLES, "stage.rl.teacher.stage=warmup"], &[DISTILLS, SAMPLES, "stage.rl.teacher.url=http://localhost:8000", "stage.rl.algorithm.distillation.top_k=16"]]),
    mistake("set `{}` above 0 to measure it to the teacher", &["stage.rl.teacher.path=folder"], "set `stage.rl.algorithm.kl.coef` above 0 to measure it to the teacher", &[&["stage.rl.teacher.path=folder", "stage.rl.algorithm.kl.coef=0.1"]]),
    mistake("set one of `path`, `stage` and `url`", &[DISTILLS, SAMPLES, "stage.rl.teacher={}"], "set one of `path`, `stage` and `url`", &[DISTILL]),
    mistake("set one of `path`, `stage` and `url`", &[DISTILLS, SAMPLES, "stage.rl.teacher={path='folder',stage='warmup'}"], "set one of `path`, `stage` and `url`", &[DISTILL, &[DISTILLS, SAMPLES, "stage.rl.teacher.stage=warmup"]]),
    mistake("the first stage can only have the `path` or the `url` of a teacher", &["stage.warmup.method=distill", "stage.warmup.teacher.stage=rl"], "the first stage can only have the `path` or the `url` of a teacher", &[&["stage.warmup.method=distill", "stage.warmup.teacher.path=folder"]]),
    mistake("earlier stages are {}", &[DISTILLS, SAMPLES, "stage.rl.teacher.stage=rl"], "earlier stages are `warmup`", &[&[DISTILLS, SAMPLES, "stage.rl.teacher.stage=warmup"]]),
    mistake("set the `path` of the teacher instead of its `url`", &["stage.rl.algorithm.kl.coef=0.1", "stage.rl.teacher.url=http://localhost:8000"], "set the `path` of the teacher instead of its `url`", &[&["stage.rl.algorithm.kl.coef=0.1", "stage.rl.teacher.path=folder"]]),
    mistake("set `{} = 16`", &[DISTILLS, SAMPLES, "stage.rl.teacher.url=http://localhost:8000"], "set `stage.rl.algorithm.distillation.top_k = 16`", &[&[DISTILLS, SAMPLES, "stage.rl.teacher.url=http://localhost:8000", "stage.rl.algorithm.distillation.top_k=16"]]),
    mistake("remove `{}`", &[DISTILLS, SAMPLES, "stage.rl.teacher.url=http://localhost:8000", "stage.rl.algorithm.distillation={top_k=16,temperature=2.0}"], "remove `stage.rl.algorithm.distillation.temperature`", &[&[DISTILLS, SAMPLES, "stage.rl.teacher.url=http://localhost:8000", "stage.rl.algorithm.distillation={top_k=16}"]]),
    mistake("set `{} = \"torch\"` for this stage", &[DISTILLS, SAMPLES, TEACHER, "stage.rl.trainer.backend=deepspeed"], "set `stage.rl.trainer.backend = \"torch\"` for this stage", &[&[DISTILLS, SAMPLES, TEACHER, "stage.rl.trainer.backend=torch"]]),
    mistake("train the policies without a teacher", &["policies.other={}", TWO, "stage.rl.algorithm.kl.coef=0.1", "stage.rl.teacher.path=folder"], "train the policies without a teacher", &[&["policies.other={}", TWO, "stage.rl.algorithm.kl.coef=0.1"]]),
    // Adapters
    mistake("give `{}` the settings of that stage", &[NO_NEW, FOLDER, "stage.warmup.trainer.lora={rank=2}"], "give `stage.rl.trainer.lora` the settings of that stage",
        &[&[NO_NEW, FOLDER, "stage.warmup.trainer.lora={rank=2}", ADAPTER]]),
    mistake("give `{}` the settings of that stage", &[NO_NEW, FOLDER, "stage.warmup.trainer.lora={rank=4}", ADAPTER], "give `stage.rl.trainer.lora` the settings of that stage",
        &[&[NO_NEW, FOLDER, "stage.warmup.trainer.lora={rank=2}", ADAPTER]]),
    mistake("train the new model in an earlier stage without `lora`, or set `model.path`", &["trainer.lora={rank=2}"], "train the new model in an earlier stage without `lora`, or set `model.path`",
        &[&[ADAPTER], &[NO_NEW, FOLDER, "trainer.lora={rank=2}"]]),
    // Reward models
    mistake("set `{} = \"{start}\"`", &["stage.warmup.method=reward_model", "stage.warmup.data={rows='preferences'}"], "set `stage.rl.from = \"model\"`",
        &[&["stage.warmup.method=reward_model", "stage.warmup.data={rows='preferences'}", "stage.rl.from=model"]]),
    mistake("remove `lm_head`: the value head is trained as a whole", &[REWARD_MODEL[0], REWARD_MODEL[1], REWARD_MODEL[2], REWARD_MODEL[3], HEAD_ADAPTER], "remove `lm_head`: the value head is trained as a whole", &[&[REWARD_MODEL[0], REWARD_MODEL[1], REWARD_MODEL[2], REWARD_MODEL[3], ADAPTER]]),
    mistake("set `{} = \"torch\"` for this stage", &[REWARD_MODEL[0], REWARD_MODEL[1], REWARD_MODEL[2], REWARD_MODEL[3], "stage.rl.trainer.backend=deepspeed"], "set `stage.rl.trainer.backend = \"torch\"` for this stage",
        &[&[REWARD_MODEL[0], REWARD_MODEL[1], REWARD_MODEL[2], REWARD_MODEL[3], "stage.rl.trainer.backend=torch"]]),
    mistake("reward_model.rs: hint", &["stage.rl.reward.components=[{kind='exact'},{kind='reward_model',model='stage:warmup',backend='embedded'}]"], "name a folder, or train the model in an earlier stage with `method = \"reward_model\"`",
        &[&["stage.rl.reward.components=[{kind='exact'},{kind='reward_model',model='folder',backend='embedded'}]"]]),
    // Demonstrations
    mistake("range of neftune_noise_alpha", &["stage.warmup.algorithm={neftune_noise_alpha=0}"], "5, or leave it out for no noise",
        &[&["stage.warmup.algorithm={neftune_noise_alpha=5}"], &[]]),
    mistake("remove it, and set `[eval]` to evaluate on held-out tasks", &["stage.rl.validation={every=5}"], "remove it, and set `[eval]` to evaluate on held-out tasks", &[&[]]),
    mistake("remove it, and set `{}` to measure the loss on held-out rows", &[REWARD_MODEL[0], REWARD_MODEL[1], REWARD_MODEL[2], REWARD_MODEL[3], "stage.rl.eval_every=5"],
        "remove it, and set `stage.rl.validation.every` to measure the loss on held-out rows", &[&[REWARD_MODEL[0], REWARD_MODEL[1], REWARD_MODEL[2], REWARD_MODEL[3], "stage.rl.validation.every=5"]]),
    // Evaluation
    mistake("add {} to the components; with `weight = 0` it does not change the reward", &["reward.components=[{kind='random'}]"], "add one of the verifiers `exact`, `numeric`, `math` to the components; with `weight = 0` it does not change the reward",
        &[&["reward.components=[{kind='random'},{kind='exact',weight=0}]"], &["reward.components=[{kind='random'},{kind='numeric',weight=0}]"], &["reward.components=[{kind='random'},{kind='math',weight=0}]"]]),
    mistake("add {} to the components; with `weight = 0` it does not change the reward", &["reward.components=[{kind='random'}]", GAMES[0], GAMES[1]], "add the verifier `environment` to the components; with `weight = 0` it does not change the reward",
        &[&["reward.components=[{kind='random'},{kind='environment',weight=0}]", GAMES[0], GAMES[1]]]),
    mistake("set `solved_at` in the component of kind `{}`: the reward from which on a task counts as solved", &["reward.components=[{kind='command',command=['cat']}]"],
        "set `solved_at` in the component of kind `command`: the reward from which on a task counts as solved", &[&["reward.components=[{kind='command',command=['cat'],solved_at=1.0}]"]]),
    mistake("set `{}` to another file, or `{}` to hold out rows of this one", &[FILES, ALPHABET], "set `data.eval_path` to another file, or `data.eval_rows` to hold out rows of this one",
        &[&[FILES, ALPHABET, "data.eval_path=held_out.jsonl"], &[FILES, ALPHABET, "data.eval_rows=4"]]),
    mistake("raise `{}`, or lower `eval.tasks`", &["data.eval_size=2"], "raise `data.eval_size`, or lower `eval.tasks`", &[&["data.eval_size=4"], &["data.eval_size=2", "eval.tasks=2"]]),
    mistake("greedy accuracy is always measured; set the temperature above 0, or remove `samples`", &["eval.samples=2", "eval.sampling.temperature=0"], "greedy accuracy is always measured; set the temperature above 0, or remove `samples`",
        &[&["eval.samples=2", "eval.sampling.temperature=1"], &["eval.sampling.temperature=0"]]),
    mistake("set `eval.samples` above 0 to draw samples as well", &["eval.sampling.temperature=0.7"], "set `eval.samples` above 0 to draw samples as well", &[&["eval.sampling.temperature=0.7", "eval.samples=1"]]),
    mistake("set `rollout.{key}` for all stages, or `stage.{shared}.rollout.{key}`", &["stage.warmup.eval_every=0", "eval.rollout.lanes=2"], "set `rollout.lanes` for all stages, or `stage.rl.rollout.lanes`",
        &[&["stage.warmup.eval_every=0", "rollout.lanes=2"], &["stage.warmup.eval_every=0", "stage.rl.rollout.lanes=2"]]),
    mistake("eval_tables.rs: hint", &["eval.data.size=9"], "set `eval.tasks`, or `eval.data.eval_size`", &[&["eval.tasks=9"], &["eval.data.eval_size=9"]]),
    mistake("eval_tables.rs: hint", &["eval.data.demonstration_share=0.3"], "set `data.demonstration_share` for the stages, or remove it", &[&["data.demonstration_share=0.3"], &[]]),
    mistake("the sampling of evaluation is set in `[eval.sampling]`", &["method = \"grpo\" -> method = \"sft\"", "[stage.algorithm]\ngroup_size = 2 -> "], "the sampling of evaluation is set in `[eval.sampling]`",
        &[&["method = \"grpo\" -> method = \"sft\"", "[stage.algorithm]\ngroup_size = 2 -> ", "[sampling] -> [eval.sampling]"]]),
    mistake("remove `{}`", &["eval.sampling={temperature=0,top_k=5}"], "remove `eval.sampling.top_k`", &[&["eval.sampling={temperature=0}"]]),
    // Stages
    mistake("add a `[[stage]]` with `name`, `method`, `steps` and `groups_per_batch`", &[STAGES], "add a `[[stage]]` with `name`, `method`, `steps` and `groups_per_batch`",
        &[&[STAGES, "stage=[{name='one',method='grpo',steps=1,groups_per_batch=1}]"]]),
    mistake("compose.rs: every", &["steps = 4\n -> "], "`name`, `method`, `steps` and `groups_per_batch` are required in every stage", &[&[]]),
    mistake("rename the component, or set `{} = 0`", &["stage.rl.method=dapo", "reward.components=[{kind='exact'},{kind='random',name='overlong'}]"], "rename the component, or set `stage.rl.algorithm.overlong.factor = 0`",
        &[&["stage.rl.method=dapo", "reward.components=[{kind='exact'},{kind='random',name='noise'}]"], &["stage.rl.method=dapo", "reward.components=[{kind='exact'},{kind='random',name='overlong'}]", "stage.rl.algorithm.overlong.factor=0"]]),
    mistake("set `{} = \"torch\"`, or remove `{}`", &["stage.warmup.method=dpo", "stage.warmup.trainer={backend='deepspeed',reference={sync_every=2}}"], "set `stage.warmup.trainer.backend = \"torch\"`, or remove `stage.warmup.trainer.reference.sync_every`",
        &[&["stage.warmup.method=dpo", "stage.warmup.trainer={backend='torch',reference={sync_every=2}}"], &["stage.warmup.method=dpo", "stage.warmup.trainer={backend='deepspeed'}"]]),
    mistake("set `{} = \"torch\"`, or choose a method without a critic, such as `grpo`", &["stage.rl.method=ppo", "trainer.backend=megatron"], "set `trainer.backend = \"torch\"`, or choose a method without a critic, such as `grpo`",
        &[&["stage.rl.method=ppo", "trainer.backend=torch"], &["stage.rl.method=grpo", "trainer.backend=megatron"]]),
    mistake("stage.rs: choices", &["stage.warmup.from=rl"], "the first stage can only start from `model`", &[&["stage.warmup.from=model"]]),
    mistake("stage.rs: choices", &["stage.rl.from=wamup"], "use `model`, `previous` or an earlier stage: `warmup`", &[&["stage.rl.from=model"], &["stage.rl.from=previous"], &["stage.rl.from=warmup"]]),
    mistake("use `groups_per_batch = {}`, or `minibatches = {fewer}`", &["stage.rl.algorithm.minibatches=3", "stage.rl.groups_per_batch=4"], "use `groups_per_batch = 3` or `groups_per_batch = 6`, or `minibatches = 2`",
        &[&["stage.rl.algorithm.minibatches=3", "stage.rl.groups_per_batch=3"], &["stage.rl.algorithm.minibatches=3", "stage.rl.groups_per_batch=6"], &["stage.rl.algorithm.minibatches=2", "stage.rl.groups_per_batch=4"]]),
    mistake("set `{}` to 1.0 for training", &["sampling.temperature=0"], "set `sampling.temperature` to 1.0 for training", &[&["sampling.temperature=1.0"]]),
    mistake("remove it from training (evaluation may use it: `[eval.sampling]`), or allow it with `{} = true`", &["sampling.top_p=0.9"], "remove it from training (evaluation may use it: `[eval.sampling]`), or allow it with `stage.rl.allow_truncated_sampling = true`",
        &[&[], &["eval.sampling.top_p=0.9", "eval.samples=1"], &["sampling.top_p=0.9", "stage.rl.allow_truncated_sampling=true"]]),
    mistake("set `{} = \"linear\"` or `\"cosine\"`", &["trainer.min_lr_ratio=0.1"], "set `trainer.schedule = \"linear\"` or `\"cosine\"`", &[&["trainer.min_lr_ratio=0.1", "trainer.schedule=linear"], &["trainer.min_lr_ratio=0.1", "trainer.schedule=cosine"]]),
    mistake("lower `warmup_steps`, or raise `steps`", &["stage.rl.trainer.warmup_steps=4"], "lower `warmup_steps`, or raise `steps`", &[&["stage.rl.trainer.warmup_steps=3"], &["stage.rl.trainer.warmup_steps=4", "stage.rl.steps=5"]]),
    mistake("set `{steps}` or `schedule.max_staleness = 1`, or remove {it}", &["stage.rl.algorithm.loss.clip_high=0.28"], "set `algorithm.minibatches = 2` or `schedule.max_staleness = 1`, or remove it",
        &[&["stage.rl.algorithm.loss.clip_high=0.28", "stage.rl.algorithm.minibatches=2"], &["stage.rl.algorithm.loss.clip_high=0.28", STALE], &[]]),
    // Schedule
    mistake("set `{} = \"completion\"`: a batch then consists of the groups that are ready first", &["schedule.oversample=2"], "set `schedule.cut_order = \"completion\"`: a batch then consists of the groups that are ready first", &[&["schedule.oversample=2", "schedule.cut_order=completion"]]),
    mistake("remove it, or set `oversample` or `max_staleness` above 0", &["schedule.cut_order=completion"], "remove it, or set `oversample` or `max_staleness` above 0",
        &[&[], &["schedule.cut_order=completion", "schedule.oversample=1"], &["schedule.cut_order=completion", STALE]]),
    mistake("remove `{}`: new weights then wait for the groups of older versions", &[STALE, PINNED, "schedule.on_update=keep"], "remove `schedule.on_update`: new weights then wait for the groups of older versions", &[&[STALE, PINNED]]),
    mistake("set `max_staleness = 0`, or disable the filter: `algorithm.filter.dynamic_sampling = false`", &[STALE, PINNED, "stage.rl.method=dapo"], "set `max_staleness = 0`, or disable the filter: `algorithm.filter.dynamic_sampling = false`",
        &[&["schedule.max_staleness=0", PINNED, "stage.rl.method=dapo"], &[STALE, PINNED, "stage.rl.method=dapo", "stage.rl.algorithm.filter.dynamic_sampling=false"]]),
    mistake("set it to at least {:.3}, or to 0 for no reuse", &["stage.rl.groups_per_batch=4", "schedule.reuse.share=0.1"], "set it to at least 0.200, or to 0 for no reuse",
        &[&["stage.rl.groups_per_batch=4", "schedule.reuse.share=0.200"], &["stage.rl.groups_per_batch=4", "schedule.reuse.share=0.0"]]),
    // Keys, values and overrides
    mistake("set one of its keys: `stage.{}.steps=20`", &["stage.rl=5"], "set one of its keys: `stage.rl.steps=20`", &[&["stage.rl.steps=20"]]),
    mistake("the stages are {}", &["stage.lr.steps=20"], "the stages are `warmup` and `rl`", &[&["stage.warmup.steps=20"], &["stage.rl.steps=20"]]),
    mistake("write `--set section.key=value`, for example `--set stage.rl.steps=20`", &["stage.rl.steps"], "write `--set section.key=value`, for example `--set stage.rl.steps=20`", &[&["stage.rl.steps=20"]]),
    mistake("an empty string is `''` (quoted for the shell as well)", &[FILES, ALPHABET, "data.eval_rows=4", "data.domain="], "an empty string is `''` (quoted for the shell as well)", &[&[FILES, ALPHABET, "data.eval_rows=4", "data.domain=''"]]),
    mistake("use one of {}", &["stage.rl.order=ordered"], "use one of `sequential` and `shuffled`", &[&["stage.rl.order=shuffled"], &["stage.rl.order=sequential"]]),
    mistake("they are {}", &["reward.components=[{kind='exact'},{kind='format',pattern='x',fade=1}]"], "they are `pattern`, `once`, `any_space`, `score`", &[&["reward.components=[{kind='exact'},{kind='format',pattern='x'}]"], &["reward.components=[{kind='exact'},{kind='format',pattern='x',once=true}]"]]),
    mistake("remove it; there are no keys", &["environment={kind='single_turn',max_turns=3}"], "remove it; there are no keys", &[&["environment={kind='single_turn'}"]]),
    mistake("read.rs: keys", &["eval.xyzzy=3"], "the keys of this table are `every`, `tasks`, `samples`, `sampling`, `data`, `environment`, `reward`, `rollout` and `sets`", &[&["eval.every=3"], &["eval.tasks=3"]]),
    mistake("remove the quotes", &["trainer.learning_rate='1e-5'"], "remove the quotes", &[&["trainer.learning_rate=1e-5"]]),
    mistake("remove the quotes", &["tokenizer.bos='true'"], "remove the quotes", &[&["tokenizer.bos=true"]]),
    mistake("write {x:.0}", &["trainer.warmup_steps=1.0"], "write 1", &[&["trainer.warmup_steps=1"]]),
    mistake("put it in quotes", &["[run]\n -> [run]\nname = 5\n"], "put it in quotes", &[&["[run]\n -> [run]\nname = \"5\"\n"]]),
    mistake("write `[{given}]` for a list with one entry", &["data.operations='+'"], "write `['+']` for a list with one entry", &[&["data.operations=['+']"]]),
    mistake("remove it from the file; the token of a Hugging Face hub is read from the environment variable HF_TOKEN. Revoke the token if others have seen the file", &["data.domain=hf_aaaaaaaaaaaaaaaaaaaaaaa"],
        "remove it from the file; the token of a Hugging Face hub is read from the environment variable HF_TOKEN. Revoke the token if others have seen the file", &[&[]]),
    // Settings of other crates
    mistake("SettingProblem::Conflict", &[FILES, ALPHABET, "data.eval_rows=4", "data.eval_path=held_out.jsonl"], "remove one of the two", &[&[FILES, ALPHABET, "data.eval_rows=4"], &[FILES, ALPHABET, "data.eval_path=held_out.jsonl"]]),
    mistake("SettingProblem::Unused", &["data.worked_share=0.5"], "remove it, or set `style = \"mixed\"`", &[&[], &["data.worked_share=0.5", "data.style=mixed"]]),
    mistake("DataSettingProblem::Division", &["data.operations=['/']"], "use `+`, `-` and `*`", &[&["data.operations=['+','-','*']"]]),
    mistake("DataSettingProblem::DigitsOfProducts", &["data.operations=['*']", "data.max_digits=12", "data.digits=power_law"], "lower it to 8, or remove `*` from `operations`: the maximum is then 16",
        &[&["data.operations=['*']", "data.max_digits=8", "data.digits=power_law"], &["data.operations=['+']", "data.max_digits=12", "data.digits=power_law"]]),
    mistake("DataSettingProblem::SystemWithoutChat", &["data.system='12'", "data.chat=false"], "remove `chat` or `system`",
        &[&["data.system='12'", "tokenizer.chat_template='{{ messages[0].content }}'"], &["data.chat=false"]]),
    mistake("RewardError::InvalidName", &["reward.components=[{kind='exact',name='a b'}]"], "use letters, digits, `_`, `-` and `.`", &[&["reward.components=[{kind='exact',name='aB_-.1'}]"]]),
    mistake("RewardError::NothingDropped", &["reward.max_dropped=0.2"], "set `on_error = \"drop\"`, or leave `max_dropped` out", &[&["reward.max_dropped=0.2", "reward.on_error=drop"], &[]]),
    mistake("RewardError::RepeatedName", &["reward.components=[{kind='exact'},{kind='exact'}]"], "give each component a unique `name`", &[&["reward.components=[{kind='exact',name='one'},{kind='exact',name='two'}]"]]),
];

#[test]
fn of_configurations() {
    follow("", MISTAKES);
}
