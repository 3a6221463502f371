use rloom_config::Config;

use super::*;
use crate::assembly::{Placement, Slots};

const RECIPE: &str = "model.new = { layers = 1, hidden_size = 8, heads = 1, intermediate_size = 8, max_positions = 16 }\n\
                      sampling.max_new_tokens = 4\ndata.generator = 'arithmetic'\n\
                      reward.components = [{ kind = 'exact' }]\n\
                      [[stage]]\nname = 'rl'\nmethod = 'grpo'\nsteps = 1\ngroups_per_batch = 1\n";
const TORCH: &str = "trainer.backend=torch";
const VLLM: &str = "rollout.engine=vllm";
const SHARED: &str = "rollout.memory=0.45";

/// The form of a recipe on a machine, by way of its placement.
fn placed(overrides: &[&str], machine: Slots) -> Result<Form, PlacementError> {
    let config =
        Config::from_text("test.toml", RECIPE, overrides).map_err(|errors| errors.to_string()).unwrap();
    Placement::of(&config, &config.stages[0], &machine.into())
        .map(|placement| placement.map_or(Form::Folder, |own| own.weights))
}

#[test]
fn weights_go_through_folders_unless_another_form_is_set() {
    const NCCL: &str = "rollout.weights=nccl";
    let cases: [(&[&str], Slots, Form); 9] = [
        (&[], Slots::Gpus(2), Form::Folder),
        (&[VLLM], Slots::Gpus(2), Form::Folder),
        (&[TORCH, VLLM], Slots::Cores(8), Form::Folder),
        (&[TORCH, VLLM], Slots::Gpus(2), Form::Folder),
        (&[TORCH, VLLM, SHARED], Slots::Gpus(1), Form::Folder),
        (&[TORCH, VLLM, "rollout.weights=folder"], Slots::Gpus(2), Form::Folder),
        (&[TORCH, VLLM, NCCL], Slots::Gpus(2), Form::Nccl),
        (&[TORCH, VLLM, SHARED, "rollout.weights=ipc"], Slots::Gpus(1), Form::Ipc),
        (
            &[TORCH, VLLM, NCCL, "schedule.max_staleness=1", "schedule.on_update=keep"],
            Slots::Gpus(2),
            Form::Nccl,
        ),
    ];
    for (overrides, machine, expected) in cases {
        assert_eq!(placed(overrides, machine), Ok(expected), "{overrides:?} on {machine:?}");
    }
    let running = [TORCH, VLLM, "rollout.urls=['http://a:1']", "rollout.weights=nccl"];
    assert_eq!(placed(&running, Slots::Gpus(2)), Ok(Form::Nccl));
}

#[test]
fn impossible_forms_are_refused() {
    const NCCL: &str = "rollout.weights=nccl";
    const IPC: &str = "rollout.weights=ipc";
    const STALE: &str = "schedule.max_staleness=1";
    let cases: [(&[&str], Slots, &str); 9] = [
        (&[TORCH, VLLM, NCCL], Slots::Cores(8), "this machine has no GPU"),
        (&[TORCH, VLLM, IPC], Slots::Cores(8), "this machine has no GPU"),
        (&[VLLM, NCCL], Slots::Gpus(2), "the built-in engine trains on processors"),
        (&[TORCH, "rollout.engine=sglang", NCCL], Slots::Gpus(2), "SGLang servers load folders alone"),
        (&[TORCH, VLLM, NCCL, SHARED], Slots::Gpus(1), "does not connect two processes on one GPU"),
        (&[TORCH, VLLM, IPC], Slots::Gpus(2), "use other GPUs than the ranks"),
        (
            &[TORCH, VLLM, IPC, SHARED, "trainer.ranks=2"],
            Slots::Gpus(2),
            "several ranks or servers share GPUs",
        ),
        (&[TORCH, VLLM, NCCL, STALE, "schedule.on_update=finish"], Slots::Gpus(2), "could not train until"),
        (
            &[TORCH, VLLM, NCCL, STALE, "schedule.pin_version=true"],
            Slots::Gpus(2),
            "the weights of older versions",
        ),
    ];
    for (overrides, machine, reason) in cases {
        let error = placed(overrides, machine).unwrap_err();
        let text = error.to_string();
        assert!(
            matches!(error, PlacementError::Weights { .. }) && text.contains(reason),
            "{overrides:?}: {text}"
        );
        // The hint.
        let folder: Vec<&str> = overrides.iter().copied().filter(|key| ![NCCL, IPC].contains(key)).collect();
        assert_eq!(placed(&folder, machine), Ok(Form::Folder));
    }
}

/// Servers come after the ranks of the stage that has most, or share their GPUs.
#[test]
fn ranks_of_other_stages_count() {
    let more = format!(
        "{RECIPE}[[stage]]\nname = 'more'\nmethod = 'grpo'\nsteps = 1\ngroups_per_batch = 1\ntrainer.ranks = 2\n"
    );
    let overrides = [TORCH, VLLM, SHARED, "rollout.weights=nccl", "stage.rl.trainer.ranks=1"];
    let config = Config::from_text("test.toml", &more, &overrides);
    let config = config.map_err(|errors| errors.to_string()).unwrap();
    let form = |gpus| {
        Placement::of(&config, &config.stages[0], &Slots::Gpus(gpus).into()).map(|own| own.unwrap().weights)
    };
    assert_eq!(form(3), Ok(Form::Nccl));
    let error = form(2).unwrap_err().to_string();
    assert!(error.contains("does not connect two processes on one GPU"), "{error}");
}

#[test]
fn servers_sleep_on_one_gpu() {
    const SLEEP: &str = "rollout.sleep=true";
    // They share it whatever memory they take, also where there are others.
    for gpus in [1, 2] {
        assert_eq!(placed(&[TORCH, VLLM, SLEEP], Slots::Gpus(gpus)), Ok(Form::Folder));
        let ipc = [TORCH, VLLM, SLEEP, "rollout.weights=ipc"];
        assert_eq!(placed(&ipc, Slots::Gpus(gpus)), Ok(Form::Ipc));
    }
    // Several ranks and servers take turns through folders; IPC connects one of each.
    let many = [TORCH, VLLM, SLEEP, "trainer.ranks=4", "rollout.replicas=2", "rollout.tensor_parallel=2"];
    assert_eq!(placed(&many, Slots::Gpus(4)), Ok(Form::Folder));
    let error = placed(&[&many[..], &["rollout.weights=ipc"]].concat(), Slots::Gpus(4)).unwrap_err();
    assert!(error.to_string().contains("several ranks or servers share GPUs"), "{error}");
    let cases: [(&[&str], Slots, &str); 5] = [
        (&[TORCH, VLLM, SLEEP], Slots::Cores(8), "this machine has no GPU"),
        (&[VLLM, SLEEP], Slots::Gpus(1), "the built-in engine trains on processors"),
        (&[TORCH, "rollout.engine=sglang", SLEEP], Slots::Gpus(1), "only vLLM servers"),
        (&[TORCH, VLLM, SLEEP, "rollout.urls=['http://a:1']"], Slots::Gpus(1), "only vLLM servers"),
        (&[TORCH, VLLM, SLEEP, "schedule.max_staleness=1"], Slots::Gpus(1), "generate while the ranks train"),
    ];
    for (overrides, machine, reason) in cases {
        let error = placed(overrides, machine).unwrap_err();
        let text = error.to_string();
        assert!(
            matches!(error, PlacementError::Sleep { .. }) && text.contains(reason),
            "{overrides:?}: {text}"
        );
        // The hint.
        let awake: Vec<&str> = overrides.iter().copied().filter(|key| *key != SLEEP).collect();
        placed(&[&awake[..], &[SHARED]].concat(), machine).unwrap();
    }
}

/// vLLM serves adapters of its ranks by name. What it does not serve is added to the base.
#[test]
fn adapters_go_to_vllm_without_their_base() {
    const LORA: &str = "trainer.lora={rank=12}";
    let text = RECIPE.lines().skip(1).collect::<Vec<_>>().join("\n");
    let text = format!("model.path = 'model'\n{text}");
    let placed = |overrides: &[&str]| {
        let config = Config::from_text("test.toml", &text, overrides);
        let config = config.map_err(|errors| errors.to_string()).unwrap();
        let stage = &config.stages[0];
        let rank = stage.rollout.as_ref().and_then(|rollout| served_rank(stage, &rollout.engine));
        let form = Placement::of(&config, stage, &Slots::Gpus(2).into());
        (rank, form.unwrap().map_or(Form::Folder, |own| own.weights), versions_in_use(stage))
    };
    assert_eq!(placed(&[VLLM, LORA]), (Some(12), Form::Adapter, 2));
    assert_eq!(placed(&[TORCH, VLLM, LORA, "schedule.max_staleness=1"]), (Some(12), Form::Adapter, 3));
    assert_eq!(placed(&[TORCH, VLLM, LORA, "schedule.max_staleness=99"]).2, MOST_VERSIONS);
    let merged: [&[&str]; 8] = [
        &[TORCH, VLLM],
        &[TORCH, "rollout.engine=sglang", LORA],
        &[TORCH, VLLM, LORA, "rollout.weights=merged"],
        &[TORCH, VLLM, LORA, "rollout.sleep=true"],
        &[TORCH, VLLM, "trainer.lora={dora=true}"],
        &[TORCH, VLLM, "trainer.lora={quantize='nf4'}"],
        &[VLLM, "trainer.lora={targets=['q_proj','lm_head']}"],
        &[TORCH, VLLM, "trainer.lora={rank=513}"],
    ];
    for overrides in merged {
        assert_eq!((placed(overrides).0, placed(overrides).1), (None, Form::Folder), "{overrides:?}");
    }
    assert_eq!(placed(&[TORCH, VLLM, "trainer.lora={rank=512}"]).0, Some(512));
}
