//! Programs divided by how often their parts run: together they compute what the whole does.

use phalanx_graph::op::{ConvDims, ConvSpec};
use phalanx_graph::{Graph, KernelSupport, Op, Prepared, Program, Shape, Tensor};
use phalanx_testkit::{Array, Interpreter, Random};

const KERNELS: KernelSupport = KernelSupport { tiles: false };
const VARIABLES: usize = 6;

/// A convolution of x, without and with a bias, and mean, variance, gamma and beta of its channels.
struct Normalized {
    x: Tensor,
    bare: Tensor,
    biased: Tensor,
    vectors: [Tensor; 4],
}

impl Normalized {
    fn new(g: &Graph, groups: usize) -> Self {
        let kernel = g.parameter("kernel", Shape::f32([3, 3, 16 / groups, 16]));
        let bias = g.parameter("bias", Shape::f32([16]));
        let vector = |name| g.parameter(name, Shape::f32([16]));
        let vectors = ["mean", "variance", "gamma", "beta"].map(vector);
        let x = g.parameter("x", Shape::f32([2, 5, 6, 16]));
        let bare = x.conv(&kernel, dims(groups));
        let biased = &bare + &bias.broadcast_in(&bare.dims(), &[3]);
        Self {
            x,
            bare,
            biased,
            vectors,
        }
    }

    fn spread(&self, vector: &Tensor) -> Tensor {
        vector.broadcast_in(&self.x.dims(), &[3])
    }

    fn normal(&self) -> Tensor {
        let [mean, variance, gamma, beta] = &self.vectors;
        let factor = (variance + 1e-3).rsqrt() * gamma;
        (&self.biased - &self.spread(mean)) * self.spread(&factor) + self.spread(beta)
    }
}

fn dims(groups: usize) -> ConvDims {
    ConvDims {
        input: ConvSpec::channels_last(2),
        kernel: ConvSpec::kernel(2),
        output: ConvSpec::channels_last(2),
        strides: vec![1, 1],
        padding: vec![(1, 1), (1, 1)],
        input_dilation: vec![1, 1],
        kernel_dilation: vec![1, 1],
        feature_groups: groups,
        batch_groups: 1,
    }
}

fn program(groups: usize, outputs: impl FnOnce(&Normalized) -> Vec<Tensor>) -> Program {
    let g = Graph::new();
    let outputs = outputs(&Normalized::new(&g, groups));
    let named: Vec<(&str, &Tensor)> = outputs.iter().map(|output| ("", output)).collect();
    g.finish(&named).unwrap()
}

/// Nearly Gaussian numbers for each parameter, of the first variance 0.
fn numbers(program: &Program) -> Vec<Array> {
    let mut random = Random::new(7);
    let mut normal = || {
        let uniform = (0..12).map(|_| random.below(1 << 20) as f64 / f64::from(1 << 20));
        uniform.sum::<f64>() - 6.0
    };
    let parameters = program.parameters.iter();
    let drawn = parameters.map(|parameter| {
        let mut values: Vec<f64> = (0..parameter.shape.len()).map(|_| normal()).collect();
        if parameter.name == "variance" {
            values.iter_mut().for_each(|value| *value = value.abs());
            values[0] = 0.0;
        }
        Array::Floats(values)
    });
    drawn.collect()
}

fn run(program: &Program, given: &[Array]) -> Vec<Array> {
    let outputs: Vec<usize> = (0..program.outputs.len()).collect();
    let found = Interpreter::new(program).run_arrays(&[given.to_vec()], &outputs);
    found.unwrap().swap_remove(0)
}

fn count(program: &Program, is: impl Fn(&Op) -> bool) -> usize {
    program.nodes.iter().filter(|node| is(&node.op)).count()
}

fn check(program: &Program, prepared: &Prepared) {
    let mut given = numbers(program);
    let once = run(&prepared.once, &given[..VARIABLES]);
    let expected = run(program, &given);
    given.extend(once);
    let found = run(&prepared.each_time, &given);
    for (found, expected) in found.iter().zip(&expected) {
        let (Array::Floats(found), Array::Floats(expected)) = (found, expected) else {
            panic!("floats were expected");
        };
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            let apart = (found - expected).abs();
            assert!(
                apart <= 1e-10 * expected.abs().max(1.0),
                "{found}, {expected}"
            );
        }
    }
}

#[test]
fn normalizations_are_folded_into_convolutions() {
    let is_multiplication = |op: &Op| op.name() == "multiply";
    for groups in [1, 2, 16] {
        let program = program(groups, |n| {
            let normal = n.normal();
            vec![normal.maximum(&normal.like(0.0))]
        });
        let prepared = program.prepared(VARIABLES, KERNELS).unwrap();
        assert!(count(&program, is_multiplication) > 0);
        assert_eq!(count(&prepared.each_time, is_multiplication), 0);
        assert_eq!(prepared.each_time.parameters.len(), VARIABLES + 3);
        check(&program, &prepared);
    }
}

#[test]
fn a_residual_and_parts_of_a_normalization_are_kept() {
    for part in 0..5 {
        let program = program(1, |n| {
            let [mean, variance, gamma, beta] = &n.vectors;
            let sum = match part {
                0 => n.normal() + &n.x,
                3 => (&n.bare - &n.spread(mean)) * n.spread(gamma) * n.spread(variance),
                4 => &n.bare * n.spread(gamma) - n.spread(mean) + n.spread(beta),
                1 => n.spread(gamma) * (&n.biased - &n.spread(mean)),
                _ => n.spread(variance) + &n.biased * n.spread(gamma),
            };
            vec![sum]
        });
        check(&program, &program.prepared(VARIABLES, KERNELS).unwrap());
    }
}

#[test]
fn what_else_is_asked_of_a_convolution_is_not_folded() {
    let returned = program(1, |n| vec![n.normal(), n.biased.clone()]);
    assert_eq!(returned.prepared(VARIABLES, KERNELS), None);
    let used = program(1, |n| vec![n.normal() + &n.biased]);
    assert_eq!(used.prepared(VARIABLES, KERNELS), None);
    let of_the_batch = program(1, |n| {
        let scale = n.x.sum(&[0, 1, 2]);
        vec![&n.biased * n.spread(&scale)]
    });
    assert_eq!(of_the_batch.prepared(VARIABLES, KERNELS), None);
    let subtracted = program(1, |n| vec![n.spread(&n.vectors[0]) - &n.biased]);
    assert_eq!(subtracted.prepared(VARIABLES, KERNELS), None);
    let plain = program(1, |n| vec![n.biased.clone()]);
    assert_eq!(plain.prepared(VARIABLES, KERNELS), None);
}

#[test]
fn kernels_of_small_batches_are_transformed_apart() {
    let tiles = KernelSupport { tiles: true };
    let calls = |program: &Program, target: &str| {
        count(
            program,
            |op| matches!(op, Op::CustomCall(call) if call.target == target),
        )
    };
    let g = Graph::new();
    let kernel = g.parameter("kernel", Shape::f32([3, 3, 16, 24]));
    let convolved = |batch: usize| {
        let x = g.parameter("x", Shape::f32([batch, 12, 12, 16]));
        x.conv(&kernel, dims(1))
    };
    let (small, large) = (convolved(28), convolved(29));
    let program = g.finish(&[("small", &small), ("large", &large)]).unwrap();
    let Prepared { once, each_time } = program.prepared(1, tiles).unwrap();
    assert_eq!(calls(&once, "phalanx.conv_points"), 1);
    assert_eq!(calls(&each_time, "phalanx.conv_points"), 0);
    assert_eq!(calls(&each_time, "phalanx.conv_by_points"), 1);
    assert_eq!(count(&each_time, |op| matches!(op, Op::Conv(_))), 1);
    assert_eq!(once.outputs.len(), 1);
    assert_eq!(
        once.shape(once.outputs[0].1),
        &Shape::f32([2 * 36 * 17 * 16])
    );
    // One that is a number of the batch has no points.
    assert_eq!(program.prepared(0, tiles), None);
}

#[test]
fn convolutions_that_tiles_do_not_compute_keep_their_kernels() {
    let tiles = KernelSupport { tiles: true };
    let prepared = |x: [usize; 4], kernel: [usize; 4], dims: ConvDims| {
        let g = Graph::new();
        let kernel = g.parameter("kernel", Shape::f32(kernel));
        let y = g.parameter("x", Shape::f32(x)).conv(&kernel, dims);
        g.finish(&[("y", &y)]).unwrap().prepared(1, tiles)
    };
    let (image, kernel) = ([2, 12, 12, 16], [3, 3, 16, 16]);
    let plain = || dims(1);
    assert!(prepared(image, kernel, plain()).is_some());
    let strided = ConvDims {
        strides: vec![2, 2],
        ..plain()
    };
    let dilated = ConvDims {
        kernel_dilation: vec![2, 2],
        ..plain()
    };
    let spread = ConvDims {
        input_dilation: vec![2, 2],
        ..plain()
    };
    let wide = ConvDims {
        padding: vec![(3, 3), (3, 3)],
        ..plain()
    };
    let cut = ConvDims {
        padding: vec![(-1, 1), (1, 1)],
        ..plain()
    };
    for dims in [strided, dilated, spread, wide, cut] {
        assert_eq!(prepared(image, kernel, dims.clone()), None, "{dims:?}");
    }
    assert_eq!(prepared(image, [3, 3, 8, 16], dims(2)), None);
    assert_eq!(prepared([2, 12, 12, 12], [3, 3, 12, 16], plain()), None);
    assert_eq!(prepared([20, 2, 2, 16], kernel, plain()), None);
    let full = ConvDims {
        padding: vec![(2, 2), (2, 2)],
        ..plain()
    };
    assert!(prepared([4, 2, 4, 16], kernel, full.clone()).is_some());
    assert_eq!(prepared([1, 0, 4, 16], kernel, full), None);
}

#[test]
fn kernels_of_one_place_and_of_few_pixels_are_packed() {
    let tiles = KernelSupport { tiles: true };
    // The elements of the panels, of the points, or none.
    let forms = |x: [usize; 4], kernel: [usize; 4], dims: ConvDims| {
        let g = Graph::new();
        let kernel = g.parameter("kernel", Shape::f32(kernel));
        let y = g.parameter("x", Shape::f32(x)).conv(&kernel, dims);
        let program = g.finish(&[("y", &y)]).unwrap();
        let Prepared { once, each_time } = program.prepared(1, tiles)?;
        let called =
            |op: &Op| matches!(op, Op::CustomCall(call) if call.target == "phalanx.conv_by_panels");
        let len = once.shape(once.outputs[0].1).dims[0];
        Some((count(&each_time, called), len))
    };
    let with = |padding: i64, stride: usize| ConvDims {
        padding: vec![(padding, padding); 2],
        strides: vec![stride; 2],
        ..dims(1)
    };
    let (points, strided) = (with(0, 1), with(0, 2));
    let large = [64, 56, 56, 24];
    assert_eq!(
        forms(large, [1, 1, 24, 40], points.clone()),
        Some((1, 48 * 24))
    );
    assert_eq!(
        forms([2, 9, 9, 16], [1, 1, 16, 16], strided.clone()),
        Some((1, 256))
    );
    assert_eq!(forms([1, 9, 9, 15], [1, 1, 15, 16], points.clone()), None);
    assert_eq!(forms([1, 9, 9, 16], [1, 1, 16, 15], points), None);
    // More than 16 MiB would be copied.
    let wide = [6, 56, 56, 1024];
    assert_eq!(forms(wide, [1, 1, 1024, 16], strided.clone()), None);
    assert!(forms([5, 56, 56, 1024], [1, 1, 1024, 16], strided).is_some());
    let kernel = [3, 3, 16, 16];
    assert_eq!(forms([1, 8, 8, 16], kernel, with(1, 1)), Some((1, 9 * 256)));
    assert_eq!(forms([4, 8, 8, 16], kernel, with(1, 2)), Some((1, 9 * 256)));
    // Of more pixels points are made.
    assert_eq!(
        forms([2, 8, 8, 16], kernel, with(1, 1)),
        Some((0, 36 * 17 * 16))
    );
    let groups = dims(2);
    assert_eq!(forms([1, 8, 8, 16], [3, 3, 8, 16], groups), None);
}
