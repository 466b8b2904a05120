//! Programs divided among the devices of a mesh compute what one device computes.

mod four_devices;

use four_devices::engine;
use phalanx::engine::CompileRequest;
use phalanx_graph::{DType, Graph, HostTensor, Mesh, Program, Shape, Sharding, Tensor, gradients};
use phalanx_pjrt::Buffer;

type Build = fn(&Graph) -> Program;

#[test]
fn a_divided_program_computes_the_same() {
    let cases: [(&str, Build); 3] = [
        ("perceptron", perceptron),
        ("dropout and embedding", dropout_and_embedding),
        ("loop", recurrence),
    ];
    let meshes = [
        Mesh::new([("data", 1), ("model", 2)]),
        Mesh::new([("data", 1), ("model", 4)]),
        Mesh::new([("data", 2), ("model", 2)]),
        Mesh::new([("data", 4), ("model", 1)]),
    ];
    for (name, build) in cases {
        let whole = build(&Graph::new());
        let inputs = values(&whole);
        let expected = run(&whole, &inputs);
        for mesh in &meshes {
            let divided = build(&Graph::with_mesh(mesh));
            let got = run(&divided, &inputs);
            for ((expected, got), (output, _)) in expected.iter().zip(&got).zip(&whole.outputs) {
                let worst = distance(expected, got);
                assert!(worst < 1e-5, "{name} on {mesh}: {output} is off by {worst}");
            }
        }
    }
}

#[test]
fn each_device_holds_its_part() {
    let mesh = Mesh::new([("data", 2), ("model", 2)]);
    let tensor = HostTensor::new([4, 2], &(0..8).map(|i| i as f32).collect::<Vec<_>>());
    let sharding = Sharding::new([Some("data"), Some("model")]);
    let parts = engine().put_parts(&[3, 2, 1, 0], &mesh, &sharding, &tensor);
    let parts = parts.unwrap();
    let local = Shape::f32([2, 1]);
    let second = engine().get(&parts[1], &local).unwrap();
    assert_eq!(second.to_f64(), [1.0, 3.0]);
    let parts: Vec<&Buffer> = parts.iter().collect();
    let whole = engine().get_parts(&parts, &mesh, &sharding, tensor.shape());
    assert_eq!(whole.unwrap(), tensor);
}

#[test]
fn a_device_keeps_its_part_alone() {
    let big = |g: &Graph| {
        let kernel = g.parameter_sharded("kernel", Shape::f32([64, 256]), &columns());
        g.finish(&[("kernel", &(&kernel * 2.0).sharded(&columns()))])
            .unwrap()
    };
    let mesh = Mesh::new([("model", 4)]);
    let memory = |program| {
        engine()
            .memory(CompileRequest::new("part", &program))
            .unwrap()
            .arguments
    };
    assert_eq!(memory(big(&Graph::new())), 64 * 256 * 4);
    assert_eq!(memory(big(&Graph::with_mesh(&mesh))), 64 * 256);
}

#[test]
fn a_mesh_larger_than_the_machine_is_refused() {
    let program = perceptron(&Graph::with_mesh(&Mesh::new([("data", 3), ("model", 2)])));
    let error = engine()
        .compile(CompileRequest::new("step", &program))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "step is for the 6 devices of mesh data=3 model=2, but there are 4; make the mesh smaller, or divide the CPU into more devices with `EngineOptions::cpu_devices`"
    );
}

/// Numbers for the parameters that are the same each time.
fn values(program: &Program) -> Vec<HostTensor> {
    let value = |(seed, shape): (usize, &Shape)| match shape.dtype {
        DType::F32 => {
            let number = |i: usize| ((i * 7919 + seed * 104_729) % 1009) as f32 / 1009.0 - 0.5;
            let numbers: Vec<f32> = (0..shape.len()).map(number).collect();
            HostTensor::new(shape.dims.clone(), &numbers)
        }
        DType::I32 => {
            let numbers: Vec<i32> = (0..shape.len()).map(|i| (i * 5 % 12) as i32).collect();
            HostTensor::new(shape.dims.clone(), &numbers)
        }
        _ => HostTensor::new(shape.dims.clone(), &vec![7u32; shape.len()]),
    };
    let shapes = program.parameters.iter().map(|parameter| &parameter.shape);
    shapes.enumerate().map(value).collect()
}

/// Whole results of a program on whole inputs.
fn run(program: &Program, inputs: &[HostTensor]) -> Vec<HostTensor> {
    let compiled = engine()
        .compile(CompileRequest::new("test", program))
        .unwrap();
    let mesh = program.mesh.clone().unwrap_or(Mesh::new([("one", 1)]));
    let devices: Vec<usize> = (0..mesh.size()).collect();
    let put = |(input, parameter): (&HostTensor, &phalanx_graph::Parameter)| {
        let parts = engine().put_parts(&devices, &mesh, &parameter.sharding(), input);
        parts.unwrap()
    };
    let inputs: Vec<Vec<Buffer>> = inputs.iter().zip(&program.parameters).map(put).collect();
    let of = |device: usize| inputs.iter().map(move |parts| &parts[device]).collect();
    let lists: Vec<Vec<&Buffer>> = devices.iter().map(|&device| of(device)).collect();
    let lists: Vec<&[&Buffer]> = lists.iter().map(Vec::as_slice).collect();
    let (outputs, _) = compiled.run(&lists).unwrap();
    let get = |(index, (_, value)): (usize, &(String, phalanx_graph::Value))| {
        let parts: Vec<&Buffer> = outputs.iter().map(|outputs| &outputs[index]).collect();
        let sharding = &program.output_shardings[index];
        let shape = program.shape(*value);
        engine().get_parts(&parts, &mesh, sharding, shape).unwrap()
    };
    program.outputs.iter().enumerate().map(get).collect()
}

/// The largest difference, relative to the largest number.
fn distance(expected: &HostTensor, got: &HostTensor) -> f64 {
    assert_eq!(expected.shape(), got.shape());
    let (expected, got) = (expected.to_f64(), got.to_f64());
    let largest = expected.iter().fold(1e-3, |most: f64, x| most.max(x.abs()));
    let differences = expected.iter().zip(&got).map(|(a, b)| (a - b).abs());
    differences.fold(
        0.0,
        |worst, d| if d > worst || d.is_nan() { d } else { worst },
    ) / largest
}

fn rows() -> Sharding {
    Sharding::rows("data", 2)
}

fn columns() -> Sharding {
    Sharding::new([None, Some("model")])
}

fn inner() -> Sharding {
    Sharding::rows("model", 2)
}

fn with_updates(g: &Graph, loss: &Tensor, kernels: &[(&Tensor, Sharding)]) -> Program {
    let wrt: Vec<&Tensor> = kernels.iter().map(|(kernel, _)| *kernel).collect();
    let slopes = gradients(loss, &wrt);
    let next: Vec<Tensor> = (kernels.iter().zip(slopes))
        .map(|((kernel, sharding), slope)| (*kernel - slope.unwrap() * 0.1).sharded(sharding))
        .collect();
    let mut outputs: Vec<(&str, &Tensor)> = next.iter().map(|next| ("kernel", next)).collect();
    outputs.push(("loss", loss));
    g.finish(&outputs).unwrap()
}

fn perceptron(g: &Graph) -> Program {
    let x = g.parameter_sharded("x", Shape::f32([12, 5]), &rows());
    let kernel = g.parameter_sharded("kernel", Shape::f32([5, 8]), &columns());
    let out = g.parameter_sharded("out", Shape::f32([8, 3]), &inner());
    let loss = x.matmul(&kernel).tanh().matmul(&out).square().mean_all();
    with_updates(g, &loss, &[(&kernel, columns()), (&out, inner())])
}

fn dropout_and_embedding(g: &Graph) -> Program {
    let x = g.parameter_sharded(
        "x",
        Shape::new(DType::I32, [12]),
        &Sharding::rows("data", 1),
    );
    let table = g.parameter_sharded("table", Shape::f32([12, 8]), &inner());
    let kernel = g.parameter_sharded("kernel", Shape::f32([8, 4]), &columns());
    let key = g.parameter("key", Shape::new(DType::U32, [2]));
    let bits = g.random_bits(&key, &g.scalar(DType::U32, 0.0), &[12, 8]);
    let kept = bits.less(&bits.like(f64::from(u32::MAX) * 0.75));
    let found = table.gather(&x, 0);
    let dropped = kept.select(&found, &found.zeros_like());
    let loss = dropped.matmul(&kernel).softmax(1).square().mean_all();
    with_updates(g, &loss, &[(&table, inner()), (&kernel, columns())])
}

fn recurrence(g: &Graph) -> Program {
    let xs = g.parameter_sharded(
        "xs",
        Shape::f32([3, 12, 5]),
        &Sharding::new([None, Some("data"), None]),
    );
    let kernel = g.parameter_sharded("kernel", Shape::f32([5, 8]), &columns());
    let again = g.parameter_sharded("again", Shape::f32([8, 8]), &columns());
    let first = g.full(&Shape::f32([12, 8]), 0.0);
    let (last, _) = g.scan(3, &[&first], &[&xs], &[&kernel, &again], |carry, x, k| {
        let next = x[0].matmul(&k[0]) + carry[0].matmul(&k[1]);
        (vec![next.tanh()], vec![])
    });
    let loss = last[0].square().mean_all();
    with_updates(g, &loss, &[(&kernel, columns()), (&again, columns())])
}
