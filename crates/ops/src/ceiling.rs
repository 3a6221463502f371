//! Peak rates of this machine, to which measured rates are compared: multiply-adds from registers, and bytes from
//! memory.
//!
//! Measured with the threads and the instruction set of a [`Ctx`], as the best of several short runs: disturbances make
//! a run slower, never faster.

use std::hint::black_box;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::disjoint::Disjoint;
#[cfg(any(target_arch = "x86_64", test))]
use crate::gemm_amx::TileUnit;
#[cfg(target_arch = "x86_64")]
use crate::isa::Bf16Products;
#[cfg(any(target_arch = "x86_64", test))]
use crate::simd::Portable;
use crate::simd::{LANES, Simd, dispatch};
use crate::{Buf, Ctx};

/// Runs per measurement; the fastest counts.
const RUNS: usize = 9;
/// Minimum duration of one arithmetic work item: long compared to the clock's resolution, short compared to a scheduler
/// time slice.
const MIN_DURATION: Duration = Duration::from_millis(1);
/// Work items per thread in a run, so that a delayed thread costs little.
const ITEMS_PER_THREAD: usize = 8;
/// Maximum iterations of a loop: up to this count its sums are integers that f32 represents exactly.
const MAX_ITERATIONS: usize = 1 << 19;
/// Elements of one memory work item: 1 MiB.
const CHUNK: usize = 1 << 18;

/// Peak of f32 matrix products, in GFLOP/s: a loop of fused multiply-adds whose operands and sums stay in registers. A
/// multiply-add counts as 2.
pub fn gemm_f32(ctx: &Ctx) -> f64 {
    arithmetic(ctx, |iterations| multiply_adds(ctx, iterations))
}

/// Runs the loop that [`gemm_f32`] measures on the calling thread and returns the number of operations done. For
/// measurements in turns with something else.
pub fn multiply_adds(ctx: &Ctx, iterations: usize) -> usize {
    let (sum, chains) = fma_loop(ctx.level(), black_box(1.0), iterations);
    black_box(sum);
    2 * LANES * chains * iterations
}

/// Peak of bf16 matrix products with f32 sums, in GFLOP/s, and the instruction measured. `None` if the context's
/// instruction set has no such instruction, so that bf16 products are f32 multiply-adds of widened numbers and
/// [`gemm_f32`] is their peak too.
pub fn gemm_bf16(ctx: &Ctx) -> Option<(f64, &'static str)> {
    match ctx.level().bf16() {
        #[cfg(target_arch = "x86_64")]
        Bf16Products::NativePairs => {
            let rate = arithmetic(ctx, |iterations| {
                // SAFETY: the context uses native pairs only where the instructions were detected.
                black_box(unsafe { pairs::pair_loop(black_box(1.0), iterations) });
                4 * LANES * pairs::CHAINS * iterations
            });
            Some((rate, "vdpbf16ps"))
        }
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        Bf16Products::AmxTiles => {
            let rate = arithmetic(ctx, |iterations| {
                // SAFETY: the context uses AMX tiles only where the system lets this process use them.
                black_box(unsafe { tile_loop::<crate::gemm_amx::amx::AmxUnit>(iterations) });
                TILE_OPERATIONS * iterations
            });
            Some((rate, "tdpbf16ps"))
        }
        _ => None,
    }
}

/// Rate, in GB/s (10⁹ bytes), at which all threads together read `bytes` of memory in ascending order. `bytes` should
/// be many times the size of the caches.
pub fn read(ctx: &Ctx, bytes: usize) -> f64 {
    let x = filled(ctx, bytes / size_of::<f32>());
    let bytes = x.len() * size_of::<f32>();
    best(|| {
        black_box(read_pass(ctx, &x));
        bytes
    })
}

/// Rate, in GB/s, of `a = b + s·c` over three arrays of `bytes` in total, counted as in STREAM (McCalpin, 1995): two
/// arrays read and one written, although a processor that fetches a line before writing it moves a third more.
pub fn triad(ctx: &Ctx, bytes: usize) -> f64 {
    let each = bytes / 3 / size_of::<f32>();
    let (b, c) = (filled(ctx, each), filled(ctx, each));
    let mut a = Buf::zeros(b.len());
    let bytes = 3 * b.len() * size_of::<f32>();
    best(|| {
        triad_pass(ctx, &mut a, &b, &c, black_box(3.0));
        bytes
    })
}

/// Highest rate of several runs, in 10⁹ counts per second. The first run warms up and does not count.
fn best(mut run: impl FnMut() -> usize) -> f64 {
    run();
    let rates = (0..RUNS).map(|_| {
        let start = Instant::now();
        let count = run();
        count as f64 / start.elapsed().as_secs_f64().max(1e-9) / 1e9
    });
    rates.fold(0.0, f64::max)
}

/// Rate of `work`, which runs the given number of loop iterations and returns the number of operations done.
fn arithmetic(ctx: &Ctx, work: impl Fn(usize) -> usize + Sync) -> f64 {
    let mut iterations = 64;
    while iterations < MAX_ITERATIONS {
        let start = Instant::now();
        work(iterations);
        if start.elapsed() >= MIN_DURATION {
            break;
        }
        iterations *= 2;
    }
    let pieces = ITEMS_PER_THREAD * ctx.threads();
    best(|| {
        let count = Mutex::new(0);
        ctx.parallel_for(pieces, |_| {
            let done = work(iterations);
            *count.lock().unwrap_or_else(PoisonError::into_inner) += done;
        });
        count.into_inner().unwrap_or_else(PoisonError::into_inner)
    })
}

dispatch! {
    /// Adds `one · one` to every lane of several vectors, `iterations` times; each vector starts at its index. Returns
    /// the sum of all lanes and the number of vectors.
    fn fma_loop(one: f32, iterations: usize) -> (f32, usize) = fma_loop_generic;
}

#[inline(always)]
fn fma_loop_generic<S: Simd>(s: S, one: f32, iterations: usize) -> (f32, usize) {
    // Enough independent sums to hide the latency of a multiply-add while leaving registers for the operands.
    if S::CHAINS >= 24 {
        fma_chains::<S, 24>(s, one, iterations)
    } else if S::CHAINS == 1 {
        fma_chains::<S, 1>(s, one, iterations)
    } else {
        fma_chains::<S, 6>(s, one, iterations)
    }
}

#[inline(always)]
fn fma_chains<S: Simd, const N: usize>(s: S, one: f32, iterations: usize) -> (f32, usize) {
    let mut sums = [s.zero(); N];
    for (i, sum) in sums.iter_mut().enumerate() {
        *sum = s.splat(i as f32);
    }
    let (a, b) = (s.splat(one), s.splat(one));
    for _ in 0..iterations {
        for sum in &mut sums {
            *sum = s.fma(a, b, *sum);
        }
    }
    let mut total = s.zero();
    for sum in sums {
        total = s.add(total, sum);
    }
    (s.sum(total), N)
}

#[cfg(target_arch = "x86_64")]
mod pairs {
    use std::arch::x86_64::*;

    use crate::Bf16;

    /// Independent sums of the loop.
    pub(super) const CHAINS: usize = 24;

    /// Adds the two products of a pair of `one`s to every lane of [`CHAINS`] vectors, `iterations` times; each vector
    /// starts at its index. Returns the sum of all lanes.
    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) fn pair_loop(one: f32, iterations: usize) -> f32 {
        let mut sums = [_mm512_setzero_ps(); CHAINS];
        for (i, sum) in sums.iter_mut().enumerate() {
            *sum = _mm512_set1_ps(i as f32);
        }
        let pairs = _mm512_set1_epi16(Bf16::from_f32(one).to_bits() as i16);
        // SAFETY: both types are plain 512-bit values.
        let pairs: __m512bh = unsafe { std::mem::transmute(pairs) };
        for _ in 0..iterations {
            for sum in &mut sums {
                *sum = _mm512_dpbf16_ps(*sum, pairs, pairs);
            }
        }
        let mut total = _mm512_setzero_ps();
        for sum in sums {
            total = _mm512_add_ps(total, sum);
        }
        _mm512_reduce_add_ps(total)
    }
}

/// Rows of a tile, and words per row.
#[cfg(any(target_arch = "x86_64", test))]
const SIDE: usize = 16;
/// Operations per iteration of [`tile_loop`]: four tiles of results with 32 multiply-adds per element.
#[cfg(any(target_arch = "x86_64", test))]
const TILE_OPERATIONS: usize = 4 * SIDE * SIDE * 2 * 32;

/// Adds the product of tiles of ones to four zero tiles, `iterations` times, two by two as in a matrix product. Returns
/// the sum of all results.
///
/// # Safety
/// The processor must support the unit.
#[cfg(any(target_arch = "x86_64", test))]
unsafe fn tile_loop<U: TileUnit>(iterations: usize) -> f64 {
    // A word of two bf16 ones.
    let ones = [f32::from_bits(0x3f80_3f80); SIDE * SIDE];
    let mut sums = [[0.0_f32; SIDE * SIDE]; 4];
    // SAFETY: the caller guarantees the unit; every tile read or written is 16 rows of 16 words.
    unsafe {
        let mut unit = U::start([SIDE, SIDE]);
        unit.load::<4>(ones.as_ptr(), SIDE);
        unit.load::<5>(ones.as_ptr(), SIDE);
        unit.load::<6>(ones.as_ptr(), SIDE);
        unit.load::<7>(ones.as_ptr(), SIDE);
        unit.zero::<0>();
        unit.zero::<1>();
        unit.zero::<2>();
        unit.zero::<3>();
        for _ in 0..iterations {
            unit.multiply::<_, 0, 4, 6>(Portable);
            unit.multiply::<_, 1, 4, 7>(Portable);
            unit.multiply::<_, 2, 5, 6>(Portable);
            unit.multiply::<_, 3, 5, 7>(Portable);
        }
        unit.store::<0>(sums[0].as_mut_ptr(), SIDE);
        unit.store::<1>(sums[1].as_mut_ptr(), SIDE);
        unit.store::<2>(sums[2].as_mut_ptr(), SIDE);
        unit.store::<3>(sums[3].as_mut_ptr(), SIDE);
        unit.end();
    }
    sums.iter().flatten().map(|&sum| f64::from(sum)).sum()
}

/// At least `len` ones in whole chunks, first touched by the threads that will read them.
fn filled(ctx: &Ctx, len: usize) -> Buf {
    let mut buf = Buf::zeros(len.div_ceil(CHUNK).max(1) * CHUNK);
    let chunks = buf.len() / CHUNK;
    let out = Disjoint::new(buf.as_mut_slice());
    ctx.parallel_for(chunks, |i| {
        // SAFETY: each chunk belongs to one work item.
        unsafe { out.slice(i * CHUNK..(i + 1) * CHUNK) }.fill(1.0);
    });
    buf
}

/// Reads `x` once and returns its sum.
fn read_pass(ctx: &Ctx, x: &Buf) -> f64 {
    let total = Mutex::new(0.0);
    ctx.parallel_for(x.len() / CHUNK, |i| {
        let sum = sum_of(ctx.level(), &x.as_slice()[i * CHUNK..(i + 1) * CHUNK]);
        *total.lock().unwrap_or_else(PoisonError::into_inner) += f64::from(sum);
    });
    total.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// `a = b + scale · c`.
fn triad_pass(ctx: &Ctx, a: &mut Buf, b: &Buf, c: &Buf, scale: f32) {
    let out = Disjoint::new(a.as_mut_slice());
    ctx.parallel_for(b.len() / CHUNK, |i| {
        let range = i * CHUNK..(i + 1) * CHUNK;
        // SAFETY: each chunk belongs to one work item.
        let a = unsafe { out.slice(range.clone()) };
        triad_of(ctx.level(), a, &b.as_slice()[range.clone()], &c.as_slice()[range], scale);
    });
}

/// Elements per iteration of the memory loops: 4 vectors, iterations to hide the latency of an addition.
const STRIP: usize = 4 * LANES;

dispatch! {
    fn sum_of(x: &[f32]) -> f32 = sum_generic;
}

#[inline(always)]
fn sum_generic<S: Simd>(s: S, x: &[f32]) -> f32 {
    let mut sums = [s.zero(); 4];
    for strip in x.as_chunks::<STRIP>().0 {
        for (sum, v) in sums.iter_mut().zip(strip.as_chunks::<LANES>().0) {
            *sum = s.add(*sum, s.load(v));
        }
    }
    s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
}

dispatch! {
    fn triad_of(a: &mut [f32], b: &[f32], c: &[f32], scale: f32) = triad_generic;
}

#[inline(always)]
fn triad_generic<S: Simd>(s: S, a: &mut [f32], b: &[f32], c: &[f32], scale: f32) {
    let scale = s.splat(scale);
    let inputs = b.as_chunks::<LANES>().0.iter().zip(c.as_chunks::<LANES>().0);
    for (a, (b, c)) in a.as_chunks_mut::<LANES>().0.iter_mut().zip(inputs) {
        s.store(a, s.fma(scale, s.load(c), s.load(b)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    /// The loops execute exactly the counted operations: their sums are integers that give the number.
    #[test]
    fn loops_execute_the_counted_operations() {
        for isa in Isa::available() {
            let ctx = Ctx::with_isa(1, isa).unwrap();
            for iterations in [0, 1, 7, 100] {
                let (sum, chains) = fma_loop(ctx.level(), 1.0, iterations);
                let start = chains * (chains - 1) / 2;
                assert_eq!(
                    sum,
                    (LANES * (start + chains * iterations)) as f32,
                    "{isa:?}, {iterations} iterations"
                );
                #[cfg(target_arch = "x86_64")]
                if ctx.level().bf16() == Bf16Products::NativePairs {
                    let start = pairs::CHAINS * (pairs::CHAINS - 1) / 2;
                    let expected = LANES * (start + 2 * pairs::CHAINS * iterations);
                    // SAFETY: the instructions were just detected.
                    let sum = unsafe { pairs::pair_loop(1.0, iterations) };
                    assert_eq!(sum, expected as f32, "{iterations} iterations");
                }
            }
        }
        // SAFETY: the software unit has no requirements.
        let sum = unsafe { tile_loop::<crate::gemm_amx::SoftwareUnit>(3) };
        assert_eq!(2.0 * sum, (3 * TILE_OPERATIONS) as f64);
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if Ctx::serial().level().bf16() == Bf16Products::AmxTiles {
            // SAFETY: the tiles were just detected.
            let sum = unsafe { tile_loop::<crate::gemm_amx::amx::AmxUnit>(100) };
            assert_eq!(2.0 * sum, (100 * TILE_OPERATIONS) as f64);
        }
    }

    #[test]
    fn memory_loops_touch_every_counted_byte() {
        for isa in Isa::available() {
            for threads in [1, 2] {
                let ctx = Ctx::with_isa(threads, isa).unwrap();
                let b = filled(&ctx, CHUNK + 1);
                assert_eq!(b.len(), 2 * CHUNK);
                assert_eq!(read_pass(&ctx, &b), (2 * CHUNK) as f64);
                let mut a = Buf::zeros(b.len());
                triad_pass(&ctx, &mut a, &b, &b, 3.0);
                assert!(a.as_slice().iter().all(|&x| x == 4.0), "{isa:?}, {threads} threads");
            }
        }
    }

    #[test]
    fn rates_are_positive_on_portable_and_on_the_fastest_instruction_set() {
        for isa in [Isa::Portable, Isa::detect()] {
            let ctx = Ctx::with_isa(2, isa).unwrap();
            assert!(gemm_f32(&ctx) > 0.0);
            assert!(gemm_bf16(&ctx).is_none_or(|(rate, name)| rate > 0.0 && !name.is_empty()));
        }
        let ctx = Ctx::new(2).unwrap();
        assert!(read(&ctx, 4 << 20) > 0.0);
        assert!(triad(&ctx, 4 << 20) > 0.0);
        assert!(gemm_bf16(&Ctx::with_isa(1, Isa::Portable).unwrap()).is_none());
    }
}
