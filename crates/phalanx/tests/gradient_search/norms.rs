//! Normalizations and learned slopes, with random settings.

use serde_json::{Value, json};

use crate::layers::{layer, penalty};
use crate::network::Described;
use crate::random::Random;

/// Groups of some numbers each: of one alone nothing is left, and of two their signs.
pub(crate) fn group_norm(random: &mut Random, dims: &[usize], epsilon: f64) -> Described {
    let (channels, elements) = (dims[dims.len() - 1], dims.iter().product::<usize>());
    let dividing = (1..=channels).filter(|&groups| channels.is_multiple_of(groups));
    let dividing: Vec<usize> = dividing
        .filter(|&groups| elements / groups >= 8 || groups == 1)
        .collect();
    let settings = json!({"groups": random.of_list(&dividing), "scale": random.chance(0.85),
        "epsilon": if elements < 8 { 1.0 } else { epsilon }, "center": random.chance(0.85)});
    layer("group_norm", settings)
}

/// Statistics of the data, as variables or as settings, of some dims or of all numbers.
pub(crate) fn known_statistics(random: &mut Random, dims: &[usize]) -> Described {
    let mut axis: Vec<usize> = (1..=dims.len()).filter(|_| random.chance(0.4)).collect();
    let mut settings = json!({"invert": random.chance(0.3)});
    if random.chance(0.5) {
        axis = vec![dims.len()];
        let mut draw = |least: f64| -> Vec<f64> {
            let numbers = 0..dims[dims.len() - 1];
            numbers.map(|_| least + random.unit()).collect()
        };
        settings["mean"] = json!(draw(-0.5));
        settings["variance"] = json!(draw(0.5));
    }
    settings["axis"] = json!(axis);
    layer("normalization", settings)
}

pub(crate) fn slopes(random: &mut Random, dims: &[usize]) -> Described {
    let shared: Vec<usize> = (1..=dims.len()).filter(|_| random.chance(0.4)).collect();
    layer(
        "p_relu",
        json!({"shared_axes": shared, "alpha_regularizer": penalty(random)}),
    )
}

/// The last dim of an example, or the last two.
pub(crate) fn some_dims(random: &mut Random, rank: usize) -> Value {
    match rank > 1 && random.chance(0.2) {
        true => json!([-2, -1]),
        false => json!(-1),
    }
}
