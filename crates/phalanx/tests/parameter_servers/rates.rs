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

/// The second part of a kernel is called `part_1` on its server.
#[test]
fn settings_name_the_variable_of_which_servers_have_parts() {
    let case = || {
        let mut case = ragged();
        let layers = Sequential::new([6]).add(Dense::new(8).activation(tanh));
        case.model = layers.add(Dense::new(3)).build().unwrap();
        let adam = Optimizer::from(Adam::new(0.01)).weight_decay(0.1);
        let adam = adam.learning_rate_factor("_1", 5.0);
        case.compile = classify(adam.exclude_from_weight_decay(["_1"]));
        case
    };
    let one = train(&OneDeviceStrategy::on(engine(0)), &case());
    let options = sync().partitioner(Partitioner::FixedShards { shards: 2 });
    let all = on_workers((1, 2), &options, |strategy| train(&strategy, &case()));
    compare("parts", TOLERANCE, &one, &all[0]);
}
