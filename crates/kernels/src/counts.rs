//! Eight kernels of ours, each run once on one thread, for `cargo xtask check counts`: valgrind counts the instructions between
//! `counted_from_here` and `counted_to_here`. No library is loaded, so that it takes seconds.

use phalanx_pjrt::Bf16;

use crate::batch_norm::{BatchNormForward, BatchNormGradient, Mask, NO_CEILING};
use crate::convolution::{ConvolutionDesc, Direction};
use crate::epilogue::Epilogue;
use crate::gemm::{self, GemmOperand, ResultTile, RightOperand};
use crate::handlers::TensorDesc;
use crate::lstm::tests::Given;
use crate::max_pool::{MaxPool, MaxPoolForward};
use crate::microkernel::Isa;
use crate::onednn::DataType;
use crate::openmp::ThreadTeam;
use crate::reductions::sum_columns;
use crate::scratchpad::Scratchpad;
use crate::simd::has_fma;
use crate::stored::Stored;
use crate::winograd;

/// Rows of what is normalized, and their channels.
const ROWS: usize = 256;
const CHANNELS: usize = 64;
const EPSILON: f32 = 1e-3;

#[test]
fn kernels_run_between_the_marks() {
    if !has_fma() {
        return eprintln!("not run: these kernels are for processors with AVX2 and FMA");
    }
    product();
    tiles();
    normalisation();
    pooling();
    column_sums();
    recurrent();
}

/// Valgrind writes down what was counted and begins anew when it sees this function, and [`counted_to_here`].
#[inline(never)]
fn counted_from_here() {
    std::hint::black_box(0);
}

/// See [`counted_from_here`].
#[inline(never)]
fn counted_to_here() {
    std::hint::black_box(1);
}

/// Runs a kernel twice, since the first run asks what the processor has, and counts the second.
fn counted(name: &str, mut run: impl FnMut() -> f32) {
    run();
    counted_from_here();
    let found = run();
    counted_to_here();
    assert!(found.is_finite() && found != 0.0, "{name}: {found}");
    println!("counted: {name}");
}

/// Numbers between -1 and 1 without a pattern.
fn numbers(count: usize) -> Vec<f32> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn product() {
    const SIDE: usize = 192;
    let (left, right) = (numbers(SIDE * SIDE), numbers(SIDE * SIDE));
    let mut scratch = vec![0.0; gemm::scratch_len(SIDE)];
    let mut result = vec![0.0; SIDE * SIDE];
    counted("product", || {
        let left = GemmOperand::new(&left, SIDE, SIDE, true);
        let right = RightOperand::Matrix(GemmOperand::new(&right, SIDE, SIDE, false));
        let tile = ResultTile {
            rows: 0..SIDE,
            columns: 0..SIDE,
            result: result.as_mut_ptr(),
            width: SIDE,
            bias: None,
        };
        // SAFETY: the result has the elements of the whole product, and this thread alone.
        unsafe { gemm::multiply(Isa::best_available(), left, right, &tile, &mut scratch) };
        result[0]
    });
}

fn tiles() {
    const SIDE: i64 = 16;
    let channels = CHANNELS as i64;
    let array = |dims| TensorDesc {
        element: DataType::F32,
        dims,
    };
    let image = array([1, SIDE, SIDE, channels]);
    let desc = ConvolutionDesc {
        direction: Direction::Forward,
        x: image,
        kernel: array([3, 3, channels, channels]),
        y: image,
        strides: [1, 1],
        dilation: [1, 1],
        padding_low: [1, 1],
        padding_high: [1, 1],
        groups: 1,
        bias: false,
        native_bf16: false,
        chosen: None,
    };
    assert!(winograd::takes(&desc));
    let pixels = (SIDE * SIDE) as usize * CHANNELS;
    let (x, kernel) = (numbers(pixels), numbers(9 * CHANNELS * CHANNELS));
    let (mut y, mut scratch) = (vec![0.0; pixels], Scratchpad::default());
    counted("convolution in tiles", || {
        let (operands, team) = ([&x[..], &kernel[..]], ThreadTeam::alone());
        let ends = (None, Epilogue::Relu(NO_CEILING));
        winograd::run(&desc, operands, ends, &mut y, &team, &mut scratch);
        y.iter().sum()
    });
}

fn normalisation() {
    let x = numbers(ROWS * CHANNELS);
    let (gamma, beta) = (vec![1.0; CHANNELS], vec![0.1; CHANNELS]);
    let (mut y, mut dx) = (vec![0.0; x.len()], vec![0.0; x.len()]);
    let [mut mean, mut variance, mut dgamma, mut dbeta] = [(); 4].map(|()| vec![0.0; CHANNELS]);
    let mut scratch = Scratchpad::default();
    counted("batch normalisation", || {
        let job = BatchNormForward {
            x: &x,
            gamma: &gamma,
            beta: &beta,
            residual: None,
            y: &mut y,
            mean: &mut mean,
            variance: &mut variance,
            epsilon: EPSILON,
            relu: Some(NO_CEILING),
        };
        job.run(&ThreadTeam::alone(), &mut scratch);
        variance[0]
    });
    counted("gradient of batch normalisation", || {
        let job = BatchNormGradient {
            dy: &y,
            x: &x,
            mean: &mean,
            variance: &variance,
            gamma: &gamma,
            mask: Mask::Beta {
                beta: &beta,
                ceiling: NO_CEILING,
            },
            dx: &mut dx,
            dgamma: &mut dgamma,
            dbeta: &mut dbeta,
            epsilon: EPSILON,
        };
        job.run(&ThreadTeam::alone(), &mut scratch);
        dgamma[0]
    });
}

fn pooling() {
    let pool = MaxPool {
        x: [1, 32, 32, CHANNELS as i64],
        y: [1, 16, 16, CHANNELS as i64],
        window: [3, 3],
        strides: [2, 2],
        padding_low: [1, 1],
        padding_high: [0, 0],
    };
    assert_eq!(pool.check(), Ok(()));
    let x = numbers(32 * 32 * CHANNELS);
    let (mut y, mut argmax) = (vec![0.0; x.len() / 4], vec![0; x.len() / 4]);
    counted("maximum pooling", || {
        let job = MaxPoolForward {
            x: &x,
            y: &mut y,
            argmax: &mut argmax,
        };
        pool.forward(job, &ThreadTeam::alone());
        y[0]
    });
}

fn column_sums() {
    let x: Vec<Bf16> = numbers(1024 * CHANNELS)
        .into_iter()
        .map(Bf16::narrow)
        .collect();
    let mut sums = vec![0.0; CHANNELS];
    counted("column sums of bf16", || {
        sum_columns(&x, &mut sums);
        sums[0] as f32
    });
}

fn recurrent() {
    let (given, isa) = (Given::new([8, 6, CHANNELS]), Isa::best_available());
    let made = given.forward(isa, 1);
    counted("LSTM", || given.forward(isa, 1)[0][0]);
    counted("gradient of an LSTM", || {
        given.backward(isa, 1, &made, false)[0][0]
    });
}
