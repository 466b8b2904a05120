//! Tests of a worker's session.

use std::net::TcpListener;
use std::thread::{self, JoinHandle};

use phalanx_graph::Shape;
use phalanx_ps::{ClientOptions, ControlSettings, Hello, PsError, Server, ServerOptions, Tell};

use super::*;
use crate::engine::{Engine, EngineOptions};
use crate::optim::{Optimizer, ParamSpec, Sgd};
use crate::servers::HeldValues;

/// A server that waits this long for workers when there are none, and its address.
fn server(alone_within: Duration) -> (JoinHandle<std::result::Result<(), PsError>>, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let options = ServerOptions {
        alone_within,
        ..ServerOptions::default()
    };
    let engine = Engine::new(&EngineOptions::default()).unwrap();
    let server = Server::new(options, Box::new(HeldValues::new(&engine, &[]))).unwrap();
    (thread::spawn(move || server.run(&listener)), address)
}

/// A process of one of `workers` workers.
fn session(address: &str, (worker, incarnation): (usize, u64), workers: usize) -> Arc<Servers> {
    let within = Duration::from_secs(60);
    let client = Client::connect(ClientOptions {
        servers: vec![address.to_owned()],
        hello: Hello {
            job: String::new(),
            version: String::new(),
            worker,
            incarnation,
            settings: ControlSettings {
                workers,
                mode: Mode::Async,
                goes_on_without_chief: true,
            },
        },
        join_within: within,
        server_within: within,
        stop_within: Duration::from_millis(100),
        answer_within: within,
        secret: None,
        tell: Tell(Arc::new(|_| {})),
    });
    let exchange = ExchangeOptions {
        partitioner: Partitioner::Whole,
        table_bytes: 0,
        overlaps: false,
        wire: Wire::Same,
        cache: CacheOptions { rows: 0, steps: 0 },
    };
    let notice: Notice = Arc::new(|_: &str| {});
    Servers::new(client.unwrap(), exchange, Duration::ZERO, notice)
}

/// Variable `a`, the optimizer's learning rate, and the number of updates: what servers hold, and its value.
fn create(servers: &Servers, state: &[HostTensor]) {
    try_create(servers, state).unwrap();
}

fn try_create(servers: &Servers, state: &[HostTensor]) -> Result<()> {
    let shape = Shape::f32([2]);
    let optimizer = Optimizer::from(Sgd::new(1.0));
    let param = ParamSpec::new("a", shape);
    let slots = optimizer.slots(std::slice::from_ref(&param));
    let layout = |partitioner: &Partitioner, count| {
        let places = (partitioner, count);
        StateLayout::new(vec![param], slots, vec![0], &optimizer, places, Vec::new())
    };
    servers.create(layout, state)
}

fn state(a: f32) -> Vec<HostTensor> {
    vec![
        HostTensor::new([2], &[a; 2]),
        HostTensor::scalar(1f32),
        HostTensor::scalar(0i64),
    ]
}

#[test]
fn a_worker_that_waits_no_longer_does_not_end_the_job_well() {
    // The first worker does not come.
    let (running, address) = server(Duration::from_secs(3));
    let servers = session(&address, (1, 1), 2);
    let error = servers.of_chief("fit 0", b"").unwrap_err().to_string();
    assert!(
        error.contains("waits for worker 0: it has not come to `fit 0`"),
        "{error}"
    );
    drop(servers);
    let ended = running.join().unwrap();
    assert!(matches!(ended, Err(PsError::Lost(_))), "{ended:?}");
}

/// Callbacks and the end of a `fit` set values between phases; what a first worker does again that came in the place of another is not
/// set again.
#[test]
fn a_first_worker_that_came_back_sets_values_once_it_is_where_the_job_is() {
    let (running, address) = server(Duration::from_secs(60));
    let value = |servers: &Servers| servers.state().unwrap()[0].to_f64();
    let before = session(&address, (0, 1), 1);
    create(&before, &state(1.0));
    before.set_state(&state(2.0)).unwrap();
    for phase in ["epoch 0", "epoch 1"] {
        before.enter(phase, PhaseKind::Train, 0..0).unwrap();
    }
    before.set_state(&state(3.0)).unwrap();
    before.client.give_up();
    drop(before);

    let after = session(&address, (0, 2), 1);
    create(&after, &state(1.0));
    after.set_state(&state(2.0)).unwrap();
    assert_eq!(value(&after), [3.0; 2]);
    after.enter("epoch 0", PhaseKind::Train, 0..0).unwrap();
    after.set_state(&state(2.5)).unwrap();
    assert_eq!(value(&after), [3.0; 2]);
    after.enter("epoch 1", PhaseKind::Train, 0..0).unwrap();
    after.set_state(&state(4.0)).unwrap();
    assert_eq!(value(&after), [4.0; 2]);
    after.enter("epoch 2", PhaseKind::Train, 0..0).unwrap();
    after.set_state(&state(5.0)).unwrap();
    assert_eq!(value(&after), [5.0; 2]);
    drop(after);
    running.join().unwrap().unwrap();
}

/// It would begin with the values of the first one after its training.
#[test]
fn a_second_model_on_the_same_servers_is_refused() {
    let (running, address) = server(Duration::from_secs(60));
    let servers = session(&address, (0, 1), 1);
    create(&servers, &state(1.0));
    let error = try_create(&servers, &state(2.0)).unwrap_err();
    assert!(matches!(error, Error::User(_)), "{error}");
    assert!(error.to_string().contains("one model a job"), "{error}");
    drop(servers);
    running.join().unwrap().unwrap();
}

#[test]
fn arrays_that_are_asked_for_one_by_one_are_those_of_the_whole_state() {
    let (running, address) = server(Duration::from_secs(60));
    let servers = session(&address, (0, 1), 1);
    create(&servers, &state(1.0));
    for rate in [0.5f32, 0.25] {
        let mut changed = state(3.0 * rate);
        changed[1] = HostTensor::scalar(rate);
        servers.set_state(&changed).unwrap();
        for (index, array) in changed.iter().enumerate() {
            assert_eq!(servers.array(index).unwrap(), *array, "{index}");
        }
    }
    drop(servers);
    running.join().unwrap().unwrap();
}

/// The servers keep what they have, for the job that is started again.
#[test]
fn a_worker_that_a_server_refuses_does_not_end_the_job_well() {
    let (running, address) = server(Duration::from_secs(3));
    let servers = session(&address, (0, 1), 1);
    // Nobody has entered the phase.
    let refused = servers.or_fail(servers.no_more("epoch 0", 1));
    let error = refused.unwrap_err();
    assert!(matches!(error, Error::Cluster(_)), "{error}");
    drop(servers);
    let ended = running.join().unwrap();
    assert!(matches!(ended, Err(PsError::Lost(_))), "{ended:?}");
}
