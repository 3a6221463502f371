//! The model compared with published measurements: fitted to one row of each table, it predicts the others.
//!
//! The snapshot shows the fitted constants; everything else comes from data sheets, the publication, or an assumption named
//! in `docs/plan.md`. The snapshot pins the prediction errors, so that a change of the model that moves them is noticed; their
//! bounds hold in any snapshot.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;

use rloom_core::OnUpdate;
use rloom_sched::{CutOrder, Priority, SchedulerSettings, Stragglers};
use rloom_sim::{
    Demand, Distribution, Failures, ModelShape, Profile, Report, Roofline, Scenario, Speeds, Split, Workload,
    WorkloadShape, simulate,
};

/// Properties shared by the rows of a table: one kind of GPU and one task.
#[derive(Clone, Copy)]
struct Study {
    memory: f64,
    flops: f64,
    groups: u64,
    samples: u32,
    median: f64,
    sigma: f64,
    longest: f64,
    prompt: f64,
    max_staleness: u64,
    on_update: OnUpdate,
    /// Seconds per decoding step spent on neither memory reads nor arithmetic.
    decode_fixed: f64,
    /// Fraction of the operations that training achieves when alternating with rollout.
    train_shared: f64,
    /// Fraction of the operations that training achieves when overlapping with rollout.
    train_overlapped: f64,
    scoring: u32,
}

/// A row of a table: a model on a number of GPUs.
#[derive(Clone, Copy)]
struct Row {
    model: ModelShape,
    gpus: u32,
    rollout: u32,
    per_replica: u32,
    /// Fraction of the operations that training achieves, if published.
    train: Option<f64>,
}

const STEPS: u64 = 9;

impl Study {
    fn profile(&self, row: Row, train: f64) -> Profile {
        Profile {
            about: String::new(),
            devices: row.gpus,
            devices_per_replica: row.per_replica,
            max_concurrency: 256,
            speeds: Speeds::Roofline(Roofline {
                memory_bytes_per_second: self.memory,
                memory_bytes: 80e9,
                flops: self.flops,
                decode_fixed_seconds: self.decode_fixed,
                decode_bandwidth_share: 0.74,
                decode_flops_share: 0.5,
                prefill_flops_share: 0.5,
                train_flops_share: train,
                train_flops_per_parameter: 6.0,
                train_scaling: 1.0,
                train_fixed_seconds: 0.0,
                publish_fixed_seconds: 2.1,
                publish_bytes_per_second: 4.1e9,
                bytes_per_parameter: 2.0,
                model: row.model,
            }),
            workload: WorkloadShape {
                prompt_tokens: Distribution::Constant { value: self.prompt },
                turn_share: None,
                turn_tokens: Some(Distribution::ZERO),
                turns: None,
                group_correlation: 0.3,
                observation_tokens: Distribution::ZERO,
                environment_seconds: Distribution::ZERO,
                reward_seconds: Distribution::ZERO,
                prefix_cache: 1.0,
                filter_rate: 0.0,
            },
            failures: Failures::NONE,
        }
    }

    fn scenario(&self, row: Row, overlapped: bool) -> Scenario {
        let lengths = Distribution::Lognormal { median: self.median, sigma: self.sigma, max: self.longest };
        let demand = Demand {
            model: Some(row.model),
            scoring_passes: if overlapped { 0 } else { self.scoring },
            context_tokens: self.prompt + 0.5 * lengths.mean(),
            max_batch: 256,
            policies: 1,
        };
        let (split, train) = if overlapped {
            let split = Split::Separate { rollout: row.rollout, train: row.gpus - row.rollout };
            (split, row.train.unwrap_or(self.train_overlapped))
        } else {
            (Split::Shared { devices: row.gpus }, row.train.unwrap_or(self.train_shared))
        };
        Scenario {
            scheduler: SchedulerSettings {
                groups_per_batch: self.groups,
                batches: STEPS,
                max_staleness: if overlapped { self.max_staleness } else { 0 },
                pin_version: false,
                oversample: 0,
                cut_order: if overlapped { CutOrder::Completion } else { CutOrder::Ticket },
                stragglers: Stragglers::Drop,
                evaluate_every: 0,
                checkpoint_every: 0,
                reuse: None,
            },
            on_update: self.on_update,
            priority: Priority::Oldest,
            workload: Workload {
                group_size: self.samples,
                prompt_tokens: Distribution::Constant { value: self.prompt },
                turn_tokens: lengths,
                group_correlation: 0.3,
                turns: Distribution::Constant { value: 1.0 },
                observation_tokens: Distribution::ZERO,
                environment_seconds: Distribution::ZERO,
                reward_seconds: Distribution::ZERO,
                prefix_cache: 1.0,
                filter_rate: 0.0,
            },
            hardware: self.profile(row, train).hardware(split, &demand),
            failures: Failures::NONE,
            seed: 7,
            max_events: 100_000_000,
        }
    }

    fn run(&self, row: Row, overlapped: bool) -> Report {
        simulate(&self.scenario(row, overlapped)).unwrap()
    }

    fn step(&self, row: Row, overlapped: bool) -> f64 {
        self.run(row, overlapped).seconds_per_step
    }
}

/// Largest error of a fitted duration.
const FITTED_ERROR: f64 = 0.03;
/// Largest factor between a predicted and a published duration.
const PREDICTED_FACTOR: f64 = 2.2;

/// Checks the predictions for a row against the published durations: synchronous, then overlapped.
fn check_row(name: &str, is_fitted: bool, predicted: (f64, f64), published: (f64, f64)) {
    assert!(predicted.1 < predicted.0, "{name}: overlapping gains nothing");
    for (predicted, published) in [(predicted.0, published.0), (predicted.1, published.1)] {
        let ratio = predicted / published;
        let bounds = if is_fitted {
            1.0 - FITTED_ERROR..1.0 + FITTED_ERROR
        } else {
            1.0 / PREDICTED_FACTOR..PREDICTED_FACTOR
        };
        assert!(bounds.contains(&ratio), "{name}: predicted {predicted}, published {published}");
    }
}

/// Finds where a monotone function reaches `target` within a range, or the nearest end of the range.
fn solve(target: f64, (mut low, mut high): (f64, f64), seconds: impl Fn(f64) -> f64) -> f64 {
    let rises = seconds(high) > seconds(low);
    for _ in 0..12 {
        let middle = (low * high).sqrt();
        if (seconds(middle) > target) == rises {
            high = middle;
        } else {
            low = middle;
        }
    }
    (low * high).sqrt()
}

/// Range of the fraction of a device's operations.
const SHARES: (f64, f64) = (0.01, 1.0);

fn off(predicted: f64, published: f64) -> String {
    format!("{:+.0} %", 100.0 * (predicted / published - 1.0))
}

fn qwen(parameters: f64, layers: f64, kv_heads: f64) -> ModelShape {
    ModelShape { parameters, kv_numbers_per_token: 2.0 * layers * kv_heads * 128.0 }
}

/// AReaL, arXiv 2505.24298, table 1: steps and hours of the synchronous and the asynchronous system. H800 GPUs, eight per
/// node, three quarters of them for rollout; 512 prompts with 16 answers each.
#[test]
fn areal() {
    let row = |model, nodes: u32, per_replica, train| Row {
        model,
        gpus: 8 * nodes,
        rollout: 6 * nodes,
        per_replica,
        train: Some(train),
    };
    let rows = [
        ("1.5B", row(qwen(1.54e9, 28.0, 2.0), 16, 1, 0.43), 250.0, 41.0, 14.8),
        ("7B", row(qwen(7.62e9, 28.0, 4.0), 24, 1, 0.46), 250.0, 57.7, 25.4),
        ("14B", row(qwen(14.8e9, 48.0, 8.0), 32, 2, 0.38), 80.0, 48.8, 21.9),
        ("32B", row(qwen(32.8e9, 64.0, 8.0), 48, 4, 0.31), 60.0, 51.1, 31.1),
    ];
    let mut study = Study {
        memory: 3.35e12,
        flops: 989e12,
        groups: 512,
        samples: 16,
        median: 8000.0,
        sigma: 0.8,
        longest: 32_000.0,
        prompt: 256.0,
        max_staleness: 4,
        on_update: OnUpdate::Recompute,
        decode_fixed: 0.01,
        train_shared: 0.1,
        train_overlapped: 0.1,
        scoring: 0,
    };
    let (_, fit, steps, sync, overlapped) = rows[0];
    let seconds = |hours: f64| hours * 3600.0 / steps;
    for _ in 0..3 {
        let shared = |decode_fixed| Study { decode_fixed, ..study }.step(fit, false);
        study.decode_fixed = solve(seconds(sync), (1e-4, 0.1), shared);
        let overlapped_step = |median| Study { median, ..study }.step(fit, true);
        study.median = solve(seconds(overlapped), (500.0, 30_000.0), overlapped_step);
    }
    let mut text = format!(
        "fitted to the row 1.5B: {:.1} ms of overhead per decoding step, median answer of {:.0} tokens\n\n\
         model    hours synchronous        hours overlapped         speed-up\n\
         {:>5} {:>9} {:>6} {:>7} {:>10} {:>6} {:>7} {:>9} {:>5} {:>7}\n",
        1e3 * study.decode_fixed,
        study.median,
        "",
        "published",
        "model",
        "off",
        "published",
        "model",
        "off",
        "published",
        "model",
        "off"
    );
    for (i, (name, row, steps, sync, overlapped)) in rows.into_iter().enumerate() {
        let hours = |overlap| study.step(row, overlap) * steps / 3600.0;
        let (a, b) = (hours(false), hours(true));
        check_row(name, i == 0, (a, b), (sync, overlapped));
        let _ = writeln!(
            text,
            "{name:>5} {sync:>9.1} {a:>6.1} {:>7} {overlapped:>10.1} {b:>6.1} {:>7} {:>9.2} {:>5.2} {:>7}{}",
            off(a, sync),
            off(b, overlapped),
            sync / overlapped,
            a / b,
            off(a / b, sync / overlapped),
            if i == 0 { "  (fitted)" } else { "" }
        );
    }
    text.push_str(
        "\ngeneration throughput gained by interrupting sequences for new weights instead of draining, 4 nodes\n",
    );
    for ((name, row, ..), published) in rows.into_iter().zip([0.12, 0.17]) {
        let row = Row { gpus: 32, rollout: 24, ..row };
        let rate = |on_update| Study { on_update, ..study }.run(row, true).generated_tokens_per_second;
        let gain = rate(OnUpdate::Recompute) / rate(OnUpdate::Finish) - 1.0;
        assert!((0.0..0.5).contains(&gain), "{name}: interrupting gains {gain}, published {published}");
        let _ =
            writeln!(text, "{name:>5} published {:+.0} %, model {:+.0} %", 100.0 * published, 100.0 * gain);
    }
    insta::assert_snapshot!("areal", text);
}

/// verl's fully asynchronous trainer (docs/advance/fully_async.md): seconds of a step on H20 GPUs, Qwen2.5-Math-7B,
/// 512 prompts with 16 answers of at most 28 k tokens, half of the GPUs for rollout.
#[test]
fn verl() {
    let model = qwen(7.62e9, 28.0, 4.0);
    let row = |gpus: u32| Row { model, gpus, rollout: gpus / 2, per_replica: 1, train: None };
    // GPUs; seconds of generation, old log-probabilities and update of a synchronous step; a synchronous step; an
    // overlapped step.
    let rows = [
        (128, 177.85, 53.92, 113.81, 356.30, 150.63),
        (64, 150.72, 70.26, 133.41, 365.28, 189.26),
        (32, 357.41, 107.71, 313.81, 790.10, 294.77),
    ];
    let mut study = Study {
        memory: 4.0e12,
        flops: 148e12,
        groups: 512,
        samples: 16,
        median: 2000.0,
        sigma: 0.8,
        longest: 28_000.0,
        prompt: 256.0,
        max_staleness: 1,
        on_update: OnUpdate::Keep,
        decode_fixed: 0.0,
        train_shared: 0.3,
        train_overlapped: 0.3,
        scoring: 0,
    };
    let (gpus, generate, _, _, step, overlapped) = rows[0];
    let fit = row(gpus);
    // Sequences end at different times, so generation lasts until training begins.
    study.median = solve(generate, (100.0, 20_000.0), |median| {
        let report = Study { median, ..study }.run(fit, false);
        (1.0 - report.rollout.shared) * report.seconds_per_step
    });
    study.train_shared = solve(step, SHARES, |train| Study { train_shared: train, ..study }.step(fit, false));
    study.train_overlapped =
        solve(overlapped, SHARES, |train| Study { train_overlapped: train, ..study }.step(fit, true));
    let mut text = format!(
        "fitted to the row 128: median answer of {:.0} tokens, training achieves {:.3} of the operations when \
         synchronous and {:.3} when overlapped\n\n\
         GPUs   seconds synchronous      seconds overlapped         speed-up\n\
         {:>5} {:>9} {:>6} {:>7} {:>10} {:>6} {:>7} {:>9} {:>5} {:>7}\n",
        study.median,
        study.train_shared,
        study.train_overlapped,
        "",
        "published",
        "model",
        "off",
        "published",
        "model",
        "off",
        "published",
        "model",
        "off"
    );
    for (i, (gpus, .., step, overlapped)) in rows.into_iter().enumerate() {
        let (a, b) = (study.step(row(gpus), false), study.step(row(gpus), true));
        check_row(&format!("{gpus} GPUs"), i == 0, (a, b), (step, overlapped));
        let _ = writeln!(
            text,
            "{gpus:>5} {step:>9.1} {a:>6.1} {:>7} {overlapped:>10.1} {b:>6.1} {:>7} {:>9.2} {:>5.2} {:>7}{}",
            off(a, step),
            off(b, overlapped),
            step / overlapped,
            a / b,
            off(a / b, step / overlapped),
            if i == 0 { "  (fitted)" } else { "" }
        );
    }
    insta::assert_snapshot!("verl", text);
}
