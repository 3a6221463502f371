//! Measurements, printed:
//!
//!     cargo test --release -p rloom-remote --test remote measures -- --ignored --nocapture

use std::time::Instant;

use rloom_core::OnUpdate;
use rloom_engine::{RolloutEngine, ServerSettings, generate_all};

use crate::stand_in::StandIn;
use crate::support::{Trainer, pool_of, request, run, settings};

/// Seconds for 320 requests of 0.4 s each, of which a replica serves 8 at a time.
fn seconds(replicas: usize) -> f64 {
    let stand_ins: Vec<StandIn> = (0..replicas).map(|_| StandIn::start()).collect();
    for stand_in in &stand_ins {
        stand_in.set_speed(1);
    }
    let pool = pool_of(
        &stand_ins.iter().collect::<Vec<_>>(),
        &ServerSettings { max_requests: 8, ..settings(replicas) },
    );
    let trainer = Trainer::new();
    run(async {
        pool.load(&trainer.main(1), OnUpdate::Finish).await.unwrap();
        while pool.workers().iter().any(|worker| worker.loaded.is_empty()) {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        let start = Instant::now();
        generate_all(&pool, (0..320).map(|sample| request(u64::from(sample / 8), sample, 400)))
            .await
            .unwrap();
        start.elapsed().as_secs_f64()
    })
}

#[test]
#[ignore = "a measurement"]
fn two_replicas_against_one() {
    for _ in 0..3 {
        let (one, two) = (seconds(1), seconds(2));
        println!("one replica {one:.2} s, two {two:.2} s: {:.2} ×", one / two);
    }
}
