//! Values and gradients that travel as bfloat16.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use half::bf16;
use phalanx::replicas::WireFormat;

use super::overlap::{descended, learned};
use super::*;

fn rounded(x: f64) -> f64 {
    bf16::from_f32(x as f32).to_f64()
}

/// One worker and one weight, by numbers computed here: what is pulled and what is pushed is rounded, what a server keeps is not.
#[test]
fn a_weight_is_pulled_and_its_gradient_pushed_as_bfloat16() {
    for mode in [Mode::Async, Mode::Sync { backup_workers: 0 }] {
        for (wire, sent) in [
            (WireFormat::Same, (|x| x) as fn(f64) -> f64),
            (WireFormat::Bf16, rounded),
        ] {
            let options = ParameterServerOptions::new().mode(mode).wire_dtype(wire);
            let (weight, _) = learned(&options, 2);
            let expected = descended(0, 2, sent);
            assert!(
                (weight - expected).abs() < 2e-6,
                "{mode} {wire:?}: {weight} {expected}"
            );
            assert!(
                (weight - rounded(weight)).abs() > 1e-5,
                "{weight} was rounded"
            );
        }
    }
    let apart = descended(0, 2, rounded) - descended(0, 2, |x| x);
    assert!(apart.abs() > 1e-4, "{apart}: rounding changes nothing here");
}

/// What goes over the wire.
#[derive(Default)]
struct Counts {
    bytes: AtomicU64,
    asked_rows: AtomicU64,
}

/// What went over the wire.
pub(super) struct Said {
    bytes: u64,
    /// How often rows of tables were asked for as they are.
    pub(super) asked_rows: u64,
}

/// Copies what one side says to the other, and counts it.
fn copy(mut from: TcpStream, mut to: TcpStream, counts: Arc<Counts>) {
    const ASKS: &[u8] = br#""what":"rows""#;
    thread::spawn(move || {
        let mut bytes = vec![0; 1 << 16];
        let mut seen = Vec::new();
        while let Ok(length @ 1..) = from.read(&mut bytes) {
            let count = length as u64;
            counts.bytes.fetch_add(count, Ordering::Relaxed);
            seen.extend_from_slice(&bytes[..length]);
            let asked = seen.windows(ASKS.len()).filter(|said| *said == ASKS);
            let asked = asked.count() as u64;
            counts.asked_rows.fetch_add(asked, Ordering::Relaxed);
            // What may be the begin of another.
            seen.drain(..seen.len().saturating_sub(ASKS.len() - 1));
            if to.write_all(&bytes[..length]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    });
}

/// A cluster whose server workers reach through a process that counts bytes.
fn counted(cluster: &ClusterSpec, count: &Arc<Counts>) -> ClusterSpec {
    let task = Task::new(TaskKind::ParameterServer, 0);
    let server = cluster.address(task).unwrap().to_string();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let count = Arc::clone(count);
    thread::spawn(move || {
        for worker in listener.incoming() {
            let worker = worker.unwrap();
            // A worker asks again where the server does not listen yet.
            let Ok(server) = TcpStream::connect(&server) else {
                continue;
            };
            let again = |stream: &TcpStream| stream.try_clone().unwrap();
            copy(again(&worker), again(&server), Arc::clone(&count));
            copy(server, worker, Arc::clone(&count));
        }
    });
    let worker = Task::new(TaskKind::Worker, 0);
    ClusterSpec::new()
        .with(worker, cluster.address(worker).unwrap().clone())
        .with(task, Address::new("127.0.0.1", port))
}

/// What a worker and its server say in some steps of training.
pub(super) fn said(case: &Case, steps: usize, options: &ParameterServerOptions) -> Said {
    let count = Arc::new(Counts::default());
    let work = |strategy: ParameterServerStrategy| {
        let compiled = strategy.compile(case.model.clone(), case.compile.clone());
        let fit = Fit::epochs(1).steps_per_epoch(steps);
        let fit = fit.progress(Progress::Silent);
        let data = case.data.batch(case.batch);
        compiled.unwrap().fit(&data, fit).unwrap();
    };
    let route = |cluster: &ClusterSpec| counted(cluster, &count);
    on_routed((1, 1), options, (route, work), |served| served.unwrap());
    let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let (bytes, asked_rows) = (load(&count.bytes), load(&count.asked_rows));
    Said { bytes, asked_rows }
}

/// A table and nothing else, of which every batch names one row of this width.
pub(super) fn one_row(width: usize) -> Case {
    let table = Embedding::new(4, width);
    let model = Sequential::new([1]).add(table).add(Flatten);
    let x = HostTensor::new([22, 1], &[1i32; 22]);
    let y = HostTensor::new([22, width], &cases::wave(22 * width, 0.3));
    Case {
        model: model.build().unwrap(),
        data: Dataset::from_arrays(x, y).unwrap(),
        batch: 1,
        compile: Compile {
            optimizer: Sgd::new(0.1).into(),
            loss: MeanSquaredError.into(),
            ..Compile::default()
        },
        ..ragged()
    }
}

/// What more steps take, so that the first values and the end do not count; they name rows that the first steps named.
#[test]
fn bytes_on_the_way_are_halved() {
    let wide = Sequential::new([64])
        .add(Dense::new(512))
        .add(Dense::new(64));
    let x = HostTensor::new([22, 64], &cases::wave(22 * 64, 0.3));
    let whole = Case {
        model: wide.build().unwrap(),
        data: Dataset::from_arrays(x.clone(), x).unwrap(),
        batch: 1,
        compile: Compile {
            loss: MeanSquaredError.into(),
            ..Compile::default()
        },
        ..ragged()
    };
    // A row of 64 kB; a heartbeat a second has about 100 bytes.
    for (name, case) in [("whole", whole), ("rows", one_row(1 << 14))] {
        let options = ParameterServerOptions::new().table_bytes(0);
        let [wide, narrow] = [WireFormat::Same, WireFormat::Bf16].map(|wire| {
            let options = options.clone().wire_dtype(wire);
            said(&case, 22, &options).bytes - said(&case, 11, &options).bytes
        });
        let ratio = narrow as f64 / wide as f64;
        println!("{name}: {wide} bytes, {narrow} as bfloat16, {ratio:.3}");
        assert!((0.48..0.56).contains(&ratio), "{name}: {ratio}");
    }
}

/// Everything that a model may have, tables and clipped norms: near what 32 bits give, equal in all workers, tested with what servers keep.
#[test]
fn workers_that_step_together_learn_the_same_from_bfloat16() {
    let clipped = || {
        let mut case = ragged();
        case.compile.optimizer = Optimizer::from(Adam::new(0.01)).global_clipnorm(0.05);
        case
    };
    let by_rows = || clicks(Adagrad::new(0.1).into());
    let cases: [&(dyn Fn() -> Case + Sync); 3] = [&ragged, &clipped, &by_rows];
    for case in cases {
        let one = train(&OneDeviceStrategy::on(engine(0)), &case());
        let options = sync().table_bytes(0).wire_dtype(WireFormat::Bf16);
        let all = on_workers((3, 2), &options, |strategy| train(&strategy, &case()));
        assert!(all.iter().all(|other| *other == all[0]));
        for ((name, a), (_, b)) in one.logs.iter().zip(&all[0].logs) {
            assert!((a - b).abs() <= 0.05 * a.abs(), "{name} is {a} and {b}");
        }
        let is_kept = |x: &f64| (x - rounded(*x)).abs() > 1e-3 * x.abs();
        let mut values = all[0].variables.iter().flat_map(|(_, values)| values);
        assert!(values.any(is_kept), "servers have rounded values");
    }
}

#[test]
fn the_digits_are_learned_from_bfloat16() {
    for mode in [Mode::Async, Mode::Sync { backup_workers: 0 }] {
        let options = ParameterServerOptions::new().mode(mode);
        let options = options.wire_dtype(WireFormat::Bf16);
        let accuracy = accuracy_on_digits(&options);
        println!("{mode}: accuracy {accuracy}");
        assert!(accuracy >= 0.90, "{mode}: accuracy {accuracy}");
    }
}

#[test]
fn float16_is_refused_with_what_to_take() {
    let options = ParameterServerOptions::new().wire_dtype(WireFormat::F16);
    let (cluster, _ports) = cluster(1, 1);
    let membership = member(&cluster, Task::new(TaskKind::Worker, 0));
    let joined = ParameterServerStrategy::join(engine(0), &membership, &options);
    let error = joined.unwrap_err().to_string();
    assert!(error.contains("bfloat16"), "{error}");
}
