//! Dense layers by equations: which are none, and what does not fit them.

use phalanx::nn::{Sequential, layer_from_config};
use serde_json::{Value, json};

/// What is said of a layer with this equation for examples of these dims.
fn told(equation: &str, sizes: &str, bias: Option<&str>, dims: &[usize]) -> String {
    let sizes: Value = serde_json::from_str(sizes).unwrap();
    let fields = json!({"equation": equation, "output_shape": sizes, "bias_axes": bias});
    let layer = match layer_from_config("einsum_dense", &fields) {
        Ok(layer) => layer,
        Err(error) => return error.to_string(),
    };
    let model = Sequential::new(dims).add(layer).build();
    model.unwrap_err().to_string()
}

#[test]
fn equations_that_are_none_are_told_what_one_is() {
    for equation in [
        "ab,bc",
        "abbc->ac",
        "ab,bc->",
        "a b,bc->ac",
        "aab,bc->aac",
        "...b,bc->bc",
        "a...b,bc->a...c",
        "ab,bc...->ac",
        "ab,bc,cd->ad",
        "ab,b1->a1",
    ] {
        let told = told(equation, "3", None, &[4]);
        let expected = format!("`ab...,bc->ac...`, got `{equation}`");
        assert!(told.ends_with(&expected), "{told}");
    }
}

/// An equation, the output's sizes as JSON, letters of the bias, the dims of an example, and what is said.
type Mistake = (
    &'static str,
    &'static str,
    Option<&'static str>,
    &'static [usize],
    &'static str,
);

#[rustfmt::skip]
const MISTAKES: [Mistake; 13] = [
    ("ab,bd->ac", "3", None, &[4], "the dim `d` of the kernel is none of the input and none of the output"),
    ("ab,bc->acd", "[3, 2]", None, &[4], "the dim `d` of the output is none of the input and none of the kernel"),
    ("ab,bc->ca", "3", None, &[4], "is the batch: in `ab,bc->ca` it must be the first of the output, and none of the kernel"),
    ("ab,abc->ac", "3", None, &[4], "is the batch: in `ab,abc->ac` it must be the first of the output, and none of the kernel"),
    ("ab,bc->ac", "3", None, &[4, 5], "the equation is for inputs of 2 dims with the batch, got f32[batch,4,5]"),
    ("...bcd,de->...bce", "3", None, &[4], "the equation is for inputs of at least 3 dims with the batch, got f32[batch,4]"),
    ("abc,cd->abd", "3", None, &[4, 5], "a size, or null, for each of the dims `bd` of the output, got 1"),
    ("abc,cd->abd", "[3, 2]", None, &[4, 5], "`output_shape` has 3 for the dim `b`, of which the input has 4"),
    ("abc,bcd->abd", "[null, 2]", None, &[4, 5], "`output_shape` must say the size of the dim `b`, which the kernel or the bias has"),
    ("abc,cd->abd", "[null, null]", None, &[4, 5], "`output_shape` must say the size of the dim `d`, which the kernel or the bias has"),
    ("abc,cd->abd", "[null, 2]", Some("b"), &[4, 5], "`output_shape` must say the size of the dim `b`, which the kernel or the bias has"),
    ("abc,cd->abd", "[null, 0]", None, &[4, 5], "`output_shape` must be a whole number above 0, or a list of them"),
    ("abc,cd->abd", "[null, 2]", Some("ad"), &[4, 5], "letters of the output behind the batch, each once, got `ad` for `abc,cd->abd`"),
];

#[test]
fn dims_that_do_not_fit_are_named() {
    for (equation, sizes, bias, dims, expected) in MISTAKES {
        let told = told(equation, sizes, bias, dims);
        assert!(told.contains(expected), "{told}");
    }
}
