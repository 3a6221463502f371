//! The kinds of runs that are killed.

use crate::recipe::CHAT_TEMPLATE;

/// A kind of run.
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) schedule: &'static [&'static str],
    pub(super) max_staleness: u64,
    /// True if the result does not depend on timing.
    pub(super) is_reproducible: bool,
    pub(super) engines: Engines,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Engines {
    Embedded,
    /// Those of `other_engines`.
    Other,
    /// Outside servers, of which one after another is killed and started again.
    Servers,
}

pub(super) const KINDS: [Kind; 20] = [
    Kind {
        name: "synchronous",
        schedule: &[],
        max_staleness: 0,
        is_reproducible: true,
        engines: Engines::Embedded,
    },
    Kind {
        name: "recompute",
        schedule: &["schedule.max_staleness=2", "schedule.on_update=recompute"],
        max_staleness: 2,
        is_reproducible: false,
        engines: Engines::Embedded,
    },
    Kind {
        name: "abort",
        schedule: &["schedule.max_staleness=2", "schedule.on_update=abort"],
        max_staleness: 2,
        is_reproducible: false,
        engines: Engines::Embedded,
    },
    Kind {
        name: "pinned",
        // A small batch, so that requests wait for the engine while its weights change.
        schedule: &["schedule.max_staleness=2", "schedule.pin_version=true", "rollout.max_batch=2"],
        max_staleness: 2,
        is_reproducible: true,
        engines: Engines::Embedded,
    },
    Kind {
        name: "other engines",
        schedule: &["schedule.max_staleness=1"],
        max_staleness: 1,
        is_reproducible: false,
        engines: Engines::Other,
    },
    Kind {
        name: "groups judged by a program",
        schedule: &[GROUPS_JUDGED],
        max_staleness: 0,
        is_reproducible: true,
        engines: Engines::Embedded,
    },
    Kind {
        name: "outside servers",
        schedule: &[
            "schedule.max_staleness=1",
            // As many tokens as the stand-ins have.
            "tokenizer.alphabet='0123456789+-*='",
            "rollout.engine=vllm",
            // Their model computes other log-probabilities than the trainer's.
            "rollout.probe_tolerance=1000",
            "rollout.max_requests=32",
        ],
        max_staleness: 1,
        is_reproducible: false,
        engines: Engines::Servers,
    },
    Kind {
        name: "domains with filters",
        schedule: &[
            SOURCES,
            QUOTAS,
            CURRICULUM,
            EVAL_SETS,
            "domains.filters={easy={std=0.0},hard={mean=[0.1,2.0]}}",
            "domains.max_draws=100",
        ],
        max_staleness: 0,
        is_reproducible: true,
        engines: Engines::Embedded,
    },
    Kind {
        name: "domains with pinned versions",
        schedule: &[
            SOURCES,
            QUOTAS,
            CURRICULUM,
            "schedule.max_staleness=2",
            "schedule.pin_version=true",
            "rollout.max_batch=2",
        ],
        max_staleness: 2,
        is_reproducible: true,
        engines: Engines::Embedded,
    },
    Kind {
        name: SEGMENTS,
        schedule: &[
            "data={generator='guess'}",
            "environment={kind='guess',max_turns=5,history={window=1}}",
            "reward.components=[{kind='environment'},{kind='random'}]",
            "schedule.max_staleness=2",
            "schedule.pin_version=true",
            "rollout.max_batch=2",
        ],
        max_staleness: 2,
        is_reproducible: true,
        engines: Engines::Embedded,
    },
    Kind {
        name: AGENTS,
        schedule: &[
            AGENT,
            CHAT_TEMPLATE,
            "stage.rl.steps=6",
            "stage.rl.groups_per_batch=3",
            "eval.tasks=2",
            "sampling.max_new_tokens=4",
            "reward.components=[{kind='environment'}]",
        ],
        max_staleness: 0,
        is_reproducible: true,
        engines: Engines::Embedded,
    },
    Kind {
        name: REUSE,
        schedule: &[
            "schedule.max_staleness=1",
            "schedule.pin_version=true",
            "schedule.reuse={share=0.25,max_age=3,max_uses=2}",
        ],
        max_staleness: 1,
        is_reproducible: true,
        engines: Engines::Embedded,
    },
    Kind {
        name: ADAPTER,
        schedule: &[
            "stage.rl.trainer.lora={rank=4,rslora=true}",
            "stage.rl.algorithm.kl.coef=0.1",
            "schedule.max_staleness=2",
            "schedule.pin_version=true",
            "rollout.max_batch=2",
        ],
        max_staleness: 2,
        is_reproducible: true,
        engines: Engines::Embedded,
    },
    of_rows(
        OF_ROWS[0],
        &["stage.rl.method=reward_model", "stage.rl.data.rows=preferences", "stage.rl.validation={every=5}"],
    ),
    Kind {
        name: "pairs of samples",
        schedule: &["stage.rl.method=online_dpo", "stage.rl.algorithm.preference=ipo"],
        max_staleness: 0,
        is_reproducible: true,
        engines: Engines::Embedded,
    },
    of_rows(OF_ROWS[1], &["stage.rl.method=dpo", "stage.rl.data.rows=preferences"]),
    of_rows(OF_ROWS[2], &["stage.rl.method=kto", "stage.rl.data.rows=labels"]),
    of_rows(OF_ROWS[3], &["stage.rl.method=bco", "stage.rl.data.rows=labels"]),
    of_rows(
        OF_ROWS[4],
        &["stage.rl.method=distill", "stage.rl.from=model", "stage.rl.teacher={stage='warmup'}"],
    ),
    Kind {
        name: DISTILLATION,
        schedule: &[
            "stage.rl.method=distill",
            "stage.rl.from=model",
            "stage.rl.teacher={stage='warmup'}",
            "stage.rl.algorithm={distillation={kind='reverse_kl',on_policy_share=0.5}}",
            "schedule.max_staleness=2",
            "schedule.pin_version=true",
            "rollout.max_batch=2",
        ],
        max_staleness: 2,
        is_reproducible: true,
        engines: Engines::Embedded,
    },
];

/// The kinds that learn from given completions.
pub(super) const OF_ROWS: [&str; 5] =
    ["a reward model", "pairs", "labels", "labels with a running anchor", "a distillation of demonstrations"];

/// A stage that learns from given completions.
const fn of_rows(name: &'static str, schedule: &'static [&'static str]) -> Kind {
    Kind { name, schedule, max_staleness: 0, is_reproducible: true, engines: Engines::Embedded }
}

/// The kind whose batches are samples and demonstrations.
pub(super) const DISTILLATION: &str = "a distillation of samples and demonstrations";
/// The kind that trains an adapter.
pub(super) const ADAPTER: &str = "an adapter";
/// The kind whose episodes are those of agents.
pub(super) const AGENTS: &str = "agents";
/// The kind whose batches reuse groups of earlier batches.
pub(super) const REUSE: &str = "reused groups";
/// The kind whose episodes have several segments.
pub(super) const SEGMENTS: &str = "episodes of several segments";

/// An agent of the tests `agents`.
const AGENT: &str = "environment={kind='agent',concurrency=4,cwd='/',command=['/proc/self/exe','--exact',\
                     'agents::player::rewarded','--ignored','--nocapture']}";

const SOURCES: &str = "data.sources=[{generator='arithmetic',operations=['+'],max_digits=1,domain='easy',weight=2.0},\
                       {generator='arithmetic',operations=['+'],max_digits=2,domain='hard'}]";
const QUOTAS: &str = "domains.quotas={easy=2.0,hard=1.0}";
/// Any success is above the band, so that quotas change.
const CURRICULUM: &str = "domains.curriculum={band=[0.0,0.0],floor=0.01,window=3}";
const EVAL_SETS: &str =
    "eval.sets=[{name='more',tasks=4,data={generator='arithmetic',operations=['+'],max_digits=2}}]";

/// A shell script that gives the completions of a group the rewards 0, 1, 0, 1; it fails for other numbers of completions.
/// Where `DIES` is set, each of its processes kills itself in its sixth request.
const GROUPS_JUDGED: &str = r#"reward.components=[{kind='exact'},{kind='command',group=true,workers=2,command=['sh','-c','''
seen=0
while read -r line; do
  id=${line#*:}; id=${id%%,*}
  case "$line" in
    *\"hello\"*) echo "{\"id\":$id,\"ready\":{\"v\":1}}";;
    *) [ -z "$RLOOM_TEST_DIES" ] || [ $seen -lt 5 ] || kill -9 $$
       seen=$((seen + 1))
       n=$(echo "$line" | grep -o "\"completion\":" | wc -l)
       case $n in 1) v=0;; 4) v=0,1,0,1;; *) v=;; esac
       echo "{\"id\":$id,\"verdicts\":[$v]}";;
  esac
done''']}]"#;

/// Several checkpoints and evaluations, batches between them that only the journal has, and rewards that give every group
/// contrast.
pub(super) const COMMON: [&str; 8] = [
    "stage.warmup.steps=3",
    "stage.rl.steps=14",
    "run.checkpoint_every=4",
    "run.keep_every=0",
    "eval.every=5",
    "eval.tasks=16",
    "sampling.max_new_tokens=12",
    "reward.components=[{kind='random'},{kind='exact'}]",
];
