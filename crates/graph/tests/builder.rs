//! Building never panics: whatever is asked for becomes a graph or a [`GraphError`].

mod support;

use phalanx_graph::op::{ConvDims, ConvSpec, DotDims, PadDim, ReduceOp, SliceDim, Via, WindowDim};
use phalanx_graph::{
    DType, Graph, GraphError, HostTensor, Lowering, Platform, Program, Shape, Tensor, gradients,
};
use phalanx_pjrt::CompileOptions;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

/// A supply of small numbers that decide everything.
struct Picks<'a> {
    bytes: &'a [u8],
    next: usize,
}

impl Picks<'_> {
    fn below(&mut self, count: usize) -> usize {
        let byte = self.bytes[self.next % self.bytes.len()];
        self.next += 1;
        (usize::from(byte) + self.next / self.bytes.len()) % count
    }

    fn of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    /// Mostly small.
    fn size(&mut self) -> usize {
        const HUGE: [usize; 5] = [1 << 31, 1 << 33, 1 << 62, i64::MAX as usize, usize::MAX];
        if self.below(25) == 0 {
            self.of(&HUGE)
        } else {
            self.of(&[0, 1, 2, 2, 3])
        }
    }

    fn edge(&mut self) -> i64 {
        const HUGE: [i64; 4] = [i64::MIN, i64::MAX, -(1 << 40), 1 << 40];
        if self.below(25) == 0 {
            self.of(&HUGE)
        } else {
            self.of(&[-2, -1, 0, 0, 0, 1, 2])
        }
    }

    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let count = self.below(5);
        (0..count).map(|_| item(self)).collect()
    }

    /// As many as the tensor has dims, or sometimes not.
    fn per_dim<T>(&mut self, x: &Tensor, mut item: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let count = if self.below(12) == 0 {
            self.below(6)
        } else {
            x.rank()
        };
        (0..count).map(|_| item(self)).collect()
    }

    fn sizes(&mut self) -> Vec<usize> {
        self.list(Self::size)
    }

    fn dim(&mut self) -> usize {
        if self.below(20) == 0 {
            usize::MAX
        } else {
            self.below(4)
        }
    }

    fn dims(&mut self) -> Vec<usize> {
        self.list(Self::dim)
    }

    fn dtype(&mut self) -> DType {
        let any = self.of(&DType::ALL);
        self.of(&[DType::F32, DType::F32, DType::I32, any])
    }

    fn kind(&mut self) -> ReduceOp {
        self.of(&[
            ReduceOp::Sum,
            ReduceOp::Prod,
            ReduceOp::Max,
            ReduceOp::Min,
            ReduceOp::And,
            ReduceOp::Or,
        ])
    }

    fn number(&mut self) -> f64 {
        self.of(&[0.0, -0.0, 1.0, -3.5, 1e300, f64::NAN, f64::INFINITY])
    }

    fn tensor<'t>(&mut self, values: &'t [Tensor]) -> &'t Tensor {
        &values[self.below(values.len())]
    }

    fn layout(&mut self, spatial: usize, usual: ConvSpec) -> ConvSpec {
        if self.below(8) > 0 {
            return usual;
        }
        let place = |p: &mut Self| p.below(spatial + 3);
        ConvSpec {
            batch: place(self),
            feature: place(self),
            spatial: (0..spatial).map(|_| place(self)).collect(),
        }
    }

    fn conv(&mut self, rank: usize) -> ConvDims {
        let spatial = if self.below(10) == 0 {
            self.below(4)
        } else {
            rank.saturating_sub(2)
        };
        let small = |p: &mut Self| {
            if p.below(30) == 0 {
                p.size()
            } else {
                1 + p.below(2)
            }
        };
        let mut steps = || {
            let count = if self.below(20) == 0 {
                self.below(4)
            } else {
                spatial
            };
            (0..count).map(|_| small(self)).collect::<Vec<usize>>()
        };
        let (strides, input_dilation, kernel_dilation) = (steps(), steps(), steps());
        ConvDims {
            input: self.layout(spatial, ConvSpec::channels_last(spatial)),
            kernel: self.layout(spatial, ConvSpec::kernel(spatial)),
            output: self.layout(spatial, ConvSpec::channels_last(spatial)),
            strides,
            padding: (0..spatial).map(|_| (self.edge(), self.edge())).collect(),
            input_dilation,
            kernel_dilation,
            feature_groups: small(self),
            batch_groups: if self.below(4) == 0 { small(self) } else { 1 },
        }
    }
}

/// One builder call; the results join the values that later calls use.
fn call(g: &Graph, p: &mut Picks, values: &[Tensor], foreign: &Tensor) -> Vec<Tensor> {
    let x = p.tensor(values);
    let y = if p.below(60) == 0 {
        foreign
    } else {
        p.tensor(values)
    };
    match p.below(49) {
        number @ ..15 => vec![elementwise(number, p, x, y)],
        number @ 15..28 => vec![rearranged(number, p, x, y)],
        number @ 28..41 => vec![combined(number, p, x, y)],
        41 => {
            let key = g.constant(HostTensor::new([2], &[1u32, 2]));
            vec![g.random_bits(&key, &g.scalar(DType::U32, p.number()), &p.sizes())]
        }
        42 => vec![g.iota(Shape::new(p.dtype(), p.sizes()), p.dim())],
        43 => scan(g, p, [x, y], foreign),
        44 => while_loop(g, p, [x, y]),
        46 => case(g, p, [x, y], foreign),
        45 => {
            let via = [Via::Native, Via::OneDevice, Via::Hierarchical][p.below(3)];
            g.all_reduce(&[x, y], p.kind(), via)
        }
        47 => vec![
            x.all_gather(p.dim())
                .reduce_scatter(p.dim())
                .all_to_all(p.dim(), p.dim()),
        ],
        _ => vec![x.collective_permute(&p.list(|p| (p.below(3), p.below(3))))],
    }
}

fn elementwise(number: usize, p: &mut Picks, x: &Tensor, y: &Tensor) -> Tensor {
    match number {
        0 => x + y,
        1 => x / y,
        2 => x.pow(y),
        3 => x.and(y),
        4 => x.shift_left(y),
        5 => x.maximum(y),
        6 => x.less(y),
        7 => x.equal(y).select(x, y),
        8 => x.select(y, x),
        9 => x.exp().log1p(),
        10 => x.not(),
        11 => x.is_finite(),
        12 => -x.abs().sign(),
        13 => x.convert(p.dtype()),
        _ => x.bitcast(p.dtype()),
    }
}

fn rearranged(number: usize, p: &mut Picks, x: &Tensor, y: &Tensor) -> Tensor {
    let g = x.graph();
    match number {
        15 => x.reshape(&p.sizes()),
        16 => x.reshape(&[x.shape().len()]),
        17 => x.transpose(&p.dims()),
        18 => x.transpose(&(0..x.rank()).rev().collect::<Vec<_>>()),
        19 => x.broadcast_to(&p.sizes()),
        20 => x.broadcast_in(&p.sizes(), &p.dims()),
        21 => x.reverse(&p.dims()),
        22 => {
            let pads = p.per_dim(x, |p| PadDim {
                low: p.edge(),
                high: p.edge(),
                interior: p.size(),
            });
            x.pad(&pads, p.number())
        }
        23 => x.slice(&p.per_dim(x, |p| SliceDim {
            start: p.size(),
            limit: p.size(),
            stride: p.size(),
        })),
        24 => x.slice_dim(p.dim(), p.size(), p.size()),
        25 => {
            let sizes = p.per_dim(x, Picks::size);
            let starts: Vec<Tensor> = p.per_dim(x, |p| g.scalar(DType::I32, p.number()));
            x.dynamic_slice(&starts.iter().collect::<Vec<_>>(), &sizes)
        }
        26 => {
            let starts: Vec<Tensor> = p.per_dim(x, |p| g.scalar(DType::I32, p.number()));
            x.dynamic_update_slice(y, &starts.iter().collect::<Vec<_>>())
        }
        _ => Tensor::concat(&[x, y, x], p.dim()),
    }
}

/// Gathers, products and reductions.
fn combined(number: usize, p: &mut Picks, x: &Tensor, y: &Tensor) -> Tensor {
    match number {
        28 => x.gather(y, p.dim()),
        29 => x.gather(&y.convert(DType::I32), p.dim()),
        30 => {
            let (at, dim) = (y.convert(DType::I32), p.dim());
            x.scatter_add(&at, &x.gather(&at, dim), dim)
        }
        31 => x.one_hot(p.size(), p.dtype()),
        32 => x.matmul(y),
        33 => {
            let dims = DotDims {
                lhs_batch: p.dims(),
                rhs_batch: p.dims(),
                lhs_contract: p.dims(),
                rhs_contract: p.dims(),
                dtype: p.dtype(),
            };
            x.dot(y, dims)
        }
        34 => x.conv(y, p.conv(x.rank())),
        35 => x.reduce(p.kind(), &p.dims()),
        36 => x.mean(&p.dims()),
        37 => x.max(&[p.dim()]).keep_dims(&p.dims()),
        38 => x.argmax(p.dim()),
        39 => x.logsumexp(p.dim()) + x.log_softmax(p.dim()).sum_all(),
        _ => {
            let kind = p.kind();
            let small = |p: &mut Picks| {
                if p.below(20) == 0 {
                    p.size()
                } else {
                    1 + p.below(2)
                }
            };
            let pad = |p: &mut Picks| {
                if p.below(20) == 0 {
                    p.size()
                } else {
                    p.below(2)
                }
            };
            let window = p.per_dim(x, |p| WindowDim {
                size: small(p),
                stride: small(p),
                dilation: small(p),
                low: pad(p),
                high: pad(p),
            });
            x.reduce_window(kind, &window)
        }
    }
}

fn scan(g: &Graph, p: &mut Picks, [x, y]: [&Tensor; 2], foreign: &Tensor) -> Vec<Tensor> {
    let (length, rows) = (p.size(), p.below(2));
    let (carry, ys) = g.scan(length, &[x], &[y, y][..rows], &[y], |c, r, k| {
        let next = if p.below(6) == 0 {
            call(g, p, &[c[0].clone()], foreign).swap_remove(0)
        } else {
            c[0].maximum(&c[0])
        };
        (
            vec![next],
            vec![r.first().unwrap_or(&k[0]).clone(), k[0].clone()],
        )
    });
    assert_eq!((carry.len(), ys.len()), (1, 2));
    [carry, ys].concat()
}

fn while_loop(g: &Graph, p: &mut Picks, [x, y]: [&Tensor; 2]) -> Vec<Tensor> {
    let results = g.while_loop(
        &[x, y],
        |c| c[0].sum_all().less(&c[0].like(1.0)),
        |c| match p.below(4) {
            0 => vec![c[0].clone()],
            1 => vec![c[1].clone(), c[0].clone()],
            _ => vec![c[0].clone(), &c[1] + 1.0],
        },
    );
    assert_eq!(results.len(), 2);
    results
}

fn case(g: &Graph, p: &mut Picks, [x, y]: [&Tensor; 2], foreign: &Tensor) -> Vec<Tensor> {
    let index = g.scalar([DType::I32, DType::F32][p.below(2)], 1.0);
    let given = |c: &[Tensor], number: usize| vec![c[number].clone(), c[0].clone()];
    g.case(&index, &[x, y], 1 + p.below(2), |number, c| {
        match p.below(3) {
            0 => given(c, number),
            1 => vec![call(g, p, c, foreign).swap_remove(0), c[0].clone()],
            _ => given(c, 0),
        }
    })
}

/// A graph of some calls, one per list of numbers, and its values.
fn build(start: &[u8], calls: &[&Vec<u8>]) -> (Graph, Vec<Tensor>) {
    let mut p = Picks {
        bytes: start,
        next: 0,
    };
    let g = Graph::with_replicas(1 + p.below(2));
    let foreign = Graph::new().scalar(DType::F32, 1.0);
    let mut values = vec![g.scalar(DType::F32, 2.0)];
    for index in 0..3 {
        let sizes: Vec<usize> = p.list(|p| p.of(&[0, 1, 2, 2, 3]));
        values.push(g.parameter(&format!("p{index}"), Shape::new(p.dtype(), sizes)));
    }
    for bytes in calls {
        let results = call(&g, &mut Picks { bytes, next: 0 }, &values, &foreign);
        values.extend(results);
    }
    (g, values)
}

/// The outputs of a graph with the gradient of its last value.
fn finish(g: &Graph, values: &[Tensor]) -> Result<Program, GraphError> {
    let last = values.last().unwrap();
    let loss = if last.dtype().is_float() {
        last.sum_all()
    } else {
        values[0].clone()
    };
    let found = gradients(&loss, &values[1..4].iter().collect::<Vec<_>>());
    let mut outputs: Vec<(&str, &Tensor)> = values.iter().map(|value| ("value", value)).collect();
    outputs.extend(
        found
            .iter()
            .flatten()
            .map(|gradient| ("gradient", gradient)),
    );
    g.finish(&outputs)
}

fn print(program: &Program) {
    for program in [&program.simplified(), program] {
        let _ = (program.dump(), program.cost());
        for platform in [Platform::Cpu, Platform::Cuda] {
            let _ = program.to_stablehlo(&Lowering::new(platform, "odd"));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: std::env::var("PHALANX_FUZZ_CASES").map_or(60, |c| c.parse().unwrap()), failure_persistence: None, ..ProptestConfig::default() })]

    /// A call that is refused is left out, so that graphs grow; how many are taken shows that the test reaches deep.
    #[test]
    fn nothing_panics(start in prop::collection::vec(any::<u8>(), 30), calls in prop::collection::vec(prop::collection::vec(any::<u8>(), 40), 40)) {
        let mut taken: Vec<&Vec<u8>> = Vec::new();
        for bytes in &calls {
            taken.push(bytes);
            let (g, values) = build(&start, &taken);
            let refused = g.error().is_some();
            match finish(&g, &values) {
                Ok(program) => print(&program),
                Err(error) => prop_assert!(error.to_string().contains(".rs:"), "{error}"),
            }
            if refused {
                taken.pop();
            }
        }
        prop_assert!(taken.len() > 2, "{} of {} calls taken", taken.len(), calls.len());
    }
}

/// Whether a run would be quick.
fn is_small(program: &Program) -> bool {
    let shapes = program.nodes.iter().flat_map(|node| &node.shapes);
    shapes.map(Shape::len).all(|len| len < 10_000)
}

#[test]
fn what_is_taken_compiles() {
    let mut runner = TestRunner::deterministic();
    let bytes = prop::collection::vec(any::<u8>(), 40);
    let lists = prop::collection::vec(bytes.clone(), 30);
    let cases: usize = std::env::var("PHALANX_FUZZ_CASES").map_or(8, |c| c.parse().unwrap());
    for case in 0..cases {
        let start = bytes.new_tree(&mut runner).unwrap().current();
        let calls = lists.new_tree(&mut runner).unwrap().current();
        let mut taken: Vec<&Vec<u8>> = Vec::new();
        for bytes in &calls {
            taken.push(bytes);
            let (g, values) = build(&start, &taken);
            if finish(&g, &values).is_ok_and(|program| is_small(&program)) {
                continue;
            }
            taken.pop();
        }
        let (g, values) = build(&start, &taken);
        let program = finish(&g, &values).unwrap();
        for program in [program.simplified(), program] {
            let text = support::text(&program);
            let options = CompileOptions {
                replicas: program.replicas,
                ..CompileOptions::default()
            };
            if let Err(error) = support::client().compile(&text, &options) {
                panic!("case {case}: {error}\n{}\n{text}", program.dump());
            }
        }
    }
}
