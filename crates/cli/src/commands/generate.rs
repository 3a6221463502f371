//! `rloom generate`: completes prompts.

use std::io::{self, BufRead, IsTerminal};
use std::sync::Arc;

use rloom_core::{ChatMessage, PromptSource, Purpose, RandomKey};
use rloom_engine::{GenerateRequest, Generation, OnUpdate, RolloutEngine, SamplingSettings};
use rloom_env::render_prompt;
use rloom_run::Policy;
use serde_json::json;

use super::policy;
use crate::arguments::Generate;
use crate::failure::Failure;
use crate::output::{FAINT, Output};
use crate::progress::downloads;

pub(crate) fn run(arguments: &Generate, output: Output) -> Result<(), Failure> {
    let prompts = prompts(arguments)?;
    let hub = downloads::hub(output);
    let policy = policy::open(
        &arguments.model,
        arguments.sampling.dtype.map(Into::into),
        policy::Use::Sampling,
        &hub,
        output,
    )?;
    let most = arguments.length.max_new_tokens;
    let sampling = policy::sampling(&arguments.sampling, most, &policy.generation, &arguments.stop)?;
    let requests = requests(arguments, &policy, &prompts, &sampling)?;
    let (engine, weights) = policy::engine(&policy, arguments.sampling.threads)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(Failure::failed_text)?;
    runtime.block_on(async {
        engine.load(&weights, OnUpdate::Finish).await.map_err(Failure::failed)?;
        // All requests are queued before the first one is awaited; results are shown in the order of the prompts.
        let pending: Vec<_> = requests.into_iter().map(|r| engine.generate(r)).collect();
        for (i, generation) in pending.into_iter().enumerate() {
            let generation = generation.await.map_err(Failure::failed)?;
            show(i, arguments, &prompts, &policy, &sampling, &generation, output)?;
        }
        Ok(())
    })
}

fn prompts(arguments: &Generate) -> Result<Vec<String>, Failure> {
    if !arguments.prompts.is_empty() {
        return Ok(arguments.prompts.clone());
    }
    let none = |message| {
        Failure::usage_text(message).hint("pass prompts as arguments, or one per line on standard input")
    };
    if io::stdin().is_terminal() {
        return Err(none("no prompt given"));
    }
    let lines: Result<Vec<String>, _> = io::stdin().lock().lines().collect();
    let lines = lines.map_err(|e| Failure::failed_text(format_args!("cannot read the prompts: {e}")))?;
    let prompts: Vec<String> = lines.into_iter().filter(|line| !line.is_empty()).collect();
    if prompts.is_empty() { Err(none("standard input contains no prompt")) } else { Ok(prompts) }
}

/// `samples` requests per prompt, in the order of the prompts.
fn requests(
    arguments: &Generate,
    policy: &Policy,
    prompts: &[String],
    sampling: &SamplingSettings,
) -> Result<Vec<GenerateRequest>, Failure> {
    if arguments.samples == 0 {
        return Err(Failure::usage_text("--samples must be at least 1"));
    }
    let mut requests = Vec::new();
    for (i, prompt) in prompts.iter().enumerate() {
        let tokens = render_prompt(&policy.tokenizer, &source(arguments, prompt)).map_err(Failure::failed)?;
        if tokens.is_empty() {
            return Err(Failure::usage_text(format_args!("prompt {} is empty", i + 1)));
        }
        let tokens: Arc<[u32]> = tokens.into();
        // Limits the completion to the rest of the context, so that long prompts are not rejected.
        let room = policy.context.saturating_sub(tokens.len());
        if room == 0 {
            let most = policy.context;
            return Err(Failure::usage_text(format_args!(
                "prompt {} has {} tokens, the model holds {most}",
                i + 1,
                tokens.len()
            )));
        }
        let sampling =
            SamplingSettings { max_new_tokens: sampling.max_new_tokens.min(room), ..sampling.clone() };
        for sample in 0..arguments.samples {
            let key = RandomKey {
                sample,
                ..RandomKey::new(arguments.sampling.seed, 0, Purpose::Interactive, i as u64)
            };
            requests.push(GenerateRequest {
                stop_tokens: policy.stop_tokens(),
                group: Some(i as u64),
                ..GenerateRequest::new(key, Arc::clone(&tokens), sampling.clone())
            });
        }
    }
    Ok(requests)
}

fn source(arguments: &Generate, prompt: &str) -> PromptSource {
    if !arguments.chat && arguments.system.is_none() {
        return PromptSource::Text(prompt.to_owned());
    }
    let system = arguments.system.iter().map(|text| ChatMessage::new("system", text));
    PromptSource::Messages(system.chain([ChatMessage::new("user", prompt)]).collect())
}

fn show(
    index: usize,
    arguments: &Generate,
    prompts: &[String],
    policy: &Policy,
    sampling: &SamplingSettings,
    generation: &Generation,
    output: Output,
) -> Result<(), Failure> {
    let samples = arguments.samples as usize;
    let (prompt, sample) = (index / samples, index % samples);
    let text = policy.tokenizer.decode(&generation.tokens, true).map_err(Failure::failed)?;
    if output.json {
        return output.json(&json!({
            "prompt": prompts[prompt],
            "sample": sample,
            "completion": text,
            "tokens": generation.tokens,
            "logprobs": generation.logprobs,
            "temperature": sampling.temperature,
            "stop": generation.stop,
        }));
    }
    if prompts.len() * samples > 1 {
        let place =
            if samples > 1 { format!("{} · {}", prompt + 1, sample + 1) } else { format!("{}", prompt + 1) };
        output.info(&output.paint(FAINT, &format!("{place}: {}", prompts[prompt])));
    }
    output.data(&output.model_text(&text))
}
