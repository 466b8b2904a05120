//! Calls that no program of ours makes.

use phalanx_pjrt::Client;

use crate::{Array, PLAIN, client, run};

/// What a call has, what it has instead, and what the error says.
const MISTAKES: [(&str, &str, &str); 8] = [
    (
        "padding_low = array<i64: 1, 1>",
        "padding_low = array<i64: 1, 2>",
        "the window does not fit",
    ),
    (
        "groups = 1 : i64",
        "groups = 3 : i64",
        "channels and groups do not fit",
    ),
    (
        "strides = array<i64: 1, 1>",
        "strides = array<i64: 1>",
        "`strides` must have 2 integers",
    ),
    (
        "strides = array<i64: 1, 1>",
        "strides = array<i64: 0, 1>",
        "the window does not fit",
    ),
    (
        "groups = 1 : i64",
        "group = 1 : i64",
        "no attribute `groups`",
    ),
    (
        "replicas = 1 : i64",
        "replicas = 0 : i64",
        "`replicas` must be a positive integer",
    ),
    ("relu = true", "relu = 1 : i64", "`relu` must be a boolean"),
    (
        "ceiling = 3.0 : f32",
        "ceiling = -3.0 : f32",
        "`ceiling` must be a float of at least 0",
    ),
];

#[test]
fn wrong_calls_are_errors_that_say_what_is_wrong() {
    let Some((client, _)) = client() else { return };
    for (replace, with, expected) in MISTAKES {
        let error = error_of(client, &replaced(replace, with));
        assert!(error.contains(expected), "{replace} -> {with}: {error}");
        assert!(error.contains("phalanx.conv"), "{error}");
    }
}

#[test]
fn operands_of_other_shapes_are_named_with_both() {
    let Some((client, _)) = client() else { return };
    let [x, w, dy] = arguments();
    let (x_kind, w_kind, y_kind) = (x.kind(), w.kind(), dy.kind());
    let body = replaced("(%a2, %a1, %a0)", "(%a2, %a1, %a2)");
    let kinds = format!("({y_kind}, {w_kind}, {x_kind})");
    let body = body.replace(&kinds, &format!("({y_kind}, {w_kind}, {y_kind})"));
    let error = error_of(client, &body);
    let expected = format!("expected the dimensions {:?}, got {:?}", x.dims, dy.dims);
    assert!(error.contains(&expected), "{error}");
}

#[test]
fn an_array_to_add_of_other_dims_is_refused() {
    let Some((client, _)) = client() else { return };
    let [x, w, dy] = arguments();
    let (x_kind, w_kind, y_kind) = (x.kind(), w.kind(), dy.kind());
    let b_kind = crate::kind(&[PLAIN.channels[1]], "f32");
    let body = replaced(
        "@phalanx.conv(%a0, %a1, %bias)",
        "@phalanx.conv(%a0, %a1, %bias, %a0)",
    );
    let with = |more: &str| format!("({x_kind}, {w_kind}, {b_kind}{more}) -> {y_kind}");
    let body = body.replace(&with(""), &with(&format!(", {x_kind}")));
    let error = error_of(client, &body);
    let expected = format!("expected the dimensions {:?}, got {:?}", dy.dims, x.dims);
    assert!(error.contains(&expected), "{error}");
}

#[test]
fn a_bias_of_other_elements_is_refused() {
    let Some((client, _)) = client() else { return };
    let b_kind = crate::kind(&[PLAIN.channels[1]], "f32");
    let bf16 = b_kind.replace("f32", "bf16");
    let body = PLAIN.body();
    let short = format!("%short = stablehlo.convert %bias : ({b_kind}) -> {bf16}\n");
    let at = body.find("@phalanx.conv(%a0, %a1, %bias)").unwrap();
    let line = body[..at].rfind('\n').unwrap() + 1;
    let (before, call) = body.split_at(line);
    let call = call.replacen("%a1, %bias)", "%a1, %short)", 1);
    let call = call.replacen(&format!(", {b_kind})"), &format!(", {bf16})"), 1);
    let error = error_of(client, &format!("{before}{short}{call}"));
    let expected = "the bias must have the element type of the kernel, F32, got bf16";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn what_follows_a_convolution_of_bf16_is_refused() {
    let Some((client, _)) = client() else { return };
    let [x_kind, w_kind, y_kind] = arguments().map(|array| array.kind());
    let bf16 = |kind: &str| kind.replace("f32", "bf16");
    let [x, w, y] = [bf16(&x_kind), bf16(&w_kind), bf16(&y_kind)];
    let config = PLAIN.attributes();
    let body = format!(
        "%x = stablehlo.convert %a0 : ({x_kind}) -> {x}
        %w = stablehlo.convert %a1 : ({w_kind}) -> {w}
        %y = stablehlo.custom_call @phalanx.conv(%x, %w) {{api_version = 4 : i32, backend_config = {{{config}, relu = true, ceiling = 0.0 : f32}}}} : ({x}, {w}) -> {y}
        %f = stablehlo.convert %y : ({y}) -> {y_kind}
        return %f, %a0, %a1, %f, %f, %f, %f, %a0 : {y_kind}, {x_kind}, {w_kind}, {y_kind}, {y_kind}, {y_kind}, {y_kind}, {x_kind}"
    );
    let error = error_of(client, &body);
    let expected = "what follows a convolution must be of f32";
    assert!(error.contains(expected), "{error}");
}

/// x, the kernel and dy.
fn arguments() -> [Array; 3] {
    [PLAIN.x_dims(), PLAIN.kernel_dims(), PLAIN.y_dims()].map(|dims| Array::zeros(&dims))
}

fn error_of(client: &Client, body: &str) -> String {
    let [x, w, dy] = &arguments();
    run(client, &[x, w, dy], &PLAIN.results(), body).unwrap_err()
}

/// The body of a right program with something else in one place at least.
fn replaced(replace: &str, with: &str) -> String {
    let body = PLAIN.body();
    assert!(body.contains(replace));
    body.replace(replace, with)
}
