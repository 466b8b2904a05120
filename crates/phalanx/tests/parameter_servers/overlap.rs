//! Workers that pull and push while they compute.

use super::*;

/// Rows of a line through the origin, with noise: what a model of one weight learns.
const ROWS: usize = 40;
const RATE: f64 = 0.05;

fn line() -> (Vec<f32>, Vec<f32>) {
    let x: Vec<f32> = cases::wave(ROWS, 0.7);
    let noise = cases::wave(ROWS, 1.3);
    let y = x.iter().zip(&noise).map(|(x, noise)| 3.0 * x + 0.1 * noise);
    let y = y.collect();
    (x, y)
}

/// Stochastic gradient descent on batches of 4, each gradient of the weight that there was so many updates before; an epoch begins
/// with all updates of the one before. What travels is rounded by `sent`.
pub(crate) fn descended(late: usize, epochs: usize, sent: fn(f64) -> f64) -> f64 {
    let (x, y) = line();
    let mut weights = vec![0f64];
    for _ in 0..epochs {
        let begin = weights.len() - 1;
        for batch in 0..ROWS / 4 {
            let newest = weights.len() - 1;
            let known = sent(weights[newest.saturating_sub(late).max(begin)]);
            let rows = 4 * batch..4 * batch + 4;
            let gradient: f64 = rows
                .map(|row| {
                    let (x, y) = (f64::from(x[row]), f64::from(y[row]));
                    2.0 * (known * x - y) * x / 4.0
                })
                .sum();
            weights.push(weights[newest] - RATE * sent(gradient));
        }
    }
    weights[weights.len() - 1]
}

pub(crate) fn learned(options: &ParameterServerOptions, epochs: usize) -> (f64, Logs) {
    let all = on_workers((1, 1), options, |strategy| {
        let weight = Dense::new(1)
            .use_bias(false)
            .kernel_initializer(Initializer::Zeros);
        let model = Sequential::new([1]).add(weight).build().unwrap();
        let compile = Compile {
            optimizer: Sgd::new(RATE).into(),
            loss: MeanSquaredError.into(),
            ..Compile::default()
        };
        let mut trainer = strategy.compile(model, compile).unwrap();
        let (x, y) = line();
        let column = |values: &[f32]| HostTensor::new([ROWS, 1], values);
        let data = Dataset::from_arrays(column(&x), column(&y)).unwrap();
        let fit = Fit::epochs(epochs).progress(Progress::Silent);
        let history = trainer.fit(&data.batch(4), fit).unwrap();
        let logs = history.epochs.into_iter().next_back().unwrap().logs;
        (trainer.variables().unwrap()[0].1.to_f64()[0], logs)
    });
    all.into_iter().next().unwrap()
}

/// One worker: each gradient lacks the update before it, and nothing else. By numbers computed here.
#[test]
fn a_gradient_lacks_the_one_update_that_is_under_way() {
    let modes = [Mode::Async, Mode::BoundedStaleness { steps: 1 }];
    for (mode, is_overlapping) in modes
        .into_iter()
        .flat_map(|mode| [(mode, false), (mode, true)])
    {
        let options = ParameterServerOptions::new().mode(mode);
        let options = match is_overlapping {
            true => options.overlap(),
            false => options,
        };
        let (weight, logs) = learned(&options, 2);
        let expected = descended(usize::from(is_overlapping), 2, |x| x);
        let other = descended(usize::from(!is_overlapping), 2, |x| x);
        assert!((expected - other).abs() > 1e-3, "{expected} {other}");
        assert!((weight - expected).abs() < 1e-5, "{weight} {expected}");
        // Its own update is none of others.
        assert_eq!(logs.get("staleness_max"), Some(0.0));
    }
}

/// The means over an epoch hold each example once, by rows of tables and with clipping, too.
#[test]
fn workers_that_overlap_train_on_each_example_once() {
    let everything = || Case {
        epochs: 12,
        ..ragged()
    };
    for mode in [Mode::Async, Mode::BoundedStaleness { steps: 2 }] {
        let options = ParameterServerOptions::new().mode(mode).overlap();
        let all = on_workers((3, 2), &options, |strategy| train(&strategy, &everything()));
        for other in &all {
            assert_eq!(other.logs, all[0].logs);
            assert_eq!(other.predicted, all[0].predicted);
        }
        let losses = all[0].logs.iter().filter(|(name, _)| name == "loss");
        let losses: Vec<f64> = losses.map(|(_, value)| *value).collect();
        assert!(losses[11] < 0.8 * losses[0], "{mode}: {losses:?}");
    }
}

#[test]
fn steps_that_follow_from_each_other_do_not_overlap() {
    for mode in [
        Mode::Sync { backup_workers: 0 },
        Mode::BoundedStaleness { steps: 0 },
    ] {
        let options = ParameterServerOptions::new().mode(mode).overlap();
        let (cluster, _ports) = cluster(1, 1);
        let membership = member(&cluster, Task::new(TaskKind::Worker, 0));
        let joined = ParameterServerStrategy::join(engine(0), &membership, &options);
        let error = joined.unwrap_err().to_string();
        assert!(error.contains("`overlap`"), "{error}");
    }
}
