//! Convolutions by each algorithm that their calls may name, and products of bf16 by the library, instead of what the rules for the processor
//! choose.

use phalanx::engine::{CompileRequest, Engine};
use phalanx::nn::{Model, Sequential, layer_from_config};
use phalanx_graph::{Bf16Matmul, KernelSupport, Lowering};
use phalanx_kernels::{Kernels, has_fast_bf16};
use phalanx_pjrt::{CompileOptions, Executable, OverrideValue, Platform, PluginSearch};
use phalanx_testkit::test_platform;
use serde_json::json;

use crate::compare::{mixed_by_products, right_by};
use crate::step::Step;
use crate::trial::{Aim, Source, Trial, Weights};

/// What a call of a convolution may name.
pub(crate) const ALGORITHMS: [&str; 5] = ["plain", "blocked", "matmul", "product", "tiles"];

/// Stands for the library's products in the place of the compiler's, all that are of bf16.
pub(crate) const BF16_PRODUCTS: &str = "phalanx.bf16_product";

/// The names of the calls of convolutions and of their gradients begin so.
const CALL: &str = "@\"phalanx.conv";
const CONFIG: &str = "backend_config = {";

/// Whether the search is on the CPU, which alone has kernels beside the compiler's and as many devices as one likes.
pub(crate) fn is_cpu() -> bool {
    test_platform() == Platform::Cpu
}

/// The step with this algorithm in all calls that it computes, or with [`BF16_PRODUCTS`]; none where there are none, or no library for them.
pub(crate) fn by_algorithm(
    step: &Step,
    engine: &Engine,
    algorithm: &str,
) -> Result<Option<Executable>, String> {
    let has_kernels = step.program.replicas == 1 && is_cpu();
    if !has_kernels || Kernels::find(&PluginSearch::from_process(), None).is_err() {
        return Ok(None);
    }
    let text = |bf16_matmul| {
        let lowering = Lowering {
            kernels: Some(KernelSupport { tiles: false }),
            bf16_matmul,
            ..Lowering::new(Platform::Cpu, "gradient_search")
        };
        step.program.simplified().to_stablehlo(&lowering)
    };
    let text = match algorithm {
        BF16_PRODUCTS if !has_bf16_products() => None,
        BF16_PRODUCTS => Some(text(Bf16Matmul::Always)).filter(|text| text.contains(BF16_PRODUCTS)),
        algorithm => with_algorithm(&text(Bf16Matmul::Never), algorithm),
    };
    let Some(text) = text else {
        return Ok(None);
    };
    // The engine registers the kernels where it compiles a program with them.
    let registered = engine.compile(CompileRequest::new("gradient_search", &step.program));
    registered.map_err(|error| error.to_string())?;
    let level = ("xla_backend_optimization_level", OverrideValue::Int(0));
    let options = CompileOptions {
        overrides: [(level.0.to_owned(), level.1)].into(),
        ..CompileOptions::default()
    };
    let compiled = engine.client().compile(&text, &options);
    compiled.map(Some).map_err(|error| error.to_string())
}

/// Whether oneDNN multiplies bf16 on this processor, fast or not.
pub(crate) fn has_bf16_products() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx512bw")
        && std::arch::is_x86_feature_detected!("avx512dq")
        && std::arch::is_x86_feature_detected!("avx512vl");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// The text of a program with this algorithm in all calls that it computes; none where there are none.
fn with_algorithm(text: &str, algorithm: &str) -> Option<String> {
    let mut is_changed = false;
    let lines = text.lines().map(|line| {
        if !line.contains(CALL) || !computes(line, algorithm) {
            return format!("{line}\n");
        }
        is_changed = true;
        let named = format!("{CONFIG}\"algorithm\" = \"{algorithm}\", ");
        format!("{}\n", line.replacen(CONFIG, &named, 1))
    });
    let text: String = lines.collect();
    is_changed.then_some(text)
}

/// Whether an algorithm computes the call of a line: what `crates/kernels` refuses is left out here, and no more.
fn computes(line: &str, algorithm: &str) -> bool {
    let types: Vec<Vec<&str>> = (line.split("tensor<").skip(1))
        .map(|rest| {
            rest.split('>')
                .next()
                .unwrap_or_default()
                .split('x')
                .collect()
        })
        .collect();
    let is_gradient = line.contains("@\"phalanx.conv_kernel_gradient\"");
    let kernel = &types[if is_gradient { types.len() - 1 } else { 1 }];
    let number = |dim: usize| kernel[dim].parse::<usize>().unwrap();
    let has = |name: &str, value: usize| {
        line.contains(&format!("\"{name}\" = array<i64: {value}, {value}>"))
    };
    let unit_steps = has("strides", 1) && has("dilation", 1);
    let one_group = line.contains("\"groups\" = 1 : i64");
    let unpadded = has("padding_low", 0) && has("padding_high", 0);
    let is_product = [0, 1].map(number) == [1, 1] && unit_steps && one_group && unpadded;
    match algorithm {
        "plain" => true,
        "blocked" => one_group,
        "matmul" => is_product && is_gradient && (has_fast_bf16() || !line.contains("xbf16>")),
        "product" => is_product,
        // Paddings of "valid" and "same" are narrow enough.
        "tiles" => {
            let channels = [2, 3].map(number);
            let fit = channels.iter().all(|&count| count >= 16 && count % 8 == 0);
            [0, 1].map(number) == [3, 3] && unit_steps && one_group && fit
        }
        other => panic!("no algorithm is called {other}"),
    }
}

/// Convolutions of 1x1 and 3x3, in steps of 1 and 2, with and without bias and rectifier, whose channels are wide enough for all algorithms.
fn convolutions() -> Model {
    let conv = |filters: usize, kernel: usize, strides: usize, more: serde_json::Value| {
        let mut settings = json!({
            "filters": filters, "kernel_size": [kernel, kernel], "strides": [strides, strides], "padding": "same",
        });
        let (all, more) = (settings.as_object_mut().unwrap(), more.as_object().unwrap());
        all.extend(more.clone());
        layer_from_config("conv2d", &settings).unwrap()
    };
    let plain = |kind: &str| layer_from_config(kind, &json!({})).unwrap();
    Sequential::new([9, 10, 16])
        .add(conv(24, 3, 1, json!({"activation": "relu"})))
        .add(conv(40, 1, 1, json!({"use_bias": false})))
        .add(plain("batch_norm"))
        .add(conv(16, 3, 2, json!({"activation": "tanh"})))
        .add(conv(32, 1, 1, json!({"activation": "relu"})))
        .add(conv(8, 1, 2, json!({})))
        .add(plain("global_average_pool2d"))
        .add(layer_from_config("dense", &json!({"units": 3})).unwrap())
        .build()
        .unwrap()
}

#[test]
fn gradients_are_right_by_each_algorithm() {
    let model = convolutions();
    let trial = Trial {
        sources: vec![Source::Floats],
        rows: 3,
        replicas: 1,
        aim: Aim::Classes,
        weights: Weights::Random,
        seed: 8,
    };
    let mut right = Vec::new();
    for algorithm in ALGORITHMS {
        if right_by(&model, &trial, algorithm).unwrap_or_else(|what| panic!("{algorithm}: {what}"))
        {
            right.push(algorithm);
        }
    }
    match Kernels::find(&PluginSearch::from_process(), None) {
        Ok(_) => assert_eq!(right, ALGORITHMS),
        Err(error) => phalanx_testkit::skip(format_args!("{error}")),
    }
}

#[test]
fn calls_name_an_algorithm_where_it_computes_them() {
    let call = |kernel: &str, strides: usize| {
        format!(
            "%1 = stablehlo.custom_call @\"phalanx.conv\"(%x, %w) {{{CONFIG}\"dilation\" = array<i64: 1, 1>, \"groups\" = 1 : i64, \"padding_high\" = array<i64: 0, 0>, \"padding_low\" = array<i64: 0, 0>, \"strides\" = array<i64: {strides}, {strides}>}}}} : (tensor<2x8x8x16xf32>, tensor<{kernel}xf32>) -> tensor<2x6x6x16xf32>\n"
        )
    };
    let three = call("3x3x16x16", 1);
    let named = three.replace(CONFIG, "backend_config = {\"algorithm\" = \"tiles\", ");
    assert_eq!(with_algorithm(&three, "tiles"), Some(named));
    assert_eq!(with_algorithm(&call("3x3x16x12", 1), "tiles"), None);
    assert_eq!(with_algorithm(&call("3x3x16x16", 2), "tiles"), None);
    assert_eq!(with_algorithm(&three, "product"), None);
    assert_eq!(with_algorithm(&call("1x1x16x16", 1), "matmul"), None);
    assert!(with_algorithm(&call("1x1x16x16", 1), "product").is_some());
    assert_eq!(with_algorithm("%1 = stablehlo.add %a, %b", "plain"), None);
}

/// Attention, whose batch dims stand apart, products in a loop, and dense layers before and after.
fn products() -> Model {
    let layer =
        |kind: &str, settings: serde_json::Value| layer_from_config(kind, &settings).unwrap();
    let attention = json!({"num_heads": 2, "key_dim": 5});
    Sequential::new([7, 12])
        .add(layer("dense", json!({"units": 10, "activation": "tanh"})))
        .add(layer("multi_head_attention", attention))
        .add(layer("gru", json!({"units": 6})))
        .add(layer("dense", json!({"units": 4})))
        .build()
        .unwrap()
}

#[test]
fn gradients_are_right_by_products_of_bf16() {
    let trial = Trial {
        sources: vec![Source::Floats],
        rows: 5,
        replicas: 1,
        aim: Aim::Classes,
        weights: Weights::Random,
        seed: 9,
    };
    let found = mixed_by_products(&products(), &trial);
    let found = found.unwrap_or_else(|what| panic!("{what}"));
    match Kernels::find(&PluginSearch::from_process(), None) {
        Ok(_) if has_bf16_products() => assert!(found, "no product is a call"),
        Ok(_) => phalanx_testkit::skip("oneDNN has products of bf16 for AVX-512"),
        Err(error) => phalanx_testkit::skip(format_args!("{error}")),
    }
}
