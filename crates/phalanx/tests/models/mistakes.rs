//! Models as JSON with mistakes in it, and with what would cost memory or a panic.

use phalanx::nn::Model;
use serde_json::{Value, json};

fn refusal(config: &Value) -> String {
    Model::from_config(config).unwrap_err().to_string()
}

fn stack_of(layers: &Value) -> Value {
    json!({"input": {"name": "x", "shape": [4]}, "layers": layers})
}

#[test]
fn mistakes_in_json_are_told_with_their_place() {
    for (config, expected) in [
        (json!(3), "model: expected fields with values, got 3"),
        (json!({}), "layers: is missing; add it"),
        (
            json!({"input": {"shape": [4]}, "layer": []}),
            "model: unknown field `layer`; did you mean `layers`?",
        ),
        (
            json!({"input": {"shape": [4]}, "layers": {}}),
            "layers: expected a list, got an object of 0 fields",
        ),
        (
            json!({"input": {"shape": [-4]}, "layers": []}),
            "input.shape[0]: expected a positive whole number, got -4",
        ),
        (
            json!({"input": {"shape": "4"}, "layers": []}),
            "input.shape: expected a list, got \"4\"",
        ),
        (
            json!({"input": {"shape": [4], "dtype": "float"}, "layers": []}),
            "input.dtype: unknown type `float`; known are f32, bf16, f16, f64, i32, i64, u32, u8, bool",
        ),
        (
            stack_of(&json!([{"dens": {}}])),
            "layers[0].dens: unknown layer `dens`; did you mean `dense`?",
        ),
        (
            stack_of(&json!([{"dense": {}}])),
            "layers[0].dense: field `units` is missing; add it",
        ),
        (
            stack_of(&json!([{"dense": {"units": 1, "units_": 1}}])),
            "layers[0].dense: unknown field `units_`; did you mean `units`?",
        ),
        (
            stack_of(&json!([7])),
            "layers[0]: expected a layer such as {\"dense\": {\"units\": 10}}, got 7",
        ),
        (
            stack_of(&json!([{"conv2d": {"filters": 1, "kernel_size": 3}}])),
            "layer `conv2d`: expected images [batch, height, width, channels], got f32[batch,4]; reshape them first",
        ),
        (
            stack_of(&json!([{"model": stack_of(&json!([{"dense": {"units": 0}}]))}])),
            "layers[0].model.layers[0].dense: `units` must be a whole number from 1 to 2147483647, got 0",
        ),
    ] {
        assert_eq!(refusal(&config), expected, "{config}");
    }
}

#[test]
fn mistakes_in_calls_and_outputs_are_told_with_their_place() {
    let dense = json!([{"dense": {"name": "d", "units": 4}}]);
    let functional = |calls: Value, outputs: Value| json!({"inputs": [{"name": "x", "shape": [4]}], "layers": dense, "calls": calls, "outputs": outputs});
    for (config, expected) in [
        (
            functional(json!([{"layer": "e", "inputs": ["x"]}]), json!(["d"])),
            "calls[0].layer: no layer is named `e`; did you mean `d`?",
        ),
        (
            functional(json!([{"layer": "d", "inputs": ["d"]}]), json!(["d"])),
            "calls[0].inputs[0]: `d` is used before the call that makes it; put calls in order, a model has no cycles",
        ),
        (
            functional(json!([{"layer": "d", "inputs": ["x"]}]), json!(["d:1"])),
            "outputs[0]: `d:1` is no input and no result of an earlier call; did you mean `d`?",
        ),
        (
            functional(json!([{"layer": "d", "inputs": ["x"]}]), json!(["d:0.1"])),
            "outputs[0]: `d:0.1` is no value: it has 1 outputs, counted from 0",
        ),
        (
            functional(json!([]), json!("x")),
            "outputs: expected a list, got \"x\"",
        ),
        (
            functional(json!([]), json!([])),
            "model `functional` has no outputs; name one or more",
        ),
    ] {
        assert_eq!(refusal(&config), expected, "{config}");
    }
}

fn check_hostile(config: &Value, part: &str) {
    let message = refusal(config);
    assert!(
        message.contains(part) && message.len() < 600,
        "{message}: lacks {part}"
    );
}

/// A model of images with one layer.
fn of_images(layer: &Value) -> Value {
    json!({"input": {"shape": [8, 8, 3]}, "layers": [layer]})
}

#[test]
fn hostile_json_is_refused_without_memory_or_panic() {
    let huge = u64::MAX;
    let mut nested = stack_of(&json!([]));
    for _ in 0..40 {
        nested = stack_of(&json!([{ "model": nested }]));
    }
    for (config, part) in [
        (stack_of(&json!([{"dense": {"units": huge}}])), "units"),
        (
            stack_of(
                &json!([{"dense": {"units": 2_000_000_000u64}}, {"dense": {"units": 2_000_000_000u64}}]),
            ),
            "elements",
        ),
        (
            json!({"input": {"shape": [huge]}, "layers": []}),
            "must be between",
        ),
        (
            json!({"input": {"shape": [2_000_000_000u64, 2_000_000_000u64]}, "layers": ["flatten"]}),
            "elements",
        ),
        (
            json!({"input": {"shape": vec![1; 60]}, "layers": []}),
            "dims",
        ),
        (
            stack_of(&json!(vec!["flatten"; 20_000])),
            "more than 10000 layers",
        ),
        (nested, "nested more than"),
        (bomb(), "more than 10000 calls"),
        (
            stack_of(
                &json!([{"dense": {"units": 1, "name": "d"}}, {"dense": {"units": 1, "name": "d"}}]),
            ),
            "named `d`",
        ),
        (stack_of(&json!([{"add": {}}])), "2 inputs or more"),
    ] {
        check_hostile(&config, part);
    }
}

/// Ten models each using the one inside ten times.
fn bomb() -> Value {
    let mut bomb = stack_of(&json!([{"dense": {"units": 4, "name": "d"}}]));
    for _ in 0..10 {
        let calls: Vec<Value> = (0..10)
            .map(|i| match i {
                0 => json!({"layer": "m", "inputs": ["x"]}),
                1 => json!({"layer": "m", "inputs": ["m"]}),
                _ => json!({"layer": "m", "inputs": [format!("m:{}", i - 1)]}),
            })
            .collect();
        bomb["name"] = json!("m");
        bomb = json!({"inputs": [{"name": "x", "shape": [4]}], "layers": [{ "model": bomb }], "calls": calls, "outputs": ["m:9"]});
    }
    bomb
}

#[test]
fn hostile_convolutions_are_refused_without_memory_or_panic() {
    let huge = u64::MAX;
    let image = |layer: Value| of_images(&layer);
    for (config, part) in [
        (
            image(json!({"conv2d": {"filters": 3, "kernel_size": 3, "dilation_rate": huge}})),
            "`dilation_rate`",
        ),
        (
            image(
                json!({"conv2d": {"filters": 3, "kernel_size": 3, "dilation_rate": 2_000_000_000u64}}),
            ),
            "span",
        ),
        (
            image(json!({"conv2d": {"filters": 3, "kernel_size": 3, "strides": 0}})),
            "`strides`",
        ),
        (
            image(json!({"conv2d": {"filters": 3, "kernel_size": 3, "groups": 0}})),
            "`groups`",
        ),
        (
            image(json!({"conv2d": {"filters": 3, "kernel_size": 9}})),
            "does not fit",
        ),
        (
            image(json!({"conv2d": {"filters": 4, "kernel_size": 3, "groups": 2}})),
            "must divide the channels",
        ),
        (
            image(
                json!({"depthwise_conv2d": {"kernel_size": 3, "depth_multiplier": 2_000_000_000u64}}),
            ),
            "channels",
        ),
        (
            image(json!({"zero_padding2d": {"padding": huge}})),
            "`padding`",
        ),
        (
            image(json!({"zero_padding2d": {"padding": 2_000_000_000u64}})),
            "zero_padding2d",
        ),
        (
            image(json!({"cropping2d": {"cropping": huge}})),
            "`cropping`",
        ),
        (
            image(json!({"cropping2d": {"cropping": [[0, 2_000_000_000u64], [0, 0]]}})),
            "`cropping` must be less than the 8 elements of its direction, got 0 and 2000000000",
        ),
        (
            image(json!({"cropping2d": {"cropping": [[3, 5], [0, 0]]}})),
            "`cropping` must be less than the 8 elements of its direction, got 3 and 5",
        ),
    ] {
        check_hostile(&config, part);
    }
}

#[test]
fn hostile_settings_of_residual_branches_are_refused_without_memory_or_panic() {
    let image = |layer: Value| of_images(&layer);
    for (config, part) in [
        (
            image(json!({"stochastic_depth": {"drop_path_rate": 1.5}})),
            "drop_path_rate",
        ),
        (
            image(json!({"layer_scale": {"init_values": "1"}})),
            "init_values",
        ),
        (
            image(json!({"scaled_add": {"scale": 1.0}})),
            "expected 2 inputs or more, got 1",
        ),
    ] {
        check_hostile(&config, part);
    }
}

#[test]
fn hostile_settings_of_categories_are_refused_without_memory_or_panic() {
    for (layer, part) in [
        (
            json!({"discretization": {"bin_boundaries": [1.0, 0.5]}}),
            "`bin_boundaries` must be in ascending order, got 1 before 0.5",
        ),
        (
            json!({"discretization": {"bin_boundaries": [1e300]}}),
            "`bin_boundaries` must be in",
        ),
        (
            json!({"discretization": {"bin_boundaries": []}}),
            "`bin_boundaries`",
        ),
        (
            json!({"discretization": {"bin_boundaries": [0], "output_mode": "count"}}),
            "multi_hot and count take [batch, n]",
        ),
        (
            json!({"integer_lookup": {"vocabulary": [1, 2, 1]}}),
            "`vocabulary` and `mask_token` must have each value once, got 1 twice",
        ),
        (
            json!({"integer_lookup": {"vocabulary": [1], "mask_token": 1}}),
            "got 1 twice",
        ),
        (
            json!({"integer_lookup": {"vocabulary": []}}),
            "`vocabulary`",
        ),
        (
            json!({"integer_lookup": {"vocabulary": [1], "num_oov_indices": 1_000_000_000}}),
            "`num_oov_indices` must be a whole number from 0 to 16777216",
        ),
        (
            json!({"category_encoding": {"num_tokens": 0}}),
            "`num_tokens`",
        ),
        (
            json!({"category_encoding": {"num_tokens": 2, "output_mode": "int"}}),
            "`output_mode` must be one_hot, multi_hot or count, got \"int\"",
        ),
    ] {
        check_hostile(&of_images(&layer), part);
    }
}

#[test]
fn hostile_settings_of_normalizations_are_refused_without_memory_or_panic() {
    let image = |layer: Value| of_images(&layer);
    for (config, part) in [
        (image(json!({"batch_norm": {"axis": i64::MIN}})), "axis"),
        (image(json!({"layer_norm": {"axis": [1, 1]}})), "`axis`"),
        (image(json!({"layer_norm": {"epsilon": -1}})), "`epsilon`"),
        (
            image(json!({"group_norm": {"groups": i64::MIN}})),
            "`groups`",
        ),
        (image(json!({"group_norm": {"groups": 0}})), "`groups`"),
        (image(json!({"group_norm": {"epsilon": -1}})), "`epsilon`"),
        (
            image(json!({"group_norm": {}})),
            "`groups` must divide the channels of the input, got 32 and",
        ),
        (image(json!({"unit_norm": {"axis": []}})), "`axis`"),
        (
            image(json!({"p_relu": {"shared_axes": [i64::MIN]}})),
            "shared_axes",
        ),
        (
            image(json!({"p_relu": {"shared_axes": [1, 4]}})),
            "`shared_axes` must be from 1 to 3, the dims of an example, got [1, 4]",
        ),
        (image(json!({"normalization": {"axis": i64::MIN}})), "axis"),
        (
            image(json!({"normalization": {"axis": 0}})),
            "axis 0 is no dim of an example",
        ),
        (
            image(json!({"normalization": {"mean": 1.0}})),
            "`mean` and `variance` must be given together, or neither",
        ),
        (
            image(json!({"normalization": {"mean": 1.0, "variance": -1.0}})),
            "`variance` must be in",
        ),
        (
            image(json!({"normalization": {"mean": [1.0, 2.0], "variance": 1.0}})),
            "`mean` and `variance` must have the same dims, got [2] and []",
        ),
        (
            image(json!({"normalization": {"mean": [[1.0]], "variance": [[1.0]]}})),
            "`mean` must have at most a dim for each `axis`, got dims [1, 1] for [-1]",
        ),
        (
            image(json!({"normalization": {"mean": [1.0, 2.0], "variance": [1.0, 2.0]}})),
            "`mean` and `variance` have dims [2], but the dims of `axis` have sizes [3]",
        ),
        (
            image(
                json!({"normalization": {"axis": [1, 3], "mean": [[1.0], [1.0, 2.0]], "variance": 1.0}}),
            ),
            "`mean`",
        ),
    ] {
        check_hostile(&config, part);
    }
}

#[test]
fn hostile_settings_of_layers_are_refused_without_memory_or_panic() {
    let huge = u64::MAX;
    let image = |layer: Value| of_images(&layer);
    // As deep as the text of JSON may be.
    let mut deep = json!({"flatten": {}});
    for _ in 0..60 {
        deep = json!({"time_distributed": {"layer": deep}});
    }
    for (config, part) in [
        (image(deep), "more than 4 deep"),
        (
            image(json!({"reshape": {"target_shape": [i64::MIN]}})),
            "`target_shape`",
        ),
        (
            image(json!({"reshape": {"target_shape": [4_611_686_018_427_387_904i64, 4, -1]}})),
            "which do not fill `target_shape`",
        ),
        (
            image(json!({"embedding": {"input_dim": huge, "output_dim": 1}})),
            "`input_dim`",
        ),
        (
            image(json!({"dense": {"units": 1, "name": "a/b"}})),
            "is no name",
        ),
        (
            image(
                json!({"dense": {"units": 1, "kernel_initializer": {"truncated_normal": {"stddev": -1}}}}),
            ),
            "stddev",
        ),
        (
            image(json!({"dense": {"units": 1, "kernel_regularizer": "l3"}})),
            "did you mean",
        ),
    ] {
        check_hostile(&config, part);
    }
}
