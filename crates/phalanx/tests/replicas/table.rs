//! The table: every case trained in every way gives what it gives on one device.
//!
//! A case is a model with its options, a way a strategy with its reduction and wire format. All cases in all ways take
//! too long for every run of the tests, so a run takes a tenth of them, which the commit chooses (`ways::Choice`). With
//! `PHALANX_TEST_WHOLE_TABLE=1` in the environment it is all cases in all ways (`cargo xtask table`), with
//! `PHALANX_TEST_TENTH=0` to 9 that tenth (`cargo xtask table --tenth N`).
//!
//! At full precision the bound is 1e-5. A narrow wire rounds what each replica sends, and the sum, so it gets the bound
//! of its precision; what makes these ways sharp nevertheless is the case "exact", whose gradients a narrow wire can
//! carry without loss, so that every way must train it to the bits of one device, and
//! `what_travels_is_rounded_as_the_wire_says`.

use phalanx::engine::Engine;
use phalanx::prelude::*;
use phalanx::replicas::WireFormat;

use crate::cases::{self, Case, Part};
use crate::ways::{Choice, PLACES, Place, Way};
use crate::{TOLERANCE, apart, careful_engine, pairs, quick_engine, values};

/// What a training leaves: variables, the logs of each epoch, of a test, and predictions.
#[derive(Debug, PartialEq)]
pub(crate) struct Outcome {
    variables: Vec<(String, Vec<f64>)>,
    logs: Vec<Vec<(String, f64)>>,
    predicted: Vec<f64>,
}

/// A case's epochs: ten steps or more, of which some are on fewer rows than the others.
fn train(way: &Way, case: &Case, engine: &Engine) -> Outcome {
    let strategy = way.strategy(engine, case.micro_batches, case.bytes_per_pack);
    let compiled = strategy.compile(case.model.clone(), case.compile.clone());
    let mut trainer = compiled.unwrap();
    let before = values(&trainer);
    let data = case.data.batch(case.batch);
    let fit = Fit::epochs(case.epochs).progress(Progress::Silent);
    let history = trainer.fit(&data, fit).unwrap();
    assert!(trainer.iterations() >= 10, "{}", trainer.iterations());
    let after = values(&trainer);
    // A shift before another normalization has a gradient of rounding alone, or of none, and statistics of the data have none.
    let moved = before.iter().zip(&after).filter(|(a, b)| a != b);
    let moved = moved.count();
    let kept = ["/mean", "/variance", "/count"];
    let kept = before
        .iter()
        .filter(|(name, _)| kept.iter().any(|last| name.ends_with(last)));
    let moving = before.len() - kept.count();
    assert!(moved * 10 >= moving * 9, "{}: {moved}", case.name);
    let mut logs: Vec<_> = history
        .epochs
        .iter()
        .map(|epoch| pairs(&epoch.logs))
        .collect();
    let mut predicted = Vec::new();
    // What travels in a step says nothing of tests and predictions.
    if !case.only_trains && way.wire == WireFormat::Same {
        logs.push(pairs(&trainer.evaluate(&data).unwrap()));
        let outputs = trainer.predict(&data).unwrap();
        assert_eq!(Some(outputs[0].rows()), case.data.len());
        predicted = outputs[0].to_f64();
    }
    Outcome {
        variables: after,
        predicted,
        logs,
    }
}

/// The first that is further apart than the tolerance, with how far.
fn difference(one: &Outcome, other: &Outcome, tolerance: f64) -> Option<String> {
    for ((name, a), (_, b)) in one.variables.iter().zip(&other.variables) {
        let apart = apart(a, b);
        if !is_within(apart, tolerance) {
            return Some(format!("`{name}` is {apart:e} apart"));
        }
    }
    if !other.predicted.is_empty() {
        let predicted = apart(&one.predicted, &other.predicted);
        // What the variables differ by grows on the way through the model.
        if !is_within(predicted, tolerance * 10.0) {
            return Some(format!("predictions are {predicted:e} apart"));
        }
    }
    let logs = one.logs.iter().flatten().zip(other.logs.iter().flatten());
    for ((name, a), (_, b)) in logs {
        if !is_within((a - b).abs(), tolerance * a.abs().max(1.0)) {
            return Some(format!("{name} is {a} and {b}"));
        }
    }
    None
}

/// `false` of what is no number.
fn is_within(difference: f64, bound: f64) -> bool {
    difference <= bound
}

/// How far a case may be from one device.
fn tolerance(case: &Case, wire: WireFormat) -> f64 {
    match wire {
        _ if case.is_exact => 0.0,
        WireFormat::Same => TOLERANCE,
        WireFormat::Bf16 => case.narrow * 2e-2,
        WireFormat::F16 => case.narrow * 2e-3,
    }
}

/// Trains cases, by their numbers among all, in the ways of this run, and in some of them twice: each strategy, each
/// reduction and each wire format that they have is among these.
fn check(numbers: impl IntoIterator<Item = usize>) {
    let choice = Choice::of_environment();
    let all = cases::all();
    let mut repeated: Vec<Way> = Vec::new();
    let mut wrong = Vec::new();
    for number in numbers {
        let case = &all[number];
        let engine = match case.is_quick || choice.is_quick(number) {
            true => quick_engine(),
            false => careful_engine(),
        };
        let one = train(&Way::of(Place::OneDevice), case, engine);
        for way in choice.ways(number, case.is_slow) {
            let what = format!("{}, {way:?}", case.name);
            let many = train(&way, case, engine);
            let tolerance = tolerance(case, way.wire);
            wrong.extend(difference(&one, &many, tolerance).map(|off| format!("{what}: {off}")));
            let is_new = !repeated.iter().any(|old| old.place == way.place)
                || way.place.reduces()
                    && (!repeated.iter().any(|old| old.ops == way.ops)
                        || !repeated.iter().any(|old| old.wire == way.wire));
            if is_new && !case.is_slow {
                repeated.push(way);
                if many != train(&way, case, engine) {
                    wrong.push(format!("{what}: another run has other bits"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The numbers of the cases with these names.
fn named(wanted: &[&str]) -> Vec<usize> {
    let all = cases::all();
    let place = |name: &&str| all.iter().position(|case| case.name == *name).unwrap();
    wanted.iter().map(place).collect()
}

#[test]
fn every_optimizer_trains_as_on_one_device_in_every_way() {
    check(0..cases::optimizers().len());
}

#[test]
fn weights_penalties_clipping_and_accumulation_do_in_every_way() {
    check(named(&["everything", "exact"]));
}

#[test]
fn tables_and_batch_statistics_do_in_every_way() {
    check(named(&["recommender", "cnn with batch normalization"]));
}

#[test]
fn masks_do_in_every_way() {
    check(named(&["transformer", "two outputs"]));
}

#[test]
fn layers_of_each_step_do_in_every_way() {
    check(named(&["frames"]));
}

#[test]
fn layers_of_volumes_do_in_every_way() {
    check(named(&["volumes"]));
}

#[test]
fn random_numbers_do_in_every_way() {
    check(named(&["noise"]));
}

#[test]
fn losses_that_compare_examples_do_in_every_way() {
    check(named(&["compared"]));
}

#[test]
fn parts_that_a_program_defines_do_in_every_way() {
    check(named(&["own parts"]));
}

#[test]
fn mobilenet_does_in_every_way() {
    check(named(&["MobileNetV2"]));
}

#[test]
fn losses_that_layers_add_count_by_examples_in_every_place() {
    let case = cases::added_losses();
    let one = train(&Way::of(Place::OneDevice), &case, quick_engine());
    for place in PLACES {
        let many = train(&Way::of(place), &case, quick_engine());
        let off = difference(&one, &many, TOLERANCE);
        assert_eq!(off, None, "{place:?}");
    }
}

/// Whatever a case is there for changes what it gives on one device, by far more than the bound; so do its steps, and
/// some of its batches have fewer rows.
#[test]
fn what_cases_are_there_for_matters() {
    type But = fn(Part) -> Case;
    let made: [(But, &[Part]); 4] = [
        (
            cases::everything_but,
            &[
                Part::Weights,
                Part::Penalties,
                Part::Clipping,
                Part::Decay,
                Part::Accumulation,
                Part::Constraints,
            ],
        ),
        (
            cases::cnn_but,
            &[Part::Weights, Part::Penalties, Part::Clipping],
        ),
        (
            cases::transformer_but,
            &[Part::Weights, Part::Clipping, Part::Decay, Part::Masks],
        ),
        (cases::recommender_but, &[Part::Weights, Part::Clipping]),
    ];
    let way = Way::of(Place::OneDevice);
    for (but, parts) in made {
        // One shape of batches, and ten of them.
        let without = |part| {
            let case = but(part);
            Case {
                batch: case.data.len().unwrap() / 2,
                epochs: 5,
                only_trains: true,
                ..case
            }
        };
        let whole = train(&way, &without(Part::None), quick_engine());
        for &part in parts {
            let case = without(part);
            let off = difference(
                &whole,
                &train(&way, &case, quick_engine()),
                TOLERANCE * 10.0,
            );
            assert!(off.is_some(), "{} does without {part:?}", case.name);
        }
    }
    for case in cases::all() {
        let rows = case.data.len().unwrap();
        assert_ne!(rows % case.batch, 0, "{}", case.name);
    }
}

#[test]
fn every_case_is_in_a_test() {
    let of_tests = cases::optimizers().len() + 2 + 2 + 2 + 1 + 1 + 1 + 1 + 1 + 1;
    assert_eq!(cases::all().len(), of_tests, "give the new case a test");
}
