//! A dense layer along dims that an equation names.

use std::collections::HashMap;

use phalanx_graph::op::DotDims;
use phalanx_graph::{Shape, Tensor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::layer::Layer;
use super::precision::widened;
use super::settings::{WeightRules, weight_rules};
use super::sizes::{MAX_RANK, check_size, one_float};
use super::{Activation, Constraint, Cx, Initializer, Regularizer, fields};
use crate::config::{self, Component, Described, Field, Kind, joined};

/// `activation(product + bias)` of the input and a kernel by an equation in Einstein's notation; kind `einsum_dense`, Keras' `EinsumDense`.
///
/// The equation names the dims of the input, the kernel and the output by a letter each: `abc,cd->abd` is a [`Dense`](super::Dense) layer for
/// sequences, `abc,cde->abde` one whose output has two dims for each step. Dims without a letter go where the dots are: before the others in
/// `...x,xy->...y`, after them in `ab...,bc->ac...`. What the output lacks is summed over. The batch is the first dim of input and output, and none
/// of the kernel.
///
/// Input: floats `[batch, ..]`. Output: as the equation says, without the input's padding mask, as in Keras.
///
/// Variables: `kernel`, with the dims that the equation says; `bias`, with the dims of the output from the first letter of `bias_axes` on, 1 for
/// those that are not among them. The fans of the kernel are the products of its dims that the output lacks and of those that it has.
///
/// Unlike Keras', it has no `lora_rank`.
///
/// ```
/// use phalanx::nn::{EinsumDense, Sequential};
///
/// let heads = EinsumDense::new("abc,cde->abde", [None, Some(4), Some(16)]).bias_axes("de");
/// let model = Sequential::new([10, 64]).add(heads).build()?;
/// assert_eq!(model.variables()[0].shape.dims, [64, 4, 16]);
/// assert_eq!(model.variables()[1].shape.dims, [4, 16]);
/// assert_eq!(model.outputs()[0].dims, [10, 4, 16]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EinsumDense {
    equation: String,
    #[serde(deserialize_with = "one_or_several")]
    output_shape: Vec<Option<usize>>,
    bias_axes: Option<String>,
    activation: Activation,
    #[serde(flatten)]
    weights: WeightRules,
    activity_regularizer: Option<Regularizer>,
}

impl EinsumDense {
    /// A layer without a bias. `output_shape` has the size of each dim of the output that has a letter, but the batch: `None` for those that the
    /// input says and kernel and bias lack.
    #[must_use]
    pub fn new(equation: &str, output_shape: impl Into<Vec<Option<usize>>>) -> Self {
        Self {
            equation: equation.to_owned(),
            output_shape: output_shape.into(),
            bias_axes: None,
            activation: Activation::Linear,
            weights: WeightRules::new(),
            activity_regularizer: None,
        }
    }

    /// Adds a bias along the dims of the output with these letters.
    #[must_use]
    pub fn bias_axes(mut self, letters: &str) -> Self {
        self.bias_axes = Some(letters.to_owned());
        self
    }

    /// Sets the function applied last.
    #[must_use]
    pub fn activation(mut self, activation: impl Into<Activation>) -> Self {
        self.activation = activation.into();
        self
    }

    weight_rules!(weights);

    /// Sets a penalty on the output, divided by the number of examples.
    #[must_use]
    pub const fn activity_regularizer(mut self, regularizer: Regularizer) -> Self {
        self.activity_regularizer = Some(regularizer);
        self
    }

    /// The equation for an input of this shape.
    fn terms(&self, shape: &Shape) -> Result<Terms, String> {
        let equation = Equation::parse(&self.equation)?;
        let [input, output] = equation.spread(shape)?;
        let kernel: Vec<char> = equation.kernel.chars().collect();
        if output.first() != input.first() || kernel.contains(&input[0]) {
            return Err(format!(
                "the first dim of {shape} is the batch: in `{}` it must be the first of the output, and none of the kernel",
                self.equation
            ));
        }
        let mut sizes: HashMap<char, usize> =
            input.iter().copied().zip(shape.dims.clone()).collect();
        let named = output
            .iter()
            .skip(1)
            .filter(|letter| letter.is_alphabetic());
        let named: Vec<char> = named.copied().collect();
        if named.len() != self.output_shape.len() {
            let (count, letters): (_, String) =
                (self.output_shape.len(), named.into_iter().collect());
            return Err(format!(
                "`output_shape` must have a size, or null, for each of the dims `{letters}` of the output, got {count}"
            ));
        }
        for (letter, given) in named.into_iter().zip(&self.output_shape) {
            let known = sizes.get(&letter).copied();
            let bias = self.bias_axes.as_deref().unwrap_or_default();
            let is_needed = kernel.contains(&letter) || bias.contains(letter);
            let size = size(letter, known, *given, is_needed)?;
            sizes.insert(letter, size);
        }
        Ok(Terms {
            input,
            kernel,
            output,
            sizes,
        })
    }

    fn check_bias(&self, terms: &Terms) -> Result<(), String> {
        let Some(axes) = &self.bias_axes else {
            return Ok(());
        };
        let behind = &terms.output[1..];
        if are_letters(axes) && axes.chars().all(|letter| behind.contains(&letter)) {
            return Ok(());
        }
        Err(format!(
            "`bias_axes` must be letters of the output behind the batch, each once, got `{axes}` for `{}`",
            self.equation
        ))
    }
}

/// The size of a dim of the output, by what the input says and what is given.
fn size(
    letter: char,
    known: Option<usize>,
    given: Option<usize>,
    is_needed: bool,
) -> Result<usize, String> {
    match (known, given) {
        (Some(known), Some(given)) if known != given => Err(format!(
            "`output_shape` has {given} for the dim `{letter}`, of which the input has {known}"
        )),
        (Some(known), _) if given.is_some() || !is_needed => Ok(known),
        (None, Some(given)) => Ok(given),
        _ => Err(format!(
            "`output_shape` must say the size of the dim `{letter}`, which the kernel or the bias has"
        )),
    }
}

/// Where the dims without a letter are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dots {
    Nowhere,
    First,
    Last,
}

/// The letters of an equation.
struct Equation<'a> {
    input: &'a str,
    kernel: &'a str,
    output: &'a str,
    dots: Dots,
}

impl<'a> Equation<'a> {
    fn parse(text: &'a str) -> Result<Self, String> {
        let parts = text.split_once("->").and_then(|(operands, output)| {
            let (input, kernel) = operands.split_once(',')?;
            let both = |of: fn(&'a str) -> Option<&'a str>| of(input).zip(of(output));
            let first = both(|part| part.strip_prefix("...")).map(|parts| (parts, Dots::First));
            let last = || both(|part| part.strip_suffix("...")).map(|parts| (parts, Dots::Last));
            let ((input, output), dots) = first
                .or_else(last)
                .unwrap_or(((input, output), Dots::Nowhere));
            let equation = Self {
                input,
                kernel,
                output,
                dots,
            };
            let mut parts = [input, kernel, output].into_iter();
            parts.all(are_letters).then_some(equation)
        });
        let equation = parts.ok_or_else(|| {
            format!(
                "`equation` must name the dims of input, kernel and output by letters, each once in a part, as in `abc,cd->abd`, `...x,xy->...y` or `ab...,bc->ac...`, got `{text}`"
            )
        })?;
        equation.check()
    }

    /// Refuses dims of unknown sizes.
    fn check(self) -> Result<Self, String> {
        let missing = |part: &str, others: [&str; 2]| {
            let mut letters = part.chars();
            letters.find(|&letter| !others.iter().any(|other| other.contains(letter)))
        };
        let (input, kernel, output) = (self.input, self.kernel, self.output);
        if let Some(letter) = missing(kernel, [input, output]) {
            return Err(format!(
                "`equation`: the dim `{letter}` of the kernel is none of the input and none of the output"
            ));
        }
        match missing(output, [input, kernel]) {
            Some(letter) => Err(format!(
                "`equation`: the dim `{letter}` of the output is none of the input and none of the kernel"
            )),
            None => Ok(self),
        }
    }

    /// A letter for each dim of an input of this shape and of its output; those without have a digit.
    fn spread(&self, shape: &Shape) -> Result<[Vec<char>; 2], String> {
        let (rank, named) = (shape.rank(), self.input.len());
        let hidden = rank.checked_sub(named);
        let hidden = hidden.filter(|&hidden| hidden == 0 || self.dots != Dots::Nowhere);
        let Some(hidden) = hidden else {
            let least = if self.dots == Dots::Nowhere {
                ""
            } else {
                "at least "
            };
            return Err(format!(
                "the equation is for inputs of {least}{named} dims with the batch, got {shape}"
            ));
        };
        let hidden: String = ('0'..).take(hidden).collect();
        let spread = |letters: &str| match self.dots {
            Dots::First => hidden.chars().chain(letters.chars()).collect(),
            _ => letters.chars().chain(hidden.chars()).collect(),
        };
        Ok([spread(self.input), spread(self.output)])
    }
}

/// Whether these are letters, each once.
fn are_letters(part: &str) -> bool {
    let mut letters = part.char_indices();
    !part.is_empty()
        && letters.all(|(at, letter)| letter.is_ascii_alphabetic() && part.find(letter) == Some(at))
}

/// An equation for an input: the letters of each part, and the sizes of their dims.
struct Terms {
    input: Vec<char>,
    kernel: Vec<char>,
    output: Vec<char>,
    sizes: HashMap<char, usize>,
}

impl Terms {
    fn size(&self, letter: &char) -> usize {
        self.sizes.get(letter).copied().unwrap_or(1)
    }

    fn kernel_dims(&self) -> Vec<usize> {
        self.kernel.iter().map(|letter| self.size(letter)).collect()
    }

    /// Keras' fans: the dims of the kernel that the output lacks, and those that it has.
    fn fans(&self) -> [usize; 2] {
        [false, true].map(|is_of_output| {
            let kernel = self.kernel.iter();
            let part = kernel.filter(|letter| self.output.contains(letter) == is_of_output);
            part.map(|letter| self.size(letter)).product()
        })
    }

    /// The dims of the bias, to be aligned with the output at the last.
    fn bias_dims(&self, axes: &str) -> Vec<usize> {
        let output = self.output.iter();
        let from_first = output.skip_while(|letter| !axes.contains(**letter));
        let dim = |letter: &char| match axes.contains(*letter) {
            true => self.size(letter),
            false => 1,
        };
        from_first.map(dim).collect()
    }

    /// The product, its dims in the order of the output.
    #[track_caller]
    fn product(&self, x: &Tensor, kernel: &Tensor) -> Tensor {
        let (stays, alone): (Vec<char>, Vec<char>) = (self.input.iter())
            .partition(|letter| self.kernel.contains(letter) || self.output.contains(letter));
        let x = match alone.is_empty() {
            true => x.clone(),
            false => widened(x)
                .sum(&places(&self.input, &alone))
                .convert(x.dtype()),
        };
        let both = stays.iter().filter(|letter| self.kernel.contains(letter));
        let (batch, summed): (Vec<char>, Vec<char>) =
            both.partition(|letter| self.output.contains(letter));
        let dims = DotDims {
            lhs_batch: places(&stays, &batch),
            rhs_batch: places(&self.kernel, &batch),
            lhs_contract: places(&stays, &summed),
            rhs_contract: places(&self.kernel, &summed),
            dtype: x.dtype().wide(),
        };
        let product = x.dot(kernel, dims).convert(x.dtype());
        let free = |letters: &[char]| -> Vec<char> {
            let free = letters.iter().copied();
            free.filter(|letter| !batch.contains(letter) && !summed.contains(letter))
                .collect()
        };
        let made = [batch.clone(), free(&stays), free(&self.kernel)].concat();
        match made == self.output {
            true => product,
            false => product.transpose(&places(&made, &self.output)),
        }
    }
}

/// The place of each of the wanted letters.
fn places(letters: &[char], wanted: &[char]) -> Vec<usize> {
    let place = |wanted: &char| letters.iter().position(|letter| letter == wanted);
    wanted.iter().filter_map(place).collect()
}

/// One size, or several of which those that are null follow from the input.
fn one_or_several<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<Option<usize>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a whole number or a list of them")]
    enum Form {
        One(usize),
        Several(Vec<Option<usize>>),
    }
    Ok(match Form::deserialize(deserializer)? {
        Form::One(size) => vec![Some(size)],
        Form::Several(sizes) => sizes,
    })
}

impl Described for EinsumDense {
    const COMPONENT: Component = Component {
        name: "einsum_dense",
        doc: "a fully connected layer along dims that an equation names",
        fields: joined!(
            &[
                Field::required(
                    "equation",
                    Kind::Text,
                    "a letter for each dim of the input, the kernel and the output, the batch first",
                )
                .example("\"abc,cd->abd\""),
                Field::required(
                    "output_shape",
                    Kind::Worded(
                        "a whole number above 0, or a list of them, null where the input says it",
                        &Kind::Either(&[
                            Kind::SIZE,
                            Kind::List(&Kind::Either(&[Kind::Null, Kind::SIZE]), 0, MAX_RANK),
                        ]),
                    ),
                    "the size of each dim of the output that has a letter, but the batch",
                )
                .example("[null, 64]"),
                Field::optional(
                    "bias_axes",
                    Kind::Text,
                    "letters of the output along which a bias is added; without them there is none",
                )
                .example("d"),
                fields::ACTIVATION,
            ],
            WeightRules::FIELDS,
            &[fields::ACTIVITY_REGULARIZER],
        ),
    };
}

impl Layer for EinsumDense {
    fn kind(&self) -> &'static str {
        "einsum_dense"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        Equation::parse(&self.equation)?;
        let mut sizes = self.output_shape.iter().flatten();
        sizes.try_for_each(|&size| check_size("`output_shape`", size))?;
        self.activation.check()
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        let input = one_float(inputs)?;
        self.check_bias(&self.terms(input)?)
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let x = &inputs[0];
        let terms = match self.terms(&x.shape()) {
            Ok(terms) => terms,
            Err(message) => return cx.fail(message),
        };
        let [fan_in, fan_out] = terms.fans();
        let first = self.weights.kernel_initializer.with_fans(fan_in, fan_out);
        let shape = Shape::new(x.dtype(), terms.kernel_dims());
        let kernel = self.weights.kernel_from(cx, "kernel", shape, &first);
        let y = terms.product(x, &kernel);
        let Some(axes) = &self.bias_axes else {
            return self.activation.apply(&y);
        };
        let shape = Shape::new(x.dtype(), terms.bias_dims(axes));
        let bias = self.weights.bias(cx, "bias", shape);
        self.activation.apply(&(y + bias))
    }

    fn activation(&self) -> Option<Activation> {
        Some(self.activation)
    }

    fn activity_regularizer(&self) -> Option<Regularizer> {
        self.activity_regularizer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those that Keras' `_analyze_einsum_string` gives `VarianceScaling`.
    #[test]
    fn fans_are_what_the_output_lacks_and_what_it_has() {
        for (equation, sizes, input, expected) in [
            (
                "abc,cde->abde",
                vec![None, Some(4), Some(5)],
                vec![9, 2, 3],
                [3, 20],
            ),
            (
                "abcd,cde->abe",
                vec![None, Some(5)],
                vec![9, 2, 3, 4],
                [12, 5],
            ),
            (
                "abc,bcd->abd",
                vec![Some(2), Some(5)],
                vec![9, 2, 3],
                [3, 10],
            ),
        ] {
            let layer = EinsumDense::new(equation, sizes);
            let terms = layer.terms(&Shape::f32(input)).unwrap();
            assert_eq!(terms.fans(), expected, "{equation}");
        }
    }
}
