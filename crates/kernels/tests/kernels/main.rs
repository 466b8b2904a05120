//! The kernels inside programs of the CPU plugin, against plain loops and against XLA's own operations.
//!
//! Both libraries are installed where they are missing; without a network the tests pass with a notice.

mod bf16_products;
mod choices;
mod convolutions;
mod normalisations;
mod panels;
mod points;
mod poolings;
mod reductions;
mod short_floats;
#[path = "../start/mod.rs"]
mod start;
mod tiles;
mod wrong_calls;

use std::sync::OnceLock;
use std::time::Duration;

use phalanx_kernels::{Kernels, register_reductions};
use phalanx_pjrt::{
    Buffer, Client, CompileOptions, ElementType, ExecuteOptions, bytes_of, elements_of,
};
use phalanx_testkit::assert_relatively_close;

use crate::start::start;

const LONG: Duration = Duration::from_secs(60);

/// A client whose programs may call the kernels; none where they cannot be installed.
fn client() -> Option<&'static (Client, Kernels)> {
    static CLIENT: OnceLock<Option<(Client, Kernels)>> = OnceLock::new();
    let made = CLIENT.get_or_init(|| {
        start(&[])
            .and_then(|made| Ok(register_reductions(&made.0).map(|()| made)?))
            .inspect_err(|why| phalanx_testkit::skip(format_args!("there are no kernels: {why}")))
            .ok()
    });
    made.as_ref()
}

/// Dimensions and values.
#[derive(Clone, Debug)]
struct Array {
    dims: Vec<i64>,
    values: Vec<f32>,
}

impl Array {
    fn zeros(dims: &[i64]) -> Self {
        let count = dims.iter().product::<i64>() as usize;
        Self {
            dims: dims.to_vec(),
            values: vec![0.0; count],
        }
    }

    /// Values of no pattern, small integers over 8 so that sums of any order are close.
    fn noise(dims: &[i64], seed: u32) -> Self {
        let mut array = Self::zeros(dims);
        let mut state = seed.wrapping_mul(2_654_435_761) | 1;
        for value in &mut array.values {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            *value = ((state >> 8) % 33) as f32 / 8.0 - 2.0;
        }
        array
    }

    /// Normally distributed values, whose sums round as those of real data do.
    fn gaussian(dims: &[i64], seed: u32) -> Self {
        let mut array = Self::zeros(dims);
        let mut state = u64::from(seed) | 1;
        let mut uniform = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            ((state >> 33) as f64 + 1.0) / (1u64 << 31) as f64
        };
        for value in &mut array.values {
            let (radius, turn) = (uniform(), uniform());
            let radius = (-2.0 * radius.ln()).sqrt();
            *value = (radius * (turn * std::f64::consts::TAU).cos()) as f32;
        }
        array
    }

    fn at(&self, index: [i64; 4]) -> usize {
        let mut place = 0;
        for (dim, at) in self.dims.iter().zip(index) {
            assert!((0..*dim).contains(&at));
            place = place * dim + at;
        }
        place as usize
    }

    fn kind(&self) -> String {
        kind(&self.dims, "f32")
    }
}

fn kind(dims: &[i64], element: &str) -> String {
    let dims: Vec<String> = dims.iter().map(ToString::to_string).collect();
    format!("tensor<{}x{element}>", dims.join("x"))
}

/// Runs the body of a function of `%0`, `%1`, ... that ends in `return`, and gives its results, all f32.
fn run(
    client: &Client,
    arguments: &[&Array],
    results: &[Vec<i64>],
    body: &str,
) -> Result<Vec<Vec<f32>>, String> {
    let parameters: Vec<String> = arguments
        .iter()
        .enumerate()
        .map(|(index, array)| format!("%a{index}: {}", array.kind()))
        .collect();
    let kinds: Vec<String> = results.iter().map(|dims| kind(dims, "f32")).collect();
    let code = format!(
        "func.func public @main({}) -> ({}) {{\n{body}\n}}",
        parameters.join(", "),
        kinds.join(", ")
    );
    let program = client
        .compile(&code, &CompileOptions::default())
        .map_err(|error| format!("{error}\n{code}"))?;
    let buffers: Vec<Buffer> = arguments
        .iter()
        .map(|array| {
            client
                .buffer(0, ElementType::F32, &array.dims, bytes_of(&array.values))
                .unwrap()
        })
        .collect();
    let buffers: Vec<&Buffer> = buffers.iter().collect();
    let mut execution = program
        .execute(&[&buffers], &ExecuteOptions::default())
        .map_err(|error| error.to_string())?;
    let outputs = execution.outputs.remove(0);
    let bytes = outputs
        .iter()
        .map(|output| output.to_host(LONG).map(|bytes| elements_of(&bytes)));
    bytes
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())
}

/// Fails where a number is further from the expected one than the rounding of sums: a share of the largest, or of 1.
fn assert_close(name: &str, found: &[f32], expected: &[f32]) {
    let largest = expected.iter().map(|value| f64::from(value.abs()));
    let scale = largest.fold(1.0, f64::max);
    assert_relatively_close(name, found, expected, 2e-5, scale);
}

/// A convolution of a square or other image.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    batch: i64,
    image: [i64; 2],
    channels: [i64; 2],
    kernel: [i64; 2],
    strides: [i64; 2],
    dilation: [i64; 2],
    low: [i64; 2],
    high: [i64; 2],
    groups: i64,
}

const PLAIN: Case = Case {
    name: "3x3",
    batch: 2,
    image: [8, 8],
    channels: [8, 16],
    kernel: [3, 3],
    strides: [1, 1],
    dilation: [1, 1],
    low: [1, 1],
    high: [1, 1],
    groups: 1,
};

/// The body of a convolution's program. `$x`, `$w`, `$y`, `$b` and `$met` stand for the types of x, the kernel, y, the bias and what the
/// kernel meets of x.
const BODY: &str = "\
%bias = stablehlo.iota dim = 0 : $b
$slice\
%y = stablehlo.custom_call @phalanx.conv(%a0, %a1) {api_version = 4 : i32, backend_config = {$config}} : ($x, $w) -> $y
%dx = stablehlo.custom_call @phalanx.conv_input_gradient(%a2, %a1) {api_version = 4 : i32, backend_config = {$config}} : ($y, $w) -> $x
%dw = stablehlo.custom_call @phalanx.conv_kernel_gradient(%met, %a2) {api_version = 4 : i32, backend_config = {$met_config}} : ($met, $y) -> $w
%biased = stablehlo.custom_call @phalanx.conv(%a0, %a1, %bias) {api_version = 4 : i32, backend_config = {$config}} : ($x, $w, $b) -> $y
%rectified = stablehlo.custom_call @phalanx.conv(%a0, %a1, %bias) {api_version = 4 : i32, backend_config = {$config, relu = true, ceiling = 0.0 : f32}} : ($x, $w, $b) -> $y
%clipped = stablehlo.custom_call @phalanx.conv(%a0, %a1, %bias) {api_version = 4 : i32, backend_config = {$config, relu = true, ceiling = 3.0 : f32}} : ($x, $w, $b) -> $y
%selected = stablehlo.custom_call @phalanx.conv_input_gradient(%a2, %a1, %a0) {api_version = 4 : i32, backend_config = {$config}} : ($y, $w, $x) -> $x
%own = stablehlo.convolution(%a0, %a1) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {$window} {batch_group_count = 1 : i64, feature_group_count = $groups : i64} : ($x, $w) -> $y
return %y, %dx, %dw, %own, %biased, %rectified, %clipped, %selected : $y, $x, $w, $y, $y, $y, $y, $x";

impl Case {
    fn x_dims(&self) -> Vec<i64> {
        vec![self.batch, self.image[0], self.image[1], self.channels[0]]
    }

    fn kernel_dims(&self) -> Vec<i64> {
        vec![
            self.kernel[0],
            self.kernel[1],
            self.channels[0] / self.groups,
            self.channels[1],
        ]
    }

    fn out(&self, side: usize) -> i64 {
        let reach = (self.kernel[side] - 1) * self.dilation[side] + 1;
        (self.image[side] + self.low[side] + self.high[side] - reach) / self.strides[side] + 1
    }

    fn y_dims(&self) -> Vec<i64> {
        vec![self.batch, self.out(0), self.out(1), self.channels[1]]
    }

    /// Calls `each` with the elements of x, the kernel and y that meet in one product.
    fn products(&self, mut each: impl FnMut([i64; 4], [i64; 4], [i64; 4])) {
        let inputs = self.channels[0] / self.groups;
        let outputs = self.channels[1] / self.groups;
        let y = self.y_dims();
        for (b, oy, ox, o) in product([y[0], y[1], y[2], y[3]]) {
            for (ky, kx, i, _) in product([self.kernel[0], self.kernel[1], inputs, 1]) {
                let iy = oy * self.strides[0] + ky * self.dilation[0] - self.low[0];
                let ix = ox * self.strides[1] + kx * self.dilation[1] - self.low[1];
                if (0..self.image[0]).contains(&iy) && (0..self.image[1]).contains(&ix) {
                    let channel = o / outputs * inputs + i;
                    each([b, iy, ix, channel], [ky, kx, i, o], [b, oy, ox, o]);
                }
            }
        }
    }

    fn attributes(&self) -> String {
        let pair = |name: &str, values: [i64; 2]| {
            format!("{name} = array<i64: {}, {}>", values[0], values[1])
        };
        [
            pair("strides", self.strides),
            pair("dilation", self.dilation),
            pair("padding_low", self.low),
            pair("padding_high", self.high),
            format!("groups = {} : i64", self.groups),
        ]
        .join(", ")
    }

    /// The three calls, with what may follow them, and XLA's own forward convolution, of x, kernel and dy; the input gradient is
    /// selected by x.
    fn body(&self) -> String {
        self.body_of_one_of(1)
    }

    /// The same, as one of so many replicas that compute at once.
    fn body_of_one_of(&self, replicas: usize) -> String {
        let config = format!("{}, replicas = {replicas} : i64", self.attributes());
        let (met, met_kind, met_config) = self.met(&config);
        let window = format!(
            "stride = {:?}, pad = [[{}, {}], [{}, {}]], rhs_dilate = {:?}",
            self.strides, self.low[0], self.high[0], self.low[1], self.high[1], self.dilation,
        );
        let values = [
            ("$slice", met),
            ("$met_config", met_config),
            ("$met", met_kind),
            ("$config", config),
            ("$window", window),
            ("$groups", self.groups.to_string()),
            ("$x", kind(&self.x_dims(), "f32")),
            ("$w", kind(&self.kernel_dims(), "f32")),
            ("$y", kind(&self.y_dims(), "f32")),
            ("$b", kind(&self.kernel_dims()[3..], "f32")),
        ];
        let fill = |body: String, (name, value): &(&str, String)| body.replace(name, value);
        values.iter().fold(BODY.to_owned(), fill)
    }

    /// The elements of x that the kernel meets, and the attributes of a call with them: with a kernel of one place and strides these
    /// are a slice, which the kernel gradient's caller takes.
    fn met(&self, config: &str) -> (String, String, String) {
        let x = kind(&self.x_dims(), "f32");
        if self.kernel != [1, 1] || self.strides == [1, 1] || self.low != [0, 0] {
            return (
                format!("%met = stablehlo.reshape %a0 : ({x}) -> {x}\n"),
                x,
                config.into(),
            );
        }
        let (y, [b, h, w, c]) = (
            self.y_dims(),
            [self.batch, self.image[0], self.image[1], self.channels[0]],
        );
        let met = kind(&[b, y[1], y[2], c], "f32");
        let [sh, sw] = self.strides;
        let slice = format!(
            "%met = stablehlo.slice %a0 [0:{b}, 0:{h}:{sh}, 0:{w}:{sw}, 0:{c}] : ({x}) -> {met}\n"
        );
        let strides = format!("strides = array<i64: {sh}, {sw}>");
        (
            slice,
            met,
            config.replace(&strides, "strides = array<i64: 1, 1>"),
        )
    }

    /// Dimensions of the body's results.
    fn results(&self) -> [Vec<i64>; 8] {
        let (x, w, y) = (self.x_dims(), self.kernel_dims(), self.y_dims());
        [&y, &x, &w, &y, &y, &y, &y, &x].map(Clone::clone)
    }
}

fn product(dims: [i64; 4]) -> impl Iterator<Item = (i64, i64, i64, i64)> {
    let [a, b, c, d] = dims;
    (0..a).flat_map(move |i| {
        (0..b).flat_map(move |j| (0..c).flat_map(move |k| (0..d).map(move |l| (i, j, k, l))))
    })
}
