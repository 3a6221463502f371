//! The conformance suite of rollout engines over pools of stand-ins.

use rloom_engine::conformance::RolloutSuite;

use crate::stand_in::StandIn;
use crate::support::{Trainer, pool_of, run, settings};

fn conforms(replicas: usize) {
    let stand_ins: Vec<StandIn> = (0..replicas).map(|_| StandIn::start()).collect();
    let pool = pool_of(&stand_ins.iter().collect::<Vec<_>>(), &settings(replicas));
    let trainer = Trainer::new();
    assert_eq!(run(RolloutSuite::new(&pool, &trainer, 1e-4).run()), Ok(()));
    assert_eq!(pool.failures(), []);
}

#[test]
fn a_pool_of_one_replica_conforms() {
    conforms(1);
}

#[test]
fn a_pool_of_two_replicas_conforms() {
    conforms(2);
}
