//! Formats the measurements with several numbers of threads as text.

use super::{Count, Limits, ScaledWorkload, Scaling};
use crate::output::{BOLD, Output};
use crate::progress::numbers::{bar_of, count};

/// Columns of the plot.
const PLOT: usize = 32;
/// Share of the predicted speed-up from which the machine counts as the limit.
const CLOSE: f64 = 0.9;
/// Share of the time from which memory traffic counts as the limit.
const BOUND: f64 = 0.5;

/// Formats the whole report.
pub(in super::super) fn text(scaling: &Scaling, output: Output) -> String {
    let heading = |text: &str| output.paint(BOLD, text);
    let machine = &scaling.machine;
    let mut lines = vec![
        format!("machine     {}, {} cores", machine.processor, machine.cores),
        format!(
            "kernels     {}, bf16 products: {}; rloom {}",
            machine.isa, machine.products, machine.version
        ),
        format!(
            "measured    shape {}, {}, medians of {} rounds, numbers of threads in turns",
            scaling.shape, scaling.dtype, scaling.rounds
        ),
        String::new(),
        heading("limits of this machine, measured in the same turns"),
        "  threads   f32 GFLOP/s  bf16 GFLOP/s   read GB/s  triad GB/s".to_owned(),
    ];
    lines.extend(scaling.limits.iter().map(limits));
    for work in &scaling.workloads {
        lines.push(String::new());
        lines.push(heading(&format!("{}: {}", work.name, work.batch)));
        lines.extend(details(work));
    }
    lines.join("\n")
}

fn limits(limits: &Limits) -> String {
    let c = &limits.ceilings;
    format!(
        "  {:>7}  {:>12.1}  {:>12.1}  {:>10.1}  {:>10.1}",
        limits.threads, c.gemm_f32_gflops, c.gemm_bf16_gflops, c.read_gb_s, c.triad_gb_s
    )
}

fn details(work: &ScaledWorkload) -> Vec<String> {
    let longest =
        work.counts.iter().fold(1.0_f64, |longest, count| longest.max(count.speedup).max(count.limit));
    let mut lines = vec!["  threads   tokens/s  speed-up  limit  efficiency  arithmetic  memory".to_owned()];
    lines.extend(work.counts.iter().map(|count| row(count, longest)));
    lines.extend(work.counts.last().map(|last| format!("  {}", verdict(last))));
    lines
}

fn row(found: &Count, longest: f64) -> String {
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    let memory = found.memory.map_or_else(|| "?".to_owned(), percent);
    format!(
        "  {:>7}  {:>9}  {:>8.2}  {:>5.2}  {:>10}  {:>10}  {memory:>6}  {}",
        found.threads,
        count(found.tokens_per_second.round() as u64),
        found.speedup,
        found.limit,
        percent(found.efficiency),
        percent(found.arithmetic),
        plot(found.speedup / longest, found.limit / longest),
    )
}

/// A bar with a mark at the limit, both as shares of the width.
fn plot(speedup: f64, limit: f64) -> String {
    let mut cells: Vec<char> = bar_of(speedup, PLOT).chars().collect();
    let mark = ((limit * PLOT as f64).round() as usize).max(1) - 1;
    if mark >= cells.len() {
        cells.resize(mark, ' ');
        cells.push('│');
    }
    cells.into_iter().collect()
}

/// Says what limits the largest number of threads.
fn verdict(last: &Count) -> String {
    let reached = last.speedup / last.limit;
    let of_limit = format!(
        "{} threads reach {:.0} % of the speed-up that arithmetic and memory of this machine allow",
        last.threads,
        100.0 * reached
    );
    if reached < CLOSE {
        return format!("limit: the program; {of_limit}");
    }
    match last.memory {
        Some(share) if share >= BOUND => {
            format!("limit: memory, whose traffic takes {:.0} % of the time; {of_limit}", 100.0 * share)
        }
        _ => format!("limit: the processor; {of_limit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(speedup: f64, limit: f64, memory: Option<f64>) -> Count {
        Count {
            threads: 4,
            seconds: vec![1.0],
            tokens_per_second: 12_345.0,
            speedup,
            efficiency: speedup / 4.0,
            limit,
            arithmetic: 0.4,
            memory,
        }
    }

    #[test]
    fn the_mark_of_the_limit_follows_the_bar() {
        assert_eq!(plot(0.5, 1.0), format!("{}{}│", "█".repeat(16), " ".repeat(15)));
        assert_eq!(plot(1.0, 1.0), "█".repeat(32));
        assert_eq!(plot(1.0, 0.5), "█".repeat(32));
        assert_eq!(
            row(&count(2.0, 4.0, None), 4.0),
            format!(
                "        4     12.3 k      2.00   4.00        50 %        40 %       ?  {}{}│",
                "█".repeat(16),
                " ".repeat(15)
            )
        );
    }

    #[test]
    fn the_limit_is_named() {
        assert!(verdict(&count(2.0, 4.0, Some(0.9))).starts_with("limit: the program; 4 threads reach 50 %"));
        assert!(verdict(&count(2.0, 2.1, Some(0.7))).starts_with("limit: memory, whose traffic takes 70 %"));
        assert!(
            verdict(&count(3.9, 4.0, Some(0.2))).starts_with("limit: the processor; 4 threads reach 98 %")
        );
        assert!(verdict(&count(3.9, 4.0, None)).starts_with("limit: the processor"));
    }
}
