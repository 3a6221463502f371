//! The figures as people read them.

use super::Bench;
use super::measure::median;
use super::report::{Kernel, Report, Work};
use crate::output::{BOLD, Output};
use crate::progress::numbers::{BAR, bar, count, percent};

/// From this fraction of a ceiling on, the ceiling is what limits a work.
const NEAR: f64 = 0.5;

/// All of it.
pub(super) fn text(report: &Report, bench: &Bench<'_>, output: Output) -> String {
    let heading = |text: &str| output.paint(BOLD, text);
    let mut lines = head(report, bench);
    lines.push(String::new());
    lines.push(heading("ceilings of this machine, measured now"));
    lines.extend(ceilings(report));
    if !report.kernels.is_empty() {
        lines.push(String::new());
        lines.push(heading("kernels"));
        lines.extend(report.kernels.iter().map(kernel));
    }
    for work in &report.works {
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
    let bf16 = c.gemm_bf16_instruction.unwrap_or("no instruction for it here: as f32");
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
    let Kernel { name, m, n, k, gflops, fraction } = kernel;
    let shape = format!("{m} x {n} x {k}");
    format!("  {name:<23} {shape:<20} {gflops:>8.1} GFLOP/s  {:>7}  {}", percent(*fraction), bar(*fraction))
        .trim_end()
        .to_owned()
}

fn details(work: &Work) -> Vec<String> {
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
        lines.push(share("must read", &format!("{rate:.1} GB/s"), fraction, "memory, read"));
    }
    if let (Some(start), Some(peak)) = (work.start_mib, work.peak_mib) {
        lines.push(format!(
            "  memory      {:.0} MiB at its peak, {:.0} MiB above its start",
            peak,
            peak - start
        ));
    }
    let median = median(&work.seconds);
    for (i, phase) in work.phases.iter().enumerate() {
        let title = if i == 0 { "phases" } else { "" };
        // Weights are packed once for many rounds, outside of their time.
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

/// What keeps a work from going faster, as far as the two ceilings tell.
fn limit(work: &Work) -> String {
    let (compute, read) = (work.fraction_of_gemm, work.fraction_of_read.unwrap_or(0.0));
    let longest = work
        .phases
        .iter()
        .filter(|phase| phase.name != "pack")
        .max_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let longest = longest.map_or_else(String::new, |phase| format!("; {} takes longest", phase.name));
    if compute >= NEAR && compute >= read {
        format!("compute: {} of what the processor multiplies at most{longest}", percent(compute))
    } else if read >= NEAR {
        format!("memory: {} of the bandwidth goes to what must be read{longest}", percent(read))
    } else {
        let known =
            work.fraction_of_read.map_or_else(String::new, |read| format!(", must read {}", percent(read)));
        format!(
            "overhead: neither ceiling is near (products {}{known}): activations' traffic, small operations and waits{longest}",
            percent(compute)
        )
    }
}

/// Seconds in about three digits.
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
    fn times_keep_their_digits() {
        assert_eq!(
            [0.00009, 0.0654, 0.4423, 9.628, 28.84].map(time),
            ["0.09 ms", "65.40 ms", "442 ms", "9.63 s", "28.8 s"]
        );
    }
}
