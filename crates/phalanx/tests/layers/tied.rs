//! A table that goes both ways.

use phalanx::nn::{Input, Model, Network, ReversibleEmbedding};
use phalanx_graph::{DType, HostTensor};
use phalanx_testkit::assert_close;

use crate::call;

/// Tokens `[2, 2]` that become rows, and then scores.
fn model(layer: ReversibleEmbedding) -> Model {
    let mut net = Network::new();
    let tokens = net.input(Input::new([2]).dtype(DType::I32));
    let table = net.layer(layer);
    let rows = net.call(table, &[tokens]);
    let scores = net.call(table, &[rows]);
    net.build(&[tokens], &[rows, scores]).unwrap()
}

const ROWS: [f32; 6] = [1.0, 2.0, -1.0, 0.5, 3.0, -2.0];

fn tokens() -> HostTensor {
    HostTensor::new([2, 2], &[2i32, 0, 1, 1])
}

/// The product of each looked up row with each row of three columns of a matrix.
fn products(columns: [[f64; 2]; 3]) -> Vec<f64> {
    let rows = [2, 0, 1, 1].map(|at| [ROWS[2 * at], ROWS[2 * at + 1]].map(f64::from));
    let products = rows.iter().flat_map(|row| {
        let of = |column: &[f64; 2]| row[0] * column[0] + row[1] * column[1];
        columns.iter().map(of).collect::<Vec<f64>>()
    });
    products.collect()
}

#[test]
fn rows_have_their_products_with_the_table_as_scores() {
    let tied = model(ReversibleEmbedding::new(3, 2));
    let table = HostTensor::new([3, 2], &ROWS);
    let (found, ..) = call(&tied, &[table], &[tokens()], |_, cx| cx);
    assert_eq!(found[0].f32s(), [3.0, -2.0, 1.0, 2.0, -1.0, 0.5, -1.0, 0.5]);
    let expected = products([[1.0, 2.0], [-1.0, 0.5], [3.0, -2.0]]);
    assert_close("scores", &found[1].to_f64(), &expected, 1e-6);
}

#[test]
fn weights_that_are_not_tied_are_their_own_and_scores_stay_within_the_cap() {
    let apart = ReversibleEmbedding::new(3, 2).tie_weights(false);
    let apart = model(apart.logit_soft_cap(2.0));
    let names: Vec<&str> = (apart.variables().iter().map(|one| one.name.as_str())).collect();
    assert_eq!(
        names,
        [
            "reversible_embedding/embeddings",
            "reversible_embedding/reverse_embeddings"
        ]
    );
    let table = HostTensor::new([3, 2], &ROWS);
    let back = HostTensor::new([2, 3], &[1.0f32, 0.0, 2.0, -1.0, 3.0, 0.5]);
    let (found, ..) = call(&apart, &[table, back], &[tokens()], |_, cx| cx);
    let expected = products([[1.0, -1.0], [0.0, 3.0], [2.0, 0.5]]);
    let expected: Vec<f64> = (expected.iter().map(|x| 2.0 * (x / 2.0).tanh())).collect();
    assert_close("scores", &found[1].to_f64(), &expected, 1e-6);
}

#[test]
fn floats_of_another_width_are_taken_for_indices_by_no_one() {
    let mut net = Network::new();
    let x = net.input(Input::new([5]));
    let scores = net.add(ReversibleEmbedding::new(3, 2), &[x]);
    let told = net.build(&[x], &[scores]).unwrap_err().to_string();
    assert!(
        told.contains("floats go the way back and must be [.., 2], got")
            && told.contains("declare indices as i32"),
        "{told}"
    );
}
