//! Calls that no program of ours makes.

use crate::{Array, PLAIN, client, run};

#[test]
fn wrong_calls_are_errors_that_say_what_is_wrong() {
    let Some((client, _)) = client() else { return };
    let (x, w, dy) = (
        Array::zeros(&PLAIN.x_dims()),
        Array::zeros(&PLAIN.kernel_dims()),
        Array::zeros(&PLAIN.y_dims()),
    );
    let error_of = |body: &str| run(client, &[&x, &w, &dy], &PLAIN.results(), body).unwrap_err();
    let replaced = |replace: &str, with: &str| {
        let body = PLAIN.body();
        assert!(body.contains(replace));
        body.replace(replace, with)
    };
    let failure = |replace: &str, with: &str| error_of(&replaced(replace, with));
    let error = failure(
        "padding_low = array<i64: 1, 1>",
        "padding_low = array<i64: 1, 2>",
    );
    assert!(
        error.contains("phalanx.conv") && error.contains("the window does not fit"),
        "{error}"
    );
    let error = failure("groups = 1 : i64", "groups = 3 : i64");
    assert!(error.contains("channels and groups do not fit"), "{error}");
    let error = failure("strides = array<i64: 1, 1>", "strides = array<i64: 1>");
    assert!(error.contains("`strides` must have 2 integers"), "{error}");
    let error = failure("strides = array<i64: 1, 1>", "strides = array<i64: 0, 1>");
    assert!(error.contains("the window does not fit"), "{error}");
    let error = failure("groups = 1 : i64", "group = 1 : i64");
    assert!(error.contains("no attribute `groups`"), "{error}");
    let error = failure("replicas = 1 : i64", "replicas = 0 : i64");
    assert!(
        error.contains("`replicas` must be a positive integer"),
        "{error}"
    );
    let error = failure("relu = true", "relu = 1 : i64");
    assert!(error.contains("`relu` must be a boolean"), "{error}");
    let error = failure("ceiling = 3.0 : f32", "ceiling = -3.0 : f32");
    assert!(
        error.contains("`ceiling` must be a float of at least 0"),
        "{error}"
    );
    let (x_kind, w_kind, y_kind) = (x.kind(), w.kind(), dy.kind());
    let body = replaced("(%a2, %a1, %a0)", "(%a2, %a1, %a2)");
    let kinds = format!("({y_kind}, {w_kind}, {x_kind})");
    let error = error_of(&body.replace(&kinds, &format!("({y_kind}, {w_kind}, {y_kind})")));
    let expected = format!("expected the dimensions {:?}, got {:?}", x.dims, dy.dims);
    assert!(error.contains(&expected), "{error}");
    let bf16 = |kind: &str| kind.replace("f32", "bf16");
    let halves = [bf16(&x_kind), bf16(&w_kind), bf16(&y_kind)];
    let (config, [x, w, y]) = (PLAIN.attributes(), &halves);
    let body = format!(
        "%x = stablehlo.convert %a0 : ({x_kind}) -> {x}
        %w = stablehlo.convert %a1 : ({w_kind}) -> {w}
        %y = stablehlo.custom_call @phalanx.conv(%x, %w) {{api_version = 4 : i32, backend_config = {{{config}, relu = true, ceiling = 0.0 : f32}}}} : ({x}, {w}) -> {y}
        %f = stablehlo.convert %y : ({y}) -> {y_kind}
        return %f, %a0, %a1, %f, %f, %f, %f, %a0 : {y_kind}, {x_kind}, {w_kind}, {y_kind}, {y_kind}, {y_kind}, {y_kind}, {x_kind}"
    );
    let error = error_of(&body);
    assert!(
        error.contains("what follows a convolution must be of f32"),
        "{error}"
    );
}
