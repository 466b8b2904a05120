//! Sums over replicas against sums on the host in f64: every way, every wire, rows and wholes.

use std::sync::OnceLock;

use half::{bf16, f16};
use phalanx_graph::op::Op;
use phalanx_graph::{DType, Graph, HostTensor, Program, Shape, Tensor, gradients};
use serde_json::json;

use super::reduction::{CrossDeviceOps, Reduction, SparseGradients, WireFormat, packs};
use crate::engine::{CompileRequest, Engine, EngineOptions};

const OPS: [CrossDeviceOps; 3] = [
    CrossDeviceOps::AllReduce,
    CrossDeviceOps::HierarchicalCopyAllReduce,
    CrossDeviceOps::ReductionToOneDevice,
];
const WIRES: [WireFormat; 3] = [WireFormat::Same, WireFormat::Bf16, WireFormat::F16];

fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| {
        Engine::new(&EngineOptions {
            cpu_devices: 4,
            ..EngineOptions::default()
        })
        .unwrap()
    })
}

/// The outputs of each replica, given the arguments of each; run twice, for the same bits.
fn run(program: &Program, lists: &[Vec<HostTensor>]) -> Vec<Vec<HostTensor>> {
    let compiled = engine()
        .compile(CompileRequest::new("reduction", program))
        .unwrap();
    let put = |(device, list): (usize, &Vec<HostTensor>)| -> Vec<_> {
        let put = |tensor| engine().put(device, tensor).unwrap();
        list.iter().map(put).collect()
    };
    let buffers: Vec<Vec<_>> = lists.iter().enumerate().map(put).collect();
    let buffers: Vec<Vec<&_>> = buffers.iter().map(|list| list.iter().collect()).collect();
    let arguments: Vec<&[&_]> = buffers.iter().map(Vec::as_slice).collect();
    let once = || -> Vec<Vec<HostTensor>> {
        let (outputs, _) = compiled.run(&arguments).unwrap();
        let read = |list: Vec<_>| {
            let values = list.iter().zip(&program.outputs);
            values
                .map(|(buffer, (_, value))| engine().get(buffer, program.shape(*value)).unwrap())
                .collect()
        };
        outputs.into_iter().map(read).collect()
    };
    let first = once();
    assert_eq!(first, once(), "the second run has the bits of the first");
    for (replica, other) in first.iter().enumerate() {
        assert_eq!(first[0], *other, "replica {replica} has what replica 0 has");
    }
    first
}

fn finish(graph: &Graph, outputs: &[Tensor]) -> Program {
    let outputs: Vec<(&str, &Tensor)> = outputs.iter().map(|output| ("sum", output)).collect();
    graph.finish(&outputs).unwrap()
}

fn value(replica: usize, tensor: usize, element: usize) -> f64 {
    let place = (element * 7919 + tensor * 331 + replica * 104_729 + 17) % 9973;
    (place as f64 / 997.3 - 5.0) * if tensor == 1 { 1e-3 } else { 1.0 }
}

/// Of no size that divides by 2, 3 or 4 replicas, of several element types, one without elements.
fn shapes() -> [Shape; 7] {
    [
        Shape::f32([17]),
        Shape::f32([3, 5]),
        Shape::f32([]),
        Shape::f32([0, 2]),
        Shape::new(DType::F64, [3]),
        Shape::new(DType::Bf16, [5]),
        Shape::f32([2, 2]),
    ]
}

/// A bound of the error of a sum: what travels is rounded, then the sum, once more across groups.
fn tolerance(dtype: DType, wire: WireFormat) -> f64 {
    let unit = match (dtype, wire) {
        (DType::F64, _) => f64::EPSILON,
        (DType::Bf16, _) | (DType::F32, WireFormat::Bf16) => 2f64.powi(-9),
        (DType::F32, WireFormat::F16) => 2f64.powi(-12),
        _ => f64::from(f32::EPSILON),
    };
    3.0 * unit
}

/// Whether the number was rounded to what travels.
fn is_of_wire(number: f64, wire: WireFormat) -> bool {
    let number = number as f32;
    match wire {
        WireFormat::Same => true,
        WireFormat::Bf16 => bf16::from_f32(number).to_f32() == number,
        WireFormat::F16 => f16::from_f32(number).to_f32() == number,
    }
}

#[test]
fn every_way_adds_what_the_host_adds() {
    for replicas in 1..=4 {
        let graph = Graph::with_replicas(replicas);
        let shapes = shapes();
        let given: Vec<Tensor> = shapes
            .iter()
            .map(|s| graph.parameter("g", s.clone()))
            .collect();
        let ways = OPS.iter().flat_map(|ops| WIRES.map(|wire| (*ops, wire)));
        let ways: Vec<_> = ways.collect();
        let mut sums = Vec::new();
        for (ops, wire) in &ways {
            let reduction = Reduction::new().cross_device_ops(*ops).wire(*wire);
            sums.extend(reduction.bytes_per_pack(40).sum(&given));
        }
        let tensor = |replica: usize, tensor: usize| {
            let own = |element| value(replica, tensor, element);
            let own: Vec<f64> = (0..shapes[tensor].len()).map(own).collect();
            HostTensor::new(shapes[tensor].dims.as_slice(), &own).convert(shapes[tensor].dtype)
        };
        let list = |replica| (0..shapes.len()).map(|t| tensor(replica, t)).collect();
        let lists: Vec<Vec<HostTensor>> = (0..replicas).map(list).collect();
        let found = run(&finish(&graph, &sums), &lists).swap_remove(0);
        for (place, sum) in found.iter().enumerate() {
            let ((ops, wire), at) = (ways[place / shapes.len()], place % shapes.len());
            let dtype = shapes[at].dtype;
            assert_eq!(*sum.shape(), shapes[at]);
            for (element, &got) in sum.to_f64().iter().enumerate() {
                let each = lists.iter().map(|list| list[at].to_f64()[element]);
                let (expected, size) = each.fold((0.0, 0.0), |(e, s), x| (e + x, s + x.abs()));
                let bound = if replicas == 1 {
                    0.0
                } else {
                    tolerance(dtype, wire) * size
                };
                let what =
                    format!("{ops:?} {wire:?}, {replicas} replicas, gradient {at}[{element}]");
                assert!(
                    (got - expected).abs() <= bound,
                    "{what}: {got}, not {expected}"
                );
                let narrow = replicas == 1 || dtype != DType::F32 || is_of_wire(got, wire);
                assert!(narrow, "{what}: {got} did not travel so");
            }
        }
    }
}

#[test]
fn what_overflows_on_the_wire_is_not_finite() {
    let replicas = 2;
    let graph = Graph::with_replicas(replicas);
    let x = graph.parameter("x", Shape::f32([4]));
    let mut sums = Vec::new();
    for ops in OPS {
        let reduction = Reduction::new().cross_device_ops(ops).wire(WireFormat::F16);
        sums.extend(reduction.sum(std::slice::from_ref(&x)));
    }
    // The first overflows on replica 0 alone, the second in the sum, the third becomes NaN, the last is fine.
    let lists = [
        [70_000.0f32, 40_000.0, 1e9, 0.5],
        [1.0, 40_000.0, -1e9, 1.0],
    ];
    let lists = lists.map(|values| vec![HostTensor::new([4], &values)]);
    for sum in &run(&finish(&graph, &sums), &lists)[0] {
        let sum = sum.to_f64();
        let finite: Vec<bool> = sum.iter().map(|x| x.is_finite()).collect();
        assert_eq!(finite, [false, false, false, true], "{sum:?}");
    }
}

#[test]
fn packs_are_filled_from_the_last_to_the_first() {
    let f32s = |lengths: &[usize]| -> Vec<(usize, DType, usize)> {
        let tensors = lengths.iter().enumerate();
        tensors
            .map(|(place, &len)| (place, DType::F32, len))
            .collect()
    };
    let tensors = f32s(&[1, 2, 3, 4]);
    assert_eq!(packs(&tensors, 0), [[3, 2, 1, 0]]);
    assert_eq!(packs(&tensors, 1), [[3], [2], [1], [0]]);
    // A pack is full at its limit, not one byte before.
    assert_eq!(packs(&tensors, 16), [vec![3], vec![2, 1], vec![0]]);
    assert_eq!(packs(&tensors, 17), [vec![3, 2], vec![1, 0]]);
    assert_eq!(packs(&tensors, 28), [vec![3, 2], vec![1, 0]]);
    assert_eq!(packs(&tensors, 29), [vec![3, 2, 1], vec![0]]);
    assert_eq!(packs(&tensors, usize::MAX), [[3, 2, 1, 0]]);
    assert_eq!(packs(&[], 16), Vec::<Vec<usize>>::new());
    let mut mixed = tensors;
    mixed[1].1 = DType::Bf16;
    mixed[3].1 = DType::Bf16;
    assert_eq!(packs(&mixed, 0), [[3, 1], [2, 0]]);
    assert_eq!(packs(&mixed, 12), [vec![2], vec![3, 1], vec![0]]);
}

const ROWS: usize = 60;
const WIDTH: usize = 3;

/// A loss of a table and the gradients that it leads to.
type Use = fn(&Tensor, &Tensor, &Tensor) -> Tensor;

/// How a table is used, and whether its gradient travels as rows.
const USES: [(&str, bool, Use); 6] = [
    ("looked up", true, |table, ids, by| look_up(table, ids, by)),
    ("looked up twice", true, |table, ids, by| {
        let others = ids.slice_dim(0, 0, 2) + 1.0;
        look_up(table, ids, by) + look_up(table, &others, &by.slice_dim(0, 0, 2)) * 2.0
    }),
    ("looked up under other dims", true, |table, ids, by| {
        let flat = table.reshape(&[ROWS * WIDTH]).reshape(&[ROWS, WIDTH]);
        look_up(&flat, ids, by)
    }),
    ("tied", false, |table, ids, by| {
        let all = by.slice_dim(0, 0, 1).matmul(&table.transpose(&[1, 0]));
        look_up(table, ids, by) + all.square().sum_all()
    }),
    ("looked up too often", false, |table, ids, by| {
        let (ids, by) = (vec![ids; 10], vec![by; 10]);
        look_up(table, &Tensor::concat(&ids, 0), &Tensor::concat(&by, 0))
    }),
    ("looked up by nothing", true, |table, ids, by| {
        look_up(table, &ids.slice_dim(0, 0, 0), &by.slice_dim(0, 0, 0))
    }),
];

fn look_up(table: &Tensor, ids: &Tensor, by: &Tensor) -> Tensor {
    (table.gather(ids, 0) * by).sum_all()
}

/// Duplicates within replica 0, across replicas, out of range (which the gather clamps), rows that weigh nothing.
fn looked_up(replica: usize) -> Vec<HostTensor> {
    let ids = [
        [5, 9, 5, 59, 0],
        [9, 9, 5, 70, 2],
        [7, -3, 7, 7, 0],
        [1, 2, 3, 4, 0],
    ][replica];
    let by = |i: usize| match i / WIDTH {
        4 => 0.0,
        _ => value(replica, 0, i) as f32,
    };
    let by: Vec<f32> = (0..5 * WIDTH).map(by).collect();
    let table: Vec<f32> = (0..ROWS * WIDTH).map(|i| (i as f32 * 0.1).sin()).collect();
    vec![
        HostTensor::new([ROWS, WIDTH], &table),
        HostTensor::new([5], &ids),
        HostTensor::new([5, WIDTH], &by),
    ]
}

#[test]
fn gradients_of_tables_travel_as_rows_where_that_is_less() {
    for replicas in [2, 3] {
        let graph = Graph::with_replicas(replicas);
        let table = graph.parameter("table", Shape::f32([ROWS, WIDTH]));
        let ids = graph.parameter("ids", Shape::new(DType::I32, [5]));
        let by = graph.parameter("by", Shape::f32([5, WIDTH]));
        let (mut sums, mut expected_rows, mut others) = (Vec::new(), 0, Vec::new());
        for (name, as_rows, make) in USES {
            let gradient = gradients(&make(&table, &ids, &by), &[&table])
                .remove(0)
                .unwrap();
            for wire in WIRES {
                for sparse in [SparseGradients::WhenSmaller, SparseGradients::Never] {
                    let reduction = Reduction::new().wire(wire).sparse(sparse);
                    let given = std::slice::from_ref(&gradient);
                    let is_rows = reduction.report(given).contains("1 as rows");
                    let may = sparse == SparseGradients::WhenSmaller;
                    assert_eq!(is_rows, as_rows && may, "{name}, {wire:?}, {sparse:?}");
                    expected_rows += usize::from(is_rows && name != "looked up by nothing");
                    sums.extend(reduction.sum(given));
                    if is_rows {
                        let ops = [OPS[1], OPS[2]].into_iter();
                        let other = |ops| reduction.clone().cross_device_ops(ops).sum(given);
                        others.push((sums.len() - 1, ops.flat_map(other).collect::<Vec<_>>()));
                    }
                }
            }
        }
        let count = sums.len();
        sums.extend(others.iter().flat_map(|(_, sums)| sums.clone()));
        let program = finish(&graph, &sums);
        // The other ways have none.
        let gathers = program
            .nodes
            .iter()
            .filter(|node| matches!(node.op, Op::AllGather { .. }));
        assert_eq!(gathers.count(), 2 * expected_rows);
        let lists: Vec<Vec<HostTensor>> = (0..replicas).map(looked_up).collect();
        let found = &run(&program, &lists)[0];
        check_tables(&found[..count], &lists);
        for ((native, _), others) in others.iter().zip(found[count..].chunks(2)) {
            for other in others {
                assert_eq!(found[*native].to_f64(), other.to_f64());
            }
        }
    }
}

/// The sums of each use by each wire, as rows and as wholes: near the whole that nothing was narrowed of; of what is just
/// looked up, near the host's.
fn check_tables(found: &[HostTensor], lists: &[Vec<HostTensor>]) {
    for (of_use, (name, ..)) in found.chunks(6).zip(USES) {
        let whole = of_use[1].to_f64();
        for (way, sum) in of_use.iter().enumerate() {
            let bound = tolerance(DType::F32, WIRES[way / 2]) * 40.0;
            for (element, (got, want)) in sum.to_f64().iter().zip(&whole).enumerate() {
                assert!(
                    (got - want).abs() <= bound * (1.0 + want.abs()),
                    "{name}, way {way} at {element}: {got}, not {want}"
                );
                let stays = *want != 0.0 || *got == 0.0;
                assert!(stays, "{name}, way {way}: {element} is touched");
            }
        }
    }
    let mut sum = [0.0; ROWS * WIDTH];
    for list in lists {
        let (ids, by) = (list[1].to_f64(), list[2].to_f64());
        for (i, by) in by.iter().enumerate() {
            sum[ids[i / WIDTH].clamp(0.0, 59.0) as usize * WIDTH + i % WIDTH] += by;
        }
    }
    for (got, want) in found[0].to_f64().iter().zip(sum) {
        assert!((got - want).abs() <= 1e-5, "{got}, not {want}");
    }
    assert!(found[5 * 6].to_f64().iter().all(|&x| x == 0.0));
}

#[test]
fn means_of_small_tensors_take_one_exchange() {
    let graph = Graph::with_replicas(3);
    let a = graph.parameter("a", Shape::f32([2]));
    let b = graph.parameter("b", Shape::f32([]));
    let rows = graph.parameter("rows", Shape::new(DType::I32, []));
    let values = [a, b];
    let reduction = Reduction::new();
    let mut means = reduction.mean_of(&values, Some(&rows.convert(DType::F32)));
    means.extend(reduction.mean_of(&values, None));
    let program = finish(&graph, &means);
    let sums = program
        .nodes
        .iter()
        .filter(|node| node.op.name() == "all_reduce");
    assert_eq!(sums.count(), 2);
    let list = |a: [f32; 2], b: f32, rows: i32| {
        let a = HostTensor::new([2], &a);
        vec![a, HostTensor::scalar(b), HostTensor::scalar(rows)]
    };
    let lists = [
        list([1.0, 2.0], 4.0, 3),
        list([5.0, 6.0], 8.0, 1),
        list([f32::NAN, 0.0], 3.0, 0),
    ];
    let found = run(&program, &lists).swap_remove(0);
    assert_eq!(found[0].to_f64(), [2.0, 3.0]);
    assert_eq!(found[1].to_f64(), [5.0]);
    assert_eq!(found[3].to_f64(), [5.0]);
    assert!(found[2].to_f64()[0].is_nan());
    // A step without an example changes no statistics.
    let nothing = [(); 3].map(|()| list([1.0, 2.0], 4.0, 0));
    let found = run(&program, &nothing).swap_remove(0);
    assert_eq!(found[0].to_f64(), [1.0, 2.0]);
    assert_eq!(found[1].to_f64(), [4.0]);
}

/// 16 bits hold neither the sums nor all numbers of examples.
#[test]
fn weighted_means_of_16_bits_are_rounded_once() {
    let graph = Graph::with_replicas(2);
    let half = graph.parameter("half", Shape::new(DType::F16, [2]));
    let brain = graph.parameter("brain", Shape::new(DType::Bf16, []));
    let rows = graph.parameter("rows", Shape::f32([]));
    let means = Reduction::new().mean_of(&[half, brain], Some(&rows));
    let program = finish(&graph, &means);
    let list = |half: [f32; 2], brain: f32, rows: f32| {
        let half = HostTensor::new([2], &half).convert(DType::F16);
        let brain = HostTensor::scalar(brain).convert(DType::Bf16);
        vec![half, brain, HostTensor::scalar(rows)]
    };
    let lists = [
        list([1000.0, 40_000.0], 256.0, 259.0),
        list([2000.0, 65_504.0], 0.0, 1.0),
    ];
    let found = run(&program, &lists).swap_remove(0);
    let mean = |a: f64, b: f64| (a * 259.0 + b) / 260.0;
    let expected = [mean(1000.0, 2000.0), mean(40_000.0, 65_504.0)];
    let rounded = HostTensor::new([2], &expected.map(|x| x as f32)).convert(DType::F16);
    assert_eq!(found[0], rounded);
    assert_eq!(found[1].to_f64(), [255.0]);
}

#[test]
fn integers_that_differ_are_agreed_to_be_the_largest() {
    let graph = Graph::with_replicas(3);
    let count = graph.parameter("count", Shape::new(DType::I32, [2]));
    let mean = graph.parameter("mean", Shape::f32([]));
    let agreed = Reduction::new().agreed(&[count, mean], None);
    let program = finish(&graph, &agreed);
    let list =
        |count: [i32; 2], mean: f32| vec![HostTensor::new([2], &count), HostTensor::scalar(mean)];
    let lists = [list([1, 9], 1.0), list([5, -2], 2.0), list([3, 4], 6.0)];
    for found in run(&program, &lists) {
        assert_eq!(found[0].to_f64(), [5.0, 9.0]);
        assert_eq!(found[1].to_f64(), [3.0]);
    }
}

#[test]
fn settings_are_read_with_errors_that_name_them() {
    let read = |fields| Reduction::from_config(&fields);
    assert_eq!(read(json!({})).unwrap(), Reduction::default());
    let chosen = Reduction::new()
        .cross_device_ops(CrossDeviceOps::HierarchicalCopyAllReduce)
        .bytes_per_pack(0)
        .wire(WireFormat::Bf16)
        .sparse(SparseGradients::Never);
    assert_eq!(read(chosen.config()).unwrap(), chosen);
    let nccl = read(json!({"cross_device_ops": "NcclAllReduce", "wire": "float16"})).unwrap();
    assert_eq!(nccl, Reduction::new().wire(WireFormat::F16));
    for (fields, expected) in [
        (
            json!({"bytes_per_pack": -1}),
            "reduction: `bytes_per_pack` must be a whole number of at least 0, got -1",
        ),
        (
            json!({"cross_device_ops": "Ring"}),
            "reduction: `cross_device_ops` must be AllReduce, HierarchicalCopyAllReduce",
        ),
        (
            json!({"wire": "int8"}),
            "reduction: `wire` must be same, bf16, f16",
        ),
        (json!({"packs": 1}), "reduction: unknown field `packs`"),
    ] {
        let error = read(fields).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn it_says_what_it_does() {
    assert_eq!(Reduction::new().describe(1), "all-reduce");
    let chosen = Reduction::new()
        .cross_device_ops(OPS[2])
        .wire(WireFormat::F16);
    assert_eq!(chosen.describe(1), "reduction to one device in f16");
    assert_eq!(chosen.describe(2), "all-reduce in f16");
    let graph = Graph::with_replicas(2);
    let table = graph.parameter("table", Shape::f32([1000, 8]));
    let kernel = graph.parameter("kernel", Shape::f32([8, 128]));
    let ids = graph.parameter("ids", Shape::new(DType::I32, [4]));
    let loss = table.gather(&ids, 0).matmul(&kernel).square().sum_all();
    let found = gradients(&loss, &[&table, &kernel]);
    let found: Vec<Tensor> = found.into_iter().flatten().collect();
    let report = Reduction::new().report(&found);
    assert_eq!(report, "1 gradient (4.00 KiB) in 1 pack, 1 as rows (144 B)");
}

/// What only adds would send as many rows as all replicas have.
#[test]
fn rows_are_gathered_between_processes_whoever_adds_in_one() {
    for (workers, gathers) in [(1, false), (2, true)] {
        let graph = Graph::with_workers(workers, 2);
        let table = graph.parameter("table", Shape::f32([1000, 8]));
        let ids = graph.parameter("ids", Shape::new(DType::I32, [4]));
        let loss = table.gather(&ids, 0).square().sum_all();
        let found: Vec<Tensor> = gradients(&loss, &[&table]).into_iter().flatten().collect();
        let sums = Reduction::new().cross_device_ops(OPS[2]).sum(&found);
        let program = finish(&graph, &sums);
        let mut ops = program.nodes.iter().map(|node| &node.op);
        let has_gather = ops.any(|op| matches!(op, Op::AllGather { .. }));
        assert_eq!(has_gather, gathers, "{workers} workers");
    }
}

/// 4 of 9 rows are less than all of them, and not from two replicas.
#[test]
fn rows_of_all_replicas_are_compared_with_the_whole() {
    let report = |rows| {
        let graph = Graph::with_replicas(2);
        let table = graph.parameter("table", Shape::f32([rows, 8]));
        let ids = graph.parameter("ids", Shape::new(DType::I32, [4]));
        let loss = table.gather(&ids, 0).square().sum_all();
        let found = gradients(&loss, &[&table]);
        Reduction::new().report(&found.into_iter().flatten().collect::<Vec<_>>())
    };
    assert_eq!(report(9), "1 gradient (288 B) in 1 pack");
    assert_eq!(
        report(10),
        "0 gradients (0 B) in 0 packs, 1 as rows (144 B)"
    );
}
