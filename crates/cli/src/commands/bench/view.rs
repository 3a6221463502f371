//! Formats the measurements as text.

use super::Bench;
use super::measure::median;
use super::report::{Kernel, Report, WorkloadResult};
use crate::output::{BOLD, Output};
use crate::progress::numbers::{BAR, bar, count, percent};

/// Fraction of a ceiling from which the ceiling counts as the limit of a workload.
const LIMITED: f64 = 0.5;

/// Formats the whole report.
pub(super) fn text(report: &Report, bench: &Bench<'_>, output: Output) -> String {
    let heading = |text: &str| output.paint(BOLD, text);
    let mut lines = head(report, bench);
    lines.push(String::new());
    lines.push(heading("limits of this machine, measured now"));
    lines.extend(ceilings(report));
    if !report.kernels.is_empty() {
        lines.push(String::new());
        lines.push(heading("kernels"));
        lines.extend(report.kernels.iter().map(kernel));
    }
    for work in &report.workloads {
        lines.push(String::new());
        lines.push(heading(&format!("{}: {}", work.name, work.batch)));
        lines.extend(details(work));
    }
    lines.join("\n")
}

fn head(report: &Report, bench: &Bench<'_>) -> Vec<String> {
    let m = &report.machine;
    let memory = m.memory_mib.map_or_else(String::new, |mib| format!(", {:.0} GiB", mib as f64 / 1024.0));
    let config = &bench.shape.config;
    vec![
        format!("machine     {}, {} cores{memory}", m.processor, m.cores),
        format!("kernels     {}, bf16 products: {}; rloom {}", m.isa, m.products, m.version),
        format!(
            "measured    shape {} ({} parameters), {}, {} threads, medians of {} rounds",
            bench.shape.name,
            count(config.parameter_count()),
            config.dtype.name(),
            bench.ctx.threads(),
            bench.rounds
        ),
    ]
}

fn ceilings(report: &Report) -> Vec<String> {
    let c = &report.ceilings;
    let bf16 = c.gemm_bf16_instruction.unwrap_or("no bf16 instruction, computed in f32");
    vec![
        format!("  f32 products     {:>8.1} GFLOP/s   fused multiply-adds in registers", c.gemm_f32_gflops),
        format!("  bf16 products    {:>8.1} GFLOP/s   {bf16}", c.gemm_bf16_gflops),
        format!("  memory, read     {:>8.1} GB/s", c.read_gb_s),
        format!(
            "  memory, triad    {:>8.1} GB/s      a = b + s·c, two arrays read and one written",
            c.triad_gb_s
        ),
    ]
}

fn kernel(kernel: &Kernel) -> String {
    let Kernel { name, m, n, k, gflops, fraction, .. } = kernel;
    let shape = format!("{m} x {n} x {k}");
    format!("  {name:<23} {shape:<20} {gflops:>8.1} GFLOP/s  {:>7}  {}", percent(*fraction), bar(*fraction))
        .trim_end()
        .to_owned()
}

fn details(work: &WorkloadResult) -> Vec<String> {
    let (low, high) =
        work.seconds.iter().fold((f64::INFINITY, 0.0_f64), |(low, high), &s| (low.min(s), high.max(s)));
    let mut lines = vec![
        format!(
            "  time        {} ({} to {}), {} tokens/s",
            time(work.median()),
            time(low),
            time(high),
            count(work.tokens_per_second.round() as u64)
        ),
        share("arithmetic", &format!("{:.1} GFLOP/s", work.gflops), work.fraction_of_gemm, "products"),
    ];
    if let (Some(bytes), Some(fraction)) = (work.bytes_read, work.fraction_of_read) {
        let rate = bytes as f64 / work.median() / 1e9;
        lines.push(share("reads", &format!("{rate:.1} GB/s"), fraction, "memory, read"));
    }
    if let (Some(start), Some(peak)) = (work.start_mib, work.peak_mib) {
        lines.push(format!(
            "  memory      {:.0} MiB at the peak, {:.0} MiB above the start, at most {:.0} MiB by formula",
            peak,
            peak - start,
            work.expected_mib
        ));
    }
    let median = median(&work.seconds);
    for (i, phase) in work.phases.iter().enumerate() {
        let title = if i == 0 { "phases" } else { "" };
        // Weights are packed once, before the rounds.
        let share = if phase.name == "pack" { None } else { Some(phase.seconds / median) };
        let part = share.map_or_else(|| "once".to_owned(), percent);
        let line = format!(
            "  {title:<11} {:<16} {:>9}  {part:>7}  {}",
            phase.name,
            time(phase.seconds),
            share.map(bar).unwrap_or_default()
        );
        lines.push(line.trim_end().to_owned());
    }
    lines.push(format!("  limit       {}", limit(work)));
    lines
}

fn share(title: &str, rate: &str, fraction: f64, of: &str) -> String {
    let width = BAR;
    format!("  {title:<11} {rate:<16} {:>9}  {:<width$}  of {of}", percent(fraction), bar(fraction))
}

/// Describes the limit of a workload, according to the two ceilings.
fn limit(work: &WorkloadResult) -> String {
    let (compute, read) = (work.fraction_of_gemm, work.fraction_of_read.unwrap_or(0.0));
    let longest = work
        .phases
        .iter()
        .filter(|phase| phase.name != "pack")
        .max_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let longest = longest.map_or_else(String::new, |phase| format!("; {} takes longest", phase.name));
    if compute >= LIMITED && compute >= read {
        format!("compute: {} of the arithmetic limit{longest}", percent(compute))
    } else if read >= LIMITED {
        format!("memory: required reads use {} of the bandwidth{longest}", percent(read))
    } else {
        let known = work
            .fraction_of_read
            .map_or_else(String::new, |read| format!(", required reads {}", percent(read)));
        format!(
            "overhead: far from both limits (products {}{known}): memory traffic of activations, small operations, waiting{longest}",
            percent(compute)
        )
    }
}

/// Formats a duration with about three digits.
fn time(seconds: f64) -> String {
    match seconds {
        ..0.0995 => format!("{:.2} ms", seconds * 1e3),
        ..0.9995 => format!("{:.0} ms", seconds * 1e3),
        ..9.995 => format!("{seconds:.2} s"),
        _ => format!("{seconds:.1} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits() {
        assert_eq!(
            [0.00009, 0.0654, 0.4423, 9.628, 28.84].map(time),
            ["0.09 ms", "65.40 ms", "442 ms", "9.63 s", "28.8 s"]
        );
    }
}
