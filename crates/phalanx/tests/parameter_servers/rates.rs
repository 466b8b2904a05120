//! A rate that follows the number of replicas counts all whose gradients make an update together.

use phalanx::schedules::RampUpExponentialDecay;

use super::*;

#[test]
fn a_rate_that_follows_the_replicas_counts_the_workers_that_step_together() {
    let ramp = || RampUpExponentialDecay::new(0.02, 4, 3);
    let case = |ramp: RampUpExponentialDecay| {
        let mut case = ragged();
        case.compile.optimizer = Sgd::new(ramp).momentum(0.9).into();
        case
    };
    let by_hand = case(ramp().replicas(3));
    let one = train(&OneDeviceStrategy::on(engine(0)), &by_hand);
    let all = on_workers((3, 2), &sync(), |strategy| train(&strategy, &case(ramp())));
    compare("sync", TOLERANCE, &one, &all[0]);
}
