//! `phalanx.product` inside programs of the CPU plugin, against plain loops; on processors that have no such products the tests pass
//! with a notice.

#[path = "start/plugin.rs"]
mod plugin;

use std::sync::OnceLock;
use std::time::Duration;

use phalanx_kernels::register_matmul;
use phalanx_pjrt::{
    Bf16, Buffer, Client, CompileOptions, ElementType, ExecuteOptions, bytes_of, elements_of,
};

const LONG: Duration = Duration::from_secs(60);

fn client() -> Option<&'static Client> {
    static CLIENT: OnceLock<Option<Client>> = OnceLock::new();
    let made = CLIENT.get_or_init(|| {
        start()
            .inspect_err(|why| phalanx_testkit::skip(format_args!("there are no products: {why}")))
            .ok()
    });
    made.as_ref()
}

fn start() -> Result<Client, plugin::Failure> {
    let client = plugin::client(&[])?;
    register_matmul(&client)?;
    // A second time changes nothing.
    register_matmul(&client)?;
    Ok(client)
}

/// Rows, columns and depth; whether the operands are transposed.
#[derive(Clone, Copy, Debug)]
struct Case {
    sizes: [usize; 3],
    left: bool,
    right: bool,
}

impl Case {
    fn dims(self) -> [[usize; 2]; 3] {
        let [rows, columns, depth] = self.sizes;
        let turned = |turned: bool, [a, b]: [usize; 2]| if turned { [b, a] } else { [a, b] };
        [
            turned(self.left, [rows, depth]),
            turned(self.right, [depth, columns]),
            [rows, columns],
        ]
    }

    fn text(self, result: [usize; 2]) -> String {
        self.text_of(result, ["f32"; 2])
    }

    /// With these elements of operands and the result.
    fn text_of(self, result: [usize; 2], [operand, of_result]: [&str; 2]) -> String {
        let [left, right, _] = self.dims();
        let kind = |dims: [usize; 2], of: &str| format!("tensor<{}x{}x{of}>", dims[0], dims[1]);
        let [left, right] = [left, right].map(|dims| kind(dims, operand));
        let result = kind(result, of_result);
        format!(
            "func.func public @main(%a: {left}, %b: {right}) -> {result} {{
               %0 = stablehlo.custom_call @phalanx.product(%a, %b) {{api_version = 4 : i32,
                 backend_config = {{left_transposed = {}, right_transposed = {}}}}} : ({left}, {right}) -> {result}
               return %0 : {result}
             }}",
            self.left, self.right
        )
    }

    fn run(self, client: &Client, a: &[f32], b: &[f32]) -> Result<Vec<f32>, String> {
        let [.., result] = self.dims();
        self.run_text(client, &self.text(result), a, b)
    }

    fn run_text(
        self,
        client: &Client,
        text: &str,
        a: &[f32],
        b: &[f32],
    ) -> Result<Vec<f32>, String> {
        let bytes = self.run_bytes(client, text, ElementType::F32, [bytes_of(a), bytes_of(b)])?;
        Ok(elements_of(&bytes))
    }

    fn run_bytes(
        self,
        client: &Client,
        text: &str,
        element: ElementType,
        operands: [&[u8]; 2],
    ) -> Result<Vec<u8>, String> {
        let [left, right, _] = self.dims();
        let put = |dims: [usize; 2], bytes: &[u8]| -> Buffer {
            let dims = dims.map(|dim| dim as i64);
            client.buffer(0, element, &dims, bytes).unwrap()
        };
        let buffers = [put(left, operands[0]), put(right, operands[1])];
        Self::run_buffers(client, text, &buffers)
    }

    fn run_buffers(client: &Client, text: &str, buffers: &[Buffer]) -> Result<Vec<u8>, String> {
        let program = client.compile(text, &CompileOptions::default());
        let program = program.map_err(|error| error.to_string())?;
        let buffers: Vec<&Buffer> = buffers.iter().collect();
        let mut execution = program
            .execute(&[&buffers], &ExecuteOptions::default())
            .map_err(|error| error.to_string())?;
        let bytes = execution.outputs.remove(0).remove(0).to_host(LONG);
        bytes.map_err(|error| error.to_string())
    }

    /// With a bias of the columns.
    fn run_biased(
        self,
        client: &Client,
        a: &[f32],
        b: &[f32],
        bias: &[f32],
    ) -> Result<Vec<f32>, String> {
        let [left, right, result] = self.dims();
        let kind = format!("tensor<{}xf32>", bias.len());
        let text = self.text(result);
        let text = text.replacen(") ->", &format!(", %c: {kind}) ->"), 1);
        let text = text.replace("(%a, %b)", "(%a, %b, %c)");
        let text = text.replace(") -> tensor", &format!(", {kind}) -> tensor"));
        let text = text.replacen(&format!(", {kind}) -> tensor"), ") -> tensor", 1);
        let put = |dims: &[usize], values: &[f32]| -> Buffer {
            let dims: Vec<i64> = dims.iter().map(|&dim| dim as i64).collect();
            let bytes = bytes_of(values);
            client.buffer(0, ElementType::F32, &dims, bytes).unwrap()
        };
        let buffers = [put(&left, a), put(&right, b), put(&[bias.len()], bias)];
        let bytes = Self::run_buffers(client, &text, &buffers)?;
        Ok(elements_of(&bytes))
    }

    /// With operands of bf16, which these are, and a result in f32 or rounded.
    fn run_bf16(self, client: &Client, a: &[f32], b: &[f32], rounded: bool) -> Vec<f32> {
        let narrow = |values: &[f32]| -> Vec<Bf16> {
            let short = |value: &f32| Bf16((value.to_bits() >> 16) as u16);
            values.iter().map(short).collect()
        };
        let (a, b) = (narrow(a), narrow(b));
        let of_result = if rounded { "bf16" } else { "f32" };
        let text = self.text_of(self.dims()[2], ["bf16", of_result]);
        let operands = [bytes_of(&a), bytes_of(&b)];
        let bytes = self.run_bytes(client, &text, ElementType::Bf16, operands);
        let bytes = bytes.unwrap();
        if !rounded {
            return elements_of(&bytes);
        }
        let wide = |value: Bf16| f32::from_bits(u32::from(value.0) << 16);
        elements_of(&bytes).into_iter().map(wide).collect()
    }

    /// Elements of the left row and of the right column by place.
    fn at(self, a: &[f32], b: &[f32], [row, column, k]: [usize; 3]) -> (f32, f32) {
        let [rows, columns, depth] = self.sizes;
        let left = if self.left {
            k * rows + row
        } else {
            row * depth + k
        };
        let right = if self.right {
            column * depth + k
        } else {
            k * columns + column
        };
        (a[left], b[right])
    }
}

/// Small integers, whose sums are exact in every order.
fn integers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 28) as f32 - 8.0
    };
    (0..count).map(|_| next()).collect()
}

/// Of two the even one.
fn nearest_bf16(value: f32) -> f32 {
    let bits = value.to_bits();
    f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

#[test]
fn products_are_those_of_plain_loops() {
    let Some(client) = client() else { return };
    let sizes = [
        [1, 1, 1],
        [7, 33, 5],
        [64, 64, 64],
        [130, 70, 300],
        [600, 1100, 17],
        // Threads share it.
        [600, 1100, 51],
        // Several slices are packed ahead.
        [534, 270, 260],
    ];
    for sizes in sizes {
        for layout in 0..4 {
            let case = Case {
                sizes,
                left: layout & 1 == 1,
                right: layout & 2 == 2,
            };
            let [rows, columns, depth] = sizes;
            let (a, b) = (integers(rows * depth, 3), integers(columns * depth, 7));
            let found = case.run(client, &a, &b).unwrap();
            for (index, found) in found.iter().enumerate() {
                let (row, column) = (index / columns, index % columns);
                let term = |k| {
                    let (a, b) = case.at(&a, &b, [row, column, k]);
                    a * b
                };
                let expected: f32 = (0..depth).map(term).sum();
                assert_eq!(*found, expected, "{case:?}: element {row} {column}");
            }
            let bias = integers(columns, 5);
            let biased: Vec<f32> = (0..found.len())
                .map(|index| found[index] + bias[index % columns])
                .collect();
            let sums = case.run_biased(client, &a, &b, &bias).unwrap();
            assert_eq!(sums, biased, "{case:?}");
            // These have at most 4 bits.
            assert_eq!(case.run_bf16(client, &a, &b, false), found, "{case:?}");
            let rounded: Vec<f32> = found.iter().map(|&sum| nearest_bf16(sum)).collect();
            assert_eq!(case.run_bf16(client, &a, &b, true), rounded, "{case:?}");
        }
    }
}

#[test]
fn every_run_gives_the_same_bits() {
    let Some(client) = client() else { return };
    let case = Case {
        // Threads share it.
        sizes: [300, 400, 500],
        left: true,
        right: false,
    };
    let noise = |count, seed| {
        integers(count, seed)
            .iter()
            .map(|x| x / 7.0)
            .collect::<Vec<_>>()
    };
    let (a, b) = (noise(150_000, 1), noise(200_000, 2));
    let first = case.run(client, &a, &b).unwrap();
    for _ in 0..5 {
        assert_eq!(case.run(client, &a, &b).unwrap(), first);
    }
}

#[test]
fn a_share_of_the_threads_gives_the_same_bits() {
    for sizes in [[600, 400, 150], [600, 200, 50]] {
        shares_give_the_same_bits(sizes);
    }
}

/// Threads share the larger one.
fn shares_give_the_same_bits(sizes: [usize; 3]) {
    let Some(client) = client() else { return };
    let [rows, columns, depth] = sizes;
    let case = Case {
        sizes,
        left: false,
        right: true,
    };
    let (a, b) = (integers(rows * depth, 3), integers(columns * depth, 7));
    let thirds = |values: Vec<f32>| values.iter().map(|x| x / 3.0).collect::<Vec<_>>();
    let (a, b) = (thirds(a), thirds(b));
    let text = case.text([rows, columns]);
    let shared = |replicas: i64| {
        let config = format!("replicas = {replicas} : i64, right_transposed");
        case.run_text(client, &text.replace("right_transposed", &config), &a, &b)
    };
    let whole = case.run(client, &a, &b).unwrap();
    for replicas in [1, 2, 1000] {
        assert_eq!(shared(replicas).unwrap(), whole, "{replicas} replicas");
    }
    let error = shared(0).unwrap_err();
    assert!(
        error.contains("`replicas` must be a positive integer"),
        "{error}"
    );
}

#[test]
fn infinities_and_nan_stay_in_their_row_and_column() {
    let Some(client) = client() else { return };
    let case = Case {
        sizes: [70, 80, 90],
        left: true,
        right: true,
    };
    let (mut a, mut b) = (vec![1.0; 70 * 90], vec![0.0; 80 * 90]);
    // Of row 3 and of column 5.
    a[10 * 70 + 3] = f32::INFINITY;
    b[5 * 90 + 20] = f32::NAN;
    let forms = [false, true].map(|rounded| case.run_bf16(client, &a, &b, rounded));
    for found in [case.run(client, &a, &b).unwrap()].iter().chain(&forms) {
        for (index, value) in found.iter().enumerate() {
            let touched = index / 80 == 3 || index % 80 == 5;
            assert_eq!(value.is_nan(), touched, "element {index}: {value}");
        }
    }
}

#[test]
fn nothing_to_sum_is_zero() {
    let Some(client) = client() else { return };
    let case = Case {
        sizes: [3, 4, 0],
        left: false,
        right: false,
    };
    assert_eq!(case.run(client, &[], &[]).unwrap(), [0.0; 12]);
    assert_eq!(case.run_bf16(client, &[], &[], true), [0.0; 12]);
    let bias = [1.0, 2.0, 3.0, 4.0];
    let sums = case.run_biased(client, &[], &[], &bias).unwrap();
    assert_eq!(sums, [bias, bias, bias].concat());
    let error = case.run_biased(client, &[], &[], &[1.0; 3]).unwrap_err();
    assert!(error.contains("[4]") && error.contains("[3]"), "{error}");
}

#[test]
fn a_result_of_other_sizes_is_refused() {
    let Some(client) = client() else { return };
    let case = Case {
        sizes: [4, 5, 6],
        left: false,
        right: false,
    };
    let text = case.text([5, 4]);
    let program = client.compile(&text, &CompileOptions::default()).unwrap();
    let put = |dims: [i64; 2], count| {
        let values = vec![0.0f32; count];
        client
            .buffer(0, ElementType::F32, &dims, bytes_of(&values))
            .unwrap()
    };
    let (a, b) = (put([4, 6], 24), put([6, 5], 30));
    let ran = program.execute(&[&[&a, &b]], &ExecuteOptions::default());
    let outcome = ran.and_then(|mut run| run.outputs.remove(0).remove(0).to_host(LONG));
    let error = outcome.unwrap_err().to_string();
    assert!(error.contains("is not [5, 4]"), "{error}");
}

#[test]
fn a_product_of_other_elements_is_refused() {
    let Some(client) = client() else { return };
    let case = Case {
        sizes: [4, 5, 6],
        left: false,
        right: false,
    };
    let text = case.text_of([4, 5], ["f32", "bf16"]);
    let error = case.run_text(client, &text, &[0.0; 24], &[0.0; 30]);
    let error = error.unwrap_err();
    assert!(error.contains("a product is of two f32"), "{error}");
}
