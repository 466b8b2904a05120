//! Every primitive, computed by the CPU plugin, against a plain f64 computation on the host.

mod support;

use phalanx_graph::op::*;
use phalanx_graph::{DType, Graph, HostTensor, Shape, Tensor};

#[test]
fn smoke() {
    let g = Graph::new();
    let x = g.parameter("x", Shape::f32([4, 3]));
    let w = g.parameter("w", Shape::f32([3, 2]));
    let key = g.parameter("key", Shape::new(DType::U32, [2]));
    let y = g.labelled("dense", || x.matmul(&w) + 1.0);
    let bits = g.random_bits(&key, &g.scalar(DType::U32, 0.0), &[2, 3]);
    let sum = y.sum_all();
    let img = g.parameter("img", Shape::f32([2, 4, 4, 3]));
    let ker = g.parameter("ker", Shape::f32([1, 1, 3, 2]));
    let conv = |x: &Tensor, k: &Tensor, pad: i64| {
        x.conv(
            k,
            ConvDims {
                input: ConvSpec::channels_last(2),
                kernel: ConvSpec::kernel(2),
                output: ConvSpec::channels_last(2),
                strides: vec![1, 1],
                padding: vec![(pad, pad); 2],
                input_dilation: vec![1, 1],
                kernel_dilation: vec![1, 1],
                feature_groups: 1,
                batch_groups: 1,
            },
        )
    };
    let c = conv(&img, &ker, 1);
    let ker3 = g.parameter("ker3", Shape::f32([3, 3, 3, 2]));
    let d = conv(&img, &ker3, 1);
    let loop_ = g.while_loop(
        &[&g.scalar(DType::I32, 0.0), &y],
        |v| v[0].less(&v[0].like(3.0)),
        |v| vec![&v[0] + 1.0, v[1].tanh()],
    );
    let (carry, ys) = g.scan(
        4,
        &[&g.full(&Shape::f32([2]), 0.0)],
        &[&y],
        &[&sum],
        |c, r, k| {
            let n = &c[0] + &r[0] + &k[0];
            (vec![n.clone()], vec![n * 2.0])
        },
    );
    let idx = g.constant(HostTensor::new([2, 2], &[0i32, 3, -1, 9]));
    let ga = x.gather(&idx, 0);
    let ga1 = x.gather(&idx, 1);
    let sc = x.scatter_add(&idx, &ga, 0);
    let outs: Vec<(&str, &Tensor)> = vec![
        ("y", &y),
        ("bits", &bits),
        ("sum", &sum),
        ("c", &c),
        ("d", &d),
        ("loop", &loop_[1]),
        ("carry", &carry[0]),
        ("ys", &ys[0]),
        ("ga", &ga),
        ("ga1", &ga1),
        ("sc", &sc),
    ];
    let erf = x.erf();
    let mp = img.reduce_window(
        ReduceOp::Max,
        &[
            WindowDim::identity(),
            WindowDim {
                size: 2,
                stride: 2,
                ..WindowDim::identity()
            },
            WindowDim {
                size: 2,
                stride: 2,
                ..WindowDim::identity()
            },
            WindowDim::identity(),
        ],
    );
    let outs = [outs, vec![("erf", &erf), ("mp", &mp)]].concat();
    let p = g.finish(&outs).unwrap();
    println!("{}", support::text(&p));
    let full = |dims: &[usize]| HostTensor::full(Shape::f32(dims.to_vec()), 0.5);
    for o in support::run(
        &p,
        &[
            full(&[4, 3]),
            full(&[3, 2]),
            HostTensor::new([2], &[0u32, 0]),
            full(&[2, 4, 4, 3]),
            full(&[1, 1, 3, 2]),
            full(&[3, 3, 3, 2]),
        ],
    ) {
        println!("{} {:?}", o.shape(), o.to_f64());
        if o.dtype() == DType::U32 {
            println!("{:x}", o.values::<u32>().unwrap()[0]);
        }
    }
}
