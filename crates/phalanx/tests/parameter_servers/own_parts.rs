//! An update rule and a schedule of the program on servers, which are given them.

#[path = "../own_parts/counted.rs"]
mod counted;

use counted::Counted;

use super::cases::own_case::own::SoftSign;
use super::cases::own_case::own_parts;
use super::*;

/// An update rule, a schedule and a metric of the program, which the servers are given.
#[test]
fn parts_that_a_program_defines_train_as_in_one_process() {
    let one = train(&OneDeviceStrategy::on(engine(0)), &own_parts());
    let options = sync()
        .partitioner(Partitioner::FixedShards { shards: 2 })
        .optimizer(own_parts().compile.optimizer);
    let all = on_workers((2, 2), &options, |strategy| train(&strategy, &own_parts()));
    compare("own parts", TOLERANCE, &one, &all[0]);
}

#[test]
fn a_variable_with_a_slot_of_other_dims_is_not_cut() {
    let optimizer = Optimizer::custom(Counted(0.1.into()));
    let case = || {
        let mut case = own_parts();
        case.compile.optimizer = optimizer.clone();
        case
    };
    let one = train(&OneDeviceStrategy::on(engine(0)), &case());
    let options = sync()
        .partitioner(Partitioner::FixedShards { shards: 2 })
        .optimizer(optimizer.clone());
    let all = on_workers((2, 2), &options, |strategy| train(&strategy, &case()));
    compare("counted", TOLERANCE, &one, &all[0]);
}

#[test]
fn a_server_without_the_programs_rule_says_how_it_is_given() {
    let other = Optimizer::custom(SoftSign::new(0.5));
    let options = ParameterServerOptions::new().optimizer(other);
    let work = |strategy: ParameterServerStrategy| {
        let case = own_parts();
        let made = strategy.compile(case.model, case.compile);
        let fit = Fit::epochs(1).progress(Progress::Silent);
        let tried = made.and_then(|mut trainer| trainer.fit(&case.data.batch(6), fit));
        tried.unwrap_err().to_string()
    };
    let errors = on_cluster((1, 1), &options, work, drop);
    for part in [
        "the optimizer `soft_sign`",
        "\"inverse_root\"",
        "`ParameterServerOptions::optimizer`",
    ] {
        assert!(errors[0].contains(part), "{part}: {}", errors[0]);
    }
}
