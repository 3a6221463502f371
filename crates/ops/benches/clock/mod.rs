//! Processor time, which other programs disturb least.

use std::sync::LazyLock;
use std::time::Instant;

/// Processor seconds of this thread if there is one thread and the system reports it, otherwise seconds elapsed.
pub(crate) fn clock(threads: usize) -> f64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    (threads == 1).then(processor_seconds).flatten().unwrap_or_else(|| START.elapsed().as_secs_f64())
}

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
fn processor_seconds() -> Option<f64> {
    unsafe extern "C" {
        fn clock_gettime(clock: i32, time: *mut [i64; 2]) -> i32;
    }
    const CLOCK_THREAD_CPUTIME_ID: i32 = 3;
    let mut time = [0; 2];
    // SAFETY: a `timespec` of this system is two 64-bit numbers, seconds and nanoseconds.
    let result = unsafe { clock_gettime(CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    (result == 0).then(|| time[0] as f64 + time[1] as f64 / 1e9)
}

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
fn processor_seconds() -> Option<f64> {
    None
}
