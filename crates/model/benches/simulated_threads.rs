//! How well a training step, or a step of decoding, is divided among many threads: the pieces of every operation are measured one after the other on
//! one thread and distributed over imagined threads.
//!
//! ```text
//! cargo bench -p rloom-model --bench simulated_threads -- S|M train SEQUENCES TOKENS THREADS,…
//! cargo bench -p rloom-model --bench simulated_threads -- S|M decode SEQUENCES TOKENS THREADS,…
//! ```
//!
//! A step of decoding computes one token after TOKENS − 1 of each sequence.
//!
//! Speed-ups are those of a machine whose threads do not slow each other down; the work outside the jobs and the cost of a
//! job are included. `imbalance` is the time of the jobs on the threads over an equal share of their pieces.

use rloom_model::{
    ActivationCheckpointing, Gradients, KvCache, Model, ModelConfig, NewModel, Optimizer, OptimizerSettings,
    PackedTokens, RowRequest, ScoreGrads, ScoreRows, StepRow, StepScratch,
};
use rloom_ops::{Ctx, HeadOutput, HeadRequest, KV_BLOCK, Simulated};

type Error = Box<dyn std::error::Error>;
type Step = dyn FnMut(&Ctx) -> Result<(), Error>;

/// Seconds from the start of a job until other threads take part, while they wait for it.
const JOB_COST: f64 = 2e-6;
/// Operations that are shown, those that lose most time.
const SHOWN: usize = 6;

fn config(shape: &str) -> Result<ModelConfig, Error> {
    let (layers, hidden, heads, kv_heads, head_dim, intermediate, vocab) = match shape {
        "S" => (4, 256, 8, 4, 32, 704, 512),
        "M" => (24, 896, 14, 2, 64, 4864, 32_000),
        _ => return Err("the shape is S or M".into()),
    };
    let new: NewModel = serde_json::from_value(serde_json::json!({
        "family": "qwen2", "layers": layers, "hidden_size": hidden, "heads": heads, "kv_heads": kv_heads,
        "head_dim": head_dim, "intermediate_size": intermediate, "max_positions": 1 << 16,
    }))?;
    Ok(new.config(vocab)?)
}

/// Processor seconds of this thread, which other programs disturb least.
fn clock() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Seconds of a call of [`clock`].
fn of_clock() -> f64 {
    const CALLS: usize = 10_000;
    let start = clock();
    for _ in 0..CALLS {
        std::hint::black_box(clock());
    }
    (clock() - start) / CALLS as f64
}

#[expect(clippy::print_stdout, reason = "the output of this program")]
fn report(threads: usize, elapsed: f64, mut jobs: Vec<(String, Simulated)>) {
    let lost = |jobs: &Simulated| jobs.parallel - jobs.serial / threads as f64;
    let sum = |of: &dyn Fn(&Simulated) -> f64| jobs.iter().map(|(_, jobs)| of(jobs)).sum::<f64>();
    let serial = sum(&|jobs| jobs.serial);
    let parallel = sum(&|jobs| jobs.parallel);
    let clock_cost = 2.0 * of_clock() * sum(&|jobs| jobs.pieces as f64);
    let elapsed = elapsed - clock_cost;
    // Half of the calls' time is measured as the pieces'.
    let serial = serial - clock_cost / 2.0;
    let outside = elapsed - serial;
    let cost = sum(&|jobs| jobs.jobs as f64) * JOB_COST;
    let predicted = outside + parallel + cost;
    println!(
        "{threads} threads: {:.1} × one ({:.0} %); {:.2} ms instead of {:.0} ms, of which {:.2} ms outside of jobs and {:.2} ms \
         to start {:.0} jobs; imbalance {:.2}",
        elapsed / predicted,
        100.0 * elapsed / predicted / threads as f64,
        1e3 * predicted,
        1e3 * elapsed,
        1e3 * outside,
        1e3 * cost,
        cost / JOB_COST,
        parallel * threads as f64 / serial,
    );
    jobs.sort_by(|(_, a), (_, b)| lost(b).total_cmp(&lost(a)));
    for (operation, jobs) in jobs.iter().take(SHOWN) {
        println!(
            "    {:7.3} ms lost by {operation}: {} jobs of {:.1} pieces, {:.2} ms in all",
            1e3 * lost(jobs),
            jobs.jobs,
            jobs.pieces as f64 / jobs.jobs as f64,
            1e3 * jobs.serial,
        );
    }
}

/// Returns a function that executes a training step.
fn training(
    config: &ModelConfig,
    sequences: usize,
    length: usize,
) -> impl FnMut(&Ctx) -> Result<(), Error> + use<> {
    let tokens: Vec<u32> = (0..sequences * length).map(|i| (i * 7919 % config.vocab_size) as u32).collect();
    let seq_starts: Vec<usize> = (0..=sequences).map(|s| s * length).collect();
    let scored: Vec<u32> =
        (0..tokens.len()).filter(|row| !seq_starts.contains(row)).map(|row| row as u32).collect();
    let (ones, zeros) = (vec![1.0; scored.len()], vec![0.0; scored.len()]);
    let mut model = Model::init(config, 1);
    let mut gradients = Gradients::zeros(&model);
    let mut optimizer = Optimizer::new(&model, OptimizerSettings::default());
    move |ctx| {
        let batch = PackedTokens { tokens: &tokens, seq_starts: &seq_starts, parents: &[] };
        let rows = ScoreRows { rows: &scored, inv_temperature: &ones };
        let by = ScoreGrads { d_logprob: &ones, d_entropy: &zeros, ..ScoreGrads::default() };
        let forward = model.forward(ctx, &batch, &rows, ActivationCheckpointing::None)?;
        model.backward(ctx, forward, &by, &mut gradients)?;
        optimizer.step(ctx, &mut model, &gradients, 1e-4)?;
        gradients.clear();
        Ok(())
    }
}

/// Returns a function that executes a step of decoding.
fn decoding(
    config: &ModelConfig,
    sequences: usize,
    length: usize,
) -> impl FnMut(&Ctx) -> Result<(), Error> + use<> {
    let per_sequence = length.div_ceil(KV_BLOCK) as u32;
    let tables: Vec<Vec<u32>> =
        (0..sequences as u32).map(|s| (s * per_sequence..(s + 1) * per_sequence).collect()).collect();
    let requests: Vec<RowRequest> =
        (0..sequences as u32).map(|row| RowRequest { row, request: HeadRequest::Logits }).collect();
    let model = Model::init(config, 1);
    let mut cache = KvCache::new(config, sequences * per_sequence as usize);
    let (mut scratch, mut results) = (StepScratch::default(), HeadOutput::default());
    move |ctx| {
        let rows: Vec<StepRow<'_>> =
            tables.iter().map(|blocks| StepRow { token: 1, position: length as u32 - 1, blocks }).collect();
        Ok(model.step(ctx, &mut cache, &rows, &requests, &mut scratch, &mut results)?)
    }
}

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let [shape, workload, sequences, length, threads] = &arguments[..] else {
        return Err("five arguments: S|M train|decode SEQUENCES TOKENS THREADS,…".into());
    };
    let (config, sequences, length) = (config(shape)?, sequences.parse()?, length.parse()?);
    let mut step: Box<Step> = match &**workload {
        "train" => Box::new(training(&config, sequences, length)),
        "decode" => Box::new(decoding(&config, sequences, length)),
        _ => return Err("the workload is train or decode".into()),
    };
    for threads in threads.split(',') {
        let ctx = Ctx::simulated(threads.parse()?, clock);
        step(&ctx)?;
        ctx.take_simulated();
        let start = clock();
        step(&ctx)?;
        report(ctx.threads(), clock() - start, ctx.take_simulated());
    }
    Ok(())
}
