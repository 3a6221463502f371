//! Evaluation of a policy outside of a run.

use std::sync::Arc;
use std::time::Duration;

use rloom_collect::{AgentPolicies, BoundedEngine, EvaluationReport};
use rloom_config::EvalSettings;
use rloom_core::{OnUpdate, PolicyVersion};
use rloom_engine::{RolloutEngine, RolloutSettings};
use rloom_hub::Hub;
use rloom_ops::Ctx;

use crate::stage_setup::RunInputs;
use crate::{Policy, RunError, assembly, functions, runtime};

/// Interval of progress reports.
const TICK: Duration = Duration::from_millis(100);

/// Evaluates a policy as a run with this seed would. The report contains `shown` greedy completions; `progress` receives
/// the number of scored completions and their total.
pub fn evaluate(
    policy: &Policy,
    eval: &EvalSettings,
    hub: &Arc<Hub>,
    ctx: &Ctx,
    seed: u64,
    shown: usize,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<EvaluationReport, RunError> {
    let inputs = RunInputs::new(policy, Arc::clone(hub), ctx.threads(), seed);
    let tokenizer = Some((*policy.tokenizer).clone());
    let model = policy.model()?;
    // Outside of a run there are no servers.
    let timeout_seconds = eval.rollout.timeout_seconds();
    let embedded = RolloutSettings { timeout_seconds, ..RolloutSettings::default() };
    // The weights are judged as they are, also those of a run that samples from quantized ones.
    let settings = RolloutSettings { quantize: None, ..eval.rollout.embedded().unwrap_or(&embedded).clone() };
    let engine = Arc::new(assembly::rollout_engine(model.config(), ctx, &settings, tokenizer)?);
    functions::check_evaluation(eval, &inputs.judges)?;
    let rows = inputs.prompt_check().evaluation(eval)?;
    // One model plays all roles.
    let policies = AgentPolicies::all(inputs.policy);
    let bounded = Arc::new(BoundedEngine::new(Arc::clone(&engine)));
    let evaluator = inputs.evaluator(0, eval, &bounded, &policies, &rows)?;
    runtime::block_on(async {
        let weights = assembly::publish(ctx, &model, PolicyVersion(0));
        engine.load(&weights, OnUpdate::Finish).await?;
        let total = evaluator.completions();
        let mut run = std::pin::pin!(evaluator.run(shown));
        loop {
            match tokio::time::timeout(TICK, run.as_mut()).await {
                Ok(report) => return Ok(report?),
                // Ends: every request times out.
                Err(_) => progress(evaluator.scored(), total),
            }
        }
    })?
}
