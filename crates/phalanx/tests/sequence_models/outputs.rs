//! Models with an output for each step, where padding weighs nothing, and one for the whole sequence.

use super::*;

/// The lengths of the sequences: the last ones are padding alone.
const STEPS: [usize; 6] = [4, 4, 1, 1, 0, 0];
const OF_WEIGHTS: [f32; 6] = [0.5, 1.0, 0.0, 2.0, 1.5, 0.25];

fn two_outputs() -> Model {
    let mut network = Network::new();
    let x = network.input([4, 2]);
    let kept = network.add(Masking::new(0.0), &[x]);
    let tags = network.add(Dense::new(1).named("tags"), &[kept]);
    let pooled = network.add(GlobalAveragePool1d::new(), &[kept]);
    let penalty = Regularizer::L2 { l2: 0.3 };
    let score = Dense::new(1).activity_regularizer(penalty).named("score");
    let score = network.add(score, &[pooled]);
    network.build(&[x], &[tags, score]).unwrap()
}

fn compile() -> Compile {
    Compile {
        optimizer: Sgd::new(0.01).into(),
        loss: Losses::default()
            .and(0, MeanSquaredError, 0.5)
            .and(1, MeanSquaredError, 2.0),
        weighted_metrics: vec![
            OutputMetric::of(0, Loss::from(MeanSquaredError)),
            OutputMetric::of(1, Loss::from(MeanSquaredError)),
        ],
        ..Compile::default()
    }
}

/// Batches of some of the rows.
fn of_rows(rows: std::ops::Range<usize>, weights: Option<[f32; 6]>, size: usize) -> Batches {
    let feature = |row: usize, step: usize, at: usize| match step < STEPS[row] {
        true => ((row * 7 + step * 3 + at * 5) % 11) as f32 / 5.0 - 0.9,
        false => 0.0,
    };
    let x = (0..6 * 8).map(|i| feature(i / 8, i / 2 % 4, i % 2));
    let tags: Vec<f32> = (0..24).map(|i| (i % 5) as f32).collect();
    let all = [
        HostTensor::new([6, 4, 2], &x.collect::<Vec<f32>>()),
        HostTensor::new([6, 4, 1], &tags),
        HostTensor::new([6, 1], &[0.0f32, 1.0, 2.0, 30.0, 4.0, 5.0]),
    ];
    let [x, tags, score] = all.map(|tensor| tensor.slice_rows(rows.start, rows.end));
    let data = Dataset::from_arrays(vec![x], vec![tags, score]).unwrap();
    let weighted =
        weights.map(|weights| data.with_weights(&HostTensor::new([rows.len()], &weights[rows])));
    weighted
        .map_or(Ok(data.clone()), |weighted| weighted)
        .unwrap()
        .batch(size)
}

#[test]
fn each_output_counts_by_what_of_it_is_no_padding_however_rows_are_cut_into_batches() {
    let mut trainer = trainer(two_outputs(), compile());
    let scores = trainer.predict(&of_rows(0..6, None, 6)).unwrap()[1].to_f64();
    let penalty: f64 = scores.iter().map(|y| 0.3 * y * y / 6.0).sum();
    for weights in [None, Some(OF_WEIGHTS)] {
        let whole = trainer.evaluate(&of_rows(0..6, weights, 6)).unwrap();
        for output in ["tags", "score"] {
            let [loss, metric] =
                ["loss", "mean_squared_error"].map(|what| whole[&format!("{output}_{what}")]);
            assert!(
                loss > 1.0 && (loss - metric).abs() < 1e-4 * loss,
                "{output}: {loss} {metric}"
            );
        }
        let sum = 0.5 * whole["tags_loss"] + 2.0 * whole["score_loss"] + penalty;
        assert!((whole["loss"] - sum).abs() < 1e-4 * sum, "{whole:?} {sum}");
        for size in [1, 4] {
            let cut = trainer.evaluate(&of_rows(0..6, weights, size)).unwrap();
            for ((name, cut), (_, whole)) in cut.iter().zip(whole.iter()) {
                assert!(
                    (cut - whole).abs() < 1e-5 * whole,
                    "{name}, batches of {size}: {cut} {whole}"
                );
            }
        }
    }
}

#[test]
fn rows_whose_steps_are_padding_train_the_other_output() {
    let mut trainer = trainer(two_outputs(), compile());
    let padding = of_rows(4..6, None, 2);
    let batch = padding.get(0, 0).unwrap();
    let before = trainer.test_on_batch(&batch).unwrap();
    assert_eq!(before["tags_loss"], 0.0);
    assert!((before["score_loss"] - 20.5).abs() < 1e-5, "{before:?}");
    assert_eq!(trainer.train_on_batch(&batch).unwrap(), before);
    let fit = Fit::epochs(1).progress(Progress::Silent);
    let history = trainer.fit(&padding, fit).unwrap();
    let (loss, after) = (history.of("loss")[0], trainer.evaluate(&padding).unwrap());
    assert!(
        after["loss"] < loss && loss < before["loss"],
        "{loss} {after:?}"
    );
}
