//! Rows of a table updated by themselves, as the same rule updates a table that has no others.
#![forbid(unsafe_code)]

mod oracle;

use std::ops::Range;

use oracle::{Batch, uniform};
use phalanx::optim::{Adagrad, Adam, Optimizer, ParamSpec, Sgd, SlotSpec};
use phalanx_graph::op::Op;
use phalanx_graph::{Graph, HostTensor, Shape, Tensor};
use phalanx_testkit::assert_close;
use serde_json::json;

const ROWS: usize = 48;
const WIDTH: usize = 3;
/// The rows of the table that have gradients, in the order of the compact table.
const SEEN: [usize; 4] = [0, 17, 47, 8];
/// The row whose gradient is 0: it counts as not seen.
const FILLED: i32 = 5;
/// Each index of a step in its order: several times, out of range at both ends, and a row that only fills up.
const INDICES: [[i32; 10]; 3] = [
    [17, 0, 17, FILLED, 47, -1, 8, 48, 17, 0],
    [8, 8, 8, 8, FILLED, 47, 0, 17, -7, 1000],
    [47, 17, 0, 8, 48, 48, FILLED, FILLED, -1, 8],
];

fn optimizers() -> Vec<(String, Optimizer)> {
    let kinds = [
        "rmsprop", "adam", "adagrad", "adadelta", "adamax", "nadam", "ftrl", "lion", "sgd",
    ];
    let mut all: Vec<(String, Optimizer)> = kinds
        .iter()
        .map(|kind| {
            let config = json!({"learning_rate": 0.1, "lazy": true});
            let optimizer = Optimizer::from_config(kind, &config).unwrap();
            ((*kind).to_owned(), optimizer)
        })
        .collect();
    let adam = || Optimizer::from(Adam::new(0.1)).lazy();
    let momentum = Optimizer::from(Sgd::new(0.1).momentum(0.9).nesterov(true)).lazy();
    let others = [
        ("sgd as it is", Sgd::new(0.1).into()),
        ("adagrad as it is", Adagrad::new(0.1).into()),
        ("momentum", momentum),
        ("clipvalue", adam().clipvalue(0.3)),
        ("clipnorm", adam().clipnorm(0.3)),
        ("global_clipnorm", adam().global_clipnorm(0.3)),
        ("decay", adam().weight_decay(0.1)),
    ];
    all.extend(others.map(|(name, optimizer)| (name.to_owned(), optimizer)));
    all
}

/// One optimizer with one table in the program.
struct Table {
    name: String,
    state: Range<usize>,
    outputs: Range<usize>,
}

impl Table {
    /// Traces a step of a table of these rows from its gradient.
    fn trace(
        batch: &mut Batch,
        (name, optimizer): &(String, Optimizer),
        (variable, rows, gradient): (&str, &[f32], &Tensor),
        iterations: &Tensor,
        places: (usize, usize),
    ) -> Self {
        let shape = Shape::f32([rows.len() / WIDTH, WIDTH]);
        let spec = ParamSpec::new(variable, shape.clone());
        let param = batch.input(HostTensor::new(shape.dims.clone(), rows));
        let specs = [spec];
        let slots = optimizer.slots(&specs);
        let fill = |slot: &SlotSpec| HostTensor::full(slot.shape.clone(), slot.fill);
        let slots: Vec<Tensor> = slots.iter().map(|slot| batch.input(fill(slot))).collect();
        let applied = optimizer.apply(
            &specs,
            iterations,
            &[param],
            std::slice::from_ref(gradient),
            &slots,
        );
        applied.params.iter().for_each(|value| batch.output(value));
        applied.slots.iter().for_each(|value| batch.output(value));
        let size = 1 + slots.len();
        Self {
            name: format!("{name}, {variable}"),
            state: places.0..places.0 + size,
            outputs: places.1..places.1 + size,
        }
    }
}

fn values(name: &str, count: usize) -> Vec<f32> {
    uniform(name, count).map(|x| x as f32).collect()
}

/// The gradients of the rows of a step; the ones that fill up are 0.
fn gradients(step: usize) -> Vec<f32> {
    let mut rows = values(&format!("gradient {step}"), INDICES[step].len() * WIDTH);
    for (row, index) in rows.chunks_mut(WIDTH).zip(INDICES[step]) {
        if index == FILLED {
            row.fill(0.0);
        }
    }
    rows
}

/// The sum of the gradients of each row seen.
fn summed(step: usize) -> Vec<f32> {
    let rows = gradients(step);
    let mut sums = vec![0.0f32; SEEN.len() * WIDTH];
    for (row, index) in rows.chunks(WIDTH).zip(INDICES[step]) {
        if let Some(place) = SEEN.iter().position(|&seen| seen as i32 == index) {
            for (sum, x) in sums[place * WIDTH..].iter_mut().zip(row) {
                *sum += x;
            }
        }
    }
    sums
}

/// The same in a gradient of the whole table.
fn whole(step: usize) -> Vec<f32> {
    let mut table = vec![0.0; ROWS * WIDTH];
    for (row, sums) in SEEN.into_iter().zip(summed(step).chunks(WIDTH)) {
        table[row * WIDTH..][..WIDTH].copy_from_slice(sums);
    }
    table
}

/// The rows seen of a large table; panics where another one has moved.
fn seen(what: &str, table: &HostTensor, before: &HostTensor) -> Vec<f64> {
    let (now, before) = (table.to_f64(), before.to_f64());
    for row in (0..ROWS).filter(|row| !SEEN.contains(row)) {
        let range = row * WIDTH..(row + 1) * WIDTH;
        assert_eq!(now[range.clone()], before[range], "{what}: row {row}");
    }
    let rows = SEEN.iter().map(|row| &now[row * WIDTH..(row + 1) * WIDTH]);
    rows.flatten().copied().collect()
}

#[test]
fn rows_are_updated_as_a_table_without_others() {
    let engine = oracle::engine();
    let mut batch = Batch::default();
    let iterations = batch.input(HostTensor::scalar(0i64));
    let count = INDICES[0].len();
    let indices = batch.input(HostTensor::new([count], &INDICES[0]));
    let rows = batch.input(HostTensor::new([count, WIDTH], &gradients(0)));
    let sums = batch.input(HostTensor::new([SEEN.len(), WIDTH], &summed(0)));
    let dense = batch.input(HostTensor::new([ROWS, WIDTH], &whole(0)));
    let zeros = batch.graph.full(&Shape::f32([ROWS, WIDTH]), 0.0);
    let sparse = zeros.scatter_add(&indices, &rows, 0);
    // So many indices that the table is computed as a whole.
    let filling = batch.graph.constant(HostTensor::new([3], &[FILLED; 3]));
    let nothing = batch.graph.full(&Shape::f32([3, WIDTH]), 0.0);
    let many = sparse.scatter_add(&filling, &nothing, 0);
    let large = values("table", ROWS * WIDTH);
    let small: Vec<f32> = SEEN
        .iter()
        .flat_map(|row| large[row * WIDTH..(row + 1) * WIDTH].to_vec())
        .collect();
    let (mut input, mut output) = (5, 0);
    let tables = [
        ("without others", &small, &sums),
        ("large/embeddings", &large, &sparse),
        ("small for its indices/embeddings", &large, &many),
        ("users/embeddings", &large, &dense),
        ("users/embeddings/part_1", &large, &dense),
    ];
    let mut groups = Vec::new();
    for optimizer in optimizers() {
        groups.push(tables.map(|(variable, table, gradient)| {
            let table = (variable, &table[..], gradient);
            let places = (input, output);
            let made = Table::trace(&mut batch, &optimizer, table, &iterations, places);
            (input, output) = (made.state.end, made.outputs.end);
            made
        }));
    }
    let mut program = batch.compile(&engine);
    for (step, indices) in INDICES.iter().enumerate() {
        program.inputs[0] = HostTensor::scalar(step as i64);
        program.inputs[1] = HostTensor::new([count], indices);
        program.inputs[2] = HostTensor::new([count, WIDTH], &gradients(step));
        program.inputs[3] = HostTensor::new([SEEN.len(), WIDTH], &summed(step));
        program.inputs[4] = HostTensor::new([ROWS, WIDTH], &whole(step));
        let results = program.run(&engine);
        for [small, others @ ..] in &groups {
            for large in others {
                compare(step, large, small, &program.inputs, &results);
            }
        }
        for table in groups.iter().flatten() {
            program.inputs[table.state.clone()].clone_from_slice(&results[table.outputs.clone()]);
        }
    }
}

/// Compares variable and slots of a table with those of the one that has no other rows.
fn compare(
    step: usize,
    large: &Table,
    small: &Table,
    inputs: &[HostTensor],
    results: &[HostTensor],
) {
    let what = format!("{}, step {step}", large.name);
    let expected = &results[small.outputs.clone()];
    let now = results[large.outputs.clone()].iter();
    let pairs = now.zip(&inputs[large.state.clone()]);
    for ((now, before), expected) in pairs.zip(expected) {
        let found = if now.shape().dims == [ROWS, WIDTH] {
            seen(&what, now, before)
        } else {
            now.to_f64()
        };
        assert_close(&what, &found, &expected.to_f64(), 2e-6);
    }
}

/// Whether the step of a table with `rows` rows, from the gradients of ten, sets rows.
fn sets_rows(optimizer: &Optimizer, rows: usize) -> bool {
    let graph = Graph::new();
    let shape = Shape::f32([rows, WIDTH]);
    let table = graph.parameter("table", shape.clone());
    let indices = graph.parameter("indices", Shape::new(phalanx_graph::DType::I32, [10]));
    let values = graph.parameter("rows", Shape::f32([10, WIDTH]));
    let iterations = graph.parameter("i", Shape::scalar(phalanx_graph::DType::I64));
    let gradient = graph.full(&shape, 0.0).scatter_add(&indices, &values, 0);
    let specs = [ParamSpec::new("users/embeddings", shape)];
    let slots: Vec<Tensor> = optimizer
        .slots(&specs)
        .iter()
        .map(|slot| graph.parameter(&slot.name, slot.shape.clone()))
        .collect();
    let applied = optimizer.apply(&specs, &iterations, &[table], &[gradient], &slots);
    let program = graph.finish(&[("table", &applied.params[0])]).unwrap();
    let sets = |op: &Op| matches!(op, Op::ScatterSet { .. });
    program.nodes.iter().any(|node| sets(&node.op))
}

#[test]
fn only_what_changes_rows_alone_sets_rows() {
    let sgd = || Optimizer::from(Sgd::new(0.1));
    let adam = || Optimizer::from(Adam::new(0.1));
    let cases = [
        ("sgd", sgd(), true),
        ("adagrad", Adagrad::new(0.1).into(), true),
        ("lazy adam", adam().lazy(), true),
        ("adam", adam(), false),
        ("momentum", Sgd::new(0.1).momentum(0.5).into(), false),
        ("decay", sgd().weight_decay(0.1), false),
        ("averages", sgd().ema(0.9), false),
        ("accumulation", sgd().gradient_accumulation(2), false),
    ];
    for (name, optimizer, expected) in cases {
        assert_eq!(sets_rows(&optimizer, 40), expected, "{name}");
    }
    assert!(
        !sets_rows(&sgd(), 39),
        "a table of few rows is computed as a whole"
    );
}

#[test]
fn lazy_is_refused_where_all_rows_change() {
    let lamb = json!({"learning_rate": 0.1, "lazy": true});
    let refused = [
        ("lamb", lamb.clone(), "needs whole variables"),
        ("adam", json!({"lazy": true, "use_ema": true}), "`use_ema`"),
        (
            "adam",
            json!({"lazy": true, "gradient_accumulation_steps": 2}),
            "`gradient_accumulation_steps`",
        ),
    ];
    for (kind, config, expected) in refused {
        let error = Optimizer::from_config(kind, &config)
            .and_then(|optimizer| optimizer.check())
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{error}");
    }
}
