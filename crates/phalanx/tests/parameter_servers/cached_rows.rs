//! Rows of tables that workers keep.

use super::*;

const RATE: f64 = 0.05;
const BATCHES: usize = 10;

/// A table of one row, which every batch names: gradient descent on the mean of some numbers, with a row that was pulled every so many
/// batches. An epoch begins with a row that is pulled.
fn descended(bound: usize, epochs: usize) -> f64 {
    let (mut row, mut pulled) = (0.0, 0.0);
    for _ in 0..epochs {
        for batch in 0..BATCHES {
            if batch % (bound + 1) == 0 {
                pulled = row;
            }
            row -= RATE * 2.0 * (pulled - wanted(batch));
        }
    }
    row
}

fn wanted(batch: usize) -> f64 {
    1.0 + batch as f64 / 8.0
}

/// What one worker makes of the row, and the logs of the last epoch.
fn learned(options: &ParameterServerOptions, epochs: usize) -> (f64, Logs) {
    let all = on_workers((1, 2), options, |strategy| {
        let table = Embedding::new(4, 1).embeddings_initializer(Initializer::Zeros);
        let model = Sequential::new([1]).add(table).add(Flatten);
        let compile = Compile {
            optimizer: Sgd::new(RATE).into(),
            loss: MeanSquaredError.into(),
            ..Compile::default()
        };
        let mut trainer = strategy.compile(model.build().unwrap(), compile).unwrap();
        let x = HostTensor::new([BATCHES, 1], &[1i32; BATCHES]);
        let y: Vec<f32> = (0..BATCHES).map(|batch| wanted(batch) as f32).collect();
        let data = Dataset::from_arrays(x, HostTensor::new([BATCHES, 1], &y)).unwrap();
        let fit = Fit::epochs(epochs).progress(Progress::Silent);
        let history = trainer.fit(&data.batch(1), fit).unwrap();
        let logs = history.epochs.into_iter().next_back().unwrap().logs;
        (trainer.variables().unwrap()[0].1.to_f64()[1], logs)
    });
    all.into_iter().next().unwrap()
}

/// By numbers computed here, of the row and of how often it was pulled.
#[test]
fn a_row_is_pulled_again_when_the_bound_asks_for_it() {
    let bounded = |steps| {
        let mode = Mode::BoundedStaleness { steps };
        ParameterServerOptions::new().mode(mode).table_bytes(0)
    };
    let kept = |steps| bounded(steps).cache_rows(8);
    let apart = || ParameterServerOptions::new().table_bytes(0);
    let cases = [
        ("bound of 3", kept(3), 3, Some(7.0)),
        ("bound of 20", kept(20), 9, Some(9.0)),
        ("bound of 0", kept(0), 0, None),
        // A worker sees all of its own updates unless it is asked to keep rows.
        ("no rows", bounded(3), 0, None),
        ("async", apart().cache_rows(8), 0, None),
        (
            "async, 2 steps",
            apart().cache_rows(8).cache_steps(2),
            2,
            Some(6.0),
        ),
        ("sync", sync().table_bytes(0).cache_rows(8), 0, None),
    ];
    for (name, options, bound, cached) in cases {
        let (row, logs) = learned(&options, 2);
        let expected = descended(bound, 2);
        assert!((row - expected).abs() < 1e-5, "{name}: {row} {expected}");
        assert_eq!(logs.get("rows_cached"), cached, "{name}");
        let pulled = cached.map(|cached| BATCHES as f64 - cached);
        assert_eq!(logs.get("rows_pulled"), pulled, "{name}");
    }
    for (a, b) in [(0, 2), (2, 3), (3, 9)] {
        assert!((descended(a, 2) - descended(b, 2)).abs() > 1e-3, "{a} {b}");
    }
}

/// Three workers with caches, which evaluate and predict with what servers have.
#[test]
fn all_workers_see_the_same_after_training_with_rows_that_they_kept() {
    for wire in [
        phalanx::replicas::WireFormat::Same,
        phalanx::replicas::WireFormat::Bf16,
    ] {
        let case = || Case {
            epochs: 20,
            ..clicks(Adagrad::new(0.3).into())
        };
        let mode = Mode::BoundedStaleness { steps: 2 };
        let options = ParameterServerOptions::new().mode(mode).table_bytes(0);
        let options = options.wire_dtype(wire).cache_rows(7);
        let all = on_workers((3, 2), &options, |strategy| train(&strategy, &case()));
        for other in &all {
            assert_eq!(other.variables, all[0].variables);
            assert_eq!(other.logs, all[0].logs);
            assert_eq!(other.predicted, all[0].predicted);
        }
        let losses = all[0].logs.iter().filter(|(name, _)| name == "loss");
        let losses: Vec<f64> = losses.map(|(_, value)| *value).collect();
        assert!(losses[19] < 0.9 * losses[0], "{losses:?}");
    }
}

/// A step all of whose rows are kept asks no server for rows.
#[test]
fn no_server_is_asked_where_no_row_is_missing() {
    let mode = Mode::BoundedStaleness { steps: 20 };
    let options = ParameterServerOptions::new().mode(mode).table_bytes(0);
    let asked = |rows| {
        let options = options.clone().cache_rows(rows);
        wire::said(&wire::one_row(8), 10, &options).asked_rows
    };
    let (pulled, kept) = (asked(0), asked(8));
    assert!(pulled >= 10, "{pulled} requests");
    assert!(kept < pulled / 2, "{kept} requests of {pulled}");
}

#[test]
fn a_bound_of_its_own_is_for_asynchronous_workers_that_keep_rows() {
    let mode = Mode::BoundedStaleness { steps: 3 };
    let bounded = ParameterServerOptions::new().mode(mode).cache_rows(8);
    let no_rows = ParameterServerOptions::new();
    for (options, expected) in [(bounded, "asynchronous"), (no_rows, "`cache_rows`")] {
        let (cluster, _ports) = cluster(1, 1);
        let membership = member(&cluster, Task::new(TaskKind::Worker, 0));
        let options = options.cache_steps(2);
        let joined = ParameterServerStrategy::join(engine(0), &membership, &options);
        let error = joined.unwrap_err().to_string();
        assert!(error.contains("`cache_steps`"), "{error}");
        assert!(error.contains(expected), "{error}");
    }
}
